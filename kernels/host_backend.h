// The back ends whose data is in the host's memory: work is complete when the call returns.
//
// The interfaces of the families are implemented once, by HostMemory, HostDense and so on. These
// check the arguments and pass them on to a Caller, which has a class `Operations` and a function
// Call(operation, arguments...) that runs one of its member functions. An operation of the same
// name in a back end is thus called with arguments of the right sizes. Its parameters are Values,
// or spans of floats in place of Values if it computes in fp32 only.
//
// Thread-compatible.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "glog/logging.h"
#include "kernels/backend.h"
#include "kernels/extents.h"

namespace cadre {

// The Caller of a back end whose operations are member functions of Family.
template <typename Family>
class SpanCaller {
 public:
  using Operations = Family;

  template <typename... Arguments>
  explicit SpanCaller(Arguments&... arguments) : operations_(arguments...) {}

 protected:
  // `Base`: Family or a base class of it.
  template <typename Base, typename Result, typename... Parameters, typename... Arguments>
  Result Call(Result (Base::*operation)(Parameters...), const Arguments&... arguments) {
    return (operations_.*operation)(As<std::remove_cvref_t<Parameters>>(arguments)...);
  }

 private:
  // The argument, or its floats if the parameter is a span of floats.
  template <typename Parameter, typename Argument>
  static decltype(auto) As(const Argument& argument) {
    if constexpr (std::is_same_v<Argument, Parameter>) {
      return (argument);
    } else {
      return argument.floats();
    }
  }

  Family operations_;
};

class HostMemoryBase : public MemoryKernels {
 public:
  void Copy(ConstValues x, Values y) final;
  void Zero(Values y) final;
  void CopyRuns(int64_t rows, int64_t run, ConstValues x, int64_t x_step, Values y,
                int64_t y_step) final;
  void CopyBox(ConstValues from, const Box& from_box, Values to, const Box& to_box,
               const Box& region) final;
  void AddBox(ConstValues from, const Box& from_box, Values to, const Box& to_box,
              const Box& region) final;
  void AccumulateReceived(DType type, std::span<std::byte> sum,
                          std::span<const std::byte> values) final;
  bool AllFinite(ConstValues x) final;
};

class HostNormBase : public NormKernels {
 public:
  void BatchNormStatistics(int64_t rows, float epsilon, double share, std::span<const double> sums,
                           FloatSpan mean, FloatSpan inverse, FloatSpan running_mean,
                           FloatSpan running_variance) final;
  void BatchNormInverse(float epsilon, ConstFloatSpan variance, FloatSpan inverse) final;
};

// first and second = the halves of `sums` as fp32.
void StoreHalves(std::span<const double> sums, FloatSpan first, FloatSpan second);
// sums / rows, or sums / 1 without rows, as fp32.
std::vector<float> MeansOf(std::span<const double> sums, int64_t rows);

class HostPointwiseBase : public PointwiseKernels {
 public:
  void SetPosition(int64_t first_position) final { position_ = first_position; }
  void DropoutBox(const DropoutKey& key, const Shape& whole, const Box& box, ConstValues x,
                  Values y) final;
  void SoftmaxCrossEntropyAsync(int64_t rows, int64_t classes, float smoothing, ConstValues x,
                                std::span<const int32_t> labels, float scale, Values dx,
                                std::span<double> sums) final;

 private:
  int64_t position_ = 0;
};

class HostOptimizerBase : public OptimizerKernels {
 public:
  void DrawTowards(float momentum, ConstFloatSpan batch, FloatSpan w) final;
};

// Requires: all numbers are in [0, end); otherwise the process ends. `name` appears in the message.
template <typename T>
void CheckNumbers(absl::string_view name, std::span<const T> numbers, int64_t end) {
  for (const T number : numbers) {
    CHECK(number >= 0 && number < end) << name << " " << number << " of " << end;
  }
}

template <typename Caller>
class HostMemory final : public HostMemoryBase, private Caller {
 public:
  using Caller::Caller;
  using Operations = typename Caller::Operations;

  void Transpose(int64_t batch, int64_t positions, int64_t channels, ConstValues x,
                 Values y) override {
    CheckSizes(batch * positions * channels, {{"x", x.size()}, {"y", y.size()}});
    this->Call(&Operations::Transpose, batch, positions, channels, x, y);
  }
};

template <typename Caller>
class HostDense final : public DenseKernels, private Caller {
 public:
  using Caller::Caller;
  using Operations = typename Caller::Operations;

  void FullyConnectedForward(const FullyConnectedDims& dims, ConstValues x, ConstFloatSpan w,
                             ConstFloatSpan b, Values y) override {
    CheckLayer(SizesOf(dims), x.size(), w.size(), b.size(), y.size());
    this->Call(&Operations::FullyConnectedForward, dims, x, w, b, y);
  }
  void FullyConnectedBackwardData(const FullyConnectedDims& dims, ConstValues dy, ConstFloatSpan w,
                                  Values dx) override {
    CheckLayer(SizesOf(dims), dx.size(), w.size(), 0, dy.size());
    this->Call(&Operations::FullyConnectedBackwardData, dims, dy, w, dx);
  }
  void FullyConnectedBackwardWeights(const FullyConnectedDims& dims, ConstValues x, ConstValues dy,
                                     FloatSpan dw, FloatSpan db) override {
    CheckLayer(SizesOf(dims), x.size(), dw.size(), db.size(), dy.size());
    this->Call(&Operations::FullyConnectedBackwardWeights, dims, x, dy, dw, db);
  }
  void FullyConnectedAddGradients(const FullyConnectedDims& dims, ConstValues x, ConstValues dy,
                                  FloatSpan dw, FloatSpan db) override {
    CheckLayer(SizesOf(dims), x.size(), dw.size(), db.size(), dy.size());
    this->Call(&Operations::FullyConnectedAddGradients, dims, x, dy, dw, db);
  }
  void BatchedProduct(const BatchedProductDims& dims, ConstValues a, ConstValues b,
                      Values c) override {
    CheckLayer(SizesOf(dims), a.size(), b.size(), 0, c.size());
    this->Call(&Operations::BatchedProduct, dims, a, b, c);
  }
  void EmbeddingForward(const EmbeddingDims& dims, ConstFloatSpan ids, ConstFloatSpan w,
                        ConstFloatSpan positions, Values y) override {
    CheckEmbedding(dims, ids.size(), w.size(), positions.size(), y.size());
    CheckNumbers("token", ids, dims.vocabulary);
    this->Call(&Operations::EmbeddingForward, dims, ids, w, positions, y);
  }
  void EmbeddingBackward(const EmbeddingDims& dims, ConstFloatSpan ids, ConstValues dy,
                         FloatSpan dw, FloatSpan dpositions) override {
    CheckEmbedding(dims, ids.size(), dw.size(), dpositions.size(), dy.size());
    CheckNumbers("token", ids, dims.vocabulary);
    this->Call(&Operations::EmbeddingBackward, dims, ids, dy, dw, dpositions);
  }
  void AttentionForward(const AttentionDims& dims, ConstFloatSpan ids, ConstValues qkv,
                        Values context, FloatSpan statistics, Values scratch) override {
    CheckAttention(dims, ids.size(), qkv.size(), context.size(), statistics.size());
    this->Call(&Operations::AttentionForward, dims, ids, qkv, context, statistics, scratch);
  }
  void AttentionBackward(const AttentionDims& dims, ConstFloatSpan ids, ConstValues qkv,
                         ConstValues context, ConstValues dcontext, ConstFloatSpan statistics,
                         Values scratch, Values dqkv) override {
    CheckAttention(dims, ids.size(), qkv.size(), context.size(), statistics.size());
    CheckSize("dcontext", dcontext.size(), SizesOf(dims).context);
    CheckSize("dqkv", dqkv.size(), SizesOf(dims).qkv);
    this->Call(&Operations::AttentionBackward, dims, ids, qkv, context, dcontext, statistics,
               scratch, dqkv);
  }
};

template <typename Caller>
class HostWindow final : public WindowKernels, private Caller {
 public:
  using Caller::Caller;
  using Operations = typename Caller::Operations;

  void ConvolutionForward(const ConvolutionDims& dims, ConstValues x, ConstFloatSpan w,
                          ConstFloatSpan b, Values y) override {
    CheckLayer(SizesOf(dims), x.size(), w.size(), b.size(), y.size());
    this->Call(&Operations::ConvolutionForward, dims, x, w, b, y);
  }
  void ConvolutionBackwardData(const ConvolutionDims& dims, ConstValues dy, ConstFloatSpan w,
                               Values dx) override {
    CheckLayer(SizesOf(dims), dx.size(), w.size(), 0, dy.size());
    this->Call(&Operations::ConvolutionBackwardData, dims, dy, w, dx);
  }
  void AddConvolutionBackwardData(const ConvolutionDims& dims, ConstValues dy, ConstFloatSpan w,
                                  Values dx) override {
    CheckLayer(SizesOf(dims), dx.size(), w.size(), 0, dy.size());
    this->Call(&Operations::AddConvolutionBackwardData, dims, dy, w, dx);
  }
  void ConvolutionBackwardWeights(const ConvolutionDims& dims, ConstValues x, ConstValues dy,
                                  FloatSpan dw, FloatSpan db) override {
    CheckLayer(SizesOf(dims), x.size(), dw.size(), db.size(), dy.size());
    this->Call(&Operations::ConvolutionBackwardWeights, dims, x, dy, dw, db);
  }
  void PoolingForward(const PoolingDims& dims, ConstValues x, Values y,
                      std::span<int32_t> argmax) override {
    CheckPooling(dims, x.size(), y.size(), argmax.size());
    this->Call(&Operations::PoolingForward, dims, x, y, argmax);
  }
  void PoolingBackward(const PoolingDims& dims, ConstValues dy, std::span<const int32_t> argmax,
                       Values dx) override {
    CheckPooling(dims, dx.size(), dy.size(), argmax.size());
    this->Call(&Operations::PoolingBackward, dims, dy, argmax, dx);
  }
  void GlobalAveragePoolForward(int64_t batch, int64_t positions, int64_t channels, int64_t divisor,
                                ConstValues x, Values y) override {
    CheckGlobalPooling(batch, positions, channels, divisor, x.size(), y.size());
    this->Call(&Operations::GlobalAveragePoolForward, batch, positions, channels, divisor, x, y);
  }
  void GlobalAveragePoolBackward(int64_t batch, int64_t positions, int64_t channels,
                                 int64_t divisor, ConstValues dy, Values dx) override {
    CheckGlobalPooling(batch, positions, channels, divisor, dx.size(), dy.size());
    this->Call(&Operations::GlobalAveragePoolBackward, batch, positions, channels, divisor, dy, dx);
  }
};

template <typename Caller>
class HostNorm final : public HostNormBase, private Caller {
 public:
  using Caller::Caller;
  using Operations = typename Caller::Operations;

  void BatchNormSums(const RowsDims& dims, ConstValues x, std::span<double> sums) override {
    CheckSize("x", x.size(), SizeOf(dims));
    CheckSize("sums", sums.size(), 2 * dims.channels);
    this->Call(&Operations::BatchNormSums, dims, x, sums);
  }
  void BatchNormForward(const RowsDims& dims, ConstValues x, ConstFloatSpan mean,
                        ConstFloatSpan inverse, ConstFloatSpan scale, ConstFloatSpan shift,
                        ConstValues addend, std::span<int32_t> positive, Values y) override {
    CheckBatchNorm(dims, {x.size(), y.size()}, {addend.size()}, positive.size());
    CheckChannels(dims, {mean.size(), inverse.size(), scale.size(), shift.size()});
    this->Call(&Operations::BatchNormForward, dims, x, mean, inverse, scale, shift, addend,
               positive, y);
  }
  void BatchNormBackwardSums(const RowsDims& dims, ConstValues x, ConstValues dy,
                             ConstValues other_dy, std::span<const int32_t> positive,
                             ConstFloatSpan mean, ConstFloatSpan inverse, Values total_dy,
                             std::span<double> sums, FloatSpan dscale, FloatSpan dshift) override {
    CheckBatchNorm(dims, {x.size(), dy.size()}, {other_dy.size(), total_dy.size()},
                   positive.size());
    CheckSize("sums", sums.size(), 2 * dims.channels);
    CheckChannels(dims, {mean.size(), inverse.size(), dscale.size(), dshift.size()});
    this->Call(&Operations::BatchNormBackwardSums, dims, x, dy, other_dy, positive, mean, inverse,
               total_dy, sums, dscale, dshift);
  }
  void BatchNormBackward(const RowsDims& dims, ConstValues x, ConstValues dy,
                         std::span<const int32_t> positive, ConstFloatSpan mean,
                         ConstFloatSpan inverse, ConstFloatSpan scale, int64_t rows,
                         std::span<const double> sums, Values dx) override {
    CheckBatchNorm(dims, {x.size(), dy.size(), dx.size()}, {}, positive.size());
    CheckSize("sums", sums.size(), 2 * dims.channels);
    CheckChannels(dims, {mean.size(), inverse.size(), scale.size()});
    this->Call(&Operations::BatchNormBackward, dims, x, dy, positive, mean, inverse, scale, rows,
               sums, dx);
  }
  void LayerNormForward(const RowsDims& dims, float epsilon, ConstValues x, ConstFloatSpan scale,
                        ConstFloatSpan shift, Values y, FloatSpan mean,
                        FloatSpan inverse) override {
    CheckSizes(SizeOf(dims), {{"x", x.size()}, {"y", y.size()}});
    CheckSizes(dims.rows, {{"mean", mean.size()}, {"inverse", inverse.size()}});
    CheckChannels(dims, {scale.size(), shift.size()});
    this->Call(&Operations::LayerNormForward, dims, epsilon, x, scale, shift, y, mean, inverse);
  }
  void LayerNormBackward(const RowsDims& dims, ConstValues x, ConstValues dy, ConstFloatSpan mean,
                         ConstFloatSpan inverse, ConstFloatSpan scale, Values dx, FloatSpan dscale,
                         FloatSpan dshift) override {
    CheckSizes(SizeOf(dims), {{"x", x.size()}, {"dy", dy.size()}, {"dx", dx.size()}});
    CheckSizes(dims.rows, {{"mean", mean.size()}, {"inverse", inverse.size()}});
    CheckChannels(dims, {scale.size(), dscale.size(), dshift.size()});
    this->Call(&Operations::LayerNormBackward, dims, x, dy, mean, inverse, scale, dx, dscale,
               dshift);
  }
  void LrnForward(const LrnDims& dims, ConstValues x, Values y, FloatSpan d) override {
    CheckSizes(SizeOf(dims), {{"x", x.size()}, {"y", y.size()}, {"d", d.size()}});
    this->Call(&Operations::LrnForward, dims, x, y, d);
  }
  void LrnBackward(const LrnDims& dims, ConstValues x, ConstFloatSpan d, ConstValues dy,
                   Values dx) override {
    CheckSizes(SizeOf(dims),
               {{"x", x.size()}, {"d", d.size()}, {"dy", dy.size()}, {"dx", dx.size()}});
    this->Call(&Operations::LrnBackward, dims, x, d, dy, dx);
  }
};

template <typename Caller>
class HostPointwise final : public HostPointwiseBase, private Caller {
 public:
  using Caller::Caller;
  using Operations = typename Caller::Operations;

  void ActivationForward(Activation kind, ConstValues x, Values y) override {
    CheckSize("y", y.size(), std::ssize(x));
    this->Call(&Operations::ActivationForward, kind, x, y);
  }
  void ActivationBackward(Activation kind, ConstValues seen, ConstValues dy, Values dx) override {
    CheckSizes(std::ssize(seen), {{"dy", dy.size()}, {"dx", dx.size()}});
    this->Call(&Operations::ActivationBackward, kind, seen, dy, dx);
  }
  void Dropout(const DropoutKey& key, uint64_t first, ConstValues x, Values y) override {
    CheckSize("y", y.size(), std::ssize(x));
    this->Call(&Operations::Dropout, key, first, x, y);
  }
  void Sum(ConstValues a, ConstValues b, Values y) override {
    CheckSizes(std::ssize(a), {{"y", y.size()}, {"b", b.size()}});
    this->Call(&Operations::Sum, a, b, y);
  }
  void Multiply(const MultiplyDims& dims, ConstValues x, ConstValues factor, Values y) override {
    CheckMultiply(dims, x.size(), factor.size(), y.size());
    this->Call(&Operations::Multiply, dims, x, factor, y);
  }
  void MultiplyBackward(const MultiplyDims& dims, ConstValues x, ConstValues dy,
                        Values dfactor) override {
    CheckMultiply(dims, x.size(), dfactor.size(), dy.size());
    this->Call(&Operations::MultiplyBackward, dims, x, dy, dfactor);
  }
  void LstmForward(const RowsDims& dims, ConstValues recurrent, ConstFloatSpan previous,
                   Values gates, FloatSpan cell, Values y) override {
    CheckLstm(dims, previous.size(), gates.size(), {cell.size(), y.size()});
    CheckSize("recurrent", recurrent.size(), 4 * std::ssize(previous));
    this->Call(&Operations::LstmForward, dims, recurrent, previous, gates, cell, y);
  }
  void LstmBackward(const RowsDims& dims, ConstValues dy, ConstFloatSpan previous,
                    ConstFloatSpan cell, Values gates, FloatSpan dcell) override {
    CheckLstm(dims, previous.size(), gates.size(), {dy.size(), cell.size(), dcell.size()});
    this->Call(&Operations::LstmBackward, dims, dy, previous, cell, gates, dcell);
  }
  void SoftmaxForward(const RowsDims& dims, float scale, ConstFloatSpan x, Values y) override {
    CheckSizes(SizeOf(dims), {{"x", x.size()}, {"y", y.size()}});
    this->Call(&Operations::SoftmaxForward, dims, scale, x, y);
  }
  void SoftmaxBackward(const RowsDims& dims, float scale, ConstValues y, ConstFloatSpan dy,
                       Values dx) override {
    CheckSizes(SizeOf(dims), {{"y", y.size()}, {"dy", dy.size()}, {"dx", dx.size()}});
    this->Call(&Operations::SoftmaxBackward, dims, scale, y, dy, dx);
  }
  void SampledScores(const RowsDims& dims, ConstFloatSpan ids, ConstFloatSpan offsets,
                     ConstFloatSpan label_scores, ConstFloatSpan scores, Values y) override {
    CheckSampledScores(dims, ids.size(), offsets.size(), label_scores.size(), scores.size(),
                       y.size());
    this->Call(&Operations::SampledScores, dims, ids, offsets, label_scores, scores, y);
  }
  LossSums SoftmaxCrossEntropy(int64_t rows, int64_t classes, float smoothing, ConstValues x,
                               std::span<const int32_t> labels, float scale, Values dx) override {
    CheckLoss(rows, classes, x.size(), labels.size(), dx.size());
    CheckNumbers("label", labels, classes);
    return this->Call(&Operations::SoftmaxCrossEntropy, rows, classes, smoothing, x, labels, scale,
                      dx);
  }
};

template <typename Caller>
class HostOptimizer final : public HostOptimizerBase, private Caller {
 public:
  using Caller::Caller;
  using Operations = typename Caller::Operations;

  void Update(const OptimizerStep& step, ConstFloatSpan g, FloatSpan w,
              std::span<const FloatSpan> states) override {
    CheckUpdate(step, g.size(), w.size(), states);
    this->Call(&Operations::Update, step, g, w, states);
  }
  double SumOfSquares(ConstFloatSpan x) override {
    return this->Call(&Operations::SumOfSquares, x);
  }
};

class HostBackend : public Backend {
 public:
  // `without_bf16`: why kBf16 is refused; empty if the operations can compute with bf16.
  explicit HostBackend(std::string without_bf16) : without_bf16_(std::move(without_bf16)) {}

  Device& device() final { return *device_; }
  DType activation_type() const final {
    return precision_ == Precision::kBf16 ? DType::kBFloat16 : DType::kFloat32;
  }
  absl::Status CheckPrecision(Precision precision) const final;
  absl::Status SetPrecision(Precision precision) override;
  void WeightsChanged(ConstFloatSpan /*weights*/) override {}

 private:
  const std::string without_bf16_;
  const std::unique_ptr<Device> device_ = MakeHostDevice();
  Precision precision_ = Precision::kFp32;
};

}  // namespace cadre
