#include "worker/assignment.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "proto/rank_slot.h"

namespace cadre {
namespace {

using Machine = AssignmentMachine;

// Wraps one of a member's messages: MakeSay(&v1::MemberMessage::mutable_prepared, prepared).
template <typename T>
Machine::Send MakeSay(T* (v1::MemberMessage::*field)(), const T& body) {
  Machine::Send say;
  *(say.message.*field)() = body;
  return say;
}

}  // namespace

Machine::Actions Machine::Receive(const v1::CoordinatorMessage& message) {
  switch (message.body_case()) {
    case v1::CoordinatorMessage::kAssignment:
      return ReceiveAssignment(message.assignment());
    case v1::CoordinatorMessage::kStart:
      return ReceiveStart(message.start());
    case v1::CoordinatorMessage::kDecision:
      return ReceiveDecision(message.decision());
    case v1::CoordinatorMessage::kRelease:
      return ReceiveRelease(message.release());
    case v1::CoordinatorMessage::kRefused:
      return ReceiveRefused(message.refused());
    case v1::CoordinatorMessage::kShardAddresses:
      if (!place_ || place_->run() != message.shard_addresses().run()) return {};
      return {MoveShards{message.shard_addresses()}};
    case v1::CoordinatorMessage::kTraceSteps:
      return ReceiveTraceSteps(message.trace_steps());
    default:
      return {};  // addressed to aggregators, or not sent to us after Welcome
  }
}

Machine::Actions Machine::ReceiveAssignment(const v1::Assignment& assignment) {
  const v1::RankSlot& place = assignment.place();
  if (IsCurrent(place)) return {};  // said again after a reconnect; what we said is said again too
  uint32_t& newest = newest_[{assignment.lineage(), place.group()}];
  if (place.generation() <= newest) return {};
  newest = place.generation();
  Actions actions;
  if (place_) actions = Drop("superseded by a newer assignment");
  unanswered_failure_.reset();
  place_ = place;
  actions.push_back(Begin{assignment});
  return actions;
}

Machine::Actions Machine::ReceiveStart(const v1::Start& start) {
  if (!IsCurrent(start.place()) || started_ || !unanswered_prepared_) return {};
  started_ = true;
  // A group that is made only to evaluate the last version.
  finished_ = start.next_step() == 0;
  unanswered_prepared_.reset();
  return {Go{start}};
}

Machine::Actions Machine::ReceiveDecision(const v1::Decision& decision) {
  if (!IsCurrent(decision.place())) return {};
  const bool answers =
      unanswered_contributed_ && unanswered_contributed_->round() == decision.round();
  if (!answers && !finished_) return {};
  unanswered_contributed_.reset();
  finished_ = decision.next_step() == 0;
  return {Decide{decision}};
}

Machine::Actions Machine::ReceiveTraceSteps(const v1::TraceSteps& trace) const {
  if (!IsCurrent(trace.place()) || !started_) return {};
  return {TraceNext{trace}};
}

Machine::Actions Machine::ReceiveRelease(const v1::Release& release) {
  const v1::RankSlot& place = release.place();
  if (unanswered_failure_ && unanswered_failure_->place().run() == place.run() &&
      unanswered_failure_->place().group() == place.group() &&
      unanswered_failure_->place().generation() == place.generation()) {
    unanswered_failure_.reset();
  }
  if (!place_ || place_->run() != place.run() || place_->group() != place.group() ||
      place_->generation() != place.generation()) {
    return {};
  }
  return Drop(release.reason());
}

Machine::Actions Machine::ReceiveRefused(const v1::Refused& refused) {
  // Any other refusal concerns one message; a place is ended by Release.
  if (refused.refusal() != v1::REFUSAL_UNKNOWN_MEMBER) return {};
  unanswered_failure_.reset();
  if (!place_) return {};
  return Drop(absl::StrCat("refused by the coordinator: ", refused.reason()));
}

Machine::Actions Machine::Connected() const {
  Actions actions;
  if (unanswered_failure_) {
    actions.push_back(MakeSay(&v1::MemberMessage::mutable_group_failed, *unanswered_failure_));
  }
  if (unanswered_prepared_) {
    actions.push_back(MakeSay(&v1::MemberMessage::mutable_prepared, *unanswered_prepared_));
  }
  if (last_measured_) {
    actions.push_back(MakeSay(&v1::MemberMessage::mutable_measured, *last_measured_));
  }
  if (last_adopted_) {
    actions.push_back(MakeSay(&v1::MemberMessage::mutable_adopted, *last_adopted_));
  }
  if (last_evaluated_) {
    actions.push_back(MakeSay(&v1::MemberMessage::mutable_evaluated, *last_evaluated_));
  }
  if (unanswered_contributed_) {
    actions.push_back(MakeSay(&v1::MemberMessage::mutable_contributed, *unanswered_contributed_));
  }
  return actions;
}

Machine::Actions Machine::Tell(const v1::Prepared& prepared) {
  if (!IsCurrent(prepared.place())) return {};
  unanswered_prepared_ = prepared;
  return {MakeSay(&v1::MemberMessage::mutable_prepared, prepared)};
}

Machine::Actions Machine::Tell(const v1::Progress& progress) const {
  if (!IsCurrent(progress.place())) return {};
  return {MakeSay(&v1::MemberMessage::mutable_progress, progress)};
}

Machine::Actions Machine::Tell(const v1::Measured& measured) {
  if (!IsCurrent(measured.place())) return {};
  last_measured_ = measured;
  return {MakeSay(&v1::MemberMessage::mutable_measured, measured)};
}

Machine::Actions Machine::Tell(const v1::Contributed& contributed) {
  if (!IsCurrent(contributed.place())) return {};
  unanswered_contributed_ = contributed;
  return {MakeSay(&v1::MemberMessage::mutable_contributed, contributed)};
}

Machine::Actions Machine::Tell(const v1::Adopted& adopted) {
  if (!IsCurrent(adopted.place())) return {};
  last_adopted_ = adopted;
  return {MakeSay(&v1::MemberMessage::mutable_adopted, adopted)};
}

Machine::Actions Machine::Tell(const v1::Evaluated& evaluated) {
  if (!IsCurrent(evaluated.place())) return {};
  last_evaluated_ = evaluated;
  return {MakeSay(&v1::MemberMessage::mutable_evaluated, evaluated)};
}

Machine::Actions Machine::Tell(const v1::Traced& traced) const {
  if (!IsCurrent(traced.place())) return {};
  return {MakeSay(&v1::MemberMessage::mutable_traced, traced)};
}

Machine::Actions Machine::Fail(const v1::RankSlot& place, bool permanent,
                               const std::string& reason) {
  if (!IsCurrent(place)) return {};
  Drop(reason);
  v1::GroupFailed failed;
  *failed.mutable_place() = place;
  failed.set_permanent(permanent);
  failed.set_reason(reason);
  unanswered_failure_ = failed;
  return {MakeSay(&v1::MemberMessage::mutable_group_failed, failed)};
}

bool Machine::IsCurrent(const v1::RankSlot& place) const {
  return place_ && SamePlace(*place_, place);
}

Machine::Actions Machine::Drop(std::string reason) {
  place_.reset();
  started_ = false;
  finished_ = false;
  unanswered_prepared_.reset();
  unanswered_contributed_.reset();
  last_measured_.reset();
  last_adopted_.reset();
  last_evaluated_.reset();
  return {Cancel{std::move(reason)}};
}

}  // namespace cadre
