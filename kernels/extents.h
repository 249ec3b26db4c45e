// What every back end checks first: that extents fit together, and spans fit the extents. A misfit
// is a bug of the caller, so it ends the process.
//
// Thread-safe (pure functions).
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "kernels/backend.h"

namespace cadre {

// Zeros that the outputs ask for around the input. A negative number at the far end: so many rows
// (columns) there that no window reaches.
struct WindowPadding {
  int64_t top = 0, bottom = 0, left = 0, right = 0;
};

// All zero for a window without outputs or without input.
WindowPadding PaddingOf(const WindowDims& window);

// Elements of a layer's tensors: x and y its input and output, w and b its parameters.
struct LayerSizes {
  int64_t x = 0, w = 0, b = 0, y = 0;
};

// Requires: no negative extent; kernels, stride, dilation and groups >= 1; groups divides both
// channels; a pooling's dilation is 1.
LayerSizes SizesOf(const ConvolutionDims& dims);
LayerSizes SizesOf(const PoolingDims& dims);
// Requires: no negative extent.
LayerSizes SizesOf(const FullyConnectedDims& dims);

// Requires: no negative extent.
int64_t SizeOf(const RowsDims& dims);
// Requires: also size >= 1.
int64_t SizeOf(const LrnDims& dims);

struct EmbeddingSizes {
  int64_t ids = 0, w = 0, y = 0;
  // The fewest elements that a table of positions may have.
  int64_t positions = 0;
};

// Requires: no negative extent.
EmbeddingSizes SizesOf(const EmbeddingDims& dims);

struct AttentionSizes {
  int64_t qkv = 0, probabilities = 0, context = 0;
};

// Requires: no negative extent.
AttentionSizes SizesOf(const AttentionDims& dims);

// Requires: actual == wanted.
void CheckSize(absl::string_view name, size_t actual, int64_t wanted);

// Requires: actual == 0 or actual == wanted.
void CheckSizeIfAny(absl::string_view name, size_t actual, int64_t wanted);

// Requires: actual == 0, or whole rows of positions and enough of them for `dims`.
void CheckPositions(absl::string_view name, size_t actual, const EmbeddingDims& dims);

}  // namespace cadre
