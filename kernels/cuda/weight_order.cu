// Conversion of convolution weights between our order [out, channels, taps] and cuDNN's
// channels-last order [out, taps, channels], and between types.
//
// A block converts a few channels of one output with all their taps: one contiguous interval of the
// array with channels first, and one contiguous run per tap of the other array. The data pass
// through shared memory, so that both arrays are accessed contiguously.
#include <algorithm>

#include "device/cuda/launch.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/weight_order.h"

namespace cadre {
namespace {

constexpr int kThreads = 256;
// Floats in shared memory.
constexpr int kTile = 8192;
// Runs of this many channels fill whole memory transactions in either type.
constexpr int64_t kRunChannels = 128;

// The part of the weights that a block converts at a time: channels [*begin, *begin + *count) of
// output *out.
__device__ inline void ChunkAt(int64_t chunk, int64_t chunks_each, int64_t channels, int64_t width,
                               int64_t* out, int64_t* begin, int64_t* count) {
  int64_t part = 0;
  *out = Divide(chunk, chunks_each, &part);
  *begin = part * width;
  *count = channels - *begin < width ? channels - *begin : width;
}

template <typename From, typename To, bool kToLast>
__global__ void Reorder(int64_t chunks, int64_t chunks_each, int64_t channels, int64_t taps,
                        int64_t width, const From* from, To* to) {
  __shared__ float tile[kTile];
  for (int64_t chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
    int64_t out = 0, begin = 0, count = 0;
    ChunkAt(chunk, chunks_each, channels, width, &out, &begin, &count);
    const int64_t elements = count * taps;
    // Where the interval of the channels-first array begins, and the first run of the other array.
    const int64_t front = (out * channels + begin) * taps;
    const int64_t runs = out * channels * taps + begin;
    for (int64_t i = threadIdx.x; i < elements; i += blockDim.x) {
      if constexpr (kToLast) {
        tile[i] = ToFloat(from[front + i]);
      } else {
        int64_t c = 0;
        const int64_t t = Divide(i, count, &c);
        tile[c * taps + t] = ToFloat(from[runs + t * channels + c]);
      }
    }
    __syncthreads();
    for (int64_t i = threadIdx.x; i < elements; i += blockDim.x) {
      if constexpr (kToLast) {
        int64_t c = 0;
        const int64_t t = Divide(i, count, &c);
        FromFloat(tile[c * taps + t], &to[runs + t * channels + c]);
      } else {
        FromFloat(tile[i], &to[front + i]);
      }
    }
    __syncthreads();
  }
}

// The same without shared memory, for convolutions with more taps than it holds.
template <typename From, typename To, bool kToLast>
__global__ void ReorderOneByOne(int64_t elements, int64_t channels, int64_t taps, const From* from,
                                To* to) {
  for (int64_t i = ThreadIndex(); i < elements; i += ThreadCount()) {
    int64_t c = 0, t = 0;
    const int64_t out = Divide(Divide(i, channels, &c), taps, &t);
    const int64_t front = (out * channels + c) * taps + t;
    if constexpr (kToLast) {
      FromFloat(ToFloat(from[front]), &to[i]);
    } else {
      FromFloat(ToFloat(from[i]), &to[front]);
    }
  }
}

template <typename From, typename To, bool kToLast>
void LaunchTyped(CudaDevice& device, const WeightOrderDims& d, const From* from, To* to) {
  if (d.taps > kTile) {
    const int64_t elements = d.out * d.channels * d.taps;
    Launch(device, "order of weights", &ReorderOneByOne<From, To, kToLast>,
           Strided(device, elements), elements, d.channels, d.taps, from, to);
    return;
  }
  const int64_t width =
      std::min(d.channels, d.taps == 1 ? kTile : std::min(kRunChannels, kTile / d.taps));
  const int64_t chunks_each = (d.channels + width - 1) / width;
  const int64_t chunks = d.out * chunks_each;
  const int64_t max_blocks = int64_t{device.processors()} * 16;
  LaunchShape shape{.grid = dim3(std::min(chunks, max_blocks)), .block = dim3(kThreads)};
  Launch(device, "order of weights", &Reorder<From, To, kToLast>, shape, chunks, chunks_each,
         d.channels, d.taps, width, from, to);
}

template <bool kToLast>
void LaunchReorder(CudaDevice& device, const WeightOrderDims& dims, ConstValues from, Values to) {
  const int64_t elements = dims.out * dims.channels * dims.taps;
  CHECK_EQ(std::ssize(from), elements);
  CHECK_EQ(std::ssize(to), elements);
  if (elements == 0) return;
  ByType(from.type(), [&](auto from_zero) {
    ByType(to.type(), [&](auto to_zero) {
      using From = decltype(from_zero);
      using To = decltype(to_zero);
      LaunchTyped<From, To, kToLast>(device, dims, Data<From>(from), Data<To>(to));
    });
  });
}

}  // namespace

void LaunchChannelsToLast(CudaDevice& device, const WeightOrderDims& dims, ConstValues from,
                          Values to) {
  LaunchReorder<true>(device, dims, from, to);
}

void LaunchChannelsToFront(CudaDevice& device, const WeightOrderDims& dims, ConstValues from,
                           Values to) {
  LaunchReorder<false>(device, dims, from, to);
}

}  // namespace cadre
