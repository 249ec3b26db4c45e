// Layers that make sequences of tokens from images, add learned tokens and offsets, and take
// tokens.
//
// Learned rows are added with the kernels of embeddings: a table of one row, or of positions, whose
// every token is 0. So the sums of their gradients have one implementation on each back end.
#include <algorithm>
#include <utility>

#include "worker/nn/layer_kinds.h"

namespace cadre {
namespace {

// In channels-last order, an image is the sequence of its positions.
class ToTokens final : public Layer {
 public:
  explicit ToTokens(LayerSetting setting) : kernels_(setting.kernels) {}

  absl::Status Forward(const PassContext& /*pass*/, const LayerTensors& t) override {
    kernels_.memory().Copy(t.x[0], t.y);
    return absl::OkStatus();
  }

  absl::Status Backward(const PassContext& /*pass*/, const LayerTensors& t) override {
    if (!t.dx[0].empty()) kernels_.memory().Copy(t.dy, t.dx[0]);
    return absl::OkStatus();
  }

 private:
  Backend& kernels_;
};

class ClassToken final : public Layer {
 public:
  explicit ClassToken(LayerSetting setting)
      : kernels_(setting.kernels), weight_(setting.parameters[0]) {
    const Shape x = setting.region.inputs[0].shape();
    samples_ = x[0];
    features_ = x[2];
    sequence_ = x[1] * x[2];
    dims_ = {.batch = samples_, .tokens = 1, .vocabulary = 1, .features = features_};
    ids_ = DeviceArray<float>(kernels_.device(), samples_, "tokens");
  }

  absl::Status Forward(const PassContext& /*pass*/, const LayerTensors& t) override {
    if (t.y.empty()) return absl::OkStatus();
    kernels_.dense().EmbeddingForward(dims_, ids_.span(), weight_.value, {}, t.scratch);
    kernels_.memory().CopyRuns(samples_, features_, t.scratch, features_, t.y, whole());
    if (sequence_ == 0) return absl::OkStatus();
    kernels_.memory().CopyRuns(samples_, sequence_, t.x[0], sequence_, t.y.subspan(features_),
                               whole());
    return absl::OkStatus();
  }

  absl::Status Backward(const PassContext& /*pass*/, const LayerTensors& t) override {
    if (!t.dy.empty()) {
      kernels_.memory().CopyRuns(samples_, features_, t.dy, whole(), t.scratch, features_);
    }
    kernels_.dense().EmbeddingBackward(dims_, ids_.span(), t.scratch, weight_.gradient, {});
    if (!t.dx[0].empty()) {
      kernels_.memory().CopyRuns(samples_, sequence_, t.dy.subspan(features_), whole(), t.dx[0],
                                 sequence_);
    }
    return absl::OkStatus();
  }

 private:
  // Elements of a sample of the output.
  int64_t whole() const { return features_ + sequence_; }

  Backend& kernels_;
  LocalTensor weight_;
  int64_t samples_ = 0, features_ = 0, sequence_ = 0;
  EmbeddingDims dims_;
  // Zeros.
  DeviceArray<float> ids_;
};

class TakeToken final : public Layer {
 public:
  explicit TakeToken(LayerSetting setting) : kernels_(setting.kernels) {
    const Shape x = setting.region.inputs[0].shape();
    samples_ = x[0];
    sequence_ = x[1] * x[2];
    const v1::TakeToken& take = setting.layer.settings.take_token();
    offset_ = take.token() * x[2];
    taken_ = std::max<int64_t>(1, take.count()) * x[2];
  }

  absl::Status Forward(const PassContext& /*pass*/, const LayerTensors& t) override {
    if (t.y.empty()) return absl::OkStatus();
    kernels_.memory().CopyRuns(samples_, taken_, t.x[0].subspan(offset_), sequence_, t.y, taken_);
    return absl::OkStatus();
  }

  absl::Status Backward(const PassContext& /*pass*/, const LayerTensors& t) override {
    if (t.dx[0].empty()) return absl::OkStatus();
    kernels_.memory().Zero(t.dx[0]);
    kernels_.memory().CopyRuns(samples_, taken_, t.dy, taken_, t.dx[0].subspan(offset_), sequence_);
    return absl::OkStatus();
  }

 private:
  Backend& kernels_;
  int64_t samples_ = 0;
  // Elements: of a sample of the input, before the tokens that are taken, and of these.
  int64_t sequence_ = 0, offset_ = 0, taken_ = 0;
};

class Bias final : public Layer {
 public:
  explicit Bias(LayerSetting setting)
      : kernels_(setting.kernels),
        bias_(setting.parameters[0]),
        per_token_(setting.layer.settings.bias().per_token()) {
    const Shape x = setting.region.inputs[0].shape();
    dims_ = {.batch = x[0],
             .tokens = x.rank() == 3 ? x[1] : 1,
             .vocabulary = 1,
             .features = x[x.rank() - 1]};
    // One offset for all tokens: every token is a sample of a sequence of one.
    if (!per_token_) dims_.batch *= std::exchange(dims_.tokens, 1);
    ids_ = DeviceArray<float>(kernels_.device(), dims_.batch * dims_.tokens, "tokens");
    if (per_token_) row_ = DeviceArray<float>(kernels_.device(), 2 * dims_.features, "rows");
  }

  absl::Status Forward(const PassContext& /*pass*/, const LayerTensors& t) override {
    const std::span<float> zeros = row_.span().first(row_.size() / 2);
    kernels_.dense().EmbeddingForward(dims_, ids_.span(), per_token_ ? zeros : bias_.value,
                                      per_token_ ? bias_.value : std::span<float>(), t.y);
    kernels_.pointwise().Add(t.x[0], t.y);
    return absl::OkStatus();
  }

  absl::Status Backward(const PassContext& /*pass*/, const LayerTensors& t) override {
    // The gradient of the row of zeros is not used.
    const std::span<float> unused = row_.span().subspan(row_.size() / 2);
    kernels_.dense().EmbeddingBackward(dims_, ids_.span(), t.dy,
                                       per_token_ ? unused : bias_.gradient,
                                       per_token_ ? bias_.gradient : std::span<float>());
    if (!t.dx[0].empty()) kernels_.memory().Copy(t.dy, t.dx[0]);
    return absl::OkStatus();
  }

 private:
  Backend& kernels_;
  LocalTensor bias_;
  const bool per_token_;
  EmbeddingDims dims_;
  // Zeros.
  DeviceArray<float> ids_;
  // Only with an offset for each token: a row of zeros, and its gradient.
  DeviceArray<float> row_;
};

}  // namespace

std::unique_ptr<Layer> MakeTokenLayer(LayerSetting setting) {
  switch (setting.layer.kind) {
    case LayerKind::kToTokens:
      return std::make_unique<ToTokens>(std::move(setting));
    case LayerKind::kClassToken:
      return std::make_unique<ClassToken>(std::move(setting));
    case LayerKind::kTakeToken:
      return std::make_unique<TakeToken>(std::move(setting));
    default:
      return std::make_unique<Bias>(std::move(setting));
  }
}

}  // namespace cadre
