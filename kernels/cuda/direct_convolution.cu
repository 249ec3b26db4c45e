// A thread computes an element of an output or of an input's gradient, with a loop over the window
// and the channels. A block computes a weight's gradient: each thread sums every kSummands-th
// position, and a tree in shared memory adds the threads' sums.
#include "kernels/cuda/direct_convolution.h"

#include <algorithm>

#include "device/cuda/launch.h"
#include "glog/logging.h"
#include "kernels/cuda/elements.h"

namespace cadre {
namespace {

constexpr int kThreads = 256;
// Threads that sum one weight's gradient.
constexpr int kSummands = 64;

// The output row (or column) that reads input row `in` with row `tap` of the window; -1 for none.
__device__ inline int64_t OutputAt(int64_t in, int64_t tap, int64_t pad, int64_t stride,
                                   int64_t dilation, int64_t outputs) {
  const int64_t from = in + pad - tap * dilation;
  if (from < 0 || from % stride != 0 || from / stride >= outputs) return -1;
  return from / stride;
}

// Input row that output row `out` reads with row `tap` of the window; -1 for padding.
__device__ inline int64_t InputAt(int64_t out, int64_t tap, int64_t pad, int64_t stride,
                                  int64_t dilation, int64_t inputs) {
  const int64_t in = out * stride - pad + tap * dilation;
  return in < 0 || in >= inputs ? -1 : in;
}

// An element of an image with channels last.
struct Place {
  int64_t image = 0, row = 0, column = 0, channel = 0;
};

__device__ inline Place PlaceOf(int64_t i, int64_t height, int64_t width, int64_t channels) {
  Place place;
  place.image =
      Divide(Divide(Divide(i, channels, &place.channel), width, &place.column), height, &place.row);
  return place;
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    DirectForward(ConvolutionDims d, int64_t elements, const T* x, const T* w, T* y) {
  const WindowDims& v = d.window;
  const int64_t channels = d.in_channels / d.groups, outputs = d.out_channels / d.groups;
  const int64_t taps = v.kernel_height * v.kernel_width;
  for (int64_t i = ThreadIndex(); i < elements; i += ThreadCount()) {
    const Place at = PlaceOf(i, v.out_height, v.out_width, d.out_channels);
    const int64_t first = at.channel / outputs * channels;
    float sum = 0;
    for (int64_t p = 0; p < v.kernel_height; ++p) {
      const int64_t row = InputAt(at.row, p, v.pad_top, v.stride_height, v.dilation, v.in_height);
      if (row < 0) continue;
      for (int64_t q = 0; q < v.kernel_width; ++q) {
        const int64_t column =
            InputAt(at.column, q, v.pad_left, v.stride_width, v.dilation, v.in_width);
        if (column < 0) continue;
        const T* const from =
            x + ((at.image * v.in_height + row) * v.in_width + column) * d.in_channels + first;
        const T* const weights = w + at.channel * channels * taps + p * v.kernel_width + q;
        for (int64_t c = 0; c < channels; ++c) {
          sum += ToFloat(from[c]) * ToFloat(weights[c * taps]);
        }
      }
    }
    FromFloat(sum, &y[i]);
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    DirectBackwardData(ConvolutionDims d, int64_t elements, const T* dy, const T* w, T* dx) {
  const WindowDims& v = d.window;
  const int64_t channels = d.in_channels / d.groups, outputs = d.out_channels / d.groups;
  const int64_t taps = v.kernel_height * v.kernel_width;
  for (int64_t i = ThreadIndex(); i < elements; i += ThreadCount()) {
    const Place at = PlaceOf(i, v.in_height, v.in_width, d.in_channels);
    int64_t channel = 0;
    const int64_t first = Divide(at.channel, channels, &channel) * outputs;
    float sum = 0;
    for (int64_t p = 0; p < v.kernel_height; ++p) {
      const int64_t row = OutputAt(at.row, p, v.pad_top, v.stride_height, v.dilation, v.out_height);
      if (row < 0) continue;
      for (int64_t q = 0; q < v.kernel_width; ++q) {
        const int64_t column =
            OutputAt(at.column, q, v.pad_left, v.stride_width, v.dilation, v.out_width);
        if (column < 0) continue;
        const T* const from =
            dy + ((at.image * v.out_height + row) * v.out_width + column) * d.out_channels + first;
        const T* const weights = w + (first * channels + channel) * taps + p * v.kernel_width + q;
        for (int64_t o = 0; o < outputs; ++o) {
          sum += ToFloat(from[o]) * ToFloat(weights[o * channels * taps]);
        }
      }
    }
    FromFloat(sum, &dx[i]);
  }
}

template <typename T>
__global__ void __launch_bounds__(kSummands)
    DirectBackwardWeights(ConvolutionDims d, int64_t weights, const T* x, const T* dy, float* dw) {
  __shared__ float sums[kSummands];
  const WindowDims& v = d.window;
  const int64_t channels = d.in_channels / d.groups, outputs = d.out_channels / d.groups;
  const int64_t positions = d.batch * v.out_height * v.out_width;
  for (int64_t i = blockIdx.x; i < weights; i += gridDim.x) {
    int64_t q = 0, p = 0, c = 0;
    const int64_t out =
        Divide(Divide(Divide(i, v.kernel_width, &q), v.kernel_height, &p), channels, &c);
    const int64_t in = out / outputs * channels + c;
    float sum = 0;
    for (int64_t position = threadIdx.x; position < positions; position += kSummands) {
      const Place at = PlaceOf(position, v.out_height, v.out_width, 1);
      const int64_t row = InputAt(at.row, p, v.pad_top, v.stride_height, v.dilation, v.in_height);
      const int64_t column =
          InputAt(at.column, q, v.pad_left, v.stride_width, v.dilation, v.in_width);
      if (row < 0 || column < 0) continue;
      const int64_t from =
          ((at.image * v.in_height + row) * v.in_width + column) * d.in_channels + in;
      sum += ToFloat(x[from]) * ToFloat(dy[position * d.out_channels + out]);
    }
    sums[threadIdx.x] = sum;
    __syncthreads();
    for (int half = kSummands / 2; half > 0; half /= 2) {
      if (static_cast<int>(threadIdx.x) < half) sums[threadIdx.x] += sums[threadIdx.x + half];
      __syncthreads();
    }
    if (threadIdx.x == 0) dw[i] = sums[0];
    __syncthreads();
  }
}

}  // namespace

void LaunchDirectForward(CudaDevice& device, const ConvolutionDims& dims, ConstValues x,
                         ConstValues w, Values y) {
  CHECK(HasDirectConvolution(dims));
  CHECK(x.type() == w.type() && x.type() == y.type());
  ByType(x.type(), [&](auto zero) {
    using T = decltype(zero);
    const int64_t elements = y.size();
    Launch(device, "direct convolution", &DirectForward<T>, Strided(device, elements), dims,
           elements, Data<T>(x), Data<T>(w), Data<T>(y));
  });
}

void LaunchDirectBackwardData(CudaDevice& device, const ConvolutionDims& dims, ConstValues dy,
                              ConstValues w, Values dx) {
  CHECK(HasDirectConvolution(dims));
  CHECK(dy.type() == w.type() && dy.type() == dx.type());
  ByType(dy.type(), [&](auto zero) {
    using T = decltype(zero);
    const int64_t elements = dx.size();
    Launch(device, "direct convolution, backward data", &DirectBackwardData<T>,
           Strided(device, elements), dims, elements, Data<T>(dy), Data<T>(w), Data<T>(dx));
  });
}

void LaunchDirectBackwardWeights(CudaDevice& device, const ConvolutionDims& dims, ConstValues x,
                                 ConstValues dy, FloatSpan dw) {
  CHECK(HasDirectConvolution(dims));
  CHECK(x.type() == dy.type());
  ByType(x.type(), [&](auto zero) {
    using T = decltype(zero);
    const int64_t weights = dw.size(), max_blocks = int64_t{device.processors()} * 16;
    const LaunchShape shape{.grid = dim3(std::min(weights, max_blocks)), .block = dim3(kSummands)};
    Launch(device, "direct convolution, backward weights", &DirectBackwardWeights<T>, shape, dims,
           weights, Data<T>(x), Data<T>(dy), dw.data());
  });
}

}  // namespace cadre
