// Layers that only copy elements: concatenation and flattening. Their kernels copy between strided
// layouts; backward copies in the opposite direction.
#include <utility>

#include "worker/nn/layer_kinds.h"

namespace cadre {
namespace {

// Concatenates the channels of the inputs.
class Concat final : public Layer {
 public:
  explicit Concat(LayerSetting setting) : kernels_(setting.kernels) {
    for (const Box& box : setting.region.inputs) {
      const Shape shape = box.shape();
      channels_.push_back(shape[shape.rank() - 1]);
      total_ += channels_.back();
    }
    rows_ = total_ == 0 ? 0 : setting.region.output.shape().elements() / total_;
  }

  absl::Status Forward(const PassContext& /*pass*/, const LayerTensors& t) override {
    if (rows_ == 0) return absl::OkStatus();
    int64_t offset = 0;
    for (size_t i = 0; i < channels_.size(); ++i) {
      kernels_.memory().CopyRuns(rows_, channels_[i], t.x[i], channels_[i], t.y.subspan(offset),
                                 total_);
      offset += channels_[i];
    }
    return absl::OkStatus();
  }

  absl::Status Backward(const PassContext& /*pass*/, const LayerTensors& t) override {
    if (rows_ == 0) return absl::OkStatus();
    int64_t offset = 0;
    for (size_t i = 0; i < channels_.size(); ++i) {
      if (!t.dx[i].empty()) {
        kernels_.memory().CopyRuns(rows_, channels_[i], t.dy.subspan(offset), total_, t.dx[i],
                                   channels_[i]);
      }
      offset += channels_[i];
    }
    return absl::OkStatus();
  }

 private:
  Backend& kernels_;
  std::vector<int64_t> channels_;
  int64_t total_ = 0;
  int64_t rows_ = 0;
};

// The features of a sample are in channels-first order, so that weights can be exchanged with
// frameworks that store images channels-first.
class Flatten final : public Layer {
 public:
  explicit Flatten(LayerSetting setting)
      : kernels_(setting.kernels), in_(setting.region.inputs[0].shape()) {}

  absl::Status Forward(const PassContext& /*pass*/, const LayerTensors& t) override {
    kernels_.memory().Transpose(in_[0], in_[1] * in_[2], in_[3], t.x[0], t.y);
    return absl::OkStatus();
  }

  absl::Status Backward(const PassContext& /*pass*/, const LayerTensors& t) override {
    if (!t.dx[0].empty())
      kernels_.memory().Transpose(in_[0], in_[3], in_[1] * in_[2], t.dy, t.dx[0]);
    return absl::OkStatus();
  }

 private:
  Backend& kernels_;
  const Shape in_;
};

}  // namespace

std::unique_ptr<Layer> MakeShapeLayer(LayerSetting setting) {
  if (setting.layer.kind == LayerKind::kConcat) {
    return std::make_unique<Concat>(std::move(setting));
  }
  return std::make_unique<Flatten>(std::move(setting));
}

}  // namespace cadre
