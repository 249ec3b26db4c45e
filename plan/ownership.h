// The parts of the model that one rank holds and owns, bucket by bucket. ownership.cc explains
// them.
//
// Values and pure functions; thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/parameter_index.h"
#include "plan/plan.h"
#include "tensor/box.h"
#include "tensor/interval.h"

namespace cadre {

// The local part of a parameter in its bucket's buffer.
struct LocalParameter {
  // Position in the parameter index.
  int parameter = 0;
  // This part of the tensor, row-major in the buffer.
  Box box;
  // Its offset in the buffer.
  int64_t offset = 0;

  int64_t size() const { return box.shape().elements(); }
};

// Positions in the parameter order (model/parameter_index.h) that are contiguous in the buffer too,
// where they begin at `offset`. If a parameter is split along an inner dimension, its local part
// consists of one interval per row.
struct OwnedInterval {
  int parameter = 0;
  Interval positions;
  int64_t offset = 0;
};

// One bucket as one rank holds and owns it.
struct BucketOwnership {
  std::vector<LocalParameter> parameters;
  // Number of elements in the buffer.
  int64_t size = 0;
  // Borders of the slices: the peer with coordinate i over the bucket's owner_axes() owns
  // [borders[i], borders[i + 1]) of the buffer.
  std::vector<int64_t> borders;
  // The number of this rank's slice.
  int own_slice = 0;
  // The elements of this rank's slice, in buffer order.
  std::vector<OwnedInterval> owned;

  int64_t slice_begin() const { return borders[own_slice]; }
  int64_t slice_end() const { return borders[own_slice + 1]; }
  // The slice's part of a buffer of `size` elements.
  template <typename T>
  std::span<T> SliceOf(std::span<T> buffer) const {
    return buffer.subspan(slice_begin(), slice_end() - slice_begin());
  }
};

// The intervals of the parameter order that make up the local part, in buffer order.
std::vector<OwnedInterval> ContiguousIntervals(const ParameterIndex& index,
                                               const LocalParameter& local);

// One entry per bucket of the plan. Requires: CheckPlan is OK; 0 <= rank < plan.mesh.ranks().
std::vector<BucketOwnership> OwnershipOf(const Plan& plan, const ParameterIndex& index, int rank);

}  // namespace cadre
