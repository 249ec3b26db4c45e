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
#include <functional>
#include <map>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "plan/cost/group_hybrid.h"
#include "plan/search/search.h"

namespace cadre {
namespace {

// Finds the step time of `workers` workers of `devices` ranks each, and stores the plan's mesh.
class StepSearch {
 public:
  StepSearch(const PlanQuestion& question, int64_t batch_per_worker)
      : question_(question), batch_per_worker_(batch_per_worker) {}

  std::optional<double> operator()(int64_t workers, int64_t devices) {
    PlanProblem problem = question_.problem;
    problem.ranks = workers * devices;
    problem.batch = workers * batch_per_worker_;
    const absl::StatusOr<SearchResult> searched = Search(problem);
    if (!searched.ok()) return std::nullopt;
    meshes_[{workers, devices}] = searched->best.plan.mesh;
    return searched->best.prediction.times.step();
  }

  // Requires: the call for `way` returned a step.
  const Mesh& MeshOf(const DevicePlan& way) const {
    return meshes_.at({way.workers, way.model_devices});
  }

 private:
  const PlanQuestion& question_;
  const int64_t batch_per_worker_;
  std::map<std::pair<int64_t, int64_t>, Mesh> meshes_;
};

class Forecaster {
 public:
  Forecaster(const PlanQuestion& question, const EpochsCurve& curve)
      : question_(question),
        curve_(curve),
        batch_per_worker_(question.request.epochs->batch_per_worker()) {
    forecast_.target_accuracy = question.request.epochs->target_accuracy();
    forecast_.samples = *question.request.samples;
  }

  EpochsForecast Run(double step_seconds) {
    ForecastOwnBatch(step_seconds);
    ForecastChoices();
    forecast_.left_out = LeftOut();
    return std::move(forecast_);
  }

 private:
  double EpochSteps(double batch) const { return StepsPerEpoch(forecast_.samples, batch); }

  void ForecastOwnBatch(double step_seconds) {
    const double batch = question_.problem.batch;
    const double steps = EpochSteps(batch);
    const absl::StatusOr<double> epochs = curve_.At(batch / batch_per_worker_);
    if (!epochs.ok()) {
      forecast_.note = std::string(epochs.status().message());
    } else if (!std::isfinite(*epochs)) {
      forecast_.note = "a batch of this size did not reach the target";
    } else if (steps < 1) {
      forecast_.note = absl::StrFormat("an epoch of %.0f samples has no step of %.0f samples",
                                       forecast_.samples, batch);
    } else {
      forecast_.epochs = *epochs;
      forecast_.seconds = TimeToAccuracy(step_seconds, steps, *epochs);
    }
  }

  void ForecastChoices() {
    StepSearch steps(question_, batch_per_worker_);
    const TrainingTimes times = {.epochs = &curve_,
                                 .samples = forecast_.samples,
                                 .batch_per_worker = batch_per_worker_,
                                 .step_seconds = std::ref(steps)};
    const int64_t ranks = question_.problem.ranks;
    const std::vector<DevicePlan> ways = DevicePlansFor(ranks, times);
    for (const DevicePlan& way : ways) {
      forecast_.choices.push_back(
          {.way = way, .batch = way.workers * batch_per_worker_, .mesh = steps.MeshOf(way)});
    }
    if (ways.empty()) return;
    forecast_.best = FastestPlan(ways);
    // Ways are in order of workers, so pure data parallelism is last.
    if (ways.back().model_devices == 1) {
      forecast_.gain = ways.back().seconds / ways[*forecast_.best].seconds;
    }
    if (question_.problem.pins.mesh.empty()) forecast_.crossover = CrossoverDevices(ranks, times);
  }

  // Names the batches that the table covers but that are larger than an epoch; empty: none.
  std::string LeftOut() const {
    for (const int64_t workers : DivisorsOf(question_.problem.ranks)) {
      const double batch = workers * batch_per_worker_;
      if (!curve_.At(workers).ok() || EpochSteps(batch) >= 1) continue;
      return absl::StrFormat(
          "batches of %d or more workers are left out: an epoch of %.0f samples has no step of "
          "%.0f samples",
          workers, forecast_.samples, batch);
    }
    return "";
  }

  const PlanQuestion& question_;
  const EpochsCurve& curve_;
  const int64_t batch_per_worker_;
  EpochsForecast forecast_;
};

}  // namespace

absl::StatusOr<EpochsForecast> ForecastEpochs(const PlanQuestion& question, double step_seconds) {
  CADRE_ASSIGN_OR_RETURN(const EpochsCurve curve, EpochsCurve::FromTable(*question.request.epochs));
  return Forecaster(question, curve).Run(step_seconds);
}

}  // namespace cadre
