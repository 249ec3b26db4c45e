// The training loop of one rank.
//
// A generation of a group proceeds as follows; rank 0 alone exchanges messages with the
// coordinator.
//
//   open the data, connect, agree on the plan, make the replica
//   pull the assigned version, or load a checkpoint, or compute version 0
//   Prepared -> Start
//   repeat
//     train to the boundary              (H steps; the last step omits its all-gather)
//     while the coordinator is unreachable, train further periods, up to max_solo_steps
//     stage the owned values at the shards; Contributed -> Decision
//     pull the decided version, check its digest, gather; Adopted
//     evaluate this group's interval of the test split; Evaluated
//   until the group is released
//
// This is local SGD with periodic averaging (Stich, ICLR 2019; Lin et al., ICLR 2020) between
// groups, each of which trains synchronously. Momentum is not averaged.
//
// Invariant. All ranks call the same collectives, because every branch depends only on values that
// are equal on all ranks. These are the plan, the spec, and what rank 0 broadcasts: Start,
// Decision, and whether the coordinator is reachable. No branch depends on a rank's own clock or
// its own connection. After an error a rank leaves; the transport then fails on the other ranks.
//
// Durability. A contribution is durable on every shard before rank 0 reports it. The steps between
// boundaries are not durable: if a generation fails, the next one repeats the steps since the last
// committed version.
//
// Limits. Evaluation and checkpoints stop training for their duration. If one rank fails, the
// generation ends for its whole group.
#include "worker/train/trainer.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/digest.h"
#include "base/status.h"
#include "base/trace.h"
#include "glog/logging.h"
#include "model/data_position.h"
#include "plan/memory.h"
#include "proto/enum_text.h"
#include "server/client/refusal.h"
#include "worker/data/batch_loader.h"
#include "worker/data/batch_rows.h"
#include "worker/data/dataset.h"
#include "worker/optim/schedule.h"
#include "worker/train/agreement.h"
#include "worker/train/batches.h"
#include "worker/train/group_plan.h"
#include "worker/train/replica.h"
#include "worker/train/run_checkpoints.h"
#include "worker/train/shard_exchange.h"
#include "worker/train/step_measurer.h"
#include "worker/train/step_tracer.h"

namespace cadre {
namespace {

// Interval at which rank 0 informs its peers that it still waits for the coordinator; well below
// the time after which a silent peer is considered dead.
constexpr absl::Duration kWaitInterval = absl::Seconds(2);

// Errors of files and folders, as opposed to connections.
bool IsOfFiles(const absl::Status& status) {
  return absl::IsInvalidArgument(status) || absl::IsNotFound(status) ||
         absl::IsPermissionDenied(status) || absl::IsDataLoss(status) ||
         absl::IsUnimplemented(status);
}

class Trainer {
 public:
  Trainer(const v1::Assignment& assignment, Backend& kernels, GroupControl& control,
          Cancellation& cancellation, Counters& counters, const TrainerOptions& options)
      : assignment_(assignment),
        spec_(assignment.spec()),
        rank_slot_(assignment.place()),
        kernels_(kernels),
        control_(control),
        cancellation_(cancellation),
        counters_(counters),
        options_(options),
        version_(assignment.version()),
        step_(assignment.step()) {}

  TrainerOutcome Run() {
    TrainerOutcome outcome = RunOnDevice();
    outcome.device = kernels_.device().status();
    // A model that does not fit into memory would not fit the next time, either. The device's
    // message says what was requested.
    if (absl::IsResourceExhausted(outcome.device) && !absl::IsCancelled(outcome.status)) {
      outcome.status = outcome.device;
      outcome.cause = v1::FAILURE_CAUSE_MEMORY;
    }
    return outcome;
  }

 private:
  TrainerOutcome RunOnDevice() {
    absl::Status status = Prepare();
    if (status.ok()) status = Train();
    // After a cancellation its reason is reported, and not the errors that it caused.
    if (const absl::Status cancelled = cancellation_.status(); !cancelled.ok()) {
      return {cancelled, v1::FAILURE_CAUSE_UNSPECIFIED};
    }
    return {status, CauseOf(status)};
  }

  v1::FailureCause CauseOf(const absl::Status& status) const {
    if (cause_ != v1::FAILURE_CAUSE_UNSPECIFIED) return cause_;
    if (!data_status_.ok()) return v1::FAILURE_CAUSE_DATA;
    if (absl::IsOutOfRange(status)) return v1::FAILURE_CAUSE_DIVERGED;
    return v1::FAILURE_CAUSE_PEER;
  }

  // Everything before training.
  absl::Status Prepare() {
    CADRE_RETURN_IF_ERROR(
        Blame(v1::FAILURE_CAUSE_DATA, OpenData(), [](const absl::Status&) { return true; }));
    CADRE_RETURN_IF_ERROR(Connect());
    CADRE_RETURN_IF_ERROR(Blame(v1::FAILURE_CAUSE_PLAN, AgreeOnPlan(), absl::IsInvalidArgument));
    const absl::Status made = MakeReplica();
    CADRE_RETURN_IF_ERROR(Blame(v1::FAILURE_CAUSE_MEMORY, made, absl::IsResourceExhausted));
    CADRE_RETURN_IF_ERROR(Blame(v1::FAILURE_CAUSE_PLAN, made, absl::IsInvalidArgument));
    CADRE_RETURN_IF_ERROR(Blame(v1::FAILURE_CAUSE_CHECKPOINT, checkpoints_->CheckDirectory(),
                                absl::IsFailedPrecondition));
    CADRE_RETURN_IF_ERROR(TakeVersion());
    if (version_ > 0) return absl::OkStatus();
    return Blame(v1::FAILURE_CAUSE_CHECKPOINT, checkpoints_->Begin(), IsOfFiles);
  }

  // Returns `status`; `cause` is its cause if the predicate holds for it.
  absl::Status Blame(v1::FailureCause cause, absl::Status status,
                     const std::function<bool(const absl::Status&)>& is_cause) {
    if (!status.ok() && is_cause(status)) cause_ = cause;
    return status;
  }

  bool lead() const { return rank_slot_.rank() == 0; }
  int64_t batch() const { return spec_.batch_per_group(); }

  // ---- Before training

  absl::Status OpenData() {
    CADRE_ASSIGN_OR_RETURN(train_, OpenDataset(spec_, Split::kTrain));
    CADRE_ASSIGN_OR_RETURN(test_, OpenDataset(spec_, Split::kTest));
    return absl::OkStatus();
  }

  absl::Status Connect() {
    CADRE_ASSIGN_OR_RETURN(transport_, options_.connect(assignment_));
    // Registered before connect_data, so that a cancellation also aborts the start of NCCL, which
    // would wait for a lost member.
    on_cancel_ =
        cancellation_.OnCancel([this](const absl::Status& reason) { transport_->Abort(reason); });
    if (options_.connect_data != nullptr) {
      CADRE_ASSIGN_OR_RETURN(data_transport_, options_.connect_data(*transport_));
    }
    return absl::OkStatus();
  }

  Transport& data() { return data_transport_ != nullptr ? *data_transport_ : *transport_; }

  absl::Status AgreeOnPlan() {
    CADRE_ASSIGN_OR_RETURN(
        plan_, SettlePlan(spec_, assignment_, *transport_, data(), kernels_, options_.links));
    return absl::OkStatus();
  }

  absl::Status MakeReplica() {
    CADRE_ASSIGN_OR_RETURN(replica_, Replica::Make(spec_, plan_, kernels_, *transport_, data()));
    measurer_ = std::make_unique<StepMeasurer>(rank_slot_, *replica_, control_, steady_);
    tracer_ = std::make_unique<StepTracer>(control_, *replica_, trace_,
                                           [this] { return measurer_->Pause(); });
    checkpoints_ = std::make_unique<RunCheckpoints>(assignment_, *replica_, counters_);
    exchange_ = std::make_unique<ShardExchange>(assignment_, replica_->index(), control_,
                                                cancellation_, options_.exchange_timeout);
    return absl::OkStatus();
  }

  // Every rank pulls the slices that it owns, and the group verifies the digest of the committed
  // version. A run that does not average starts from version 0, which every rank can compute.
  absl::Status TakeVersion() {
    if (exchange_->has_shards()) {
      Traffic traffic;
      // No operation may still use the weights that are overwritten.
      CADRE_RETURN_IF_ERROR(replica_->AwaitOperations());
      CADRE_RETURN_IF_ERROR(exchange_->Pull(version_, replica_->owned(), &traffic));
      CADRE_RETURN_IF_ERROR(replica_->StoreOwned());
      CountPull(traffic);
      CADRE_ASSIGN_OR_RETURN(const uint64_t digest, replica_->GroupDigest());
      if (digest != assignment_.digest()) {
        return absl::DataLossError(absl::StrCat("version ", version_, " has digest ",
                                                DigestHex(digest), ", committed was ",
                                                DigestHex(assignment_.digest())));
      }
    }
    return replica_->GatherWeights();
  }

  // A collective. Requires: all ranks call it at the same step.
  absl::Status MaybeSave(bool last) {
    if (!checkpoints_->Due(step_, last)) return absl::OkStatus();
    CADRE_RETURN_IF_ERROR(InStep(step_ - 1, replica_->CheckWeights()));
    return checkpoints_->Save({.step = step_,
                               .version = version_,
                               .groups = start_.groups(),
                               .train_samples = train_->size()});
  }

  v1::Prepared MakePrepared() const {
    v1::Prepared prepared;
    *prepared.mutable_place() = rank_slot_;
    prepared.set_train_samples(train_->size());
    prepared.set_test_samples(test_->size());
    for (v1::HeldParameter& held : replica_->Held()) *prepared.add_held() = std::move(held);
    *prepared.mutable_memory() = replica_->Memory();
    *prepared.mutable_planned_memory() = replica_->PlannedMemory();
    if (lead()) *prepared.mutable_plan() = plan_;
    return prepared;
  }

  // ---- Training

  absl::Status Train() {
    CADRE_ASSIGN_OR_RETURN(start_, control_.PreparedAndStart(MakePrepared()));
    // Each rank received its own Start, possibly a different one; rank 0's is used.
    CADRE_RETURN_IF_ERROR(BroadcastMessage(&start_));
    MakeLoader();
    BeginPeriod();
    BeginReport();
    report_at_ = absl::Now() + options_.report_every;
    CADRE_RETURN_IF_ERROR(Evaluate(start_.evaluate_begin(), start_.evaluate_end()));
    uint32_t next_step = start_.next_step();
    while (true) {
      if (next_step != 0) {
        CADRE_RETURN_IF_ERROR(TrainTo(next_step));
        CADRE_RETURN_IF_ERROR(GoSolo());
        CADRE_RETURN_IF_ERROR(Contribute());
      } else {
        CADRE_RETURN_IF_ERROR(tracer_->Finish(step_));
      }
      CADRE_ASSIGN_OR_RETURN(const v1::Decision decision, AwaitDecision());
      CADRE_RETURN_IF_ERROR(Adopt(decision));
      CADRE_RETURN_IF_ERROR(Evaluate(decision.evaluate_begin(), decision.evaluate_end()));
      next_step = decision.next_step();
    }
  }

  void MakeLoader() {
    TrainingPart part{.seed = spec_.seed(),
                      .dataset_size = train_->size(),
                      .group = rank_slot_.group(),
                      .groups = start_.groups(),
                      .batch = batch(),
                      .origin = DataOriginOf(spec_)};
    part.micro_batches = CutBatch(batch(), std::max(1U, spec_.micro_batches()),
                                  [this](int64_t samples) { return RowsOf(*replica_, samples); });
    loader_ = std::make_unique<BatchLoader>(*train_, TrainingRows(part), BatchLoader::Options{});
    checkpoints_->StartAt(step_);
  }

  // Starts a new period, the steps between two boundaries.
  void BeginPeriod() {
    period_ = LossPart();
    period_steps_ = 0;
    period_start_ = absl::Now();
  }

  // Reports span boundaries, of which there may be many per second.
  void BeginReport() {
    reported_ = LossPart();
    reported_steps_ = 0;
    report_start_ = absl::Now();
    exposed_start_ = Exposed();
  }

  // Seconds of communication that computing did not hide.
  double Exposed() const { return replica_->seconds_waited() + replica_->seconds_moving(); }

  absl::Status TrainTo(uint32_t step) {
    while (step_ < step) CADRE_RETURN_IF_ERROR(TrainOneStep(step_ + 1 == step));
    return absl::OkStatus();
  }

  // The last step before a boundary does not gather, because averaging follows and changes the
  // weights.
  absl::Status TrainOneStep(bool boundary) {
    const absl::StatusOr<const Batch*> loaded = loader_->Next(step_);
    data_status_ = loaded.status();
    CADRE_RETURN_IF_ERROR(data_status_);
    rate_ = RateAt(spec_.schedule(), step_, start_.total_steps());
    const std::vector<BatchView> views = ViewsOf(
        **loaded, *replica_, batch(),
        BatchPosition(DataOriginOf(spec_), step_, rank_slot_.group(), start_.groups(), batch()));
    CADRE_RETURN_IF_ERROR(tracer_->BeforeStep(step_));
    CADRE_RETURN_IF_ERROR(measurer_->BeforeStep(
        {.number = step_, .boundary = boundary, .traced = tracer_->tracing()}));
    auto stepped = replica_->Step(views, rate_, /*gather=*/!boundary);
    CADRE_RETURN_IF_ERROR(InStep(step_, stepped.status()));
    CADRE_RETURN_IF_ERROR(measurer_->AfterStep());
    CADRE_ASSIGN_OR_RETURN(const LossPart part, std::move(stepped));
    period_ += part;
    reported_ += part;
    ++step_;
    ++period_steps_;
    ++reported_steps_;
    counters_.Add("steps");
    counters_.Add("samples", replica_->InputRows(batch()).size());
    // With averaging, checkpoints are saved at boundaries, where all groups have the same weights.
    if (!boundary && !exchange_->has_shards()) CADRE_RETURN_IF_ERROR(MaybeSave(/*last=*/false));
    ReportProgress();
    return absl::OkStatus();
  }

  // Adds the step, and the version that remains the latest, to the error of a diverged run.
  absl::Status InStep(uint32_t step, const absl::Status& status) const {
    if (!absl::IsOutOfRange(status)) return status;
    return absl::OutOfRangeError(
        absl::StrCat("step ", step, ": ", status.message(), "; version ", version_, " is kept"));
  }

  // Reports if the latest report is old enough.
  void ReportProgress() {
    const absl::Time now = absl::Now();
    if (!lead() || now < report_at_ || reported_.samples == 0) return;
    const double seconds = absl::ToDoubleSeconds(now - report_start_);
    const double labels = reported_.samples;
    const double samples = labels / train_->labels_per_sample();
    v1::Progress progress;
    *progress.mutable_place() = rank_slot_;
    progress.set_step(step_);
    progress.set_loss(reported_.loss / labels);
    progress.set_samples_per_second(samples / seconds);
    progress.set_step_seconds(seconds / reported_steps_);
    // Not observable on a device: unset rather than 0.
    if (!replica_->on_device()) {
      progress.set_exposed_seconds((Exposed() - exposed_start_) / reported_steps_);
    }
    progress.set_rate(rate_);
    progress.set_solo_steps(solo_steps_);
    control_.Report(progress);
    BeginReport();
    report_at_ = now + options_.report_every;
  }

  // ---- The boundary

  // While the coordinator is unreachable the group continues to train, up to max_solo_steps.
  // Nothing has been staged yet, so the later contribution simply covers more steps.
  absl::Status GoSolo() {
    solo_steps_ = 0;
    const uint32_t max_steps = spec_.averaging().max_solo_steps();
    const uint32_t period = std::max(1U, spec_.averaging().every_steps());
    // The coordinator rejects steps beyond the end of the run. 0: the run has no last step.
    const uint32_t last =
        start_.total_steps() > 0 ? start_.total_steps() : std::numeric_limits<uint32_t>::max();
    while (max_steps > 0) {
      const bool further = solo_steps_ < max_steps && step_ < last;
      uint64_t away = lead() && further && !control_.connected() ? 1 : 0;
      CADRE_RETURN_IF_ERROR(BroadcastNumber(&away));
      if (away == 0) return absl::OkStatus();
      CADRE_RETURN_IF_ERROR(replica_->GatherWeights());
      const uint32_t steps = std::min({period, max_steps - solo_steps_, last - step_});
      solo_steps_ += steps;
      CADRE_RETURN_IF_ERROR(TrainTo(step_ + steps));
    }
    return absl::OkStatus();
  }

  absl::Status Contribute() {
    const uint32_t round = version_ + 1;
    const uint64_t samples = period_steps_ * batch();
    Traffic traffic;
    CADRE_RETURN_IF_ERROR(replica_->AwaitOperations());
    // Non-finite weights must not be averaged.
    if (period_steps_ > 0) CADRE_RETURN_IF_ERROR(InStep(step_ - 1, replica_->CheckWeights()));
    if (exchange_->has_shards()) {
      CADRE_RETURN_IF_ERROR(replica_->FetchOwned());
      const absl::Status staged =
          exchange_->Stage(round, version_, samples, replica_->owned(), &traffic);
      // If the contribution is too late, the coordinator's decision determines how to continue.
      const bool late = RefusalOf(staged) == v1::REFUSAL_CLOSED_ROUND;
      if (!staged.ok() && !late) return staged;
      if (late) counters_.Add("contributions_late");
      counters_.Add("staged_payload_bytes", traffic.payload_sent);
      counters_.Add("staged_message_bytes", traffic.message_sent);
    }
    v1::Contributed contributed;
    CADRE_RETURN_IF_ERROR(SumTraffic(traffic, contributed));
    // After this barrier every rank has staged.
    CADRE_RETURN_IF_ERROR(replica_->comms().All().Barrier());
    if (!lead()) return absl::OkStatus();
    *contributed.mutable_place() = rank_slot_;
    contributed.set_round(round);
    contributed.set_base_version(version_);
    contributed.set_step(step_);
    contributed.set_samples(samples);
    contributed.set_loss(period_.samples > 0 ? period_.loss / period_.samples : 0);
    contributed.set_train_seconds(absl::ToDoubleSeconds(absl::Now() - period_start_));
    control_.Contribute(contributed);
    return absl::OkStatus();
  }

  template <typename Message>
  absl::Status SumTraffic(const Traffic& traffic, Message& message) {
    uint64_t bytes[] = {traffic.payload_sent + traffic.payload_received,
                        traffic.message_sent + traffic.message_received};
    CADRE_RETURN_IF_ERROR(replica_->comms().All().AllReduceSum(std::span<uint64_t>(bytes)));
    message.set_payload_bytes(bytes[0]);
    message.set_message_bytes(bytes[1]);
    return absl::OkStatus();
  }

  absl::Status BroadcastNumber(uint64_t* number) {
    return replica_->comms().All().Broadcast(std::as_writable_bytes(std::span(number, 1)), 0);
  }

  // Replaces the message by rank 0's.
  template <typename Message>
  absl::Status BroadcastMessage(Message* message) {
    CADRE_ASSIGN_OR_RETURN(
        const std::string bytes,
        BroadcastText(lead() ? message->SerializeAsString() : "", replica_->comms().All()));
    if (!message->ParseFromString(bytes)) {
      return absl::InternalError("cannot parse a message from rank 0");
    }
    return absl::OkStatus();
  }

  // Rank 0 receives the decision and broadcasts it. While rank 0 waits, it broadcasts that it still
  // waits, so that its peers do not consider it dead if the coordinator is away for long.
  absl::StatusOr<v1::Decision> AwaitDecision() {
    while (true) {
      std::optional<v1::Decision> received;
      if (lead()) {
        CADRE_ASSIGN_OR_RETURN(received, control_.AwaitDecision(kWaitInterval));
      }
      uint64_t decided = received ? 1 : 0;
      CADRE_RETURN_IF_ERROR(BroadcastNumber(&decided));
      if (decided == 0) continue;
      v1::Decision decision = received.value_or(v1::Decision());
      CADRE_RETURN_IF_ERROR(BroadcastMessage(&decision));
      return decision;
    }
  }

  absl::Status Adopt(const v1::Decision& decision) {
    // True if the decision only assigns another interval to evaluate: this rank already has the
    // version.
    const bool again = decision.adopt() && decision.version() == version_ && period_steps_ == 0;
    if (decision.adopt() && !again) {
      if (!decision.included()) {
        LOG(WARNING) << "round " << decision.round() << " went on without this group ("
                     << EnumText(decision.refusal()) << "); adopting version "
                     << decision.version();
      }
      CADRE_RETURN_IF_ERROR(PullDecided(decision));
    }
    if (!again) {
      CADRE_RETURN_IF_ERROR(replica_->GatherWeights());
      CADRE_RETURN_IF_ERROR(MaybeSave(MayBeLast(decision)));
    }
    BeginPeriod();
    return absl::OkStatus();
  }

  // The accuracy of an evaluated version may end the run, so that version is saved beforehand.
  bool MayBeLast(const v1::Decision& decision) const {
    const bool evaluated = decision.evaluate_begin() < decision.evaluate_end();
    return decision.next_step() == 0 || (spec_.stop().test_accuracy() > 0 && evaluated);
  }

  absl::Status PullDecided(const v1::Decision& decision) {
    Traffic traffic;
    CADRE_RETURN_IF_ERROR(replica_->AwaitOperations());
    CADRE_RETURN_IF_ERROR(exchange_->Pull(decision.version(), replica_->owned(), &traffic));
    CADRE_RETURN_IF_ERROR(replica_->StoreOwned());
    CountPull(traffic);
    v1::Adopted adopted;
    CADRE_RETURN_IF_ERROR(SumTraffic(traffic, adopted));
    CADRE_ASSIGN_OR_RETURN(const uint64_t digest, replica_->GroupDigest());
    if (lead()) {
      *adopted.mutable_place() = rank_slot_;
      adopted.set_version(decision.version());
      adopted.set_digest(digest);
      control_.Adopted(adopted);
    }
    if (digest != decision.digest()) {
      return absl::DataLossError(absl::StrCat("version ", decision.version(),
                                              " as pulled has digest ", DigestHex(digest),
                                              ", committed was ", DigestHex(decision.digest())));
    }
    version_ = decision.version();
    step_ = decision.step();
    counters_.Add("versions_adopted");
    return absl::OkStatus();
  }

  void CountPull(const Traffic& traffic) {
    counters_.Add("pulled_payload_bytes", traffic.payload_received);
    counters_.Add("pulled_message_bytes", traffic.message_received);
  }

  // ---- Evaluation

  absl::Status Evaluate(uint64_t begin, uint64_t end) {
    if (begin >= end) return absl::OkStatus();
    CADRE_RETURN_IF_ERROR(measurer_->Pause());
    CADRE_ASSIGN_OR_RETURN(const LossPart sum, EvaluateSamples(*replica_, *test_, begin, end,
                                                               MicroBatchSamples(spec_)));
    CADRE_ASSIGN_OR_RETURN(const uint64_t digest, replica_->GroupDigest());
    BeginPeriod();  // evaluation does not count as training time
    BeginReport();
    if (!lead()) return absl::OkStatus();
    v1::Evaluated evaluated;
    *evaluated.mutable_place() = rank_slot_;
    evaluated.set_version(version_);
    evaluated.set_begin(begin);
    evaluated.set_end(end);
    evaluated.set_correct(sum.correct);
    evaluated.set_labels(sum.samples);
    evaluated.set_loss_sum(sum.loss);
    evaluated.set_digest(digest);
    control_.Evaluated(evaluated);
    return absl::OkStatus();
  }

  const v1::Assignment& assignment_;
  const v1::RunSpec& spec_;
  const v1::RankSlot& rank_slot_;
  Backend& kernels_;
  GroupControl& control_;
  Cancellation& cancellation_;
  Counters& counters_;
  const TrainerOptions& options_;

  std::unique_ptr<Dataset> train_;
  std::unique_ptr<Dataset> test_;
  std::unique_ptr<Transport> transport_;
  // Null: tensors use transport_.
  std::unique_ptr<Transport> data_transport_;
  // Declared after the transports, so that it is unregistered before they are destroyed.
  std::unique_ptr<Cancellation::Registration> on_cancel_;
  // The plan that the group executes.
  v1::Plan plan_;
  Trace trace_;
  std::unique_ptr<Replica> replica_;
  const SteadyClock steady_;
  std::unique_ptr<StepMeasurer> measurer_;
  std::unique_ptr<StepTracer> tracer_;
  std::unique_ptr<ShardExchange> exchange_;
  std::unique_ptr<RunCheckpoints> checkpoints_;
  v1::Start start_;
  std::unique_ptr<BatchLoader> loader_;
  // Status of loading the latest batch.
  absl::Status data_status_;

  // Cause of an error of the preparation; unspecified: not known yet.
  v1::FailureCause cause_ = v1::FAILURE_CAUSE_UNSPECIFIED;
  // The version that training continues from, and the number of steps since the start of the run.
  uint32_t version_;
  uint32_t step_;
  // Loss and steps since the last boundary.
  LossPart period_;
  uint32_t period_steps_ = 0;
  absl::Time period_start_;
  uint32_t solo_steps_ = 0;
  // Loss and steps since the last report.
  LossPart reported_;
  uint32_t reported_steps_ = 0;
  double exposed_start_ = 0;
  absl::Time report_at_;
  absl::Time report_start_;
  float rate_ = 0;
};

}  // namespace

TrainerOutcome TrainAsMember(const v1::Assignment& assignment, Backend& kernels,
                             GroupControl& control, Cancellation& cancellation, Counters& counters,
                             const TrainerOptions& options) {
  return Trainer(assignment, kernels, control, cancellation, counters, options).Run();
}

}  // namespace cadre
