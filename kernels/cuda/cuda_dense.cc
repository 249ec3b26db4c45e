// Dense operations: matrix products, convolutions and attention by libraries (dense_math.h), with
// own kernels for what libraries lack (biases, their gradients, softmax).
//
// Weights. Under bf16 a product reads the parameter's bf16 copy (weight_copies.h). Parameters lie
// in buckets without gaps, so that one of odd size misaligns those behind it; libraries have slow
// algorithms, or none, for addresses that are not multiples of 16 bytes, so such weights are copied
// to scratch memory first.
//
// Attention. The fused form never stores the [tokens, tokens] probabilities. The interface has
// memory for them, which then holds what fused backward needs: one fp32 statistic per row and a
// copy of the context. Without the fused form, scores are computed by a strided batched product in
// fp32 (rounded to bf16 their error would exceed that of the exponentials of rounded factors),
// softmax converts them, and backward applies the softmax's gradient between products.
#include <algorithm>
#include <cmath>

#include "kernels/cuda/cuda_families.h"
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
  return qkv.subspan(static_cast<int64_t>(part) * d.head_features);
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
  memory.statistics = d.batch * d.heads * d.tokens;
  memory.context_begin = (memory.statistics * sizeof(float) + 255) / 256 * 256;
  memory.bytes = memory.context_begin + static_cast<size_t>(SizesOf(d).context) * SizeOf(type);
  return memory;
}

}  // namespace

ConstValues CudaContext::WeightsAs(DType type, std::span<const float> w) {
  ConstValues found = w;
  if (type != DType::kFloat32) {
    if (const Values copy = copies.Find(w); !copy.empty()) found = copy;
  }
  if (found.type() == type && IsAligned(found.data())) return found;
  // Parameters lie in buckets without gaps, so whatever has an odd size shifts those behind it.
  const Values made(scratch.Take(w.size() * SizeOf(type)), w.size(), type);
  if (made.data() != nullptr) Copy(found, made);
  return made;
}

void CudaContext::BiasGradient(int64_t rows, ConstValues dy, std::span<float> db) {
  if (db.empty()) return;
  const auto sums = scratch.Take<double>(ColumnSumDoubles(std::ssize(db), 1));
  LaunchBiasGradient(device, rows, dy, sums.data(), db);
}

// --- convolution ---------------------------------------------------------------------------------

void CudaWindow::ConvolutionForward(const ConvolutionDims& dims, ConstValues x,
                                    std::span<const float> w, std::span<const float> b, Values y) {
  const LayerSizes sizes = SizesOf(dims);
  CheckSize("x", x.size(), sizes.x);
  CheckSize("w", w.size(), sizes.w);
  CheckSizeIfAny("b", b.size(), sizes.b);
  CheckSize("y", y.size(), sizes.y);
  if (y.empty()) return;
  if (x.empty() || w.empty()) {
    cuda_.Zero(y);
  } else {
    cuda_.math->ConvolutionForward(dims, x, cuda_.WeightsAs(x.type(), w), y);
  }
  if (!b.empty()) LaunchAddBias(cuda_.device, b, y);
}

void CudaWindow::ConvolutionBackwardData(const ConvolutionDims& dims, ConstValues dy,
                                         std::span<const float> w, Values dx) {
  const LayerSizes sizes = SizesOf(dims);
  CheckSize("dy", dy.size(), sizes.y);
  CheckSize("w", w.size(), sizes.w);
  CheckSize("dx", dx.size(), sizes.x);
  if (dx.empty()) return;
  if (dy.empty() || w.empty()) return cuda_.Zero(dx);
  cuda_.math->ConvolutionBackwardData(dims, dy, cuda_.WeightsAs(dy.type(), w), dx);
}

void CudaWindow::ConvolutionBackwardWeights(const ConvolutionDims& dims, ConstValues x,
                                            ConstValues dy, std::span<float> dw,
                                            std::span<float> db) {
  const LayerSizes sizes = SizesOf(dims);
  CheckSize("x", x.size(), sizes.x);
  CheckSize("dy", dy.size(), sizes.y);
  CheckSize("dw", dw.size(), sizes.w);
  CheckSizeIfAny("db", db.size(), sizes.b);
  const WindowDims& w = dims.window;
  cuda_.BiasGradient(dims.batch * w.out_height * w.out_width, dy, db);
  if (dw.empty()) return;
  if (x.empty() || dy.empty()) return cuda_.Zero(dw);
  cuda_.math->ConvolutionBackwardWeights(dims, x, dy, dw);
}

// --- fully connected -----------------------------------------------------------------------------

void CudaDense::FullyConnectedForward(const FullyConnectedDims& dims, ConstValues x,
                                      std::span<const float> w, std::span<const float> b,
                                      Values y) {
  const LayerSizes sizes = SizesOf(dims);
  CheckSize("x", x.size(), sizes.x);
  CheckSize("w", w.size(), sizes.w);
  CheckSizeIfAny("b", b.size(), sizes.b);
  CheckSize("y", y.size(), sizes.y);
  if (y.empty()) return;
  if (dims.in == 0) {
    cuda_.Zero(y);
    if (!b.empty()) LaunchAddBias(cuda_.device, b, y);
    return;
  }
  MatrixProductDims product{.m = dims.batch, .n = dims.out, .k = dims.in, .transpose_b = true};
  if (!b.empty()) product.epilogue = MatrixProductDims::Epilogue::kBias;
  cuda_.math->MatrixProduct(product, x, cuda_.WeightsAs(x.type(), w), b, y);
}

void CudaDense::FullyConnectedBackwardData(const FullyConnectedDims& dims, ConstValues dy,
                                           std::span<const float> w, Values dx) {
  const LayerSizes sizes = SizesOf(dims);
  CheckSize("dy", dy.size(), sizes.y);
  CheckSize("w", w.size(), sizes.w);
  CheckSize("dx", dx.size(), sizes.x);
  if (dx.empty()) return;
  if (dims.out == 0) return cuda_.Zero(dx);
  cuda_.math->MatrixProduct({.m = dims.batch, .n = dims.in, .k = dims.out}, dy,
                            cuda_.WeightsAs(dy.type(), w), {}, dx);
}

void CudaDense::FullyConnectedBackwardWeights(const FullyConnectedDims& dims, ConstValues x,
                                              ConstValues dy, std::span<float> dw,
                                              std::span<float> db) {
  const LayerSizes sizes = SizesOf(dims);
  CheckSize("x", x.size(), sizes.x);
  CheckSize("dy", dy.size(), sizes.y);
  CheckSize("dw", dw.size(), sizes.w);
  CheckSizeIfAny("db", db.size(), sizes.b);
  cuda_.BiasGradient(dims.batch, dy, db);
  if (dw.empty()) return;
  if (dims.batch == 0) return cuda_.Zero(dw);
  cuda_.math->MatrixProduct({.m = dims.out, .n = dims.in, .k = dims.batch, .transpose_a = true}, dy,
                            x, {}, dw);
}

// --- attention -----------------------------------------------------------------------------------

namespace {

// Whether the fused form exists and what backward needs fits in the memory of the probabilities.
bool Fuses(DenseMath& math, const AttentionDims& dims, ConstValues qkv, ConstValues probabilities) {
  return IsAligned(probabilities.data()) &&
         FusedMemoryOf(dims, qkv.type()).bytes <= probabilities.bytes() &&
         math.HasFusedAttention(dims, qkv.type());
}

}  // namespace

void CudaDense::AttentionForward(const AttentionDims& dims, ConstValues qkv, Values probabilities,
                                 Values context) {
  const AttentionSizes sizes = SizesOf(dims);
  CheckSize("qkv", qkv.size(), sizes.qkv);
  CheckSize("probabilities", probabilities.size(), sizes.probabilities);
  CheckSize("context", context.size(), sizes.context);
  if (Empty(dims)) return cuda_.Zero(probabilities);
  if (Fuses(*cuda_.math, dims, qkv, probabilities)) {
    const FusedMemory memory = FusedMemoryOf(dims, qkv.type());
    auto* const bytes = static_cast<std::byte*>(probabilities.data());
    cuda_.math->FusedAttentionForward(dims, qkv, context,
                                      {reinterpret_cast<float*>(bytes), memory.statistics});
    return cuda_.Copy(context,
                      Values(bytes + memory.context_begin, context.size(), context.type()));
  }
  // Scores are fp32: rounded to bf16 they would be wrong by more than what the exponential of
  // rounded factors is.
  const bool wide = probabilities.type() == DType::kFloat32;
  const std::span<float> scores =
      wide ? probabilities.floats() : cuda_.scratch.Take<float>(probabilities.size());
  MatrixProductDims product = ProductOf(dims, dims.tokens, dims.head_features, PartStrides(dims),
                                        PartStrides(dims), ScoreStrides(dims));
  product.transpose_b = true;
  product.alpha = ScoreScale(dims);
  cuda_.math->MatrixProduct(product, PartOf(dims, qkv, Part::kQuery), PartOf(dims, qkv, Part::kKey),
                            {}, scores);
  LaunchAttentionSoftmax(cuda_.device, dims, scores, probabilities);
  cuda_.math->MatrixProduct(ProductOf(dims, dims.head_features, dims.tokens, ScoreStrides(dims),
                                      PartStrides(dims), ContextStrides(dims)),
                            probabilities, PartOf(dims, qkv, Part::kValue), {}, context);
}

void CudaDense::AttentionBackward(const AttentionDims& dims, ConstValues qkv,
                                  ConstValues probabilities, ConstValues dcontext, Values dqkv) {
  const AttentionSizes sizes = SizesOf(dims);
  CheckSize("qkv", qkv.size(), sizes.qkv);
  CheckSize("probabilities", probabilities.size(), sizes.probabilities);
  CheckSize("dcontext", dcontext.size(), sizes.context);
  CheckSize("dqkv", dqkv.size(), sizes.qkv);
  if (Empty(dims)) return;
  if (Fuses(*cuda_.math, dims, qkv, probabilities)) {
    const FusedMemory memory = FusedMemoryOf(dims, qkv.type());
    const auto* const bytes = static_cast<const std::byte*>(probabilities.data());
    return cuda_.math->FusedAttentionBackward(
        dims, qkv, ConstValues(bytes + memory.context_begin, dcontext.size(), dcontext.type()),
        dcontext, {reinterpret_cast<const float*>(bytes), memory.statistics}, dqkv);
  }
  // dprobabilities = dcontext values^T, then the softmax's gradient: in place as fp32, else beside.
  const bool wide = probabilities.type() == DType::kFloat32;
  const size_t count = probabilities.size();
  const std::span<float> dprobabilities =
      cuda_.scratch.Take<float>(wide ? count : count + (count + 1) / 2)
          .first(cuda_.device.failed() ? 0 : count);
  if (dprobabilities.empty()) return;
  const Values dscores(wide ? static_cast<void*>(dprobabilities.data())
                            : static_cast<void*>(dprobabilities.data() + count),
                       count, probabilities.type());
  MatrixProductDims product = ProductOf(dims, dims.tokens, dims.head_features, ContextStrides(dims),
                                        PartStrides(dims), ScoreStrides(dims));
  product.transpose_b = true;
  cuda_.math->MatrixProduct(product, dcontext, PartOf(dims, qkv, Part::kValue), {}, dprobabilities);
  LaunchAttentionSoftmaxBackward(cuda_.device, dims, ScoreScale(dims), probabilities,
                                 dprobabilities, dscores);
  cuda_.math->MatrixProduct(ProductOf(dims, dims.head_features, dims.tokens, ScoreStrides(dims),
                                      PartStrides(dims), PartStrides(dims)),
                            dscores, PartOf(dims, qkv, Part::kKey), {},
                            PartOf(dims, dqkv, Part::kQuery));
  product = ProductOf(dims, dims.head_features, dims.tokens, ScoreStrides(dims), PartStrides(dims),
                      PartStrides(dims));
  product.transpose_a = true;
  cuda_.math->MatrixProduct(product, dscores, PartOf(dims, qkv, Part::kQuery), {},
                            PartOf(dims, dqkv, Part::kKey));
  product = ProductOf(dims, dims.head_features, dims.tokens, ScoreStrides(dims),
                      ContextStrides(dims), PartStrides(dims));
  product.transpose_a = true;
  cuda_.math->MatrixProduct(product, probabilities, dcontext, {}, PartOf(dims, dqkv, Part::kValue));
}

}  // namespace cadre
