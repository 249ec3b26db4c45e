#include "kernels/cpu/convolution_route.h"

#include "kernels/cpu/weight_gradient.h"

namespace cadre {
namespace {

// At each position, y is x times a matrix.
bool IsMatrix(const ConvolutionDims& d) {
  const WindowDims& w = d.window;
  return d.groups == 1 && w.kernel_height == 1 && w.kernel_width == 1 && w.stride == 1 &&
         w.pad_top == 0 && w.pad_left == 0 && w.in_height == w.out_height &&
         w.in_width == w.out_width;
}

}  // namespace

ForwardRoute ForwardRouteOf(const ConvolutionDims& dims, bool with_bias) {
  // From this many input channels on, oneDNN splits the sum over them.
  constexpr int64_t kManyChannels = 2048;
  const bool widens = dims.out_channels > dims.in_channels || dims.in_channels >= kManyChannels;
  return IsMatrix(dims) && widens && !with_bias ? ForwardRoute::kMatrix : ForwardRoute::kPrimitive;
}

BackwardDataRoute BackwardDataRouteOf(const ConvolutionDims& dims) {
  if (IsMatrix(dims)) return BackwardDataRoute::kMatrix;
  return dims.groups == 1 && dims.window.stride == 1 ? BackwardDataRoute::kForward
                                                     : BackwardDataRoute::kPrimitive;
}

BackwardWeightsRoute BackwardWeightsRouteOf(const ConvolutionDims& dims) {
  if (IsMatrix(dims)) return BackwardWeightsRoute::kMatrix;
  // Fewer columns than this leave most of WeightGradient's registers empty.
  constexpr int64_t kMinColumns = 16;
  const int64_t columns = dims.in_channels * dims.window.kernel_height * dims.window.kernel_width;
  return columns >= kMinColumns && WeightGradient::Takes(dims)
             ? BackwardWeightsRoute::kOuterProducts
             : BackwardWeightsRoute::kBlocks;
}

}  // namespace cadre
