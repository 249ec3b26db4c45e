// Checks of arguments, which every operation of every back end makes first: an operation's extents
// are consistent, and its spans have the sizes that the extents imply. A mismatch is a bug of the
// caller, so it ends the process.
//
// Thread-safe (pure functions).
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <utility>

#include "absl/strings/string_view.h"
#include "kernels/backend.h"

namespace cadre {

// Rows and columns of zeros that the outputs need around the input. `bottom` (`right`) is -n if no
// window reaches the last n rows (columns).
struct WindowPadding {
  int64_t top = 0, bottom = 0, left = 0, right = 0;
};

// All zero for a window without outputs or without input.
WindowPadding PaddingOf(const WindowDims& window);

// Numbers of elements of a layer's tensors: its input x, its output y and its parameters w and b.
struct LayerSizes {
  int64_t x = 0, w = 0, b = 0, y = 0;
};

// Requires: no negative extent; kernels, strides, dilation and groups >= 1; groups divides both
// channels; a pooling's dilation is 1.
LayerSizes SizesOf(const ConvolutionDims& dims);
LayerSizes SizesOf(const PoolingDims& dims);
// Requires: no negative extent.
LayerSizes SizesOf(const FullyConnectedDims& dims);

// Requires: no negative extent.
int64_t SizeOf(const RowsDims& dims);
// Requires: no negative extent; size >= 1.
int64_t SizeOf(const LrnDims& dims);

// The sizes of x = a, w = b and y = c. Requires: no negative extent.
LayerSizes SizesOf(const BatchedProductDims& dims);

struct EmbeddingSizes {
  int64_t ids = 0, w = 0, y = 0;
  // Minimum size of a table of positions.
  int64_t positions = 0;
};

// Requires: no negative extent.
EmbeddingSizes SizesOf(const EmbeddingDims& dims);

struct AttentionSizes {
  int64_t ids = 0, qkv = 0, context = 0, statistics = 0;
};

// Requires: no negative extent.
AttentionSizes SizesOf(const AttentionDims& dims);

// The distance between the rows of a matrix that has so many elements, as its rows may be padded
// (backend.h). Ends the process unless `elements` are whole rows of at least `columns`. `name`
// appears in the message.
int64_t PaddedRow(absl::string_view name, int64_t rows, int64_t columns, size_t elements);

// The checks below end the process unless every span has the size that the extents imply; `name`
// appears in the message. One function serves an operation's forward and backward, whose tensors
// have the same shapes, in all back ends.

void CheckSize(absl::string_view name, size_t actual, int64_t expected);
void CheckSizes(int64_t expected,
                std::initializer_list<std::pair<absl::string_view, size_t>> spans);
// The spans of an update, and that there are as many state tensors as the step has.
void CheckUpdate(const OptimizerStep& step, size_t g, size_t w, std::span<const FloatSpan> states);
// Tensors of a batch norm: those in `optional`, and `positive`, may be empty.
void CheckBatchNorm(const RowsDims& dims, std::initializer_list<size_t> tensors,
                    std::initializer_list<size_t> optional, size_t positive);
// `b` may be 0: no bias.
void CheckLayer(const LayerSizes& sizes, size_t x, size_t w, size_t b, size_t y);
// `argmax` is checked for max pooling only.
void CheckPooling(const PoolingDims& dims, size_t x, size_t y, size_t argmax);
// Also requires: divisor >= 1.
void CheckGlobalPooling(int64_t batch, int64_t positions, int64_t channels, int64_t divisor,
                        size_t x, size_t y);
// One value per channel in every span.
void CheckChannels(const RowsDims& dims, std::initializer_list<size_t> spans);
// `positions` is empty, or holds whole rows and at least those that `dims` needs.
void CheckEmbedding(const EmbeddingDims& dims, size_t ids, size_t w, size_t positions, size_t y);
void CheckAttention(const AttentionDims& dims, size_t ids, size_t qkv, size_t context,
                    size_t statistics);
// `previous` may be empty. `tensors` have an element per cell.
void CheckLstm(const RowsDims& dims, size_t previous, size_t gates,
               std::initializer_list<size_t> tensors);
// `dx` may be empty.
void CheckMultiply(const MultiplyDims& dims, size_t x, size_t factor, size_t y);
void CheckSampledScores(const RowsDims& dims, size_t ids, size_t offsets, size_t label_scores,
                        size_t scores, size_t y);
void CheckLoss(int64_t rows, int64_t classes, size_t x, size_t labels, size_t dx);

}  // namespace cadre
