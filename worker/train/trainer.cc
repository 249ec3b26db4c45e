// The training loop of one rank.
//
// A generation of a group proceeds as follows; rank 0 alone exchanges messages with the
// coordinator.
//
//   open the data, connect, agree on the plan, make the replica (version 0)
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
#include "worker/train/trainer.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/digest.h"
#include "base/status.h"
#include "base/trace.h"
#include "glog/logging.h"
#include "model/coding.h"
#include "model/data_position.h"
#include "model/exchange_units.h"
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
#include "worker/train/rank_protocol.h"
#include "worker/train/regroup.h"
#include "worker/train/replica.h"
#include "worker/train/run_checkpoints.h"
#include "worker/train/shard_exchange.h"
#include "worker/train/step_measurer.h"
#include "worker/train/step_tracer.h"
#include "worker/transport/suspects.h"

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
        progress_(options.progress != nullptr ? *options.progress : own_progress_),
        protocol_(assignment) {}

  TrainerOutcome Run() {
    for (StateVault* vault : {options_.states, options_.residuals}) {
      if (vault != nullptr) vault->Enter(assignment_);
    }
    progress_.Enter(v1::ACTIVITY_PREPARING);
    absl::Status status = Prepare();
    if (status.ok()) status = Train();
    const absl::Status device = kernels_.device().status();
    // After a cancellation its reason is reported, and not the errors that it caused.
    if (const absl::Status cancelled = cancellation_.status(); !cancelled.ok()) {
      return {.status = cancelled};
    }
    // The device's message says what was requested.
    if (absl::IsResourceExhausted(device) && !absl::IsCancelled(status)) {
      return {.status = device, .cause = v1::FAILURE_CAUSE_MEMORY};
    }
    return {.status = status, .cause = CauseOf(status), .suspects = Suspects(status)};
  }

 private:
  v1::FailureCause CauseOf(const absl::Status& status) const {
    if (cause_ != v1::FAILURE_CAUSE_UNSPECIFIED) return cause_;
    if (absl::IsCancelled(status)) return v1::FAILURE_CAUSE_UNSPECIFIED;
    if (absl::IsOutOfRange(status)) return v1::FAILURE_CAUSE_DIVERGED;
    // The failure of a peer fails the device, too.
    if (!Suspects(status).empty()) return v1::FAILURE_CAUSE_PEER;
    if (!kernels_.device().status().ok()) return v1::FAILURE_CAUSE_DEVICE;
    return v1::FAILURE_CAUSE_UNSPECIFIED;
  }

  // The ranks that the error names, or else the error of the group if it has failed.
  std::vector<int> Suspects(const absl::Status& status) const {
    std::vector<int> ranks = SuspectsOf(status);
    const bool own = cause_ != v1::FAILURE_CAUSE_UNSPECIFIED;
    if (ranks.empty() && !own && transport_ != nullptr) ranks = SuspectsOf(transport_->status());
    return ranks;
  }

  // Everything before training.
  absl::Status Prepare() {
    CADRE_RETURN_IF_ERROR(Blame(v1::FAILURE_CAUSE_DATA, OpenData()));
    progress_.Advance();
    CADRE_RETURN_IF_ERROR(Connect());
    progress_.Advance();
    CADRE_RETURN_IF_ERROR(Blame(v1::FAILURE_CAUSE_PLAN, AgreeOnPlan(), absl::IsInvalidArgument));
    progress_.Advance();
    const absl::Status made = Blame(v1::FAILURE_CAUSE_PLAN, MakeReplica(), absl::IsInvalidArgument);
    CADRE_RETURN_IF_ERROR(Blame(v1::FAILURE_CAUSE_MEMORY, made, absl::IsResourceExhausted));
    progress_.Advance();
    return Blame(v1::FAILURE_CAUSE_CHECKPOINT, checkpoints_->CheckDirectory(),
                 absl::IsFailedPrecondition);
  }

  // Returns `status`; `cause` is its cause if the predicate holds for it.
  absl::Status Blame(
      v1::FailureCause cause, absl::Status status,
      const std::function<bool(const absl::Status&)>& is_cause = [](const absl::Status&) {
        return true;
      }) {
    if (!status.ok() && is_cause(status)) cause_ = cause;
    return status;
  }

  bool lead() const { return rank_slot_.rank() == 0; }
  const v1::Start& start() const { return protocol_.start(); }
  int64_t batch() const { return spec_.batch_per_group(); }

  // ---- Before training

  absl::Status OpenData() {
    CADRE_ASSIGN_OR_RETURN(train_, OpenDataset(spec_, Split::kTrain, options_.data_files));
    CADRE_ASSIGN_OR_RETURN(test_, OpenDataset(spec_, Split::kTest, options_.data_files));
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
    checkpoints_ = std::make_unique<RunCheckpoints>(assignment_, *replica_, counters_, progress_,
                                                    options_.checkpoint_files);
    CADRE_RETURN_IF_ERROR(MakeExchange());
    // A lack of pinned memory is reported now, and not at the first boundary.
    if (KeepsStates()) replica_->slices().MakeStateMirrors();
    return kernels_.device().status();
  }

  // A collective.
  absl::Status MakeExchange() {
    const v1::Averaging& averaging = spec_.averaging();
    std::span<const Owned> exchanged = replica_->owned();
    if (ExchangesUnits(averaging)) {
      units_.emplace(replica_->index());
      const Interval part = units_->PartOf(rank_slot_.rank(), replica_->comms().All().size());
      part_values_.resize(part.size());
      part_ = {part, part_values_};
      CADRE_ASSIGN_OR_RETURN(regroup_,
                             Regroup::Make(replica_->owned(), part, replica_->comms().All()));
      exchanged = std::span(&part_, 1);
    }
    exchange_ = std::make_unique<ShardExchange>(
        assignment_, replica_->index(), units_ ? &*units_ : nullptr, exchanged, control_,
        cancellation_, progress_, options_.exchange_silence, options_.credentials);
    return absl::OkStatus();
  }

  // A collective. The fetched weights become those that are exchanged.
  absl::Status GatherPart() {
    return regroup_ ? regroup_->ToPart(replica_->owned(), part_values_) : absl::OkStatus();
  }

  // Overwrites this rank's part of the replica with what is being pulled.
  absl::Status FinishPull(uint32_t version, bool included, Traffic* traffic) {
    CADRE_RETURN_IF_ERROR(Blame(v1::FAILURE_CAUSE_AGGREGATOR, exchange_->Finish(traffic)));
    progress_.Advance();
    if (overlaps() || FragmentsOf(spec_.averaging()) > 1) {
      CADRE_RETURN_IF_ERROR(replica_->FetchOwned());
      CADRE_RETURN_IF_ERROR(GatherPart());
    }
    // No operation may still use the weights that are overwritten.
    CADRE_RETURN_IF_ERROR(replica_->AwaitOperations());
    // After this barrier every rank has pulled.
    CADRE_RETURN_IF_ERROR(replica_->comms().All().Barrier());
    if (const uint32_t late = exchange_->Adopt(included); late > 0) {
      LOG(WARNING) << "what this rank has learned for a round that went on without its group is "
                      "dropped: it would be "
                   << late << " rounds late, and averaging.staleness.max_rounds is "
                   << spec_.averaging().staleness().max_rounds();
      counters_.Add("changes_dropped");
    }
    // A group that has just begun has kept nothing yet that its vaults do not have.
    if (KeepsResiduals() && has_version_ && !included) KeepResidual(version, /*included=*/false);
    CADRE_RETURN_IF_ERROR(StorePart());
    counters_.Add("pulled_payload_bytes", traffic->payload_received);
    counters_.Add("pulled_message_bytes", traffic->message_received);
    return absl::OkStatus();
  }

  // A collective. Stores the values that were exchanged as weights.
  absl::Status StorePart() {
    if (regroup_) CADRE_RETURN_IF_ERROR(regroup_->FromPart(part_values_, replica_->owned()));
    return replica_->StoreOwned();
  }

  bool overlaps() const { return spec_.averaging().overlap().steps() > 0; }

  // A collective. Requires: all ranks call it at the same step.
  absl::Status MaybeSave(bool last) {
    if (!checkpoints_->Due(step_, last)) return absl::OkStatus();
    progress_.Enter(v1::ACTIVITY_SAVING);
    CADRE_RETURN_IF_ERROR(InStep(step_ - 1, replica_->CheckWeights()));
    return checkpoints_->Save(
        {.step = step_,
         .version = protocol_.version(),
         .position = static_cast<uint64_t>(PositionAt(protocol_.division(), step_, batch())),
         .train_samples = static_cast<uint64_t>(train_->size())});
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

  // Carries out the actions of protocol_ until one fails or the group is released.
  absl::Status Train() {
    const v1::Prepared prepared = MakePrepared();
    progress_.Enter(v1::ACTIVITY_WAITING);
    CADRE_ASSIGN_OR_RETURN(v1::Start start, control_.PreparedAndStart(prepared));
    // Each rank received its own Start, possibly a different one; rank 0's is used.
    CADRE_RETURN_IF_ERROR(BroadcastMessage(&start));
    RankProtocol::Actions actions =
        protocol_.Handle(RankProtocol::Started{start, static_cast<uint64_t>(train_->size())});
    step_ = start.step();
    checkpoints_->StartAt(step_);
    BeginReport();
    report_at_ = steady_.Now() + options_.report_every;
    while (true) {
      // Only the last action has an event.
      std::optional<RankProtocol::Event> event;
      for (const RankProtocol::Action& action : actions) {
        CADRE_RETURN_IF_ERROR(std::visit([&](const auto& one) { return Do(one, &event); }, action));
      }
      actions = protocol_.Handle(*event);
    }
  }

  // The loader reads ahead, so it is made again when the division of the samples changes.
  void UpdateLoader() {
    const v1::SampleDivision& division = protocol_.division();
    if (loader_ != nullptr && loaded_from_ == division.step()) return;
    loaded_from_ = division.step();
    TrainingPart part{.seed = spec_.seed(),
                      .dataset_size = train_->size(),
                      .group = rank_slot_.group(),
                      .batch = batch(),
                      .division = division};
    part.micro_batches = CutBatch(batch(), std::max(1U, spec_.micro_batches()),
                                  [this](int64_t samples) { return RowsOf(*replica_, samples); });
    loader_ = std::make_unique<BatchLoader>(*train_, TrainingRows(part),
                                            BatchLoader::Options{.threads = options_.loader_threads});
  }

  // Reports span boundaries, of which there may be many per second.
  void BeginReport() {
    reported_ = LossPart();
    reported_steps_ = 0;
    report_start_ = steady_.Now();
    exposed_start_ = Exposed();
  }

  // Seconds of communication that computing did not hide.
  double Exposed() const { return replica_->seconds_waited() + replica_->seconds_moving(); }

  absl::Status Do(const RankProtocol::Train& train, std::optional<RankProtocol::Event>* event) {
    if (train.resumes) {
      CADRE_RETURN_IF_ERROR(replica_->GatherWeights());
    } else {
      period_ = LossPart();
      period_start_ = steady_.Now();
      waited_ = absl::ZeroDuration();
    }
    UpdateLoader();
    while (step_ < train.until) {
      progress_.Enter(v1::ACTIVITY_TRAINING);
      CADRE_RETURN_IF_ERROR(TrainOneStep(step_ + 1 == train.until));
    }
    *event = RankProtocol::Trained{};
    return absl::OkStatus();
  }

  // The last step before a boundary does not gather, because averaging follows and changes the
  // weights.
  absl::Status TrainOneStep(bool boundary) {
    const absl::Time begin = steady_.Now();
    const double exposed = Exposed();
    const absl::StatusOr<const Batch*> loaded = loader_->Next(step_);
    CADRE_RETURN_IF_ERROR(Blame(v1::FAILURE_CAUSE_DATA, loaded.status()));
    // A rank that waits for its data thus has less progress than the ranks that wait for it.
    progress_.Advance();
    rate_ = RateAt(spec_.schedule(), step_, protocol_.total_steps());
    const std::vector<BatchView> views =
        ViewsOf(**loaded, *replica_, batch(),
                BatchPosition(protocol_.division(), step_, rank_slot_.group(), batch()));
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
    ++reported_steps_;
    // The waits of a device cannot be observed.
    progress_.AddStep(absl::ToDoubleSeconds(steady_.Now() - begin),
                      replica_->on_device() ? 0 : Exposed() - exposed);
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
    return absl::OutOfRangeError(absl::StrCat("step ", step, ": ", status.message(), "; version ",
                                              protocol_.version(), " is kept"));
  }

  // Reports if the latest report is old enough.
  void ReportProgress() {
    const absl::Time now = steady_.Now();
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
    progress.set_solo_steps(protocol_.solo_steps());
    control_.Send(progress);
    BeginReport();
    report_at_ = now + options_.report_every;
  }

  // ---- The boundary

  // Measures the time that a round keeps the group from training: the lifetimes of these objects.
  class Exposure {
   public:
    explicit Exposure(Trainer& trainer) : trainer_(trainer), start_(trainer.steady_.Now()) {}
    Exposure(const Exposure&) = delete;
    Exposure& operator=(const Exposure&) = delete;
    ~Exposure() { Count(); }

    absl::Time start() const { return start_; }
    // Returns the time since the last call.
    absl::Duration Take() {
      Count();
      return std::exchange(trainer_.exposed_, absl::ZeroDuration());
    }

   private:
    void Count() {
      const absl::Time now = trainer_.steady_.Now();
      const absl::Duration time = now - std::exchange(start_, now);
      trainer_.exposed_ += time;
      trainer_.waited_ += time;
    }

    Trainer& trainer_;
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
    uint64_t nudged = lead() && control_.nudged(ask.round) ? 1 : 0;
    CADRE_RETURN_IF_ERROR(BroadcastNumber(&nudged));
    *event = RankProtocol::Nudged{.nudged = nudged != 0};
    return absl::OkStatus();
  }

  absl::Status Do(const RankProtocol::Stage& stage, std::optional<RankProtocol::Event>* event) {
    const Exposure exposure(*this);
    progress_.Enter(v1::ACTIVITY_EXCHANGING);
    CADRE_RETURN_IF_ERROR(replica_->AwaitOperations());
    // Non-finite weights must not be averaged.
    if (stage.samples > 0) CADRE_RETURN_IF_ERROR(InStep(step_ - 1, replica_->CheckWeights()));
    if (exchange_->has_shards()) {
      CADRE_RETURN_IF_ERROR(replica_->FetchOwned(/*states=*/KeepsStates()));
      if (KeepsStates()) options_.states->Keep(stage.round, States());
      CADRE_RETURN_IF_ERROR(GatherPart());
      exchange_->BeginStage(stage.round, stage.samples, stage.fragment);
    }
    contributed_ = {.loss = period_.samples > 0 ? period_.loss / period_.samples : 0};
    contributed_.train_seconds =
        absl::ToDoubleSeconds(exposure.start() - period_start_ - std::exchange(waited_, {}));
    contributed_.rate = rate_;
    period_ = LossPart();
    period_start_ = exposure.start();
    if (!stage.background) return AwaitStaged(event);
    *event = RankProtocol::Unfinished{};
    return absl::OkStatus();
  }

  absl::Status Do(const RankProtocol::AwaitStaged& await,
                  std::optional<RankProtocol::Event>* event) {
    const Exposure exposure(*this);
    uint64_t unfinished[] = {await.wait || exchange_->finished() ? 0U : 1U};
    if (!await.wait) {
      CADRE_RETURN_IF_ERROR(replica_->comms().All().AllReduceSum(std::span<uint64_t>(unfinished)));
    }
    if (unfinished[0] == 0) return AwaitStaged(event);
    *event = RankProtocol::Unfinished{};
    return absl::OkStatus();
  }

  // A collective. Waits until all ranks have staged.
  absl::Status AwaitStaged(std::optional<RankProtocol::Event>* event) {
    Traffic traffic;
    if (exchange_->begun()) {
      progress_.Enter(v1::ACTIVITY_EXCHANGING);
      const absl::Status staged = exchange_->Finish(&traffic);
      // If the contribution is too late, the coordinator's decision determines how to continue.
      const bool late = RefusalOf(staged) == v1::REFUSAL_CLOSED_ROUND;
      if (!late) CADRE_RETURN_IF_ERROR(Blame(v1::FAILURE_CAUSE_AGGREGATOR, staged));
      progress_.Advance();
      if (late) counters_.Add("contributions_late");
      counters_.Add("staged_payload_bytes", traffic.payload_sent);
      counters_.Add("staged_message_bytes", traffic.message_sent);
    }
    // The next generation may start from a version that includes the contribution.
    if (KeepsResiduals()) KeepResidual(protocol_.version() + 1, /*included=*/true);
    RankProtocol::Staged result = contributed_;
    CADRE_RETURN_IF_ERROR(SumTraffic(traffic, &result));
    // After this barrier every rank has staged.
    CADRE_RETURN_IF_ERROR(replica_->comms().All().Barrier());
    staged_at_ = steady_.Now();
    result.stage_seconds = absl::ToDoubleSeconds(staged_at_ - period_start_);
    *event = result;
    return absl::OkStatus();
  }

  // `leaving`, if not null: whether each rank leaves, which is shared by the same collective.
  template <typename Result>
  absl::Status SumTraffic(const Traffic& traffic, Result* result,
                          std::vector<bool>* leaving = nullptr) {
    std::vector<uint64_t> sums = {traffic.payload_sent + traffic.payload_received,
                                  traffic.message_sent + traffic.message_received};
    const size_t first = sums.size();
    if (leaving != nullptr) {
      sums.resize(first + replica_->comms().All().size());
      sums[first + rank_slot_.rank()] = control_.draining() ? 1 : 0;
    }
    CADRE_RETURN_IF_ERROR(replica_->comms().All().AllReduceSum(std::span(sums)));
    result->payload_bytes = sums[0];
    result->message_bytes = sums[1];
    if (leaving != nullptr) leaving->assign(sums.begin() + first, sums.end());
    return absl::OkStatus();
  }

  // ---- Optimizer states

  // Equal on all ranks.
  bool KeepsStates() const {
    return options_.states != nullptr && exchange_->has_shards() && replica_->slices().states() > 0;
  }

  // The fetched states.
  StateVault::States States() {
    OwnedSlices& slices = replica_->slices();
    StateVault::States states{.updates = slices.updates()};
    for (int i = 0; i < slices.states(); ++i) states.tensors.push_back(slices.State(i));
    return states;
  }

  // A collective. Requires: the weights of the first version are stored.
  absl::Status RestoreStates(uint32_t version) {
    CADRE_RETURN_IF_ERROR(replica_->FetchOwned(/*states=*/true));
    StateVault::States states = States();
    CADRE_ASSIGN_OR_RETURN(const int64_t found,
                           options_.states->Restore(version, &states, replica_->comms().All()));
    LOG_IF(INFO, lead()) << "optimizer states of version " << version
                         << ": the ranks hold those of " << found << " of "
                         << replica_->index().size() << " elements; the others begin with zero";
    if (found == 0) return absl::OkStatus();
    replica_->slices().set_updates(states.updates);
    return replica_->StoreOwned(/*states=*/true);
  }

  // ---- What codes have left out

  // Equal on all ranks.
  bool KeepsResiduals() const {
    return options_.residuals != nullptr && CodingOf(spec_.averaging().up()) &&
           exchange_->has_shards();
  }

  // As a state of this rank's part of the model.
  StateVault::States ResidualIn(std::span<float> values) const {
    StateVault::States states;
    states.tensors.push_back({{part_.positions, values}});
    return states;
  }

  void KeepResidual(uint32_t version, bool included) {
    std::vector<float> values = exchange_->Carried(included);
    options_.residuals->Keep(version, ResidualIn(values));
  }

  // A collective.
  absl::Status RestoreResidual(uint32_t version) {
    std::vector<float> values(part_.positions.size());
    StateVault::States residual = ResidualIn(values);
    CADRE_ASSIGN_OR_RETURN(const int64_t found, options_.residuals->Restore(
                                                    version, &residual, replica_->comms().All()));
    LOG_IF(INFO, lead() && found > 0)
        << "the ranks hold what the codes have left out of " << found << " of "
        << replica_->index().size() << " elements before version " << version;
    if (found > 0) exchange_->SetCarried(values);
    return absl::OkStatus();
  }

  // A collective. The ranks that leave give their states to others first. A rank that leaves is as
  // lost to the others as one that fails.
  absl::Status Leave(uint32_t version, const std::vector<bool>& leaving) {
    if (std::find(leaving.begin(), leaving.end(), true) == leaving.end()) return absl::OkStatus();
    if (KeepsStates()) {
      CADRE_RETURN_IF_ERROR(options_.states->HandOver(version, leaving, replica_->comms().All()));
    }
    if (KeepsResiduals()) {
      CADRE_RETURN_IF_ERROR(
          options_.residuals->HandOver(version, leaving, replica_->comms().All()));
    }
    return leaving[rank_slot_.rank()] ? control_.LeaveIfDraining() : absl::OkStatus();
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
  absl::Status Do(const RankProtocol::AwaitDecision& await,
                  std::optional<RankProtocol::Event>* event) {
    const Exposure exposure(*this);
    if (await.run_ended) CADRE_RETURN_IF_ERROR(tracer_->Finish(step_));
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
      decided_at_ = steady_.Now();
      v1::Decision decision = received.value_or(v1::Decision());
      CADRE_RETURN_IF_ERROR(BroadcastMessage(&decision));
      if (decision.adopt() && !decision.included()) {
        LOG(WARNING) << "round " << decision.round() << " went on without this group ("
                     << EnumText(decision.refusal()) << "); adopting version "
                     << decision.version();
      }
      *event = RankProtocol::Decided{std::move(decision)};
      // With averaging, ranks leave after they have adopted the version. Otherwise the steps of a
      // rank that leaves are committed, and no other rank needs anything from it.
      const bool adopts = exchange_->has_shards() && !await.run_ended;
      return adopts ? absl::OkStatus() : control_.LeaveIfDraining();
    }
  }

  absl::Status Do(const RankProtocol::Initialize& /*initialize*/,
                  std::optional<RankProtocol::Event>* event) {
    progress_.Enter(v1::ACTIVITY_PREPARING);
    // The weights of a new replica are those of the run's seed.
    CADRE_RETURN_IF_ERROR(LoadFirstCheckpoint());
    RankProtocol::Pulled result;
    CADRE_ASSIGN_OR_RETURN(result.digest, replica_->GroupDigest());
    CADRE_RETURN_IF_ERROR(GatherPart());
    exchange_->AdoptInitial();
    has_version_ = true;
    *event = result;
    return absl::OkStatus();
  }

  // A collective. A rank that has just begun has version 0, unless the run starts from a
  // checkpoint, because the weights of a new replica are those of the run's seed. So the frames of
  // all versions are enough for it, if the shards still keep them.
  absl::Status OfferInitial() {
    const bool frames = CodingOf(spec_.averaging().down()) && spec_.checkpoint().from().empty();
    if (!frames || has_version_) return absl::OkStatus();
    CADRE_RETURN_IF_ERROR(replica_->FetchOwned());
    CADRE_RETURN_IF_ERROR(GatherPart());
    exchange_->AdoptInitial();
    return absl::OkStatus();
  }

  absl::Status LoadFirstCheckpoint() {
    return Blame(v1::FAILURE_CAUSE_CHECKPOINT, checkpoints_->Begin(start()), IsOfFiles);
  }

  absl::Status Do(const RankProtocol::Pull& pull, std::optional<RankProtocol::Event>* event) {
    Exposure exposure(*this);
    if (!exchange_->begun()) {
      CADRE_RETURN_IF_ERROR(OfferInitial());
      exchange_->BeginPull(pull.version);
    }
    if (pull.background) {
      *event = RankProtocol::Unfinished{};
      return absl::OkStatus();
    }
    Traffic traffic;
    progress_.Enter(v1::ACTIVITY_EXCHANGING);
    CADRE_RETURN_IF_ERROR(FinishPull(pull.version, pull.included, &traffic));
    has_version_ = true;
    RankProtocol::Pulled result;
    std::vector<bool> leaving;
    CADRE_RETURN_IF_ERROR(SumTraffic(traffic, &result, &leaving));
    CADRE_ASSIGN_OR_RETURN(result.digest, replica_->GroupDigest());
    if (result.digest == pull.digest) {
      if (KeepsStates()) options_.states->Adopted(pull.version);
      if (KeepsResiduals()) options_.residuals->Adopted(pull.version);
      CADRE_RETURN_IF_ERROR(Leave(pull.version, leaving));
    }
    counters_.Add("versions_adopted");
    result.exchange_seconds = absl::ToDoubleSeconds(exposure.Take());
    // A decision without a contribution only assigns samples to evaluate.
    const bool contributed = decided_at_ > staged_at_;
    result.wait_seconds = contributed ? absl::ToDoubleSeconds(decided_at_ - staged_at_) : 0;
    result.pull_seconds = absl::ToDoubleSeconds(steady_.Now() - decided_at_);
    step_ = pull.step;
    *event = result;
    return absl::OkStatus();
  }

  absl::Status Do(const RankProtocol::Merge& merge, std::optional<RankProtocol::Event>* /*event*/) {
    const Exposure exposure(*this);
    CADRE_RETURN_IF_ERROR(replica_->FetchOwned());
    exchange_->Merge();
    CADRE_RETURN_IF_ERROR(StorePart());
    step_ = merge.step;
    return absl::OkStatus();
  }

  absl::Status Do(const RankProtocol::Begin& /*begin*/, std::optional<RankProtocol::Event>* event) {
    progress_.Enter(v1::ACTIVITY_PREPARING);
    // The states of version 0 are zero, or those of a checkpoint.
    if (start().version() > 0 && KeepsStates()) {
      CADRE_RETURN_IF_ERROR(RestoreStates(start().version()));
    }
    if (start().version() > 0 && KeepsResiduals()) {
      CADRE_RETURN_IF_ERROR(RestoreResidual(start().version()));
    }
    if (!exchange_->has_shards()) CADRE_RETURN_IF_ERROR(LoadFirstCheckpoint());
    CADRE_RETURN_IF_ERROR(replica_->GatherWeights());
    BeginReport();
    *event = RankProtocol::Kept{};
    return absl::OkStatus();
  }

  absl::Status Do(const RankProtocol::Keep& keep, std::optional<RankProtocol::Event>* event) {
    const absl::Time begin = steady_.Now();
    CADRE_RETURN_IF_ERROR(replica_->GatherWeights());
    CADRE_RETURN_IF_ERROR(MaybeSave(keep.may_be_last));
    waited_ += steady_.Now() - begin;
    *event = RankProtocol::Kept{};
    return absl::OkStatus();
  }

  absl::Status Do(const RankProtocol::Fail& fail, std::optional<RankProtocol::Event>* /*event*/) {
    return Blame(v1::FAILURE_CAUSE_DIGEST, fail.status);
  }

  absl::Status Do(const RankProtocol::Send& send, std::optional<RankProtocol::Event>* /*event*/) {
    control_.Send(send.report);
    return absl::OkStatus();
  }

  // ---- Evaluation

  absl::Status Do(const RankProtocol::Evaluate& evaluate,
                  std::optional<RankProtocol::Event>* event) {
    progress_.Enter(v1::ACTIVITY_EVALUATING);
    const absl::Time begin = steady_.Now();
    CADRE_RETURN_IF_ERROR(measurer_->Pause());
    const absl::StatusOr<LossPart> sum = EvaluateSamples(
        *replica_, *test_, evaluate.begin, evaluate.end, MicroBatchSamples(spec_),
        options_.loader_threads, progress_);
    CADRE_RETURN_IF_ERROR(Blame(v1::FAILURE_CAUSE_DATA, sum.status(), IsOfFiles));
    RankProtocol::Evaluated result{
        .correct = sum->correct, .labels = sum->samples, .loss_sum = sum->loss};
    CADRE_ASSIGN_OR_RETURN(result.digest, replica_->GroupDigest());
    BeginReport();  // evaluation does not count as training time
    waited_ += steady_.Now() - begin;
    *event = result;
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
  TrainerProgress own_progress_;
  TrainerProgress& progress_;

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
  // The part of the model that this rank exchanges, in a run that exchanges whole units.
  std::optional<ExchangeUnits> units_;
  std::vector<float> part_values_;
  Owned part_;
  std::optional<Regroup> regroup_;
  std::unique_ptr<ShardExchange> exchange_;
  // The group has adopted a version.
  bool has_version_ = false;
  std::unique_ptr<RunCheckpoints> checkpoints_;
  std::unique_ptr<BatchLoader> loader_;
  // First step of the division that the loader follows.
  uint32_t loaded_from_ = 0;

  // Cause of the error that ended training; unspecified: it follows from the status.
  v1::FailureCause cause_ = v1::FAILURE_CAUSE_UNSPECIFIED;
  RankProtocol protocol_;
  // Steps since the start of the run.
  uint32_t step_ = 0;
  // Loss since the last boundary.
  LossPart period_;
  absl::Time period_start_;
  // Of the newest contribution.
  RankProtocol::Staged contributed_;
  // Time in which the newest round has kept the group from training.
  absl::Duration exposed_;
  // When the newest contribution was acknowledged, and when its decision arrived.
  absl::Time staged_at_;
  absl::Time decided_at_;
  // Time since period_start_ in which the group did not train: rounds, evaluations, checkpoints.
  absl::Duration waited_;
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
