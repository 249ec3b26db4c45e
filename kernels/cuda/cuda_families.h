// The families behind MakeCudaBackend. Private to this folder: each file defines some of the
// members.
#pragma once

#include <memory>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/launches.h"
#include "kernels/cuda/scratch.h"
#include "kernels/cuda/weight_copies.h"

namespace cadre {

// What the families share.
struct CudaContext {
  CudaContext(CudaDevice& device, std::unique_ptr<DenseMath> math);

  void Copy(ConstValues x, Values y);
  void Zero(Values y);
  // w as a factor of values of this type, aligned for libraries: w itself, its bf16 copy, or a
  // conversion in scratch memory.
  ConstValues WeightsAs(DType type, std::span<const float> w);
  // An empty db is not computed.
  void BiasGradient(int64_t rows, ConstValues dy, std::span<float> db);

  // In device memory, for operations that return numbers.
  struct Results {
    double sums[2] = {};
    int32_t found = 0;
  };

  CudaDevice& device;
  const std::unique_ptr<DenseMath> math;
  Precision precision = Precision::kFp32;
  CudaScratch scratch;
  WeightCopies copies;
  DeviceArray<CudaNumbers> numbers;
  DeviceArray<Results> results;
};

class CudaMemory final : public MemoryKernels {
 public:
  explicit CudaMemory(CudaContext& cuda) : cuda_(cuda) {}

  void Copy(ConstValues x, Values y) override;
  void Zero(Values y) override;
  void CopyRuns(int64_t rows, int64_t run, ConstValues x, int64_t x_step, Values y,
                int64_t y_step) override;
  void CopyBox(ConstValues from, const Box& from_box, Values to, const Box& to_box,
               const Box& region) override;
  void AddBox(ConstValues from, const Box& from_box, Values to, const Box& to_box,
              const Box& region) override;
  void AccumulateReceived(DType type, std::span<std::byte> sum,
                          std::span<const std::byte> values) override;
  bool AllFinite(ConstValues x) override;
  void Transpose(int64_t batch, int64_t positions, int64_t channels, ConstValues x,
                 Values y) override;

 private:
  CudaContext& cuda_;
};

class CudaDense final : public DenseKernels {
 public:
  explicit CudaDense(CudaContext& cuda) : cuda_(cuda) {}

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
  CudaContext& cuda_;
};

class CudaWindow final : public WindowKernels {
 public:
  explicit CudaWindow(CudaContext& cuda) : cuda_(cuda) {}

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
  CudaContext& cuda_;
};

class CudaNorm final : public NormKernels {
 public:
  explicit CudaNorm(CudaContext& cuda) : cuda_(cuda) {}

  void BatchNormSums(const RowsDims& dims, ConstValues x, std::span<double> sums) override;
  void BatchNormStatistics(int64_t rows, float epsilon, double share, std::span<const double> sums,
                           std::span<float> mean, std::span<float> inverse,
                           std::span<float> running_mean,
                           std::span<float> running_variance) override;
  void BatchNormInverse(float epsilon, std::span<const float> variance,
                        std::span<float> inverse) override;
  void DivideToFloat(double divisor, std::span<const double> sums, std::span<float> y) override;
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
  CudaContext& cuda_;
};

class CudaPointwise final : public PointwiseKernels {
 public:
  explicit CudaPointwise(CudaContext& cuda) : cuda_(cuda) {}

  void ActivationForward(Activation kind, ConstValues x, Values y) override;
  void ActivationBackward(Activation kind, ConstValues seen, ConstValues dy, Values dx) override;
  void SetPosition(int64_t first_position) override;
  void Dropout(const DropoutKey& key, uint64_t first, ConstValues x, Values y) override;
  void DropoutBox(const DropoutKey& key, const Shape& whole, const Box& box, ConstValues x,
                  Values y) override;
  void Add(ConstValues x, Values y) override;
  LossSums SoftmaxCrossEntropy(int64_t rows, int64_t classes, float smoothing, ConstValues x,
                               std::span<const int32_t> labels, float scale, Values dx) override;
  void SoftmaxCrossEntropyAsync(int64_t rows, int64_t classes, float smoothing, ConstValues x,
                                std::span<const int32_t> labels, float scale, Values dx,
                                std::span<double> sums) override;

 private:
  CudaContext& cuda_;
};

class CudaOptimizer final : public OptimizerKernels {
 public:
  explicit CudaOptimizer(CudaContext& cuda) : cuda_(cuda) {}

  void Sgd(const SgdStep& step, std::span<const float> g, std::span<float> w,
           std::span<float> v) override;
  void AdamW(const AdamWStep& step, std::span<const float> g, std::span<float> w,
             std::span<float> m, std::span<float> v) override;
  void DrawTowards(float momentum, std::span<const float> batch, std::span<float> w) override;
  double SumOfSquares(std::span<const float> x) override;

 private:
  CudaContext& cuda_;
};

class CudaSlice final : public SliceKernels {
 public:
  explicit CudaSlice(CudaContext& cuda) : cuda_(cuda) {}

  void SetUpdate(float rate, int64_t updates) override;
  void AddSumOfSquares(std::span<const float> x, double* sum) override;
  std::unique_ptr<SegmentTable> MakeSegmentTable(std::span<const SliceSegment> segments) override;
  void UpdateSlice(const SliceUpdate& update, const SegmentTable& segments,
                   std::span<const float> g, std::span<float> w, std::span<float> m,
                   std::span<float> v) override;

 private:
  CudaContext& cuda_;
};

}  // namespace cadre
