// Bin packing into devices of different sizes. First fit in order of decreasing size solves nearly
// all instances; the others are left to a solver, which may also prove that there is no packing.
//
// With MemoryReserve a scheduler can place operators in any order and never reaches a state in
// which the next operator fits nowhere. It reserves memory for a packing of the operators that are
// not placed yet. An operator may be placed on a device if it fits next to the reservations there,
// or if first fit finds another packing of the remaining operators. Its device in the current
// packing is always allowed, so there is always a device.
#include "plan/placement/packing.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace cadre {
namespace {

std::vector<int> BySize(const PlacementProblem& problem) {
  std::vector<int> ops = problem.order;
  std::stable_sort(ops.begin(), ops.end(), [&](int a, int b) {
    return problem.op(a).memory_bytes > problem.op(b).memory_bytes;
  });
  return ops;
}

// The memory of each device; a very large number if it has no limit.
std::vector<int64_t> RoomOf(const PlacementProblem& problem) {
  std::vector<int64_t> room;
  for (const PlacementProblem::Device& device : problem.devices) {
    room.push_back(device.memory_bytes > 0 ? device.memory_bytes
                                           : std::numeric_limits<int64_t>::max());
  }
  return room;
}

// The first device with room for each operator in turn; empty if some operator has none.
std::vector<int> FirstFit(const PlacementProblem& problem, const std::vector<int>& by_size,
                          const std::vector<bool>& placed, std::vector<int64_t> room) {
  std::vector<int> packing(problem.ops.size(), -1);
  for (const int i : by_size) {
    if (placed[i]) continue;
    const int64_t bytes = problem.op(i).memory_bytes;
    const auto device =
        std::find_if(room.begin(), room.end(), [&](int64_t free) { return free >= bytes; });
    if (device == room.end()) return {};
    *device -= bytes;
    packing[i] = device - room.begin();
  }
  return packing;
}

}  // namespace

absl::StatusOr<std::vector<int>> PackMemory(const PlacementProblem& problem,
                                            const PlacementSolver* solver) {
  const std::vector<bool> none(problem.ops.size(), false);
  std::vector<int> packing = FirstFit(problem, BySize(problem), none, RoomOf(problem));
  if (!packing.empty()) return packing;
  if (solver != nullptr) return solver->Pack(problem);
  return absl::DeadlineExceededError("first fit found no placement that fits into memory");
}

MemoryReserve::MemoryReserve(const PlacementProblem& problem, std::vector<int> packing)
    : problem_(problem),
      by_size_(BySize(problem)),
      placed_(problem.ops.size(), false),
      packing_(std::move(packing)),
      room_(RoomOf(problem)),
      reserved_(problem.devices.size(), 0) {
  for (size_t i = 0; i < packing_.size(); ++i) {
    reserved_[packing_[i]] += problem.ops[i].memory_bytes;
  }
}

bool MemoryReserve::Fits(int device, int64_t bytes) const {
  return room_[device] - reserved_[device] >= bytes;
}

std::vector<int> MemoryReserve::Repacked(int op, int device) const {
  const int64_t bytes = problem_.op(op).memory_bytes;
  if (room_[device] < bytes) return {};
  std::vector<bool> placed = placed_;
  placed[op] = true;
  std::vector<int64_t> room = room_;
  room[device] -= bytes;
  return FirstFit(problem_, by_size_, placed, std::move(room));
}

bool MemoryReserve::Allows(int op, int device) const {
  return packing_[op] == device || Fits(device, problem_.op(op).memory_bytes) ||
         !Repacked(op, device).empty();
}

void MemoryReserve::Place(int op, int device) {
  const int64_t bytes = problem_.op(op).memory_bytes;
  int& packed = packing_[op];
  if (packed == device || Fits(device, bytes)) {
    reserved_[packed] -= bytes;
  } else {
    packing_ = Repacked(op, device);
    std::fill(reserved_.begin(), reserved_.end(), 0);
    for (size_t i = 0; i < packing_.size(); ++i) {
      if (packing_[i] >= 0) reserved_[packing_[i]] += problem_.ops[i].memory_bytes;
    }
  }
  packing_[op] = device;
  placed_[op] = true;
  room_[device] -= bytes;
}

}  // namespace cadre
