// Operators into the memory of devices, whatever that means for time.
//
// Thread-compatible.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/placement/placement_problem.h"

namespace cadre {

// Bytes in which integer programmes count memory: a millionth of the largest device, at least one.
// What operators need is rounded up, so whatever a programme finds fits.
double MemoryPart(const PlacementProblem& problem);

// A device for every operator, so that all fit: by first fit, the largest first, and where that
// finds none by an integer programme within `seconds`.
// Errors: ResourceExhausted when there is none; DeadlineExceeded when none was found in time.
absl::StatusOr<std::vector<int>> PackMemory(const PlacementProblem& problem, double seconds);

// Lets operators be placed one by one, and never into a corner: a packing of those still to come
// stands by.
class MemoryReserve {
 public:
  // `packing` is one of PackMemory. Borrows the problem.
  MemoryReserve(const PlacementProblem& problem, std::vector<int> packing);

  // Whether all others still fit if the operator is placed there; when in doubt no. Always yes for
  // one device at least. Requires: not placed yet.
  bool Allows(int op, int device) const;
  // Requires: Allows.
  void Place(int op, int device);

 private:
  bool Fits(int device, int64_t bytes) const;
  // Another packing for those that are not placed; empty: first fit finds none.
  std::vector<int> Repacked(int op, int device) const;

  const PlacementProblem& problem_;
  // The largest first.
  std::vector<int> by_size_;
  std::vector<bool> placed_;
  std::vector<int> packing_;
  // What those that are placed leave; and what the packing wants of it.
  std::vector<int64_t> room_;
  std::vector<int64_t> wanted_;
};

}  // namespace cadre
