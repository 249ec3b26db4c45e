// A message is acted on only if it names the current rank slot, so that late messages of ended
// generations have no effect. Everything that must reach the coordinator is kept until it is
// answered, or forever if there is no answer, and repeated after a reconnect; the coordinator
// ignores repetitions.
#include "member/assignment.h"

#include <type_traits>

#include "absl/strings/str_cat.h"
#include "proto/rank_slot.h"

namespace cadre {
namespace {

bool SameGeneration(const v1::RankSlot& a, const v1::RankSlot& b) {
  return a.run() == b.run() && a.group() == b.group() && a.generation() == b.generation();
}

void SetBody(const v1::GroupFailed& body, v1::MemberMessage& m) {
  *m.mutable_group_failed() = body;
}
void SetBody(const v1::Prepared& body, v1::MemberMessage& m) { *m.mutable_prepared() = body; }
void SetBody(const v1::Progress& body, v1::MemberMessage& m) { *m.mutable_progress() = body; }
void SetBody(const v1::Measured& body, v1::MemberMessage& m) { *m.mutable_measured() = body; }
void SetBody(const v1::Contributed& body, v1::MemberMessage& m) { *m.mutable_contributed() = body; }
void SetBody(const v1::Adopted& body, v1::MemberMessage& m) { *m.mutable_adopted() = body; }
void SetBody(const v1::Evaluated& body, v1::MemberMessage& m) { *m.mutable_evaluated() = body; }
void SetBody(const v1::Traced& body, v1::MemberMessage& m) { *m.mutable_traced() = body; }
void SetBody(const v1::Restaged& body, v1::MemberMessage& m) { *m.mutable_restaged() = body; }
void SetBody(const v1::Checkpointed& body, v1::MemberMessage& m) {
  *m.mutable_checkpointed() = body;
}

template <typename T>
AssignmentMachine::Send MakeSend(const T& body) {
  AssignmentMachine::Send send;
  SetBody(body, send.message);
  return send;
}

}  // namespace

AssignmentMachine::Actions AssignmentMachine::Receive(const v1::CoordinatorMessage& message) {
  bool accepted = false;
  switch (message.body_case()) {
    case v1::CoordinatorMessage::kAssignment:
      return ReceiveAssignment(message.assignment(), message.epoch());
    case v1::CoordinatorMessage::kRelease:
      return ReceiveRelease(message.release());
    case v1::CoordinatorMessage::kRefused:
      return ReceiveRefused(message.refused());
    case v1::CoordinatorMessage::kRestage:
      return ReceiveRestage(message);
    case v1::CoordinatorMessage::kStart:
      accepted = AcceptStart(message.start());
      break;
    case v1::CoordinatorMessage::kDecision:
      accepted = AcceptDecision(message.decision());
      break;
    case v1::CoordinatorMessage::kNudge:
      accepted = IsTraining(message.nudge().place());
      break;
    case v1::CoordinatorMessage::kTraceSteps:
      accepted = IsTraining(message.trace_steps().place());
      break;
    case v1::CoordinatorMessage::kShardAddresses:
      accepted = rank_slot_ && rank_slot_->run() == message.shard_addresses().run();
      break;
    default:
      break;  // a message for aggregators, or Welcome
  }
  if (!accepted) return {};
  return {Deliver{message}};
}

// The generations that a coordinator assigns to a group only increase, so an assignment of a lower
// or equal one is late or repeated.
AssignmentMachine::Actions AssignmentMachine::ReceiveAssignment(const v1::Assignment& assignment,
                                                                uint64_t epoch) {
  const v1::RankSlot& rank_slot = assignment.place();
  // The coordinator repeats the assignment after a reconnect; Connected repeats our messages, too.
  if (IsCurrent(rank_slot)) return {};
  Newest& newest = newest_[{assignment.lineage(), rank_slot.group()}];
  if (rank_slot.generation() == newest.generation) {
    if (epoch <= newest.epoch) return {};
    // The coordinator has started with records from before the end, and must not wait for it.
    v1::GroupFailed failed;
    *failed.mutable_place() = rank_slot;
    failed.set_reason("the generation has ended before");
    return {MakeSend(failed)};
  }
  if (rank_slot.generation() < newest.generation && epoch <= newest.epoch) return {};
  newest = {rank_slot.generation(), epoch};
  Actions actions;
  if (rank_slot_) actions = Drop("superseded by a newer assignment");
  unanswered<v1::GroupFailed>().reset();
  rank_slot_ = rank_slot;
  actions.push_back(Begin{assignment});
  return actions;
}

bool AssignmentMachine::AcceptStart(const v1::Start& start) {
  if (!IsCurrent(start.place()) || started_ || !unanswered<v1::Prepared>()) return false;
  started_ = true;
  // Without a next step the group only evaluates the last version.
  finished_ = start.next_step() == 0;
  unanswered<v1::Prepared>().reset();
  return true;
}

// A decision answers the contribution of its round. After the end of the run, further decisions
// assign intervals to evaluate, without a contribution. The last contribution of a run that never
// averages is sent again after every reconnect: a coordinator that has started with an older store
// can learn from no aggregator that the group is at its end.
bool AssignmentMachine::AcceptDecision(const v1::Decision& decision) {
  if (!IsCurrent(decision.place())) return false;
  std::optional<v1::Contributed>& contributed = unanswered<v1::Contributed>();
  const bool answers = contributed && contributed->round() == decision.round();
  if (!answers && !finished_) return false;
  finished_ = decision.next_step() == 0;
  if (!finished_ || decision.adopt()) contributed.reset();
  return true;
}

// Only a started rank holds values. Others answer, so that the coordinator does not wait for them.
AssignmentMachine::Actions AssignmentMachine::ReceiveRestage(
    const v1::CoordinatorMessage& message) const {
  const v1::Restage& restage = message.restage();
  if (IsTraining(restage.place())) return {Deliver{message}};
  v1::Restaged answer;
  *answer.mutable_place() = restage.place();
  answer.set_shard(restage.shard());
  answer.set_round(restage.round());
  answer.set_seed(restage.seed());
  answer.set_error("the rank slot has ended or has not started");
  return {MakeSend(answer)};
}

AssignmentMachine::Actions AssignmentMachine::ReceiveRelease(const v1::Release& release) {
  const v1::RankSlot& rank_slot = release.place();
  std::optional<v1::GroupFailed>& failure = unanswered<v1::GroupFailed>();
  if (failure && SameGeneration(failure->place(), rank_slot)) failure.reset();
  if (!rank_slot_ || !SameGeneration(*rank_slot_, rank_slot)) return {};
  return Drop(release.reason());
}

AssignmentMachine::Actions AssignmentMachine::ReceiveRefused(const v1::Refused& refused) {
  // Other refusals concern one message; Release ends a slot.
  if (refused.refusal() != v1::REFUSAL_UNKNOWN_MEMBER) return {};
  unanswered<v1::GroupFailed>().reset();
  if (!rank_slot_) return {};
  return Drop(absl::StrCat("refused by the coordinator: ", refused.reason()));
}

AssignmentMachine::Actions AssignmentMachine::Connected() const {
  Actions actions;
  const auto send_again = [&](const auto& body) {
    if (body) actions.push_back(MakeSend(*body));
  };
  std::apply([&](const auto&... bodies) { (send_again(bodies), ...); }, unanswered_);
  return actions;
}

AssignmentMachine::Actions AssignmentMachine::Report(const TrainingReport& report) {
  return std::visit(
      [this]<typename T>(const T& body) -> Actions {
        if (!IsCurrent(body.place())) return {};
        constexpr bool kSentOnce = std::is_same_v<T, v1::Progress> ||
                                   std::is_same_v<T, v1::Traced> || std::is_same_v<T, v1::Restaged>;
        if constexpr (!kSentOnce) unanswered<T>() = body;
        return {MakeSend(body)};
      },
      report);
}

// Drops the slot immediately, and repeats the report of the failure until the coordinator releases
// the generation.
AssignmentMachine::Actions AssignmentMachine::Fail(const v1::GroupFailed& failed) {
  if (!IsCurrent(failed.place())) return {};
  Drop(failed.reason());
  unanswered<v1::GroupFailed>() = failed;
  return {MakeSend(failed)};
}

bool AssignmentMachine::IsCurrent(const v1::RankSlot& rank_slot) const {
  return rank_slot_ && SamePlace(*rank_slot_, rank_slot);
}

AssignmentMachine::Actions AssignmentMachine::Drop(std::string reason) {
  rank_slot_.reset();
  started_ = false;
  finished_ = false;
  // A failure must be reported although its slot is lost.
  std::optional<v1::GroupFailed> failure = std::move(unanswered<v1::GroupFailed>());
  unanswered_ = {};
  unanswered<v1::GroupFailed>() = std::move(failure);
  return {Cancel{std::move(reason)}};
}

}  // namespace cadre
