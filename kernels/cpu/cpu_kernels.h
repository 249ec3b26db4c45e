// The CPU back end: oneDNN for convolutions and matrix products, vectorisable loops for the rest.
//
// Owns its oneDNN stream, its primitives (the last kCachedExtents extents of each operation) and
// one workspace that all of them share. Thread-compatible.
//
// Guarantees: with the same extents, data and number of threads, the same bits.
#pragma once

#include <cstddef>
#include <dnnl.hpp>
#include <memory>
#include <vector>

#include "kernels/cpu/lru_cache.h"
#include "kernels/cpu/primitive_run.h"
#include "kernels/kernels.h"

namespace cadre {

class CpuKernels final : public Kernels {
 public:
  // Requires: threads >= 1.
  explicit CpuKernels(int threads);

  void ConvolutionForward(const ConvolutionDims& dims, std::span<const float> x,
                          std::span<const float> w, std::span<const float> b,
                          std::span<float> y) override;
  void ConvolutionBackwardData(const ConvolutionDims& dims, std::span<const float> dy,
                               std::span<const float> w, std::span<float> dx) override;
  void ConvolutionBackwardWeights(const ConvolutionDims& dims, std::span<const float> x,
                                  std::span<const float> dy, std::span<float> dw,
                                  std::span<float> db) override;
  void PoolingForward(const PoolingDims& dims, std::span<const float> x, std::span<float> y,
                      std::span<int32_t> argmax) override;
  void PoolingBackward(const PoolingDims& dims, std::span<const float> dy,
                       std::span<const int32_t> argmax, std::span<float> dx) override;
  void FullyConnectedForward(const FullyConnectedDims& dims, std::span<const float> x,
                             std::span<const float> w, std::span<const float> b,
                             std::span<float> y) override;
  void FullyConnectedBackwardData(const FullyConnectedDims& dims, std::span<const float> dy,
                                  std::span<const float> w, std::span<float> dx) override;
  void FullyConnectedBackwardWeights(const FullyConnectedDims& dims, std::span<const float> x,
                                     std::span<const float> dy, std::span<float> dw,
                                     std::span<float> db) override;
  void ReluForward(std::span<const float> x, std::span<float> y) override;
  void ReluBackward(std::span<const float> y, std::span<const float> dy,
                    std::span<float> dx) override;
  LossSums SoftmaxCrossEntropy(int64_t rows, int64_t classes, std::span<const float> x,
                               std::span<const int32_t> labels, float scale,
                               std::span<float> dx) override;
  void Sgd(const SgdStep& step, std::span<const float> g, std::span<float> w,
           std::span<float> v) override;

 private:
  // A run sees a handful of extents: its batch, its last batch, its evaluation's.
  static constexpr size_t kCachedExtents = 64;
  using ConvolutionCache = LruCache<ConvolutionDims, PrimitiveRun>;

  PrimitiveRun MakeForward(const ConvolutionDims& dims) const;
  PrimitiveRun MakeBackwardData(const ConvolutionDims& dims) const;
  PrimitiveRun MakeBackwardWeights(const ConvolutionDims& dims) const;

  const int threads_;
  const dnnl::engine engine_;
  dnnl::stream stream_;
  Workspace workspace_;
  ConvolutionCache forward_{kCachedExtents};
  ConvolutionCache backward_data_{kCachedExtents};
  ConvolutionCache backward_weights_{kCachedExtents};
  // Takes extents that oneDNN does not: tensors without elements.
  const std::unique_ptr<Kernels> reference_ = MakeReferenceKernels();
};

}  // namespace cadre
