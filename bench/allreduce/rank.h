// What one rank of bench_allreduce does: it connects the fabrics, verifies and measures all
// variants at each size, and prints the lines if it is rank 0.
//
// Thread-compatible.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "bench/allreduce/board.h"
#include "bench/allreduce/comparison.h"
#include "bench/harness.h"

namespace cadre::bench {

struct Settings {
  ComparisonOptions comparison;
  // In bytes, ascending.
  std::vector<int64_t> sizes;
  // In the order in which they are measured; ends with false if any task is out of place.
  std::vector<bool> in_place;
  Effort effort;
  // TCP connections of a pair of ranks; 0: as many as a training group chooses.
  int connections = 0;
  // Print AllReduce::explanation on stderr, once.
  bool profile = false;
};

// All ranks call it together. `gloo_folder` is initially empty. Errors: those of connecting and
// measuring; DataLoss on the printing rank if a sum was wrong.
absl::Status RunRank(const Settings& settings, const Comparison& comparison,
                     const std::string& gloo_folder, const BoardRank& self);

}  // namespace cadre::bench
