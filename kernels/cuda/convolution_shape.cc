#include "kernels/cuda/convolution_shape.h"

#include <algorithm>

#include "kernels/extents.h"

namespace cadre {
namespace {

ConvolutionSide SideOf(int64_t in, int64_t out, int64_t kernel, int64_t near, int64_t far,
                       int64_t stride) {
  ConvolutionSide side{.in = in, .out = out, .kernel = kernel, .pad_near = near};
  // With fewer unused rows than a stride no further window fits, so the rows need not be left out.
  if (far >= 0) {
    side.pad_far = far;
  } else if (-far >= stride) {
    side.in = std::max<int64_t>(0, in + far);
  }
  return side;
}

}  // namespace

ConvolutionShape ShapeOf(const ConvolutionDims& dims) {
  const WindowDims& w = dims.window;
  const WindowPadding padding = PaddingOf(w);
  ConvolutionShape shape{.height = SideOf(w.in_height, w.out_height, w.kernel_height, padding.top,
                                          padding.bottom, w.stride),
                         .width = SideOf(w.in_width, w.out_width, w.kernel_width, padding.left,
                                         padding.right, w.stride),
                         .in_row = w.in_width * dims.in_channels,
                         .in_image = w.in_height * w.in_width * dims.in_channels,
                         .reorders_weights = w.kernel_height * w.kernel_width > 1 &&
                                             dims.in_channels / dims.groups > 1};
  shape.blind = shape.height.in == 0 || shape.width.in == 0;
  shape.cropped = shape.height.in < w.in_height || shape.width.in < w.in_width;
  return shape;
}

int64_t CommonAlignment(const void* a, const void* b, const void* c) {
  const uintptr_t bits = reinterpret_cast<uintptr_t>(a) | reinterpret_cast<uintptr_t>(b) |
                         reinterpret_cast<uintptr_t>(c) | 16;
  return bits & (~bits + 1);
}

}  // namespace cadre
