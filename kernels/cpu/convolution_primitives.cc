// Descriptions of convolutions for oneDNN 2. Activations are passed in our layout (channels last)
// or, for the gradient of weights, in blocks of channels that oneDNN chooses; weights are always in
// the layout that oneDNN chooses. PrimitiveRun inserts the conversions.
//
// The gradient of the inputs of a convolution with stride 1 is itself a convolution of dy with the
// taps in reverse order and with inputs and outputs exchanged; its padding is the dilated kernel
// minus one minus the original padding. oneDNN's forward kernels are better optimised than its
// backward ones.
//
// A region that a rank owns can have rows that no window of its outputs reaches. oneDNN derives the
// number of outputs from the input and rejects such extents, so the reached part is copied to a
// separate image (ReachedPart). This happens only at the borders between ranks, and the copy costs
// little compared with the convolution.
#include "kernels/cpu/convolution_primitives.h"

#include <algorithm>
#include <utility>

#include "kernels/extents.h"
#include "tensor/elements.h"

namespace cadre {
namespace {

using Desc = dnnl::memory::desc;
using Tag = dnnl::memory::format_tag;

constexpr auto kFloat = dnnl::memory::data_type::f32;

// A convolution as oneDNN describes it, of images of `type`. `in_blocks` lets oneDNN choose the
// layout of the images (blocks of channels); otherwise they are channels last.
struct Descriptions {
  Descriptions(const ConvolutionDims& d, DType type, bool with_bias, bool in_blocks)
      : plain_x({d.batch, d.in_channels, d.window.in_height, d.window.in_width}, OneDnnType(type),
                Tag::nhwc),
        plain_w(WeightDims(d), kFloat, d.groups == 1 ? Tag::oihw : Tag::goihw),
        b(with_bias ? Desc({d.out_channels}, kFloat, Tag::x) : Desc()),
        plain_y({d.batch, d.out_channels, d.window.out_height, d.window.out_width},
                OneDnnType(type), Tag::nhwc),
        x(in_blocks ? Any(plain_x, type) : plain_x),
        w(Any(plain_w, type)),
        dw(Any(plain_w, DType::kFloat32)),
        y(in_blocks ? Any(plain_y, type) : plain_y),
        stride{d.window.stride_height, d.window.stride_width},
        dilation{d.window.dilation - 1, d.window.dilation - 1} {
    const WindowPadding padding = PaddingOf(d.window);
    near = {padding.top, padding.left};
    far = {padding.bottom, padding.right};
  }

  static dnnl::memory::dims WeightDims(const ConvolutionDims& d) {
    dnnl::memory::dims dims{d.out_channels / d.groups, d.in_channels / d.groups,
                            d.window.kernel_height, d.window.kernel_width};
    if (d.groups > 1) dims.insert(dims.begin(), d.groups);
    return dims;
  }
  static Desc Any(const Desc& plain, DType type) {
    return Desc(plain.dims(), OneDnnType(type), Tag::any);
  }

  // The caller's layouts, in which weights and their gradients are fp32, and oneDNN's layouts.
  Desc plain_x, plain_w, b, plain_y;
  Desc x, w, dw, y;
  dnnl::memory::dims stride, dilation, near, far;
};

constexpr auto kDirect = dnnl::algorithm::convolution_direct;

// The forward description, which the backward descriptions need as a hint.
dnnl::convolution_forward::primitive_desc Forward(const Descriptions& d,
                                                  const dnnl::engine& engine) {
  using Forward = dnnl::convolution_forward;
  constexpr auto kTraining = dnnl::prop_kind::forward_training;
  const auto desc = d.b.is_zero() ? Forward::desc(kTraining, kDirect, d.x, d.w, d.y, d.stride,
                                                  d.dilation, d.near, d.far)
                                  : Forward::desc(kTraining, kDirect, d.x, d.w, d.b, d.y, d.stride,
                                                  d.dilation, d.near, d.far);
  return {desc, UserScratchpad(), engine};
}

// Calls f(row of the part, row of the image) for the offsets of every row of the part.
template <typename F>
void ForRows(const ConvolutionDims& whole, const ConvolutionDims& part, F f) {
  const WindowDims& from = whole.window;
  const WindowDims& to = part.window;
  for (int64_t n = 0; n < whole.batch; ++n) {
    for (int64_t h = 0; h < to.in_height; ++h) {
      f((n * to.in_height + h) * to.in_width * part.in_channels,
        (n * from.in_height + h) * from.in_width * whole.in_channels);
    }
  }
}

}  // namespace

PrimitiveRun MakeConvolutionForward(const ConvolutionDims& dims, DType type, bool with_bias,
                                    const dnnl::engine& engine) {
  return OrDie("convolution forward", [&] {
    const Descriptions d(dims, type, with_bias, /*in_blocks=*/false);
    const auto description = Forward(d, engine);
    PrimitiveRun run(engine, dnnl::convolution_forward(description), description.scratchpad_desc());
    run.AddInput(DNNL_ARG_SRC, d.plain_x, description.src_desc());
    run.AddInput(DNNL_ARG_WEIGHTS, d.plain_w, description.weights_desc());
    if (with_bias) run.AddInput(DNNL_ARG_BIAS, d.b, d.b);
    run.AddOutput(DNNL_ARG_DST, d.plain_y, description.dst_desc());
    return run;
  });
}

PrimitiveRun MakeConvolutionBackwardData(const ConvolutionDims& dims, DType type,
                                         const dnnl::engine& engine) {
  return OrDie("convolution backward data", [&] {
    const Descriptions d(dims, type, /*with_bias=*/false, /*in_blocks=*/false);
    const dnnl::convolution_backward_data::primitive_desc description(
        {kDirect, d.x, d.w, d.y, d.stride, d.dilation, d.near, d.far}, UserScratchpad(), engine,
        Forward(d, engine));
    PrimitiveRun run(engine, dnnl::convolution_backward_data(description),
                     description.scratchpad_desc());
    run.AddInput(DNNL_ARG_DIFF_DST, d.plain_y, description.diff_dst_desc());
    run.AddInput(DNNL_ARG_WEIGHTS, d.plain_w, description.weights_desc());
    run.AddOutput(DNNL_ARG_DIFF_SRC, d.plain_x, description.diff_src_desc());
    return run;
  });
}

PrimitiveRun MakeConvolutionBackwardDataByForward(const ConvolutionDims& dims, DType type,
                                                  const dnnl::engine& engine) {
  return OrDie("convolution backward data by forward", [&] {
    const WindowDims& w = dims.window;
    ConvolutionDims turned = dims;
    std::swap(turned.in_channels, turned.out_channels);
    std::swap(turned.window.in_height, turned.window.out_height);
    std::swap(turned.window.in_width, turned.window.out_width);
    turned.window.pad_top = w.dilation * (w.kernel_height - 1) - w.pad_top;
    turned.window.pad_left = w.dilation * (w.kernel_width - 1) - w.pad_left;
    const Descriptions d(turned, type, /*with_bias=*/false, /*in_blocks=*/false);
    // w in our memory layout, viewed as [in, out, height, width].
    const int64_t taps = w.kernel_height * w.kernel_width;
    const Desc turned_w(d.plain_w.dims(), kFloat,
                        dnnl::memory::dims{taps, dims.in_channels * taps, w.kernel_width, 1});
    const auto description = Forward(d, engine);
    PrimitiveRun run(engine, dnnl::convolution_forward(description), description.scratchpad_desc());
    run.AddInput(DNNL_ARG_SRC, d.plain_x, description.src_desc());
    run.AddInput(DNNL_ARG_WEIGHTS, turned_w, description.weights_desc());
    run.AddOutput(DNNL_ARG_DST, d.plain_y, description.dst_desc());
    return run;
  });
}

PrimitiveRun MakeConvolutionBackwardWeights(const ConvolutionDims& dims, DType type, bool with_bias,
                                            const dnnl::engine& engine) {
  return OrDie("convolution backward weights", [&] {
    using Backward = dnnl::convolution_backward_weights;
    const Descriptions d(dims, type, with_bias, /*in_blocks=*/type == DType::kFloat32);
    const auto desc =
        with_bias
            ? Backward::desc(kDirect, d.x, d.dw, d.b, d.y, d.stride, d.dilation, d.near, d.far)
            : Backward::desc(kDirect, d.x, d.dw, d.y, d.stride, d.dilation, d.near, d.far);
    const Backward::primitive_desc description(desc, UserScratchpad(), engine, Forward(d, engine));
    PrimitiveRun run(engine, Backward(description), description.scratchpad_desc());
    run.AddInput(DNNL_ARG_SRC, d.plain_x, description.src_desc());
    run.AddInput(DNNL_ARG_DIFF_DST, d.plain_y, description.diff_dst_desc());
    run.AddOutput(DNNL_ARG_DIFF_WEIGHTS, d.plain_w, description.diff_weights_desc());
    if (with_bias) run.AddOutput(DNNL_ARG_DIFF_BIAS, d.b, description.diff_bias_desc());
    return run;
  });
}

ConvolutionDims ReachedPart(const ConvolutionDims& dims) {
  const WindowPadding padding = PaddingOf(dims.window);
  ConvolutionDims reached = dims;
  WindowDims& w = reached.window;
  // At least one row stays: a window may lie wholly in the padding before the image.
  if (padding.bottom <= -w.stride_height)
    w.in_height = std::max<int64_t>(1, w.in_height + padding.bottom);
  if (padding.right <= -w.stride_width)
    w.in_width = std::max<int64_t>(1, w.in_width + padding.right);
  return reached;
}

void CutOut(const ConvolutionDims& dims, const ConvolutionDims& reached, ConstValues x,
            Values part) {
  const int64_t row = reached.window.in_width * reached.in_channels;
  ByType(x.type(), [&](auto zero) {
    using T = decltype(zero);
    ForRows(dims, reached, [&](int64_t to, int64_t from) {
      std::copy_n(Data<T>(x) + from, row, Data<T>(part) + to);
    });
  });
}

void PutBack(const ConvolutionDims& dims, const ConvolutionDims& reached, ConstValues part,
             Values x) {
  const int64_t row = reached.window.in_width * reached.in_channels;
  ByType(x.type(), [&](auto zero) {
    using T = decltype(zero);
    std::fill_n(Data<T>(x), x.size(), T{});
    ForRows(dims, reached, [&](int64_t from, int64_t to) {
      std::copy_n(Data<T>(part) + from, row, Data<T>(x) + to);
    });
  });
}

}  // namespace cadre
