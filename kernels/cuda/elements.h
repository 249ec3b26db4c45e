// Loads and stores of our kernels: elements of fp32 or bf16, one at a time or 16 bytes at a time.
//
// Kernels compute in fp32 (or wider) whatever the type. For *.cu only. Thread-safe (pure
// functions).
#pragma once

#include <cuda_bf16.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "tensor/dtype.h"
#include "tensor/elements.h"
#include "tensor/values.h"

namespace cadre {

__device__ inline void FromFloat(float value, float* to) { *to = value; }
// Rounds to nearest, ties to even; NaN stays NaN.
__device__ inline void FromFloat(float value, Bf16* to) {
  to->bits = __bfloat16_as_ushort(__float2bfloat16_rn(value));
}

// N neighbouring elements, which one instruction reads or writes if they begin at a multiple of
// their size (at most 16 bytes). N is a power of two.
template <typename T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Group {
  T at[N];
};

// The elements as they are stored, which occupy fewer registers than floats.
template <typename T, int N>
__device__ inline Group<T, N> ReadGroup(const T* from) {
  return *reinterpret_cast<const Group<T, N>*>(from);
}

template <typename T, int N>
__device__ inline void ToFloats(const Group<T, N>& group, float (&values)[N]) {
  for (int k = 0; k < N; ++k) values[k] = ToFloat(group.at[k]);
}

template <typename T, int N>
__device__ inline void LoadGroup(const T* from, float (&values)[N]) {
  ToFloats(ReadGroup<T, N>(from), values);
}

template <typename T, int N>
__device__ inline void StoreGroup(const float (&values)[N], T* to) {
  Group<T, N> group;
  for (int k = 0; k < N; ++k) FromFloat(values[k], &group.at[k]);
  *reinterpret_cast<Group<T, N>*>(to) = group;
}

// The number of elements in 16 bytes.
template <typename T>
inline constexpr int kWide = 16 / int{sizeof(T)};

// The thread's index in a one-dimensional grid, and the number of threads of that grid.
__device__ inline int64_t ThreadIndex() { return int64_t{blockIdx.x} * blockDim.x + threadIdx.x; }
__device__ inline int64_t ThreadCount() { return int64_t{gridDim.x} * blockDim.x; }

// Returns index / extent and stores the remainder in `rest`. Divides 32-bit numbers if both fit,
// because a 64-bit division takes several times as long.
__device__ inline int64_t Divide(int64_t index, int64_t extent, int64_t* rest) {
  if (((index | extent) >> 32) == 0) {
    const uint32_t narrow = index, by = extent;
    const uint32_t quotient = narrow / by;
    *rest = narrow - quotient * by;
    return quotient;
  }
  const int64_t quotient = index / extent;
  *rest = index - quotient * extent;
  return quotient;
}

__device__ inline bool IsFinite(double value) { return value - value == 0; }

// --- on the host ---------------------------------------------------------------------------------

inline bool Aligned(std::initializer_list<const void*> pointers, size_t bytes = 16) {
  for (const void* pointer : pointers) {
    if (reinterpret_cast<uintptr_t>(pointer) % bytes != 0) return false;
  }
  return true;
}

// Calls f with a zero of the type and, as a std::integral_constant, with the number of elements to
// access together: as many as have 16 bytes if that number divides `extent` and all pointers are
// aligned, otherwise one.
template <typename F>
void ByTypeAndWidth(DType type, int64_t extent, std::initializer_list<const void*> pointers,
                    const F& f) {
  ByType(type, [&](auto zero) {
    constexpr int kGroup = kWide<decltype(zero)>;
    if (extent % kGroup == 0 && Aligned(pointers)) {
      f(zero, std::integral_constant<int, kGroup>());
    } else {
      f(zero, std::integral_constant<int, 1>());
    }
  });
}

}  // namespace cadre
