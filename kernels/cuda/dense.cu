// Dense operations: matrix products and attention by libraries (dense_math.h), with our own kernels
// for what libraries lack: softmax and embeddings.
//
// Attention. The fused form and ours both save one fp32 statistic per query and recompute the
// probabilities in backward, so that saved memory is linear in the tokens. Ours works on blocks of
// scores of at most kMaxScores elements in scratch memory, which remain in the second-level cache
// of large GPUs: whole heads of as many samples as fit, or rows of one head. A strided batched
// product computes the scores in fp32 (rounding scores to bf16 would cause larger errors in their
// exponentials than rounding the factors does); softmax uses one warp per row and sums in fp32.
// Backward computes a block's scores again and applies the gradient of softmax, p * (dp -
// dcontext . context), between its products. If a head needs several blocks, the gradient of
// queries is computed by blocks of queries, and those of keys and values by blocks of keys, so that
// no sum is divided among products; the scores are then computed twice. Blocks of rows of causal
// attention leave out the products above the diagonal; blocks of whole heads do not. Only our form
// has masks of padding, which may be at any tokens: the softmax leaves out the hidden keys.
//
// Products of vectors. A batch may have more of them than libraries accept, and each is too small
// for their tiles, so they have kernels of their own.
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
#include "tensor/interval.h"

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

// c[batch] = a[batch, k] . b[batch, k], one product of two vectors per warp.
template <typename T, typename C>
__global__ void __launch_bounds__(kWarpsPerBlock * 32)
    DotProducts(int64_t batch, int64_t k, const T* __restrict__ a, const T* __restrict__ b,
                C* __restrict__ c) {
  const int lane = threadIdx.x % 32;
  for (int64_t i = ThreadIndex() / 32; i < batch; i += ThreadCount() / 32) {
    float sum = 0;
    for (int64_t j = lane; j < k; j += 32) sum += ToFloat(a[i * k + j]) * ToFloat(b[i * k + j]);
    sum = OverWarp(sum, Plus());
    if (lane == 0) FromFloat(sum, c + i);
  }
}

// c[batch, n] = a[batch] b[batch, n]; `elements` of c.
template <typename T, typename C>
__global__ void __launch_bounds__(256)
    ScaleRows(int64_t elements, int64_t n, const T* __restrict__ a, const T* __restrict__ b,
              C* __restrict__ c) {
  for (int64_t i = ThreadIndex(); i < elements; i += ThreadCount()) {
    int64_t column;
    FromFloat(ToFloat(a[Divide(i, n, &column)]) * ToFloat(b[i]), c + i);
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

// The scores of some heads (of samples * heads) between some queries and keys: [heads, queries,
// keys] in scratch memory. Several heads are heads of one sample, or all heads of whole samples.
struct ScoreBlock {
  Interval heads, queries, keys;

  int64_t rows() const { return heads.size() * queries.size(); }
  int64_t elements() const { return rows() * keys.size(); }
};

// A row of a block: the index of its statistic, its query, and how many of the block's keys it
// attends to.
struct ScoreRow {
  __device__ ScoreRow(const AttentionDims& dims, const ScoreBlock& block, int64_t row) {
    int64_t index;
    head = block.heads.begin + Divide(row, block.queries.end - block.queries.begin, &index);
    query = block.queries.begin + index;
    statistic = head * dims.tokens + query;
    const int64_t keys = block.keys.end - block.keys.begin;
    seen = dims.causal ? query + 1 - block.keys.begin : keys;
    seen = seen < 0 ? 0 : seen > keys ? keys : seen;
  }

  int64_t head, query, statistic, seen;
};

// The keys of a block that padding hides from a query. A warp makes it together.
struct KeyMask {
  // `all_ids`: [batch, tokens]; not read without a padding token.
  __device__ KeyMask(const AttentionDims& dims, const ScoreBlock& block, const float* all_ids,
                     int64_t sample)
      : padding(dims.padding_token) {
    if (dims.padding_token == AttentionDims::kNoPadding) return;
    const float* const of_sample = all_ids + sample * dims.tokens;
    float other = 0;
    for (int64_t t = threadIdx.x % 32; t < dims.tokens; t += 32) {
      if (of_sample[t] != padding) other = 1;
    }
    // A sample of padding alone has no mask.
    if (OverWarp(other, Larger()) > 0) ids = of_sample + block.keys.begin;
  }
  __device__ bool Hides(int64_t key) const { return ids != nullptr && ids[key] == padding; }

  const float* ids = nullptr;
  float padding;
};

// Requires: the block has all keys that its queries attend to. `probabilities` may be `scores`.
template <typename T>
__global__ void __launch_bounds__(kWarpsPerBlock * 32)
    SoftmaxRows(AttentionDims dims, ScoreBlock block, const float* __restrict__ ids,
                const float* scores, T* probabilities, float* __restrict__ statistics) {
  const int lane = threadIdx.x % 32;
  const int64_t keys = block.keys.end - block.keys.begin;
  const int64_t rows =
      (block.heads.end - block.heads.begin) * (block.queries.end - block.queries.begin);
  for (int64_t i = ThreadIndex() / 32; i < rows; i += ThreadCount() / 32) {
    const ScoreRow row(dims, block, i);
    int64_t head;
    const KeyMask mask(dims, block, ids, Divide(row.head, dims.heads, &head));
    const float* const from = scores + i * keys;
    T* const to = probabilities + i * keys;
    float largest = -INFINITY;
    for (int64_t s = lane; s < row.seen; s += 32) {
      if (!mask.Hides(s)) largest = Larger()(largest, from[s]);
    }
    largest = OverWarp(largest, Larger());
    float total = 0;
    for (int64_t s = lane; s < row.seen; s += 32) {
      if (!mask.Hides(s)) total += expf(from[s] - largest);
    }
    total = OverWarp(total, Plus());
    for (int64_t s = lane; s < keys; s += 32) {
      const bool attends = s < row.seen && !mask.Hides(s);
      FromFloat(attends ? expf(from[s] - largest) / total : 0.0F, to + s);
    }
    if (lane == 0) statistics[row.statistic] = total == 0 ? 0 : largest + logf(total);
  }
}

// Probabilities from scores, and the gradients of the scores times `scale` from those of the
// probabilities. `probabilities` may be `scores`, and `dscores` may be `dprobabilities`.
template <typename T>
__global__ void __launch_bounds__(kWarpsPerBlock * 32)
    SoftmaxRowsBackward(AttentionDims dims, ScoreBlock block, float scale,
                        const float* __restrict__ ids, const T* __restrict__ context,
                        const T* __restrict__ dcontext, const float* __restrict__ statistics,
                        const float* scores, const float* dprobabilities, T* probabilities,
                        T* dscores) {
  const int lane = threadIdx.x % 32;
  const int64_t keys = block.keys.end - block.keys.begin;
  const int64_t rows =
      (block.heads.end - block.heads.begin) * (block.queries.end - block.queries.begin);
  for (int64_t i = ThreadIndex() / 32; i < rows; i += ThreadCount() / 32) {
    const ScoreRow row(dims, block, i);
    int64_t head;
    const int64_t sample = Divide(row.head, dims.heads, &head);
    const KeyMask mask(dims, block, ids, sample);
    const int64_t at =
        ((sample * dims.tokens + row.query) * dims.heads + head) * dims.head_features;
    float weighted = 0;
    for (int64_t f = lane; f < dims.head_features; f += 32) {
      weighted += ToFloat(context[at + f]) * ToFloat(dcontext[at + f]);
    }
    weighted = OverWarp(weighted, Plus());
    const float statistic = statistics[row.statistic];
    for (int64_t s = lane; s < keys; s += 32) {
      const int64_t element = i * keys + s;
      const bool attends = s < row.seen && !mask.Hides(s);
      const float p = attends ? expf(scores[element] - statistic) : 0.0F;
      const float ds = attends ? p * (dprobabilities[element] - weighted) * scale : 0.0F;
      FromFloat(p, probabilities + element);
      FromFloat(ds, dscores + element);
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

Strides ScoreStrides(const AttentionDims& d, const ScoreBlock& block) {
  const int64_t keys = block.keys.size(), head = block.queries.size() * keys;
  return {.row = keys, .step = head, .outer = d.heads * head};
}

// The values from the first row of a block on: `token` of the block's first head.
template <typename V>
V RowsFrom(const AttentionDims& d, V values, const Strides& strides, int64_t head, int64_t token) {
  return values.subspan(head / d.heads * strides.outer + head % d.heads * strides.step +
                        token * strides.row);
}

// c[m, n] = a[m, k] b[k, n], one product for each head of the block.
MatrixProductDims ProductOf(const AttentionDims& d, const ScoreBlock& block, int64_t m, int64_t n,
                            int64_t k, const Strides& a, const Strides& b, const Strides& c) {
  const bool within_sample = block.heads.size() < d.heads;
  return {.m = m,
          .n = n,
          .k = k,
          .a_row = a.row,
          .b_row = b.row,
          .c_row = c.row,
          .batch = within_sample ? block.heads.size() : d.heads,
          .a_step = a.step,
          .b_step = b.step,
          .c_step = c.step,
          .outer = within_sample ? 1 : block.heads.size() / d.heads,
          .a_outer = a.outer,
          .b_outer = b.outer,
          .c_outer = c.outer};
}

// Calls f(heads, tokens) for parts of all heads and of their tokens, such that the scores between
// these tokens and all tokens are at most kMaxScores elements, or one row.
template <typename F>
void ForEachScoreBlock(const AttentionDims& d, F f) {
  constexpr int64_t kMaxScores = int64_t{1} << 22;
  const int64_t of_head = d.tokens * d.tokens, all = d.batch * d.heads;
  const int64_t rows = std::clamp<int64_t>(kMaxScores / d.tokens, 1, d.tokens);
  int64_t heads = std::max<int64_t>(1, kMaxScores / of_head);
  if (heads > d.heads) heads -= heads % d.heads;
  for (int64_t head = 0; head < all;) {
    const int64_t sample_end = (head / d.heads + 1) * d.heads;
    const int64_t end = std::min(head + heads, heads < d.heads ? sample_end : all);
    for (int64_t row = 0; row < d.tokens; row += rows) {
      f(Interval{head, end}, Interval{row, std::min(row + rows, d.tokens)});
    }
    head = end;
  }
}

float ScoreScale(const AttentionDims& d) {
  const double features = std::max<int64_t>(1, d.head_features);
  return 1 / std::sqrt(features);
}

// Whether the fused form exists and can store the statistics, which it writes by whole vectors. It
// has no mask for padding at any tokens.
bool Fuses(DenseMath& math, const AttentionDims& dims, ConstValues qkv, ConstFloatSpan statistics) {
  return dims.padding_token == AttentionDims::kNoPadding && Aligned({statistics.data()}) &&
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
                              x, cuda_.WeightsAs(x.type(), w), BiasFor(y.type(), b), y);
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

  void BatchedProduct(const BatchedProductDims& dims, ConstValues a, ConstValues b,
                      Values c) override {
    const LayerSizes sizes = SizesOf(dims);
    CheckLayer(sizes, a.size(), b.size(), 0, c.size());
    if (c.empty()) return;
    if (dims.k == 0) return cuda_.Zero(c);
    if (dims.m == 1 && (dims.n == 1 || dims.k == 1)) return VectorProducts(dims, a, b, c);
    cuda_.math->MatrixProduct({.m = dims.m,
                               .n = dims.n,
                               .k = dims.k,
                               .transpose_a = dims.transpose_a,
                               .transpose_b = dims.transpose_b,
                               .batch = dims.batch,
                               .a_step = sizes.x / dims.batch,
                               .b_step = sizes.w / dims.batch,
                               .c_step = sizes.y / dims.batch},
                              a, b, {}, c);
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

  void AttentionForward(const AttentionDims& dims, ConstFloatSpan ids, ConstValues qkv,
                        Values context, FloatSpan statistics) override {
    CheckAttention(dims, ids.size(), qkv.size(), context.size(), statistics.size());
    if (Empty(dims)) return cuda_.Zero(statistics);
    if (Fuses(*cuda_.math, dims, qkv, statistics)) {
      return cuda_.math->FusedAttentionForward(dims, qkv, context, statistics);
    }
    ForEachScoreBlock(dims, [&](const Interval& heads, const Interval& queries) {
      const ScoreBlock block{
          .heads = heads,
          .queries = queries,
          .keys = {0, dims.causal ? queries.end : dims.tokens},
      };
      // Scores; and probabilities, which replace them if the types are the same.
      const bool is_fp32 = qkv.type() == DType::kFloat32;
      const int64_t count = block.elements();
      const auto scratch = cuda_.scratch.Take<float>(is_fp32 ? count : count + (count + 1) / 2);
      if (scratch.empty()) return;
      const FloatSpan scores = scratch.first(count);
      const Values probabilities(is_fp32 ? scores.data() : scores.data() + count, count,
                                 qkv.type());
      Scores(dims, block, qkv, scores);
      ByType(qkv.type(), [&](auto zero) {
        using T = decltype(zero);
        Launch(cuda_.device, "softmax of attention", SoftmaxRows<T>,
               WarpPerRow(cuda_.device, block.rows()), dims, block, ids.data(), scores.data(),
               Data<T>(probabilities), statistics.data());
      });
      const Strides of_parts = PartStrides(dims), of_context = ContextStrides(dims);
      cuda_.math->MatrixProduct(
          ProductOf(dims, block, queries.size(), dims.head_features, block.keys.size(),
                    ScoreStrides(dims, block), of_parts, of_context),
          probabilities, RowsFrom(dims, PartOf(dims, qkv, kValue), of_parts, heads.begin, 0), {},
          RowsFrom(dims, context, of_context, heads.begin, queries.begin));
    });
  }

  void AttentionBackward(const AttentionDims& dims, ConstFloatSpan ids, ConstValues qkv,
                         ConstValues context, ConstValues dcontext, ConstFloatSpan statistics,
                         Values dqkv) override {
    CheckAttention(dims, ids.size(), qkv.size(), context.size(), statistics.size());
    CheckSize("dcontext", dcontext.size(), std::ssize(context));
    CheckSize("dqkv", dqkv.size(), std::ssize(qkv));
    if (Empty(dims)) return;
    if (Fuses(*cuda_.math, dims, qkv, statistics)) {
      return cuda_.math->FusedAttentionBackward(dims, qkv, context, dcontext, statistics, dqkv);
    }
    const AttentionTensors tensors{ids, qkv, context, dcontext, statistics};
    ForEachScoreBlock(dims, [&](const Interval& heads, const Interval& tokens) {
      const Interval all{0, dims.tokens};
      if (tokens == all) {
        const ScoreBlock block{heads, all, all};
        const Gradients gradients = ScoreGradients(dims, block, tensors);
        QueryGradient(dims, block, gradients, qkv, dqkv);
        return KeyAndValueGradients(dims, block, gradients, qkv, dcontext, dqkv);
      }
      const ScoreBlock by_queries{heads, tokens, {0, dims.causal ? tokens.end : dims.tokens}};
      QueryGradient(dims, by_queries, ScoreGradients(dims, by_queries, tensors), qkv, dqkv);
      const ScoreBlock by_keys{heads, {dims.causal ? tokens.begin : 0, dims.tokens}, tokens};
      KeyAndValueGradients(dims, by_keys, ScoreGradients(dims, by_keys, tensors), qkv, dcontext,
                           dqkv);
    });
  }

 private:
  struct AttentionTensors {
    ConstFloatSpan ids;
    ConstValues qkv, context, dcontext;
    ConstFloatSpan statistics;
  };

  // Both [heads, queries, keys] of a block, in scratch memory; empty after an error.
  struct Gradients {
    Values probabilities, dscores;
  };

  // b, or its bf16 copy if results are bf16: the library then need not be given a converted bias
  // for every product. Misaligned copies would lead to slow algorithms.
  ConstValues BiasFor(DType type, ConstFloatSpan b) const {
    if (type == DType::kFloat32) return b;
    const Values copy = cuda_.copies.Find(b);
    return copy.empty() || !Aligned({copy.data()}) ? ConstValues(b) : ConstValues(copy);
  }
  // Requires: m is 1, and n or k is 1; no extent is 0.
  void VectorProducts(const BatchedProductDims& dims, ConstValues a, ConstValues b, Values c) {
    ByType(a.type(), [&](auto factor) {
      ByType(c.type(), [&](auto product) {
        using T = decltype(factor);
        using C = decltype(product);
        if (dims.k == 1) {
          const int64_t elements = c.size();
          Launch(cuda_.device, "scaled vectors", ScaleRows<T, C>, Strided(cuda_.device, elements),
                 elements, dims.n, Data<T>(a), Data<T>(b), Data<C>(c));
        } else {
          Launch(cuda_.device, "products of vectors", DotProducts<T, C>,
                 WarpPerRow(cuda_.device, dims.batch), dims.batch, dims.k, Data<T>(a), Data<T>(b),
                 Data<C>(c));
        }
      });
    });
  }

  // scores = q k^T / sqrt(features).
  void Scores(const AttentionDims& dims, const ScoreBlock& block, ConstValues qkv,
              FloatSpan scores) {
    const Strides of_parts = PartStrides(dims);
    MatrixProductDims product =
        ProductOf(dims, block, block.queries.size(), block.keys.size(), dims.head_features,
                  of_parts, of_parts, ScoreStrides(dims, block));
    product.transpose_b = true;
    product.alpha = ScoreScale(dims);
    const int64_t head = block.heads.begin;
    cuda_.math->MatrixProduct(
        product, RowsFrom(dims, PartOf(dims, qkv, kQuery), of_parts, head, block.queries.begin),
        RowsFrom(dims, PartOf(dims, qkv, kKey), of_parts, head, block.keys.begin), {}, scores);
  }

  Gradients ScoreGradients(const AttentionDims& dims, const ScoreBlock& block,
                           const AttentionTensors& tensors) {
    const DType type = tensors.qkv.type();
    const bool is_fp32 = type == DType::kFloat32;
    const int64_t count = block.elements();
    // Results replace the fp32 values that they are computed from if the types are the same.
    const auto scratch = cuda_.scratch.Take<float>(is_fp32 ? 2 * count : 2 * count + count + 1);
    if (scratch.empty()) return {};
    const FloatSpan scores = scratch.first(count), dprobabilities = scratch.subspan(count, count);
    const Values results(is_fp32 ? scratch.data() : scratch.data() + 2 * count, 2 * count, type);
    Scores(dims, block, tensors.qkv, scores);
    const Strides of_parts = PartStrides(dims), of_context = ContextStrides(dims);
    MatrixProductDims product =
        ProductOf(dims, block, block.queries.size(), block.keys.size(), dims.head_features,
                  of_context, of_parts, ScoreStrides(dims, block));
    product.transpose_b = true;
    const int64_t head = block.heads.begin;
    cuda_.math->MatrixProduct(
        product, RowsFrom(dims, tensors.dcontext, of_context, head, block.queries.begin),
        RowsFrom(dims, PartOf(dims, tensors.qkv, kValue), of_parts, head, block.keys.begin), {},
        dprobabilities);
    const Gradients gradients{results.first(count), results.subspan(count)};
    ByType(type, [&](auto zero) {
      using T = decltype(zero);
      Launch(cuda_.device, "softmax gradient of attention", SoftmaxRowsBackward<T>,
             WarpPerRow(cuda_.device, block.rows()), dims, block, ScoreScale(dims),
             tensors.ids.data(), Data<T>(tensors.context), Data<T>(tensors.dcontext),
             tensors.statistics.data(), scores.data(), dprobabilities.data(),
             Data<T>(gradients.probabilities), Data<T>(gradients.dscores));
    });
    return gradients;
  }

  // dq = dscores k.
  void QueryGradient(const AttentionDims& dims, const ScoreBlock& block, const Gradients& gradients,
                     ConstValues qkv, Values dqkv) {
    if (gradients.dscores.empty()) return;
    const Strides of_parts = PartStrides(dims);
    const int64_t head = block.heads.begin;
    cuda_.math->MatrixProduct(
        ProductOf(dims, block, block.queries.size(), dims.head_features, block.keys.size(),
                  ScoreStrides(dims, block), of_parts, of_parts),
        gradients.dscores,
        RowsFrom(dims, PartOf(dims, qkv, kKey), of_parts, head, block.keys.begin), {},
        RowsFrom(dims, PartOf(dims, dqkv, kQuery), of_parts, head, block.queries.begin));
  }

  // dk = dscores^T q, dv = probabilities^T dcontext.
  void KeyAndValueGradients(const AttentionDims& dims, const ScoreBlock& block,
                            const Gradients& gradients, ConstValues qkv, ConstValues dcontext,
                            Values dqkv) {
    if (gradients.dscores.empty()) return;
    const Strides of_parts = PartStrides(dims), of_context = ContextStrides(dims);
    const int64_t head = block.heads.begin;
    MatrixProductDims product =
        ProductOf(dims, block, block.keys.size(), dims.head_features, block.queries.size(),
                  ScoreStrides(dims, block), of_parts, of_parts);
    product.transpose_a = true;
    cuda_.math->MatrixProduct(
        product, gradients.dscores,
        RowsFrom(dims, PartOf(dims, qkv, kQuery), of_parts, head, block.queries.begin), {},
        RowsFrom(dims, PartOf(dims, dqkv, kKey), of_parts, head, block.keys.begin));
    product = ProductOf(dims, block, block.keys.size(), dims.head_features, block.queries.size(),
                        ScoreStrides(dims, block), of_context, of_parts);
    product.transpose_a = true;
    cuda_.math->MatrixProduct(
        product, gradients.probabilities,
        RowsFrom(dims, dcontext, of_context, head, block.queries.begin), {},
        RowsFrom(dims, PartOf(dims, dqkv, kValue), of_parts, head, block.keys.begin));
  }

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
