// Verifies and measures all variants at one size, on one rank. All ranks of all groups call it
// together.
//
// Thread-compatible.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/allreduce/algorithm.h"
#include "bench/allreduce/board.h"
#include "bench/harness.h"

namespace cadre::bench {

// The result for one variant at one size; equal on all ranks.
struct Measurement {
  // The algorithm that ran; for "auto", the one that was chosen.
  std::string algorithm;
  // Wrong elements, over all ranks.
  int64_t errors = 0;
  // An iteration is one all-reduce. It ends when the slowest rank has the sum.
  Timing timing;
};

class Runner {
 public:
  struct Options {
    DType dtype = DType::kFloat32;
    // The size of the largest task, and whether any task is out of place.
    int64_t max_bytes = 0;
    bool out_of_place = false;
    // Print AllReduce::explanation on stderr, once.
    bool profile = false;
    Effort effort;
  };
  struct Entry {
    Variant variant;
    // Null if the variant runs on another group; then this rank waits while it runs.
    std::unique_ptr<AllReduce> algorithm;
  };

  Runner(const Member& member, std::vector<Entry> entries, const Options& options);

  // One measurement for each entry, in order. Errors: those of the algorithms.
  absl::StatusOr<std::vector<Measurement>> Measure(int64_t bytes, bool in_place);

 private:
  absl::StatusOr<Measurement> Verify(const Entry& entry);
  absl::StatusOr<int64_t> CountWrong(AllReduce& algorithm);
  absl::StatusOr<double> Time(const Entry& entry, int iterations);
  absl::StatusOr<double> TimeOwn(AllReduce& algorithm, int iterations);

  Member member_;
  const std::vector<Entry> entries_;
  Options options_;
  std::vector<std::byte> data_;
  std::vector<std::byte> input_;
  Task task_;
};

}  // namespace cadre::bench
