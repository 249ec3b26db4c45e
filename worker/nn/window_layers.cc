// Layers that slide a window over images: convolution and pooling.
//
// If rows are split, a rank's input box includes the halo, the rows of its neighbors that its
// windows cover. Boxes are in coordinates of the whole image, so the local padding is the distance
// of the first window from the first row that the rank holds; it is zero inside the image.
//
// A convolution can compute its output in two parts: first the interior, whose windows need no
// halo, while the halo is received; then the borders (Dryden et al., IPDPS 2019). Each part is
// computed on packed copies of its rows, because kernels expect contiguous samples.
#include <utility>

#include "base/status.h"
#include "plan/layer_memory.h"
#include "worker/nn/layer_kinds.h"

namespace cadre {
namespace {

// Dimensions of an image batch.
constexpr int kSamples = 0;
constexpr int kRows = 1;
constexpr int kColumns = 2;
constexpr int kChannels = 3;

// The window on this rank's part. Padding applies only where the part touches the border of the
// image; elsewhere the halo takes its place.
WindowDims WindowOf(const Window& window, const Box& input, const Box& output) {
  const Shape in = input.shape();
  const Shape out = output.shape();
  WindowDims dims{.in_height = in[kRows],
                  .in_width = in[kColumns],
                  .out_height = out[kRows],
                  .out_width = out[kColumns],
                  .kernel_height = window.kernel_height,
                  .kernel_width = window.kernel_width,
                  .stride_height = window.stride_height,
                  .stride_width = window.stride_width,
                  .dilation = window.dilation};
  // Boxes are empty if nothing is computed here or the window covers only padding.
  if (input.empty() || output.empty()) return dims;
  dims.pad_top =
      input.begin[kRows] - (output.begin[kRows] * window.stride_height - window.padding_height);
  dims.pad_left =
      input.begin[kColumns] - (output.begin[kColumns] * window.stride_width - window.padding_width);
  return dims;
}

class Convolution final : public Layer, public HaloParts, public GradientParts {
 public:
  explicit Convolution(LayerSetting setting)
      : kernels_(setting.kernels),
        window_(setting.layer.window),
        region_(setting.region),
        weight_(setting.parameters[0]) {
    const Shape in = setting.region.inputs[0].shape();
    const Shape out = setting.region.output.shape();
    groups_ = setting.layer.groups;
    // Channel groups may be split among ranks; from here on, groups_ counts the local groups.
    if (groups_ > 1) groups_ = groups_ * out[kChannels] / setting.layer.output[2];
    if (setting.parameters.size() > 1) bias_ = setting.parameters[1];
    if (setting.IsFirstAlong("in")) added_bias_ = bias_.value;
  }

  absl::Status Forward(const PassContext& /*pass*/, const LayerTensors& t) override {
    kernels_.window().ConvolutionForward(DimsOf(region_.inputs[0], region_.output), t.x[0],
                                         weight_.value, added_bias_, t.y);
    return absl::OkStatus();
  }

  absl::Status Backward(const PassContext& /*pass*/, const LayerTensors& t) override {
    CADRE_RETURN_IF_ERROR(BackwardParameters(t));
    return BackwardInput(t);
  }

  HaloParts* halo_parts() override { return this; }
  GradientParts* gradient_parts() override { return this; }

  absl::Status ForwardInterior(ConstValues held, const LayerTensors& t) override {
    ForwardRows(region_.interior_begin, region_.interior_end, held, region_.held, t);
    return absl::OkStatus();
  }

  absl::Status ForwardBorder(const LayerTensors& t) override {
    ForwardRows(region_.output.begin[kRows], region_.interior_begin, t.x[0], region_.inputs[0], t);
    ForwardRows(region_.interior_end, region_.output.end[kRows], t.x[0], region_.inputs[0], t);
    return absl::OkStatus();
  }

  absl::Status BackwardInput(const LayerTensors& t) override {
    if (t.dx[0].empty()) return absl::OkStatus();
    const ConvolutionDims dims = DimsOf(region_.inputs[0], region_.output);
    if (t.adds_dx) {
      kernels_.window().AddConvolutionBackwardData(dims, t.dy, weight_.value, t.dx[0]);
    } else {
      kernels_.window().ConvolutionBackwardData(dims, t.dy, weight_.value, t.dx[0]);
    }
    return absl::OkStatus();
  }

  absl::Status BackwardParameters(const LayerTensors& t) override {
    kernels_.window().ConvolutionBackwardWeights(DimsOf(region_.inputs[0], region_.output), t.x[0],
                                                 t.dy, weight_.gradient, bias_.gradient);
    return absl::OkStatus();
  }

 private:
  ConvolutionDims DimsOf(const Box& input, const Box& output) const {
    return {.batch = output.shape()[kSamples],
            .in_channels = input.shape()[kChannels],
            .out_channels = output.shape()[kChannels],
            .groups = groups_,
            .window = WindowOf(window_, input, output)};
  }

  // Computes rows [begin, end) of the output from x, which contains `x_box`. If there are several
  // samples, their rows are not contiguous and are packed first.
  void ForwardRows(int64_t begin, int64_t end, ConstValues x, const Box& x_box,
                   const LayerTensors& t) {
    if (begin >= end) return;
    const Box input = region_.InputRowsFor(window_, begin, end);
    const Box output = region_.OutputRows(begin, end);
    const int64_t elements = input.shape().elements();
    const Values part_x = t.scratch.first(elements);
    const Values part_y = t.scratch.subspan(AlignedOffset(elements), output.shape().elements());
    kernels_.memory().CopyBox(x, x_box, part_x, input, input);
    kernels_.window().ConvolutionForward(DimsOf(input, output), part_x, weight_.value, added_bias_,
                                         part_y);
    kernels_.memory().CopyBox(part_y, output, t.y, region_.output, output);
  }

  Backend& kernels_;
  const Window window_;
  const LayerRegion& region_;
  int64_t groups_ = 1;
  LocalTensor weight_;
  LocalTensor bias_;
  // Empty on ranks whose output is an addend: another rank adds the bias.
  std::span<const float> added_bias_;
};

class Pooling final : public Layer {
 public:
  explicit Pooling(LayerSetting setting) : kernels_(setting.kernels) {
    const Shape out = setting.region.output.shape();
    dims_ = {
        .kind = KindOf(setting.layer),
        .batch = out[kSamples],
        .channels = out[kChannels],
        .window = WindowOf(setting.layer.window, setting.region.inputs[0], setting.region.output)};
  }

  absl::Status Forward(const PassContext& /*pass*/, const LayerTensors& t) override {
    kernels_.window().PoolingForward(dims_, t.x[0], t.y, t.saved_integers());
    return absl::OkStatus();
  }

  absl::Status Backward(const PassContext& /*pass*/, const LayerTensors& t) override {
    if (!t.dx[0].empty())
      kernels_.window().PoolingBackward(dims_, t.dy, t.saved_integers(), t.dx[0]);
    return absl::OkStatus();
  }

 private:
  static PoolKind KindOf(const GraphLayer& layer) {
    if (layer.kind == LayerKind::kMaxPool) return PoolKind::kMax;
    return layer.settings.average_pool().count_padding() ? PoolKind::kAverageWithPadding
                                                         : PoolKind::kAverage;
  }

  Backend& kernels_;
  PoolingDims dims_;
};

// If rows or columns are split, the local result is an addend of the mean.
class GlobalAveragePool final : public Layer {
 public:
  explicit GlobalAveragePool(LayerSetting setting)
      : kernels_(setting.kernels),
        in_(setting.region.inputs[0].shape()),
        divisor_(setting.layer.input()[0] * setting.layer.input()[1]) {}

  absl::Status Forward(const PassContext& /*pass*/, const LayerTensors& t) override {
    kernels_.window().GlobalAveragePoolForward(in_[kSamples], in_[kRows] * in_[kColumns],
                                               in_[kChannels], divisor_, t.x[0], t.y);
    return absl::OkStatus();
  }

  absl::Status Backward(const PassContext& /*pass*/, const LayerTensors& t) override {
    if (t.dx[0].empty()) return absl::OkStatus();
    kernels_.window().GlobalAveragePoolBackward(in_[kSamples], in_[kRows] * in_[kColumns],
                                                in_[kChannels], divisor_, t.dy, t.dx[0]);
    return absl::OkStatus();
  }

 private:
  Backend& kernels_;
  const Shape in_;
  const int64_t divisor_;
};

}  // namespace

std::unique_ptr<Layer> MakeWindowLayer(LayerSetting setting) {
  switch (setting.layer.kind) {
    case LayerKind::kConvolution:
      return std::make_unique<Convolution>(std::move(setting));
    case LayerKind::kGlobalAveragePool:
      return std::make_unique<GlobalAveragePool>(std::move(setting));
    default:
      return std::make_unique<Pooling>(std::move(setting));
  }
}

}  // namespace cadre
