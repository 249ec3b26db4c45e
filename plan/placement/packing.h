// Packing of operators into the memory of devices, without regard to time.
//
// Thread-compatible.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "plan/placement/placement_problem.h"

namespace cadre {

// The unit in which integer programs count memory: a millionth of the largest device, at least one
// byte. The operators' sizes are rounded up, so the solutions fit.
double MemoryPart(const PlacementProblem& problem);

// A device for every operator so that all fit: by first fit in decreasing size, and if that fails
// by an integer program within `seconds`. Errors: ResourceExhausted if there is none;
// DeadlineExceeded if none was found in time.
absl::StatusOr<std::vector<int>> PackMemory(const PlacementProblem& problem, double seconds);

// Places operators one by one so that the remaining ones always fit: it maintains a packing of
// them.
class MemoryReserve {
 public:
  // `packing` is a result of PackMemory. Borrows the problem.
  MemoryReserve(const PlacementProblem& problem, std::vector<int> packing);

  // Whether the remaining operators are known to fit if `op` is placed on `device`. True for at
  // least one device. Requires: `op` is not placed.
  bool Allows(int op, int device) const;
  // Requires: Allows.
  void Place(int op, int device);

 private:
  bool Fits(int device, int64_t bytes) const;
  // Another packing of the remaining operators; empty: first fit finds none.
  std::vector<int> Repacked(int op, int device) const;

  const PlacementProblem& problem_;
  // Operators by decreasing size.
  std::vector<int> by_size_;
  std::vector<bool> placed_;
  std::vector<int> packing_;
  // Memory left by placed operators; and the part of it that the packing of the others uses.
  std::vector<int64_t> room_;
  std::vector<int64_t> reserved_;
};

}  // namespace cadre
