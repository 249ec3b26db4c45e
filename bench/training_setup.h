// What programs that time training steps share: specs of the zoo, batches that lie in memory,
// medians.
//
// Thread-compatible.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/cadre/v1/run.pb.h"
#include "worker/train/replica.h"

namespace cadre {

// The work of a step does not depend on it, and one batch over and over would soon diverge.
inline constexpr float kBenchRate = 1e-6F;

struct BenchModel {
  // Folder of the zoo, and a model in it; or a *.textproto run spec.
  std::string zoo;
  std::string model;
  // Samples of a step, over all ranks.
  int batch = 1;
  int ranks = 1;
  int model_ranks = 1;
  int space_ranks = 1;
};
// One group, SGD with momentum 0.9. Errors: those of the spec's reader and validation.
absl::StatusOr<v1::RunSpec> BenchSpec(const BenchModel& model);

// Random inputs and labels of a rank's rows.
class RandomBatch {
 public:
  RandomBatch(const Replica& replica, int64_t samples);
  BatchView View(int64_t samples, int64_t step) const {
    return {samples, inputs_, labels_, step * samples};
  }

 private:
  std::vector<float> inputs_;
  std::vector<int32_t> labels_;
};

// Requires: at least one value.
double Median(std::vector<double> values);

}  // namespace cadre
