// What all back ends on the host share: memory is the host's, activations are fp32, and what is
// enqueued has happened.
//
// Derived classes write the operations on spans of floats; copies, and what is put together of
// other operations, is here. Thread-compatible.
#pragma once

#include <memory>
#include <span>

#include "kernels/kernels.h"

namespace cadre {

class HostKernels : public Kernels {
 public:
  Device& device() final { return *device_; }
  DType activation_type() const final { return DType::kFloat32; }
  absl::Status SetPrecision(Precision precision) final;
  void SetPosition(int64_t first_position) final { position_ = first_position; }
  void SetUpdate(float rate, int64_t updates) final {
    rate_ = rate;
    updates_ = updates;
  }
  void WeightsChanged(std::span<const float> /*weights*/) final {}

  void Copy(ConstValues x, Values y) final;
  void Zero(Values y) final;
  void CopyRuns(int64_t rows, int64_t run, ConstValues x, int64_t x_step, Values y,
                int64_t y_step) final;
  void CopyBox(ConstValues from, const Box& from_box, Values to, const Box& to_box,
               const Box& region) final;
  void AddBox(ConstValues from, const Box& from_box, Values to, const Box& to_box,
              const Box& region) final;
  void AddArrived(DType type, std::span<std::byte> sum, std::span<const std::byte> values) final;
  bool AllFinite(ConstValues x) final;
  void DropoutBox(const DropoutKey& key, const Shape& whole, const Box& box, ConstValues x,
                  Values y) final;
  void BatchNormStatistics(int64_t rows, float epsilon, double share, std::span<const double> sums,
                           std::span<float> mean, std::span<float> inverse,
                           std::span<float> running_mean, std::span<float> running_variance) final;
  void BatchNormInverse(float epsilon, std::span<const float> variance,
                        std::span<float> inverse) final;
  void Narrow(double divisor, std::span<const double> sums, std::span<float> y) final;
  void SoftmaxCrossEntropyLater(int64_t rows, int64_t classes, float smoothing, ConstValues x,
                                std::span<const int32_t> labels, float scale, Values dx,
                                std::span<double> sums) final;
  void AddSumOfSquares(std::span<const float> x, double* sum) final;
  std::unique_ptr<SegmentTable> MakeSegmentTable(std::span<const SliceSegment> segments) final;
  void UpdateSlice(const SliceUpdate& update, const SegmentTable& segments,
                   std::span<const float> g, std::span<float> w, std::span<float> m,
                   std::span<float> v) final;

  void ConvolutionForward(const ConvolutionDims& dims, ConstValues x, std::span<const float> w,
                          std::span<const float> b, Values y) final {
    ConvolutionForward(dims, x.floats(), w, b, y.floats());
  }
  virtual void ConvolutionForward(const ConvolutionDims& dims, std::span<const float> x,
                                  std::span<const float> w, std::span<const float> b,
                                  std::span<float> y) = 0;
  void ConvolutionBackwardData(const ConvolutionDims& dims, ConstValues dy,
                               std::span<const float> w, Values dx) final {
    ConvolutionBackwardData(dims, dy.floats(), w, dx.floats());
  }
  virtual void ConvolutionBackwardData(const ConvolutionDims& dims, std::span<const float> dy,
                                       std::span<const float> w, std::span<float> dx) = 0;
  void ConvolutionBackwardWeights(const ConvolutionDims& dims, ConstValues x, ConstValues dy,
                                  std::span<float> dw, std::span<float> db) final {
    ConvolutionBackwardWeights(dims, x.floats(), dy.floats(), dw, db);
  }
  virtual void ConvolutionBackwardWeights(const ConvolutionDims& dims, std::span<const float> x,
                                          std::span<const float> dy, std::span<float> dw,
                                          std::span<float> db) = 0;
  void PoolingForward(const PoolingDims& dims, ConstValues x, Values y,
                      std::span<int32_t> argmax) final {
    PoolingForward(dims, x.floats(), y.floats(), argmax);
  }
  virtual void PoolingForward(const PoolingDims& dims, std::span<const float> x, std::span<float> y,
                              std::span<int32_t> argmax) = 0;
  void PoolingBackward(const PoolingDims& dims, ConstValues dy, std::span<const int32_t> argmax,
                       Values dx) final {
    PoolingBackward(dims, dy.floats(), argmax, dx.floats());
  }
  virtual void PoolingBackward(const PoolingDims& dims, std::span<const float> dy,
                               std::span<const int32_t> argmax, std::span<float> dx) = 0;
  void GlobalAveragePoolForward(int64_t batch, int64_t positions, int64_t channels, int64_t divisor,
                                ConstValues x, Values y) final {
    GlobalAveragePoolForward(batch, positions, channels, divisor, x.floats(), y.floats());
  }
  virtual void GlobalAveragePoolForward(int64_t batch, int64_t positions, int64_t channels,
                                        int64_t divisor, std::span<const float> x,
                                        std::span<float> y) = 0;
  void GlobalAveragePoolBackward(int64_t batch, int64_t positions, int64_t channels,
                                 int64_t divisor, ConstValues dy, Values dx) final {
    GlobalAveragePoolBackward(batch, positions, channels, divisor, dy.floats(), dx.floats());
  }
  virtual void GlobalAveragePoolBackward(int64_t batch, int64_t positions, int64_t channels,
                                         int64_t divisor, std::span<const float> dy,
                                         std::span<float> dx) = 0;
  void FullyConnectedForward(const FullyConnectedDims& dims, ConstValues x,
                             std::span<const float> w, std::span<const float> b, Values y) final {
    FullyConnectedForward(dims, x.floats(), w, b, y.floats());
  }
  virtual void FullyConnectedForward(const FullyConnectedDims& dims, std::span<const float> x,
                                     std::span<const float> w, std::span<const float> b,
                                     std::span<float> y) = 0;
  void FullyConnectedBackwardData(const FullyConnectedDims& dims, ConstValues dy,
                                  std::span<const float> w, Values dx) final {
    FullyConnectedBackwardData(dims, dy.floats(), w, dx.floats());
  }
  virtual void FullyConnectedBackwardData(const FullyConnectedDims& dims, std::span<const float> dy,
                                          std::span<const float> w, std::span<float> dx) = 0;
  void FullyConnectedBackwardWeights(const FullyConnectedDims& dims, ConstValues x, ConstValues dy,
                                     std::span<float> dw, std::span<float> db) final {
    FullyConnectedBackwardWeights(dims, x.floats(), dy.floats(), dw, db);
  }
  virtual void FullyConnectedBackwardWeights(const FullyConnectedDims& dims,
                                             std::span<const float> x, std::span<const float> dy,
                                             std::span<float> dw, std::span<float> db) = 0;
  void ActivationForward(Activation kind, ConstValues x, Values y) final {
    ActivationForward(kind, x.floats(), y.floats());
  }
  virtual void ActivationForward(Activation kind, std::span<const float> x, std::span<float> y) = 0;
  void ActivationBackward(Activation kind, ConstValues seen, ConstValues dy, Values dx) final {
    ActivationBackward(kind, seen.floats(), dy.floats(), dx.floats());
  }
  virtual void ActivationBackward(Activation kind, std::span<const float> seen,
                                  std::span<const float> dy, std::span<float> dx) = 0;
  void Dropout(const DropoutKey& key, uint64_t first, ConstValues x, Values y) final {
    Dropout(key, first, x.floats(), y.floats());
  }
  virtual void Dropout(const DropoutKey& key, uint64_t first, std::span<const float> x,
                       std::span<float> y) = 0;
  void Add(ConstValues x, Values y) final { Add(x.floats(), y.floats()); }
  virtual void Add(std::span<const float> x, std::span<float> y) = 0;
  void BatchNormSums(const RowsDims& dims, ConstValues x, std::span<double> sums) final {
    BatchNormSums(dims, x.floats(), sums);
  }
  virtual void BatchNormSums(const RowsDims& dims, std::span<const float> x,
                             std::span<double> sums) = 0;
  void BatchNormForward(const RowsDims& dims, ConstValues x, std::span<const float> mean,
                        std::span<const float> inverse, std::span<const float> scale,
                        std::span<const float> shift, Values y) final {
    BatchNormForward(dims, x.floats(), mean, inverse, scale, shift, y.floats());
  }
  virtual void BatchNormForward(const RowsDims& dims, std::span<const float> x,
                                std::span<const float> mean, std::span<const float> inverse,
                                std::span<const float> scale, std::span<const float> shift,
                                std::span<float> y) = 0;
  void BatchNormBackwardSums(const RowsDims& dims, ConstValues x, ConstValues dy,
                             std::span<const float> mean, std::span<const float> inverse,
                             std::span<double> sums) final {
    BatchNormBackwardSums(dims, x.floats(), dy.floats(), mean, inverse, sums);
  }
  virtual void BatchNormBackwardSums(const RowsDims& dims, std::span<const float> x,
                                     std::span<const float> dy, std::span<const float> mean,
                                     std::span<const float> inverse, std::span<double> sums) = 0;
  void BatchNormBackward(const RowsDims& dims, ConstValues x, ConstValues dy,
                         std::span<const float> mean, std::span<const float> inverse,
                         std::span<const float> scale, std::span<const float> mean_dy,
                         std::span<const float> mean_dy_x, Values dx) final {
    BatchNormBackward(dims, x.floats(), dy.floats(), mean, inverse, scale, mean_dy, mean_dy_x,
                      dx.floats());
  }
  virtual void BatchNormBackward(const RowsDims& dims, std::span<const float> x,
                                 std::span<const float> dy, std::span<const float> mean,
                                 std::span<const float> inverse, std::span<const float> scale,
                                 std::span<const float> mean_dy, std::span<const float> mean_dy_x,
                                 std::span<float> dx) = 0;
  void LayerNormForward(const RowsDims& dims, float epsilon, ConstValues x,
                        std::span<const float> scale, std::span<const float> shift, Values y,
                        std::span<float> mean, std::span<float> inverse) final {
    LayerNormForward(dims, epsilon, x.floats(), scale, shift, y.floats(), mean, inverse);
  }
  virtual void LayerNormForward(const RowsDims& dims, float epsilon, std::span<const float> x,
                                std::span<const float> scale, std::span<const float> shift,
                                std::span<float> y, std::span<float> mean,
                                std::span<float> inverse) = 0;
  void LayerNormBackward(const RowsDims& dims, ConstValues x, ConstValues dy,
                         std::span<const float> mean, std::span<const float> inverse,
                         std::span<const float> scale, Values dx, std::span<float> dscale,
                         std::span<float> dshift) final {
    LayerNormBackward(dims, x.floats(), dy.floats(), mean, inverse, scale, dx.floats(), dscale,
                      dshift);
  }
  virtual void LayerNormBackward(const RowsDims& dims, std::span<const float> x,
                                 std::span<const float> dy, std::span<const float> mean,
                                 std::span<const float> inverse, std::span<const float> scale,
                                 std::span<float> dx, std::span<float> dscale,
                                 std::span<float> dshift) = 0;
  void LrnForward(const LrnDims& dims, ConstValues x, Values y, std::span<float> d) final {
    LrnForward(dims, x.floats(), y.floats(), d);
  }
  virtual void LrnForward(const LrnDims& dims, std::span<const float> x, std::span<float> y,
                          std::span<float> d) = 0;
  void LrnBackward(const LrnDims& dims, ConstValues x, std::span<const float> d, ConstValues dy,
                   Values dx) final {
    LrnBackward(dims, x.floats(), d, dy.floats(), dx.floats());
  }
  virtual void LrnBackward(const LrnDims& dims, std::span<const float> x, std::span<const float> d,
                           std::span<const float> dy, std::span<float> dx) = 0;
  void Transpose(int64_t batch, int64_t positions, int64_t channels, ConstValues x,
                 Values y) final {
    Transpose(batch, positions, channels, x.floats(), y.floats());
  }
  virtual void Transpose(int64_t batch, int64_t positions, int64_t channels,
                         std::span<const float> x, std::span<float> y) = 0;
  void EmbeddingForward(const EmbeddingDims& dims, std::span<const float> ids,
                        std::span<const float> w, std::span<const float> positions,
                        Values y) final {
    EmbeddingForward(dims, ids, w, positions, y.floats());
  }
  virtual void EmbeddingForward(const EmbeddingDims& dims, std::span<const float> ids,
                                std::span<const float> w, std::span<const float> positions,
                                std::span<float> y) = 0;
  void EmbeddingBackward(const EmbeddingDims& dims, std::span<const float> ids, ConstValues dy,
                         std::span<float> dw, std::span<float> dpositions) final {
    EmbeddingBackward(dims, ids, dy.floats(), dw, dpositions);
  }
  virtual void EmbeddingBackward(const EmbeddingDims& dims, std::span<const float> ids,
                                 std::span<const float> dy, std::span<float> dw,
                                 std::span<float> dpositions) = 0;
  void AttentionForward(const AttentionDims& dims, ConstValues qkv, Values probabilities,
                        Values context) final {
    AttentionForward(dims, qkv.floats(), probabilities.floats(), context.floats());
  }
  virtual void AttentionForward(const AttentionDims& dims, std::span<const float> qkv,
                                std::span<float> probabilities, std::span<float> context) = 0;
  void AttentionBackward(const AttentionDims& dims, ConstValues qkv, ConstValues probabilities,
                         ConstValues dcontext, Values dqkv) final {
    AttentionBackward(dims, qkv.floats(), probabilities.floats(), dcontext.floats(), dqkv.floats());
  }
  virtual void AttentionBackward(const AttentionDims& dims, std::span<const float> qkv,
                                 std::span<const float> probabilities,
                                 std::span<const float> dcontext, std::span<float> dqkv) = 0;
  LossSums SoftmaxCrossEntropy(int64_t rows, int64_t classes, float smoothing, ConstValues x,
                               std::span<const int32_t> labels, float scale, Values dx) final {
    return SoftmaxCrossEntropy(rows, classes, smoothing, x.floats(), labels, scale, dx.floats());
  }
  virtual LossSums SoftmaxCrossEntropy(int64_t rows, int64_t classes, float smoothing,
                                       std::span<const float> x, std::span<const int32_t> labels,
                                       float scale, std::span<float> dx) = 0;

 private:
  const std::unique_ptr<Device> device_ = MakeHostDevice();
  int64_t position_ = 0;
  float rate_ = 0;
  int64_t updates_ = 0;
};

}  // namespace cadre
