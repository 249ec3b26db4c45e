// The C++ types of activations, float and Bf16, and their conversions. Values (tensor/values.h)
// have a type that is known at run time; ByType gives the code that visits their elements a type
// that is known at compile time.
//
// Thread-safe (pure functions).
#pragma once

#include <cstdint>
#include <cstring>

#include "glog/logging.h"
#include "tensor/dtype.h"
#include "tensor/values.h"

// For functions of one element that are used on hosts and in CUDA kernels.
#ifdef __CUDACC__
#define CADRE_ELEMENT __host__ __device__ __forceinline__
#else
#define CADRE_ELEMENT __attribute__((always_inline)) inline
#endif

namespace cadre {

// The upper half of a float.
struct Bf16 {
  uint16_t bits;
};

CADRE_ELEMENT float ToFloat(float value) { return value; }
CADRE_ELEMENT float ToFloat(Bf16 value) {
  const uint32_t bits = uint32_t{value.bits} << 16;
  float wide;
  memcpy(&wide, &bits, sizeof(wide));
  return wide;
}

// Rounds to nearest, ties to even; NaN stays NaN.
CADRE_ELEMENT Bf16 RoundToBf16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  // Half a unit in the last place, minus one if the last place is even. This addition could carry a
  // NaN into infinity.
  const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  const uint32_t quiet = bits >> 16 | 0x40;
  return {static_cast<uint16_t>(value != value ? quiet : rounded)};
}

template <typename T>
CADRE_ELEMENT T RoundedSum(T a, T b) {
  return a + b;
}
CADRE_ELEMENT Bf16 RoundedSum(Bf16 a, Bf16 b) { return RoundToBf16(ToFloat(a) + ToFloat(b)); }

// The elements of a view as Ts. Requires: the view's type is T.
template <typename T>
const T* Data(ConstValues values) {
  return static_cast<const T*>(values.data());
}
template <typename T>
T* Data(Values values) {
  return static_cast<T*>(values.data());
}

// Calls f with a zero of the C++ type of `type`, from which f deduces it.
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
