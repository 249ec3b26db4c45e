// Layers that multiply by a matrix: fully connected, and embedding, which selects rows of one.
//
// A split of the outputs needs no exchange in forward, and makes the gradient of the input a
// partial sum; a split of the inputs does the opposite. The layouts around the layer express that
// (model/op_indices.h), so these classes only compute on this rank's part.
#include <utility>

#include "base/status.h"
#include "worker/nn/layer_kinds.h"

namespace cadre {
namespace {

// Its input is [samples, in] or [samples, tokens, in]; in both cases it applies to every row.
class FullyConnected final : public Layer, public GradientParts, public RowParts {
 public:
  explicit FullyConnected(LayerSetting setting) : kernels_(setting.kernels) {
    const bool tied = setting.layer.tied_to != GraphLayer::kNotTied;
    weight_ = tied ? setting.tied_weight : setting.parameters[0];
    const size_t own_weights = tied ? 0 : 1;
    const Shape in = setting.region.inputs[0].shape();
    const Shape out = setting.region.output.shape();
    const int last = in.rank() - 1;
    dims_ = {.batch = in.rank() == 3 ? in[0] * in[1] : in[0], .in = in[last], .out = out[last]};
    if (setting.parameters.size() > own_weights) bias_ = setting.parameters[own_weights];
    // If inputs are split, outputs are addends, and one rank adds the bias.
    adds_bias_ = setting.IsFirstAlong("in");
  }

  absl::Status Forward(const PassContext& /*pass*/, const LayerTensors& t) override {
    kernels_.dense().FullyConnectedForward(dims_, t.x[0], weight_.value,
                                           adds_bias_ ? bias_.value : std::span<float>(), t.y);
    return absl::OkStatus();
  }

  absl::Status Backward(const PassContext& /*pass*/, const LayerTensors& t) override {
    CADRE_RETURN_IF_ERROR(BackwardParameters(t));
    return BackwardInput(t);
  }

  GradientParts* gradient_parts() override { return this; }

  absl::Status BackwardInput(const LayerTensors& t) override {
    if (!t.dx[0].empty())
      kernels_.dense().FullyConnectedBackwardData(dims_, t.dy, weight_.value, t.dx[0]);
    return absl::OkStatus();
  }

  absl::Status BackwardParameters(const LayerTensors& t) override {
    kernels_.dense().FullyConnectedBackwardWeights(dims_, t.x[0], t.dy, weight_.gradient,
                                                   bias_.gradient);
    return absl::OkStatus();
  }

  RowParts* row_parts() override { return this; }

  void ForwardRows(Interval rows, ConstValues x, Values y) override {
    kernels_.dense().FullyConnectedForward(DimsOf(rows), InputRows(rows, x), weight_.value,
                                           adds_bias_ ? bias_.value : std::span<float>(), y);
  }

  void BackwardRows(Interval rows, ConstValues x, ConstValues dy, Values dx) override {
    const FullyConnectedDims dims = DimsOf(rows);
    if (rows.begin == 0) {
      kernels_.dense().FullyConnectedBackwardWeights(dims, InputRows(rows, x), dy, weight_.gradient,
                                                     bias_.gradient);
    } else {
      kernels_.dense().FullyConnectedAddGradients(dims, InputRows(rows, x), dy, weight_.gradient,
                                                  bias_.gradient);
    }
    if (dx.empty()) return;
    kernels_.dense().FullyConnectedBackwardData(dims, dy, weight_.value, InputRows(rows, dx));
  }

 private:
  FullyConnectedDims DimsOf(Interval rows) const {
    return {.batch = rows.size(), .in = dims_.in, .out = dims_.out};
  }
  template <typename T>
  T InputRows(Interval rows, T of_all) const {
    return of_all.subspan(rows.begin * dims_.in, rows.size() * dims_.in);
  }

  Backend& kernels_;
  FullyConnectedDims dims_;
  LocalTensor weight_;
  LocalTensor bias_;
  bool adds_bias_ = true;
};

// Tokens are fp32 for every activation type, because bf16 cannot represent large ones exactly.
class Embedding final : public Layer {
 public:
  explicit Embedding(LayerSetting setting)
      : kernels_(setting.kernels), weight_(setting.parameters[0]) {
    const Box& out = setting.region.output;
    dims_ = {.batch = out.shape()[0],
             .first_token = 0,
             .tokens = out.shape()[1],
             .vocabulary = setting.layer.parameters[0].shape[0],
             .features = out.shape()[2]};
    // This rank's shard of the positions starts at its first token.
    if (setting.parameters.size() > 1) positions_ = setting.parameters[1];
    if (setting.layer.shares_weight) {
      gradient_ = DeviceArray<float>(kernels_.device(), std::ssize(weight_.value), "gradient");
    }
  }

  absl::Status Forward(const PassContext& /*pass*/, const LayerTensors& t) override {
    kernels_.dense().EmbeddingForward(dims_, t.x[0].floats(), weight_.value, positions_.value, t.y);
    return absl::OkStatus();
  }

  absl::Status Backward(const PassContext& /*pass*/, const LayerTensors& t) override {
    // The layer that shares the table comes later in the model, so it has stored its gradient.
    const bool adds = gradient_.data() != nullptr;
    const std::span<float> gradient = adds ? gradient_.span() : weight_.gradient;
    kernels_.dense().EmbeddingBackward(dims_, t.x[0].floats(), t.dy, gradient, positions_.gradient);
    if (adds) kernels_.pointwise().Add(gradient, weight_.gradient);
    return absl::OkStatus();
  }

 private:
  Backend& kernels_;
  EmbeddingDims dims_;
  LocalTensor weight_;
  LocalTensor positions_;
  // Only if the table is shared.
  DeviceArray<float> gradient_;
};

}  // namespace

std::unique_ptr<Layer> MakeDenseLayer(LayerSetting setting) {
  if (setting.layer.kind == LayerKind::kEmbedding) {
    return std::make_unique<Embedding>(std::move(setting));
  }
  if (setting.layer.sampled_classes > 0) return MakeSampledFullyConnected(std::move(setting));
  return std::make_unique<FullyConnected>(std::move(setting));
}

}  // namespace cadre
