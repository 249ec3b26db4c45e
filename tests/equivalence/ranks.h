// Runs the ranks of one group as threads and puts their slices together again.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/kernels.h"
#include "proto/cadre/v1/plan.pb.h"
#include "proto/cadre/v1/run.pb.h"
#include "worker/train/replica.h"

namespace cadre {

// A batch over the whole group.
struct WholeBatch {
  int64_t samples = 0;
  std::vector<float> images;
  std::vector<int32_t> labels;
};

using KernelsFactory = std::function<std::unique_ptr<Kernels>()>;

// Batch of `step`: images are normal, labels uniform, all a function of the step.
WholeBatch MakeBatch(const v1::RunSpec& spec, int64_t samples, int64_t step);

struct GroupResult {
  // The model in flat order.
  std::vector<float> weights;
  // Mean loss of each step.
  std::vector<double> losses;
  // Of an evaluation of the last batch after the last step.
  LossPart evaluation;
  // Digest as the group computes it; the same on every rank.
  uint64_t digest = 0;
};

// Trains `steps` steps of `spec` under `plan`, one thread per rank. Fails the test on any error.
GroupResult TrainGroup(const v1::RunSpec& spec, const v1::Plan& plan, int steps,
                       const KernelsFactory& kernels);

// Largest difference between two models.
double LargestDifference(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace cadre
