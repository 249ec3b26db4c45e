// Steps are numbered over the whole training: a run from a checkpoint starts at the checkpoint's
// step and data position. Epochs count samples from the first one, across runs with different
// batches and changes of the number of groups, so the step at which an epoch ends depends on the
// data position (model/data_position.h), not on the step alone.
#include "coordinator/run/run_rules.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/algorithm/container.h"
#include "model/coding.h"
#include "model/data_position.h"
#include "model/outer_optimizer.h"

namespace cadre {
namespace {

constexpr uint32_t kDefaultRejoinWaitMs = 5'000;
constexpr uint32_t kDefaultMinGraceMs = 10'000;
constexpr uint32_t kDefaultMaxPauseMs = 30 * 60'000;

uint32_t OrDefault(uint32_t value, uint32_t instead) { return value == 0 ? instead : value; }

uint32_t Clamp(uint64_t steps) {
  return static_cast<uint32_t>(std::min<uint64_t>(steps, std::numeric_limits<uint32_t>::max()));
}

// Samples consumed before `step`, including those before the run's checkpoint.
uint64_t SamplesBefore(const v1::RunRecord& run, uint32_t step) {
  return PositionAt(DivisionOf(run), step, BatchOf(run.spec()));
}

// First step of the run at which an evaluation is due; `evaluation` in the unit of
// EvaluationInterval.
uint32_t StepOfEvaluation(const v1::RunRecord& run, uint32_t evaluation) {
  if (run.spec().evaluation().has_every_steps()) return evaluation;
  return StepAt(DivisionOf(run), uint64_t{evaluation} * run.train_samples(), BatchOf(run.spec()));
}

}  // namespace

uint32_t GroupsOf(const v1::RunSpec& spec) { return OrDefault(spec.cluster().groups(), 1); }

uint32_t RanksPerGroup(const v1::RunSpec& spec) {
  return OrDefault(spec.cluster().ranks_per_group(), 1);
}

uint32_t MinRanksPerGroup(const v1::RunSpec& spec) {
  return std::min(OrDefault(spec.cluster().min_ranks_per_group(), 1), RanksPerGroup(spec));
}

absl::Duration RejoinWait(const v1::RunSpec& spec) {
  const v1::Cluster& cluster = spec.cluster();
  return absl::Milliseconds(cluster.has_rejoin_wait_ms() ? cluster.rejoin_wait_ms()
                                                         : kDefaultRejoinWaitMs);
}

absl::Duration MinGrace(const v1::RunSpec& spec) {
  const v1::Averaging& averaging = spec.averaging();
  return absl::Milliseconds(averaging.has_min_grace_ms() ? averaging.min_grace_ms()
                                                         : kDefaultMinGraceMs);
}

absl::Duration MaxPause(const v1::RunSpec& spec) {
  const v1::Cluster& cluster = spec.cluster();
  return absl::Milliseconds(cluster.has_max_pause_ms() ? cluster.max_pause_ms()
                                                       : kDefaultMaxPauseMs);
}

uint32_t FirstStep(const v1::RunSpec& spec) { return spec.checkpoint().from_step(); }

uint32_t EvaluationInterval(const v1::RunSpec& spec) {
  const v1::Evaluation& evaluation = spec.evaluation();
  return OrDefault(
      evaluation.has_every_steps() ? evaluation.every_steps() : evaluation.every_epochs(), 1);
}

bool Averages(const v1::RunSpec& spec) { return spec.averaging().every_steps() > 0; }

bool NeedsVersions(const v1::RunSpec& spec) {
  const v1::Averaging& averaging = spec.averaging();
  return OuterOptimizerOf(averaging).has_value() || ExchangesUnits(averaging) ||
         averaging.screen().has_clip();
}

uint32_t MinAggregators(const v1::RunSpec& spec) {
  return std::max({1U, spec.cluster().aggregators(), spec.averaging().copies()});
}

bool IsLive(v1::RunState state) {
  return state == v1::RUN_STATE_QUEUED || state == v1::RUN_STATE_RUNNING ||
         state == v1::RUN_STATE_FINISHING || state == v1::RUN_STATE_PARKED;
}

v1::SampleDivision DivisionOf(const v1::RunRecord& run) {
  return run.has_division() ? run.division() : InitialDivision(run.spec());
}

uint32_t TotalSteps(const v1::RunRecord& run) {
  return TotalSteps(run.spec(), DivisionOf(run), run.train_samples());
}

double EpochAt(const v1::RunRecord& run, uint32_t step) {
  if (run.train_samples() == 0) return 0;
  return static_cast<double>(SamplesBefore(run, step)) / static_cast<double>(run.train_samples());
}

bool EvaluationDue(const v1::RunRecord& run, uint32_t step) {
  if (run.train_samples() == 0) return false;
  return step >= StepOfEvaluation(run, std::max(run.next_evaluation(), 1u));
}

uint32_t NextEvaluation(const v1::RunRecord& run, uint32_t step) {
  const uint64_t every = EvaluationInterval(run.spec());
  if (run.spec().evaluation().has_every_steps()) return Clamp((step / every + 1) * every);
  if (run.train_samples() == 0) return Clamp(every);
  const uint64_t done = SamplesBefore(run, step) / run.train_samples();
  return Clamp((done / every + 1) * every);
}

uint32_t BoundaryAfter(const v1::RunRecord& run, uint32_t step) {
  const uint32_t total = TotalSteps(run);
  uint32_t next = std::numeric_limits<uint32_t>::max();
  if (Averages(run.spec())) {
    next = Clamp(uint64_t{step} + StepsOfRound(run.spec().averaging()));
  } else if (run.train_samples() > 0) {
    next = std::max(step + 1, StepOfEvaluation(run, NextEvaluation(run, step)));
  }
  return total == 0 ? next : std::min(next, total);
}

uint32_t FragmentAfter(const v1::RunRecord& run, uint32_t version) {
  const uint32_t fragments = FragmentsOf(run.spec().averaging());
  if (fragments == 1) return 0;
  const bool last = version == run.version() && BoundaryAfter(run, run.step()) == TotalSteps(run);
  return last ? 0 : 1 + version % fragments;
}

bool TargetReached(const v1::RunRecord& run) {
  const float target = run.spec().stop().test_accuracy();
  // Compared as float, the type of the target: an accuracy of 0.91 must reach the target 0.91.
  return target > 0 && static_cast<float>(run.test().accuracy()) >= target;
}

bool AtEnd(const v1::RunRecord& run, uint32_t step) {
  const uint32_t total = TotalSteps(run);
  return (total > 0 && step >= total) || TargetReached(run);
}

float SecondsOrZero(float seconds) { return std::isfinite(seconds) ? std::max(0.0F, seconds) : 0; }

}  // namespace cadre
