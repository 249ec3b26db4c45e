// The rule of Pal et al. 2019 (plan/cost/time_to_accuracy.h) for the planner's own predictions.
//
// P ranks can train as N data-parallel workers of M = P / N ranks each, for every N that divides P.
// N decides the batch, thus the epochs (by the table); N and M decide the best plan, thus the step
// (by a search with P ranks and that batch). The forecast takes the N with the minimum
//
//   floor(samples / batch) * epochs(N) * step(N, M)
//
// The paper splits a model over M devices and replicates the result N times. The search may use any
// mesh of P ranks for that batch, so the step that it finds takes at most as long. A batch larger
// than an epoch has no step and would win with zero seconds, so it is left out.
#include "plan/report/epochs_forecast.h"

#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "plan/cost/group_hybrid.h"
#include "plan/search/search.h"

namespace cadre {
namespace {

void ForecastOwnBatch(const PlanQuestion& question, const EpochsCurve& curve, double step_seconds,
                      EpochsForecast& forecast) {
  const double batch = question.problem.batch;
  const double steps = StepsPerEpoch(forecast.samples, batch);
  const absl::StatusOr<double> epochs =
      curve.At(batch / question.request.epochs->batch_per_worker());
  if (!epochs.ok()) {
    forecast.note = std::string(epochs.status().message());
  } else if (!std::isfinite(*epochs)) {
    forecast.note = "a batch of this size did not reach the target";
  } else if (steps < 1) {
    forecast.note = absl::StrFormat("an epoch of %.0f samples has no step of %.0f samples",
                                    forecast.samples, batch);
  } else {
    forecast.epochs = *epochs;
    forecast.seconds = TimeToAccuracy(step_seconds, steps, *epochs);
  }
}

void ForecastChoices(const PlanQuestion& question, const EpochsCurve& curve,
                     EpochsForecast& forecast) {
  const int64_t ranks = question.problem.ranks;
  const int64_t batch_per_worker = question.request.epochs->batch_per_worker();
  // By workers and devices: the mesh of the plan that was found.
  std::map<std::pair<int64_t, int64_t>, Mesh> meshes;
  const auto step_seconds = [&](int64_t workers, int64_t devices) -> std::optional<double> {
    PlanProblem problem = question.problem;
    problem.ranks = workers * devices;
    problem.batch = workers * batch_per_worker;
    const absl::StatusOr<SearchResult> searched = Search(problem);
    if (!searched.ok()) return std::nullopt;
    meshes[{workers, devices}] = searched->best.plan.mesh;
    return searched->best.prediction.times.step();
  };
  const TrainingTimes times = {.epochs = &curve,
                               .samples = forecast.samples,
                               .batch_per_worker = batch_per_worker,
                               .step_seconds = step_seconds};
  const std::vector<DevicePlan> ways = DevicePlansFor(ranks, times);
  for (const DevicePlan& way : ways) {
    forecast.choices.push_back({.way = way,
                                .batch = way.workers * batch_per_worker,
                                .mesh = meshes.at({way.workers, way.model_devices})});
  }
  if (ways.empty()) return;
  forecast.best = FastestPlan(ways);
  // Ways are in order of workers, so pure data parallelism is last.
  if (ways.back().model_devices == 1) {
    forecast.gain = ways.back().seconds / ways[*forecast.best].seconds;
  }
  if (question.problem.pins.mesh.empty()) forecast.crossover = CrossoverDevices(ranks, times);
}

// Names the batches that the table covers but that are larger than an epoch; empty: none.
std::string LeftOut(const PlanQuestion& question, const EpochsCurve& curve, double samples) {
  for (const int64_t workers : DivisorsOf(question.problem.ranks)) {
    const double batch = workers * question.request.epochs->batch_per_worker();
    if (!curve.At(workers).ok() || StepsPerEpoch(samples, batch) >= 1) continue;
    return absl::StrFormat(
        "batches of %d or more workers are left out: an epoch of %.0f samples has no step of "
        "%.0f samples",
        workers, samples, batch);
  }
  return "";
}

}  // namespace

absl::StatusOr<EpochsForecast> ForecastEpochs(const PlanQuestion& question, double step_seconds) {
  CADRE_ASSIGN_OR_RETURN(const EpochsCurve curve, EpochsCurve::FromTable(*question.request.epochs));
  EpochsForecast forecast{.target_accuracy = question.request.epochs->target_accuracy(),
                          .samples = *question.request.samples};
  ForecastOwnBatch(question, curve, step_seconds, forecast);
  ForecastChoices(question, curve, forecast);
  forecast.left_out = LeftOut(question, curve, forecast.samples);
  return forecast;
}

}  // namespace cadre
