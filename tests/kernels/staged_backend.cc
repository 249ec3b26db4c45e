#include <cstring>
#include <deque>
#include <type_traits>
#include <utility>

#include "glog/logging.h"
#include "kernels/host_backend.h"
#include "tests/kernels/cuda_rig.h"

namespace cadre {
namespace {

// Device copies of what one call reads and writes. Spans with the same host memory share device
// memory, too, for operations in place.
class Stage {
 public:
  Stage(CudaDevice& device, int64_t shift) : device_(device), shift_(static_cast<size_t>(shift)) {}

  // The argument as the device's kernels take it.
  template <typename T>
  const T& OnDevice(const T& extents) {
    return extents;
  }
  template <typename T>
  std::span<const T> OnDevice(std::span<const T> host) {
    return {static_cast<const T*>(Place(host.data(), host.size_bytes(), sizeof(T)).on_device),
            host.size()};
  }
  template <typename T>
  requires(!std::is_const_v<T>) std::span<T> OnDevice(std::span<T> host) {
    Copy& copy = Place(host.data(), host.size_bytes(), sizeof(T));
    copy.written = host.data();
    return {static_cast<T*>(copy.on_device), host.size()};
  }
  ConstValues OnDevice(ConstValues host) { return OnDevice(host.floats()); }
  Values OnDevice(Values host) { return OnDevice(host.floats()); }
  void Finish() {
    for (const Copy& copy : copies_) {
      if (copy.written == nullptr || copy.bytes == 0) continue;
      const absl::Status status = device_.CopyOut(copy.on_device, copy.written, copy.bytes);
      CHECK(status.ok()) << status;
    }
    CHECK(device_.status().ok()) << device_.status();
  }

 private:
  struct Copy {
    const void* on_host = nullptr;
    void* written = nullptr;
    size_t bytes = 0;
    DeviceArray<std::byte> memory;
    void* on_device = nullptr;
  };

  Copy& Place(const void* host, size_t bytes, size_t element) {
    for (Copy& copy : copies_) {
      if (bytes > 0 && copy.on_host == host && copy.bytes == bytes) return copy;
    }
    Copy& copy = copies_.emplace_back();
    copy.on_host = host;
    copy.bytes = bytes;
    if (bytes == 0) return copy;
    copy.memory = DeviceArray<std::byte>(device_, bytes + shift_ * element, "test");
    copy.on_device = copy.memory.data() + shift_ * element;
    device_.CopyIn(host, copy.on_device, bytes);
    return copy;
  }

  CudaDevice& device_;
  const size_t shift_;
  std::deque<Copy> copies_;
};

class StagedRig {
 public:
  StagedRig(std::unique_ptr<CudaRig> rig, int64_t shift) : rig_(std::move(rig)), shift_(shift) {}

  Backend& kernels() { return rig_->kernels(); }
  template <typename Family, typename Result, typename... Parameters, typename... Arguments>
  Result Call(Result (Family::*operation)(Parameters...), Family& family,
              const Arguments&... arguments) {
    Stage stage(rig_->device(), shift_);
    if constexpr (std::is_void_v<Result>) {
      (family.*operation)(stage.OnDevice(arguments)...);
      stage.Finish();
    } else {
      const Result result = (family.*operation)(stage.OnDevice(arguments)...);
      stage.Finish();
      return result;
    }
  }

 private:
  const std::unique_ptr<CudaRig> rig_;
  const int64_t shift_;
};

class StagedMemory final : public HostMemory {
 public:
  explicit StagedMemory(StagedRig& rig) : rig_(rig) {}

  void Transpose(int64_t batch, int64_t positions, int64_t channels, ConstValues x,
                 Values y) override {
    rig_.Call(&MemoryKernels::Transpose, rig_.kernels().memory(), batch, positions, channels, x, y);
  }

 private:
  StagedRig& rig_;
};

class StagedDense final : public DenseKernels {
 public:
  explicit StagedDense(StagedRig& rig) : rig_(rig) {}

  void FullyConnectedForward(const FullyConnectedDims& dims, ConstValues x,
                             std::span<const float> w, std::span<const float> b,
                             Values y) override {
    rig_.Call(&DenseKernels::FullyConnectedForward, rig_.kernels().dense(), dims, x, w, b, y);
  }
  void FullyConnectedBackwardData(const FullyConnectedDims& dims, ConstValues dy,
                                  std::span<const float> w, Values dx) override {
    rig_.Call(&DenseKernels::FullyConnectedBackwardData, rig_.kernels().dense(), dims, dy, w, dx);
  }
  void FullyConnectedBackwardWeights(const FullyConnectedDims& dims, ConstValues x, ConstValues dy,
                                     std::span<float> dw, std::span<float> db) override {
    rig_.Call(&DenseKernels::FullyConnectedBackwardWeights, rig_.kernels().dense(), dims, x, dy, dw,
              db);
  }
  void EmbeddingForward(const EmbeddingDims& dims, std::span<const float> ids,
                        std::span<const float> w, std::span<const float> positions,
                        Values y) override {
    rig_.Call(&DenseKernels::EmbeddingForward, rig_.kernels().dense(), dims, ids, w, positions, y);
  }
  void EmbeddingBackward(const EmbeddingDims& dims, std::span<const float> ids, ConstValues dy,
                         std::span<float> dw, std::span<float> dpositions) override {
    rig_.Call(&DenseKernels::EmbeddingBackward, rig_.kernels().dense(), dims, ids, dy, dw,
              dpositions);
  }
  void AttentionForward(const AttentionDims& dims, ConstValues qkv, Values probabilities,
                        Values context) override {
    rig_.Call(&DenseKernels::AttentionForward, rig_.kernels().dense(), dims, qkv, probabilities,
              context);
  }
  void AttentionBackward(const AttentionDims& dims, ConstValues qkv, ConstValues probabilities,
                         ConstValues dcontext, Values dqkv) override {
    rig_.Call(&DenseKernels::AttentionBackward, rig_.kernels().dense(), dims, qkv, probabilities,
              dcontext, dqkv);
  }

 private:
  StagedRig& rig_;
};

class StagedWindow final : public WindowKernels {
 public:
  explicit StagedWindow(StagedRig& rig) : rig_(rig) {}

  void ConvolutionForward(const ConvolutionDims& dims, ConstValues x, std::span<const float> w,
                          std::span<const float> b, Values y) override {
    rig_.Call(&WindowKernels::ConvolutionForward, rig_.kernels().window(), dims, x, w, b, y);
  }
  void ConvolutionBackwardData(const ConvolutionDims& dims, ConstValues dy,
                               std::span<const float> w, Values dx) override {
    rig_.Call(&WindowKernels::ConvolutionBackwardData, rig_.kernels().window(), dims, dy, w, dx);
  }
  void ConvolutionBackwardWeights(const ConvolutionDims& dims, ConstValues x, ConstValues dy,
                                  std::span<float> dw, std::span<float> db) override {
    rig_.Call(&WindowKernels::ConvolutionBackwardWeights, rig_.kernels().window(), dims, x, dy, dw,
              db);
  }
  void PoolingForward(const PoolingDims& dims, ConstValues x, Values y,
                      std::span<int32_t> argmax) override {
    rig_.Call(&WindowKernels::PoolingForward, rig_.kernels().window(), dims, x, y, argmax);
  }
  void PoolingBackward(const PoolingDims& dims, ConstValues dy, std::span<const int32_t> argmax,
                       Values dx) override {
    rig_.Call(&WindowKernels::PoolingBackward, rig_.kernels().window(), dims, dy, argmax, dx);
  }
  void GlobalAveragePoolForward(int64_t batch, int64_t positions, int64_t channels, int64_t divisor,
                                ConstValues x, Values y) override {
    rig_.Call(&WindowKernels::GlobalAveragePoolForward, rig_.kernels().window(), batch, positions,
              channels, divisor, x, y);
  }
  void GlobalAveragePoolBackward(int64_t batch, int64_t positions, int64_t channels,
                                 int64_t divisor, ConstValues dy, Values dx) override {
    rig_.Call(&WindowKernels::GlobalAveragePoolBackward, rig_.kernels().window(), batch, positions,
              channels, divisor, dy, dx);
  }

 private:
  StagedRig& rig_;
};

class StagedNorm final : public HostNorm {
 public:
  explicit StagedNorm(StagedRig& rig) : rig_(rig) {}

  void BatchNormSums(const RowsDims& dims, ConstValues x, std::span<double> sums) override {
    rig_.Call(&NormKernels::BatchNormSums, rig_.kernels().norm(), dims, x, sums);
  }
  void BatchNormForward(const RowsDims& dims, ConstValues x, std::span<const float> mean,
                        std::span<const float> inverse, std::span<const float> scale,
                        std::span<const float> shift, Values y) override {
    rig_.Call(&NormKernels::BatchNormForward, rig_.kernels().norm(), dims, x, mean, inverse, scale,
              shift, y);
  }
  void BatchNormBackwardSums(const RowsDims& dims, ConstValues x, ConstValues dy,
                             std::span<const float> mean, std::span<const float> inverse,
                             std::span<double> sums) override {
    rig_.Call(&NormKernels::BatchNormBackwardSums, rig_.kernels().norm(), dims, x, dy, mean,
              inverse, sums);
  }
  void BatchNormBackward(const RowsDims& dims, ConstValues x, ConstValues dy,
                         std::span<const float> mean, std::span<const float> inverse,
                         std::span<const float> scale, std::span<const float> mean_dy,
                         std::span<const float> mean_dy_x, Values dx) override {
    rig_.Call(&NormKernels::BatchNormBackward, rig_.kernels().norm(), dims, x, dy, mean, inverse,
              scale, mean_dy, mean_dy_x, dx);
  }
  void LayerNormForward(const RowsDims& dims, float epsilon, ConstValues x,
                        std::span<const float> scale, std::span<const float> shift, Values y,
                        std::span<float> mean, std::span<float> inverse) override {
    rig_.Call(&NormKernels::LayerNormForward, rig_.kernels().norm(), dims, epsilon, x, scale, shift,
              y, mean, inverse);
  }
  void LayerNormBackward(const RowsDims& dims, ConstValues x, ConstValues dy,
                         std::span<const float> mean, std::span<const float> inverse,
                         std::span<const float> scale, Values dx, std::span<float> dscale,
                         std::span<float> dshift) override {
    rig_.Call(&NormKernels::LayerNormBackward, rig_.kernels().norm(), dims, x, dy, mean, inverse,
              scale, dx, dscale, dshift);
  }
  void LrnForward(const LrnDims& dims, ConstValues x, Values y, std::span<float> d) override {
    rig_.Call(&NormKernels::LrnForward, rig_.kernels().norm(), dims, x, y, d);
  }
  void LrnBackward(const LrnDims& dims, ConstValues x, std::span<const float> d, ConstValues dy,
                   Values dx) override {
    rig_.Call(&NormKernels::LrnBackward, rig_.kernels().norm(), dims, x, d, dy, dx);
  }

 private:
  StagedRig& rig_;
};

class StagedPointwise final : public HostPointwise {
 public:
  explicit StagedPointwise(StagedRig& rig) : rig_(rig) {}

  void ActivationForward(Activation kind, ConstValues x, Values y) override {
    rig_.Call(&PointwiseKernels::ActivationForward, rig_.kernels().pointwise(), kind, x, y);
  }
  void ActivationBackward(Activation kind, ConstValues seen, ConstValues dy, Values dx) override {
    rig_.Call(&PointwiseKernels::ActivationBackward, rig_.kernels().pointwise(), kind, seen, dy,
              dx);
  }
  void Dropout(const DropoutKey& key, uint64_t first, ConstValues x, Values y) override {
    rig_.Call(&PointwiseKernels::Dropout, rig_.kernels().pointwise(), key, first, x, y);
  }
  void Add(ConstValues x, Values y) override {
    rig_.Call(&PointwiseKernels::Add, rig_.kernels().pointwise(), x, y);
  }
  LossSums SoftmaxCrossEntropy(int64_t rows, int64_t classes, float smoothing, ConstValues x,
                               std::span<const int32_t> labels, float scale, Values dx) override {
    return rig_.Call(&PointwiseKernels::SoftmaxCrossEntropy, rig_.kernels().pointwise(), rows,
                     classes, smoothing, x, labels, scale, dx);
  }

 private:
  StagedRig& rig_;
};

class StagedOptimizer final : public HostOptimizer {
 public:
  explicit StagedOptimizer(StagedRig& rig) : rig_(rig) {}

  void Sgd(const SgdStep& step, std::span<const float> g, std::span<float> w,
           std::span<float> v) override {
    rig_.Call(&OptimizerKernels::Sgd, rig_.kernels().optimizer(), step, g, w, v);
  }
  void AdamW(const AdamWStep& step, std::span<const float> g, std::span<float> w,
             std::span<float> m, std::span<float> v) override {
    rig_.Call(&OptimizerKernels::AdamW, rig_.kernels().optimizer(), step, g, w, m, v);
  }
  double SumOfSquares(std::span<const float> x) override {
    return rig_.Call(&OptimizerKernels::SumOfSquares, rig_.kernels().optimizer(), x);
  }

 private:
  StagedRig& rig_;
};

class StagedBackend final : public HostBackend {
 public:
  StagedBackend(std::unique_ptr<CudaRig> rig, int64_t shift) : rig_(std::move(rig), shift) {
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

std::unique_ptr<Backend> MakeStagedBackend(std::unique_ptr<CudaRig> rig, int64_t shift) {
  return std::make_unique<StagedBackend>(std::move(rig), shift);
}

}  // namespace cadre
