// Measures contestants against one another: one size after the other, and in a size round after
// round, each contestant once in a round. What disturbs the machine for a while then disturbs all
// alike, and the ratio of their medians holds although neither number may.
//
// Thread-compatible.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/allreduce/crew.h"

namespace cadre::bench {

// One contestant and who carries it out.
struct Entrant {
  ContestantName name;
  Crew* crew = nullptr;
  // Among its crew's contestants.
  size_t number = 0;
};

struct Effort {
  // Of one contestant and size at most; a round is not begun beyond it, but one is always timed.
  int rounds = 11;
  double seconds = 2;
};

struct Measurement {
  // What it was carried out by, and more about it as JSON text (see Contestant).
  std::string algorithm;
  std::string explanation;
  // Wrong elements, over all ranks.
  int64_t errors = 0;
  // Of one all-reduce: until the last rank has it, the mean of a round's iterations; the median and
  // the least of the rounds.
  double seconds = 0;
  double min_seconds = 0;
  int rounds = 0;
  int iterations = 0;
};

// One for each entrant, in their order. Errors: what an entrant's ranks failed with.
absl::StatusOr<std::vector<Measurement>> Measure(const std::vector<Entrant>& entrants,
                                                 int64_t bytes, bool in_place,
                                                 const Effort& effort);

}  // namespace cadre::bench
