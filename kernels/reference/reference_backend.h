// The oracle: each operation as its definition, summed in double, in one thread, as simply as
// possible. A file per family of operations. Owns nothing. Thread-compatible.
#pragma once

#include "kernels/host_backend.h"

namespace cadre {

class ReferenceMemory final : public HostMemory {
 public:
  void Transpose(int64_t batch, int64_t positions, int64_t channels, ConstValues x,
                 Values y) override;
};

class ReferenceDense final : public DenseKernels {
 public:
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
};

class ReferenceWindow final : public WindowKernels {
 public:
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
};

class ReferenceNorm final : public HostNorm {
 public:
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
};

class ReferencePointwise final : public HostPointwise {
 public:
  void ActivationForward(Activation kind, ConstValues x, Values y) override;
  void ActivationBackward(Activation kind, ConstValues seen, ConstValues dy, Values dx) override;
  void Dropout(const DropoutKey& key, uint64_t first, ConstValues x, Values y) override;
  void Add(ConstValues x, Values y) override;
  LossSums SoftmaxCrossEntropy(int64_t rows, int64_t classes, float smoothing, ConstValues x,
                               std::span<const int32_t> labels, float scale, Values dx) override;
};

class ReferenceOptimizer final : public HostOptimizer {
 public:
  void Sgd(const SgdStep& step, std::span<const float> g, std::span<float> w,
           std::span<float> v) override;
  void AdamW(const AdamWStep& step, std::span<const float> g, std::span<float> w,
             std::span<float> m, std::span<float> v) override;
  double SumOfSquares(std::span<const float> x) override;
};

}  // namespace cadre
