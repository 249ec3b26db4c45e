#include "spec/ownership.h"

#include <algorithm>

namespace cadre {
namespace {

LocalParameter Locate(const Plan& plan, const Parameter& parameter, int number, int rank,
                      int64_t offset) {
  const LayerLayouts& layer = plan.layers[static_cast<size_t>(parameter.layer)];
  const Layout& layout = layer.parameters[static_cast<size_t>(parameter.number)];
  return {.parameter = number,
          .box = LocalBox(parameter.shape, layout, plan.mesh, rank),
          .offset = offset};
}

// Elements of the shard that lie one behind the other in the tensor too: those of the inner
// dimensions that are whole, and of the part of the next one.
int64_t RunLength(const Shape& whole, const Box& box) {
  const Shape part = box.shape();
  int64_t run = 1;
  for (int d = whole.rank() - 1; d >= 0; --d) {
    run *= part[d];
    if (part[d] != whole[d]) break;
  }
  return run;
}

// Flat position of element `i` of the shard, counted row-major.
int64_t FlatPosition(const Parameter& parameter, const Box& box, int64_t i) {
  const Shape part = box.shape();
  int64_t position = parameter.offset;
  int64_t stride = 1;
  for (int d = part.rank() - 1; d >= 0; --d) {
    position += (box.begin[static_cast<size_t>(d)] + i % part[d]) * stride;
    i /= part[d];
    stride *= parameter.shape[d];
  }
  return position;
}

// The pieces of buffer positions [begin, end), which lie in the shard.
void AddPieces(const Parameter& parameter, const LocalParameter& local, int64_t begin, int64_t end,
               std::vector<OwnedPiece>& owned) {
  const int64_t run = RunLength(parameter.shape, local.box);
  while (begin < end) {
    const int64_t in_shard = begin - local.offset;
    const int64_t size = std::min(end - begin, run - in_shard % run);
    const int64_t flat = FlatPosition(parameter, local.box, in_shard);
    owned.push_back({local.parameter, {flat, flat + size}, begin});
    begin += size;
  }
}

void CutSlices(const Plan& plan, const ParameterIndex& index, const Bucket& bucket, int rank,
               BucketOwnership& ownership) {
  std::vector<std::string> axes = bucket.axes;
  axes.insert(axes.end(), bucket.same.begin(), bucket.same.end());
  const int peers = plan.mesh.Size(axes);
  for (int i = 0; i <= peers; ++i) {
    ownership.borders.push_back(PartBegin(ownership.size, i, peers));
  }
  ownership.mine = plan.mesh.Coordinate(rank, axes);
  for (const LocalParameter& local : ownership.parameters) {
    AddPieces(index[local.parameter], local, std::max(ownership.slice_begin(), local.offset),
              std::min(ownership.slice_end(), local.offset + local.size()), ownership.owned);
  }
}

}  // namespace

std::vector<OwnedPiece> RunsOf(const ParameterIndex& index, const LocalParameter& local) {
  std::vector<OwnedPiece> runs;
  AddPieces(index[local.parameter], local, local.offset, local.offset + local.size(), runs);
  return runs;
}

std::vector<BucketOwnership> OwnershipOf(const Plan& plan, const ParameterIndex& index, int rank) {
  std::vector<BucketOwnership> buckets;
  for (const Bucket& bucket : plan.buckets) {
    BucketOwnership ownership;
    for (const int parameter : bucket.parameters) {
      ownership.parameters.push_back(
          Locate(plan, index[parameter], parameter, rank, ownership.size));
      ownership.size += ownership.parameters.back().size();
    }
    CutSlices(plan, index, bucket, rank, ownership);
    buckets.push_back(std::move(ownership));
  }
  return buckets;
}

}  // namespace cadre
