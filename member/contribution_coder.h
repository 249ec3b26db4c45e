// Codes what a rank contributes, and keeps what the codes leave out, where the weights are: in the
// memory of its device (device_contribution.h). A rank without one copies its weights to host
// memory, where ShardExchange codes them.
//
// Used by the training thread. After an error of the device, calls have no effect.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "model/frame.h"
#include "tensor/interval.h"

namespace cadre {

class ContributionCoder {
 public:
  // The part of the model that the rank exchanges, cut into what it exchanges with each shard, and
  // how it is coded.
  struct Layout {
    Interval part;
    std::vector<std::vector<ExchangeUnit>> shards;
    Codec codec;
  };

  virtual ~ContributionCoder() = default;

  // A collective. The weights are those of the version that the rank has adopted: the next change
  // is relative to them.
  virtual absl::Status Adopt() = 0;
  // A collective. Computes the change of the weights since then, plus what is carried.
  virtual absl::Status TakeChange() = 0;
  // Appends the frame of the change for the shard. Blocks. Errors: as EncodeFrame. Requires:
  // TakeChange was called after Adopt.
  virtual absl::Status Encode(size_t shard, std::string* frame) = 0;
  // What is carried becomes `factor` times what the frame leaves out or, unless `left_out` is true,
  // times the change. Requires: Encode was called after Adopt.
  virtual void Carry(size_t shard, bool left_out, float factor) = 0;

  // What is carried, or of the last change: the change, or what the frames leave out of it.
  enum class Kind { kCarried, kChange, kLeftOut };
  // Copies values in order of positions; the change has statistics as they are. Blocks. Requires:
  // `values` has the size of the part.
  virtual absl::Status CopyOut(Kind kind, std::span<float> values) = 0;
  virtual void SetCarried(std::span<const float> values) = 0;

  // Bytes of the device's memory that the coder holds.
  virtual int64_t device_bytes() const = 0;
};

}  // namespace cadre
