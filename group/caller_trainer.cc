// One object of CallerModel lives for one generation; the values and the handoff outlive it.
#include "group/caller_trainer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status.h"
#include "glog/logging.h"
#include "member/agreement.h"
#include "model/opaque.h"
#include "model/training_metrics.h"

namespace cadre {
namespace {

constexpr absl::Duration kReportEvery = absl::Seconds(1);

// Refuses what the coordinator would refuse (coordinator/run/run_evaluation.cc).
absl::Status CheckEvaluated(const RankProtocol::Evaluate& evaluate,
                            const RankProtocol::Evaluated& evaluated) {
  const auto samples = static_cast<int64_t>(evaluate.end - evaluate.begin);
  if (evaluated.labels >= samples && evaluated.correct >= 0 &&
      evaluated.correct <= evaluated.labels) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the evaluation of test samples ", evaluate.begin, " to ", evaluate.end, " has ",
                   evaluated.labels, " labels, of which ", evaluated.correct,
                   " are correct; it must have at least one label for each sample, and at most all "
                   "of them correct"));
}

}  // namespace

// Values are current in the registered memory after Fetch, until the program trains. Store marks
// them as changed; they reach the program with the next Gather, because ranks that share values
// must receive those of the others first.
class CallerModel final : public TrainedModel {
 public:
  CallerModel(const v1::Assignment& assignment, CallerTrainer& trainer, GroupControl& control)
      : assignment_(assignment), spec_(assignment.spec()), trainer_(trainer), control_(control) {}

  absl::Status Open(FailureNote& failure) override {
    CADRE_RETURN_IF_ERROR(failure.Blame(v1::FAILURE_CAUSE_PLAN, CheckTestSamples()));
    auto made = CallerValues::Make(trainer_.parameters_, spec_.model());
    CADRE_RETURN_IF_ERROR(failure.Blame(v1::FAILURE_CAUSE_PLAN, made.status()));
    values_.emplace(*std::move(made));
    // The program may still train with the values of an earlier generation.
    CADRE_RETURN_IF_ERROR(trainer_.handoff_.AwaitProgram());
    trainer_.report_.Reset();
    return absl::OkStatus();
  }

  absl::Status Prepare(Transport& transport, const RankProtocol& protocol,
                       FailureNote& failure) override {
    protocol_ = &protocol;
    group_.reset(new Communicator(WholeGroup(transport)));
    const absl::Status divided = values_->Divide(transport);
    if (absl::IsInvalidArgument(divided)) return failure.Blame(v1::FAILURE_CAUSE_PLAN, divided);
    CADRE_RETURN_IF_ERROR(divided);
    const absl::Status equal = CheckFirstValues();
    return absl::IsOutOfRange(equal) ? failure.Blame(v1::FAILURE_CAUSE_PLAN, equal) : equal;
  }

  v1::Prepared Describe() const override {
    v1::Prepared prepared;
    if (spec_.model().has_opaque()) {
      prepared.set_train_samples(EpochSamples(spec_));
      prepared.set_test_samples(spec_.model().opaque().test_samples());
    }
    int64_t owned = 0;
    for (const Owned& part : values_->owned()) owned += part.positions.size();
    prepared.mutable_memory()->set_weights(owned * sizeof(float));
    prepared.mutable_memory()->set_exchange(values_->CopiedBytes());
    return prepared;
  }

  const ParameterIndex& index() const override { return values_->index(); }
  Communicator& group() override { return *group_; }
  std::span<const Owned> owned() const override { return values_->owned(); }

  absl::Status Fetch(bool /*states*/) override {
    if (current_) return absl::OkStatus();
    CADRE_RETURN_IF_ERROR(trainer_.handoff_.Do(Handoff::Task::kFetch));
    values_->TakeShared();
    current_ = true;
    return absl::OkStatus();
  }

  absl::Status Store(bool /*states*/) override {
    current_ = true;
    changed_ = true;
    return absl::OkStatus();
  }

  absl::Status CheckWeights() override {
    CADRE_RETURN_IF_ERROR(Fetch(/*states=*/false));
    CADRE_RETURN_IF_ERROR(Agree(values_->CheckFinite(), *group_));
    return CheckShared();
  }

  absl::Status Gather() override {
    if (!changed_) return absl::OkStatus();
    CADRE_RETURN_IF_ERROR(values_->GiveShared());
    CADRE_RETURN_IF_ERROR(trainer_.handoff_.Do(Handoff::Task::kStore));
    changed_ = false;
    return absl::OkStatus();
  }

  bool has_initial_version() const override { return false; }
  void StartAt(uint32_t step) override { step_ = step; }
  void MoveTo(uint32_t step) override { step_ = step; }

  // The program is in Next, so all its steps are counted, also the one that it was in when an
  // earlier generation ended.
  void OnAdopted(bool kept) override {
    const v1::Decision& decision = protocol_->decision();
    const uint64_t trained = trainer_.handoff_.trained();
    const uint64_t ahead = protocol_->steps_ahead();
    const uint64_t continued = protocol_->discards_steps_ahead() ? 0 : ahead;
    absl::MutexLock lock(&trainer_.mutex_);
    const uint64_t lost = (kept ? 0 : trained - trainer_.accounted_ - ahead) + (ahead - continued);
    LOG_IF(WARNING, lost > 0) << "version " << decision.version() << " does not contain the last "
                              << lost << " steps of this group, which are discarded";
    trainer_.accounted_ = trained - continued;
    ProgramState& state = trainer_.state_;
    state.run = assignment_.place().run();
    state.group = assignment_.place().group();
    state.version = decision.version();
    state.digest = decision.digest();
    state.participants = decision.participants();
    state.included = decision.included();
    state.batch = spec_.batch_per_group();
    state.discarded_steps += lost;
  }

  absl::StatusOr<uint32_t> Train(const RankProtocol::Train& train, FailureNote& failure) override {
    CADRE_RETURN_IF_ERROR(Gather());
    if (step_ >= train.until || ended_loop_) return step_;
    {
      absl::MutexLock lock(&trainer_.mutex_);
      trainer_.state_.division = protocol_->division();
      trainer_.state_.total_steps = protocol_->total_steps();
      trainer_.state_.next_boundary = std::max(train.until, protocol_->next_boundary());
    }
    if (trainer_.progress_ != nullptr) trainer_.progress_.load()->Enter(v1::ACTIVITY_TRAINING);
    current_ = false;
    // In an earlier generation, too.
    if (!trainer_.handoff_.loop_ended()) {
      CADRE_RETURN_IF_ERROR(TrainTo(train.until));
      step_ = trainer_.handoff_.step();
    }
    CADRE_RETURN_IF_ERROR(AgreeOnEnd(failure));
    if (ended_loop_) trainer_.agreed_on_end_ = true;
    return step_;
  }
  bool ended_loop() const override { return ended_loop_; }
  // With the pauses, because a notice does not stop for them.
  double step_seconds() const override { return mean_step_seconds_; }

  // The program goes on with the version.
  absl::Status OnLeaving() override { return Gather(); }

  // The program waits meanwhile, so that it reports nothing.
  PeriodReport TakePeriod() override { return trainer_.report_.TakeForContribution(); }

  absl::StatusOr<RankProtocol::Evaluated> Evaluate(const RankProtocol::Evaluate& evaluate,
                                                   FailureNote& failure) override {
    CADRE_RETURN_IF_ERROR(Gather());
    {
      absl::MutexLock lock(&trainer_.mutex_);
      trainer_.evaluated_ = {};
      trainer_.state_.evaluate = {static_cast<int64_t>(evaluate.begin),
                                  static_cast<int64_t>(evaluate.end)};
    }
    CADRE_RETURN_IF_ERROR(trainer_.handoff_.Do(Handoff::Task::kEvaluate));
    absl::MutexLock lock(&trainer_.mutex_);
    const RankProtocol::Evaluated evaluated = trainer_.evaluated_;
    if (!std::isfinite(evaluated.loss_sum)) {
      return absl::OutOfRangeError(absl::StrCat("the loss of test samples ", evaluate.begin, " to ",
                                                evaluate.end, " is ", evaluated.loss_sum));
    }
    const absl::Status valid = CheckEvaluated(evaluate, evaluated);
    if (!valid.ok()) return failure.Blame(v1::FAILURE_CAUSE_PLAN, valid);
    return evaluated;
  }

  // The program goes on when the coordinator has confirmed the end.
  absl::Status OnTrainingEnded() override { return Gather(); }

  void Close() override {
    values_.reset();
    group_.reset();
  }

 private:
  // A collective.
  absl::Status CheckShared() {
    const absl::Status equal = values_->CheckShared();
    return equal.ok() || absl::IsOutOfRange(equal) ? Agree(equal, *group_) : equal;
  }

  // A collective: compares the values with which the program begins, which those of a version would
  // replace. Later generations may begin while only some ranks have a new version.
  absl::Status CheckFirstValues() {
    if (group_->size() == 1) return absl::OkStatus();
    std::array<uint64_t, 1> ranks_checked = {trainer_.checked_first_values_ ? 1U : 0U};
    CADRE_RETURN_IF_ERROR(group_->AllReduceSum(std::span<uint64_t>(ranks_checked)));
    // A rank that has finished the comparison has seen the digests of all.
    if (ranks_checked[0] == 0) {
      CADRE_RETURN_IF_ERROR(Fetch(/*states=*/false));
      CADRE_RETURN_IF_ERROR(CheckShared());
    }
    trainer_.checked_first_values_ = true;
    return absl::OkStatus();
  }

  // A run in which the programs evaluate needs an evaluation in each of them.
  absl::Status CheckTestSamples() const {
    const uint64_t of_run = spec_.model().opaque().test_samples();
    if (!spec_.model().has_opaque() || of_run == trainer_.test_samples_) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("the run has ", of_run,
                                                   " test samples, but this program evaluates ",
                                                   trainer_.test_samples_));
  }

  // A collective: whether the program has ended its loop.
  absl::Status AgreeOnEnd(FailureNote& failure) {
    ended_loop_ = trainer_.handoff_.loop_ended();
    if (group_->size() == 1) return absl::OkStatus();
    // The step, and whether the loop has ended, of each rank.
    const size_t ranks = group_->size();
    std::vector<uint64_t> reached(2 * ranks, 0);
    reached[group_->index()] = step_;
    reached[ranks + group_->index()] = ended_loop_ ? 1 : 0;
    CADRE_RETURN_IF_ERROR(group_->AllReduceSum(std::span<uint64_t>(reached)));
    for (size_t rank = 1; rank < ranks; ++rank) {
      if (reached[rank] == reached[0] && reached[ranks + rank] == reached[ranks]) continue;
      const auto describe = [&](size_t one) {
        return absl::StrCat("rank ", one, reached[ranks + one] ? " has ended its loop" : " goes on",
                            " at step ", reached[one]);
      };
      return failure.Blame(v1::FAILURE_CAUSE_PLAN,
                           absl::InvalidArgumentError(absl::StrCat(
                               "the ranks of this program must end their loops at the same step: ",
                               describe(0), ", but ", describe(rank))));
    }
    return absl::OkStatus();
  }

  // A program of several ranks stops where they have agreed on (RankProtocol::AskNudge).
  void ShortenIfLeaving(uint32_t steps) {
    const bool alone = group_->size() == 1 && assignment_.shards_size() > 0;
    if (alone && control_.LeavesBefore(steps * absl::Seconds(step_seconds()))) {
      trainer_.handoff_.Shorten();
    }
  }

  void MeasureSteps(absl::Duration time, uint32_t steps) {
    if (steps == 0) return;
    const double seconds = absl::ToDoubleSeconds(time) / steps;
    mean_step_seconds_ = mean_step_seconds_ == 0 ? seconds : (mean_step_seconds_ + seconds) / 2;
  }

  // Has the program train to the step, and reports its progress meanwhile.
  absl::Status TrainTo(uint32_t until) {
    CADRE_RETURN_IF_ERROR(trainer_.handoff_.Assign(Handoff::Task::kTrain, step_, until));
    absl::Time counted_at = steady_.Now();
    uint32_t counted_step = step_;
    while (true) {
      ShortenIfLeaving(until - std::min(until, counted_step));
      CADRE_ASSIGN_OR_RETURN(const bool done,
                             trainer_.handoff_.AwaitDone(report_at_ - steady_.Now()));
      const absl::Time now = steady_.Now();
      const uint32_t step = trainer_.handoff_.step();
      const absl::Duration time = now - std::exchange(counted_at, now);
      const uint32_t steps = step - std::exchange(counted_step, step);
      MeasureSteps(time, steps);
      unreported_time_ += time;
      unreported_steps_ += steps;
      if (now >= report_at_) {
        ReportProgress(step);
        report_at_ = now + kReportEvery;
      }
      if (done) return absl::OkStatus();
    }
  }

  void ReportProgress(uint32_t step) {
    if (assignment_.place().rank() != 0 || unreported_steps_ == 0) return;
    PeriodReport report = trainer_.report_.TakeForStatus();
    const uint32_t steps = std::exchange(unreported_steps_, 0);
    const double seconds =
        absl::ToDoubleSeconds(std::exchange(unreported_time_, absl::ZeroDuration()));
    v1::Progress progress;
    *progress.mutable_place() = assignment_.place();
    progress.set_step(step);
    if (report.loss) progress.set_loss(static_cast<float>(*report.loss));
    progress.set_rate(report.rate);
    if (HasMetrics(report.metrics)) *progress.mutable_metrics() = std::move(report.metrics);
    progress.set_samples_per_second(static_cast<double>(steps) * spec_.batch_per_group() / seconds);
    progress.set_step_seconds(trainer_.step_times_.Median());
    progress.set_solo_steps(protocol_->solo_steps());
    control_.Send(progress);
  }

  const v1::Assignment& assignment_;
  const v1::RunSpec& spec_;
  CallerTrainer& trainer_;
  std::optional<CallerValues> values_;
  std::unique_ptr<Communicator> group_;
  const RankProtocol* protocol_ = nullptr;
  GroupControl& control_;
  const SteadyClock steady_;
  // When the next Progress is due.
  absl::Time report_at_ = absl::InfinitePast();
  // Since the newest Progress: steps, and the time in which the program trained.
  uint32_t unreported_steps_ = 0;
  absl::Duration unreported_time_;
  uint32_t step_ = 0;
  // Exponential average; 0: unknown.
  double mean_step_seconds_ = 0;
  bool ended_loop_ = false;
  bool current_ = false;
  bool changed_ = false;
};

void CallerTrainer::Describe(v1::Hello& hello) const {
  hello.set_device("program");
  hello.set_device_kind(v1::Cluster::CPU);
  *hello.mutable_reservation() = reservation_;
}

GenerationTrainer::Result CallerTrainer::Train(GroupSession& session,
                                               const MemberLoopOptions& options,
                                               Counters& counters) {
  progress_ = options.progress;
  handoff_.Begin();
  const auto on_cancel =
      session.cancellation().OnCancel([this](const absl::Status&) { handoff_.Cancel(); });
  CallerModel model(session.assignment(), *this, session);
  Result result;
  result.outcome = RunMemberLoop(session.assignment(), model, session, session.cancellation(),
                                 counters, options);
  handoff_.Cancel();
  // Another generation would fail for the same cause.
  const v1::FailureCause cause = result.outcome.cause;
  if (cause == v1::FAILURE_CAUSE_PLAN || cause == v1::FAILURE_CAUSE_DIVERGED) {
    result.end = result.outcome.status;
    absl::MutexLock lock(&mutex_);
    error_ = result.end;
  }
  return result;
}

void CallerTrainer::OnRunEnded(const v1::RunEnded& ended) {
  {
    absl::MutexLock lock(&mutex_);
    // Its own failure, which may be the cause, is not replaced.
    if (!ended.done() && error_.ok()) {
      error_ =
          absl::CancelledError(absl::StrCat("run ", ended.run(), " has ended for this program at ",
                                            "step ", ended.step(), ": ", ended.reason()));
    }
    state_.run = ended.run();
    run_ended_ = true;
  }
  handoff_.End();
}

void CallerTrainer::OnWaiting(const v1::Waiting& waiting) {
  absl::MutexLock lock(&mutex_);
  awaited_ = waiting.reason();
}

std::string CallerTrainer::awaited() const {
  absl::MutexLock lock(&mutex_);
  return awaited_;
}

void CallerTrainer::SetEvaluated(const RankProtocol::Evaluated& evaluated) {
  absl::MutexLock lock(&mutex_);
  evaluated_ = evaluated;
}

ProgramState CallerTrainer::state() const {
  absl::MutexLock lock(&mutex_);
  ProgramState state = state_;
  // No version follows that could have them.
  if (run_ended_) state.discarded_steps += handoff_.trained() - accounted_;
  return state;
}

bool CallerTrainer::run_ended() const {
  absl::MutexLock lock(&mutex_);
  return run_ended_;
}

absl::Status CallerTrainer::error() const {
  absl::MutexLock lock(&mutex_);
  return error_;
}

}  // namespace cadre
