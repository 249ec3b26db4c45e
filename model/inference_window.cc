// Part of LayerInference: convolutions and pooling, and other operations on images.
//
// A window of k taps with dilation d covers r = d (k - 1) + 1 rows. On h rows with padding p on
// both sides and stride s it yields floor((h + 2p - r) / s) + 1 rows (Dumoulin, Visin 2016,
// relationship 15); floor mode only, so trailing rows that do not fill a stride are not covered.
// The window must fit into the padded input, and padding of pooling is at most half the kernel, so
// that every window contains at least one input element.
//
// Weights of a convolution are initialized with variance 2 / fan_in (He et al. 2015), where fan_in
// is the number of input channels of a group times the taps. Cost: a multiply-add counts as two
// operations. Limits: square strides and dilations; sizes are bounded so that no product overflows
// int64_t (kMaxExtent, kMaxElements, kMaxWeights).
#include <algorithm>
#include <cmath>

#include "model/inference.h"

namespace cadre {
namespace {

struct Side {
  const char* name;
  uint32_t kernel;
  uint32_t padding;
};

}  // namespace

// Sets layer_.window. Kernel and padding are given either for both sides or for each.
bool LayerInference::ConvolutionWindow() {
  const v1::Convolution& conv = settings().convolution();
  const bool square = conv.kernel() != 0;
  if (square && (conv.kernel_height() != 0 || conv.kernel_width() != 0)) {
    return Problem("kernel", "cannot be combined with kernel_height or kernel_width");
  }
  if (conv.padding() != 0 && (conv.padding_height() != 0 || conv.padding_width() != 0)) {
    return Problem("padding", "cannot be combined with padding_height or padding_width");
  }
  const bool sides = conv.kernel_height() != 0 || conv.kernel_width() != 0;
  const Side height = {"kernel_height", sides ? conv.kernel_height() : conv.kernel(),
                       conv.padding() + conv.padding_height()};
  const Side width = {"kernel_width", sides ? conv.kernel_width() : conv.kernel(),
                      conv.padding() + conv.padding_width()};
  for (const Side& side : {height, width}) {
    if (!Extent(sides ? side.name : "kernel", side.kernel)) return false;
  }
  if (!AtMostExtent(conv.padding() != 0 ? "padding" : "padding_height", height.padding) ||
      !AtMostExtent(conv.padding() != 0 ? "padding" : "padding_width", width.padding) ||
      !AtMostExtent("stride", conv.stride()) || !AtMostExtent("dilation", conv.dilation())) {
    return false;
  }
  layer_.window = {.kernel_height = height.kernel,
                   .kernel_width = width.kernel,
                   .stride = conv.stride(),
                   .padding_height = height.padding,
                   .padding_width = width.padding,
                   .dilation = conv.dilation()};
  return true;
}

// Zero stands for the default 1 of stride, dilation and groups.
bool LayerInference::Convolution() {
  if (!NeedsImage()) return false;
  v1::Convolution& conv = *settings().mutable_convolution();
  conv.set_stride(std::max(1U, conv.stride()));
  conv.set_dilation(std::max(1U, conv.dilation()));
  conv.set_groups(std::max(1U, conv.groups()));
  if (!Extent("out_channels", conv.out_channels()) || !ConvolutionWindow()) return false;
  const int64_t channels = in()[2];
  const int64_t outputs = conv.out_channels();
  layer_.groups = conv.groups();
  if (channels % layer_.groups != 0 || outputs % layer_.groups != 0) {
    return Problem("groups", "is ", layer_.groups, "; it must divide the ", channels,
                   " input channels and the ", outputs, " output channels");
  }
  const bool sides = conv.kernel() == 0;
  if (!SlideWindow(outputs, sides ? "kernel_height" : "kernel",
                   sides ? "kernel_width" : "kernel")) {
    return false;
  }
  const Window& window = layer_.window;
  const Shape weight{outputs, channels / layer_.groups, window.kernel_height, window.kernel_width};
  const double fan_in = weight[1] * weight[2] * weight[3];
  if (!Weight("weight", weight, std::sqrt(2.0 / fan_in))) return false;
  if (!conv.no_bias()) Constant("bias", Shape{outputs}, ParameterRole::kBias, 0);
  layer_.flops = 2 * layer_.output[0] * layer_.output[1] * weight.elements();
  return true;
}

// Windows of pooling are square; their default stride makes them adjacent.
bool LayerInference::Pool(v1::Pooling& pool) {
  if (!NeedsImage() || !Extent("kernel", pool.kernel())) return false;
  if (pool.stride() == 0) pool.set_stride(pool.kernel());
  if (!AtMostExtent("stride", pool.stride())) return false;
  if (pool.padding() > pool.kernel() / 2) {
    return Problem("padding", "is ", pool.padding(), "; it must be at most half the kernel, ",
                   pool.kernel() / 2);
  }
  if (pool.count_padding() && layer_.kind == LayerKind::kMaxPool) {
    return Problem("count_padding", "is only valid for average_pool");
  }
  layer_.window = {.kernel_height = pool.kernel(),
                   .kernel_width = pool.kernel(),
                   .stride = pool.stride(),
                   .padding_height = pool.padding(),
                   .padding_width = pool.padding()};
  if (!SlideWindow(in()[2], "kernel", "kernel")) return false;
  layer_.flops =
      layer_.output.elements() * layer_.window.kernel_height * layer_.window.kernel_width;
  return true;
}

bool LayerInference::SlideWindow(int64_t channels, const char* height_field,
                                 const char* width_field) {
  const Window& window = layer_.window;
  const int64_t height = in()[0] + 2 * window.padding_height;
  const int64_t width = in()[1] + 2 * window.padding_width;
  const bool too_high = window.reach_height() > height;
  if (too_high || window.reach_width() > width) {
    const int64_t kernel = too_high ? window.kernel_height : window.kernel_width;
    const int64_t room = height_field == width_field ? std::min(height, width)
                         : too_high                  ? height
                                                     : width;
    const std::string holes =
        window.dilation == 1 ? "" : absl::StrCat(" with a dilation of ", window.dilation);
    return Problem(too_high ? height_field : width_field, "is ", kernel, holes,
                   ", larger than the padded input of ", height, " x ", width, "; at most ",
                   (room - 1) / window.dilation + 1, " fits");
  }
  // Divides, since the product of all three could overflow.
  if (window.kernel_height * window.kernel_width > kMaxWeights / channels) {
    return Problem(height_field, "is ", window.kernel_height, ", too large for ", channels,
                   " channels");
  }
  return Output(Shape{(height - window.reach_height()) / window.stride + 1,
                      (width - window.reach_width()) / window.stride + 1, channels});
}

bool LayerInference::GlobalAveragePool() {
  layer_.flops = in().elements();
  return NeedsImage() && Output(Shape{in()[2]});
}

bool LayerInference::Flatten() { return NeedsImage() && Output(Shape{in().elements()}); }

}  // namespace cadre
