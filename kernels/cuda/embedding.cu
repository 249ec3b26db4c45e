// Embedding tables. Forward gathers rows. Backward must add the gradients of all tokens with the
// same id, in an order that does not change from run to run, so atomic additions of floats are out.
//
// Instead tokens are brought into the order (id, position). The rank of a token is the number of
// tokens before it, counted by comparing all pairs: quadratic, but a batch has a few thousand
// tokens, and comparisons of ids in shared memory are far cheaper than the launches of a radix
// sort. The counts are integers, so atomic additions to them are deterministic. One block then adds
// up each run of equal ids in order, in double.
//
// A token outside the vocabulary is an error that a kernel cannot report: its output is NaN, which
// the check of the loss finds, and nothing outside the table is read or written.
#include "device/cuda/launch.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/launches.h"

namespace cadre {
namespace {

constexpr int kRankThreads = 256;
constexpr int kSumThreads = 128;

// Tokens by number; all that are none are the one beyond the vocabulary.
__device__ inline int32_t TokenOf(float id, int64_t vocabulary) {
  const bool known = id >= 0 && id < static_cast<float>(vocabulary);
  return static_cast<int32_t>(known ? static_cast<int64_t>(id) : vocabulary);
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
    // Not-a-number: not a token of the vocabulary.
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

// order[i], 0 before, becomes the number of tokens that come before token i. Blocks along y compare
// with bands of the tokens.
__global__ void __launch_bounds__(kRankThreads)
    Rank(int64_t n, int64_t vocabulary, const float* __restrict__ ids, int32_t* order) {
  __shared__ int32_t others[kRankThreads];
  const int64_t i = ThreadIndex();
  const int32_t mine = i < n ? TokenOf(ids[i], vocabulary) : 0;
  const int64_t tiles = (n + kRankThreads - 1) / kRankThreads;
  int before = 0;
  for (int64_t tile = blockIdx.y; tile < tiles; tile += gridDim.y) {
    const int64_t first = tile * kRankThreads;
    const int here = static_cast<int>(n - first < kRankThreads ? n - first : kRankThreads);
    if (static_cast<int>(threadIdx.x) < here) {
      others[threadIdx.x] = TokenOf(ids[first + threadIdx.x], vocabulary);
    }
    __syncthreads();
    for (int j = 0; j < here; ++j) {
      if (others[j] < mine || (others[j] == mine && first + j < i)) ++before;
    }
    __syncthreads();
  }
  if (i < n && before > 0) atomicAdd(order + i, before);
}

// sorted[rank[i]] = i.
__global__ void __launch_bounds__(256)
    Invert(int64_t n, const int32_t* __restrict__ rank, int32_t* __restrict__ sorted) {
  for (int64_t i = ThreadIndex(); i < n; i += ThreadCount()) {
    sorted[rank[i]] = static_cast<int32_t>(i);
  }
}

// Blocks along x: stretches, by where they begin; along y: tiles of the features.
template <typename T>
__global__ void __launch_bounds__(kSumThreads)
    SumStretches(int64_t n, int64_t features, int64_t vocabulary, const float* __restrict__ ids,
                 const int32_t* __restrict__ sorted, const T* __restrict__ dy,
                 float* __restrict__ dw) {
  __shared__ int32_t tokens[kSumThreads];
  __shared__ int found;
  const int64_t feature = static_cast<int64_t>(blockIdx.y) * kSumThreads + threadIdx.x;
  for (int64_t begin = blockIdx.x; begin < n; begin += gridDim.x) {
    const int32_t id = TokenOf(ids[sorted[begin]], vocabulary);
    const bool begins = begin == 0 || TokenOf(ids[sorted[begin - 1]], vocabulary) != id;
    if (!begins || id == vocabulary) continue;
    double sum = 0;
    for (int64_t first = begin;; first += kSumThreads) {
      const int64_t at = first + threadIdx.x;
      if (threadIdx.x == 0) found = 0;
      const int32_t token = at < n ? sorted[at] : 0;
      const bool same = at < n && TokenOf(ids[token], vocabulary) == id;
      tokens[threadIdx.x] = token;
      __syncthreads();
      // The stretch is the first so many of these: its last token says how many.
      const bool last = same && (threadIdx.x == kSumThreads - 1 || at + 1 >= n ||
                                 TokenOf(ids[sorted[at + 1]], vocabulary) != id);
      if (last) found = static_cast<int>(threadIdx.x) + 1;
      __syncthreads();
      const int count = found;
      if (feature < features) {
        int k = 0;
        // Loads do not wait for one another; additions are in the order of the tokens.
        for (; k + 4 <= count; k += 4) {
          double values[4];
          for (int j = 0; j < 4; ++j) {
            values[j] = static_cast<double>(ToFloat(dy[tokens[k + j] * features + feature]));
          }
          for (int j = 0; j < 4; ++j) sum += values[j];
        }
        for (; k < count; ++k) {
          sum += static_cast<double>(ToFloat(dy[tokens[k] * features + feature]));
        }
      }
      __syncthreads();
      if (count < kSumThreads) break;
    }
    if (feature < features) {
      dw[static_cast<int64_t>(id) * features + feature] = static_cast<float>(sum);
    }
  }
}

// All of dpositions: zero but for the tokens that are here.
template <typename T>
__global__ void __launch_bounds__(256)
    SumPositions(EmbeddingDims dims, int64_t n, const T* __restrict__ dy,
                 float* __restrict__ dpositions) {
  for (int64_t i = ThreadIndex(); i < n; i += ThreadCount()) {
    int64_t feature;
    const int64_t token = Divide(i, dims.features, &feature) - dims.first_token;
    double sum = 0;
    if (token >= 0 && token < dims.tokens) {
      for (int64_t image = 0; image < dims.batch; ++image) {
        sum += static_cast<double>(
            ToFloat(dy[(image * dims.tokens + token) * dims.features + feature]));
      }
    }
    dpositions[i] = static_cast<float>(sum);
  }
}

}  // namespace

void LaunchEmbeddingForward(CudaDevice& device, const EmbeddingDims& dims,
                            std::span<const float> ids, std::span<const float> w,
                            std::span<const float> positions, Values y) {
  const auto n = static_cast<int64_t>(y.size());
  const float* const places = positions.empty() ? nullptr : positions.data();
  ByType(y.type(), [&](auto zero) {
    using T = decltype(zero);
    Launch(device, "embedding", LookUp<T>, Strided(device, n), dims, n, ids.data(), w.data(),
           places, static_cast<T*>(y.data()));
  });
}

void LaunchEmbeddingBackward(CudaDevice& device, const EmbeddingDims& dims,
                             std::span<const float> ids, ConstValues dy, std::span<float> dw,
                             std::span<float> dpositions, std::span<int32_t> order) {
  const auto n = static_cast<int64_t>(ids.size());
  device.Zero(dw.data(), dw.size_bytes());
  ByType(dy.type(), [&](auto zero) {
    using T = decltype(zero);
    const auto* const gradients = static_cast<const T*>(dy.data());
    if (!dpositions.empty()) {
      const auto places = static_cast<int64_t>(dpositions.size());
      Launch(device, "embedding's positions' gradient", SumPositions<T>, Strided(device, places),
             dims, places, gradients, dpositions.data());
    }
    if (n == 0) return;
    int32_t* const rank = order.data();
    int32_t* const sorted = rank + n;
    device.Zero(rank, static_cast<size_t>(n) * sizeof(int32_t));
    const int64_t tiles = (n + kRankThreads - 1) / kRankThreads;
    // Enough bands that the blocks fill the device.
    const int64_t bands = std::clamp<int64_t>(4 * device.processors() / tiles, 1, tiles);
    Launch(device, "order of tokens", Rank,
           LaunchShape{.grid = dim3(static_cast<unsigned>(tiles), static_cast<unsigned>(bands)),
                       .block = dim3(kRankThreads)},
           n, dims.vocabulary, ids.data(), rank);
    Launch(device, "order of tokens", Invert, Strided(device, n), n, rank, sorted);
    const int64_t across = (dims.features + kSumThreads - 1) / kSumThreads;
    const int64_t blocks = std::min<int64_t>(n, 1 << 16);
    Launch(device, "embedding's gradient", SumStretches<T>,
           LaunchShape{.grid = dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(across)),
                       .block = dim3(kSumThreads)},
           n, dims.features, dims.vocabulary, ids.data(), sorted, gradients, dw.data());
  });
}

}  // namespace cadre
