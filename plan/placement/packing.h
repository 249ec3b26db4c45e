// Packing of operators into the memory of devices, without regard to time.
//
// Thread-compatible.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "plan/placement/placement_solver.h"

namespace cadre {

// Returns a device for every operator so that all operators fit: by first fit in order of
// decreasing size or, if this fails, by `solver` (null: none). Errors: ResourceExhausted if there
// is no packing; DeadlineExceeded if none was found in time.
absl::StatusOr<std::vector<int>> PackMemory(const PlacementProblem& problem,
                                            const PlacementSolver* solver);

// Maintains a packing of the operators that are not placed yet, so that operators can be placed one
// by one and the remaining ones always fit.
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
  // Another packing of the remaining operators; empty if first fit finds none.
  std::vector<int> Repacked(int op, int device) const;

  const PlacementProblem& problem_;
  // Operators by decreasing size.
  std::vector<int> by_size_;
  std::vector<bool> placed_;
  std::vector<int> packing_;
  // By device: memory that placed operators leave free; and the part of it that the packing of the
  // remaining operators uses.
  std::vector<int64_t> room_;
  std::vector<int64_t> reserved_;
};

}  // namespace cadre
