// Convolutions by oneDNN. The direct algorithm throughout: Winograd's is a fifth faster forward,
// but loses bits that the comparison of one plan with another needs.
#include <array>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/threads.h"
#include "kernels/extents.h"

namespace cadre {
namespace {

using Desc = dnnl::memory::desc;
using Tag = dnnl::memory::format_tag;

Desc Plain(const dnnl::memory::dims& dims) {
  return Desc(dims, dnnl::memory::data_type::f32, dims.size() == 4 ? Tag::nchw : Tag::x);
}
Desc Any(const dnnl::memory::dims& dims) {
  return Desc(dims, dnnl::memory::data_type::f32, Tag::any);
}

// The dimensions of a convolution in oneDNN's words.
struct Dims {
  explicit Dims(const ConvolutionDims& d)
      : x{d.batch, d.in_channels, d.in_height, d.in_width},
        w{d.out_channels, d.in_channels, d.kernel, d.kernel},
        b{d.out_channels},
        y{d.batch, d.out_channels, d.out_height, d.out_width},
        stride{d.stride, d.stride},
        // What the last window leaves over at the far edge is not padding to oneDNN.
        near{d.padding, d.padding},
        far{FarPadding(d, d.in_height, d.out_height), FarPadding(d, d.in_width, d.out_width)} {}

  static int64_t FarPadding(const ConvolutionDims& d, int64_t in, int64_t out) {
    return (out - 1) * d.stride + d.kernel - in - d.padding;
  }

  dnnl::memory::dims x, w, b, y, stride, near, far;
};

// Blocked layouts hold 16 channels at a time: with a few input channels they are mostly padding,
// and the matrix product over plain layouts is several times faster.
constexpr int64_t kLeastChannelsForBlocks = 8;

bool PrefersPlain(const ConvolutionDims& dims) {
  return dims.in_channels < kLeastChannelsForBlocks;
}

dnnl::primitive_attr UserScratchpad() {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attributes;
}

// The forward description, which the backward ones take as a hint.
dnnl::convolution_forward::primitive_desc DescribeForward(const ConvolutionDims& dims, bool plain,
                                                          const dnnl::engine& engine) {
  const Dims d(dims);
  const auto layout = plain ? Plain : Any;
  return {{dnnl::prop_kind::forward_training, dnnl::algorithm::convolution_direct, layout(d.x),
           layout(d.w), Plain(d.b), layout(d.y), d.stride, d.near, d.far},
          UserScratchpad(),
          engine};
}

}  // namespace

PrimitiveRun CpuKernels::MakeForward(const ConvolutionDims& dims) const {
  return OrDie("convolution forward", [&] {
    const Dims d(dims);
    const auto description = DescribeForward(dims, PrefersPlain(dims), engine_);
    PrimitiveRun run(engine_, dnnl::convolution_forward(description),
                     description.scratchpad_desc());
    run.AddInput(DNNL_ARG_SRC, Plain(d.x), description.src_desc());
    run.AddInput(DNNL_ARG_WEIGHTS, Plain(d.w), description.weights_desc());
    run.AddInput(DNNL_ARG_BIAS, Plain(d.b), description.bias_desc());
    run.AddOutput(DNNL_ARG_DST, Plain(d.y), description.dst_desc());
    return run;
  });
}

PrimitiveRun CpuKernels::MakeBackwardData(const ConvolutionDims& dims) const {
  return OrDie("convolution backward data", [&] {
    const Dims d(dims);
    const bool plain = PrefersPlain(dims);
    const auto layout = plain ? Plain : Any;
    const dnnl::convolution_backward_data::primitive_desc description(
        {dnnl::algorithm::convolution_direct, layout(d.x), layout(d.w), layout(d.y), d.stride,
         d.near, d.far},
        UserScratchpad(), engine_, DescribeForward(dims, plain, engine_));
    PrimitiveRun run(engine_, dnnl::convolution_backward_data(description),
                     description.scratchpad_desc());
    run.AddInput(DNNL_ARG_DIFF_DST, Plain(d.y), description.diff_dst_desc());
    run.AddInput(DNNL_ARG_WEIGHTS, Plain(d.w), description.weights_desc());
    run.AddOutput(DNNL_ARG_DIFF_SRC, Plain(d.x), description.diff_src_desc());
    return run;
  });
}

PrimitiveRun CpuKernels::MakeBackwardWeights(const ConvolutionDims& dims) const {
  return OrDie("convolution backward weights", [&] {
    const Dims d(dims);
    // Blocks pay here even for one input channel: the sum runs over the images.
    const dnnl::convolution_backward_weights::primitive_desc description(
        {dnnl::algorithm::convolution_direct, Any(d.x), Any(d.w), Plain(d.b), Any(d.y), d.stride,
         d.near, d.far},
        UserScratchpad(), engine_, DescribeForward(dims, /*plain=*/false, engine_));
    PrimitiveRun run(engine_, dnnl::convolution_backward_weights(description),
                     description.scratchpad_desc());
    run.AddInput(DNNL_ARG_SRC, Plain(d.x), description.src_desc());
    run.AddInput(DNNL_ARG_DIFF_DST, Plain(d.y), description.diff_dst_desc());
    run.AddOutput(DNNL_ARG_DIFF_WEIGHTS, Plain(d.w), description.diff_weights_desc());
    run.AddOutput(DNNL_ARG_DIFF_BIAS, Plain(d.b), description.diff_bias_desc());
    return run;
  });
}

void CpuKernels::ConvolutionForward(const ConvolutionDims& dims, std::span<const float> x,
                                    std::span<const float> w, std::span<const float> b,
                                    std::span<float> y) {
  const LayerSizes sizes = SizesOf(dims);
  if (sizes.x == 0 || sizes.y == 0) {
    reference_->ConvolutionForward(dims, x, w, b, y);
    return;
  }
  CheckSize("x", x.size(), sizes.x);
  CheckSize("w", w.size(), sizes.w);
  CheckSize("b", b.size(), sizes.b);
  CheckSize("y", y.size(), sizes.y);
  const ScopedThreads threads(threads_);
  PrimitiveRun& run = forward_.GetOrMake(dims, [&] { return MakeForward(dims); });
  OrDie("convolution forward", [&] {
    run.Run(stream_, workspace_, std::array{x.data(), w.data(), b.data()}, std::array{y.data()});
  });
}

void CpuKernels::ConvolutionBackwardData(const ConvolutionDims& dims, std::span<const float> dy,
                                         std::span<const float> w, std::span<float> dx) {
  const LayerSizes sizes = SizesOf(dims);
  if (sizes.x == 0 || sizes.y == 0) {
    reference_->ConvolutionBackwardData(dims, dy, w, dx);
    return;
  }
  CheckSize("dy", dy.size(), sizes.y);
  CheckSize("w", w.size(), sizes.w);
  CheckSize("dx", dx.size(), sizes.x);
  const ScopedThreads threads(threads_);
  PrimitiveRun& run = backward_data_.GetOrMake(dims, [&] { return MakeBackwardData(dims); });
  OrDie("convolution backward data", [&] {
    run.Run(stream_, workspace_, std::array{dy.data(), w.data()}, std::array{dx.data()});
  });
}

void CpuKernels::ConvolutionBackwardWeights(const ConvolutionDims& dims, std::span<const float> x,
                                            std::span<const float> dy, std::span<float> dw,
                                            std::span<float> db) {
  const LayerSizes sizes = SizesOf(dims);
  if (sizes.x == 0 || sizes.y == 0) {
    reference_->ConvolutionBackwardWeights(dims, x, dy, dw, db);
    return;
  }
  CheckSize("x", x.size(), sizes.x);
  CheckSize("dy", dy.size(), sizes.y);
  CheckSize("dw", dw.size(), sizes.w);
  CheckSize("db", db.size(), sizes.b);
  const ScopedThreads threads(threads_);
  PrimitiveRun& run = backward_weights_.GetOrMake(dims, [&] { return MakeBackwardWeights(dims); });
  OrDie("convolution backward weights", [&] {
    run.Run(stream_, workspace_, std::array{x.data(), dy.data()}, std::array{dw.data(), db.data()});
  });
}

}  // namespace cadre
