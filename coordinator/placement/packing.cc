#include "coordinator/placement/packing.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/placement/integer_programme.h"

namespace cadre {
namespace {

constexpr double kParts = 1e6;

std::vector<int> BySize(const PlacementProblem& problem) {
  std::vector<int> ops = problem.order;
  std::stable_sort(ops.begin(), ops.end(), [&](int a, int b) {
    return problem.op(a).memory_bytes > problem.op(b).memory_bytes;
  });
  return ops;
}

// Bytes; without a limit more than any operators need.
std::vector<int64_t> RoomOf(const PlacementProblem& problem) {
  std::vector<int64_t> room;
  for (const PlacementProblem::Device& device : problem.devices) {
    room.push_back(device.memory_bytes > 0 ? device.memory_bytes
                                           : std::numeric_limits<int64_t>::max());
  }
  return room;
}

// The first device with room for each in turn; empty: there is none for some.
std::vector<int> FirstFit(const PlacementProblem& problem, const std::vector<int>& by_size,
                          const std::vector<bool>& placed, std::vector<int64_t> room) {
  std::vector<int> packing(problem.ops.size(), -1);
  for (const int i : by_size) {
    if (placed[static_cast<size_t>(i)]) continue;
    const int64_t bytes = problem.op(i).memory_bytes;
    const auto device =
        std::find_if(room.begin(), room.end(), [&](int64_t free) { return free >= bytes; });
    if (device == room.end()) return {};
    *device -= bytes;
    packing[static_cast<size_t>(i)] = static_cast<int>(device - room.begin());
  }
  return packing;
}

absl::StatusOr<std::vector<int>> SolvePacking(const PlacementProblem& problem, double seconds) {
  const double part = MemoryPart(problem);
  IntegerProgramme programme;
  std::vector<IntegerProgramme::Terms> loads(problem.devices.size());
  for (const PlacementProblem::Operator& op : problem.ops) {
    IntegerProgramme::Terms one;
    for (size_t d = 0; d < problem.devices.size(); ++d) {
      const int placed = programme.AddBinary();
      one.push_back({placed, 1});
      loads[d].push_back({placed, std::ceil(static_cast<double>(op.memory_bytes) / part)});
    }
    programme.AddRow(one, '=', 1);
  }
  for (size_t d = 0; d < problem.devices.size(); ++d) {
    if (!problem.limited(static_cast<int>(d))) continue;
    programme.AddRow(loads[d], '<',
                     std::floor(static_cast<double>(problem.devices[d].memory_bytes) / part));
  }
  const IntegerProgramme::Answer answer = programme.Minimise({.seconds = seconds});
  if (answer.outcome == IntegerProgramme::Outcome::kInfeasible) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no placement fits: the operators can be spread over the devices in no way "
                     "that leaves each within its memory_bytes",
                     part > 1 ? absl::StrCat(" (counted in parts of ", part, " bytes)") : ""));
  }
  if (answer.values.empty()) {
    return absl::DeadlineExceededError(
        absl::StrCat("no placement that fits into memory was found in ", seconds,
                     " seconds; allow more, or give the devices more memory_bytes"));
  }
  std::vector<int> packing;
  for (size_t i = 0; i < problem.ops.size(); ++i) {
    const auto begin = answer.values.begin() + static_cast<ptrdiff_t>(i * problem.devices.size());
    const auto end = begin + static_cast<ptrdiff_t>(problem.devices.size());
    packing.push_back(static_cast<int>(std::max_element(begin, end) - begin));
  }
  return packing;
}

}  // namespace

double MemoryPart(const PlacementProblem& problem) {
  int64_t largest = 1;
  for (const auto& device : problem.devices) largest = std::max(largest, device.memory_bytes);
  return std::max(1.0, std::ceil(static_cast<double>(largest) / kParts));
}

absl::StatusOr<std::vector<int>> PackMemory(const PlacementProblem& problem, double seconds) {
  const std::vector<bool> none(problem.ops.size(), false);
  std::vector<int> packing = FirstFit(problem, BySize(problem), none, RoomOf(problem));
  if (!packing.empty()) return packing;
  return SolvePacking(problem, seconds);
}

MemoryReserve::MemoryReserve(const PlacementProblem& problem, std::vector<int> packing)
    : problem_(problem),
      by_size_(BySize(problem)),
      placed_(problem.ops.size(), false),
      packing_(std::move(packing)),
      room_(RoomOf(problem)),
      wanted_(problem.devices.size(), 0) {
  for (size_t i = 0; i < packing_.size(); ++i) {
    wanted_[static_cast<size_t>(packing_[i])] += problem.ops[i].memory_bytes;
  }
}

bool MemoryReserve::Fits(int device, int64_t bytes) const {
  return room_[static_cast<size_t>(device)] - wanted_[static_cast<size_t>(device)] >= bytes;
}

std::vector<int> MemoryReserve::Repacked(int op, int device) const {
  const int64_t bytes = problem_.op(op).memory_bytes;
  if (room_[static_cast<size_t>(device)] < bytes) return {};
  std::vector<bool> placed = placed_;
  placed[static_cast<size_t>(op)] = true;
  std::vector<int64_t> room = room_;
  room[static_cast<size_t>(device)] -= bytes;
  return FirstFit(problem_, by_size_, placed, std::move(room));
}

bool MemoryReserve::Allows(int op, int device) const {
  return packing_[static_cast<size_t>(op)] == device ||
         Fits(device, problem_.op(op).memory_bytes) || !Repacked(op, device).empty();
}

void MemoryReserve::Place(int op, int device) {
  const int64_t bytes = problem_.op(op).memory_bytes;
  int& packed = packing_[static_cast<size_t>(op)];
  if (packed == device || Fits(device, bytes)) {
    wanted_[static_cast<size_t>(packed)] -= bytes;
  } else {
    packing_ = Repacked(op, device);
    std::fill(wanted_.begin(), wanted_.end(), 0);
    for (size_t i = 0; i < packing_.size(); ++i) {
      if (packing_[i] >= 0)
        wanted_[static_cast<size_t>(packing_[i])] += problem_.ops[i].memory_bytes;
    }
  }
  packing_[static_cast<size_t>(op)] = device;
  placed_[static_cast<size_t>(op)] = true;
  room_[static_cast<size_t>(device)] -= bytes;
}

}  // namespace cadre
