// Convolutions: by which route, and what oneDNN does not take as it is.
#include <algorithm>
#include <array>
#include <vector>

#include "kernels/cpu/column_sums.h"
#include "kernels/cpu/convolution_primitives.h"
#include "kernels/cpu/convolution_route.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/image_crop.h"
#include "kernels/cpu/matrix_product.h"
#include "kernels/cpu/threads.h"
#include "kernels/cpu/weight_gradient.h"
#include "kernels/extents.h"

namespace cadre {
namespace {

// Tensors without elements, and windows that may lie wholly in the padding. Both are rare and
// small, and the reference loops take them.
bool TakesReference(const ConvolutionDims& dims, const LayerSizes& sizes) {
  if (sizes.x == 0 || sizes.y == 0) return true;
  const WindowDims& w = dims.window;
  const WindowPadding padding = PaddingOf(w);
  const int64_t height = w.dilation * (w.kernel_height - 1) + 1;
  const int64_t width = w.dilation * (w.kernel_width - 1) + 1;
  return std::max(padding.top, padding.bottom) >= height ||
         std::max(padding.left, padding.right) >= width;
}

int64_t OutPositions(const ConvolutionDims& d) {
  return d.batch * d.window.out_height * d.window.out_width;
}

// flipped[channel pair][taps] = w[channel pair][taps, last first].
void FlipTaps(int threads, int64_t taps, std::span<const float> w, float* flipped) {
  const auto pairs = static_cast<int64_t>(w.size()) / taps;
  ForParts(threads, pairs, taps, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      std::reverse_copy(w.data() + i * taps, w.data() + (i + 1) * taps, flipped + i * taps);
    }
  });
}

}  // namespace

void CpuKernels::ConvolutionForward(const ConvolutionDims& dims, std::span<const float> x,
                                    std::span<const float> w, std::span<const float> b,
                                    std::span<float> y) {
  const LayerSizes sizes = SizesOf(dims);
  CheckSize("x", x.size(), sizes.x);
  CheckSize("w", w.size(), sizes.w);
  CheckSizeIfAny("b", b.size(), sizes.b);
  CheckSize("y", y.size(), sizes.y);
  if (TakesReference(dims, sizes)) {
    reference_->ConvolutionForward(dims, x, w, b, y);
    return;
  }
  if (const ConvolutionDims reached = Reached(dims); reached != dims) {
    std::vector<float> part(static_cast<size_t>(SizesOf(reached).x));
    CutOut(dims, reached, x, part.data());
    ConvolutionForward(reached, part, w, b, y);
    return;
  }
  const ScopedThreads threads(threads_);
  if (ForwardRouteOf(dims, !b.empty()) == ForwardRoute::kMatrix) {
    const int64_t in = dims.in_channels, out = dims.out_channels;
    MatrixProduct(OutPositions(dims), out, in, 1, {x.data(), in}, {w.data(), in, true}, y.data(),
                  out);
    return;
  }
  const ConvolutionKey key{dims, !b.empty()};
  PrimitiveRun& run = forward_.GetOrMake(key, [&] {
    return MakeConvolutionForward(dims, key.with_bias, ImageLayout::kChannelsLast, engine_);
  });
  const std::array inputs{x.data(), w.data(), b.data()};
  OrDie("convolution forward", [&] {
    run.Run(stream_, workspace_, std::span(inputs).first(b.empty() ? 2 : 3), std::array{y.data()});
  });
}

void CpuKernels::ConvolutionBackwardData(const ConvolutionDims& dims, std::span<const float> dy,
                                         std::span<const float> w, std::span<float> dx) {
  const LayerSizes sizes = SizesOf(dims);
  CheckSize("dy", dy.size(), sizes.y);
  CheckSize("w", w.size(), sizes.w);
  CheckSize("dx", dx.size(), sizes.x);
  if (TakesReference(dims, sizes)) {
    reference_->ConvolutionBackwardData(dims, dy, w, dx);
    return;
  }
  if (const ConvolutionDims reached = Reached(dims); reached != dims) {
    std::vector<float> part(static_cast<size_t>(SizesOf(reached).x));
    ConvolutionBackwardData(reached, dy, w, part);
    PutBack(dims, reached, part.data(), dx);
    return;
  }
  const ScopedThreads threads(threads_);
  const BackwardDataRoute route = BackwardDataRouteOf(dims);
  const float* weights = w.data();
  if (route == BackwardDataRoute::kMatrix) {
    const int64_t in = dims.in_channels, out = dims.out_channels;
    MatrixProduct(OutPositions(dims), in, out, 1, {dy.data(), out}, {weights, in}, dx.data(), in);
    return;
  }
  if (route == BackwardDataRoute::kForward) {
    auto* flipped = static_cast<float*>(workspace_.Get(kOwnSlot, w.size_bytes()));
    FlipTaps(threads_, dims.window.kernel_height * dims.window.kernel_width, w, flipped);
    weights = flipped;
  }
  PrimitiveRun& run = backward_data_.GetOrMake(dims, [&] {
    return route == BackwardDataRoute::kForward
               ? MakeConvolutionBackwardDataByForward(dims, engine_)
               : MakeConvolutionBackwardData(dims, ImageLayout::kChannelsLast, engine_);
  });
  OrDie("convolution backward data", [&] {
    run.Run(stream_, workspace_, std::array{dy.data(), weights}, std::array{dx.data()});
  });
}

void CpuKernels::ConvolutionBackwardWeights(const ConvolutionDims& dims, std::span<const float> x,
                                            std::span<const float> dy, std::span<float> dw,
                                            std::span<float> db) {
  const LayerSizes sizes = SizesOf(dims);
  CheckSize("x", x.size(), sizes.x);
  CheckSize("dy", dy.size(), sizes.y);
  CheckSize("dw", dw.size(), sizes.w);
  CheckSizeIfAny("db", db.size(), sizes.b);
  if (TakesReference(dims, sizes)) {
    reference_->ConvolutionBackwardWeights(dims, x, dy, dw, db);
    return;
  }
  if (const ConvolutionDims reached = Reached(dims); reached != dims) {
    std::vector<float> part(static_cast<size_t>(SizesOf(reached).x));
    CutOut(dims, reached, x, part.data());
    ConvolutionBackwardWeights(reached, part, dy, dw, db);
    return;
  }
  const ScopedThreads threads(threads_);
  const BackwardWeightsRoute route = BackwardWeightsRouteOf(dims);
  if (route == BackwardWeightsRoute::kMatrix) {
    const int64_t in = dims.in_channels, out = dims.out_channels, positions = OutPositions(dims);
    MatrixProduct(out, in, positions, 1, {dy.data(), out, true}, {x.data(), in}, dw.data(), in);
    if (!db.empty()) ColumnSums(threads_, positions, out, dy.data(), db);
    return;
  }
  if (route == BackwardWeightsRoute::kOuterProducts) {
    WeightGradient(dims).Run(threads_, workspace_, x, dy, dw, db);
    return;
  }
  const ConvolutionKey key{dims, !db.empty()};
  PrimitiveRun& run = backward_weights_.GetOrMake(key, [&] {
    return MakeConvolutionBackwardWeights(dims, key.with_bias, ImageLayout::kBlocks, engine_);
  });
  const std::array outputs{dw.data(), db.data()};
  OrDie("convolution backward weights", [&] {
    run.Run(stream_, workspace_, std::array{x.data(), dy.data()},
            std::span(outputs).first(db.empty() ? 1 : 2));
  });
}

}  // namespace cadre
