// Operations on images: convolution and pooling.
//
// A window of k taps with dilation d covers r = d (k - 1) + 1 rows. On h rows with padding p on
// both sides and stride s it yields floor((h + 2p - r) / s) + 1 rows (Dumoulin, Visin 2016,
// relationship 15), so trailing rows that do not fill a stride are not covered. Pooling may round
// up (ceil_mode) if the additional window begins before the padding at the end. The window must fit
// into the padded input, and padding of pooling is at most half the kernel, so that every window
// contains at least one input element.
//
// Weights of a convolution are initialized with variance 2 / fan_in (He et al. 2015), where fan_in
// is the number of input channels of a group times the taps. Limits: square dilations, and square
// strides of convolutions.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "model/ops/families.h"
#include "model/ops/indices.h"
#include "model/ops/inference.h"
#include "model/ops/operation.h"

namespace cadre {
namespace {

// Sets kernel and padding of the window, which are given either for both sides or for each.
template <typename Settings>
bool KernelAndPadding(LayerInference& infer, const Settings& given) {
  const bool sides = given.kernel_height() != 0 || given.kernel_width() != 0;
  if (given.kernel() != 0 && sides) {
    return infer.Problem("kernel", "cannot be combined with kernel_height or kernel_width");
  }
  const bool padding_of_sides = given.padding_height() != 0 || given.padding_width() != 0;
  if (given.padding() != 0 && padding_of_sides) {
    return infer.Problem("padding", "cannot be combined with padding_height or padding_width");
  }
  Window& window = infer.layer().window;
  window.kernel_height = sides ? given.kernel_height() : given.kernel();
  window.kernel_width = sides ? given.kernel_width() : given.kernel();
  window.padding_height = padding_of_sides ? given.padding_height() : given.padding();
  window.padding_width = padding_of_sides ? given.padding_width() : given.padding();
  return infer.Extent(sides ? "kernel_height" : "kernel", window.kernel_height) &&
         infer.Extent(sides ? "kernel_width" : "kernel", window.kernel_width) &&
         infer.AtMostExtent(padding_of_sides ? "padding_height" : "padding",
                            window.padding_height) &&
         infer.AtMostExtent(padding_of_sides ? "padding_width" : "padding", window.padding_width);
}

// Sets the output from the window. Problems name the two fields.
bool SlideWindow(LayerInference& infer, int64_t channels, const char* height_field,
                 const char* width_field, bool ceil = false) {
  const Window& window = infer.layer().window;
  const int64_t height = infer.in()[0] + 2 * window.padding_height;
  const int64_t width = infer.in()[1] + 2 * window.padding_width;
  const bool too_high = window.reach_height() > height;
  if (too_high || window.reach_width() > width) {
    const int64_t kernel = too_high ? window.kernel_height : window.kernel_width;
    const int64_t room = height_field == width_field ? std::min(height, width)
                         : too_high                  ? height
                                                     : width;
    const std::string holes =
        window.dilation == 1 ? "" : absl::StrCat(" with a dilation of ", window.dilation);
    return infer.Problem(too_high ? height_field : width_field, "is ", kernel, holes,
                         ", larger than the padded input of ", height, " x ", width, "; at most ",
                         (room - 1) / window.dilation + 1, " fits");
  }
  // Divides, since the product of all three could overflow.
  if (window.kernel_height * window.kernel_width > kMaxWeights / channels) {
    return infer.Problem(height_field, "is ", window.kernel_height, ", too large for ", channels,
                         " channels");
  }
  return infer.Output(Shape{WindowsAlong(infer.in()[0], window.padding_height,
                                         window.reach_height(), window.stride_height, ceil),
                            WindowsAlong(infer.in()[1], window.padding_width, window.reach_width(),
                                         window.stride_width, ceil),
                            channels});
}

// Zero stands for the default 1 of stride, dilation and groups.
bool InferConvolution(LayerInference& infer) {
  if (!infer.NeedsImage()) return false;
  v1::Convolution& conv = *infer.settings().mutable_convolution();
  conv.set_stride(std::max(1U, conv.stride()));
  conv.set_dilation(std::max(1U, conv.dilation()));
  conv.set_groups(std::max(1U, conv.groups()));
  if (!infer.Extent("out_channels", conv.out_channels()) || !KernelAndPadding(infer, conv) ||
      !infer.AtMostExtent("stride", conv.stride()) ||
      !infer.AtMostExtent("dilation", conv.dilation())) {
    return false;
  }
  infer.layer().window.stride_height = infer.layer().window.stride_width = conv.stride();
  infer.layer().window.dilation = conv.dilation();
  const int64_t channels = infer.in()[2];
  const int64_t outputs = conv.out_channels();
  infer.layer().groups = conv.groups();
  if (channels % infer.layer().groups != 0 || outputs % infer.layer().groups != 0) {
    return infer.Problem("groups", "is ", infer.layer().groups, "; it must divide the ", channels,
                         " input channels and the ", outputs, " output channels");
  }
  const bool sides = conv.kernel() == 0;
  if (!SlideWindow(infer, outputs, sides ? "kernel_height" : "kernel",
                   sides ? "kernel_width" : "kernel")) {
    return false;
  }
  const Window& window = infer.layer().window;
  const Shape weight{outputs, channels / infer.layer().groups, window.kernel_height,
                     window.kernel_width};
  const double fan_in = weight[1] * weight[2] * weight[3];
  if (!infer.Weight("weight", weight, std::sqrt(2.0 / fan_in))) return false;
  if (!conv.no_bias()) infer.Constant("bias", Shape{outputs}, ParameterRole::kBias, 0);
  return infer.Flops({2, infer.layer().output[0], infer.layer().output[1], weight.elements()});
}

// By default, windows are adjacent.
bool PoolingStride(LayerInference& infer, v1::Pooling& pool) {
  Window& window = infer.layer().window;
  const bool sides = pool.stride_height() != 0 || pool.stride_width() != 0;
  if (pool.stride() != 0 && sides) {
    return infer.Problem("stride", "cannot be combined with stride_height or stride_width");
  }
  if (!sides && window.kernel_height == window.kernel_width) {
    if (pool.stride() == 0) pool.set_stride(window.kernel_height);
  } else if (pool.stride() == 0) {
    if (pool.stride_height() == 0) pool.set_stride_height(window.kernel_height);
    if (pool.stride_width() == 0) pool.set_stride_width(window.kernel_width);
  }
  window.stride_height = pool.stride() != 0 ? pool.stride() : pool.stride_height();
  window.stride_width = pool.stride() != 0 ? pool.stride() : pool.stride_width();
  return infer.AtMostExtent(sides ? "stride_height" : "stride", window.stride_height) &&
         infer.AtMostExtent(sides ? "stride_width" : "stride", window.stride_width);
}

bool InferPooling(LayerInference& infer, v1::Pooling& pool) {
  if (!infer.NeedsImage() || !KernelAndPadding(infer, pool) || !PoolingStride(infer, pool))
    return false;
  const Window& window = infer.layer().window;
  const bool too_high = window.padding_height > window.kernel_height / 2;
  if (too_high || window.padding_width > window.kernel_width / 2) {
    return infer.Problem(pool.padding() != 0 ? "padding"
                         : too_high          ? "padding_height"
                                             : "padding_width",
                         "is ", too_high ? window.padding_height : window.padding_width,
                         "; it must be at most half the kernel, ",
                         (too_high ? window.kernel_height : window.kernel_width) / 2);
  }
  if (pool.count_padding() && infer.layer().kind == LayerKind::kMaxPool) {
    return infer.Problem("count_padding", "is only valid for average_pool");
  }
  if (pool.count_padding() && pool.ceil_mode()) {
    return infer.Problem("count_padding", "cannot be combined with ceil_mode");
  }
  const bool sides = pool.kernel() == 0;
  if (!SlideWindow(infer, infer.in()[2], sides ? "kernel_height" : "kernel",
                   sides ? "kernel_width" : "kernel", pool.ceil_mode())) {
    return false;
  }
  return infer.Flops({infer.layer().output.elements(), window.kernel_height, window.kernel_width});
}

bool InferMaxPool(LayerInference& infer) {
  return InferPooling(infer, *infer.settings().mutable_max_pool());
}

bool InferAveragePool(LayerInference& infer) {
  return InferPooling(infer, *infer.settings().mutable_average_pool());
}

bool InferGlobalAveragePool(LayerInference& infer) {
  infer.layer().flops = infer.in().elements();
  return infer.NeedsImage() && infer.Output(Shape{infer.in()[2]});
}

bool HasHalo(int64_t reach, int64_t stride, int64_t padding) {
  return reach != 1 || stride != 1 || padding != 0;
}

std::vector<OpIndex> WindowIndices(const GraphLayer& layer) {
  std::vector<OpIndex> indices = Leading(layer, 2);
  const Window& window = layer.window;
  indices[kHeight].halo =
      HasHalo(window.reach_height(), window.stride_height, window.padding_height);
  indices[kWidth].halo = HasHalo(window.reach_width(), window.stride_width, window.padding_width);
  return indices;
}

std::vector<OpIndex> ConvolutionIndices(const GraphLayer& layer) {
  std::vector<OpIndex> indices = WindowIndices(layer);
  if (layer.groups == 1) {
    AddMatrixSides(layer, kChannels, indices);
    return indices;
  }
  indices.push_back(
      Index(layer, "groups", IndexPlace::Dimension(kChannels), IndexPlace::Dimension(kChannels),
            {{"weight", IndexPlace::Dimension(0)}, {"bias", IndexPlace::Dimension(0)}}));
  indices.back().divisible = layer.groups;
  return indices;
}

std::vector<OpIndex> PoolIndices(const GraphLayer& layer) {
  std::vector<OpIndex> indices = WindowIndices(layer);
  indices.push_back(Along(layer, "channels", kChannels));
  return indices;
}

std::vector<OpIndex> GlobalPoolIndices(const GraphLayer& layer) {
  return {Along(layer, kSamples, 0),
          Index(layer, "height", IndexPlace::Dimension(kHeight), IndexPlace::Summed()),
          Index(layer, "width", IndexPlace::Dimension(kWidth), IndexPlace::Summed()),
          Index(layer, "channels", IndexPlace::Dimension(kChannels), IndexPlace::Dimension(1))};
}

constexpr Operation kWindows[] = {
    {.kind = LayerKind::kConvolution,
     .infer = InferConvolution,
     .indices = ConvolutionIndices,
     .saved = {.x = true},
     .has_window = true,
     .is_product = true,
     .input_gradient_first = true},
    {.kind = LayerKind::kMaxPool,
     .infer = InferMaxPool,
     .indices = PoolIndices,
     .has_window = true},
    {.kind = LayerKind::kAveragePool,
     .infer = InferAveragePool,
     .indices = PoolIndices,
     .has_window = true},
    {.kind = LayerKind::kGlobalAveragePool,
     .infer = InferGlobalAveragePool,
     .indices = GlobalPoolIndices},
};

}  // namespace

std::span<const Operation> Windows() { return kWindows; }

}  // namespace cadre
