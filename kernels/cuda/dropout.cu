// Dropout from the same counter-based generator as the host's (base/random.h), so that a device
// drops the same elements. An element's number is computed from its position in the whole batch,
// which a walk over the rank's box yields; the position of the batch is read from device memory, so
// that a captured graph draws new numbers at every launch.
#include <cmath>

#include "base/random.h"
#include "device/cuda/launch.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/launches.h"
#include "kernels/cuda/nest.h"

namespace cadre {
namespace {

constexpr uint64_t kGolden = 0x9e3779b97f4a7c15ULL;

// RandomSequence of base/random.h, which device code cannot call. Tests hold them together.
__host__ __device__ inline uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

struct Fate {
  uint64_t key = 0;
  // Of the 24 random bits that a kept element has.
  uint32_t least = 0;
  float scale = 1;

  __device__ float operator()(uint64_t number, float x) const {
    const auto bits = static_cast<uint32_t>(Mix(key + kGolden * (number + 1)));
    return (bits >> 8) >= least ? x * scale : 0;
  }
};

Fate FateOf(const DropoutKey& key) {
  const auto stream = static_cast<uint64_t>(RandomStream::kDropout);
  // A uniform number is 24 bits over 2^24, and rate * 2^24 is exact: comparing whole numbers is the
  // same as comparing the fractions.
  return {.key = Mix(Mix(key.seed + kGolden * (stream + 1)) + kGolden * (key.layer + 1)),
          .least = static_cast<uint32_t>(std::ceil(key.rate * 16777216.0F)),
          .scale = 1.0F / (1.0F - key.rate)};
}

// x and y may be the same.
template <typename T, int N>
__global__ void __launch_bounds__(256)
    Drop(Fate fate, Nest nest, uint64_t first, const int64_t* position, int64_t sample_elements,
         const T* x, T* y) {
  if (position != nullptr) first += static_cast<uint64_t>(*position * sample_elements);
  for (int64_t i = ThreadIndex(); i < nest.elements; i += ThreadCount()) {
    int64_t at;
    int64_t number;
    Locate(nest, i, &at, &number);
    float values[N];
    LoadGroup(x + at, values);
    for (int k = 0; k < N; ++k) {
      values[k] = fate(first + static_cast<uint64_t>(number) + static_cast<uint64_t>(k), values[k]);
    }
    StoreGroup(values, y + at);
  }
}

}  // namespace

void LaunchDropout(CudaDevice& device, const DropoutKey& key, const NestLoops& loops,
                   uint64_t first, const int64_t* position, int64_t sample_elements, ConstValues x,
                   Values y) {
  const Nest nest = MakeNest(loops);
  ByType(y.type(), [&](auto zero) {
    using T = decltype(zero);
    const T* const from = static_cast<const T*>(x.data());
    T* const to = static_cast<T*>(y.data());
    if (Aligned({from, to}) && CanGroup(nest, kWide<T>, /*b_too=*/false)) {
      const Nest grouped = Grouped(nest, kWide<T>);
      Launch(device, "dropout", Drop<T, kWide<T>>, Strided(device, grouped.elements), FateOf(key),
             grouped, first, position, sample_elements, from, to);
    } else {
      Launch(device, "dropout", Drop<T, 1>, Strided(device, nest.elements), FateOf(key), nest,
             first, position, sample_elements, from, to);
    }
  });
}

}  // namespace cadre
