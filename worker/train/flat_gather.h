// Gathers the owned values of a group's ranks on rank 0, chunk by chunk, in parameter order (the
// fixed order of all elements of all parameters).
//
// Thread-compatible; borrows the communicator.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/communicator.h"
#include "member/owned.h"
#include "tensor/interval.h"

namespace cadre {

class FlatGather {
 public:
  // A collective. `mine`: what this rank owns, in any order. Errors: Internal, on all ranks, unless
  // the ranks' intervals partition [0, size).
  static absl::StatusOr<FlatGather> Make(int64_t size, std::span<const Owned> mine,
                                         Communicator& group);

  // A collective. `owned`: values for the positions passed to Make, in the same order. On rank 0
  // `whole` receives the values of the positions in `chunk`; on other ranks it may be empty.
  absl::Status Gather(Interval chunk, std::span<const Owned> owned, std::span<float> whole);

 private:
  FlatGather(std::span<const Owned> mine, Communicator& group);
  absl::Status ShareIntervals();
  absl::Status CheckCover(int64_t size) const;
  int64_t ElementsOf(int rank, Interval chunk) const;
  void Pack(Interval chunk, std::span<const Owned> owned, std::span<float> packed) const;
  void Unpack(Interval chunk, std::span<const float> packed, std::span<float> whole) const;

  Communicator* group_;
  // Indices of Make's `mine` without empty intervals, in parameter order.
  std::vector<size_t> order_;
  std::vector<Interval> mine_;
  // By rank, in parameter order; adjacent intervals are merged.
  std::vector<std::vector<Interval>> all_;
  std::vector<float> packed_;
};

}  // namespace cadre
