// Dense operations: matrix products by libraries (dense_math.h), with our own kernels for what
// libraries lack: embeddings.
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

#include "device/cuda/launch.h"
#include "kernels/cuda/attention.h"
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

// y[row, c] = 0 for columns <= c < row_step; n: the number of such elements.
template <typename T>
__global__ void __launch_bounds__(256)
    ZeroPadding(int64_t n, int64_t columns, int64_t row_step, T* __restrict__ y) {
  for (int64_t i = ThreadIndex(); i < n; i += ThreadCount()) {
    int64_t column;
    const int64_t row = Divide(i, row_step - columns, &column);
    FromFloat(0, y + row * row_step + columns + column);
  }
}

// With rows of y that are `row` elements apart.
LayerSizes PaddedSizesOf(const FullyConnectedDims& dims, int64_t row) {
  LayerSizes sizes = SizesOf(dims);
  sizes.y = dims.batch * row;
  return sizes;
}

class CudaDense final : public DenseKernels {
 public:
  explicit CudaDense(CudaContext& cuda) : cuda_(cuda) {}

  void FullyConnectedForward(const FullyConnectedDims& dims, ConstValues x, ConstFloatSpan w,
                             ConstFloatSpan b, Values y) override {
    const int64_t row = PaddedRow("y", dims.batch, dims.out, y.size());
    CheckLayer(PaddedSizesOf(dims, row), x.size(), w.size(), b.size(), y.size());
    if (y.empty()) return;
    if (dims.in == 0) {
      cuda_.Zero(y);
      return cuda_.AddBias(dims.batch, b, y);
    }
    cuda_.math->MatrixProduct(
        {.m = dims.batch, .n = dims.out, .k = dims.in, .transpose_b = true, .c_row = row}, x,
        cuda_.WeightsAs(x.type(), w), BiasFor(y.type(), b), y);
    const int64_t padding = dims.batch * (row - dims.out);
    if (padding == 0) return;
    ByType(y.type(), [&](auto zero) {
      Launch(cuda_.device, "padding of rows", ZeroPadding<decltype(zero)>,
             Strided(cuda_.device, padding), padding, dims.out, row, Data<decltype(zero)>(y));
    });
  }

  void FullyConnectedBackwardData(const FullyConnectedDims& dims, ConstValues dy, ConstFloatSpan w,
                                  Values dx) override {
    const int64_t row = PaddedRow("dy", dims.batch, dims.out, dy.size());
    CheckLayer(PaddedSizesOf(dims, row), dx.size(), w.size(), 0, dy.size());
    if (dx.empty()) return;
    if (dims.out == 0) return cuda_.Zero(dx);
    cuda_.math->MatrixProduct({.m = dims.batch, .n = dims.in, .k = dims.out, .a_row = row}, dy,
                              cuda_.WeightsAs(dy.type(), w), {}, dx);
  }

  void FullyConnectedBackwardWeights(const FullyConnectedDims& dims, ConstValues x, ConstValues dy,
                                     FloatSpan dw, FloatSpan db) override {
    const int64_t row = PaddedRow("dy", dims.batch, dims.out, dy.size());
    CheckLayer(PaddedSizesOf(dims, row), x.size(), dw.size(), db.size(), dy.size());
    cuda_.BiasGradient(dims.batch, dy, db);
    if (dw.empty()) return;
    if (dims.batch == 0) return cuda_.Zero(dw);
    cuda_.math->MatrixProduct(
        {.m = dims.out, .n = dims.in, .k = dims.batch, .transpose_a = true, .a_row = row}, dy, x,
        {}, dw);
  }

  void FullyConnectedAddGradients(const FullyConnectedDims& dims, ConstValues x, ConstValues dy,
                                  FloatSpan dw, FloatSpan db) override {
    const int64_t row = PaddedRow("dy", dims.batch, dims.out, dy.size());
    CheckLayer(PaddedSizesOf(dims, row), x.size(), dw.size(), db.size(), dy.size());
    if (dims.batch == 0) return;
    cuda_.BiasGradient(dims.batch, dy, db, /*add=*/true);
    if (dw.empty()) return;
    cuda_.math->MatrixProduct({.m = dims.out,
                               .n = dims.in,
                               .k = dims.batch,
                               .transpose_a = true,
                               .a_row = row,
                               .add = true},
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
                        Values context, FloatSpan statistics, Values scratch) override {
    CheckAttention(dims, ids.size(), qkv.size(), context.size(), statistics.size());
    CudaAttentionForward(cuda_, dims, ids, qkv, context, statistics, scratch);
  }

  void AttentionBackward(const AttentionDims& dims, ConstFloatSpan ids, ConstValues qkv,
                         ConstValues context, ConstValues dcontext, ConstFloatSpan statistics,
                         Values scratch, Values dqkv) override {
    CheckAttention(dims, ids.size(), qkv.size(), context.size(), statistics.size());
    CheckSize("dcontext", dcontext.size(), std::ssize(context));
    CheckSize("dqkv", dqkv.size(), std::ssize(qkv));
    CudaAttentionBackward(cuda_, dims, ids, qkv, context, dcontext, statistics, scratch, dqkv);
  }

 private:
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
