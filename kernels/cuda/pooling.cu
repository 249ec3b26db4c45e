// Pooling: one thread per output and group of neighbouring channels; in backward, per input.
//
// As on the CPU, backward gathers from the windows that cover an input instead of scattering with
// atomics, so that sums have one order and every element is written once. Threads with
// consecutive indices have consecutive channels ("channels last"), so that the loads of a warp are
// contiguous; a thread reads 16 bytes at a time where channels and addresses allow it (ByGroup).
// Divisions by extents use 32 bits where the numbers fit (Divide), because 64-bit division is
// emulated by dozens of instructions.
//
// max: the first of equal elements is the largest, and NaN only if it is first, as in the other
// back ends. Cost: memory bandwidth; windows overlap in the second-level cache.
#include <algorithm>

#include "device/cuda/launch.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/launches.h"

namespace cadre {
namespace {

// One position of a batch of images and one group of its channels.
struct Place {
  int64_t image, row, column, channel;
};

template <int N>
__device__ inline Place PlaceOf(int64_t index, int64_t channels, int64_t width, int64_t height) {
  Place place;
  index = Divide(index, channels / N, &place.channel);
  place.channel *= N;
  index = Divide(index, width, &place.column);
  place.image = Divide(index, height, &place.row);
  return place;
}

// The part of a window that lies inside the image.
struct Inside {
  int64_t top, bottom, left, right;
  __device__ int64_t elements() const {
    return bottom > top && right > left ? (bottom - top) * (right - left) : 0;
  }
};

__device__ inline Inside InsideOf(const WindowDims& w, int64_t row, int64_t column) {
  const int64_t top = row * w.stride - w.pad_top;
  const int64_t left = column * w.stride - w.pad_left;
  return {
      top > 0 ? top : 0, top + w.kernel_height < w.in_height ? top + w.kernel_height : w.in_height,
      left > 0 ? left : 0, left + w.kernel_width < w.in_width ? left + w.kernel_width : w.in_width};
}

__device__ inline float DivisorOf(const WindowDims& w, PoolKind kind, const Inside& inside) {
  if (kind == PoolKind::kAverageWithPadding) {
    return static_cast<float>(w.kernel_height * w.kernel_width);
  }
  const int64_t elements = inside.elements();
  return static_cast<float>(elements > 1 ? elements : 1);
}

// The first of equals wins, and not-a-number only where it is the first.
template <typename T, int N>
__global__ void __launch_bounds__(256)
    MaxForward(WindowDims w, int64_t channels, int64_t groups, const T* __restrict__ x,
               T* __restrict__ y, int32_t* __restrict__ argmax) {
  for (int64_t i = ThreadIndex(); i < groups; i += ThreadCount()) {
    const Place place = PlaceOf<N>(i, channels, w.out_width, w.out_height);
    const Inside inside = InsideOf(w, place.row, place.column);
    float best[N] = {};
    int32_t where[N];
    for (int k = 0; k < N; ++k) where[k] = -1;
    for (int64_t h = inside.top; h < inside.bottom; ++h) {
      for (int64_t v = inside.left; v < inside.right; ++v) {
        const int64_t position = h * w.in_width + v;
        float values[N];
        LoadGroup(
            x + ((place.image * w.in_height * w.in_width + position) * channels + place.channel),
            values);
        for (int k = 0; k < N; ++k) {
          if (where[k] >= 0 && !(values[k] > best[k])) continue;
          best[k] = values[k];
          where[k] = static_cast<int32_t>(position);
        }
      }
    }
    StoreGroup(best, y + i * N);
    for (int k = 0; k < N; ++k) argmax[i * N + k] = where[k];
  }
}

template <typename T, int N>
__global__ void __launch_bounds__(256)
    AverageForward(WindowDims w, PoolKind kind, int64_t channels, int64_t groups,
                   const T* __restrict__ x, T* __restrict__ y) {
  for (int64_t i = ThreadIndex(); i < groups; i += ThreadCount()) {
    const Place place = PlaceOf<N>(i, channels, w.out_width, w.out_height);
    const Inside inside = InsideOf(w, place.row, place.column);
    float sums[N] = {};
    for (int64_t h = inside.top; h < inside.bottom; ++h) {
      for (int64_t v = inside.left; v < inside.right; ++v) {
        float values[N];
        LoadGroup(x + ((place.image * w.in_height + h) * w.in_width + v) * channels + place.channel,
                  values);
        for (int k = 0; k < N; ++k) sums[k] += values[k];
      }
    }
    const float divisor = DivisorOf(w, kind, inside);
    for (int k = 0; k < N; ++k) sums[k] /= divisor;
    StoreGroup(sums, y + i * N);
  }
}

// The windows along one dimension that cover a position: [first, end).
struct Covering {
  int64_t first, end;
};

__device__ inline Covering CoveringOf(int64_t position, int64_t pad, int64_t kernel, int64_t stride,
                                      int64_t windows) {
  const int64_t from = position + pad - kernel + 1;
  int64_t rest;
  Covering found;
  found.first = from <= 0 ? 0 : Divide(from + stride - 1, stride, &rest);
  found.end = Divide(position + pad, stride, &rest) + 1;
  if (found.end > windows) found.end = windows;
  return found;
}

// kMax: argmax tells which window the element won.
template <typename T, int N, bool kMax>
__global__ void __launch_bounds__(256)
    Backward(WindowDims w, PoolKind kind, int64_t channels, int64_t groups,
             const T* __restrict__ dy, const int32_t* __restrict__ argmax, T* __restrict__ dx) {
  for (int64_t i = ThreadIndex(); i < groups; i += ThreadCount()) {
    const Place place = PlaceOf<N>(i, channels, w.in_width, w.in_height);
    const auto position = static_cast<int32_t>(place.row * w.in_width + place.column);
    const Covering down = CoveringOf(place.row, w.pad_top, w.kernel_height, w.stride, w.out_height);
    const Covering across =
        CoveringOf(place.column, w.pad_left, w.kernel_width, w.stride, w.out_width);
    float sums[N] = {};
    for (int64_t h = down.first; h < down.end; ++h) {
      for (int64_t v = across.first; v < across.end; ++v) {
        const int64_t at =
            ((place.image * w.out_height + h) * w.out_width + v) * channels + place.channel;
        float gradients[N];
        LoadGroup(dy + at, gradients);
        if constexpr (kMax) {
          for (int k = 0; k < N; ++k) {
            if (argmax[at + k] == position) sums[k] += gradients[k];
          }
        } else {
          const float divisor = DivisorOf(w, kind, InsideOf(w, h, v));
          for (int k = 0; k < N; ++k) sums[k] += gradients[k] / divisor;
        }
      }
    }
    StoreGroup(sums, dx + i * N);
  }
}

template <typename T, int N>
__global__ void __launch_bounds__(256)
    GlobalForward(int64_t positions, int64_t channels, int64_t groups, double divisor,
                  const T* __restrict__ x, T* __restrict__ y) {
  for (int64_t i = ThreadIndex(); i < groups; i += ThreadCount()) {
    int64_t channel;
    const int64_t image = Divide(i, channels / N, &channel);
    const T* const from = x + image * positions * channels + channel * N;
    double sums[N] = {};
    for (int64_t p = 0; p < positions; ++p) {
      float values[N];
      LoadGroup(from + p * channels, values);
      for (int k = 0; k < N; ++k) sums[k] += static_cast<double>(values[k]);
    }
    float means[N];
    for (int k = 0; k < N; ++k) means[k] = static_cast<float>(sums[k] / divisor);
    StoreGroup(means, y + i * N);
  }
}

template <typename T, int N>
__global__ void __launch_bounds__(256)
    GlobalBackward(int64_t positions, int64_t channels, int64_t groups, float divisor,
                   const T* __restrict__ dy, T* __restrict__ dx) {
  for (int64_t i = ThreadIndex(); i < groups; i += ThreadCount()) {
    int64_t channel;
    int64_t position;
    const int64_t image = Divide(Divide(i, channels / N, &channel), positions, &position);
    float values[N];
    LoadGroup(dy + image * channels + channel * N, values);
    for (int k = 0; k < N; ++k) values[k] /= divisor;
    StoreGroup(values, dx + i * N);
  }
}

// f(std::integral_constant of the group): as many channels at once as alignment allows.
template <typename T, typename F>
void ByGroup(int64_t channels, std::initializer_list<const void*> pointers, const F& f) {
  if (channels % kWide<T> == 0 && Aligned(pointers)) {
    f(std::integral_constant<int, kWide<T>>());
  } else {
    f(std::integral_constant<int, 1>());
  }
}

}  // namespace

void LaunchPoolingForward(CudaDevice& device, const PoolingDims& dims, ConstValues x, Values y,
                          std::span<int32_t> argmax) {
  ByType(y.type(), [&](auto zero) {
    using T = decltype(zero);
    const auto* const from = static_cast<const T*>(x.data());
    auto* const to = static_cast<T*>(y.data());
    ByGroup<T>(dims.channels, {from, to}, [&](auto group) {
      constexpr int kGroup = decltype(group)::value;
      const int64_t groups = static_cast<int64_t>(y.size()) / kGroup;
      if (dims.kind == PoolKind::kMax) {
        Launch(device, "max pooling", MaxForward<T, kGroup>, Strided(device, groups), dims.window,
               dims.channels, groups, from, to, argmax.data());
      } else {
        Launch(device, "average pooling", AverageForward<T, kGroup>, Strided(device, groups),
               dims.window, dims.kind, dims.channels, groups, from, to);
      }
    });
  });
}

void LaunchPoolingBackward(CudaDevice& device, const PoolingDims& dims, ConstValues dy,
                           std::span<const int32_t> argmax, Values dx) {
  ByType(dx.type(), [&](auto zero) {
    using T = decltype(zero);
    const auto* const from = static_cast<const T*>(dy.data());
    auto* const to = static_cast<T*>(dx.data());
    ByGroup<T>(dims.channels, {from, to}, [&](auto group) {
      constexpr int kGroup = decltype(group)::value;
      const int64_t groups = static_cast<int64_t>(dx.size()) / kGroup;
      const auto launch = [&](auto kernel) {
        Launch(device, "pooling's gradient", kernel, Strided(device, groups), dims.window,
               dims.kind, dims.channels, groups, from, argmax.data(), to);
      };
      if (dims.kind == PoolKind::kMax) {
        launch(Backward<T, kGroup, true>);
      } else {
        launch(Backward<T, kGroup, false>);
      }
    });
  });
}

void LaunchGlobalAveragePoolForward(CudaDevice& device, int64_t batch, int64_t positions,
                                    int64_t channels, int64_t divisor, ConstValues x, Values y) {
  ByType(y.type(), [&](auto zero) {
    using T = decltype(zero);
    ByGroup<T>(channels, {x.data(), y.data()}, [&](auto group) {
      constexpr int kGroup = decltype(group)::value;
      const int64_t groups = batch * channels / kGroup;
      Launch(device, "global average pooling", GlobalForward<T, kGroup>, Strided(device, groups),
             positions, channels, groups, static_cast<double>(divisor),
             static_cast<const T*>(x.data()), static_cast<T*>(y.data()));
    });
  });
}

void LaunchGlobalAveragePoolBackward(CudaDevice& device, int64_t batch, int64_t positions,
                                     int64_t channels, int64_t divisor, ConstValues dy, Values dx) {
  ByType(dx.type(), [&](auto zero) {
    using T = decltype(zero);
    ByGroup<T>(channels, {dy.data(), dx.data()}, [&](auto group) {
      constexpr int kGroup = decltype(group)::value;
      const int64_t groups = batch * positions * channels / kGroup;
      Launch(device, "global average pooling's gradient", GlobalBackward<T, kGroup>,
             Strided(device, groups), positions, channels, groups, static_cast<float>(divisor),
             static_cast<const T*>(dy.data()), static_cast<T*>(dx.data()));
    });
  });
}

}  // namespace cadre
