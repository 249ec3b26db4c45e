// Dense operations: matrix products and attention by libraries (dense_math.h), with our own kernels
// for what libraries lack: softmax and embeddings.
//
// Attention. The fused form never stores the [tokens, tokens] probabilities. The caller passes a
// buffer for them nevertheless; the fused form stores in it what its backward needs: one fp32
// statistic per row and a copy of the context. Without the fused form, a strided batched product
// computes the scores in fp32 (rounding scores to bf16 would cause larger errors in their
// exponentials than rounding the factors does), softmax converts them, and backward applies the
// gradient of softmax between its products. Softmax uses one warp per row and sums in fp32.
//
// Embeddings. Forward gathers rows. Backward must add the gradients of all tokens with the
// same id, in an order that is the same in every execution, so it cannot add floats atomically.
//
// Instead tokens are sorted by (id, index). The sorted position of a token is the number of tokens
// before it, counted by comparing all pairs. This is quadratic, but a batch has a few thousand
// tokens, and comparisons of ids in shared memory are far cheaper than the launches of a radix
// sort. The counts are integers, so atomic additions to them are deterministic. One block then adds
// up each sequence of equal ids in order, in double.
//
// A token outside the vocabulary is an error that a kernel cannot report: its output is NaN, which
// the check of the loss finds, and nothing outside the table is read or written.
#include <algorithm>
#include <cmath>

#include "device/cuda/launch.h"
#include "kernels/cuda/block_sums.h"
#include "kernels/cuda/cuda_context.h"
#include "kernels/cuda/elements.h"
#include "kernels/extents.h"

namespace cadre {
namespace {

constexpr int kSortThreads = 256;
constexpr int kSumThreads = 128;

// The token's id; `vocabulary` for an id outside the vocabulary.
__device__ inline int32_t TokenOf(float id, int64_t vocabulary) {
  return id >= 0 && id < vocabulary ? static_cast<int64_t>(id) : vocabulary;
}

template <typename T>
__global__ void __launch_bounds__(256)
    LookUp(EmbeddingDims dims, int64_t n, const float* __restrict__ ids,
           const float* __restrict__ w, const float* __restrict__ positions, T* __restrict__ y) {
  for (int64_t i = ThreadIndex(); i < n; i += ThreadCount()) {
    int64_t feature;
    int64_t token;
    const int64_t at = Divide(i, dims.features, &feature);
    Divide(at, dims.tokens, &token);
    const int64_t id = TokenOf(ids[at], dims.vocabulary);
    // NaN for a token that is not in the vocabulary.
    float value = nanf("");
    if (id < dims.vocabulary) {
      value = w[id * dims.features + feature];
      if (positions != nullptr) {
        value += positions[(dims.first_token + token) * dims.features + feature];
      }
    }
    FromFloat(value, y + i);
  }
}

// Adds to sorted_position[i], which is 0 at first, the number of tokens that come before token i. A
// block compares its tokens with every gridDim.y-th tile of all tokens, from tile blockIdx.y on.
__global__ void __launch_bounds__(kSortThreads)
    CountTokensBefore(int64_t n, int64_t vocabulary, const float* __restrict__ ids,
                      int32_t* sorted_position) {
  __shared__ int32_t others[kSortThreads];
  const int64_t i = ThreadIndex();
  const int32_t mine = i < n ? TokenOf(ids[i], vocabulary) : 0;
  const int64_t tiles = (n + kSortThreads - 1) / kSortThreads;
  int before = 0;
  for (int64_t tile = blockIdx.y; tile < tiles; tile += gridDim.y) {
    const int64_t first = tile * kSortThreads;
    const unsigned here = n - first < kSortThreads ? n - first : kSortThreads;
    if (threadIdx.x < here) {
      others[threadIdx.x] = TokenOf(ids[first + threadIdx.x], vocabulary);
    }
    __syncthreads();
    for (unsigned j = 0; j < here; ++j) {
      if (others[j] < mine || (others[j] == mine && first + j < i)) ++before;
    }
    __syncthreads();
  }
  if (i < n && before > 0) atomicAdd(sorted_position + i, before);
}

// sorted[sorted_position[i]] = i.
__global__ void __launch_bounds__(256)
    Invert(int64_t n, const int32_t* __restrict__ sorted_position, int32_t* __restrict__ sorted) {
  for (int64_t i = ThreadIndex(); i < n; i += ThreadCount()) {
    sorted[sorted_position[i]] = i;
  }
}

// Sums the gradients of each sequence of equal tokens. A block handles the sequences that begin at
// positions blockIdx.x, blockIdx.x + gridDim.x, ...; blocks along y divide the features into tiles.
template <typename T>
__global__ void __launch_bounds__(kSumThreads)
    SumRuns(int64_t n, int64_t features, int64_t vocabulary, const float* __restrict__ ids,
            const int32_t* __restrict__ sorted, const T* __restrict__ dy, float* __restrict__ dw) {
  __shared__ int32_t tokens[kSumThreads];
  __shared__ int equal;
  const int64_t feature = int64_t{blockIdx.y} * kSumThreads + threadIdx.x;
  for (int64_t begin = blockIdx.x; begin < n; begin += gridDim.x) {
    const int32_t id = TokenOf(ids[sorted[begin]], vocabulary);
    const bool begins = begin == 0 || TokenOf(ids[sorted[begin - 1]], vocabulary) != id;
    if (!begins || id == vocabulary) continue;
    double sum = 0;
    for (int64_t first = begin;; first += kSumThreads) {
      const int64_t at = first + threadIdx.x;
      if (threadIdx.x == 0) equal = 0;
      const int32_t token = at < n ? sorted[at] : 0;
      const bool same = at < n && TokenOf(ids[token], vocabulary) == id;
      tokens[threadIdx.x] = token;
      __syncthreads();
      // The equal tokens are a prefix of these; the thread of the last equal one stores their
      // count.
      const bool last = same && (threadIdx.x == kSumThreads - 1 || at + 1 >= n ||
                                 TokenOf(ids[sorted[at + 1]], vocabulary) != id);
      if (last) equal = threadIdx.x + 1;
      __syncthreads();
      const int count = equal;
      if (feature < features) {
        int k = 0;
        // Four independent loads at a time; the additions are in the order of the tokens.
        for (; k + 4 <= count; k += 4) {
          double values[4];
          for (int j = 0; j < 4; ++j) {
            values[j] = ToFloat(dy[tokens[k + j] * features + feature]);
          }
          for (int j = 0; j < 4; ++j) sum += values[j];
        }
        for (; k < count; ++k) {
          sum += ToFloat(dy[tokens[k] * features + feature]);
        }
      }
      __syncthreads();
      if (count < kSumThreads) break;
    }
    if (feature < features) {
      dw[id * features + feature] = sum;
    }
  }
}

// Writes all of dpositions: zero except in rows [first_token, first_token + tokens), the tokens
// that this process holds.
template <typename T>
__global__ void __launch_bounds__(256)
    SumPositions(EmbeddingDims dims, int64_t n, const T* __restrict__ dy,
                 float* __restrict__ dpositions) {
  for (int64_t i = ThreadIndex(); i < n; i += ThreadCount()) {
    int64_t feature;
    const int64_t token = Divide(i, dims.features, &feature) - dims.first_token;
    double sum = 0;
    if (token >= 0 && token < dims.tokens) {
      for (int64_t sample = 0; sample < dims.batch; ++sample) {
        sum += ToFloat(dy[(sample * dims.tokens + token) * dims.features + feature]);
      }
    }
    dpositions[i] = sum;
  }
}

// The token of the row attends to the tokens [0, returned value).
__device__ inline int64_t SeenBy(const AttentionDims& dims, int64_t row) {
  int64_t token;
  Divide(row, dims.tokens, &token);
  return dims.causal ? token + 1 : dims.tokens;
}

template <typename T>
__global__ void __launch_bounds__(kWarpsPerBlock * 32)
    SoftmaxRows(AttentionDims dims, int64_t rows, const float* scores, T* probabilities) {
  const int lane = threadIdx.x % 32;
  for (int64_t row = ThreadIndex() / 32; row < rows; row += ThreadCount() / 32) {
    const float* const from = scores + row * dims.tokens;
    T* const to = probabilities + row * dims.tokens;
    const int64_t seen = SeenBy(dims, row);
    float largest = -INFINITY;
    for (int64_t s = lane; s < seen; s += 32) largest = Larger()(largest, from[s]);
    largest = OverWarp(largest, Larger());
    float total = 0;
    for (int64_t s = lane; s < seen; s += 32) total += expf(from[s] - largest);
    total = OverWarp(total, Plus());
    for (int64_t s = lane; s < dims.tokens; s += 32) {
      FromFloat(s < seen ? expf(from[s] - largest) / total : 0.0F, to + s);
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kWarpsPerBlock * 32)
    SoftmaxRowsBackward(AttentionDims dims, int64_t rows, float scale,
                        const T* __restrict__ probabilities, const float* dprobabilities,
                        T* dscores) {
  const int lane = threadIdx.x % 32;
  for (int64_t row = ThreadIndex() / 32; row < rows; row += ThreadCount() / 32) {
    const T* const p = probabilities + row * dims.tokens;
    const float* const dp = dprobabilities + row * dims.tokens;
    const int64_t seen = SeenBy(dims, row);
    float weighted = 0;
    for (int64_t s = lane; s < seen; s += 32) weighted += ToFloat(p[s]) * dp[s];
    weighted = OverWarp(weighted, Plus());
    for (int64_t s = lane; s < dims.tokens; s += 32) {
      FromFloat(s < seen ? ToFloat(p[s]) * (dp[s] - weighted) * scale : 0.0F,
                dscores + row * dims.tokens + s);
    }
  }
}

bool Empty(const AttentionDims& d) {
  return d.batch == 0 || d.tokens == 0 || d.heads == 0 || d.head_features == 0;
}

// PartOf: qkv from the first token's queries, keys or values on.
enum Part : int64_t { kQuery, kKey, kValue };

template <typename V>
V PartOf(const AttentionDims& d, V qkv, Part part) {
  return qkv.subspan(part * d.head_features);
}

// Distances in elements between rows (tokens), heads (`step`) and samples (`outer`) of the matrices
// in qkv (its parts), in the context, and in the scores.
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

// c = a b, one product for each head of each sample.
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
  const double features = std::max<int64_t>(1, d.head_features);
  return 1 / std::sqrt(features);
}

// What fused attention keeps for backward in the buffer for the probabilities: its statistics,
// followed by the context.
struct FusedMemory {
  size_t statistics = 0;     // floats
  size_t context_begin = 0;  // bytes
  size_t bytes = 0;
};

FusedMemory FusedMemoryOf(const AttentionDims& d, DType type) {
  FusedMemory memory;
  memory.statistics = d.batch * d.heads * d.tokens;
  memory.context_begin = (memory.statistics * sizeof(float) + 255) / 256 * 256;
  memory.bytes = memory.context_begin + SizesOf(d).context * SizeOf(type);
  return memory;
}

// Whether the fused form exists and the data for backward fit in the buffer for the probabilities.
bool Fuses(DenseMath& math, const AttentionDims& dims, ConstValues qkv, ConstValues probabilities) {
  return Aligned({probabilities.data()}) &&
         FusedMemoryOf(dims, qkv.type()).bytes <= probabilities.bytes() &&
         math.HasFusedAttention(dims, qkv.type());
}

class CudaDense final : public DenseKernels {
 public:
  explicit CudaDense(CudaContext& cuda) : cuda_(cuda) {}

  void FullyConnectedForward(const FullyConnectedDims& dims, ConstValues x, ConstFloatSpan w,
                             ConstFloatSpan b, Values y) override {
    CheckLayer(SizesOf(dims), x.size(), w.size(), b.size(), y.size());
    if (y.empty()) return;
    if (dims.in == 0) {
      cuda_.Zero(y);
      return cuda_.AddBias(b, y);
    }
    cuda_.math->MatrixProduct({.m = dims.batch, .n = dims.out, .k = dims.in, .transpose_b = true},
                              x, cuda_.WeightsAs(x.type(), w), b, y);
  }

  void FullyConnectedBackwardData(const FullyConnectedDims& dims, ConstValues dy, ConstFloatSpan w,
                                  Values dx) override {
    CheckLayer(SizesOf(dims), dx.size(), w.size(), 0, dy.size());
    if (dx.empty()) return;
    if (dims.out == 0) return cuda_.Zero(dx);
    cuda_.math->MatrixProduct({.m = dims.batch, .n = dims.in, .k = dims.out}, dy,
                              cuda_.WeightsAs(dy.type(), w), {}, dx);
  }

  void FullyConnectedBackwardWeights(const FullyConnectedDims& dims, ConstValues x, ConstValues dy,
                                     FloatSpan dw, FloatSpan db) override {
    CheckLayer(SizesOf(dims), x.size(), dw.size(), db.size(), dy.size());
    cuda_.BiasGradient(dims.batch, dy, db);
    if (dw.empty()) return;
    if (dims.batch == 0) return cuda_.Zero(dw);
    cuda_.math->MatrixProduct({.m = dims.out, .n = dims.in, .k = dims.batch, .transpose_a = true},
                              dy, x, {}, dw);
  }

  void EmbeddingForward(const EmbeddingDims& dims, ConstFloatSpan ids, ConstFloatSpan w,
                        ConstFloatSpan positions, Values y) override {
    CheckEmbedding(dims, ids.size(), w.size(), positions.size(), y.size());
    if (y.empty()) return;
    const int64_t n = y.size();
    ByType(y.type(), [&](auto zero) {
      using T = decltype(zero);
      Launch(cuda_.device, "embedding", LookUp<T>, Strided(cuda_.device, n), dims, n, ids.data(),
             w.data(), positions.empty() ? nullptr : positions.data(), Data<T>(y));
    });
  }

  void EmbeddingBackward(const EmbeddingDims& dims, ConstFloatSpan ids, ConstValues dy,
                         FloatSpan dw, FloatSpan dpositions) override {
    CheckEmbedding(dims, ids.size(), dw.size(), dpositions.size(), dy.size());
    cuda_.Zero(dw);
    const int64_t n = ids.size();
    const auto buffers = cuda_.scratch.Take<int32_t>(2 * n);
    ByType(dy.type(), [&](auto zero) {
      using T = decltype(zero);
      if (!dpositions.empty()) {
        Launch(cuda_.device, "gradient of embedding positions", SumPositions<T>,
               Strided(cuda_.device, std::ssize(dpositions)), dims, std::ssize(dpositions),
               Data<T>(dy), dpositions.data());
      }
      if (n == 0 || dw.empty() || buffers.empty()) return;
      int32_t* const sorted_position = buffers.data();
      int32_t* const sorted = sorted_position + n;
      SortTokens(dims, ids, sorted_position, sorted);
      const int64_t tiles = (dims.features + kSumThreads - 1) / kSumThreads;
      Launch(cuda_.device, "embedding gradient", SumRuns<T>,
             LaunchShape{.grid = dim3(std::min<int64_t>(n, 1 << 16), tiles),
                         .block = dim3(kSumThreads)},
             n, dims.features, dims.vocabulary, ids.data(), sorted, Data<T>(dy), dw.data());
    });
  }

  void AttentionForward(const AttentionDims& dims, ConstValues qkv, Values probabilities,
                        Values context) override {
    CheckAttention(dims, qkv.size(), probabilities.size(), context.size());
    if (Empty(dims)) return cuda_.Zero(probabilities);
    if (Fuses(*cuda_.math, dims, qkv, probabilities)) {
      const FusedMemory memory = FusedMemoryOf(dims, qkv.type());
      auto* const bytes = Data<std::byte>(probabilities);
      cuda_.math->FusedAttentionForward(dims, qkv, context,
                                        {reinterpret_cast<float*>(bytes), memory.statistics});
      return cuda_.Copy(context,
                        Values(bytes + memory.context_begin, context.size(), context.type()));
    }
    // Scores are fp32: rounding them to bf16 would cause larger errors in their exponentials than
    // rounding the factors does.
    const bool is_fp32 = probabilities.type() == DType::kFloat32;
    const FloatSpan scores =
        is_fp32 ? probabilities.floats() : cuda_.scratch.Take<float>(probabilities.size());
    MatrixProductDims product = ProductOf(dims, dims.tokens, dims.head_features, PartStrides(dims),
                                          PartStrides(dims), ScoreStrides(dims));
    product.transpose_b = true;
    product.alpha = ScoreScale(dims);
    cuda_.math->MatrixProduct(product, PartOf(dims, qkv, kQuery), PartOf(dims, qkv, kKey), {},
                              scores);
    const int64_t rows = dims.batch * dims.heads * dims.tokens;
    ByType(probabilities.type(), [&](auto zero) {
      using T = decltype(zero);
      Launch(cuda_.device, "softmax of attention", SoftmaxRows<T>, WarpPerRow(cuda_.device, rows),
             dims, rows, scores.data(), Data<T>(probabilities));
    });
    cuda_.math->MatrixProduct(ProductOf(dims, dims.head_features, dims.tokens, ScoreStrides(dims),
                                        PartStrides(dims), ContextStrides(dims)),
                              probabilities, PartOf(dims, qkv, kValue), {}, context);
  }

  void AttentionBackward(const AttentionDims& dims, ConstValues qkv, ConstValues probabilities,
                         ConstValues dcontext, Values dqkv) override {
    CheckAttention(dims, qkv.size(), probabilities.size(), dcontext.size());
    CheckSize("dqkv", dqkv.size(), std::ssize(qkv));
    if (Empty(dims)) return;
    if (Fuses(*cuda_.math, dims, qkv, probabilities)) {
      const FusedMemory memory = FusedMemoryOf(dims, qkv.type());
      const auto* const bytes = Data<std::byte>(probabilities);
      return cuda_.math->FusedAttentionBackward(
          dims, qkv, ConstValues(bytes + memory.context_begin, dcontext.size(), dcontext.type()),
          dcontext, {reinterpret_cast<const float*>(bytes), memory.statistics}, dqkv);
    }
    // dprobabilities = dcontext values^T, then dscores: in place for fp32, otherwise after
    // dprobabilities in the same scratch memory.
    const bool is_fp32 = probabilities.type() == DType::kFloat32;
    const size_t count = probabilities.size();
    const auto scratch = cuda_.scratch.Take<float>(is_fp32 ? count : count + (count + 1) / 2);
    if (scratch.empty()) return;
    const FloatSpan dprobabilities = scratch.first(count);
    const Values dscores(is_fp32 ? dprobabilities.data() : dprobabilities.data() + count, count,
                         probabilities.type());
    MatrixProductDims product =
        ProductOf(dims, dims.tokens, dims.head_features, ContextStrides(dims), PartStrides(dims),
                  ScoreStrides(dims));
    product.transpose_b = true;
    cuda_.math->MatrixProduct(product, dcontext, PartOf(dims, qkv, kValue), {}, dprobabilities);
    const int64_t rows = dims.batch * dims.heads * dims.tokens;
    ByType(dscores.type(), [&](auto zero) {
      using T = decltype(zero);
      Launch(cuda_.device, "softmax gradient of attention", SoftmaxRowsBackward<T>,
             WarpPerRow(cuda_.device, rows), dims, rows, ScoreScale(dims), Data<T>(probabilities),
             dprobabilities.data(), Data<T>(dscores));
    });
    cuda_.math->MatrixProduct(ProductOf(dims, dims.head_features, dims.tokens, ScoreStrides(dims),
                                        PartStrides(dims), PartStrides(dims)),
                              dscores, PartOf(dims, qkv, kKey), {}, PartOf(dims, dqkv, kQuery));
    product = ProductOf(dims, dims.head_features, dims.tokens, ScoreStrides(dims),
                        PartStrides(dims), PartStrides(dims));
    product.transpose_a = true;
    cuda_.math->MatrixProduct(product, dscores, PartOf(dims, qkv, kQuery), {},
                              PartOf(dims, dqkv, kKey));
    product = ProductOf(dims, dims.head_features, dims.tokens, ScoreStrides(dims),
                        ContextStrides(dims), PartStrides(dims));
    product.transpose_a = true;
    cuda_.math->MatrixProduct(product, probabilities, dcontext, {}, PartOf(dims, dqkv, kValue));
  }

 private:
  // Fills `sorted` with the tokens' indices in the order (id, index), and `sorted_position` with
  // the inverse of `sorted`.
  void SortTokens(const EmbeddingDims& dims, ConstFloatSpan ids, int32_t* sorted_position,
                  int32_t* sorted) {
    const int64_t n = ids.size();
    cuda_.device.Zero(sorted_position, n * sizeof(int32_t));
    const int64_t tiles = (n + kSortThreads - 1) / kSortThreads;
    // Enough blocks along y to fill the device.
    const int64_t blocks_along_y =
        std::clamp<int64_t>(4 * cuda_.device.processors() / tiles, 1, tiles);
    Launch(cuda_.device, "order of tokens", CountTokensBefore,
           LaunchShape{.grid = dim3(tiles, blocks_along_y), .block = dim3(kSortThreads)}, n,
           dims.vocabulary, ids.data(), sorted_position);
    Launch(cuda_.device, "order of tokens", Invert, Strided(cuda_.device, n), n, sorted_position,
           sorted);
  }

  CudaContext& cuda_;
};

}  // namespace

std::unique_ptr<DenseKernels> MakeCudaDense(CudaContext& cuda) {
  return std::make_unique<CudaDense>(cuda);
}

}  // namespace cadre
