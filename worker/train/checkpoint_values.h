// What saving and loading share: owned values cut at the borders of tensors, and their digest.
//
// Thread-compatible, as the communicator.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "spec/parameter_index.h"
#include "worker/comm/communicator.h"
#include "worker/train/checkpoint.h"

namespace cadre {

// Elements [first, first + values.size()) of one tensor.
struct TensorPart {
  const Parameter* parameter = nullptr;
  int64_t first = 0;
  std::span<float> values;
};

// In the order of the list. Stops at the first error. Requires: the ranges lie in the index.
absl::Status ForEachTensorPart(const ParameterIndex& index, std::span<const OwnedValues> owned,
                               const std::function<absl::Status(const TensorPart&)>& use);

// A collective: the additive digests, over flat positions, of the group's weights and then of its
// states, these without running statistics. Every element is owned once, so the ranks' digests add
// up to the model's.
absl::StatusOr<std::vector<uint64_t>> GroupDigests(const ParameterIndex& index,
                                                   const CheckpointValues& values,
                                                   Communicator& group);

}  // namespace cadre
