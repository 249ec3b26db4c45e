// Loads and stores of own kernels: elements as fp32 or bf16, alone or sixteen bytes at a time.
//
// Kernels compute in fp32 (or wider) whatever the type. For *.cu only. Thread-safe (pure
// functions).
#pragma once

#include <cuda_bf16.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>

#include "glog/logging.h"
#include "tensor/dtype.h"

namespace cadre {

// The upper half of a float.
struct Bf16 {
  uint16_t bits;
};

__device__ inline float ToFloat(float value) { return value; }
__device__ inline float ToFloat(Bf16 value) {
  const uint32_t bits = static_cast<uint32_t>(value.bits) << 16;
  float wide;
  memcpy(&wide, &bits, sizeof(wide));
  return wide;
}

__device__ inline void FromFloat(float value, float* to) { *to = value; }
// To the nearest, ties to even; not-a-number stays that.
__device__ inline void FromFloat(float value, Bf16* to) {
  to->bits = __bfloat16_as_ushort(__float2bfloat16_rn(value));
}

// N neighbours, read and written at once where they begin at a multiple of their size (16 bytes at
// most). N: a power of two.
template <typename T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Group {
  T at[N];
};

template <typename T, int N>
__device__ inline void LoadGroup(const T* from, float (&values)[N]) {
  const Group<T, N> group = *reinterpret_cast<const Group<T, N>*>(from);
  for (int k = 0; k < N; ++k) values[k] = ToFloat(group.at[k]);
}

template <typename T, int N>
__device__ inline void StoreGroup(const float (&values)[N], T* to) {
  Group<T, N> group;
  for (int k = 0; k < N; ++k) FromFloat(values[k], &group.at[k]);
  *reinterpret_cast<Group<T, N>*>(to) = group;
}

// Elements in sixteen bytes.
template <typename T>
inline constexpr int kWide = static_cast<int>(16 / sizeof(T));

// Index in, and size of, a one-dimensional grid.
__device__ inline int64_t ThreadIndex() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ inline int64_t ThreadCount() { return static_cast<int64_t>(gridDim.x) * blockDim.x; }

// index / extent, and what remains in `rest`: in 32 bits where the numbers allow it, because
// dividing 64 bits takes several times as long.
__device__ inline int64_t Divide(int64_t index, int64_t extent, int64_t* rest) {
  if (((index | extent) >> 32) == 0) {
    const auto narrow = static_cast<uint32_t>(index);
    const auto by = static_cast<uint32_t>(extent);
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

// Calls f with a zero of the type.
template <typename F>
void ByType(DType type, const F& f) {
  switch (type) {
    case DType::kFloat32:
      return f(float{});
    case DType::kBFloat16:
      return f(Bf16{});
    default:
      LOG(FATAL) << "no kernels for " << DTypeName(type);
  }
}

}  // namespace cadre
