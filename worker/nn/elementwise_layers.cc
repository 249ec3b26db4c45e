// Layers that compute each element independently, so that they work on any part of their tensors.
#include <algorithm>
#include <utility>

#include "model/ops/activations.h"
#include "worker/nn/layer_kinds.h"

namespace cadre {
namespace {

class ActivationLayer final : public Layer {
 public:
  explicit ActivationLayer(LayerSetting setting)
      : kernels_(setting.kernels), kind_(ActivationOf(setting.layer.settings)) {}

  absl::Status Forward(const PassContext& /*pass*/, const LayerTensors& t) override {
    kernels_.pointwise().ActivationForward(kind_, t.x[0], t.y);
    return absl::OkStatus();
  }

  absl::Status Backward(const PassContext& /*pass*/, const LayerTensors& t) override {
    if (t.dx[0].empty()) return absl::OkStatus();
    const ConstValues seen = GradientReadsInput(kind_) ? t.x[0] : ConstValues(t.y);
    kernels_.pointwise().ActivationBackward(kind_, seen, t.dy, t.dx[0]);
    return absl::OkStatus();
  }

 private:
  Backend& kernels_;
  const Activation kind_;
};

// Whether an element is dropped is a function of the seed, the layer and the element's position in
// the run, so that every plan drops the same elements and backward needs no saved mask.
class DropoutLayer final : public Layer {
 public:
  explicit DropoutLayer(LayerSetting setting)
      : kernels_(setting.kernels),
        layer_(setting.number),
        rate_(setting.layer.settings.dropout().rate()),
        whole_(BatchShape(setting.samples, setting.layer.output)),
        here_(setting.region.output) {}

  absl::Status Forward(const PassContext& pass, const LayerTensors& t) override {
    if (pass.training) {
      Drop(pass, t.x[0], t.y);
    } else if (t.y.data() != t.x[0].data()) {
      kernels_.memory().Copy(t.x[0], t.y);
    }
    return absl::OkStatus();
  }

  absl::Status Backward(const PassContext& pass, const LayerTensors& t) override {
    if (!t.dx[0].empty()) Drop(pass, t.dy, t.dx[0]);
    return absl::OkStatus();
  }

 private:
  void Drop(const PassContext& pass, ConstValues x, Values y) {
    kernels_.pointwise().DropoutBox({pass.seed, layer_, rate_}, whole_, here_, x, y);
  }

  Backend& kernels_;
  const uint64_t layer_;
  const float rate_;
  const Shape whole_;
  const Box here_;
};

// It has no backward: the gradient of every addend equals the gradient of the sum (plan/tape.cc).
class AddLayer final : public Layer {
 public:
  explicit AddLayer(LayerSetting setting) : kernels_(setting.kernels) {}

  absl::Status Forward(const PassContext& /*pass*/, const LayerTensors& t) override {
    // The tape may place the sum in the buffer of one addend, which is then the first term.
    const auto here = std::find_if(t.x.begin(), t.x.end(),
                                   [&](const ConstValues& x) { return x.data() == t.y.data(); });
    const int64_t first = here == t.x.end() ? 0 : here - t.x.begin();
    ConstValues sum = t.x[first];
    for (int64_t i = 0; i < std::ssize(t.x); ++i) {
      if (i == first) continue;
      kernels_.pointwise().Sum(sum, t.x[i], t.y);
      sum = t.y;
    }
    return absl::OkStatus();
  }

  absl::Status Backward(const PassContext& /*pass*/, const LayerTensors& /*t*/) override {
    return absl::InternalError("the gradient of a sum needs no work");
  }

 private:
  Backend& kernels_;
};

// The second input has the shape of the first, or one factor per channel of an image.
class MultiplyLayer final : public Layer {
 public:
  explicit MultiplyLayer(LayerSetting setting) : kernels_(setting.kernels) {
    const Shape x = setting.region.inputs[0].shape();
    if (setting.layer.input(0) == setting.layer.input(1)) {
      dims_ = {.batch = 1, .rows = 1, .channels = x.elements()};
    } else {
      dims_ = {.batch = x[0], .rows = x[1] * x[2], .channels = x[3]};
    }
  }

  absl::Status Forward(const PassContext& /*pass*/, const LayerTensors& t) override {
    kernels_.pointwise().Multiply(dims_, t.x[0], t.x[1], t.y);
    return absl::OkStatus();
  }

  absl::Status Backward(const PassContext& /*pass*/, const LayerTensors& t) override {
    if (!t.dx[0].empty()) kernels_.pointwise().Multiply(dims_, t.dy, t.x[1], t.dx[0]);
    if (!t.dx[1].empty()) kernels_.pointwise().MultiplyBackward(dims_, t.x[0], t.dy, t.dx[1]);
    return absl::OkStatus();
  }

 private:
  Backend& kernels_;
  MultiplyDims dims_;
};

}  // namespace

std::unique_ptr<Layer> MakeElementwiseLayer(LayerSetting setting) {
  switch (setting.layer.kind) {
    case LayerKind::kDropout:
      return std::make_unique<DropoutLayer>(std::move(setting));
    case LayerKind::kAdd:
      return std::make_unique<AddLayer>(std::move(setting));
    case LayerKind::kMultiply:
      return std::make_unique<MultiplyLayer>(std::move(setting));
    default:
      return std::make_unique<ActivationLayer>(std::move(setting));
  }
}

}  // namespace cadre
