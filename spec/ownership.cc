#include "spec/ownership.h"

#include <algorithm>

#include "glog/logging.h"

namespace cadre {
namespace {

const Layout& LayoutOf(const Plan& plan, const Parameter& parameter) {
  const LayerLayouts& layer = plan.layers[static_cast<size_t>(parameter.layer)];
  return layer.parameters[parameter.is_bias ? 1 : 0];
}

LocalParameter Locate(const Plan& plan, const ParameterIndex& index, int number, int rank,
                      int64_t offset) {
  const Parameter& parameter = index[number];
  LocalParameter local{.parameter = number, .offset = offset};
  local.box = LocalBox(parameter.shape, LayoutOf(plan, parameter), plan.mesh, rank);
  for (int d = 1; d < parameter.shape.rank(); ++d) {
    const auto dim = static_cast<size_t>(d);
    CHECK(local.box.begin[dim] == 0 && local.box.end[dim] == parameter.shape[d])
        << parameter.name << " is split along dimension " << d;
  }
  const int64_t row = parameter.shape.elements() / std::max<int64_t>(1, parameter.shape[0]);
  local.flat = {parameter.offset + local.box.begin[0] * row,
                parameter.offset + local.box.end[0] * row};
  return local;
}

void CutSlices(const Plan& plan, const Bucket& bucket, int rank, BucketOwnership& ownership) {
  const int peers = plan.mesh.Size(bucket.axes);
  for (int i = 0; i <= peers; ++i) {
    ownership.borders.push_back(PartBegin(ownership.size, i, peers));
  }
  ownership.mine = plan.mesh.Coordinate(rank, bucket.axes);
  for (const LocalParameter& local : ownership.parameters) {
    const int64_t begin = std::max(ownership.slice_begin(), local.offset);
    const int64_t end = std::min(ownership.slice_end(), local.offset + local.flat.size());
    if (begin >= end) continue;
    const int64_t flat = local.flat.begin + (begin - local.offset);
    ownership.owned.push_back({local.parameter, {flat, flat + (end - begin)}, begin});
  }
}

}  // namespace

std::vector<BucketOwnership> OwnershipOf(const Plan& plan, const ParameterIndex& index, int rank) {
  std::vector<BucketOwnership> buckets;
  for (const Bucket& bucket : plan.buckets) {
    BucketOwnership ownership;
    for (const int parameter : bucket.parameters) {
      ownership.parameters.push_back(Locate(plan, index, parameter, rank, ownership.size));
      ownership.size += ownership.parameters.back().flat.size();
    }
    CutSlices(plan, bucket, rank, ownership);
    buckets.push_back(std::move(ownership));
  }
  return buckets;
}

}  // namespace cadre
