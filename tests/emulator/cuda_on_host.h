// CUDA C++ for the host's compiler. This file is included before a kernel file and defines the
// keywords and functions of CUDA C++ that our kernels use, by means of block_runner.h. A function
// that a new kernel needs must be added here.
//
// Multiplications and additions are fused as by nvcc if the host has such instructions. Functions
// such as expf have errors as large as CUDA's documentation states for a device, so a tolerance of
// a test that is too small for a device fails here.
#pragma once

// Every header that a kernel file may include must come before the macros below.
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
#undef __global__
// A host thread runs one block at a time, so a block's shared memory is thread-local.
#define __shared__ static thread_local
#define __constant__ static
// Kernels are local to their file, because GCC 12 also records the patch areas of copies of a
// template that the linker discards, which the linker refuses.
#define __global__ static
// LaunchBound (launch_bounds.h) finds the patch area. The attribute takes the value of an
// expression, but not a constant's name alone; hence the addition.
#define __launch_bounds__(threads) \
  __attribute__((patchable_function_entry((threads) + 0, (threads) + 0)))

#define threadIdx (::cadre::emulated::thread_index)
#define blockIdx (::cadre::emulated::block_index)
#define blockDim (::cadre::emulated::block_extent)
#define gridDim (::cadre::emulated::grid_extent)
#define warpSize (::cadre::emulated::kWarp)

// --- functions
// ------------------------------------------------------------------------------------

namespace cadre::emulated {

// `value` with an error of -ulps to ulps units in the last place, which is a function of the value.
// Zeros, ones and what is not finite are exact, and so are subnormal numbers.
inline float WithError(float value, int ulps) {
  if (!std::isnormal(value) || std::abs(value) == 1.0F) return value;
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t random = (bits * 2654435761U) >> 16;
  const float changed =
      std::bit_cast<float>(bits + random % static_cast<uint32_t>(2 * ulps + 1) - ulps);
  return std::isnormal(changed) ? changed : value;
}

}  // namespace cadre::emulated

// Maximum errors as in the CUDA C++ Programming Guide, "Mathematical Functions".
#define expf(x) (::cadre::emulated::WithError(::expf(x), 2))
#define logf(x) (::cadre::emulated::WithError(::logf(x), 1))
#define tanhf(x) (::cadre::emulated::WithError(::tanhf(x), 2))
#define erfcf(x) (::cadre::emulated::WithError(::erfcf(x), 4))
#define powf(x, y) (::cadre::emulated::WithError(::powf(x, y), 4))

// --- barriers -------------------------------------------------------------------------

inline void __syncthreads(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  ::cadre::emulated::SyncBlock(file, line);
}

// --- shuffles -----------------------------------------------------------------------------------

// The value of the lane whose number differs from this one's by `lane_mask`. CUDA leaves the value
// of a lane that the block does not have undefined; here all its bits are ones, which is NaN.
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, const char* file = __builtin_FILE(),
                  int line = __builtin_LINE()) {
  static_assert(sizeof(T) <= sizeof(uint64_t) && std::is_trivially_copyable_v<T>);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  int lanes = 0;
  const int from = ::cadre::emulated::Lane() ^ lane_mask;
  const uint64_t* all = ::cadre::emulated::Exchange(mask, bits, &lanes, file, line);
  bits = from < lanes ? all[from] : ~uint64_t{0};
  T result;
  std::memcpy(static_cast<void*>(&result), &bits, sizeof(T));
  return result;
}

// --- atomics ------------------------------------------------------------------------------------

// Each stream of a device runs on its own thread, so this must be atomic.
template <typename T>
T atomicAdd(T* address, std::type_identity_t<T> value) {
  std::atomic_ref<T> target(*address);
  T before = target.load(std::memory_order_relaxed);
  while (!target.compare_exchange_weak(before, before + value, std::memory_order_relaxed)) {
  }
  return before;
}
