// Ownership of parameters in slices, as in ZeRO (Rajbhandari, Rasley, Ruwase, He, "ZeRO: memory
// optimizations toward training trillion parameter models", SC 2020): every element of the model
// has exactly one owner in the group, which updates it, holds its optimiser state, and exchanges it
// with the aggregators.
//
// Three coordinate systems are involved:
//
//   position        of an element in the parameter order, which covers the model (ParameterIndex)
//   buffer offset   in a bucket's buffer on one rank: the local parts of the bucket's parameters,
//                   in index order, each row-major
//   slice           the buffer is divided into near-equal intervals (PartBegin), one for each rank
//                   along the bucket's owner_axes(): those that hold the same local parts
//
// The peers of a reduce-scatter hold buffers of equal layout, so a slice is the same set of
// elements on all of them, although slices ignore the borders of parameters. Peers along `axes`
// hold different addends; peers along `replica_axes` hold equal sums, and only share the work of
// the update.
//
// Ranks that are not at the bucket's coordinates hold an empty buffer and own nothing of it.
//
// The local part of a parameter that is split along an inner dimension is not contiguous in the
// model. The positions of a slice are therefore a list of intervals, one for each contiguous part
// of a row.
//
// Cost: linear in parameters and in rows of split parameters. Invariants (ownership_test): over all
// ranks every element is owned once, and slices of a bucket differ by at most one element.
#include "plan/ownership.h"

#include <algorithm>

namespace cadre {
namespace {

LocalParameter Locate(const Plan& plan, const Parameter& parameter, int number, int rank,
                      int64_t offset) {
  const LayerLayouts& layer = plan.layers[parameter.layer];
  const Layout& layout = layer.parameters[parameter.number];
  return {.parameter = number,
          .box = LocalBox(parameter.shape, layout, plan.mesh, rank),
          .offset = offset};
}

// The number of consecutive elements of the local part that are consecutive in the tensor too: the
// product of the whole inner dimensions and of the local part's extent in the next dimension.
int64_t ContiguousLength(const Shape& whole, const Box& box) {
  const Shape part = box.shape();
  int64_t run = 1;
  for (int d = whole.rank() - 1; d >= 0; --d) {
    run *= part[d];
    if (part[d] != whole[d]) break;
  }
  return run;
}

// Position in the parameter order of element `i` of the local part, counted row-major.
int64_t PositionOf(const Parameter& parameter, const Box& box, int64_t i) {
  const Shape part = box.shape();
  int64_t position = parameter.offset;
  int64_t stride = 1;
  for (int d = part.rank() - 1; d >= 0; --d) {
    position += (box.begin[d] + i % part[d]) * stride;
    i /= part[d];
    stride *= parameter.shape[d];
  }
  return position;
}

// Appends the intervals of buffer positions [begin, end), which lie in the local part.
void AddIntervals(const Parameter& parameter, const LocalParameter& local, int64_t begin,
                  int64_t end, std::vector<OwnedInterval>& owned) {
  const int64_t length = ContiguousLength(parameter.shape, local.box);
  while (begin < end) {
    const int64_t in_part = begin - local.offset;
    const int64_t size = std::min(end - begin, length - in_part % length);
    const int64_t position = PositionOf(parameter, local.box, in_part);
    owned.push_back({local.parameter, {position, position + size}, begin});
    begin += size;
  }
}

void DivideSlices(const Plan& plan, const ParameterIndex& index, const Bucket& bucket, int rank,
                  BucketOwnership& ownership) {
  const std::vector<std::string> axes = bucket.owner_axes();
  const int peers = plan.mesh.Size(axes);
  for (int i = 0; i <= peers; ++i) {
    ownership.borders.push_back(PartBegin(ownership.size, i, peers));
  }
  ownership.own_slice = plan.mesh.Coordinate(rank, axes);
  for (const LocalParameter& local : ownership.parameters) {
    AddIntervals(index[local.parameter], local, std::max(ownership.slice_begin(), local.offset),
                 std::min(ownership.slice_end(), local.offset + local.size()), ownership.owned);
  }
}

}  // namespace

std::vector<OwnedInterval> ContiguousIntervals(const ParameterIndex& index,
                                               const LocalParameter& local) {
  std::vector<OwnedInterval> intervals;
  AddIntervals(index[local.parameter], local, local.offset, local.offset + local.size(), intervals);
  return intervals;
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
    DivideSlices(plan, index, bucket, rank, ownership);
    buckets.push_back(std::move(ownership));
  }
  return buckets;
}

}  // namespace cadre
