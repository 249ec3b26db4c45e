// The network that a rank of a group computes itself: data, plan, replica, steps, evaluation,
// checkpoints. member/member_loop.cc carries out the rounds between the steps.
//
// Invariant. All ranks call the same collectives: no branch depends on a rank's own clock.
//
// Limits. Evaluation and checkpoints stop training for their duration.
#include "worker/train/trainer.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/trace.h"
#include "model/data_position.h"
#include "plan/memory.h"
#include "worker/data/batch_loader.h"
#include "worker/data/batch_rows.h"
#include "worker/data/open_dataset.h"
#include "worker/optim/schedule.h"
#include "worker/train/batches.h"
#include "worker/train/device_contribution.h"
#include "worker/train/group_plan.h"
#include "worker/train/replica.h"
#include "worker/train/run_checkpoints.h"
#include "worker/train/step_measurer.h"
#include "worker/train/step_tracer.h"
#include "worker/train/warm_up.h"

namespace cadre {
namespace {

// Errors of files and folders, as opposed to connections.
bool IsOfFiles(const absl::Status& status) {
  return absl::IsInvalidArgument(status) || absl::IsNotFound(status) ||
         absl::IsPermissionDenied(status) || absl::IsDataLoss(status) ||
         absl::IsUnimplemented(status);
}

absl::Status BlamePlan(FailureNote& failure, const absl::Status& status) {
  return absl::IsInvalidArgument(status) ? failure.Blame(v1::FAILURE_CAUSE_PLAN, status) : status;
}
absl::Status BlameReplica(FailureNote& failure, const absl::Status& status) {
  return absl::IsResourceExhausted(status) ? failure.Blame(v1::FAILURE_CAUSE_MEMORY, status)
                                           : BlamePlan(failure, status);
}

// The run's data sets, and the batches of the training data that are loaded ahead.
class RunData {
 public:
  RunData(const v1::RunSpec& spec, const TrainerOptions& options)
      : spec_(spec), options_(options) {}

  absl::Status Open() {
    CADRE_ASSIGN_OR_RETURN(train_, OpenDataset(spec_, Split::kTrain, options_.data_files));
    CADRE_ASSIGN_OR_RETURN(test_, OpenDataset(spec_, Split::kTest, options_.data_files));
    return absl::OkStatus();
  }
  const Dataset& train() const { return *train_; }
  const Dataset& test() const { return *test_; }

  // "of the training data: .json (4); of the test data: .json (1)"; empty if nothing is left out.
  std::string LeftOut() const {
    std::vector<std::string> parts;
    const auto add = [&parts](absl::string_view split, const std::string& left_out) {
      if (!left_out.empty()) parts.push_back(absl::StrCat("of the ", split, " data: ", left_out));
    };
    add("training", train_->left_out());
    add("test", test_->left_out());
    return absl::StrJoin(parts, "; ");
  }

  // The loader reads ahead, so it is made again when the division of the samples changes.
  void Follow(const v1::SampleDivision& division, int group, const Replica& replica) {
    if (loader_ != nullptr && loaded_from_ == division.step()) return;
    loaded_from_ = division.step();
    const int64_t batch = spec_.batch_per_group();
    TrainingPart part{.seed = spec_.seed(),
                      .dataset_size = train_->size(),
                      .group = group,
                      .batch = batch,
                      .division = division};
    part.micro_batches = CutBatch(batch, std::max(1U, spec_.micro_batches()),
                                  [&](int64_t samples) { return RowsOf(replica, samples); });
    loader_ = std::make_unique<BatchLoader>(
        *train_, TrainingRows(part), BatchLoader::Options{.threads = options_.loader_threads});
  }
  BatchLoader& loader() { return *loader_; }
  void StopLoading() { loader_.reset(); }

 private:
  const v1::RunSpec& spec_;
  const TrainerOptions& options_;
  std::unique_ptr<Dataset> train_;
  std::unique_ptr<Dataset> test_;
  std::unique_ptr<BatchLoader> loader_;
  // First step of the division that the loader follows.
  uint32_t loaded_from_ = 0;
};

class NativeModel final : public TrainedModel {
 public:
  NativeModel(const v1::Assignment& assignment, Backend& kernels, GroupControl& control,
              Counters& counters, const TrainerOptions& options)
      : assignment_(assignment),
        spec_(assignment.spec()),
        rank_slot_(assignment.place()),
        kernels_(kernels),
        control_(control),
        counters_(counters),
        options_(options),
        progress_(options.progress != nullptr ? *options.progress : own_progress_),
        data_(spec_, options) {}

  absl::Status Open(FailureNote& failure) override {
    return failure.Blame(v1::FAILURE_CAUSE_DATA, data_.Open());
  }

  absl::Status Prepare(Transport& transport, const RankProtocol& protocol,
                       FailureNote& failure) override {
    transport_ = &transport;
    protocol_ = &protocol;
    if (options_.connect_data != nullptr) {
      if (transport.size() > 1) {
        CADRE_RETURN_IF_ERROR(
            BlameReplica(failure, WarmUp(spec_, assignment_.plan(), kernels_, transport.rank())));
        progress_.Advance();
      }
      CADRE_ASSIGN_OR_RETURN(data_transport_, options_.connect_data(transport));
    }
    CADRE_RETURN_IF_ERROR(BlamePlan(failure, AgreeOnPlan()));
    progress_.Advance();
    CADRE_RETURN_IF_ERROR(BlameReplica(failure, MakeReplica()));
    progress_.Advance();
    const absl::Status directory = checkpoints_->CheckDirectory();
    // It belongs to another run, or is not beneath a root of the worker.
    return absl::IsFailedPrecondition(directory) || absl::IsPermissionDenied(directory)
               ? failure.Blame(v1::FAILURE_CAUSE_CHECKPOINT, directory)
               : directory;
  }

  v1::Prepared Describe() const override {
    v1::Prepared prepared;
    prepared.set_train_samples(data_.train().size());
    prepared.set_test_samples(data_.test().size());
    prepared.set_data_left_out(data_.LeftOut());
    for (v1::HeldParameter& held : replica_->Held()) *prepared.add_held() = std::move(held);
    *prepared.mutable_memory() = replica_->Memory();
    *prepared.mutable_planned_memory() = replica_->PlannedMemory();
    if (lead()) *prepared.mutable_plan() = plan_;
    return prepared;
  }

  absl::Status device_status() const override { return kernels_.device().status(); }
  const ParameterIndex& index() const override { return replica_->index(); }
  Communicator& group() override { return replica_->comms().All(); }
  std::span<const Owned> owned() const override { return replica_->owned(); }
  absl::Status Fetch(bool states) override { return replica_->FetchOwned(states); }
  absl::Status Store(bool states) override { return replica_->StoreOwned(states); }
  absl::StatusOr<std::unique_ptr<ContributionCoder>> MakeContributionCoder(
      ContributionCoder::Layout layout) override {
    if (kernels_.codecs() == nullptr) return nullptr;
    replica_->flow().set_mirrors(false);
    return DeviceContribution::Make(kernels_, replica_->slices().OnDevice(), std::move(layout),
                                    replica_->comms().All(), replica_->data_comms().All());
  }
  absl::Status FetchStates() override {
    CADRE_RETURN_IF_ERROR(replica_->AwaitOperations());
    return replica_->slices().FetchStates();
  }
  bool has_states() const override { return replica_->slices().states() > 0; }
  StateVault::States States() override {
    OwnedSlices& slices = replica_->slices();
    StateVault::States states{.updates = slices.UpdateCounts()};
    for (int i = 0; i < slices.states(); ++i) states.tensors.push_back(slices.State(i));
    return states;
  }
  void RestoreStates(const StateVault::States& states) override {
    replica_->slices().SetUpdates(states.updates);
  }
  absl::Status AwaitOperations() override { return replica_->AwaitOperations(); }
  absl::Status CheckWeights() override { return replica_->CheckWeights(); }
  absl::Status Gather() override { return replica_->flow().Gather(); }

  absl::Status LoadCheckpoint(const std::vector<AveragingState>& averaging,
                              FailureNote& failure) override {
    const absl::Status loaded = checkpoints_->Begin(protocol_->start(), averaging);
    return IsOfFiles(loaded) ? failure.Blame(v1::FAILURE_CAUSE_CHECKPOINT, loaded) : loaded;
  }

  void StartAt(uint32_t step) override {
    step_ = step;
    checkpoints_->StartAt(step_);
    Resume();
    report_at_ = steady_.Now() + options_.report_every;
  }
  void MoveTo(uint32_t step) override { step_ = step; }

  // Reports span boundaries, of which there may be many per second.
  void Resume() override {
    unreported_ = {.begin = steady_.Now(), .exposed_before = replica_->seconds_exposed()};
  }

  absl::StatusOr<uint32_t> Train(const RankProtocol::Train& train, FailureNote& failure) override {
    if (train.resumes) {
      CADRE_RETURN_IF_ERROR(replica_->flow().Gather());
    } else {
      period_ = LossPart();
    }
    data_.Follow(protocol_->division(), rank_slot_.group(), *replica_);
    while (step_ < train.until) {
      progress_.Enter(v1::ACTIVITY_TRAINING);
      CADRE_RETURN_IF_ERROR(TrainOneStep(step_ + 1 == train.until, failure));
      // Several ranks must stop at the same step (RankProtocol::AskNudge).
      const bool alone = averages() && transport_->size() == 1;
      if (alone && control_.LeavesBefore(TimeOf(train.until - step_))) break;
    }
    return step_;
  }
  double step_seconds() const override { return step_seconds_; }

  PeriodReport TakePeriod() override {
    const LossPart period = std::exchange(period_, LossPart());
    PeriodReport report{.rate = rate_};
    if (period.samples > 0) report.loss = period.loss / static_cast<double>(period.samples);
    return report;
  }

  absl::StatusOr<RankProtocol::Evaluated> Evaluate(const RankProtocol::Evaluate& evaluate,
                                                   FailureNote& failure) override {
    CADRE_RETURN_IF_ERROR(measurer_->Pause());
    const absl::StatusOr<LossPart> sum = EvaluateSamples(
        *replica_, data_.test(), evaluate.begin, evaluate.end, options_.loader_threads, progress_);
    if (IsOfFiles(sum.status())) return failure.Blame(v1::FAILURE_CAUSE_DATA, sum.status());
    CADRE_RETURN_IF_ERROR(AtStep(step_, protocol_->version(), sum.status()));
    return RankProtocol::Evaluated{
        .correct = sum->correct, .labels = sum->samples, .loss_sum = sum->loss};
  }

  absl::Status MaybeSave(bool may_be_last, const AveragingSource& averaging) override {
    return checkpoints_->Due(step_, may_be_last) ? Save(averaging) : absl::OkStatus();
  }

  absl::Status SaveLast(const AveragingSource& averaging) override {
    if (!checkpoints_->writes()) return absl::OkStatus();
    progress_.Enter(v1::ACTIVITY_SAVING);
    CADRE_ASSIGN_OR_RETURN(const bool saved, checkpoints_->IsSaved(step_));
    return saved ? absl::OkStatus() : Save(averaging);
  }

  absl::Status OnTrainingEnded() override { return tracer_->Finish(step_); }
  void Close() override {
    data_.StopLoading();
    checkpoints_.reset();
    tracer_.reset();
    measurer_.reset();
    replica_.reset();
    progress_.SetFallbacks({});
    data_transport_.reset();
  }

 private:
  bool lead() const { return rank_slot_.rank() == 0; }
  int64_t batch() const { return spec_.batch_per_group(); }
  bool averages() const { return assignment_.shards_size() > 0; }
  absl::Duration TimeOf(uint32_t steps) const { return steps * absl::Seconds(step_seconds_); }

  absl::Status Save(const AveragingSource& averaging) {
    progress_.Enter(v1::ACTIVITY_SAVING);
    CADRE_RETURN_IF_ERROR(AfterSteps(step_, protocol_->version(), replica_->CheckWeights()));
    std::string warning;
    CADRE_ASSIGN_OR_RETURN(std::vector<AveragingState> states, averaging(&warning));
    return checkpoints_->Save(
        {.step = step_,
         .version = protocol_->version(),
         .position = static_cast<uint64_t>(PositionAt(protocol_->division(), step_, batch())),
         .train_samples = static_cast<uint64_t>(data_.train().size())},
        std::move(states), std::move(warning));
  }

  Transport& tensors() { return data_transport_ != nullptr ? *data_transport_ : *transport_; }

  absl::Status AgreeOnPlan() {
    CADRE_ASSIGN_OR_RETURN(
        plan_, SettlePlan(spec_, assignment_, *transport_, tensors(), kernels_, options_.links));
    return absl::OkStatus();
  }

  absl::Status MakeReplica() {
    CADRE_ASSIGN_OR_RETURN(replica_, Replica::Make(spec_, plan_, kernels_, *transport_, tensors()));
    measurer_ = std::make_unique<StepMeasurer>(rank_slot_, *replica_, control_, steady_);
    tracer_ = std::make_unique<StepTracer>(control_, *replica_, trace_,
                                           [this] { return measurer_->Pause(); });
    checkpoints_ = std::make_unique<RunCheckpoints>(assignment_, *replica_, control_, counters_,
                                                    progress_, options_.checkpoint_files);
    // A lack of pinned memory is reported now, and not at the first boundary.
    if (options_.states != nullptr && averages() && has_states()) {
      replica_->slices().MakeStateMirrors();
    }
    return kernels_.device().status();
  }

  // The last step before a boundary does not gather, because averaging follows and changes the
  // weights.
  absl::Status TrainOneStep(bool boundary, FailureNote& failure) {
    const absl::Time begin = steady_.Now();
    const double exposed = replica_->seconds_exposed();
    const absl::StatusOr<const Batch*> loaded = data_.loader().Next(step_);
    CADRE_RETURN_IF_ERROR(failure.Blame(v1::FAILURE_CAUSE_DATA, loaded.status()));
    // A rank that waits for its data thus has less progress than the ranks that wait for it.
    progress_.Advance();
    rate_ = RateAt(spec_.schedule(), step_, protocol_->total_steps());
    const std::vector<BatchView> views =
        ViewsOf(**loaded, *replica_, batch(),
                BatchPosition(protocol_->division(), step_, rank_slot_.group(), batch()));
    CADRE_RETURN_IF_ERROR(tracer_->BeforeStep(step_));
    CADRE_RETURN_IF_ERROR(measurer_->BeforeStep(
        {.number = step_, .boundary = boundary, .traced = tracer_->tracing()}));
    auto stepped = replica_->Step(views, rate_, /*gather=*/!boundary);
    CADRE_RETURN_IF_ERROR(AtStep(step_, protocol_->version(), stepped.status()));
    CADRE_RETURN_IF_ERROR(measurer_->AfterStep());
    CADRE_ASSIGN_OR_RETURN(const LossPart part, std::move(stepped));
    period_ += part;
    unreported_.loss += part;
    ++unreported_.steps;
    ++step_;
    // The waits of a device cannot be observed.
    const double seconds = absl::ToDoubleSeconds(steady_.Now() - begin);
    step_seconds_ = step_seconds_ == 0 ? seconds : (3 * step_seconds_ + seconds) / 4;
    progress_.AddStep(seconds, replica_->on_device() ? 0 : replica_->seconds_exposed() - exposed);
    progress_.SetFallbacks(replica_->Fallbacks());
    counters_.Add("steps");
    counters_.Add("samples", replica_->network().batches().InputRows(batch()).size());
    // With averaging, checkpoints are saved at boundaries, where all groups have the same weights.
    if (!boundary && !averages()) {
      CADRE_RETURN_IF_ERROR(MaybeSave(/*may_be_last=*/false,
                                      [](std::string*) { return std::vector<AveragingState>(); }));
    }
    ReportProgress();
    return absl::OkStatus();
  }

  // Reports if the latest report is old enough.
  void ReportProgress() {
    const absl::Time now = steady_.Now();
    if (!lead() || now < report_at_ || unreported_.loss.samples == 0) return;
    const double seconds = absl::ToDoubleSeconds(now - unreported_.begin);
    const double labels = unreported_.loss.samples;
    const double samples = labels / data_.train().labels_per_sample();
    v1::Progress progress;
    *progress.mutable_place() = rank_slot_;
    progress.set_step(step_);
    progress.set_loss(unreported_.loss.loss / labels);
    progress.set_samples_per_second(samples / seconds);
    progress.set_step_seconds(seconds / unreported_.steps);
    // Not observable on a device: unset rather than 0.
    if (!replica_->on_device()) {
      progress.set_exposed_seconds((replica_->seconds_exposed() - unreported_.exposed_before) /
                                   unreported_.steps);
    }
    progress.set_rate(rate_);
    progress.set_solo_steps(protocol_->solo_steps());
    control_.Send(progress);
    Resume();
    report_at_ = now + options_.report_every;
  }

  const v1::Assignment& assignment_;
  const v1::RunSpec& spec_;
  const v1::RankSlot& rank_slot_;
  Backend& kernels_;
  GroupControl& control_;
  Counters& counters_;
  const TrainerOptions& options_;
  TrainerProgress own_progress_;
  TrainerProgress& progress_;

  RunData data_;
  // Borrowed; connects the ranks.
  Transport* transport_ = nullptr;
  const RankProtocol* protocol_ = nullptr;
  // Null: tensors use transport_.
  std::unique_ptr<Transport> data_transport_;
  // The plan that the group executes.
  v1::Plan plan_;
  Trace trace_;
  std::unique_ptr<Replica> replica_;
  const SteadyClock steady_;
  std::unique_ptr<StepMeasurer> measurer_;
  std::unique_ptr<StepTracer> tracer_;
  std::unique_ptr<RunCheckpoints> checkpoints_;
  // Steps since the start of the run.
  uint32_t step_ = 0;
  // Loss since the last boundary.
  LossPart period_;
  // Since the last report.
  struct {
    absl::Time begin;
    // Replica::seconds_exposed() at `begin`.
    double exposed_before = 0;
    LossPart loss;
    uint32_t steps = 0;
  } unreported_;
  absl::Time report_at_;
  float rate_ = 0;
  // Exponential average; 0: unknown.
  double step_seconds_ = 0;
};

}  // namespace

TrainerOutcome TrainAsMember(const v1::Assignment& assignment, Backend& kernels,
                             GroupControl& control, Cancellation& cancellation, Counters& counters,
                             const TrainerOptions& options) {
  NativeModel model(assignment, kernels, control, counters, options);
  return RunMemberLoop(assignment, model, control, cancellation, counters, options);
}

}  // namespace cadre
