// Sums and maxima over the threads of a warp or of a block, with the same bits in every thread and
// in every execution. For *.cu only.
//
// Requires: all threads of the warp (block) call together; blocks consist of whole warps, at most
// 1024 threads.
#pragma once

#include <cstdint>

#include "device/cuda/launch.h"

namespace cadre {

inline constexpr unsigned kWholeWarp = 0xffffffffU;

struct Plus {
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};

// NaN is never the larger one.
struct Larger {
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return b > a ? b : a;
  }
};

// Requires: `combine` is commutative, so that both partners of each exchange compute the same
// value.
template <typename T, typename Combine>
__device__ inline T OverWarp(T value, Combine combine) {
  for (int distance = 16; distance > 0; distance /= 2) {
    value = combine(value, __shfl_xor_sync(kWholeWarp, value, distance));
  }
  return value;
}

// Requires: `shared` has 32 elements. They may be reused as soon as the call returns.
template <typename T, typename Combine>
__device__ inline T OverBlock(T value, Combine combine, T* shared) {
  value = OverWarp(value, combine);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  value = shared[0];
  for (unsigned warp = 1; warp < blockDim.x / 32; ++warp) value = combine(value, shared[warp]);
  __syncthreads();
  return value;
}

// The shape of kernels in which a warp computes a row at a time.
inline constexpr int kWarpsPerBlock = 4;
inline LaunchShape WarpPerRow(const CudaStreams& device, int64_t rows) {
  return Strided(device, rows * 32, kWarpsPerBlock * 32, 16);
}

}  // namespace cadre
