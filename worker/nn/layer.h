// One layer of the network on the samples and features that this rank holds.
//
// A layer knows local extents only; which part of the whole it works on, and what has to move
// between ranks, is the plan's business and is done by the reshards between layers. So the same
// code serves one worker and every parallel plan.
//
// Thread-compatible. Layers borrow kernels and parameters, and own nothing but scratch.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "kernels/kernels.h"

namespace cadre {

// A layer's parameters in this rank's memory: weight and bias, and where their gradients go.
struct LayerParameters {
  std::span<float> weight;
  std::span<float> bias;
  std::span<float> weight_gradient;
  std::span<float> bias_gradient;
};

class Layer {
 public:
  virtual ~Layer() = default;

  // y from x, for `rows` local samples.
  virtual void Forward(int64_t rows, std::span<const float> x, std::span<float> y) = 0;

  // Gradients of the parameters, and dx unless it is empty (not wanted). x and y are what Forward
  // took and gave for the same rows. Requires: Forward was the last call on this layer.
  virtual void Backward(int64_t rows, std::span<const float> x, std::span<const float> y,
                        std::span<const float> dy, std::span<float> dx) = 0;
};

// `dims.batch` is ignored; the rows of each call count.
std::unique_ptr<Layer> MakeConvolution(Kernels& kernels, const ConvolutionDims& dims,
                                       const LayerParameters& parameters);
std::unique_ptr<Layer> MakePooling(Kernels& kernels, const PoolingDims& dims);
// `dims.out` is the number of output features that this rank holds.
std::unique_ptr<Layer> MakeFullyConnected(Kernels& kernels, const FullyConnectedDims& dims,
                                          const LayerParameters& parameters);
std::unique_ptr<Layer> MakeRelu(Kernels& kernels);

}  // namespace cadre
