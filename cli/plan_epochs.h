// Time to a target: how long training takes by the predicted step and a table of epochs, and
// whether the workers would get there sooner with a smaller batch and the model split further (Pal
// et al. 2019; coordinator/cost/time_to_accuracy.h).
//
// Values and pure functions; thread-compatible.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/plan_answer.h"
#include "cli/plan_question.h"
#include "coordinator/cost/time_to_accuracy.h"
#include "proto/cadre/v1/profile.pb.h"
#include "tensor/mesh.h"

namespace cadre {

// All workers sharing the batch of so many.
struct BatchChoice {
  // As many workers' batches, each shared by so many of the question's workers.
  DevicePlan way;
  int64_t batch = 1;
  Mesh mesh;
};

struct TimeToTarget {
  v1::EpochsTable table;
  double samples = 0;
  // Of the question's own batch. Nothing: the table does not reach it, or the target is out of
  // reach; `note` says so.
  std::optional<double> epochs;
  std::optional<double> seconds;
  std::string note;
  // Every number of workers that the table knows and that the workers are a multiple of, as long as
  // a pass has a step of theirs (`left_out` says which have none); the best of them.
  std::vector<BatchChoice> choices;
  std::optional<size_t> best;
  std::string left_out;
  // How many times as long data parallelism takes, every worker having a batch of its own; nothing:
  // the table does not know it.
  std::optional<double> gain;
  // The least number of workers from which on a split model is sooner there than data parallelism,
  // doubled from 2 up to the question's; nothing: data parallelism pays as far as the table goes.
  // Not asked where the mesh is pinned.
  std::optional<int64_t> crossover;
};

// Of the options, or of the spec where it says so. Errors: InvalidArgument when nobody says.
absl::StatusOr<double> SamplesOfPass(const PlanQuestion& question);

// Reads the file that the options name. Errors: ReadEpochsTable's; InvalidArgument for a table that
// cannot be, or when nobody says how many samples a pass has.
absl::StatusOr<TimeToTarget> PlanTimeToTarget(const PlanQuestion& question, double step_seconds);

std::string TimeToTargetText(const TimeToTarget& target);
std::string TimeToTargetJson(const TimeToTarget& target);

}  // namespace cadre
