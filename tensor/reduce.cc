// Sums of received data: sum[i] += values[i] for five element types, in three vector widths.
//
// One loop serves all widths, which compile it with their target attributes; 16-bit types have
// functions of their own for wide vectors, because what compilers make of their conversions is
// slower. Widths are selected at run time by processor features, by function pointer and not by
// CADRE_VECTOR_LOOP, so that tests can compare all of them.
//
// All widths give equal bits: the sum of two elements is rounded once and does not depend on the
// other elements. 16-bit types are converted to float, added and rounded to nearest even at every
// addition. The payload of the sum of two NaNs depends on the processor; nothing else does.
//
// bfloat16 is the upper half of a float, so conversion is a shift; rounding adds 0x7fff plus the
// last kept bit. NaNs are handled separately, since that addition could carry a NaN into infinity.
// float16 uses the F16C instructions; tests compare the scalar code with them.
//
// Cost: two loads, one addition and one store per vector: bound by memory bandwidth, or by the
// second-level cache if data has just arrived. Remainders shorter than a vector use the scalar
// loop.
#include "tensor/reduce.h"

#include <glog/logging.h>

#include <bit>
#include <cstring>

#include "tensor/elements.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace cadre {
namespace {

// Unaligned loads and stores.
template <typename T>
T Load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}
template <typename T>
void Store(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

// float16: 1 sign, 5 exponent (bias 15), 10 fraction.
float FromFloat16(uint16_t bits) {
  const uint32_t sign = (bits & 0x8000U) << 16;
  const uint32_t exponent = bits >> 10 & 0x1f;
  const uint32_t fraction = bits & 0x3ff;
  if (exponent == 0) {
    // Zero, or a denormal: fraction * 2^-24, exact in float.
    const float value = fraction * 0x1p-24F;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | sign);
  }
  if (exponent == 31) {
    // Infinity, or a NaN, which becomes a quiet one.
    return std::bit_cast<float>(sign | 0x7f800000 | fraction << 13 |
                                (fraction != 0 ? 0x400000U : 0U));
  }
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
}

uint16_t ToFloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 16 & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | 0x7e00 | (magnitude >> 13 & 0x3ff);
  // 65,520 is halfway between the largest float16 and the next power of two.
  if (magnitude >= std::bit_cast<uint32_t>(65520.0F)) return sign | 0x7c00;
  if (magnitude < std::bit_cast<uint32_t>(0x1p-14F)) {
    // Denormal. In [0.5, 1) the last place of a float is 2^-24, so adding 0.5 rounds to it.
    const float rounded = std::bit_cast<float>(magnitude) + 0.5F;
    return sign | (std::bit_cast<uint32_t>(rounded) & 0xffff);
  }
  const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
  return sign | ((rounded >> 13) - (112U << 10));
}

struct Float16 {
  uint16_t bits;
};
using cadre::RoundedSum;
Float16 RoundedSum(Float16 a, Float16 b) {
  return {ToFloat16(FromFloat16(a.bits) + FromFloat16(b.bits))};
}

// The arrays do not overlap.
template <typename T>
__attribute__((always_inline)) inline void AddElements(std::byte* __restrict sum,
                                                       const std::byte* __restrict values,
                                                       size_t bytes) {
  for (size_t i = 0; i < bytes / sizeof(T); ++i) {
    const size_t at = i * sizeof(T);
    Store(sum + at, RoundedSum(Load<T>(sum + at), Load<T>(values + at)));
  }
}

template <typename T>
void AddScalar(std::byte* sum, const std::byte* values, size_t bytes) {
  AddElements<T>(sum, values, bytes);
}

#if defined(__x86_64__)

template <typename T>
__attribute__((target("avx512f"))) void AddAvx512(std::byte* sum, const std::byte* values,
                                                  size_t bytes) {
  AddElements<T>(sum, values, bytes);
}

template <typename T>
__attribute__((target("avx2"))) void AddAvx2(std::byte* sum, const std::byte* values,
                                             size_t bytes) {
  AddElements<T>(sum, values, bytes);
}

__attribute__((target("avx512f"))) __m512 LoadBFloat16Avx512(const std::byte* from) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

__attribute__((target("avx512f"))) void AddBFloat16Avx512(std::byte* sum, const std::byte* values,
                                                          size_t bytes) {
  const __m512i one = _mm512_set1_epi32(1);
  const __m512i half = _mm512_set1_epi32(0x7fff);
  const __m512i quiet = _mm512_set1_epi32(0x400000);
  size_t at = 0;
  for (; at + 32 <= bytes; at += 32) {
    const __m512 added =
        _mm512_add_ps(LoadBFloat16Avx512(sum + at), LoadBFloat16Avx512(values + at));
    const __m512i bits = _mm512_castps_si512(added);
    const __m512i last = _mm512_and_si512(_mm512_srli_epi32(bits, 16), one);
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(half, last));
    const __mmask16 nan = _mm512_cmp_ps_mask(added, added, _CMP_UNORD_Q);
    const __m512i kept = _mm512_mask_or_epi32(rounded, nan, bits, quiet);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(sum + at),
                        _mm512_cvtepi32_epi16(_mm512_srli_epi32(kept, 16)));
  }
  AddScalar<Bf16>(sum + at, values + at, bytes - at);
}

__attribute__((target("avx512f"))) void AddFloat16Avx512(std::byte* sum, const std::byte* values,
                                                         size_t bytes) {
  size_t at = 0;
  for (; at + 32 <= bytes; at += 32) {
    const __m512 a =
        _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(sum + at)));
    const __m512 b =
        _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(values + at)));
    _mm256_storeu_si256(
        reinterpret_cast<__m256i*>(sum + at),
        _mm512_cvtps_ph(_mm512_add_ps(a, b), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  AddScalar<Float16>(sum + at, values + at, bytes - at);
}

__attribute__((target("avx2"))) __m256 LoadBFloat16Avx2(const std::byte* from) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

__attribute__((target("avx2"))) void AddBFloat16Avx2(std::byte* sum, const std::byte* values,
                                                     size_t bytes) {
  const __m256i one = _mm256_set1_epi32(1);
  const __m256i half = _mm256_set1_epi32(0x7fff);
  const __m256i quiet = _mm256_set1_epi32(0x400000);
  size_t at = 0;
  for (; at + 16 <= bytes; at += 16) {
    const __m256 added = _mm256_add_ps(LoadBFloat16Avx2(sum + at), LoadBFloat16Avx2(values + at));
    const __m256i bits = _mm256_castps_si256(added);
    const __m256i last = _mm256_and_si256(_mm256_srli_epi32(bits, 16), one);
    const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(half, last));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(added, added, _CMP_UNORD_Q));
    const __m256i kept =
        _mm256_srli_epi32(_mm256_blendv_epi8(rounded, _mm256_or_si256(bits, quiet), nan), 16);
    // Packing works within 128-bit halves; the permutation joins the results.
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(kept, kept), 0x08);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(sum + at), _mm256_castsi256_si128(packed));
  }
  AddScalar<Bf16>(sum + at, values + at, bytes - at);
}

__attribute__((target("avx2,f16c"))) void AddFloat16Avx2(std::byte* sum, const std::byte* values,
                                                         size_t bytes) {
  size_t at = 0;
  for (; at + 16 <= bytes; at += 16) {
    auto* out = reinterpret_cast<__m128i*>(sum + at);
    const __m256 a = _mm256_cvtph_ps(_mm_loadu_si128(out));
    const __m256 b =
        _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(values + at)));
    _mm_storeu_si128(
        out, _mm256_cvtps_ph(_mm256_add_ps(a, b), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  AddScalar<Float16>(sum + at, values + at, bytes - at);
}

// __builtin_cpu_supports of Clang 14 does not support "f16c".
bool ConvertsFloat16() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

#endif  // __x86_64__

using Add = decltype(Combine::add);

// The functions of one width.
struct AddFunctions {
  Add float32;
  Add bfloat16;
  Add float16;
  Add uint64;
  Add float64;
};

AddFunctions FunctionsOf(VectorWidth width) {
#if defined(__x86_64__)
  if (width == VectorWidth::k512) {
    return {AddAvx512<float>, AddBFloat16Avx512, AddFloat16Avx512, AddAvx512<uint64_t>,
            AddAvx512<double>};
  }
  if (width == VectorWidth::k256) {
    return {AddAvx2<float>, AddBFloat16Avx2, AddFloat16Avx2, AddAvx2<uint64_t>, AddAvx2<double>};
  }
#endif
  CHECK(width == VectorWidth::kNone);
  return {AddScalar<float>, AddScalar<Bf16>, AddScalar<Float16>, AddScalar<uint64_t>,
          AddScalar<double>};
}

}  // namespace

VectorWidth WidestVectors() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return VectorWidth::k512;
  if (__builtin_cpu_supports("avx2") && ConvertsFloat16()) return VectorWidth::k256;
#endif
  return VectorWidth::kNone;
}

Combine SumOf(DType type) { return SumOf(type, WidestVectors()); }

Combine SumOf(DType type, VectorWidth width) {
  const AddFunctions functions = FunctionsOf(width);
  switch (type) {
    case DType::kFloat32:
      return {functions.float32, SizeOf(type)};
    case DType::kBFloat16:
      return {functions.bfloat16, SizeOf(type)};
    case DType::kFloat16:
      return {functions.float16, SizeOf(type)};
    case DType::kUInt64:
      return {functions.uint64, SizeOf(type)};
    case DType::kFloat64:
      return {functions.float64, SizeOf(type)};
    case DType::kBytes:
      break;
  }
  LOG(FATAL) << "bytes cannot be added";
}

Combine ReferenceSumOf(DType type) { return SumOf(type, VectorWidth::kNone); }

}  // namespace cadre
