// Layers that treat every element by itself.
#include <algorithm>
#include <utility>

#include "glog/logging.h"
#include "worker/nn/layer_kinds.h"

namespace cadre {
namespace {

class ActivationLayer final : public Layer {
 public:
  explicit ActivationLayer(LayerSetting setting)
      : kernels_(setting.kernels), kind_(KindOf(setting.layer.kind)) {}

  absl::Status Forward(const PassContext& /*pass*/, const LayerTensors& t) override {
    kernels_.ActivationForward(kind_, t.x[0], t.y);
    return absl::OkStatus();
  }

  absl::Status Backward(const PassContext& /*pass*/, const LayerTensors& t) override {
    if (t.dx[0].empty()) return absl::OkStatus();
    const std::span<const float> seen = kind_ == Activation::kGelu ? t.x[0] : t.y;
    kernels_.ActivationBackward(kind_, seen, t.dy, t.dx[0]);
    return absl::OkStatus();
  }

 private:
  static Activation KindOf(LayerKind kind) {
    switch (kind) {
      case LayerKind::kRelu:
        return Activation::kRelu;
      case LayerKind::kGelu:
        return Activation::kGelu;
      case LayerKind::kSigmoid:
        return Activation::kSigmoid;
      case LayerKind::kTanh:
        return Activation::kTanh;
      default:
        LOG(FATAL) << LayerKindName(kind) << " is not an activation";
    }
  }

  Kernels& kernels_;
  const Activation kind_;
};

// A stretch of this rank's part that is one stretch of a sample too.
struct Run {
  // Where it begins here, and its sample in the batch and place in that sample.
  int64_t offset = 0;
  int64_t sample = 0;
  int64_t element = 0;
};

class DropoutLayer final : public Layer {
 public:
  explicit DropoutLayer(LayerSetting setting)
      : kernels_(setting.kernels),
        layer_(setting.number),
        rate_(setting.layer.settings.dropout().rate()),
        sample_elements_(setting.layer.output.elements()) {
    FindRuns(BatchShape(setting.samples, setting.layer.output), setting.place.output);
  }

  absl::Status Forward(const PassContext& pass, const LayerTensors& t) override {
    if (pass.training) {
      Drop(pass, t.x[0], t.y);
    } else if (t.y.data() != t.x[0].data()) {
      std::copy(t.x[0].begin(), t.x[0].end(), t.y.begin());
    }
    return absl::OkStatus();
  }

  absl::Status Backward(const PassContext& pass, const LayerTensors& t) override {
    if (!t.dx[0].empty()) Drop(pass, t.dy, t.dx[0]);
    return absl::OkStatus();
  }

 private:
  void FindRuns(const Shape& whole, const Box& box) {
    const Shape here = box.shape();
    if (here.elements() == 0) return;
    // Dimensions behind `inner` are whole here, so that elements along `inner` are neighbours.
    int inner = whole.rank() - 1;
    run_ = here[inner];
    while (inner > 1 && here[inner] == whole[inner]) run_ *= here[--inner];
    const int64_t runs = here.elements() / run_;
    for (int64_t i = 0; i < runs; ++i) {
      // The run's first element, by coordinates of the dimensions up to `inner`.
      std::vector<int64_t> at(box.begin);
      int64_t rest = i;
      for (int d = inner - 1; d >= 0; --d) {
        at[static_cast<size_t>(d)] += rest % here[d];
        rest /= here[d];
      }
      int64_t element = 0;
      for (int d = 1; d < whole.rank(); ++d) {
        element = element * whole[d] + at[static_cast<size_t>(d)];
      }
      runs_.push_back({i * run_, at[0], element});
    }
  }

  void Drop(const PassContext& pass, std::span<const float> x, std::span<float> y) {
    const DropoutKey key{pass.seed, static_cast<uint64_t>(layer_), rate_};
    const auto count = static_cast<size_t>(run_);
    for (const Run& run : runs_) {
      const int64_t number = (pass.first_position + run.sample) * sample_elements_ + run.element;
      const auto offset = static_cast<size_t>(run.offset);
      kernels_.Dropout(key, static_cast<uint64_t>(number), x.subspan(offset, count),
                       y.subspan(offset, count));
    }
  }

  Kernels& kernels_;
  const int layer_;
  const float rate_;
  const int64_t sample_elements_;
  int64_t run_ = 0;
  std::vector<Run> runs_;
};

// Its way back is nothing: the gradient of every addend is the sum's (spec/tape.cc).
class AddLayer final : public Layer {
 public:
  explicit AddLayer(LayerSetting setting) : kernels_(setting.kernels) {}

  absl::Status Forward(const PassContext& /*pass*/, const LayerTensors& t) override {
    // One addend may lie where the sum shall be; it stays, the others are added.
    const auto here = std::find_if(
        t.x.begin(), t.x.end(), [&](std::span<const float> x) { return x.data() == t.y.data(); });
    const size_t first = here == t.x.end() ? 0 : static_cast<size_t>(here - t.x.begin());
    if (here == t.x.end()) std::copy(t.x[0].begin(), t.x[0].end(), t.y.begin());
    for (size_t i = 0; i < t.x.size(); ++i) {
      if (i != first) kernels_.Add(t.x[i], t.y);
    }
    return absl::OkStatus();
  }

  absl::Status Backward(const PassContext& /*pass*/, const LayerTensors& /*t*/) override {
    return absl::InternalError("the gradient of a sum needs no work");
  }

 private:
  Kernels& kernels_;
};

}  // namespace

std::unique_ptr<Layer> MakeActivation(LayerSetting setting) {
  return std::make_unique<ActivationLayer>(std::move(setting));
}

std::unique_ptr<Layer> MakeDropout(LayerSetting setting) {
  return std::make_unique<DropoutLayer>(std::move(setting));
}

std::unique_ptr<Layer> MakeAdd(LayerSetting setting) {
  return std::make_unique<AddLayer>(std::move(setting));
}

}  // namespace cadre
