// The CPU back end: oneDNN for convolutions and matrix products, vectorised loops for the rest. A
// file per operation defines the members.
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
#include "kernels/host_backend.h"

namespace cadre {

// What the families share.
struct CpuContext {
  // Requires: threads >= 1.
  explicit CpuContext(int threads);

  // First slot of the workspace that is free for loops of ours; a PrimitiveRun converts in those
  // before it.
  static constexpr size_t kOwnSlot = 8;

  const int threads;
  const dnnl::engine engine;
  dnnl::stream stream;
  Workspace workspace;
  // Runs extents that oneDNN rejects: tensors without elements.
  const std::unique_ptr<Backend> reference = MakeReferenceBackend();
};

class CpuMemory final : public HostMemory {
 public:
  explicit CpuMemory(CpuContext& cpu) : cpu_(cpu) {}

  void Transpose(int64_t batch, int64_t positions, int64_t channels, ConstValues x,
                 Values y) override;

 private:
  CpuContext& cpu_;
};

class CpuDense final : public DenseKernels {
 public:
  explicit CpuDense(CpuContext& cpu) : cpu_(cpu) {}

  void FullyConnectedForward(const FullyConnectedDims& dims, ConstValues x,
                             std::span<const float> w, std::span<const float> b, Values y) override;
  void FullyConnectedBackwardData(const FullyConnectedDims& dims, ConstValues dy,
                                  std::span<const float> w, Values dx) override;
  void FullyConnectedBackwardWeights(const FullyConnectedDims& dims, ConstValues x, ConstValues dy,
                                     std::span<float> dw, std::span<float> db) override;
  void EmbeddingForward(const EmbeddingDims& dims, std::span<const float> ids,
                        std::span<const float> w, std::span<const float> positions,
                        Values y) override;
  void EmbeddingBackward(const EmbeddingDims& dims, std::span<const float> ids, ConstValues dy,
                         std::span<float> dw, std::span<float> dpositions) override;
  void AttentionForward(const AttentionDims& dims, ConstValues qkv, Values probabilities,
                        Values context) override;
  void AttentionBackward(const AttentionDims& dims, ConstValues qkv, ConstValues probabilities,
                         ConstValues dcontext, Values dqkv) override;

 private:
  CpuContext& cpu_;
};

class CpuWindow final : public WindowKernels {
 public:
  explicit CpuWindow(CpuContext& cpu) : cpu_(cpu) {}

  void ConvolutionForward(const ConvolutionDims& dims, ConstValues x, std::span<const float> w,
                          std::span<const float> b, Values y) override;
  void ConvolutionBackwardData(const ConvolutionDims& dims, ConstValues dy,
                               std::span<const float> w, Values dx) override;
  void ConvolutionBackwardWeights(const ConvolutionDims& dims, ConstValues x, ConstValues dy,
                                  std::span<float> dw, std::span<float> db) override;
  void PoolingForward(const PoolingDims& dims, ConstValues x, Values y,
                      std::span<int32_t> argmax) override;
  void PoolingBackward(const PoolingDims& dims, ConstValues dy, std::span<const int32_t> argmax,
                       Values dx) override;
  void GlobalAveragePoolForward(int64_t batch, int64_t positions, int64_t channels, int64_t divisor,
                                ConstValues x, Values y) override;
  void GlobalAveragePoolBackward(int64_t batch, int64_t positions, int64_t channels,
                                 int64_t divisor, ConstValues dy, Values dx) override;

 private:
  // A run uses a handful of extents of each layer: its batch, its last batch, its evaluation's.
  static constexpr size_t kCachedExtents = 512;
  struct ConvolutionKey {
    ConvolutionDims dims;
    bool with_bias = false;
    friend auto operator<=>(const ConvolutionKey&, const ConvolutionKey&) = default;
  };

  CpuContext& cpu_;
  LruCache<ConvolutionKey, PrimitiveRun> forward_{kCachedExtents};
  LruCache<ConvolutionDims, PrimitiveRun> backward_data_{kCachedExtents};
  LruCache<ConvolutionKey, PrimitiveRun> backward_weights_{kCachedExtents};
};

class CpuNorm final : public HostNorm {
 public:
  explicit CpuNorm(CpuContext& cpu) : cpu_(cpu) {}

  void BatchNormSums(const RowsDims& dims, ConstValues x, std::span<double> sums) override;
  void BatchNormForward(const RowsDims& dims, ConstValues x, std::span<const float> mean,
                        std::span<const float> inverse, std::span<const float> scale,
                        std::span<const float> shift, Values y) override;
  void BatchNormBackwardSums(const RowsDims& dims, ConstValues x, ConstValues dy,
                             std::span<const float> mean, std::span<const float> inverse,
                             std::span<double> sums) override;
  void BatchNormBackward(const RowsDims& dims, ConstValues x, ConstValues dy,
                         std::span<const float> mean, std::span<const float> inverse,
                         std::span<const float> scale, std::span<const float> mean_dy,
                         std::span<const float> mean_dy_x, Values dx) override;
  void LayerNormForward(const RowsDims& dims, float epsilon, ConstValues x,
                        std::span<const float> scale, std::span<const float> shift, Values y,
                        std::span<float> mean, std::span<float> inverse) override;
  void LayerNormBackward(const RowsDims& dims, ConstValues x, ConstValues dy,
                         std::span<const float> mean, std::span<const float> inverse,
                         std::span<const float> scale, Values dx, std::span<float> dscale,
                         std::span<float> dshift) override;
  void LrnForward(const LrnDims& dims, ConstValues x, Values y, std::span<float> d) override;
  void LrnBackward(const LrnDims& dims, ConstValues x, std::span<const float> d, ConstValues dy,
                   Values dx) override;

 private:
  CpuContext& cpu_;
};

class CpuPointwise final : public HostPointwise {
 public:
  explicit CpuPointwise(CpuContext& cpu) : cpu_(cpu) {}

  void ActivationForward(Activation kind, ConstValues x, Values y) override;
  void ActivationBackward(Activation kind, ConstValues seen, ConstValues dy, Values dx) override;
  void Dropout(const DropoutKey& key, uint64_t first, ConstValues x, Values y) override;
  void Add(ConstValues x, Values y) override;
  LossSums SoftmaxCrossEntropy(int64_t rows, int64_t classes, float smoothing, ConstValues x,
                               std::span<const int32_t> labels, float scale, Values dx) override;

 private:
  CpuContext& cpu_;
};

class CpuOptimizer final : public HostOptimizer {
 public:
  explicit CpuOptimizer(CpuContext& cpu) : cpu_(cpu) {}

  void Sgd(const SgdStep& step, std::span<const float> g, std::span<float> w,
           std::span<float> v) override;
  void AdamW(const AdamWStep& step, std::span<const float> g, std::span<float> w,
             std::span<float> m, std::span<float> v) override;
  double SumOfSquares(std::span<const float> x) override;

 private:
  CpuContext& cpu_;
};

class CpuBackend final : public HostBackend {
 public:
  explicit CpuBackend(int threads);
  std::unique_ptr<Backend> OneThread() const override { return MakeCpuBackend(1); }

 private:
  CpuContext context_;
};

}  // namespace cadre
