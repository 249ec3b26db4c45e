#include "worker/nn/layer.h"

#include <vector>

namespace cadre {
namespace {

class Convolution final : public Layer {
 public:
  Convolution(Kernels& kernels, const ConvolutionDims& dims, const LayerParameters& parameters)
      : kernels_(kernels), dims_(dims), parameters_(parameters) {}

  void Forward(int64_t rows, std::span<const float> x, std::span<float> y) override {
    dims_.batch = rows;
    kernels_.ConvolutionForward(dims_, x, parameters_.weight, parameters_.bias, y);
  }

  void Backward(int64_t rows, std::span<const float> x, std::span<const float> /*y*/,
                std::span<const float> dy, std::span<float> dx) override {
    dims_.batch = rows;
    kernels_.ConvolutionBackwardWeights(dims_, x, dy, parameters_.weight_gradient,
                                        parameters_.bias_gradient);
    if (!dx.empty()) kernels_.ConvolutionBackwardData(dims_, dy, parameters_.weight, dx);
  }

 private:
  Kernels& kernels_;
  ConvolutionDims dims_;
  const LayerParameters parameters_;
};

class Pooling final : public Layer {
 public:
  Pooling(Kernels& kernels, const PoolingDims& dims) : kernels_(kernels), dims_(dims) {}

  void Forward(int64_t rows, std::span<const float> x, std::span<float> y) override {
    dims_.batch = rows;
    if (dims_.kind == PoolKind::kMax) argmax_.resize(y.size());
    kernels_.PoolingForward(dims_, x, y, argmax_);
  }

  void Backward(int64_t rows, std::span<const float> /*x*/, std::span<const float> /*y*/,
                std::span<const float> dy, std::span<float> dx) override {
    dims_.batch = rows;
    if (!dx.empty()) kernels_.PoolingBackward(dims_, dy, argmax_, dx);
  }

 private:
  Kernels& kernels_;
  PoolingDims dims_;
  std::vector<int32_t> argmax_;
};

class FullyConnected final : public Layer {
 public:
  FullyConnected(Kernels& kernels, const FullyConnectedDims& dims,
                 const LayerParameters& parameters)
      : kernels_(kernels), dims_(dims), parameters_(parameters) {}

  void Forward(int64_t rows, std::span<const float> x, std::span<float> y) override {
    dims_.batch = rows;
    kernels_.FullyConnectedForward(dims_, x, parameters_.weight, parameters_.bias, y);
  }

  void Backward(int64_t rows, std::span<const float> x, std::span<const float> /*y*/,
                std::span<const float> dy, std::span<float> dx) override {
    dims_.batch = rows;
    kernels_.FullyConnectedBackwardWeights(dims_, x, dy, parameters_.weight_gradient,
                                           parameters_.bias_gradient);
    if (!dx.empty()) kernels_.FullyConnectedBackwardData(dims_, dy, parameters_.weight, dx);
  }

 private:
  Kernels& kernels_;
  FullyConnectedDims dims_;
  const LayerParameters parameters_;
};

class Relu final : public Layer {
 public:
  explicit Relu(Kernels& kernels) : kernels_(kernels) {}

  void Forward(int64_t /*rows*/, std::span<const float> x, std::span<float> y) override {
    kernels_.ReluForward(x, y);
  }

  void Backward(int64_t /*rows*/, std::span<const float> /*x*/, std::span<const float> y,
                std::span<const float> dy, std::span<float> dx) override {
    if (!dx.empty()) kernels_.ReluBackward(y, dy, dx);
  }

 private:
  Kernels& kernels_;
};

}  // namespace

std::unique_ptr<Layer> MakeConvolution(Kernels& kernels, const ConvolutionDims& dims,
                                       const LayerParameters& parameters) {
  return std::make_unique<Convolution>(kernels, dims, parameters);
}

std::unique_ptr<Layer> MakePooling(Kernels& kernels, const PoolingDims& dims) {
  return std::make_unique<Pooling>(kernels, dims);
}

std::unique_ptr<Layer> MakeFullyConnected(Kernels& kernels, const FullyConnectedDims& dims,
                                          const LayerParameters& parameters) {
  return std::make_unique<FullyConnected>(kernels, dims, parameters);
}

std::unique_ptr<Layer> MakeRelu(Kernels& kernels) { return std::make_unique<Relu>(kernels); }

}  // namespace cadre
