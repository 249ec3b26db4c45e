// The loop of one rank in one generation.
//
// A generation of a group proceeds as follows; rank 0 alone exchanges messages with the
// coordinator.
//
//   open the data, connect, agree on the plan, prepare the model
//   Prepared -> Start
//   make version 0, or pull the version that Start names; check its digest, gather; Adopted
//   repeat
//     train to the boundary              (H steps; the last step omits its all-gather), or fewer
//                                        steps, if the others wait for a group that catches up
//     while the coordinator is unreachable, train further periods, up to max_solo_steps
//     stage the owned values at the shards, and keep the optimizer states; Contributed -> Decision
//     pull the decided version, check its digest, gather; Adopted
//     evaluate this group's interval of the test split; Evaluated
//   until the group is released
//
// With averaging.overlap, staging and pulling run in the background of the next steps, after which
// the version is adopted, evaluated and merged with what these steps have changed.
//
// This is local SGD with periodic averaging (Stich, ICLR 2019; Lin et al., ICLR 2020) between
// groups, each of which trains synchronously. Momentum is not averaged; the ranks
// of a group that is re-formed restore it from their vaults (state_vault.h).
//
// Invariant. All ranks call the same collectives, because every branch depends only on values that
// are equal on all ranks. These are the plan, the spec, and what rank 0 broadcasts: Start,
// Decision, and whether the coordinator is reachable. No branch depends on a rank's own clock or
// its own connection. After an error a rank leaves; the transport then fails on the other ranks.
//
// Durability. A contribution is durable on every shard before rank 0 reports it. The steps between
// boundaries are not durable: if a generation fails, the next one repeats the steps since the last
// committed version. A checkpoint has the version without the steps of the overlap, but with the
// optimizer states after them.
//
// Limits. Evaluation and checkpoints stop training for their duration. If one rank fails, the
// generation ends for its whole group.
#include "member/member_loop.h"

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "comm/transport/suspects.h"
#include "glog/logging.h"
#include "member/agreement.h"
#include "member/averager.h"
#include "member/rank_protocol.h"
#include "model/coding.h"
#include "model/opaque.h"
#include "proto/enum_text.h"

namespace cadre {
namespace {

// Interval at which rank 0 informs its peers that it still waits for the coordinator; well below
// the time after which a silent peer is considered dead.
constexpr absl::Duration kWaitInterval = absl::Seconds(2);

class MemberLoop {
 public:
  MemberLoop(const v1::Assignment& assignment, TrainedModel& model, GroupControl& control,
             Cancellation& cancellation, Counters& counters, const MemberLoopOptions& options)
      : assignment_(assignment),
        spec_(assignment.spec()),
        rank_slot_(assignment.place()),
        model_(model),
        control_(control),
        cancellation_(cancellation),
        counters_(counters),
        options_(options),
        progress_(options.progress != nullptr ? *options.progress : own_progress_),
        clock_(options.runtime->clock()),
        averager_(std::in_place, assignment, model, cancellation, counters, progress_, options,
                  failure_),
        protocol_(assignment) {}

  MemberLoop(const MemberLoop&) = delete;
  MemberLoop& operator=(const MemberLoop&) = delete;
  ~MemberLoop() {
    averager_.reset();
    model_.Close();
  }

  TrainerOutcome Run() {
    progress_.Enter(v1::ACTIVITY_PREPARING);
    absl::Status status = Prepare();
    if (status.ok()) status = Train();
    const absl::Status device = model_.device_status();
    // After a cancellation its reason is reported, and not the errors that it caused.
    if (const absl::Status cancelled = cancellation_.status(); !cancelled.ok()) {
      return {.status = cancelled};
    }
    // The device's message says what was requested.
    if (absl::IsResourceExhausted(device) && !absl::IsCancelled(status)) {
      return {.status = device, .cause = v1::FAILURE_CAUSE_MEMORY};
    }
    return {.status = status,
            .cause = CauseOf(status),
            .suspects = Suspects(status),
            .peer_released = IsPeerReleased(status)};
  }

 private:
  v1::FailureCause CauseOf(const absl::Status& status) const {
    if (failure_.cause() != v1::FAILURE_CAUSE_UNSPECIFIED) return failure_.cause();
    if (absl::IsCancelled(status)) return v1::FAILURE_CAUSE_UNSPECIFIED;
    if (absl::IsOutOfRange(status)) return v1::FAILURE_CAUSE_DIVERGED;
    // The failure of a peer fails the device, too.
    if (!Suspects(status).empty()) return v1::FAILURE_CAUSE_PEER;
    if (!model_.device_status().ok()) return v1::FAILURE_CAUSE_DEVICE;
    return v1::FAILURE_CAUSE_UNSPECIFIED;
  }

  // The ranks that the error names, or else the error of the group if it has failed.
  std::vector<int> Suspects(const absl::Status& status) const {
    std::vector<int> ranks = SuspectsOf(status);
    const bool own = failure_.cause() != v1::FAILURE_CAUSE_UNSPECIFIED;
    if (ranks.empty() && !own && transport_ != nullptr) ranks = SuspectsOf(transport_->status());
    return ranks;
  }

  bool IsPeerReleased(const absl::Status& status) const {
    if (failure_.cause() != v1::FAILURE_CAUSE_UNSPECIFIED) return false;
    return IsOfRelease(status) || (transport_ != nullptr && IsOfRelease(transport_->status()));
  }

  // Everything before training.
  absl::Status Prepare() {
    CADRE_RETURN_IF_ERROR(model_.Open(failure_));
    progress_.Advance();
    CADRE_ASSIGN_OR_RETURN(transport_, options_.connect(assignment_));
    on_cancel_ =
        cancellation_.OnCancel([this](const absl::Status& reason) { transport_->Abort(reason); });
    progress_.Advance();
    // Not before: a generation of another group that cannot open its data or reach its peers must
    // not cost the rank its states.
    for (StateVault* vault : {options_.states, options_.residuals}) {
      if (vault != nullptr) vault->Enter(assignment_);
    }
    CADRE_RETURN_IF_ERROR(model_.Prepare(*transport_, protocol_, failure_));
    progress_.Advance();
    CADRE_RETURN_IF_ERROR(averager_->Prepare(control_));
    return model_.device_status();
  }

  bool lead() const { return rank_slot_.rank() == 0; }
  const v1::Start& start() const { return protocol_.start(); }
  Communicator& group() { return model_.group(); }

  // ---- Training

  // Carries out the actions of protocol_ until one fails or the group is released.
  absl::Status Train() {
    v1::Prepared prepared = model_.Describe();
    averager_->AddMemory(*prepared.mutable_memory());
    *prepared.mutable_place() = rank_slot_;
    progress_.Enter(v1::ACTIVITY_WAITING);
    CADRE_ASSIGN_OR_RETURN(v1::Start start, control_.PreparedAndStart(prepared));
    // Each rank received its own Start, possibly a different one; rank 0's is used.
    CADRE_RETURN_IF_ERROR(BroadcastMessage(&start));
    RankProtocol::Actions actions =
        protocol_.Handle(RankProtocol::Started{start, prepared.train_samples()});
    step_ = start.step();
    model_.StartAt(step_);
    while (true) {
      // Only the last action has an event.
      std::optional<RankProtocol::Event> event;
      for (const RankProtocol::Action& action : actions) {
        CADRE_RETURN_IF_ERROR(std::visit([&](const auto& one) { return Do(one, &event); }, action));
      }
      actions = protocol_.Handle(*event);
    }
  }

  absl::Status Do(const RankProtocol::Train& train, std::optional<RankProtocol::Event>* event) {
    if (!train.resumes) {
      period_start_ = clock_.Now();
      waited_ = absl::ZeroDuration();
    }
    CADRE_ASSIGN_OR_RETURN(const uint32_t reached, model_.Train(train, failure_));
    step_ = std::max(step_, reached);
    // A rank that is alone need not ask others whether they leave.
    const bool last = group().size() == 1 && averager_->has_shards() && control_.draining() &&
                      reached >= protocol_.next_boundary();
    *event = RankProtocol::Trained{.leaves = last || reached < train.until, .step = reached};
    return absl::OkStatus();
  }

  // ---- The boundary

  // Measures the time that a round keeps the group from training: the lifetimes of these objects.
  class Exposure {
   public:
    explicit Exposure(MemberLoop& loop) : loop_(loop), start_(loop.clock_.Now()) {}
    Exposure(const Exposure&) = delete;
    Exposure& operator=(const Exposure&) = delete;
    ~Exposure() { Count(); }

    absl::Time start() const { return start_; }
    // Returns the time since the last call.
    absl::Duration Take() {
      Count();
      return std::exchange(loop_.exposed_, absl::ZeroDuration());
    }

   private:
    void Count() {
      const absl::Time now = loop_.clock_.Now();
      const absl::Duration time = now - std::exchange(start_, now);
      loop_.exposed_ += time;
      loop_.waited_ += time;
    }

    MemberLoop& loop_;
    absl::Time start_;
  };

  absl::Status Do(const RankProtocol::AskPresence& /*ask*/,
                  std::optional<RankProtocol::Event>* event) {
    uint64_t away = lead() && !control_.connected() ? 1 : 0;
    CADRE_RETURN_IF_ERROR(BroadcastNumber(&away));
    *event = RankProtocol::Presence{.away = away != 0};
    return absl::OkStatus();
  }

  absl::Status Do(const RankProtocol::AskNudge& ask, std::optional<RankProtocol::Event>* event) {
    const bool leaves = averager_->has_shards() &&
                        control_.LeavesBefore(ask.steps * absl::Seconds(model_.step_seconds()));
    uint64_t ranks[] = {lead() && control_.nudged(ask.round) ? 1U : 0U, leaves ? 1U : 0U};
    CADRE_RETURN_IF_ERROR(group().AllReduceSum(std::span<uint64_t>(ranks)));
    *event = RankProtocol::Nudged{.nudged = ranks[0] > 0, .leaves = ranks[1] > 0};
    return absl::OkStatus();
  }

  absl::Status Do(const RankProtocol::Leave& /*leave*/,
                  std::optional<RankProtocol::Event>* /*event*/) {
    CADRE_RETURN_IF_ERROR(Leave(protocol_.version(), std::vector<bool>(group().size(), true)));
    return absl::CancelledError("the program has ended its loop");
  }

  absl::Status Do(const RankProtocol::Stage& stage, std::optional<RankProtocol::Event>* event) {
    const Exposure exposure(*this);
    progress_.Enter(v1::ACTIVITY_EXCHANGING);
    CADRE_RETURN_IF_ERROR(model_.AwaitOperations());
    // Non-finite weights must not be averaged.
    if (stage.samples > 0)
      CADRE_RETURN_IF_ERROR(AfterSteps(step_, protocol_.version(), model_.CheckWeights()));
    CADRE_RETURN_IF_ERROR(averager_->BeginStage(stage, protocol_.version()));
    PeriodReport period = model_.TakePeriod();
    contributed_ = {.loss = period.loss, .rate = period.rate};
    contributed_.metrics = std::move(period.metrics);
    contributed_.train_seconds =
        absl::ToDoubleSeconds(exposure.start() - period_start_ - std::exchange(waited_, {}));
    period_start_ = exposure.start();
    if (!stage.background) return AwaitStaged(event);
    *event = RankProtocol::Unfinished{};
    return absl::OkStatus();
  }

  absl::Status Do(const RankProtocol::AwaitStaged& await,
                  std::optional<RankProtocol::Event>* event) {
    const Exposure exposure(*this);
    uint64_t unfinished[] = {await.wait || averager_->staged() ? 0U : 1U};
    if (!await.wait) {
      CADRE_RETURN_IF_ERROR(group().AllReduceSum(std::span<uint64_t>(unfinished)));
    }
    if (unfinished[0] == 0) return AwaitStaged(event);
    *event = RankProtocol::Unfinished{};
    return absl::OkStatus();
  }

  // A collective. Waits until all ranks have staged.
  absl::Status AwaitStaged(std::optional<RankProtocol::Event>* event) {
    Traffic traffic;
    CADRE_RETURN_IF_ERROR(averager_->FinishStage(protocol_.version(), &traffic));
    CADRE_ASSIGN_OR_RETURN(const RoundTotals totals, SumOverRanks(traffic));
    RankProtocol::Staged result = contributed_;
    result.payload_bytes = totals.payload_bytes;
    result.message_bytes = totals.message_bytes;
    // After this barrier every rank has staged.
    CADRE_RETURN_IF_ERROR(group().Barrier());
    staged_at_ = clock_.Now();
    result.stage_seconds = absl::ToDoubleSeconds(staged_at_ - period_start_);
    *event = result;
    return absl::OkStatus();
  }

  // What the ranks add up at the end of staging, and at the end of pulling.
  struct RoundTotals {
    uint64_t payload_bytes = 0;
    uint64_t message_bytes = 0;
    // Whether each rank leaves.
    std::vector<bool> leaving;
  };

  // A collective.
  absl::StatusOr<RoundTotals> SumOverRanks(const Traffic& traffic) {
    constexpr size_t kFirst = 2;
    std::vector<uint64_t> sums(kFirst + group().size());
    sums[0] = traffic.payload_sent + traffic.payload_received;
    sums[1] = traffic.message_sent + traffic.message_received;
    sums[kFirst + rank_slot_.rank()] = control_.draining() ? 1 : 0;
    CADRE_RETURN_IF_ERROR(group().AllReduceSum(std::span(sums)));
    return RoundTotals{.payload_bytes = sums[0],
                       .message_bytes = sums[1],
                       .leaving = {sums.begin() + kFirst, sums.end()}};
  }

  // A collective. The ranks that leave give their states to others first. A rank that leaves is as
  // lost to the others as one that fails.
  absl::Status Leave(uint32_t version, const std::vector<bool>& leaving) {
    if (std::find(leaving.begin(), leaving.end(), true) == leaving.end()) return absl::OkStatus();
    CADRE_RETURN_IF_ERROR(model_.OnLeaving());
    CADRE_RETURN_IF_ERROR(averager_->HandOver(version, leaving));
    return leaving[rank_slot_.rank()] ? control_.LeaveIfDraining() : absl::OkStatus();
  }

  TrainedModel::AveragingSource AveragingStates() {
    return [this](std::string* warning) { return averager_->States(protocol_.version(), warning); };
  }

  // Whether a group that leaves has trained further since its contribution, and contributes that,
  // too. Groups of several ranks agree on it only at the end of a loop.
  bool ContributesAgain() const {
    return protocol_.steps_ahead() > 0 && !protocol_.discards_steps_ahead() &&
           (assignment_.peers_size() <= 1 || model_.ended_loop());
  }

  absl::Status BroadcastNumber(uint64_t* number) {
    return group().Broadcast(std::as_writable_bytes(std::span(number, 1)), 0);
  }

  // Replaces the message by rank 0's.
  template <typename Message>
  absl::Status BroadcastMessage(Message* message) {
    CADRE_ASSIGN_OR_RETURN(const std::string bytes,
                           BroadcastText(lead() ? message->SerializeAsString() : "", group()));
    if (!message->ParseFromString(bytes)) {
      return absl::InternalError("cannot parse a message from rank 0");
    }
    return absl::OkStatus();
  }

  // Rank 0 receives the decision and broadcasts it. While rank 0 waits, it broadcasts that it still
  // waits, so that its peers do not consider it dead if the coordinator is away for long.
  absl::Status Do(const RankProtocol::AwaitDecision& await,
                  std::optional<RankProtocol::Event>* event) {
    const Exposure exposure(*this);
    if (await.run_ended) CADRE_RETURN_IF_ERROR(model_.OnTrainingEnded());
    while (true) {
      if (await.wait) progress_.Enter(v1::ACTIVITY_WAITING);
      std::optional<v1::Decision> received;
      if (lead()) {
        const absl::Duration patience = await.wait ? kWaitInterval : absl::ZeroDuration();
        CADRE_ASSIGN_OR_RETURN(received, control_.AwaitDecision(patience));
      }
      uint64_t decided = received ? 1 : 0;
      CADRE_RETURN_IF_ERROR(BroadcastNumber(&decided));
      if (decided == 0 && !await.wait) {
        *event = RankProtocol::Unfinished{};
        return absl::OkStatus();
      }
      if (decided == 0) continue;
      decided_at_ = clock_.Now();
      v1::Decision decision = received.value_or(v1::Decision());
      CADRE_RETURN_IF_ERROR(BroadcastMessage(&decision));
      if (decision.adopt() && !decision.included()) {
        LogLeftOut(decision);
      }
      *event = RankProtocol::Decided{std::move(decision)};
      // With averaging, ranks leave after they have adopted the version. Otherwise the steps of a
      // rank that leaves are committed, and no other rank needs anything from it.
      const bool adopts = averager_->has_shards() && !await.run_ended;
      return adopts ? absl::OkStatus() : control_.LeaveIfDraining();
    }
  }

  // The run takes its first values from one of its groups.
  void LogLeftOut(const v1::Decision& decision) const {
    if (decision.round() == 1 && BeginsWithGroupValues(spec_)) {
      LOG(INFO) << "the run begins with the values of another group; adopting version "
                << decision.version();
      return;
    }
    LOG(WARNING) << "round " << decision.round() << " went on without this group ("
                 << EnumText(decision.refusal()) << "); adopting version " << decision.version();
  }

  absl::Status Do(const RankProtocol::Initialize& /*initialize*/,
                  std::optional<RankProtocol::Event>* event) {
    progress_.Enter(v1::ACTIVITY_PREPARING);
    CADRE_RETURN_IF_ERROR(averager_->MakeInitial());
    RankProtocol::Pulled result;
    CADRE_ASSIGN_OR_RETURN(result.digest, averager_->GroupDigest());
    *event = result;
    return absl::OkStatus();
  }

  absl::Status Do(const RankProtocol::Pull& pull, std::optional<RankProtocol::Event>* event) {
    Exposure exposure(*this);
    CADRE_RETURN_IF_ERROR(averager_->BeginPull(pull));
    if (pull.background) {
      *event = RankProtocol::Unfinished{};
      return absl::OkStatus();
    }
    Traffic traffic;
    bool kept = false;
    CADRE_RETURN_IF_ERROR(averager_->FinishPull(pull, &traffic, &kept));
    CADRE_ASSIGN_OR_RETURN(const RoundTotals totals, SumOverRanks(traffic));
    RankProtocol::Pulled result{.payload_bytes = totals.payload_bytes,
                                .message_bytes = totals.message_bytes};
    CADRE_ASSIGN_OR_RETURN(result.digest, averager_->GroupDigest());
    step_ = pull.step;
    model_.MoveTo(step_);
    if (result.digest == pull.digest) {
      model_.OnAdopted(kept);
      counters_.Add("versions_adopted");
      // In a new generation, the vaults are settled first.
      if (!begun_) {
        leaving_ = totals.leaving;
      } else if (!ContributesAgain()) {
        CADRE_RETURN_IF_ERROR(Leave(pull.version, totals.leaving));
      }
    }
    result.exchange_seconds = absl::ToDoubleSeconds(exposure.Take());
    result.transfer_seconds = absl::ToDoubleSeconds(averager_->TakeTransferTime());
    // A decision without a contribution only assigns samples to evaluate.
    const bool contributed = decided_at_ > staged_at_;
    result.wait_seconds = contributed ? absl::ToDoubleSeconds(decided_at_ - staged_at_) : 0;
    result.pull_seconds = absl::ToDoubleSeconds(clock_.Now() - decided_at_);
    *event = result;
    return absl::OkStatus();
  }

  absl::Status Do(const RankProtocol::Merge& merge, std::optional<RankProtocol::Event>* /*event*/) {
    const Exposure exposure(*this);
    CADRE_RETURN_IF_ERROR(averager_->Merge());
    step_ = merge.step;
    model_.MoveTo(step_);
    return absl::OkStatus();
  }

  absl::Status Do(const RankProtocol::Begin& /*begin*/, std::optional<RankProtocol::Event>* event) {
    progress_.Enter(v1::ACTIVITY_PREPARING);
    CADRE_RETURN_IF_ERROR(averager_->Restore(start()));
    if (!averager_->has_shards()) CADRE_RETURN_IF_ERROR(model_.LoadCheckpoint({}, failure_));
    begun_ = true;
    CADRE_RETURN_IF_ERROR(Leave(start().version(), leaving_));
    CADRE_RETURN_IF_ERROR(model_.Gather());
    if (start().next_step() == 0) {
      CADRE_RETURN_IF_ERROR(model_.SaveLast(AveragingStates()));
      averager_->ForgetStates();
    }
    model_.Resume();
    *event = RankProtocol::Kept{};
    return absl::OkStatus();
  }

  absl::Status Do(const RankProtocol::Keep& keep, std::optional<RankProtocol::Event>* event) {
    const absl::Time begin = clock_.Now();
    CADRE_RETURN_IF_ERROR(model_.Gather());
    CADRE_RETURN_IF_ERROR(model_.MaybeSave(keep.may_be_last, AveragingStates()));
    averager_->ForgetStates();
    waited_ += clock_.Now() - begin;
    *event = RankProtocol::Kept{};
    return absl::OkStatus();
  }

  absl::Status Do(const RankProtocol::Fail& fail, std::optional<RankProtocol::Event>* /*event*/) {
    return failure_.Blame(v1::FAILURE_CAUSE_DIGEST, fail.status);
  }

  absl::Status Do(const RankProtocol::Send& send, std::optional<RankProtocol::Event>* /*event*/) {
    control_.Send(send.report);
    return absl::OkStatus();
  }

  // ---- Evaluation

  absl::Status Do(const RankProtocol::Evaluate& evaluate,
                  std::optional<RankProtocol::Event>* event) {
    progress_.Enter(v1::ACTIVITY_EVALUATING);
    const absl::Time begin = clock_.Now();
    CADRE_ASSIGN_OR_RETURN(RankProtocol::Evaluated result, model_.Evaluate(evaluate, failure_));
    CADRE_ASSIGN_OR_RETURN(result.digest, averager_->GroupDigest());
    model_.Resume();
    const absl::Duration time = clock_.Now() - begin;
    result.seconds = absl::ToDoubleSeconds(time);
    waited_ += time;
    *event = result;
    return absl::OkStatus();
  }

  const v1::Assignment& assignment_;
  const v1::RunSpec& spec_;
  const v1::RankSlot& rank_slot_;
  TrainedModel& model_;
  GroupControl& control_;
  Cancellation& cancellation_;
  Counters& counters_;
  const MemberLoopOptions& options_;
  TrainerProgress own_progress_;
  TrainerProgress& progress_;

  std::unique_ptr<Transport> transport_;
  // Declared after the transport, so that it is unregistered before that is destroyed.
  std::unique_ptr<Cancellation::Registration> on_cancel_;
  const Clock& clock_;
  // Cause of the error that ended training; unspecified: it follows from the status.
  FailureNote failure_;
  std::optional<Averager> averager_;
  RankProtocol protocol_;
  // Steps since the start of the run.
  uint32_t step_ = 0;
  absl::Time period_start_;
  // Whether Begin was carried out, and the ranks that were leaving when the first version arrived.
  bool begun_ = false;
  std::vector<bool> leaving_;
  // The newest contribution.
  RankProtocol::Staged contributed_;
  // Time in which the newest round has kept the group from training.
  absl::Duration exposed_;
  // When the newest contribution was acknowledged, and when its decision arrived.
  absl::Time staged_at_;
  absl::Time decided_at_;
  // Time since period_start_ in which the group did not train: rounds, evaluations, checkpoints.
  absl::Duration waited_;
};

}  // namespace

TrainerOutcome RunMemberLoop(const v1::Assignment& assignment, TrainedModel& model,
                             GroupControl& control, Cancellation& cancellation, Counters& counters,
                             const MemberLoopOptions& options) {
  return MemberLoop(assignment, model, control, cancellation, counters, options).Run();
}

}  // namespace cadre
