// Shared by saving and loading: owned values split at the borders of tensors, and their digests.
//
// Thread-compatible, as the communicator.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/parameter_index.h"
#include "worker/comm/communicator.h"
#include "worker/train/checkpoint.h"

namespace cadre {

// The path of a file of the checkpoint in `folder`.
std::string FileIn(const std::string& folder, const char* name);

// Elements [first, first + values.size()) of one tensor.
struct TensorPart {
  const Parameter* parameter = nullptr;
  int64_t first = 0;
  std::span<float> values;
};

// Calls `use` in the order of the list, until the first error. Requires: the intervals lie in the
// index.
absl::Status ForEachTensorPart(const ParameterIndex& index, std::span<const Owned> owned,
                               const std::function<absl::Status(const TensorPart&)>& use);

// A collective. Returns the additive digests of the group's weights and then of its states, the
// latter without running statistics. Every element is owned once, so the ranks' digests add up to
// those of the model.
absl::StatusOr<std::vector<uint64_t>> GroupDigests(const ParameterIndex& index,
                                                   const CheckpointValues& values,
                                                   Communicator& group);

}  // namespace cadre
