// Sizes of tensors and checks of arguments. Every operation of every back end calls these first,
// because with a wrong size it would read or write memory of other tensors, on a GPU without any
// message.
#include "kernels/extents.h"

#include <glog/logging.h>

#include <initializer_list>
#include <variant>

#include "absl/strings/str_cat.h"
#include "kernels/optimizer_step.h"

namespace cadre {
namespace {

void CheckNotNegative(std::initializer_list<int64_t> extents) {
  for (const int64_t extent : extents) CHECK_GE(extent, 0) << "extent";
}

void CheckWindow(const WindowDims& d) {
  CheckNotNegative({d.in_height, d.in_width, d.out_height, d.out_width, d.pad_top, d.pad_left});
  CHECK_GE(d.kernel_height, 1);
  CHECK_GE(d.kernel_width, 1);
  CHECK_GE(d.stride_height, 1);
  CHECK_GE(d.stride_width, 1);
  CHECK_GE(d.dilation, 1);
}

// The padding from the end of the input to the end of the last window.
int64_t FarPadding(int64_t in, int64_t out, int64_t reach, int64_t stride, int64_t near) {
  return (out - 1) * stride - near + reach - in;
}

}  // namespace

// Libraries take the padding at both ends as input and derive the number of outputs. Here the
// outputs are known (a rank may own fewer than fit), so the padding at the far end is derived
// instead.
WindowPadding PaddingOf(const WindowDims& d) {
  if (d.in_height * d.in_width == 0 || d.out_height * d.out_width == 0) return {};
  return {.top = d.pad_top,
          .bottom = FarPadding(d.in_height, d.out_height, d.dilation * (d.kernel_height - 1) + 1,
                               d.stride_height, d.pad_top),
          .left = d.pad_left,
          .right = FarPadding(d.in_width, d.out_width, d.dilation * (d.kernel_width - 1) + 1,
                              d.stride_width, d.pad_left)};
}

LayerSizes SizesOf(const ConvolutionDims& d) {
  CheckNotNegative({d.batch, d.in_channels, d.out_channels});
  CheckWindow(d.window);
  CHECK_GE(d.groups, 1);
  CHECK_EQ(d.in_channels % d.groups, 0) << "groups and in_channels";
  CHECK_EQ(d.out_channels % d.groups, 0) << "groups and out_channels";
  const WindowDims& w = d.window;
  return {
      .x = d.batch * w.in_height * w.in_width * d.in_channels,
      .w = d.out_channels * (d.in_channels / d.groups) * w.kernel_height * w.kernel_width,
      .b = d.out_channels,
      .y = d.batch * w.out_height * w.out_width * d.out_channels,
  };
}

LayerSizes SizesOf(const PoolingDims& d) {
  CheckNotNegative({d.batch, d.channels});
  CheckWindow(d.window);
  CHECK_EQ(d.window.dilation, 1) << "dilation of a pooling";
  return {.x = d.batch * d.window.in_height * d.window.in_width * d.channels,
          .y = d.batch * d.window.out_height * d.window.out_width * d.channels};
}

LayerSizes SizesOf(const FullyConnectedDims& d) {
  CheckNotNegative({d.batch, d.in, d.out});
  return {.x = d.batch * d.in, .w = d.out * d.in, .b = d.out, .y = d.batch * d.out};
}

int64_t PaddedRow(absl::string_view name, int64_t rows, int64_t columns, size_t elements) {
  CheckNotNegative({rows, columns});
  if (rows == 0) return columns;
  const int64_t row = static_cast<int64_t>(elements) / rows;
  CHECK_GE(row, columns) << name;
  CheckSize(name, elements, rows * row);
  return row;
}

LayerSizes SizesOf(const BatchedProductDims& d) {
  CheckNotNegative({d.batch, d.m, d.n, d.k});
  return {.x = d.batch * d.m * d.k, .w = d.batch * d.k * d.n, .y = d.batch * d.m * d.n};
}

int64_t SizeOf(const RowsDims& d) {
  CheckNotNegative({d.rows, d.channels});
  return d.rows * d.channels;
}

int64_t SizeOf(const LrnDims& d) {
  CheckNotNegative({d.rows, d.channels});
  CHECK_GE(d.size, 1);
  return d.rows * d.channels;
}

EmbeddingSizes SizesOf(const EmbeddingDims& d) {
  CheckNotNegative({d.batch, d.first_token, d.tokens, d.vocabulary, d.features});
  return {.ids = d.batch * d.tokens,
          .w = d.vocabulary * d.features,
          .y = d.batch * d.tokens * d.features,
          .positions = (d.first_token + d.tokens) * d.features};
}

AttentionSizes SizesOf(const AttentionDims& d) {
  CheckNotNegative({d.batch, d.tokens, d.heads, d.head_features});
  const int64_t context = d.batch * d.tokens * d.heads * d.head_features;
  return {.ids = d.padding_token == AttentionDims::kNoPadding ? 0 : d.batch * d.tokens,
          .qkv = 3 * context,
          .context = context,
          .statistics = d.batch * d.heads * d.tokens};
}

void CheckSize(absl::string_view name, size_t actual, int64_t expected) {
  const int64_t elements = actual;
  CHECK_EQ(elements, expected) << "elements of " << name;
}

void CheckSizes(int64_t expected,
                std::initializer_list<std::pair<absl::string_view, size_t>> spans) {
  for (const auto& [name, size] : spans) CheckSize(name, size, expected);
}

void CheckUpdate(const OptimizerStep& step, size_t g, size_t w, std::span<const FloatSpan> states) {
  const int count = std::visit([](const auto& rule) { return rule.kStates; }, step);
  CHECK_EQ(std::ssize(states), count) << "state tensors";
  CheckSize("g", g, w);
  for (size_t i = 0; i < states.size(); ++i) {
    CheckSize(absl::StrCat("state ", i), states[i].size(), w);
  }
}

void CheckBatchNorm(const RowsDims& dims, std::initializer_list<size_t> tensors,
                    std::initializer_list<size_t> optional, size_t positive) {
  for (const size_t size : tensors) CheckSize("a tensor of batch norm", size, SizeOf(dims));
  for (const size_t size : optional) {
    if (size > 0) CheckSize("a fused tensor of batch norm", size, SizeOf(dims));
  }
  if (positive > 0) CheckSize("positive", positive, PositiveWords(dims));
}

void CheckLayer(const LayerSizes& sizes, size_t x, size_t w, size_t b, size_t y) {
  CheckSize("x", x, sizes.x);
  CheckSize("w", w, sizes.w);
  if (b > 0) CheckSize("b", b, sizes.b);
  CheckSize("y", y, sizes.y);
}

void CheckPooling(const PoolingDims& dims, size_t x, size_t y, size_t argmax) {
  const LayerSizes sizes = SizesOf(dims);
  CheckSize("x", x, sizes.x);
  CheckSize("y", y, sizes.y);
  if (dims.kind == PoolKind::kMax) CheckSize("argmax", argmax, sizes.y);
}

void CheckGlobalPooling(int64_t batch, int64_t positions, int64_t channels, int64_t divisor,
                        size_t x, size_t y) {
  CheckSize("x", x, batch * positions * channels);
  CheckSize("y", y, batch * channels);
  CHECK_GE(divisor, 1);
}

void CheckChannels(const RowsDims& dims, std::initializer_list<size_t> spans) {
  for (const size_t size : spans) CheckSize("values by channel", size, dims.channels);
}

void CheckEmbedding(const EmbeddingDims& dims, size_t ids, size_t w, size_t positions, size_t y) {
  const EmbeddingSizes sizes = SizesOf(dims);
  CheckSize("ids", ids, sizes.ids);
  CheckSize("w", w, sizes.w);
  CheckSize("y", y, sizes.y);
  if (positions == 0) return;
  const int64_t elements = positions;
  CHECK_GT(dims.features, 0) << "features of positions";
  CHECK_EQ(elements % dims.features, 0) << "elements of positions";
  CHECK_GE(elements, sizes.positions) << "elements of positions";
}

void CheckAttention(const AttentionDims& dims, size_t ids, size_t qkv, size_t context,
                    size_t statistics) {
  const AttentionSizes sizes = SizesOf(dims);
  CheckSize("ids", ids, sizes.ids);
  CheckSize("qkv", qkv, sizes.qkv);
  CheckSize("context", context, sizes.context);
  CheckSize("statistics", statistics, sizes.statistics);
}

void CheckLstm(const RowsDims& dims, size_t previous, size_t gates,
               std::initializer_list<size_t> tensors) {
  const int64_t cells = SizeOf(dims);
  CheckSize("gates", gates, 4 * cells);
  if (previous > 0) CheckSize("previous", previous, cells);
  for (const size_t size : tensors) CheckSize("a tensor of cells", size, cells);
}

void CheckMultiply(const MultiplyDims& dims, size_t x, size_t factor, size_t y) {
  const int64_t factors = SizeOf(RowsDims{.rows = dims.batch, .channels = dims.channels});
  CheckSize("factor", factor, factors);
  CheckSizes(SizeOf(RowsDims{.rows = dims.rows, .channels = factors}), {{"x", x}, {"y", y}});
}

void CheckSampledScores(const RowsDims& dims, size_t ids, size_t offsets, size_t label_scores,
                        size_t scores, size_t y) {
  CheckSizes(dims.channels + dims.rows, {{"ids", ids}, {"offsets", offsets}});
  CheckSize("label_scores", label_scores, dims.rows);
  CheckSize("scores", scores, SizeOf(dims));
  CheckSize("y", y, SizeOf(dims) + dims.rows);
}

void CheckLoss(int64_t rows, int64_t classes, size_t x, size_t labels, size_t dx) {
  CheckSize("x", x, SizeOf(RowsDims{.rows = rows, .channels = classes}));
  CheckSize("labels", labels, rows);
  if (dx > 0) CheckSize("dx", dx, rows * classes);
}

}  // namespace cadre
