// CUDA C++ for the host's compiler: included before a kernel file, it gives the words and functions
// of the language that such a file uses, played by block_runner.h.
//
// Not here, since kernels do without: dynamic parallelism, cooperative groups, textures, shuffles
// with other than the full mask, inline PTX. Numbers: the fast functions (__expf) are the exact
// ones, and nothing is contracted to fused multiply-adds, so results differ from a device's within
// the tolerances that tests allow anyway.
#pragma once

// All that a kernel file may include itself, before the words below change.
#include <cuda_bf16.h>
#include <cuda_runtime_api.h>
#include <vector_functions.h>
#include <vector_types.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "tests/emulator/block_runner.h"

#undef __shared__
#undef __constant__
#undef __launch_bounds__
// One block runs at a time on one thread of the host, so what its threads share is that thread's.
#define __shared__ static thread_local
#define __constant__ static
#define __launch_bounds__(...)

#define threadIdx (::cadre::emulated::thread_index)
#define blockIdx (::cadre::emulated::block_index)
#define blockDim (::cadre::emulated::block_extent)
#define gridDim (::cadre::emulated::grid_extent)
#define warpSize (::cadre::emulated::kWarp)

#define CADRE_DYNAMIC_SHARED(Type, name) \
  Type* const name = reinterpret_cast<Type*>(::cadre::emulated::shared_memory)

// --- barriers and votes -------------------------------------------------------------------------

inline void __syncthreads(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  ::cadre::emulated::SyncBlock(file, line);
}
inline void __syncwarp(unsigned mask = ::cadre::emulated::kFullMask,
                       const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  int lanes = 0;
  ::cadre::emulated::Exchange(mask, 0, &lanes, file, line);
}
inline void __threadfence() { std::atomic_thread_fence(std::memory_order_seq_cst); }
inline void __threadfence_block() {}

inline unsigned __ballot_sync(unsigned mask, int predicate, const char* file = __builtin_FILE(),
                              int line = __builtin_LINE()) {
  int lanes = 0;
  const uint64_t* all =
      ::cadre::emulated::Exchange(mask, predicate != 0 ? 1 : 0, &lanes, file, line);
  unsigned votes = 0;
  for (int i = 0; i < lanes; ++i) votes |= static_cast<unsigned>(all[i]) << i;
  return votes;
}
inline int __any_sync(unsigned mask, int predicate, const char* file = __builtin_FILE(),
                      int line = __builtin_LINE()) {
  return __ballot_sync(mask, predicate, file, line) != 0 ? 1 : 0;
}
inline int __all_sync(unsigned mask, int predicate, const char* file = __builtin_FILE(),
                      int line = __builtin_LINE()) {
  return __ballot_sync(mask, predicate == 0 ? 1 : 0, file, line) == 0 ? 1 : 0;
}
// Blocks run threads one after the other, so these need two barriers and a place for the count.
inline int __syncthreads_count(int predicate, const char* file = __builtin_FILE(),
                               int line = __builtin_LINE()) {
  static thread_local int count;
  __syncthreads(file, line);
  count = 0;
  __syncthreads(file, line);
  count += predicate != 0 ? 1 : 0;
  __syncthreads(file, line);
  return count;
}
inline int __syncthreads_or(int predicate, const char* file = __builtin_FILE(),
                            int line = __builtin_LINE()) {
  return __syncthreads_count(predicate, file, line) != 0 ? 1 : 0;
}
inline int __syncthreads_and(int predicate, const char* file = __builtin_FILE(),
                             int line = __builtin_LINE()) {
  return __syncthreads_count(predicate == 0 ? 1 : 0, file, line) == 0 ? 1 : 0;
}

// --- shuffles -----------------------------------------------------------------------------------

namespace cadre::emulated {

// What lane source(lane, first, end) of the lane's group [first, end) gives; a lane's own value
// where the group has no such lane (`outside`). A lane that the block does not have gives all ones:
// not-a-number, for whoever reads what CUDA leaves undefined.
template <typename T, typename Source>
T Shuffle(unsigned mask, T value, int width, const char* file, int line, const Source& source) {
  static_assert(sizeof(T) <= sizeof(uint64_t) && std::is_trivially_copyable_v<T>);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  int lanes = 0;
  const int lane = Lane();
  const uint64_t* all = Exchange(mask, bits, &lanes, file, line);
  const int first = lane / width * width;
  const int from = source(lane, first, first + width);
  bits = from < lanes ? all[from] : ~uint64_t{0};
  T got;
  std::memcpy(static_cast<void*>(&got), &bits, sizeof(T));
  return got;
}

}  // namespace cadre::emulated

template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = warpSize,
              const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  return ::cadre::emulated::Shuffle(mask, value, width, file, line, [&](int, int first, int) {
    return first + (source & (width - 1));
  });
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = warpSize,
                  const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  return ::cadre::emulated::Shuffle(mask, value, width, file, line, [&](int lane, int, int end) {
    const int from = lane ^ lane_mask;
    return from < end ? from : lane;
  });
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = warpSize,
                   const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  return ::cadre::emulated::Shuffle(mask, value, width, file, line, [&](int lane, int, int end) {
    const int from = lane + static_cast<int>(delta);
    return from < end ? from : lane;
  });
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = warpSize,
                 const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  return ::cadre::emulated::Shuffle(mask, value, width, file, line, [&](int lane, int first, int) {
    const int from = lane - static_cast<int>(delta);
    return from >= first ? from : lane;
  });
}

// --- atomics ------------------------------------------------------------------------------------
// Streams of one device run on threads of their own, so these are atomic.

namespace cadre::emulated {

template <typename T, typename Change>
T Atomically(T* address, const Change& change) {
  std::atomic_ref<T> place(*address);
  T before = place.load(std::memory_order_relaxed);
  while (!place.compare_exchange_weak(before, change(before), std::memory_order_relaxed)) {
  }
  return before;
}

template <typename T>
concept AddsAtomically = std::is_same_v<T, int> || std::is_same_v<T, unsigned> ||
    std::is_same_v<T, unsigned long long> || std::is_same_v<T, float> || std::is_same_v<T, double>;
template <typename T>
concept AtomicInteger = std::is_same_v<T, int> || std::is_same_v<T, unsigned> ||
    std::is_same_v<T, long long> || std::is_same_v<T, unsigned long long>;

}  // namespace cadre::emulated

template <::cadre::emulated::AddsAtomically T>
T atomicAdd(T* address, std::type_identity_t<T> value) {
  return ::cadre::emulated::Atomically(address, [&](T before) { return before + value; });
}
inline __nv_bfloat16 atomicAdd(__nv_bfloat16* address, __nv_bfloat16 value) {
  auto* bits = reinterpret_cast<unsigned short*>(address);
  const unsigned short before = ::cadre::emulated::Atomically(bits, [&](unsigned short old) {
    return __bfloat16_as_ushort(
        __float2bfloat16(__bfloat162float(__ushort_as_bfloat16(old)) + __bfloat162float(value)));
  });
  return __ushort_as_bfloat16(before);
}
template <::cadre::emulated::AtomicInteger T>
T atomicMax(T* address, std::type_identity_t<T> value) {
  return ::cadre::emulated::Atomically(address, [&](T old) { return old < value ? value : old; });
}
template <::cadre::emulated::AtomicInteger T>
T atomicMin(T* address, std::type_identity_t<T> value) {
  return ::cadre::emulated::Atomically(address, [&](T old) { return value < old ? value : old; });
}
template <::cadre::emulated::AtomicInteger T>
T atomicOr(T* address, std::type_identity_t<T> value) {
  return ::cadre::emulated::Atomically(address, [&](T old) { return old | value; });
}
template <::cadre::emulated::AtomicInteger T>
T atomicAnd(T* address, std::type_identity_t<T> value) {
  return ::cadre::emulated::Atomically(address, [&](T old) { return old & value; });
}
template <typename T>
T atomicExch(T* address, std::type_identity_t<T> value) {
  return ::cadre::emulated::Atomically(address, [&](T) { return value; });
}
template <::cadre::emulated::AtomicInteger T>
T atomicCAS(T* address, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  return ::cadre::emulated::Atomically(address,
                                       [&](T old) { return old == expected ? value : old; });
}
inline unsigned atomicInc(unsigned* address, unsigned most) {
  return ::cadre::emulated::Atomically(address,
                                       [&](unsigned old) { return old >= most ? 0U : old + 1; });
}

// --- loads and stores ---------------------------------------------------------------------------

template <typename T>
T __ldg(const T* address) {
  return *address;
}
template <typename T>
T __ldcs(const T* address) {
  return *address;
}
template <typename T>
T __ldcg(const T* address) {
  return *address;
}
template <typename T>
T __ldca(const T* address) {
  return *address;
}
template <typename T>
void __stcs(T* address, std::type_identity_t<T> value) {
  *address = value;
}
template <typename T>
void __stcg(T* address, std::type_identity_t<T> value) {
  *address = value;
}

// --- numbers ------------------------------------------------------------------------------------

// What CUDA declares globally. The C library's headers declare the rest (sqrtf, expf, erff, fmaf).
using std::isfinite;
using std::isinf;
using std::isnan;

// Of two arithmetic types, as the usual conversions have it.
template <typename A, typename B>
requires(std::is_arithmetic_v<A>&& std::is_arithmetic_v<B>) constexpr std::common_type_t<A, B> min(
    A a, B b) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<T>) {
    return std::fmin(static_cast<T>(a), static_cast<T>(b));
  } else {
    return std::min(static_cast<T>(a), static_cast<T>(b));
  }
}
template <typename A, typename B>
requires(std::is_arithmetic_v<A>&& std::is_arithmetic_v<B>) constexpr std::common_type_t<A, B> max(
    A a, B b) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<T>) {
    return std::fmax(static_cast<T>(a), static_cast<T>(b));
  } else {
    return std::max(static_cast<T>(a), static_cast<T>(b));
  }
}

inline float rsqrtf(float x) { return 1.0F / std::sqrt(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
inline float __expf(float x) { return std::exp(x); }
inline float __exp10f(float x) { return std::pow(10.0F, x); }
inline float __logf(float x) { return std::log(x); }
inline float __log2f(float x) { return std::log2(x); }
inline float __powf(float x, float y) { return std::pow(x, y); }
inline float __sinf(float x) { return std::sin(x); }
inline float __cosf(float x) { return std::cos(x); }
inline float __tanhf(float x) { return std::tanh(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __saturatef(float x) { return x >= 1 ? 1.0F : x > 0 ? x : 0.0F; }
inline float __frcp_rn(float x) { return 1.0F / x; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline float __frsqrt_rn(float x) { return 1.0F / std::sqrt(x); }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fmaf_rn(float x, float y, float z) { return std::fma(x, y, z); }
inline double __dadd_rn(double x, double y) { return x + y; }
inline double __dsub_rn(double x, double y) { return x - y; }
inline double __dmul_rn(double x, double y) { return x * y; }
inline double __ddiv_rn(double x, double y) { return x / y; }
inline double __dsqrt_rn(double x) { return std::sqrt(x); }
inline double __fma_rn(double x, double y, double z) { return std::fma(x, y, z); }

inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline long long __double_as_longlong(double x) { return std::bit_cast<long long>(x); }
inline double __longlong_as_double(long long x) { return std::bit_cast<double>(x); }
inline int __float2int_rn(float x) { return static_cast<int>(std::nearbyint(x)); }
inline int __float2int_rz(float x) { return static_cast<int>(x); }
inline int __float2int_rd(float x) { return static_cast<int>(std::floor(x)); }
inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline float __uint2float_rn(unsigned x) { return static_cast<float>(x); }
inline float __double2float_rn(double x) { return static_cast<float>(x); }

inline unsigned __umulhi(unsigned x, unsigned y) {
  return static_cast<unsigned>(uint64_t{x} * y >> 32);
}
inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(x) * y >> 64);
}
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __popcll(unsigned long long x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __clzll(long long x) { return std::countl_zero(static_cast<unsigned long long>(x)); }
inline int __ffs(int x) { return __builtin_ffs(x); }
