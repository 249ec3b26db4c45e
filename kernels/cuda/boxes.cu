// Copies and sums of boxes of tensors: halos, reshards, and runs of rows. A box is a nest of loops
// over two memories (nest_loops.h); neighbouring loops that are contiguous in both are merged, and
// the innermost one moves 16 bytes at a time where both memories are aligned. One launch per box:
// launches, not bytes, dominate the cost of small halos.
#include "device/cuda/launch.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/launches.h"
#include "kernels/cuda/nest.h"

namespace cadre {
namespace {

template <typename T, int N>
__global__ void __launch_bounds__(256)
    CopyNest(Nest nest, const T* __restrict__ from, T* __restrict__ to) {
  for (int64_t i = ThreadIndex(); i < nest.elements; i += ThreadCount()) {
    int64_t a;
    int64_t b;
    Locate(nest, i, &a, &b);
    *reinterpret_cast<Group<T, N>*>(to + b) = *reinterpret_cast<const Group<T, N>*>(from + a);
  }
}

template <typename T, int N>
__global__ void __launch_bounds__(256)
    AddNest(Nest nest, const T* __restrict__ from, T* __restrict__ to) {
  for (int64_t i = ThreadIndex(); i < nest.elements; i += ThreadCount()) {
    int64_t a;
    int64_t b;
    Locate(nest, i, &a, &b);
    float values[N];
    float sums[N];
    LoadGroup(from + a, values);
    LoadGroup(to + b, sums);
    for (int k = 0; k < N; ++k) sums[k] += values[k];
    StoreGroup(sums, to + b);
  }
}

// wide(nest, zero) or narrow(nest, zero), whichever alignment allows.
template <typename Wide, typename DivideToFloat>
void ByWidth(const NestLoops& loops, ConstValues from, Values to, const Wide& wide,
             const DivideToFloat& narrow) {
  const Nest nest = MakeNest(loops);
  ByType(to.type(), [&](auto zero) {
    constexpr int kGroup = kWide<decltype(zero)>;
    if (Aligned({from.data(), to.data()}) && CanGroup(nest, kGroup, /*b_too=*/true)) {
      wide(Grouped(nest, kGroup), zero);
    } else {
      narrow(nest, zero);
    }
  });
}

}  // namespace

void LaunchCopyNest(CudaDevice& device, const NestLoops& loops, ConstValues from, Values to) {
  const auto launch = [&](const Nest& nest, auto zero, auto kernel) {
    using T = decltype(zero);
    Launch(device, "copy a box", kernel, Strided(device, nest.elements), nest,
           static_cast<const T*>(from.data()), static_cast<T*>(to.data()));
  };
  ByWidth(
      loops, from, to,
      [&](const Nest& nest, auto zero) {
        using T = decltype(zero);
        launch(nest, zero, CopyNest<T, kWide<T>>);
      },
      [&](const Nest& nest, auto zero) { launch(nest, zero, CopyNest<decltype(zero), 1>); });
}

void LaunchAddNest(CudaDevice& device, const NestLoops& loops, ConstValues from, Values to) {
  const auto launch = [&](const Nest& nest, auto zero, auto kernel) {
    using T = decltype(zero);
    Launch(device, "add a box", kernel, Strided(device, nest.elements), nest,
           static_cast<const T*>(from.data()), static_cast<T*>(to.data()));
  };
  ByWidth(
      loops, from, to,
      [&](const Nest& nest, auto zero) {
        using T = decltype(zero);
        launch(nest, zero, AddNest<T, kWide<T>>);
      },
      [&](const Nest& nest, auto zero) { launch(nest, zero, AddNest<decltype(zero), 1>); });
}

}  // namespace cadre
