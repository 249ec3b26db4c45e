// Convolutions by the fastest of several algorithms. Which one is chosen depends on the extents
// only (convolution_route.h), never on a measurement, so that the same layer has the same bits on
// every rank and in every run:
//
//   1 x 1 kernels, stride 1    a matrix product over positions
//   backward of data           a forward convolution of dy with flipped weights, where oneDNN's
//                              forward is faster than its backward (stride 1)
//   backward of weights        weight_gradient.h, or oneDNN in its blocked layout
//   everything else            oneDNN's direct algorithm
//
// oneDNN rejects some extents: tensors without elements and windows entirely in the padding run on
// the reference loops, and inputs that no window reaches are cut off first (image_crop.h).
#include <algorithm>
#include <array>
#include <vector>

#include "kernels/cpu/column_sums.h"
#include "kernels/cpu/convolution_primitives.h"
#include "kernels/cpu/convolution_route.h"
#include "kernels/cpu/cpu_backend.h"
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

void CpuWindow::ConvolutionForward(const ConvolutionDims& dims, ConstValues x_values,
                                   std::span<const float> w, std::span<const float> b,
                                   Values y_values) {
  const auto x = x_values.floats();
  const auto y = y_values.floats();
  const LayerSizes sizes = SizesOf(dims);
  CheckSize("x", x.size(), sizes.x);
  CheckSize("w", w.size(), sizes.w);
  CheckSizeIfAny("b", b.size(), sizes.b);
  CheckSize("y", y.size(), sizes.y);
  if (TakesReference(dims, sizes)) {
    cpu_.reference->window().ConvolutionForward(dims, x, w, b, y);
    return;
  }
  if (const ConvolutionDims reached = Reached(dims); reached != dims) {
    std::vector<float> part(SizesOf(reached).x);
    CutOut(dims, reached, x, part.data());
    ConvolutionForward(reached, part, w, b, y);
    return;
  }
  const ScopedThreads threads(cpu_.threads);
  if (ForwardRouteOf(dims, !b.empty()) == ForwardRoute::kMatrix) {
    const int64_t in = dims.in_channels, out = dims.out_channels;
    MatrixProduct(OutPositions(dims), out, in, 1, {x.data(), in}, {w.data(), in, true}, y.data(),
                  out);
    return;
  }
  const ConvolutionKey key{dims, !b.empty()};
  PrimitiveRun& run = forward_.GetOrMake(key, [&] {
    return MakeConvolutionForward(dims, key.with_bias, ImageLayout::kChannelsLast, cpu_.engine);
  });
  const std::array inputs{x.data(), w.data(), b.data()};
  OrDie("convolution forward", [&] {
    run.Run(cpu_.stream, cpu_.workspace, std::span(inputs).first(b.empty() ? 2 : 3),
            std::array{y.data()});
  });
}

void CpuWindow::ConvolutionBackwardData(const ConvolutionDims& dims, ConstValues dy_values,
                                        std::span<const float> w, Values dx_values) {
  const auto dy = dy_values.floats();
  const auto dx = dx_values.floats();
  const LayerSizes sizes = SizesOf(dims);
  CheckSize("dy", dy.size(), sizes.y);
  CheckSize("w", w.size(), sizes.w);
  CheckSize("dx", dx.size(), sizes.x);
  if (TakesReference(dims, sizes)) {
    cpu_.reference->window().ConvolutionBackwardData(dims, dy, w, dx);
    return;
  }
  if (const ConvolutionDims reached = Reached(dims); reached != dims) {
    std::vector<float> part(SizesOf(reached).x);
    ConvolutionBackwardData(reached, dy, w, part);
    PutBack(dims, reached, part.data(), dx);
    return;
  }
  const ScopedThreads threads(cpu_.threads);
  const BackwardDataRoute route = BackwardDataRouteOf(dims);
  const float* weights = w.data();
  if (route == BackwardDataRoute::kMatrix) {
    const int64_t in = dims.in_channels, out = dims.out_channels;
    MatrixProduct(OutPositions(dims), in, out, 1, {dy.data(), out}, {weights, in}, dx.data(), in);
    return;
  }
  if (route == BackwardDataRoute::kForward) {
    auto* flipped = static_cast<float*>(cpu_.workspace.Get(CpuContext::kOwnSlot, w.size_bytes()));
    FlipTaps(cpu_.threads, dims.window.kernel_height * dims.window.kernel_width, w, flipped);
    weights = flipped;
  }
  PrimitiveRun& run = backward_data_.GetOrMake(dims, [&] {
    return route == BackwardDataRoute::kForward
               ? MakeConvolutionBackwardDataByForward(dims, cpu_.engine)
               : MakeConvolutionBackwardData(dims, ImageLayout::kChannelsLast, cpu_.engine);
  });
  OrDie("convolution backward data", [&] {
    run.Run(cpu_.stream, cpu_.workspace, std::array{dy.data(), weights}, std::array{dx.data()});
  });
}

void CpuWindow::ConvolutionBackwardWeights(const ConvolutionDims& dims, ConstValues x_values,
                                           ConstValues dy_values, std::span<float> dw,
                                           std::span<float> db) {
  const auto x = x_values.floats(), dy = dy_values.floats();
  const LayerSizes sizes = SizesOf(dims);
  CheckSize("x", x.size(), sizes.x);
  CheckSize("dy", dy.size(), sizes.y);
  CheckSize("dw", dw.size(), sizes.w);
  CheckSizeIfAny("db", db.size(), sizes.b);
  if (TakesReference(dims, sizes)) {
    cpu_.reference->window().ConvolutionBackwardWeights(dims, x, dy, dw, db);
    return;
  }
  if (const ConvolutionDims reached = Reached(dims); reached != dims) {
    std::vector<float> part(SizesOf(reached).x);
    CutOut(dims, reached, x, part.data());
    ConvolutionBackwardWeights(reached, part, dy, dw, db);
    return;
  }
  const ScopedThreads threads(cpu_.threads);
  const BackwardWeightsRoute route = BackwardWeightsRouteOf(dims);
  if (route == BackwardWeightsRoute::kMatrix) {
    const int64_t in = dims.in_channels, out = dims.out_channels, positions = OutPositions(dims);
    MatrixProduct(out, in, positions, 1, {dy.data(), out, true}, {x.data(), in}, dw.data(), in);
    if (!db.empty()) ColumnSums(cpu_.threads, positions, out, dy.data(), db);
    return;
  }
  if (route == BackwardWeightsRoute::kOuterProducts) {
    WeightGradient(dims).Run(cpu_.threads, cpu_.workspace, x, dy, dw, db);
    return;
  }
  const ConvolutionKey key{dims, !db.empty()};
  PrimitiveRun& run = backward_weights_.GetOrMake(key, [&] {
    return MakeConvolutionBackwardWeights(dims, key.with_bias, ImageLayout::kBlocks, cpu_.engine);
  });
  const std::array outputs{dw.data(), db.data()};
  OrDie("convolution backward weights", [&] {
    run.Run(cpu_.stream, cpu_.workspace, std::array{x.data(), dy.data()},
            std::span(outputs).first(db.empty() ? 1 : 2));
  });
}

}  // namespace cadre
