// What every back end checks first: that extents fit together, and spans fit the extents. A misfit
// is a bug of the caller, so it ends the process.
//
// Thread-safe (pure functions).
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "kernels/kernels.h"

namespace cadre {

// Elements of a layer's tensors: x and y its input and output, w and b its parameters.
struct LayerSizes {
  int64_t x = 0, w = 0, b = 0, y = 0;
};

// Windows along one dimension: (in + 2 * padding - kernel) / stride + 1, rounded down; 0 where the
// kernel is larger than the padded input.
int64_t WindowsAlong(int64_t in, int64_t kernel, int64_t stride, int64_t padding);

// Requires: no negative extent, kernel and stride >= 1, output extents that follow from the others.
LayerSizes SizesOf(const ConvolutionDims& dims);
LayerSizes SizesOf(const PoolingDims& dims);
LayerSizes SizesOf(const FullyConnectedDims& dims);

// Requires: actual == wanted.
void CheckSize(absl::string_view name, size_t actual, int64_t wanted);

}  // namespace cadre
