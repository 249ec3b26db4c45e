// Elementwise kernels: y = f(a, b), in one pass over the arrays.
//
// For *.cu only. Thread-compatible: enqueues on the device's current stream.
#pragma once

#include <algorithm>
#include <cstdint>

#include "device/cuda/launch.h"
#include "kernels/cuda/elements.h"

namespace cadre {

struct Sum {
  __device__ float operator()(float a, float b) const { return a + b; }
};

// y = f(a, b); a null b counts as zeros. y may be the same array as a or b: each element is read
// and written by one thread, which reads before it writes.
template <typename F, typename From, typename To, int N>
__global__ void __launch_bounds__(256) Map(F f, int64_t n, const From* a, const From* b, To* y) {
  const int64_t groups = n / N;
  for (int64_t i = ThreadIndex(); i < groups; i += ThreadCount()) {
    float first[N];
    float second[N] = {};
    LoadGroup(a + i * N, first);
    if (b != nullptr) LoadGroup(b + i * N, second);
    for (int k = 0; k < N; ++k) first[k] = f(first[k], second[k]);
    StoreGroup(first, y + i * N);
  }
  for (int64_t i = groups * N + ThreadIndex(); i < n; i += ThreadCount()) {
    FromFloat(f(ToFloat(a[i]), b != nullptr ? ToFloat(b[i]) : 0.0F), y + i);
  }
}

template <typename F, typename From, typename To>
void LaunchMap(CudaDevice& device, const char* name, const F& f, int64_t n, const From* a,
               const From* b, To* y) {
  constexpr int kGroup = std::max(kWide<From>, kWide<To>);
  if (Aligned({a, b, y})) {
    Launch(device, name, Map<F, From, To, kGroup>, Strided(device, n / kGroup + 1), f, n, a, b, y);
  } else {
    Launch(device, name, Map<F, From, To, 1>, Strided(device, n), f, n, a, b, y);
  }
}

}  // namespace cadre
