// The CPU back end: oneDNN for convolutions and matrix products, vectorised loops for the rest.
//
// Owns its oneDNN stream, its primitives (the last kCachedExtents extents of each operation) and
// one workspace that all of them share. Thread-compatible.
//
// Guarantees: with the same extents, data and number of threads, the same bits. Which of several
// algorithms runs is a function of the extents, never of a measurement.
#pragma once

#include <cstddef>
#include <dnnl.hpp>
#include <memory>

#include "kernels/cpu/lru_cache.h"
#include "kernels/cpu/primitive_run.h"
#include "kernels/host_kernels.h"

namespace cadre {

class CpuKernels final : public HostKernels {
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
  void GlobalAveragePoolForward(int64_t batch, int64_t positions, int64_t channels, int64_t divisor,
                                std::span<const float> x, std::span<float> y) override;
  void GlobalAveragePoolBackward(int64_t batch, int64_t positions, int64_t channels,
                                 int64_t divisor, std::span<const float> dy,
                                 std::span<float> dx) override;
  void FullyConnectedForward(const FullyConnectedDims& dims, std::span<const float> x,
                             std::span<const float> w, std::span<const float> b,
                             std::span<float> y) override;
  void FullyConnectedBackwardData(const FullyConnectedDims& dims, std::span<const float> dy,
                                  std::span<const float> w, std::span<float> dx) override;
  void FullyConnectedBackwardWeights(const FullyConnectedDims& dims, std::span<const float> x,
                                     std::span<const float> dy, std::span<float> dw,
                                     std::span<float> db) override;
  void ActivationForward(Activation kind, std::span<const float> x, std::span<float> y) override;
  void ActivationBackward(Activation kind, std::span<const float> seen, std::span<const float> dy,
                          std::span<float> dx) override;
  void Dropout(const DropoutKey& key, uint64_t first, std::span<const float> x,
               std::span<float> y) override;
  void Add(std::span<const float> x, std::span<float> y) override;
  void BatchNormSums(const RowsDims& dims, std::span<const float> x,
                     std::span<double> sums) override;
  void BatchNormForward(const RowsDims& dims, std::span<const float> x, std::span<const float> mean,
                        std::span<const float> inverse, std::span<const float> scale,
                        std::span<const float> shift, std::span<float> y) override;
  void BatchNormBackwardSums(const RowsDims& dims, std::span<const float> x,
                             std::span<const float> dy, std::span<const float> mean,
                             std::span<const float> inverse, std::span<double> sums) override;
  void BatchNormBackward(const RowsDims& dims, std::span<const float> x, std::span<const float> dy,
                         std::span<const float> mean, std::span<const float> inverse,
                         std::span<const float> scale, std::span<const float> mean_dy,
                         std::span<const float> mean_dy_x, std::span<float> dx) override;
  void LayerNormForward(const RowsDims& dims, float epsilon, std::span<const float> x,
                        std::span<const float> scale, std::span<const float> shift,
                        std::span<float> y, std::span<float> mean,
                        std::span<float> inverse) override;
  void LayerNormBackward(const RowsDims& dims, std::span<const float> x, std::span<const float> dy,
                         std::span<const float> mean, std::span<const float> inverse,
                         std::span<const float> scale, std::span<float> dx, std::span<float> dscale,
                         std::span<float> dshift) override;
  void LrnForward(const LrnDims& dims, std::span<const float> x, std::span<float> y,
                  std::span<float> d) override;
  void LrnBackward(const LrnDims& dims, std::span<const float> x, std::span<const float> d,
                   std::span<const float> dy, std::span<float> dx) override;
  void Transpose(int64_t batch, int64_t positions, int64_t channels, std::span<const float> x,
                 std::span<float> y) override;
  void EmbeddingForward(const EmbeddingDims& dims, std::span<const float> ids,
                        std::span<const float> w, std::span<const float> positions,
                        std::span<float> y) override;
  void EmbeddingBackward(const EmbeddingDims& dims, std::span<const float> ids,
                         std::span<const float> dy, std::span<float> dw,
                         std::span<float> dpositions) override;
  void AttentionForward(const AttentionDims& dims, std::span<const float> qkv,
                        std::span<float> probabilities, std::span<float> context) override;
  void AttentionBackward(const AttentionDims& dims, std::span<const float> qkv,
                         std::span<const float> probabilities, std::span<const float> dcontext,
                         std::span<float> dqkv) override;
  LossSums SoftmaxCrossEntropy(int64_t rows, int64_t classes, float smoothing,
                               std::span<const float> x, std::span<const int32_t> labels,
                               float scale, std::span<float> dx) override;
  void Sgd(const SgdStep& step, std::span<const float> g, std::span<float> w,
           std::span<float> v) override;
  void AdamW(const AdamWStep& step, std::span<const float> g, std::span<float> w,
             std::span<float> m, std::span<float> v) override;
  double SumOfSquares(std::span<const float> x) override;
  std::unique_ptr<Kernels> OneThread() const override { return MakeCpuKernels(1); }

 private:
  // A run sees a handful of extents of each layer: its batch, its last batch, its evaluation's.
  static constexpr size_t kCachedExtents = 512;
  // Of the workspace; the slots before it are what a PrimitiveRun converts.
  static constexpr size_t kOwnSlot = 8;
  struct ConvolutionKey {
    ConvolutionDims dims;
    bool with_bias = false;
    friend auto operator<=>(const ConvolutionKey&, const ConvolutionKey&) = default;
  };

  const int threads_;
  const dnnl::engine engine_;
  dnnl::stream stream_;
  Workspace workspace_;
  LruCache<ConvolutionKey, PrimitiveRun> forward_{kCachedExtents};
  LruCache<ConvolutionDims, PrimitiveRun> backward_data_{kCachedExtents};
  LruCache<ConvolutionKey, PrimitiveRun> backward_weights_{kCachedExtents};
  // Takes extents that oneDNN does not: tensors without elements.
  const std::unique_ptr<Kernels> reference_ = MakeReferenceKernels();
};

}  // namespace cadre
