// Operations that are matrix products and convolutions, with what own kernels add to them.
#include <algorithm>
#include <cmath>

#include "kernels/cuda/cuda_kernels_class.h"
#include "kernels/extents.h"

namespace cadre {
namespace {

// What libraries expect of where a matrix begins: for less they have slow algorithms, or none.
constexpr uintptr_t kAlignment = 16;

bool IsAligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % kAlignment == 0; }

bool Empty(const AttentionDims& d) {
  return d.batch == 0 || d.tokens == 0 || d.heads == 0 || d.head_features == 0;
}

// Where queries, keys and values of the first token begin.
enum class Part : int64_t { kQuery, kKey, kValue };

template <typename V>
V PartOf(const AttentionDims& d, V qkv, Part part) {
  return qkv.subspan(static_cast<size_t>(static_cast<int64_t>(part) * d.head_features));
}

// Matrices of [tokens, head_features] within qkv (parts), within the context, and matrices of
// [tokens, tokens].
struct Strides {
  int64_t row = 0, step = 0, outer = 0;
};

Strides PartStrides(const AttentionDims& d) {
  const int64_t row = d.heads * 3 * d.head_features;
  return {.row = row, .step = 3 * d.head_features, .outer = d.tokens * row};
}

Strides ContextStrides(const AttentionDims& d) {
  const int64_t row = d.heads * d.head_features;
  return {.row = row, .step = d.head_features, .outer = d.tokens * row};
}

Strides ScoreStrides(const AttentionDims& d) {
  return {.row = d.tokens, .step = d.tokens * d.tokens, .outer = d.heads * d.tokens * d.tokens};
}

// The product of two kinds of matrices into a third, for all heads of all samples.
MatrixProductDims ProductOf(const AttentionDims& d, int64_t n, int64_t k, const Strides& a,
                            const Strides& b, const Strides& c) {
  return {.m = d.tokens,
          .n = n,
          .k = k,
          .a_row = a.row,
          .b_row = b.row,
          .c_row = c.row,
          .batch = d.heads,
          .a_step = a.step,
          .b_step = b.step,
          .c_step = c.step,
          .outer = d.batch,
          .a_outer = a.outer,
          .b_outer = b.outer,
          .c_outer = c.outer};
}

float ScoreScale(const AttentionDims& d) {
  return static_cast<float>(1 /
                            std::sqrt(static_cast<double>(std::max<int64_t>(1, d.head_features))));
}

// What fused attention keeps for backward in the memory of the probabilities: its statistics, and
// behind them the context.
struct FusedMemory {
  size_t statistics = 0;     // floats
  size_t context_begin = 0;  // bytes
  size_t bytes = 0;
};

FusedMemory FusedMemoryOf(const AttentionDims& d, DType type) {
  FusedMemory memory;
  memory.statistics = static_cast<size_t>(d.batch * d.heads * d.tokens);
  memory.context_begin = (memory.statistics * sizeof(float) + 255) / 256 * 256;
  memory.bytes = memory.context_begin + static_cast<size_t>(SizesOf(d).context) * SizeOf(type);
  return memory;
}

}  // namespace

ConstValues CudaKernels::WeightsAs(DType type, std::span<const float> w) {
  ConstValues found = w;
  if (type != DType::kFloat32) {
    if (const Values copy = copies_.Find(w); !copy.empty()) found = copy;
  }
  if (found.type() == type && IsAligned(found.data())) return found;
  // Parameters lie in buckets without gaps, so whatever has an odd size shifts those behind it.
  const Values made(scratch_.Take(w.size() * SizeOf(type)), w.size(), type);
  if (made.data() != nullptr) Copy(found, made);
  return made;
}

void CudaKernels::BiasGradient(int64_t rows, ConstValues dy, std::span<float> db) {
  if (db.empty()) return;
  const auto scratch = scratch_.Take<double>(ColumnSumDoubles(static_cast<int64_t>(db.size()), 1));
  LaunchBiasGradient(device_, rows, dy, scratch.data(), db);
}

// --- convolution
// -----------------------------------------------------------------------------------

void CudaKernels::ConvolutionForward(const ConvolutionDims& dims, ConstValues x,
                                     std::span<const float> w, std::span<const float> b, Values y) {
  const LayerSizes sizes = SizesOf(dims);
  CheckSize("x", x.size(), sizes.x);
  CheckSize("w", w.size(), sizes.w);
  CheckSizeIfAny("b", b.size(), sizes.b);
  CheckSize("y", y.size(), sizes.y);
  if (y.empty()) return;
  if (x.empty() || w.empty()) {
    Zero(y);
  } else {
    math_->ConvolutionForward(dims, x, WeightsAs(x.type(), w), y);
  }
  if (!b.empty()) LaunchAddBias(device_, b, y);
}

void CudaKernels::ConvolutionBackwardData(const ConvolutionDims& dims, ConstValues dy,
                                          std::span<const float> w, Values dx) {
  const LayerSizes sizes = SizesOf(dims);
  CheckSize("dy", dy.size(), sizes.y);
  CheckSize("w", w.size(), sizes.w);
  CheckSize("dx", dx.size(), sizes.x);
  if (dx.empty()) return;
  if (dy.empty() || w.empty()) return Zero(dx);
  math_->ConvolutionBackwardData(dims, dy, WeightsAs(dy.type(), w), dx);
}

void CudaKernels::ConvolutionBackwardWeights(const ConvolutionDims& dims, ConstValues x,
                                             ConstValues dy, std::span<float> dw,
                                             std::span<float> db) {
  const LayerSizes sizes = SizesOf(dims);
  CheckSize("x", x.size(), sizes.x);
  CheckSize("dy", dy.size(), sizes.y);
  CheckSize("dw", dw.size(), sizes.w);
  CheckSizeIfAny("db", db.size(), sizes.b);
  const WindowDims& w = dims.window;
  BiasGradient(dims.batch * w.out_height * w.out_width, dy, db);
  if (dw.empty()) return;
  if (x.empty() || dy.empty()) return Zero(dw);
  math_->ConvolutionBackwardWeights(dims, x, dy, dw);
}

// --- fully connected
// -------------------------------------------------------------------------------

void CudaKernels::FullyConnectedForward(const FullyConnectedDims& dims, ConstValues x,
                                        std::span<const float> w, std::span<const float> b,
                                        Values y) {
  const LayerSizes sizes = SizesOf(dims);
  CheckSize("x", x.size(), sizes.x);
  CheckSize("w", w.size(), sizes.w);
  CheckSizeIfAny("b", b.size(), sizes.b);
  CheckSize("y", y.size(), sizes.y);
  if (y.empty()) return;
  if (dims.in == 0) {
    Zero(y);
    if (!b.empty()) LaunchAddBias(device_, b, y);
    return;
  }
  MatrixProductDims product{.m = dims.batch, .n = dims.out, .k = dims.in, .transpose_b = true};
  if (!b.empty()) product.epilogue = MatrixProductDims::Epilogue::kBias;
  math_->MatrixProduct(product, x, WeightsAs(x.type(), w), b, y);
}

void CudaKernels::FullyConnectedBackwardData(const FullyConnectedDims& dims, ConstValues dy,
                                             std::span<const float> w, Values dx) {
  const LayerSizes sizes = SizesOf(dims);
  CheckSize("dy", dy.size(), sizes.y);
  CheckSize("w", w.size(), sizes.w);
  CheckSize("dx", dx.size(), sizes.x);
  if (dx.empty()) return;
  if (dims.out == 0) return Zero(dx);
  math_->MatrixProduct({.m = dims.batch, .n = dims.in, .k = dims.out}, dy, WeightsAs(dy.type(), w),
                       {}, dx);
}

void CudaKernels::FullyConnectedBackwardWeights(const FullyConnectedDims& dims, ConstValues x,
                                                ConstValues dy, std::span<float> dw,
                                                std::span<float> db) {
  const LayerSizes sizes = SizesOf(dims);
  CheckSize("x", x.size(), sizes.x);
  CheckSize("dy", dy.size(), sizes.y);
  CheckSize("dw", dw.size(), sizes.w);
  CheckSizeIfAny("db", db.size(), sizes.b);
  BiasGradient(dims.batch, dy, db);
  if (dw.empty()) return;
  if (dims.batch == 0) return Zero(dw);
  math_->MatrixProduct({.m = dims.out, .n = dims.in, .k = dims.batch, .transpose_a = true}, dy, x,
                       {}, dw);
}

// --- attention
// -------------------------------------------------------------------------------------

bool CudaKernels::Fuses(const AttentionDims& dims, ConstValues qkv, ConstValues probabilities) {
  return IsAligned(probabilities.data()) &&
         FusedMemoryOf(dims, qkv.type()).bytes <= probabilities.bytes() &&
         math_->HasFusedAttention(dims, qkv.type());
}

void CudaKernels::AttentionForward(const AttentionDims& dims, ConstValues qkv, Values probabilities,
                                   Values context) {
  const AttentionSizes sizes = SizesOf(dims);
  CheckSize("qkv", qkv.size(), sizes.qkv);
  CheckSize("probabilities", probabilities.size(), sizes.probabilities);
  CheckSize("context", context.size(), sizes.context);
  if (Empty(dims)) return Zero(probabilities);
  if (Fuses(dims, qkv, probabilities)) {
    const FusedMemory memory = FusedMemoryOf(dims, qkv.type());
    auto* const bytes = static_cast<std::byte*>(probabilities.data());
    math_->FusedAttentionForward(dims, qkv, context,
                                 {reinterpret_cast<float*>(bytes), memory.statistics});
    return Copy(context, Values(bytes + memory.context_begin, context.size(), context.type()));
  }
  // Scores are fp32: rounded to bf16 they would be wrong by more than what the exponential of
  // rounded factors is.
  const bool wide = probabilities.type() == DType::kFloat32;
  const std::span<float> scores =
      wide ? probabilities.floats() : scratch_.Take<float>(probabilities.size());
  MatrixProductDims product = ProductOf(dims, dims.tokens, dims.head_features, PartStrides(dims),
                                        PartStrides(dims), ScoreStrides(dims));
  product.transpose_b = true;
  product.alpha = ScoreScale(dims);
  math_->MatrixProduct(product, PartOf(dims, qkv, Part::kQuery), PartOf(dims, qkv, Part::kKey), {},
                       scores);
  LaunchAttentionSoftmax(device_, dims, scores, probabilities);
  math_->MatrixProduct(ProductOf(dims, dims.head_features, dims.tokens, ScoreStrides(dims),
                                 PartStrides(dims), ContextStrides(dims)),
                       probabilities, PartOf(dims, qkv, Part::kValue), {}, context);
}

void CudaKernels::AttentionBackward(const AttentionDims& dims, ConstValues qkv,
                                    ConstValues probabilities, ConstValues dcontext, Values dqkv) {
  const AttentionSizes sizes = SizesOf(dims);
  CheckSize("qkv", qkv.size(), sizes.qkv);
  CheckSize("probabilities", probabilities.size(), sizes.probabilities);
  CheckSize("dcontext", dcontext.size(), sizes.context);
  CheckSize("dqkv", dqkv.size(), sizes.qkv);
  if (Empty(dims)) return;
  if (Fuses(dims, qkv, probabilities)) {
    const FusedMemory memory = FusedMemoryOf(dims, qkv.type());
    const auto* const bytes = static_cast<const std::byte*>(probabilities.data());
    return math_->FusedAttentionBackward(
        dims, qkv, ConstValues(bytes + memory.context_begin, dcontext.size(), dcontext.type()),
        dcontext, {reinterpret_cast<const float*>(bytes), memory.statistics}, dqkv);
  }
  // dprobabilities = dcontext values^T, then the softmax's gradient: in place as fp32, else beside.
  const bool wide = probabilities.type() == DType::kFloat32;
  const size_t count = probabilities.size();
  const std::span<float> dprobabilities =
      scratch_.Take<float>(wide ? count : count + (count + 1) / 2)
          .first(device_.failed() ? 0 : count);
  if (dprobabilities.empty()) return;
  const Values dscores(wide ? static_cast<void*>(dprobabilities.data())
                            : static_cast<void*>(dprobabilities.data() + count),
                       count, probabilities.type());
  MatrixProductDims product = ProductOf(dims, dims.tokens, dims.head_features, ContextStrides(dims),
                                        PartStrides(dims), ScoreStrides(dims));
  product.transpose_b = true;
  math_->MatrixProduct(product, dcontext, PartOf(dims, qkv, Part::kValue), {}, dprobabilities);
  LaunchAttentionSoftmaxBackward(device_, dims, ScoreScale(dims), probabilities, dprobabilities,
                                 dscores);
  math_->MatrixProduct(ProductOf(dims, dims.head_features, dims.tokens, ScoreStrides(dims),
                                 PartStrides(dims), PartStrides(dims)),
                       dscores, PartOf(dims, qkv, Part::kKey), {},
                       PartOf(dims, dqkv, Part::kQuery));
  product = ProductOf(dims, dims.head_features, dims.tokens, ScoreStrides(dims), PartStrides(dims),
                      PartStrides(dims));
  product.transpose_a = true;
  math_->MatrixProduct(product, dscores, PartOf(dims, qkv, Part::kQuery), {},
                       PartOf(dims, dqkv, Part::kKey));
  product = ProductOf(dims, dims.head_features, dims.tokens, ScoreStrides(dims),
                      ContextStrides(dims), PartStrides(dims));
  product.transpose_a = true;
  math_->MatrixProduct(product, probabilities, dcontext, {}, PartOf(dims, dqkv, Part::kValue));
}

}  // namespace cadre
