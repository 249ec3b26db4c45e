// Who takes part in a run of the benchmark, and the lines that come of it.
//
// A line is about a competitor, such as shared memory by ring or Gloo's best. A competitor has one
// contestant or several, of which the fastest at a size counts.
//
// Thread-safe (values and pure functions).
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/allreduce/player.h"
#include "bench/allreduce/referee.h"
#include "nlohmann/json.hpp"

namespace cadre::bench {

struct Competitor {
  // As asked for: "shm", "auto".
  ContestantName name;
  // Positions among Contest::contestants.
  std::vector<size_t> contestants;
};

struct Contest {
  std::vector<ContestantName> contestants;
  // A line each.
  std::vector<Competitor> competitors;
  // Positions of the contestants whose fastest is Gloo's, and of the plain copy; empty if not
  // compared with.
  std::vector<size_t> gloo;
  std::vector<size_t> socket;
};

struct ContestOptions {
  int ranks = 2;
  DType dtype = DType::kFloat32;
  // "shm", "tcp", "threads", "gloo", "socket".
  std::vector<std::string> transports;
  // "auto", "ring", "butterfly", "halving-doubling", "hierarchical".
  std::vector<std::string> algorithms;
  // "gloo", "socket".
  std::vector<std::string> compare;
};

// Errors: InvalidArgument naming what is unknown or cannot be; FailedPrecondition for Gloo where
// there is none.
absl::StatusOr<Contest> PlanContest(const ContestOptions& options);

// The line of one competitor. `measured`: of all contestants, in their order.
// bytes, seconds, min_seconds, algbw and busbw (10^9 bytes a second, as nccl-tests count), errors,
// transport, algorithm, chosen, ranks, in_place, dtype, rounds, iterations; and where they are
// known gloo_seconds, gloo_algorithm, ratio_to_gloo (how many times as fast), socket_seconds,
// share_of_socket, best_single and ratio_to_best (seconds over those of the best fixed algorithm on
// the same transport).
nlohmann::ordered_json Line(const Contest& contest, const Competitor& competitor,
                            const std::vector<Measurement>& measured, int ranks, DType dtype,
                            int64_t bytes, bool in_place);

}  // namespace cadre::bench
