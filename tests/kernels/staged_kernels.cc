#include <cstring>
#include <deque>
#include <utility>

#include "glog/logging.h"
#include "kernels/host_kernels.h"
#include "tests/kernels/cuda_rig.h"

namespace cadre {
namespace {

// What one call reads and writes, on the device. Spans that begin at the same place on the host are
// one on the device, too, as in-place operations have it.
class Stage {
 public:
  Stage(CudaDevice& device, int64_t shift) : device_(device), shift_(static_cast<size_t>(shift)) {}

  template <typename T>
  std::span<const T> In(std::span<const T> host) {
    return {static_cast<const T*>(Place(host.data(), host.size_bytes(), sizeof(T)).on_device),
            host.size()};
  }
  template <typename T>
  std::span<T> Out(std::span<T> host) {
    Piece& piece = Place(host.data(), host.size_bytes(), sizeof(T));
    piece.written = host.data();
    return {static_cast<T*>(piece.on_device), host.size()};
  }
  void Finish() {
    for (const Piece& piece : pieces_) {
      if (piece.written == nullptr || piece.bytes == 0) continue;
      const absl::Status status = device_.CopyOut(piece.on_device, piece.written, piece.bytes);
      CHECK(status.ok()) << status;
    }
    CHECK(device_.status().ok()) << device_.status();
  }

 private:
  struct Piece {
    const void* on_host = nullptr;
    void* written = nullptr;
    size_t bytes = 0;
    DeviceArray<std::byte> memory;
    void* on_device = nullptr;
  };

  Piece& Place(const void* host, size_t bytes, size_t element) {
    for (Piece& piece : pieces_) {
      if (bytes > 0 && piece.on_host == host && piece.bytes == bytes) return piece;
    }
    Piece& piece = pieces_.emplace_back();
    piece.on_host = host;
    piece.bytes = bytes;
    if (bytes == 0) return piece;
    piece.memory = DeviceArray<std::byte>(device_, bytes + shift_ * element, "test");
    piece.on_device = piece.memory.data() + shift_ * element;
    device_.CopyIn(host, piece.on_device, bytes);
    return piece;
  }

  CudaDevice& device_;
  const size_t shift_;
  std::deque<Piece> pieces_;
};

class StagedKernels final : public HostKernels {
 public:
  StagedKernels(std::unique_ptr<CudaRig> rig, int64_t shift)
      : rig_(std::move(rig)), shift_(shift) {}

  void ConvolutionForward(const ConvolutionDims& dims, std::span<const float> x,
                          std::span<const float> w, std::span<const float> b,
                          std::span<float> y) override {
    Stage stage(rig_->device(), shift_);
    kernels().ConvolutionForward(dims, stage.In(x), stage.In(w), stage.In(b), stage.Out(y));
    stage.Finish();
  }
  void ConvolutionBackwardData(const ConvolutionDims& dims, std::span<const float> dy,
                               std::span<const float> w, std::span<float> dx) override {
    Stage stage(rig_->device(), shift_);
    kernels().ConvolutionBackwardData(dims, stage.In(dy), stage.In(w), stage.Out(dx));
    stage.Finish();
  }
  void ConvolutionBackwardWeights(const ConvolutionDims& dims, std::span<const float> x,
                                  std::span<const float> dy, std::span<float> dw,
                                  std::span<float> db) override {
    Stage stage(rig_->device(), shift_);
    kernels().ConvolutionBackwardWeights(dims, stage.In(x), stage.In(dy), stage.Out(dw),
                                         stage.Out(db));
    stage.Finish();
  }
  void PoolingForward(const PoolingDims& dims, std::span<const float> x, std::span<float> y,
                      std::span<int32_t> argmax) override {
    Stage stage(rig_->device(), shift_);
    kernels().PoolingForward(dims, stage.In(x), stage.Out(y), stage.Out(argmax));
    stage.Finish();
  }
  void PoolingBackward(const PoolingDims& dims, std::span<const float> dy,
                       std::span<const int32_t> argmax, std::span<float> dx) override {
    Stage stage(rig_->device(), shift_);
    kernels().PoolingBackward(dims, stage.In(dy), stage.In(argmax), stage.Out(dx));
    stage.Finish();
  }
  void GlobalAveragePoolForward(int64_t batch, int64_t positions, int64_t channels, int64_t divisor,
                                std::span<const float> x, std::span<float> y) override {
    Stage stage(rig_->device(), shift_);
    kernels().GlobalAveragePoolForward(batch, positions, channels, divisor, stage.In(x),
                                       stage.Out(y));
    stage.Finish();
  }
  void GlobalAveragePoolBackward(int64_t batch, int64_t positions, int64_t channels,
                                 int64_t divisor, std::span<const float> dy,
                                 std::span<float> dx) override {
    Stage stage(rig_->device(), shift_);
    kernels().GlobalAveragePoolBackward(batch, positions, channels, divisor, stage.In(dy),
                                        stage.Out(dx));
    stage.Finish();
  }
  void FullyConnectedForward(const FullyConnectedDims& dims, std::span<const float> x,
                             std::span<const float> w, std::span<const float> b,
                             std::span<float> y) override {
    Stage stage(rig_->device(), shift_);
    kernels().FullyConnectedForward(dims, stage.In(x), stage.In(w), stage.In(b), stage.Out(y));
    stage.Finish();
  }
  void FullyConnectedBackwardData(const FullyConnectedDims& dims, std::span<const float> dy,
                                  std::span<const float> w, std::span<float> dx) override {
    Stage stage(rig_->device(), shift_);
    kernels().FullyConnectedBackwardData(dims, stage.In(dy), stage.In(w), stage.Out(dx));
    stage.Finish();
  }
  void FullyConnectedBackwardWeights(const FullyConnectedDims& dims, std::span<const float> x,
                                     std::span<const float> dy, std::span<float> dw,
                                     std::span<float> db) override {
    Stage stage(rig_->device(), shift_);
    kernels().FullyConnectedBackwardWeights(dims, stage.In(x), stage.In(dy), stage.Out(dw),
                                            stage.Out(db));
    stage.Finish();
  }
  void ActivationForward(Activation kind, std::span<const float> x, std::span<float> y) override {
    Stage stage(rig_->device(), shift_);
    kernels().ActivationForward(kind, stage.In(x), stage.Out(y));
    stage.Finish();
  }
  void ActivationBackward(Activation kind, std::span<const float> seen, std::span<const float> dy,
                          std::span<float> dx) override {
    Stage stage(rig_->device(), shift_);
    kernels().ActivationBackward(kind, stage.In(seen), stage.In(dy), stage.Out(dx));
    stage.Finish();
  }
  void Dropout(const DropoutKey& key, uint64_t first, std::span<const float> x,
               std::span<float> y) override {
    Stage stage(rig_->device(), shift_);
    kernels().Dropout(key, first, stage.In(x), stage.Out(y));
    stage.Finish();
  }
  void Add(std::span<const float> x, std::span<float> y) override {
    Stage stage(rig_->device(), shift_);
    kernels().Add(stage.In(x), stage.Out(y));
    stage.Finish();
  }
  void BatchNormSums(const RowsDims& dims, std::span<const float> x,
                     std::span<double> sums) override {
    Stage stage(rig_->device(), shift_);
    kernels().BatchNormSums(dims, stage.In(x), stage.Out(sums));
    stage.Finish();
  }
  void BatchNormForward(const RowsDims& dims, std::span<const float> x, std::span<const float> mean,
                        std::span<const float> inverse, std::span<const float> scale,
                        std::span<const float> shift, std::span<float> y) override {
    Stage stage(rig_->device(), shift_);
    kernels().BatchNormForward(dims, stage.In(x), stage.In(mean), stage.In(inverse),
                               stage.In(scale), stage.In(shift), stage.Out(y));
    stage.Finish();
  }
  void BatchNormBackwardSums(const RowsDims& dims, std::span<const float> x,
                             std::span<const float> dy, std::span<const float> mean,
                             std::span<const float> inverse, std::span<double> sums) override {
    Stage stage(rig_->device(), shift_);
    kernels().BatchNormBackwardSums(dims, stage.In(x), stage.In(dy), stage.In(mean),
                                    stage.In(inverse), stage.Out(sums));
    stage.Finish();
  }
  void BatchNormBackward(const RowsDims& dims, std::span<const float> x, std::span<const float> dy,
                         std::span<const float> mean, std::span<const float> inverse,
                         std::span<const float> scale, std::span<const float> mean_dy,
                         std::span<const float> mean_dy_x, std::span<float> dx) override {
    Stage stage(rig_->device(), shift_);
    kernels().BatchNormBackward(dims, stage.In(x), stage.In(dy), stage.In(mean), stage.In(inverse),
                                stage.In(scale), stage.In(mean_dy), stage.In(mean_dy_x),
                                stage.Out(dx));
    stage.Finish();
  }
  void LayerNormForward(const RowsDims& dims, float epsilon, std::span<const float> x,
                        std::span<const float> scale, std::span<const float> shift,
                        std::span<float> y, std::span<float> mean,
                        std::span<float> inverse) override {
    Stage stage(rig_->device(), shift_);
    kernels().LayerNormForward(dims, epsilon, stage.In(x), stage.In(scale), stage.In(shift),
                               stage.Out(y), stage.Out(mean), stage.Out(inverse));
    stage.Finish();
  }
  void LayerNormBackward(const RowsDims& dims, std::span<const float> x, std::span<const float> dy,
                         std::span<const float> mean, std::span<const float> inverse,
                         std::span<const float> scale, std::span<float> dx, std::span<float> dscale,
                         std::span<float> dshift) override {
    Stage stage(rig_->device(), shift_);
    kernels().LayerNormBackward(dims, stage.In(x), stage.In(dy), stage.In(mean), stage.In(inverse),
                                stage.In(scale), stage.Out(dx), stage.Out(dscale),
                                stage.Out(dshift));
    stage.Finish();
  }
  void LrnForward(const LrnDims& dims, std::span<const float> x, std::span<float> y,
                  std::span<float> d) override {
    Stage stage(rig_->device(), shift_);
    kernels().LrnForward(dims, stage.In(x), stage.Out(y), stage.Out(d));
    stage.Finish();
  }
  void LrnBackward(const LrnDims& dims, std::span<const float> x, std::span<const float> d,
                   std::span<const float> dy, std::span<float> dx) override {
    Stage stage(rig_->device(), shift_);
    kernels().LrnBackward(dims, stage.In(x), stage.In(d), stage.In(dy), stage.Out(dx));
    stage.Finish();
  }
  void Transpose(int64_t batch, int64_t positions, int64_t channels, std::span<const float> x,
                 std::span<float> y) override {
    Stage stage(rig_->device(), shift_);
    kernels().Transpose(batch, positions, channels, stage.In(x), stage.Out(y));
    stage.Finish();
  }
  void EmbeddingForward(const EmbeddingDims& dims, std::span<const float> ids,
                        std::span<const float> w, std::span<const float> positions,
                        std::span<float> y) override {
    Stage stage(rig_->device(), shift_);
    kernels().EmbeddingForward(dims, stage.In(ids), stage.In(w), stage.In(positions), stage.Out(y));
    stage.Finish();
  }
  void EmbeddingBackward(const EmbeddingDims& dims, std::span<const float> ids,
                         std::span<const float> dy, std::span<float> dw,
                         std::span<float> dpositions) override {
    Stage stage(rig_->device(), shift_);
    kernels().EmbeddingBackward(dims, stage.In(ids), stage.In(dy), stage.Out(dw),
                                stage.Out(dpositions));
    stage.Finish();
  }
  void AttentionForward(const AttentionDims& dims, std::span<const float> qkv,
                        std::span<float> probabilities, std::span<float> context) override {
    Stage stage(rig_->device(), shift_);
    kernels().AttentionForward(dims, stage.In(qkv), stage.Out(probabilities), stage.Out(context));
    stage.Finish();
  }
  void AttentionBackward(const AttentionDims& dims, std::span<const float> qkv,
                         std::span<const float> probabilities, std::span<const float> dcontext,
                         std::span<float> dqkv) override {
    Stage stage(rig_->device(), shift_);
    kernels().AttentionBackward(dims, stage.In(qkv), stage.In(probabilities), stage.In(dcontext),
                                stage.Out(dqkv));
    stage.Finish();
  }
  LossSums SoftmaxCrossEntropy(int64_t rows, int64_t classes, float smoothing,
                               std::span<const float> x, std::span<const int32_t> labels,
                               float scale, std::span<float> dx) override {
    Stage stage(rig_->device(), shift_);
    const LossSums found = kernels().SoftmaxCrossEntropy(rows, classes, smoothing, stage.In(x),
                                                         stage.In(labels), scale, stage.Out(dx));
    stage.Finish();
    return found;
  }
  void Sgd(const SgdStep& step, std::span<const float> g, std::span<float> w,
           std::span<float> v) override {
    Stage stage(rig_->device(), shift_);
    kernels().Sgd(step, stage.In(g), stage.Out(w), stage.Out(v));
    stage.Finish();
  }
  void AdamW(const AdamWStep& step, std::span<const float> g, std::span<float> w,
             std::span<float> m, std::span<float> v) override {
    Stage stage(rig_->device(), shift_);
    kernels().AdamW(step, stage.In(g), stage.Out(w), stage.Out(m), stage.Out(v));
    stage.Finish();
  }
  double SumOfSquares(std::span<const float> x) override {
    Stage stage(rig_->device(), shift_);
    const double found = kernels().SumOfSquares(stage.In(x));
    stage.Finish();
    return found;
  }
  std::unique_ptr<Kernels> OneThread() const override {
    LOG(FATAL) << "a device has no kernels for one thread";
  }

 private:
  Kernels& kernels() { return rig_->kernels(); }

  const std::unique_ptr<CudaRig> rig_;
  const int64_t shift_;
};

}  // namespace

std::unique_ptr<Kernels> MakeStagedKernels(std::unique_ptr<CudaRig> rig, int64_t shift) {
  return std::make_unique<StagedKernels>(std::move(rig), shift);
}

}  // namespace cadre
