// Tools for the inner loops of the CPU back end, besides base/vector_loop.h: a vector of sixteen
// floats, loads and stores of floats and of bf16, and functions of one float that a compiler can
// vectorise.
//
// Loops over activations are templates of the element's type, float or Bf16. They compute in fp32:
// Load<float> and Load<Vector> widen bf16, and Store rounds to it once.
//
// Thread-safe (pure functions). For the .cc files of kernels/cpu only.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/vector_loop.h"
#include "tensor/elements.h"

#define CADRE_INLINE __attribute__((always_inline)) inline

namespace cadre {

// A vector is one AVX-512 register, or several smaller ones.
constexpr int64_t kVectorSize = 16;
using Vector = float __attribute__((vector_size(kVectorSize * sizeof(float))));
using IntVector = int32_t __attribute__((vector_size(kVectorSize * sizeof(int32_t))));

// Load and Store access a V: Vector or IntVector, or one float or int32_t (for the elements after
// the last whole vector of a row).
template <typename V, typename T>
CADRE_INLINE V Load(const T* p) {
  V v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}
template <typename V, typename T>
CADRE_INLINE void Store(T* p, V v) {
  std::memcpy(p, &v, sizeof(v));
}

using BitVector = uint32_t __attribute__((vector_size(kVectorSize * sizeof(uint32_t))));
using Bf16Vector = uint16_t __attribute__((vector_size(kVectorSize * sizeof(uint16_t))));

// V is Vector or float.
template <typename V>
CADRE_INLINE V Load(const Bf16* p) {
  if constexpr (sizeof(V) == sizeof(float)) {
    return ToFloat(*p);
  } else {
    const auto wide = __builtin_convertvector(Load<Bf16Vector>(&p->bits), BitVector) << 16;
    return Load<V>(&wide);
  }
}

// v rounded to the type T.
template <typename T>
CADRE_INLINE float Rounded(float v) {
  if constexpr (sizeof(T) == sizeof(float)) return v;
  return ToFloat(RoundToBf16(v));
}
template <typename T>
CADRE_INLINE Vector Rounded(Vector v) {
  if constexpr (sizeof(T) == sizeof(float)) return v;
  const auto bits = Load<BitVector>(&v);
  const BitVector result =
      (v == v ? bits + 0x7fff + (bits >> 16 & 1) : bits | 0x400000) & 0xffff0000U;
  return Load<Vector>(&result);
}

// Stores v, which is rounded to the element's type already.
template <typename V>
CADRE_INLINE void StoreExact(float* p, V v) {
  Store(p, v);
}
CADRE_INLINE void StoreExact(Bf16* p, float v) { *p = RoundToBf16(v); }
CADRE_INLINE void StoreExact(Bf16* p, Vector v) {
  Store(&p->bits, __builtin_convertvector(Load<BitVector>(&v) >> 16, Bf16Vector));
}

CADRE_INLINE void Store(float* p, float v) { *p = v; }
CADRE_INLINE void Store(Bf16* p, float v) { *p = RoundToBf16(v); }
CADRE_INLINE void Store(Bf16* p, Vector v) { StoreExact(p, Rounded<Bf16>(v)); }

// to[i] = sums[i], rounded to fp32 first.
template <typename T>
void StoreRounded(std::span<const double> sums, T* to) {
  for (const double sum : sums) Store(to++, static_cast<float>(sum));
}

// Prefetches the data that a loop over consecutive memory will read later, kAhead elements ahead.
// Without it, loops that do more than copy reach only half the bandwidth. The address may lie
// outside the array.
template <int64_t kAhead = 2048, typename T>
CADRE_INLINE void Prefetch(const T* p) {
  __builtin_prefetch(
      reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(p) + kAhead * sizeof(T)));
}

using HalfVector = float __attribute__((vector_size(kVectorSize / 2 * sizeof(float))));
using Doubles = double __attribute__((vector_size(kVectorSize / 2 * sizeof(double))));

// to[kVectorSize] += v.
CADRE_INLINE void AddWide(Vector v, double* to) {
  HalfVector halves[2];
  std::memcpy(halves, &v, sizeof(v));
  for (const HalfVector& half : halves) {
    Store(to, Load<Doubles>(to) + __builtin_convertvector(half, Doubles));
    to += kVectorSize / 2;
  }
}
CADRE_INLINE void AddWide(float v, double* to) { *to += v; }

// e^x with an error of at most 2 units in the last place; 0 below -87, e^88 above 88, and NaN for
// NaN.
CADRE_INLINE float Exp(float argument) {
  float x = argument < -87.0F ? -87.0F : argument;
  x = x > 88.0F ? 88.0F : x;
  // Adding 1.5 * 2^23 leaves the nearest whole number n of x / ln 2 in the lowest bits.
  constexpr float kRound = 12582912.0F;
  const float shifted = x * 1.44269504F + kRound;
  const float n = shifted - kRound;
  // ln 2 in two parts, of which the first has few enough bits for an exact product.
  const float r = (x - n * 0.693359375F) + n * 2.12194440e-4F;
  // The series of e^r, |r| < 0.35: the tail after r^7 / 7! is below 6e-9.
  float sum = 1.0F / 5040;
  sum = sum * r + 1.0F / 720;
  sum = sum * r + 1.0F / 120;
  sum = sum * r + 1.0F / 24;
  sum = sum * r + 1.0F / 6;
  sum = sum * r + 0.5F;
  sum = sum * r + 1.0F;
  sum = sum * r + 1.0F;
  sum *= std::bit_cast<float>((std::bit_cast<uint32_t>(shifted) + 127U) << 23);
  return argument < -87.0F ? 0.0F : sum;
}

// The normal distribution at x: its density is `density` / sqrt(2 pi), and its integral from minus
// infinity is `below`.
struct Normal {
  float density, below;
};

// With z = |x| / sqrt 2 and t = 1 / (1 + 0.4 z), erfc(z) e^(z^2) / t is a polynomial in t to 8e-9
// (least squares on Chebyshev nodes, reweighted until the relative errors were even). By the
// complement, small values of `below` keep their relative precision.
CADRE_INLINE Normal NormalOf(float x) {
  const float z = (x < 0 ? -x : x) * 0.707106781F;
  const float t = 1.0F / (1.0F + 0.4F * z);
  float sum = -0.0295954068F;
  sum = sum * t + 0.198018745F;
  sum = sum * t - 0.498823822F;
  sum = sum * t + 0.54745096F;
  sum = sum * t - 0.284378813F;
  sum = sum * t + 0.272072322F;
  sum = sum * t + 0.129677643F;
  sum = sum * t + 0.21491949F;
  sum = sum * t + 0.224951978F;
  sum = sum * t + 0.225706911F;
  const float density = Exp(-z * z);
  const float tail = 0.5F * t * sum * density;
  return {density, x < 0 ? tail : 1.0F - tail};
}

CADRE_INLINE float SigmoidOf(float x) { return 1.0F / (1.0F + Exp(-x)); }

CADRE_INLINE float TanhOf(float x) {
  const float size = x < 0 ? -x : x;
  const float e = Exp(-2.0F * size);
  const float far = (1.0F - e) / (1.0F + e);
  // Near 0 that quotient loses digits; there tanh(s) / s is a polynomial in s^2 to 5e-9.
  const float z = size * size;
  float sum = 0.00229283692F;
  sum = sum * z - 0.0083440371F;
  sum = sum * z + 0.0217689508F;
  sum = sum * z - 0.0539592643F;
  sum = sum * z + 0.133333036F;
  sum = sum * z - 0.333333332F;
  const float near = size + size * z * sum;
  const float result = size < 0.625F ? near : far;
  return x < 0 ? -result : result;
}

}  // namespace cadre
