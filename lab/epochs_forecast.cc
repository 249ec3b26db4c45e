// The rule of Pal et al. 2019 (lab/time_to_accuracy.h) for the planner's own predictions.
//
// P ranks can train as N data-parallel workers of M = P / N ranks each, for every N that divides P.
// N decides the batch, thus the epochs (by the table); N and M decide the best plan, thus the step
// (by a search with P ranks and that batch). The forecast takes the N with the minimum
//
//   floor(samples / batch) * epochs(N) * step(N, M)
//
// The paper splits a model over M devices and replicates the result N times. The search may use any
// mesh of P ranks for that batch, pipelines and placed layers included, so the step that it finds
// takes at most as long. It may also divide the samples of a smaller batch among more ranks; that
// is not a split model, so it does not count for the crossover. A batch larger than an epoch has no
// step and would win with zero seconds, so it is left out.
#include "lab/epochs_forecast.h"

#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "plan/cost/group_hybrid.h"
#include "plan/search/prediction.h"
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

bool SplitsModel(const Plan& plan) { return plan.mesh.Size(kDataAxis) < plan.mesh.ranks(); }

// The fastest plan for the batch of so many workers on so many ranks; nullopt: there is none.
std::optional<Candidate> FastestFor(const PlanQuestion& question, Strategy strategy, int64_t ranks,
                                    int64_t workers) {
  PlanProblem problem = question.problem;
  problem.ranks = ranks;
  problem.batch = workers * question.request.epochs->batch_per_worker();
  problem.strategy = strategy;
  absl::StatusOr<SearchResult> searched = Search(problem);
  if (!searched.ok()) return std::nullopt;
  return std::move(searched->best);
}

// The time to the target with data parallelism alone, whose batch is that of `way`.
std::optional<double> DataParallelSeconds(const PlanQuestion& question, const DevicePlan& way) {
  if (!way.splits_model) return way.seconds;
  if (!question.problem.pins.empty()) return std::nullopt;
  const auto plan = FastestFor(question, Strategy::kBatch, way.workers, way.workers);
  if (!plan) return std::nullopt;
  return way.seconds / way.step_seconds * plan->prediction.times.step();
}

void ForecastChoices(const PlanQuestion& question, const EpochsCurve& curve,
                     EpochsForecast& forecast) {
  const int64_t ranks = question.problem.ranks;
  const int64_t batch_per_worker = question.request.epochs->batch_per_worker();
  // By workers and devices: the plan that was found.
  std::map<std::pair<int64_t, int64_t>, Plan> plans;
  const auto step = [&](int64_t workers, int64_t devices) -> std::optional<HybridStep> {
    std::optional<Candidate> found =
        FastestFor(question, question.problem.strategy, workers * devices, workers);
    if (!found) return std::nullopt;
    const bool splits_model = SplitsModel(found->plan);
    plans[{workers, devices}] = std::move(found->plan);
    return HybridStep{.seconds = found->prediction.times.step(), .splits_model = splits_model};
  };
  const TrainingTimes times = {.epochs = &curve,
                               .samples = forecast.samples,
                               .batch_per_worker = batch_per_worker,
                               .step = step};
  const std::vector<DevicePlan> ways = DevicePlansFor(ranks, times);
  for (const DevicePlan& way : ways) {
    const Plan& plan = plans.at({way.workers, way.model_devices});
    forecast.choices.push_back({.way = way,
                                .batch = way.workers * batch_per_worker,
                                .mesh = plan.mesh,
                                .places_layers = PlacesLayers(plan)});
  }
  if (ways.empty()) return;
  forecast.best = FastestPlan(ways);
  // Ways are in order of workers, so each rank is a worker in the last one.
  if (ways.back().model_devices == 1) {
    if (const auto seconds = DataParallelSeconds(question, ways.back())) {
      forecast.gain = *seconds / ways[*forecast.best].seconds;
    }
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
