#include "worker/train/checkpoint_values.h"

#include <algorithm>
#include <vector>

#include "base/digest.h"
#include "base/status.h"
#include "glog/logging.h"

namespace cadre {

namespace {

// `with_statistics`: those of batch norm count.
uint64_t DigestOf(const ParameterIndex& index, std::span<const OwnedValues> owned,
                  bool with_statistics) {
  uint64_t digest = 0;
  const absl::Status status = ForEachTensorPart(index, owned, [&](const TensorPart& part) {
    if (with_statistics || !IsStatistic(part.parameter->role)) {
      digest += Digest(part.values, static_cast<uint64_t>(part.parameter->offset + part.first));
    }
    return absl::OkStatus();
  });
  CHECK(status.ok());
  return digest;
}

}  // namespace

void AppendOwned(const BucketOwnership& bucket, std::span<float> slice,
                 std::vector<OwnedValues>* owned) {
  CHECK_EQ(static_cast<int64_t>(slice.size()), bucket.slice_end() - bucket.slice_begin());
  for (const OwnedPiece& piece : bucket.owned) {
    owned->push_back(
        {piece.flat, slice.subspan(static_cast<size_t>(piece.offset - bucket.slice_begin()),
                                   static_cast<size_t>(piece.flat.size()))});
  }
}

absl::Status ForEachTensorPart(const ParameterIndex& index, std::span<const OwnedValues> owned,
                               const std::function<absl::Status(const TensorPart&)>& use) {
  const std::vector<Parameter>& parameters = index.parameters();
  for (const OwnedValues& piece : owned) {
    auto it = std::partition_point(parameters.begin(), parameters.end(),
                                   [&](const Parameter& p) { return p.end() <= piece.flat.begin; });
    for (int64_t at = piece.flat.begin; at < piece.flat.end; ++it) {
      const int64_t end = std::min(piece.flat.end, it->end());
      CADRE_RETURN_IF_ERROR(
          use({.parameter = &*it,
               .first = at - it->offset,
               .values = piece.values.subspan(static_cast<size_t>(at - piece.flat.begin),
                                              static_cast<size_t>(end - at))}));
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
