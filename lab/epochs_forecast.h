// Forecasts the time to a target accuracy from the predicted step and a table of epochs, and
// whether the workers would reach the target sooner with a smaller batch and a split model (Pal et
// al. 2019; lab/time_to_accuracy.h).
//
// Values and pure functions; thread-compatible.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "lab/plan_question.h"
#include "lab/time_to_accuracy.h"
#include "tensor/mesh.h"

namespace cadre {

// One way to use the ranks: the batch of `way.workers` data-parallel workers, each of which is
// divided among `way.model_devices` ranks, by the fastest plan that the search finds.
struct BatchChoice {
  DevicePlan way;
  int64_t batch = 1;
  Mesh mesh;
  // Whether layers are placed on the ranks, as in a pipeline, instead of split over them.
  bool places_layers = false;
};

struct EpochsForecast {
  float target_accuracy = 0;
  // Samples per epoch.
  double samples = 0;
  // For the batch of the request. nullopt: the table does not cover this batch, or the target is
  // not reached with it; `note` states which.
  std::optional<double> epochs;
  std::optional<double> seconds;
  std::string note;
  // One choice for every number of workers that divides the ranks and that the table covers, if an
  // epoch has at least one step of this batch (`left_out` names batches without a step).
  std::vector<BatchChoice> choices;
  // Position of the fastest choice.
  std::optional<size_t> best;
  std::string left_out;
  // Time to the target with data parallelism alone (each rank is a worker and has the whole model),
  // divided by the time of the best choice. nullopt: the table does not cover data parallelism, or
  // it is not possible.
  std::optional<double> gain;
  // The smallest number of ranks (a power of two up to the requested number) from which on the best
  // choice splits the model. nullopt: there is none within the table, or the mesh is pinned.
  std::optional<int64_t> crossover;
};

// Requires: the request has `epochs` and `samples`. Errors: EpochsCurve::FromTable's.
absl::StatusOr<EpochsForecast> ForecastEpochs(const PlanQuestion& question, double step_seconds);

}  // namespace cadre
