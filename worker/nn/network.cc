#include "worker/nn/network.h"

#include <algorithm>
#include <utility>

#include "base/status.h"

namespace cadre {
namespace {

ConvolutionDims ConvolutionOf(const GraphLayer& node) {
  return {.in_channels = node.input[0],
          .in_height = node.input[1],
          .in_width = node.input[2],
          .out_channels = node.output[0],
          .out_height = node.output[1],
          .out_width = node.output[2],
          .kernel = node.kernel,
          .stride = node.stride,
          .padding = node.padding};
}

PoolingDims PoolingOf(const GraphLayer& node, PoolKind kind) {
  return {.kind = kind,
          .channels = node.input[0],
          .in_height = node.input[1],
          .in_width = node.input[2],
          .out_height = node.output[1],
          .out_width = node.output[2],
          .kernel = node.kernel,
          .stride = node.stride,
          .padding = node.padding};
}

// Null for the loss. `local_out`: output features that this rank holds.
std::unique_ptr<Layer> MakeLayer(const GraphLayer& node, int64_t local_out, Kernels& kernels,
                                 const LayerParameters& parameters) {
  switch (node.kind) {
    case LayerKind::kConvolution:
      return MakeConvolution(kernels, ConvolutionOf(node), parameters);
    case LayerKind::kMaxPool:
      return MakePooling(kernels, PoolingOf(node, PoolKind::kMax));
    case LayerKind::kAveragePool:
      return MakePooling(kernels, PoolingOf(node, PoolKind::kAverage));
    case LayerKind::kFullyConnected:
      return MakeFullyConnected(kernels, {.in = node.in_features(), .out = local_out}, parameters);
    case LayerKind::kRelu:
      return MakeRelu(kernels);
    case LayerKind::kSoftmaxCrossEntropy:
      return nullptr;
  }
  return nullptr;
}

// Axes over which the gradient of a layer's input is left as a sum: those that split the outputs,
// each of which depends on every input.
std::vector<std::string> InputGradientPartial(const GraphLayer& node, const LayerLayouts& layouts) {
  if (node.kind != LayerKind::kFullyConnected) return {};
  return layouts.output.axes(1);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Network>> Network::Make(const Graph& graph,
                                                       const ParameterIndex& index,
                                                       const Plan& plan, Kernels& kernels,
                                                       ParameterStore& parameters,
                                                       MeshCommunicators& comms) {
  CADRE_RETURN_IF_ERROR(CheckPlan(plan, graph, index));
  std::unique_ptr<Network> network(new Network(kernels, comms));
  for (size_t l = 0; l < graph.layers().size(); ++l) {
    const GraphLayer& node = graph.layers()[l];
    const LayerLayouts& layouts = plan.layers[l];
    Stage stage{.input = layouts.input,
                .output = layouts.output,
                .in_features = node.in_features(),
                .out_features = node.out_features()};
    // The samples come from the data set in the first layer's own layout.
    const Layout& from = l == 0 ? layouts.input : plan.layers[l - 1].output;
    CADRE_ASSIGN_OR_RETURN(
        stage.reshard,
        Reshard::Make(from, layouts.input, InputGradientPartial(node, layouts), comms));
    const int64_t local_out = network->LocalShape(1, node.out_features(), layouts.output)[1];
    stage.layer =
        MakeLayer(node, local_out, kernels, parameters.OfLayer(index, static_cast<int>(l)));
    network->stages_.push_back(std::move(stage));
  }
  return network;
}

Shape Network::LocalShape(int64_t samples, int64_t features, const Layout& layout) const {
  return LocalBox(Shape{samples, features}, layout, comms_.mesh(), comms_.rank()).shape();
}

Rows Network::ImageRows(int64_t samples) const {
  const Stage& first = stages_.front();
  const Box box =
      LocalBox(Shape{samples, first.in_features}, first.input, comms_.mesh(), comms_.rank());
  return {box.begin[0], box.end[0]};
}

Rows Network::LabelRows(int64_t samples) const {
  const Stage& last = stages_.back();
  const Box box =
      LocalBox(Shape{samples, last.in_features}, last.input, comms_.mesh(), comms_.rank());
  return {box.begin[0], box.end[0]};
}

void Network::Resize(int64_t samples, bool with_gradients) {
  if (resized_for_ == samples && (has_gradients_ || !with_gradients)) return;
  for (size_t i = 0; i < stages_.size(); ++i) {
    Stage& stage = stages_[i];
    const Shape in = LocalShape(samples, stage.in_features, stage.input);
    if (!stage.reshard->forward_is_identity()) stage.x = Tensor(in);
    if (stage.layer != nullptr) {
      stage.y = Tensor(LocalShape(samples, stage.out_features, stage.output));
    }
    if (!with_gradients) continue;
    if (stage.layer != nullptr) stage.dy = Tensor(stage.y.shape());
    if (i > 0) stage.dx = Tensor(in);
  }
  resized_for_ = samples;
  has_gradients_ = with_gradients;
}

std::span<const float> Network::Input(size_t i) const {
  if (!stages_[i].reshard->forward_is_identity()) return stages_[i].x.span();
  return i == 0 ? images_ : stages_[i - 1].y.span();
}

absl::Status Network::Forward(int64_t samples, std::span<const float> images) {
  images_ = images;
  for (size_t i = 0; i < stages_.size(); ++i) {
    Stage& stage = stages_[i];
    if (!stage.reshard->forward_is_identity()) {
      const std::span<const float> from = i == 0 ? images : stages_[i - 1].y.span();
      CADRE_RETURN_IF_ERROR(
          stage.reshard->Forward(samples, stage.in_features, from, stage.x.span()));
    }
    if (stage.layer == nullptr) break;
    const int64_t rows = LocalShape(samples, stage.in_features, stage.input)[0];
    stage.layer->Forward(rows, Input(i), stage.y.span());
  }
  return absl::OkStatus();
}

LossPart Network::Loss(int64_t samples, std::span<const int32_t> labels, bool with_gradient) {
  Stage& last = stages_.back();
  const auto rows = static_cast<int64_t>(labels.size());
  const std::span<float> dx = with_gradient ? last.dx.span() : std::span<float>();
  // The mean is over the whole batch, whoever holds its rows.
  const float scale = 1.0F / static_cast<float>(samples);
  const Kernels::LossSums sums = kernels_.SoftmaxCrossEntropy(
      rows, last.in_features, Input(stages_.size() - 1), labels, scale, dx);
  // Ranks that differ only along axes that do not split the samples see the same rows: the first
  // counts them.
  const std::vector<std::string>& sample_axes = last.input.axes(0);
  for (const Mesh::Axis& axis : comms_.mesh().axes()) {
    const bool splits =
        std::find(sample_axes.begin(), sample_axes.end(), axis.name) != sample_axes.end();
    if (!splits && comms_.mesh().Coordinate(comms_.rank(), axis.name) != 0) return {};
  }
  return {.loss = sums.loss, .correct = sums.correct, .samples = rows};
}

absl::Status Network::Backward(int64_t samples) {
  for (size_t i = stages_.size(); i-- > 0;) {
    Stage& stage = stages_[i];
    if (stage.layer != nullptr) {
      const int64_t rows = LocalShape(samples, stage.in_features, stage.input)[0];
      // Nobody wants the gradient of the images.
      const std::span<float> dx = i == 0 ? std::span<float>() : stage.dx.span();
      stage.layer->Backward(rows, Input(i), stage.y.span(), stage.dy.span(), dx);
    }
    if (i == 0) break;
    CADRE_RETURN_IF_ERROR(stage.reshard->Backward(samples, stage.in_features, stage.dx.span(),
                                                  stages_[i - 1].dy.span()));
  }
  return absl::OkStatus();
}

absl::StatusOr<LossPart> Network::ForwardBackward(int64_t samples, std::span<const float> images,
                                                  std::span<const int32_t> labels) {
  Resize(samples, /*with_gradients=*/true);
  CADRE_RETURN_IF_ERROR(Forward(samples, images));
  const LossPart part = Loss(samples, labels, /*with_gradient=*/true);
  CADRE_RETURN_IF_ERROR(Backward(samples));
  return part;
}

absl::StatusOr<LossPart> Network::Evaluate(int64_t samples, std::span<const float> images,
                                           std::span<const int32_t> labels) {
  Resize(samples, /*with_gradients=*/false);
  CADRE_RETURN_IF_ERROR(Forward(samples, images));
  return Loss(samples, labels, /*with_gradient=*/false);
}

}  // namespace cadre
