// oneDNN's convolutions over our images (channels last) and weights. The direct algorithm
// throughout: Winograd's is a fifth faster forward, but loses bits that the comparison of one plan
// with another needs.
//
// Thread-safe (pure functions); see PrimitiveRun for what they make.
#pragma once

#include <dnnl.hpp>

#include "kernels/backend.h"
#include "kernels/cpu/primitive_run.h"

namespace cadre {

// How oneDNN sees the images. Ours are channels last; blocks of 16 channels must be converted to
// and from.
enum class ImageLayout { kChannelsLast, kBlocks };

// Requires (all): no empty tensor; padding that oneDNN takes: 0 <= near, -stride < far, and both
// smaller than the dilated kernel.
// Inputs x, w and, with_bias, b; output y.
PrimitiveRun MakeConvolutionForward(const ConvolutionDims& dims, bool with_bias, ImageLayout layout,
                                    const dnnl::engine& engine);
// Inputs dy, w; output dx.
PrimitiveRun MakeConvolutionBackwardData(const ConvolutionDims& dims, ImageLayout layout,
                                         const dnnl::engine& engine);
// The same as a forward convolution of dy, which oneDNN runs a quarter faster: out and in
// exchanged, the taps in opposite order. Inputs dy and w with its taps reversed (FlipTaps); output
// dx. Requires: also stride 1, one group.
PrimitiveRun MakeConvolutionBackwardDataByForward(const ConvolutionDims& dims,
                                                  const dnnl::engine& engine);
// Inputs x, dy; outputs dw and, with_bias, db.
PrimitiveRun MakeConvolutionBackwardWeights(const ConvolutionDims& dims, bool with_bias,
                                            ImageLayout layout, const dnnl::engine& engine);

}  // namespace cadre
