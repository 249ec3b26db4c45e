// Brings what the ranks of a group own of the flat order together on rank 0, chunk by chunk.
//
// A value of a rank travels once around the ring (an all-gather), which takes no longer than rank
// 0's own link takes to receive it. Thread-compatible; borrows the communicator.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "spec/parameter_index.h"
#include "worker/comm/communicator.h"

namespace cadre {

class FlatGather {
 public:
  // A collective. `mine`: what this rank owns, in any order. Errors: Internal, on all ranks, unless
  // the ranks' ranges make up [0, size) without overlap.
  static absl::StatusOr<FlatGather> Make(int64_t size, std::span<const FlatRange> mine,
                                         Communicator& group);

  // A collective. `values[i]`: where the values of mine[i] are. On rank 0 `whole` gets those of
  // positions [chunk.begin, chunk.end); elsewhere it may be empty.
  absl::Status Gather(FlatRange chunk, std::span<const float* const> values,
                      std::span<float> whole);

 private:
  struct Piece {
    FlatRange flat;
    size_t number = 0;  // in `mine`
  };
  FlatGather(std::span<const FlatRange> mine, Communicator& group);
  absl::Status ShareRanges();
  absl::Status CheckCover(int64_t size) const;
  int64_t ElementsOf(int rank, FlatRange chunk) const;
  void Pack(FlatRange chunk, std::span<const float* const> values, std::span<float> packed) const;
  void Unpack(FlatRange chunk, std::span<const float> packed, std::span<float> whole) const;

  Communicator* group_;
  // In flat order.
  std::vector<Piece> mine_;
  // By rank, in flat order; touching ranges are one.
  std::vector<std::vector<FlatRange>> all_;
  std::vector<float> packed_;
};

}  // namespace cadre
