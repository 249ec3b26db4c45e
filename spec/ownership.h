// What one rank holds and owns of the model, bucket by bucket.
//
// A rank keeps the local shards of a bucket's parameters one behind the other in one buffer, in
// index order. The ranks that hold the same shards (the peers along the bucket's `axes` and `same`,
// in that order) cut that buffer into near-equal slices (PartBegin); each owns one: it updates it,
// keeps its optimiser state, and exchanges it with the aggregators. Over all ranks of the group
// every element of the model is owned exactly once.
//
// A value; thread-safe once made.
#pragma once

#include <cstdint>
#include <vector>

#include "spec/parameter_index.h"
#include "spec/plan.h"
#include "tensor/box.h"

namespace cadre {

// A parameter's local shard in its bucket's buffer.
struct LocalParameter {
  // Position in the parameter index.
  int parameter = 0;
  // The part of the tensor that is here, row-major in the buffer.
  Box box;
  // Where it begins in the buffer.
  int64_t offset = 0;

  int64_t size() const { return box.shape().elements(); }
};

// Flat positions [flat.begin, flat.end) lie in the buffer from `offset` on. A shard that is split
// along an inner dimension has a piece for every run of its rows.
struct OwnedPiece {
  int parameter = 0;
  FlatRange flat;
  int64_t offset = 0;
};

struct BucketOwnership {
  std::vector<LocalParameter> parameters;
  // Elements of the buffer.
  int64_t size = 0;
  // Borders of the slices: the peer with coordinate i over `axes`, then `same`, owns
  // [borders[i], borders[i + 1]) of the buffer.
  std::vector<int64_t> borders;
  // Which of them is this rank's.
  int mine = 0;
  // This rank's slice by parameter, in buffer order.
  std::vector<OwnedPiece> owned;

  int64_t slice_begin() const { return borders[static_cast<size_t>(mine)]; }
  int64_t slice_end() const { return borders[static_cast<size_t>(mine) + 1]; }
};

// The runs of flat positions that make up a shard, in buffer order.
std::vector<OwnedPiece> RunsOf(const ParameterIndex& index, const LocalParameter& local);

// One entry per bucket of the plan. Requires: CheckPlan is OK; 0 <= rank < plan.mesh.ranks().
std::vector<BucketOwnership> OwnershipOf(const Plan& plan, const ParameterIndex& index, int rank);

}  // namespace cadre
