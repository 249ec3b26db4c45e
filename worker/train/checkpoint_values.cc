#include "worker/train/checkpoint_values.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "base/digest.h"
#include "base/status.h"
#include "glog/logging.h"

namespace cadre {

namespace {

// `with_statistics`: includes running statistics.
uint64_t DigestOf(const ParameterIndex& index, std::span<const Owned> owned, bool with_statistics) {
  uint64_t digest = 0;
  const absl::Status status = ForEachTensorPart(index, owned, [&](const TensorPart& part) {
    if (with_statistics || !IsStatistic(part.parameter->role)) {
      digest += Digest(part.values, part.parameter->offset + part.first);
    }
    return absl::OkStatus();
  });
  CHECK(status.ok());
  return digest;
}

}  // namespace

std::string FileIn(const std::string& folder, const char* name) {
  return (std::filesystem::path(folder) / name).string();
}

absl::Status ForEachTensorPart(const ParameterIndex& index, std::span<const Owned> owned,
                               const std::function<absl::Status(const TensorPart&)>& use) {
  const std::vector<Parameter>& parameters = index.parameters();
  for (const Owned& part : owned) {
    auto it = std::partition_point(parameters.begin(), parameters.end(), [&](const Parameter& p) {
      return p.end() <= part.positions.begin;
    });
    for (int64_t at = part.positions.begin; at < part.positions.end; ++it) {
      const int64_t end = std::min(part.positions.end, it->end());
      CADRE_RETURN_IF_ERROR(
          use({.parameter = &*it,
               .first = at - it->offset,
               .values = part.values.subspan(at - part.positions.begin, end - at)}));
      at = end;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<uint64_t>> GroupDigests(const ParameterIndex& index,
                                                   const CheckpointValues& values,
                                                   Communicator& group) {
  std::vector<uint64_t> digests = {DigestOf(index, values.weights, true)};
  for (const auto& state : values.states) digests.push_back(DigestOf(index, state, false));
  CADRE_RETURN_IF_ERROR(group.AllReduceSum(std::span<uint64_t>(digests)));
  return digests;
}

}  // namespace cadre
