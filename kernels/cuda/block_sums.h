// Sums and maxima over the threads of a warp or of a block, with the same bits in every thread and
// in every execution. For *.cu only.
//
// Requires: all threads of the warp (block) call together; blocks consist of whole warps, at most
// 1024 threads.
#pragma once

#include <cstdint>

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

// Requires: `of` is commutative, so that both partners of each exchange compute the same value.
template <typename T, typename Of>
__device__ inline T OverWarp(T value, Of of) {
  for (int distance = 16; distance > 0; distance /= 2) {
    value = of(value, __shfl_xor_sync(kWholeWarp, value, distance));
  }
  return value;
}

// Requires: `shared` has 32 elements. They may be reused as soon as the call returns.
template <typename T, typename Of>
__device__ inline T OverBlock(T value, Of of, T* shared) {
  value = OverWarp(value, of);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  value = shared[0];
  for (unsigned warp = 1; warp < blockDim.x / 32; ++warp) value = of(value, shared[warp]);
  __syncthreads();
  return value;
}

}  // namespace cadre
