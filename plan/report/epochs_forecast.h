// Forecast of the time to a target accuracy, by the predicted step and a table of epochs: whether
// the workers would reach the target sooner with a smaller batch and a split model (Pal et al.
// 2019; plan/cost/time_to_accuracy.h).
//
// Values and pure functions; thread-compatible.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "plan/cost/time_to_accuracy.h"
#include "plan/report/plan_question.h"
#include "tensor/mesh.h"

namespace cadre {

// The batch of `way.workers` workers, each worker's share split over `way.model_devices` ranks.
struct BatchChoice {
  DevicePlan way;
  int64_t batch = 1;
  Mesh mesh;
};

struct EpochsForecast {
  float target_accuracy = 0;
  // Samples per epoch.
  double samples = 0;
  // For the question's own batch. Nothing: the table does not cover it, or the target is not
  // reached; `note` states which.
  std::optional<double> epochs;
  std::optional<double> seconds;
  std::string note;
  // One choice for every number of workers that the table covers and that divides the group, if an
  // epoch has at least one step of its batch (`left_out` names batches without); the best of them.
  std::vector<BatchChoice> choices;
  std::optional<size_t> best;
  std::string left_out;
  // Time of pure data parallelism, where each worker has a batch of its own, divided by the best
  // choice's. Nothing: the table does not cover it.
  std::optional<double> gain;
  // The smallest number of workers (doubled from 2 up to the question's) from which on a split
  // model reaches the target sooner than data parallelism. Nothing: there is none within the table,
  // or the mesh is pinned.
  std::optional<int64_t> crossover;
};

// Requires: the request has `epochs` and `samples`. Errors: EpochsCurve::FromTable's.
absl::StatusOr<EpochsForecast> ForecastEpochs(const PlanQuestion& question, double step_seconds);

}  // namespace cadre
