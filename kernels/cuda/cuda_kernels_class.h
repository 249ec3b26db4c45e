// The class behind MakeCudaKernels. For the .cc files of this folder: each has some of its methods.
#pragma once

#include <memory>

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/launches.h"
#include "kernels/cuda/scratch.h"
#include "kernels/cuda/weight_copies.h"

namespace cadre {

class CudaKernels final : public Kernels {
 public:
  CudaKernels(CudaDevice& device, std::unique_ptr<DenseMath> math);

  Device& device() override { return device_; }
  DType activation_type() const override {
    return precision_ == Precision::kBf16 ? DType::kBFloat16 : DType::kFloat32;
  }
  absl::Status SetPrecision(Precision precision) override;
  void SetPosition(int64_t first_position) override;
  void SetUpdate(float rate, int64_t updates) override;
  void WeightsChanged(std::span<const float> weights) override;

  void Copy(ConstValues x, Values y) override;
  void Zero(Values y) override;
  void CopyRuns(int64_t rows, int64_t run, ConstValues x, int64_t x_step, Values y,
                int64_t y_step) override;
  void CopyBox(ConstValues from, const Box& from_box, Values to, const Box& to_box,
               const Box& region) override;
  void AddBox(ConstValues from, const Box& from_box, Values to, const Box& to_box,
              const Box& region) override;
  void AddArrived(DType type, std::span<std::byte> sum, std::span<const std::byte> values) override;
  bool AllFinite(ConstValues x) override;

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
  void FullyConnectedForward(const FullyConnectedDims& dims, ConstValues x,
                             std::span<const float> w, std::span<const float> b, Values y) override;
  void FullyConnectedBackwardData(const FullyConnectedDims& dims, ConstValues dy,
                                  std::span<const float> w, Values dx) override;
  void FullyConnectedBackwardWeights(const FullyConnectedDims& dims, ConstValues x, ConstValues dy,
                                     std::span<float> dw, std::span<float> db) override;
  void ActivationForward(Activation kind, ConstValues x, Values y) override;
  void ActivationBackward(Activation kind, ConstValues seen, ConstValues dy, Values dx) override;
  void Dropout(const DropoutKey& key, uint64_t first, ConstValues x, Values y) override;
  void DropoutBox(const DropoutKey& key, const Shape& whole, const Box& box, ConstValues x,
                  Values y) override;
  void Add(ConstValues x, Values y) override;
  void BatchNormSums(const RowsDims& dims, ConstValues x, std::span<double> sums) override;
  void BatchNormStatistics(int64_t rows, float epsilon, double share, std::span<const double> sums,
                           std::span<float> mean, std::span<float> inverse,
                           std::span<float> running_mean,
                           std::span<float> running_variance) override;
  void BatchNormInverse(float epsilon, std::span<const float> variance,
                        std::span<float> inverse) override;
  void Narrow(double divisor, std::span<const double> sums, std::span<float> y) override;
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
  void Transpose(int64_t batch, int64_t positions, int64_t channels, ConstValues x,
                 Values y) override;
  void EmbeddingForward(const EmbeddingDims& dims, std::span<const float> ids,
                        std::span<const float> w, std::span<const float> positions,
                        Values y) override;
  void EmbeddingBackward(const EmbeddingDims& dims, std::span<const float> ids, ConstValues dy,
                         std::span<float> dw, std::span<float> dpositions) override;
  void AttentionForward(const AttentionDims& dims, ConstValues qkv, Values probabilities,
                        Values context) override;
  void AttentionBackward(const AttentionDims& dims, ConstValues qkv, ConstValues probabilities,
                         ConstValues dcontext, Values dqkv) override;
  LossSums SoftmaxCrossEntropy(int64_t rows, int64_t classes, float smoothing, ConstValues x,
                               std::span<const int32_t> labels, float scale, Values dx) override;
  void SoftmaxCrossEntropyLater(int64_t rows, int64_t classes, float smoothing, ConstValues x,
                                std::span<const int32_t> labels, float scale, Values dx,
                                std::span<double> sums) override;
  void Sgd(const SgdStep& step, std::span<const float> g, std::span<float> w,
           std::span<float> v) override;
  void AdamW(const AdamWStep& step, std::span<const float> g, std::span<float> w,
             std::span<float> m, std::span<float> v) override;
  double SumOfSquares(std::span<const float> x) override;
  void AddSumOfSquares(std::span<const float> x, double* sum) override;
  std::unique_ptr<SegmentTable> MakeSegmentTable(std::span<const SliceSegment> segments) override;
  void UpdateSlice(const SliceUpdate& update, const SegmentTable& segments,
                   std::span<const float> g, std::span<float> w, std::span<float> m,
                   std::span<float> v) override;
  std::unique_ptr<Kernels> OneThread() const override;

 private:
  // Of what returns numbers, in the device's memory.
  struct Results {
    double sums[2] = {};
    int32_t found = 0;
  };

  // w as a factor of values of this type, aligned for libraries: itself, its copy, or one made in
  // scratch for now.
  ConstValues WeightsAs(DType type, std::span<const float> w);
  void BiasGradient(int64_t rows, ConstValues dy, std::span<float> db);
  // The fused form, with what backward needs of it in the memory of the probabilities.
  bool Fuses(const AttentionDims& dims, ConstValues qkv, ConstValues probabilities);
  void Update(const SliceUpdate& update, const CudaNumbers* numbers,
              std::span<const SliceSegment> segments, std::span<const float> g, std::span<float> w,
              std::span<float> m, std::span<float> v);

  CudaDevice& device_;
  const std::unique_ptr<DenseMath> math_;
  Precision precision_ = Precision::kFp32;
  CudaScratch scratch_;
  WeightCopies copies_;
  DeviceArray<CudaNumbers> numbers_;
  DeviceArray<Results> results_;
};

}  // namespace cadre
