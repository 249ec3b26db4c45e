// The operations that layers are made of, on one device. One interface, a file per back end:
// reference/ (plain loops, the oracle) and cpu/ (oneDNN).
//
// All tensors are dense row-major fp32. Images are [batch, channels, height, width]. Every function
// takes any extents, a batch of zero included. Spans are lent for the call and do not overlap
// unless said. Outputs are overwritten.
//
// Thread-compatible: one Kernels object per worker thread; back ends cache primitives and scratch
// inside.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

namespace cadre {

// Square 2-D convolution; out = (in + 2 * padding - kernel) / stride + 1, rounded down.
struct ConvolutionDims {
  int64_t batch = 0;
  int64_t in_channels = 0, in_height = 0, in_width = 0;
  int64_t out_channels = 0, out_height = 0, out_width = 0;
  int64_t kernel = 1, stride = 1, padding = 0;
  friend auto operator<=>(const ConvolutionDims&, const ConvolutionDims&) = default;
};

enum class PoolKind { kMax, kAverage };

// Square windows; average pooling divides by the number of elements inside the image.
struct PoolingDims {
  PoolKind kind = PoolKind::kMax;
  int64_t batch = 0, channels = 0;
  int64_t in_height = 0, in_width = 0, out_height = 0, out_width = 0;
  int64_t kernel = 1, stride = 1, padding = 0;
  friend auto operator<=>(const PoolingDims&, const PoolingDims&) = default;
};

// y[batch, out] = x[batch, in] W[out, in]^T + b[out].
struct FullyConnectedDims {
  int64_t batch = 0, in = 0, out = 0;
  friend auto operator<=>(const FullyConnectedDims&, const FullyConnectedDims&) = default;
};

struct SgdStep {
  float rate = 0;
  float momentum = 0;
  float weight_decay = 0;
};

class Kernels {
 public:
  virtual ~Kernels() = default;

  // y = conv(x, w) + b. w: [out_channels, in_channels, kernel, kernel], b: [out_channels].
  virtual void ConvolutionForward(const ConvolutionDims& dims, std::span<const float> x,
                                  std::span<const float> w, std::span<const float> b,
                                  std::span<float> y) = 0;
  // dx from dy.
  virtual void ConvolutionBackwardData(const ConvolutionDims& dims, std::span<const float> dy,
                                       std::span<const float> w, std::span<float> dx) = 0;
  // dw and db from x and dy.
  virtual void ConvolutionBackwardWeights(const ConvolutionDims& dims, std::span<const float> x,
                                          std::span<const float> dy, std::span<float> dw,
                                          std::span<float> db) = 0;

  // Also fills `argmax` (same size as y) for max pooling: for each output, which input element of
  // its image plane won (the first of equals). Average pooling leaves it alone; it may be empty
  // then. A window that lies wholly in the padding gives 0, with argmax -1.
  virtual void PoolingForward(const PoolingDims& dims, std::span<const float> x, std::span<float> y,
                              std::span<int32_t> argmax) = 0;
  virtual void PoolingBackward(const PoolingDims& dims, std::span<const float> dy,
                               std::span<const int32_t> argmax, std::span<float> dx) = 0;

  virtual void FullyConnectedForward(const FullyConnectedDims& dims, std::span<const float> x,
                                     std::span<const float> w, std::span<const float> b,
                                     std::span<float> y) = 0;
  virtual void FullyConnectedBackwardData(const FullyConnectedDims& dims, std::span<const float> dy,
                                          std::span<const float> w, std::span<float> dx) = 0;
  virtual void FullyConnectedBackwardWeights(const FullyConnectedDims& dims,
                                             std::span<const float> x, std::span<const float> dy,
                                             std::span<float> dw, std::span<float> db) = 0;

  // y = max(x, 0); not-a-number stays what it is, so that a model that diverged is noticed. x and y
  // may be the same span.
  virtual void ReluForward(std::span<const float> x, std::span<float> y) = 0;
  // dx = dy where y > 0, else 0. dy and dx may be the same span.
  virtual void ReluBackward(std::span<const float> y, std::span<const float> dy,
                            std::span<float> dx) = 0;

  struct LossSums {
    // Sum over the rows of -log softmax(x)[label], and rows whose largest element is the label's
    // (the first of equals counts as the largest).
    double loss = 0;
    int64_t correct = 0;
  };
  // x: [rows, classes]. dx = scale * (softmax(x) - onehot(label)); an empty dx: not wanted.
  // Requires: 0 <= label < classes.
  virtual LossSums SoftmaxCrossEntropy(int64_t rows, int64_t classes, std::span<const float> x,
                                       std::span<const int32_t> labels, float scale,
                                       std::span<float> dx) = 0;

  // v = momentum * v + (g + weight_decay * w); w -= rate * v.
  virtual void Sgd(const SgdStep& step, std::span<const float> g, std::span<float> w,
                   std::span<float> v) = 0;
};

// Plain loops in one thread, summing in double: what the others are held against.
std::unique_ptr<Kernels> MakeReferenceKernels();

// oneDNN with `threads` threads. Requires: threads >= 1.
std::unique_ptr<Kernels> MakeCpuKernels(int threads);

}  // namespace cadre
