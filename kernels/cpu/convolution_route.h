// The choice among several algorithms of a convolution: a function of its extents and of the
// processor's instruction set, so that the same plan gives the same bits. The rules come from
// measurements of every layer of AlexNet, VGG-11, ResNet-18 and ResNet-50 on a core with AVX-512
// (bench_engine --profile --layers repeats them); rates below are shares of such a core's peak.
//
// Thread-safe (pure functions).
#pragma once

#include "kernels/backend.h"

namespace cadre {

enum class ForwardRoute {
  // oneDNN over channels last: 80 to 90 % nearly everywhere.
  kPrimitive,
  // A matrix product over positions: 1 x 1 kernels with more output than input channels, for which
  // oneDNN reaches 65 %.
  kMatrix,
};
ForwardRoute ForwardRouteOf(const ConvolutionDims& dims, bool with_bias);

enum class BackwardDataRoute {
  // oneDNN over channels last: with strides or groups.
  kPrimitive,
  // The forward convolution of dy: with stride 1, for which it is a tenth to a half faster.
  kForward,
  // A matrix product over positions: 1 x 1 kernels.
  kMatrix,
};
BackwardDataRoute BackwardDataRouteOf(const ConvolutionDims& dims);

enum class BackwardWeightsRoute {
  // oneDNN over blocks of 16 channels, with conversions: with groups, with few taps of one channel,
  // or without AVX-512.
  kBlocks,
  // WeightGradient: 75 %, compared with 40 to 70 % of oneDNN over channels last.
  kOuterProducts,
  // A matrix product over positions: 1 x 1 kernels.
  kMatrix,
};
BackwardWeightsRoute BackwardWeightsRouteOf(const ConvolutionDims& dims);

}  // namespace cadre
