// Convolution by a library (dense_math.h), and pooling with one thread per output (in backward: per
// input) and group of neighbouring channels.
//
// As on the CPU, backward gathers from the windows that cover an input instead of scattering with
// atomics, so that the order of sums is fixed and every element is written once. Threads with
// consecutive indices have consecutive channels ("channels last"), so that the loads of a warp are
// contiguous; a thread reads 16 bytes at a time where channels and addresses allow it
// (ByTypeAndWidth). Divisions by extents use 32 bits where the numbers fit (Divide), because 64-bit
// division is emulated by dozens of instructions.
//
// The maximum is the first of equal elements, and NaN only if the first element is NaN, as in the
// other back ends. Memory bandwidth limits the speed; overlapping windows are read from the
// second-level cache.
#include <algorithm>

#include "device/cuda/launch.h"
#include "kernels/cuda/cuda_context.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/map.h"
#include "kernels/extents.h"

namespace cadre {
namespace {

// One position in one image of a batch, and the first channel of a group of channels there.
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
  const int64_t top = row * w.stride_height - w.pad_top;
  const int64_t left = column * w.stride_width - w.pad_left;
  return {
      top > 0 ? top : 0, top + w.kernel_height < w.in_height ? top + w.kernel_height : w.in_height,
      left > 0 ? left : 0, left + w.kernel_width < w.in_width ? left + w.kernel_width : w.in_width};
}

__device__ inline float DivisorOf(const WindowDims& w, PoolKind kind, const Inside& inside) {
  if (kind == PoolKind::kAverageWithPadding) {
    return w.kernel_height * w.kernel_width;
  }
  const int64_t elements = inside.elements();
  return elements > 1 ? elements : 1;
}

// The first of equal elements is the maximum, and NaN only if it is the first element.
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
          where[k] = position;
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
  Covering covering;
  covering.first = from <= 0 ? 0 : Divide(from + stride - 1, stride, &rest);
  covering.end = Divide(position + pad, stride, &rest) + 1;
  if (covering.end > windows) covering.end = windows;
  return covering;
}

// With kMax, argmax holds the position of each window's maximum.
template <typename T, int N, bool kMax>
__global__ void __launch_bounds__(256)
    Backward(WindowDims w, PoolKind kind, int64_t channels, int64_t groups,
             const T* __restrict__ dy, const int32_t* __restrict__ argmax, T* __restrict__ dx) {
  for (int64_t i = ThreadIndex(); i < groups; i += ThreadCount()) {
    const Place place = PlaceOf<N>(i, channels, w.in_width, w.in_height);
    const int32_t position = place.row * w.in_width + place.column;
    const Covering down =
        CoveringOf(place.row, w.pad_top, w.kernel_height, w.stride_height, w.out_height);
    const Covering across =
        CoveringOf(place.column, w.pad_left, w.kernel_width, w.stride_width, w.out_width);
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
      for (int k = 0; k < N; ++k) sums[k] += values[k];
    }
    float means[N];
    for (int k = 0; k < N; ++k) means[k] = sums[k] / divisor;
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

class CudaWindow final : public WindowKernels {
 public:
  explicit CudaWindow(CudaContext& cuda) : cuda_(cuda), products_(cuda.device) {}

  void ConvolutionForward(const ConvolutionDims& dims, ConstValues x, ConstFloatSpan w,
                          ConstFloatSpan b, Values y) override {
    CheckLayer(SizesOf(dims), x.size(), w.size(), b.size(), y.size());
    if (y.empty()) return;
    if (x.empty() || w.empty()) {
      cuda_.Zero(y);
    } else {
      cuda_.math->ConvolutionForward(dims, x, cuda_.WeightsAs(x.type(), w), y);
    }
    cuda_.AddBias(dims.batch * dims.window.out_height * dims.window.out_width, b, y);
  }

  void ConvolutionBackwardData(const ConvolutionDims& dims, ConstValues dy, ConstFloatSpan w,
                               Values dx) override {
    CheckLayer(SizesOf(dims), dx.size(), w.size(), 0, dy.size());
    if (dx.empty()) return;
    if (dy.empty() || w.empty()) return cuda_.Zero(dx);
    cuda_.math->ConvolutionBackwardData(dims, dy, cuda_.WeightsAs(dy.type(), w), dx);
  }

  void AddConvolutionBackwardData(const ConvolutionDims& dims, ConstValues dy, ConstFloatSpan w,
                                  Values dx) override {
    if (dx.empty()) return;
    const std::span<float> product = products_.Take<float>(dx.size());
    if (product.empty()) return;
    ConvolutionBackwardData(dims, dy, w, product.first(dx.size()));
    LaunchMap<Sum, float, float>(cuda_.device, "sum of gradients", Sum(), dx.size(), product.data(),
                                 Data<float>(dx), Data<float>(dx));
  }

  void ConvolutionBackwardWeights(const ConvolutionDims& dims, ConstValues x, ConstValues dy,
                                  FloatSpan dw, FloatSpan db) override {
    CheckLayer(SizesOf(dims), x.size(), dw.size(), db.size(), dy.size());
    cuda_.BiasGradient(dims.batch * dims.window.out_height * dims.window.out_width, dy, db);
    if (dw.empty()) return;
    if (x.empty() || dy.empty()) return cuda_.Zero(dw);
    cuda_.math->ConvolutionBackwardWeights(dims, x, dy, dw);
  }

  // x may be empty: windows without inputs give 0.
  void PoolingForward(const PoolingDims& dims, ConstValues x, Values y,
                      std::span<int32_t> argmax) override {
    CheckPooling(dims, x.size(), y.size(), argmax.size());
    if (y.empty()) return;
    ByTypeAndWidth(y.type(), dims.channels, {x.data(), y.data()}, [&](auto zero, auto group) {
      using T = decltype(zero);
      constexpr int kGroup = decltype(group)::value;
      const int64_t groups = y.size() / kGroup;
      if (dims.kind == PoolKind::kMax) {
        Launch(cuda_.device, "max pooling", MaxForward<T, kGroup>, Strided(cuda_.device, groups),
               dims.window, dims.channels, groups, Data<T>(x), Data<T>(y), argmax.data());
      } else {
        Launch(cuda_.device, "average pooling", AverageForward<T, kGroup>,
               Strided(cuda_.device, groups), dims.window, dims.kind, dims.channels, groups,
               Data<T>(x), Data<T>(y));
      }
    });
  }

  void PoolingBackward(const PoolingDims& dims, ConstValues dy, std::span<const int32_t> argmax,
                       Values dx) override {
    CheckPooling(dims, dx.size(), dy.size(), argmax.size());
    if (dx.empty()) return;
    ByTypeAndWidth(dx.type(), dims.channels, {dy.data(), dx.data()}, [&](auto zero, auto group) {
      using T = decltype(zero);
      constexpr int kGroup = decltype(group)::value;
      const int64_t groups = dx.size() / kGroup;
      Launch(cuda_.device, "pooling gradient",
             dims.kind == PoolKind::kMax ? Backward<T, kGroup, true> : Backward<T, kGroup, false>,
             Strided(cuda_.device, groups), dims.window, dims.kind, dims.channels, groups,
             Data<T>(dy), argmax.data(), Data<T>(dx));
    });
  }

  void GlobalAveragePoolForward(int64_t batch, int64_t positions, int64_t channels, int64_t divisor,
                                ConstValues x, Values y) override {
    CheckGlobalPooling(batch, positions, channels, divisor, x.size(), y.size());
    if (y.empty()) return;
    ByTypeAndWidth(y.type(), channels, {x.data(), y.data()}, [&](auto zero, auto group) {
      using T = decltype(zero);
      constexpr int kGroup = decltype(group)::value;
      const int64_t groups = batch * channels / kGroup;
      Launch(cuda_.device, "global average pooling", GlobalForward<T, kGroup>,
             Strided(cuda_.device, groups), positions, channels, groups, divisor, Data<T>(x),
             Data<T>(y));
    });
  }

  void GlobalAveragePoolBackward(int64_t batch, int64_t positions, int64_t channels,
                                 int64_t divisor, ConstValues dy, Values dx) override {
    CheckGlobalPooling(batch, positions, channels, divisor, dx.size(), dy.size());
    if (dx.empty()) return;
    ByTypeAndWidth(dx.type(), channels, {dy.data(), dx.data()}, [&](auto zero, auto group) {
      using T = decltype(zero);
      constexpr int kGroup = decltype(group)::value;
      const int64_t groups = batch * positions * channels / kGroup;
      Launch(cuda_.device, "global average pooling gradient", GlobalBackward<T, kGroup>,
             Strided(cuda_.device, groups), positions, channels, groups, divisor, Data<T>(dy),
             Data<T>(dx));
    });
  }

 private:
  CudaContext& cuda_;
  // Not the context's scratch memory, from which the factors of a product are taken.
  CudaScratch products_;
};

}  // namespace

std::unique_ptr<WindowKernels> MakeCudaWindow(CudaContext& cuda) {
  return std::make_unique<CudaWindow>(cuda);
}

}  // namespace cadre
