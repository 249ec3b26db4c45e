#include <algorithm>
#include <deque>
#include <functional>
#include <type_traits>
#include <utility>
#include <vector>

#include "glog/logging.h"
#include "kernels/host_backend.h"
#include "tests/kernels/cuda_rig.h"

namespace cadre {
namespace {

// Device copies of the arguments of one call. Spans of the same host memory share device memory,
// for operations in place. Activations are converted to `type` and back.
class Stage {
 public:
  Stage(CudaDevice& device, int64_t shift, DType type)
      : device_(device), shift_(shift), type_(type) {}

  // The device's copy of the argument.
  template <typename T>
  const T& Copied(const T& extents) {
    return extents;
  }
  template <typename T>
  std::span<T> Copied(std::span<T> host) {
    using Element = std::remove_const_t<T>;
    auto* const begin = const_cast<Element*>(host.data());
    const Argument& argument = CopyOf(begin, host.size_bytes(), sizeof(T), [&](void* to) {
      device_.CopyIn(begin, to, host.size_bytes());
    });
    if constexpr (!std::is_const_v<T>) {
      Writes(begin, [this, host, from = argument.on_device] {
        return device_.CopyOut(from, host.data(), host.size_bytes());
      });
    }
    return {static_cast<T*>(argument.on_device), host.size()};
  }
  ConstValues Copied(ConstValues host) {
    if (type_ == DType::kFloat32) return Copied(host.floats());
    const std::span<const float> floats = host.floats();
    auto* const begin = const_cast<float*>(floats.data());
    const Argument& argument = CopyOf(begin, 2 * floats.size(), 2, [&](void* to) {
      std::vector<uint16_t> narrow(floats.size());
      std::transform(floats.begin(), floats.end(), narrow.begin(), ToBf16);
      device_.CopyIn(narrow.data(), to, 2 * narrow.size());
    });
    return {argument.on_device, floats.size(), type_};
  }
  Values Copied(Values host) {
    if (type_ == DType::kFloat32) return Copied(host.floats());
    const ConstValues copy = Copied(ConstValues(host));
    Writes(host.data(), [this, copy, to = host.floats()] {
      std::vector<uint16_t> narrow(to.size());
      const absl::Status status = device_.CopyOut(copy.data(), narrow.data(), 2 * to.size());
      std::transform(narrow.begin(), narrow.end(), to.begin(), FromBf16);
      return status;
    });
    return {const_cast<void*>(copy.data()), copy.size(), type_};
  }
  // Copies the outputs to the host.
  void Finish() {
    for (const Argument& argument : arguments_) {
      if (argument.bytes == 0 || !argument.copy_out) continue;
      const absl::Status status = argument.copy_out();
      CHECK(status.ok()) << status;
    }
    CHECK(device_.status().ok()) << device_.status();
  }

 private:
  struct Argument {
    const void* on_host = nullptr;
    size_t bytes = 0;
    DeviceArray<std::byte> memory;
    void* on_device = nullptr;
    // Null for inputs.
    std::function<absl::Status()> copy_out;
  };

  Argument& CopyOf(const void* host, size_t bytes, size_t element,
                   const std::function<void(void*)>& copy_in) {
    for (Argument& argument : arguments_) {
      if (bytes > 0 && argument.on_host == host && argument.bytes == bytes) return argument;
    }
    Argument& argument = arguments_.emplace_back();
    argument.on_host = host;
    argument.bytes = bytes;
    if (bytes == 0) return argument;
    argument.memory = DeviceArray<std::byte>(device_, bytes + shift_ * element, "test");
    argument.on_device = argument.memory.data() + shift_ * element;
    copy_in(argument.on_device);
    return argument;
  }
  void Writes(const void* host, std::function<absl::Status()> copy_out) {
    for (Argument& argument : arguments_) {
      if (argument.on_host == host) argument.copy_out = copy_out;
    }
  }

  CudaDevice& device_;
  const size_t shift_;
  const DType type_;
  std::deque<Argument> arguments_;
};

// The rig, and the placement of data on its device.
struct StagedRig {
  std::unique_ptr<CudaRig> rig;
  int64_t shift;
  DType type;
};

// One family of the staged back end. Call runs an operation of the rig's family on copies of the
// arguments.
template <typename Base, typename Family, Family& (Backend::*kFamily)()>
class Staged : public Base {
 public:
  explicit Staged(StagedRig& rig) : rig_(rig) {}

 protected:
  template <typename Result, typename... Parameters, typename... Arguments>
  Result Call(Result (Family::*operation)(Parameters...), const Arguments&... arguments) {
    Stage stage(rig_.rig->device(), rig_.shift, rig_.type);
    Family& family = (rig_.rig->kernels().*kFamily)();
    if constexpr (std::is_void_v<Result>) {
      (family.*operation)(stage.Copied(arguments)...);
      stage.Finish();
    } else {
      const Result result = (family.*operation)(stage.Copied(arguments)...);
      stage.Finish();
      return result;
    }
  }

 private:
  StagedRig& rig_;
};

class StagedMemory final : public Staged<HostMemory, MemoryKernels, &Backend::memory> {
 public:
  using Staged::Staged;

  void Transpose(int64_t batch, int64_t positions, int64_t channels, ConstValues x,
                 Values y) override {
    Call(&MemoryKernels::Transpose, batch, positions, channels, x, y);
  }
};

class StagedDense final : public Staged<DenseKernels, DenseKernels, &Backend::dense> {
 public:
  using Staged::Staged;

  void FullyConnectedForward(const FullyConnectedDims& dims, ConstValues x,
                             std::span<const float> w, std::span<const float> b,
                             Values y) override {
    Call(&DenseKernels::FullyConnectedForward, dims, x, w, b, y);
  }
  void FullyConnectedBackwardData(const FullyConnectedDims& dims, ConstValues dy,
                                  std::span<const float> w, Values dx) override {
    Call(&DenseKernels::FullyConnectedBackwardData, dims, dy, w, dx);
  }
  void FullyConnectedBackwardWeights(const FullyConnectedDims& dims, ConstValues x, ConstValues dy,
                                     std::span<float> dw, std::span<float> db) override {
    Call(&DenseKernels::FullyConnectedBackwardWeights, dims, x, dy, dw, db);
  }
  void EmbeddingForward(const EmbeddingDims& dims, std::span<const float> ids,
                        std::span<const float> w, std::span<const float> positions,
                        Values y) override {
    Call(&DenseKernels::EmbeddingForward, dims, ids, w, positions, y);
  }
  void EmbeddingBackward(const EmbeddingDims& dims, std::span<const float> ids, ConstValues dy,
                         std::span<float> dw, std::span<float> dpositions) override {
    Call(&DenseKernels::EmbeddingBackward, dims, ids, dy, dw, dpositions);
  }
  void AttentionForward(const AttentionDims& dims, ConstValues qkv, Values probabilities,
                        Values context) override {
    Call(&DenseKernels::AttentionForward, dims, qkv, probabilities, context);
  }
  void AttentionBackward(const AttentionDims& dims, ConstValues qkv, ConstValues probabilities,
                         ConstValues dcontext, Values dqkv) override {
    Call(&DenseKernels::AttentionBackward, dims, qkv, probabilities, dcontext, dqkv);
  }
};

class StagedWindow final : public Staged<WindowKernels, WindowKernels, &Backend::window> {
 public:
  using Staged::Staged;

  void ConvolutionForward(const ConvolutionDims& dims, ConstValues x, std::span<const float> w,
                          std::span<const float> b, Values y) override {
    Call(&WindowKernels::ConvolutionForward, dims, x, w, b, y);
  }
  void ConvolutionBackwardData(const ConvolutionDims& dims, ConstValues dy,
                               std::span<const float> w, Values dx) override {
    Call(&WindowKernels::ConvolutionBackwardData, dims, dy, w, dx);
  }
  void ConvolutionBackwardWeights(const ConvolutionDims& dims, ConstValues x, ConstValues dy,
                                  std::span<float> dw, std::span<float> db) override {
    Call(&WindowKernels::ConvolutionBackwardWeights, dims, x, dy, dw, db);
  }
  void PoolingForward(const PoolingDims& dims, ConstValues x, Values y,
                      std::span<int32_t> argmax) override {
    Call(&WindowKernels::PoolingForward, dims, x, y, argmax);
  }
  void PoolingBackward(const PoolingDims& dims, ConstValues dy, std::span<const int32_t> argmax,
                       Values dx) override {
    Call(&WindowKernels::PoolingBackward, dims, dy, argmax, dx);
  }
  void GlobalAveragePoolForward(int64_t batch, int64_t positions, int64_t channels, int64_t divisor,
                                ConstValues x, Values y) override {
    Call(&WindowKernels::GlobalAveragePoolForward, batch, positions, channels, divisor, x, y);
  }
  void GlobalAveragePoolBackward(int64_t batch, int64_t positions, int64_t channels,
                                 int64_t divisor, ConstValues dy, Values dx) override {
    Call(&WindowKernels::GlobalAveragePoolBackward, batch, positions, channels, divisor, dy, dx);
  }
};

class StagedNorm final : public Staged<HostNorm, NormKernels, &Backend::norm> {
 public:
  using Staged::Staged;

  void BatchNormSums(const RowsDims& dims, ConstValues x, std::span<double> sums) override {
    Call(&NormKernels::BatchNormSums, dims, x, sums);
  }
  void BatchNormForward(const RowsDims& dims, ConstValues x, std::span<const float> mean,
                        std::span<const float> inverse, std::span<const float> scale,
                        std::span<const float> shift, Values y) override {
    Call(&NormKernels::BatchNormForward, dims, x, mean, inverse, scale, shift, y);
  }
  void BatchNormBackwardSums(const RowsDims& dims, ConstValues x, ConstValues dy,
                             std::span<const float> mean, std::span<const float> inverse,
                             std::span<double> sums) override {
    Call(&NormKernels::BatchNormBackwardSums, dims, x, dy, mean, inverse, sums);
  }
  void BatchNormBackward(const RowsDims& dims, ConstValues x, ConstValues dy,
                         std::span<const float> mean, std::span<const float> inverse,
                         std::span<const float> scale, std::span<const float> mean_dy,
                         std::span<const float> mean_dy_x, Values dx) override {
    Call(&NormKernels::BatchNormBackward, dims, x, dy, mean, inverse, scale, mean_dy, mean_dy_x,
         dx);
  }
  void LayerNormForward(const RowsDims& dims, float epsilon, ConstValues x,
                        std::span<const float> scale, std::span<const float> shift, Values y,
                        std::span<float> mean, std::span<float> inverse) override {
    Call(&NormKernels::LayerNormForward, dims, epsilon, x, scale, shift, y, mean, inverse);
  }
  void LayerNormBackward(const RowsDims& dims, ConstValues x, ConstValues dy,
                         std::span<const float> mean, std::span<const float> inverse,
                         std::span<const float> scale, Values dx, std::span<float> dscale,
                         std::span<float> dshift) override {
    Call(&NormKernels::LayerNormBackward, dims, x, dy, mean, inverse, scale, dx, dscale, dshift);
  }
  void LrnForward(const LrnDims& dims, ConstValues x, Values y, std::span<float> d) override {
    Call(&NormKernels::LrnForward, dims, x, y, d);
  }
  void LrnBackward(const LrnDims& dims, ConstValues x, std::span<const float> d, ConstValues dy,
                   Values dx) override {
    Call(&NormKernels::LrnBackward, dims, x, d, dy, dx);
  }
};

class StagedPointwise final : public Staged<HostPointwise, PointwiseKernels, &Backend::pointwise> {
 public:
  using Staged::Staged;

  void ActivationForward(Activation kind, ConstValues x, Values y) override {
    Call(&PointwiseKernels::ActivationForward, kind, x, y);
  }
  void ActivationBackward(Activation kind, ConstValues seen, ConstValues dy, Values dx) override {
    Call(&PointwiseKernels::ActivationBackward, kind, seen, dy, dx);
  }
  void Dropout(const DropoutKey& key, uint64_t first, ConstValues x, Values y) override {
    Call(&PointwiseKernels::Dropout, key, first, x, y);
  }
  void Add(ConstValues x, Values y) override { Call(&PointwiseKernels::Add, x, y); }
  LossSums SoftmaxCrossEntropy(int64_t rows, int64_t classes, float smoothing, ConstValues x,
                               std::span<const int32_t> labels, float scale, Values dx) override {
    return Call(&PointwiseKernels::SoftmaxCrossEntropy, rows, classes, smoothing, x, labels, scale,
                dx);
  }
};

class StagedOptimizer final : public Staged<HostOptimizer, OptimizerKernels, &Backend::optimizer> {
 public:
  using Staged::Staged;

  void Sgd(const SgdStep& step, std::span<const float> g, std::span<float> w,
           std::span<float> v) override {
    Call(&OptimizerKernels::Sgd, step, g, w, v);
  }
  void AdamW(const AdamWStep& step, std::span<const float> g, std::span<float> w,
             std::span<float> m, std::span<float> v) override {
    Call(&OptimizerKernels::AdamW, step, g, w, m, v);
  }
  double SumOfSquares(std::span<const float> x) override {
    return Call(&OptimizerKernels::SumOfSquares, x);
  }
};

class StagedBackend final : public HostBackend {
 public:
  StagedBackend(std::unique_ptr<CudaRig> rig, int64_t shift, DType type)
      : rig_{std::move(rig), shift, type} {
    if (type == DType::kBFloat16) {
      CHECK(rig_.rig->kernels().SetPrecision(Precision::kBf16).ok());
    }
    families_ = {.memory = std::make_unique<StagedMemory>(rig_),
                 .dense = std::make_unique<StagedDense>(rig_),
                 .window = std::make_unique<StagedWindow>(rig_),
                 .norm = std::make_unique<StagedNorm>(rig_),
                 .pointwise = std::make_unique<StagedPointwise>(rig_),
                 .optimizer = std::make_unique<StagedOptimizer>(rig_),
                 .slices = nullptr};
  }
  std::unique_ptr<Backend> OneThread() const override { return nullptr; }

 private:
  StagedRig rig_;
};

}  // namespace

std::unique_ptr<Backend> MakeStagedBackend(std::unique_ptr<CudaRig> rig, int64_t shift,
                                           DType type) {
  return std::make_unique<StagedBackend>(std::move(rig), shift, type);
}

}  // namespace cadre
