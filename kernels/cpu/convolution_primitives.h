// oneDNN's convolutions over our images (channels last) and weights, always by the direct
// algorithm. Winograd's is a fifth faster in the forward pass, but too inaccurate for comparisons
// of one plan with another.
//
// Images have `type`, fp32 or bf16. Weights, bias and their gradients are fp32; for bf16 images the
// weights are rounded to bf16 when they are converted to oneDNN's layout, and sums are fp32.
//
// Thread-safe (pure functions); see PrimitiveRun for the results.
#pragma once

#include <dnnl.hpp>
#include <span>

#include "kernels/backend.h"
#include "kernels/cpu/primitive_run.h"

namespace cadre {

// Requires, for all functions: no empty tensor; padding that oneDNN accepts: 0 <= near, -stride <
// far, and both smaller than the dilated kernel. Inputs x, w and, with_bias, b; output y.
PrimitiveRun MakeConvolutionForward(const ConvolutionDims& dims, DType type, bool with_bias,
                                    const dnnl::engine& engine);
// Inputs dy, w; output dx.
PrimitiveRun MakeConvolutionBackwardData(const ConvolutionDims& dims, DType type,
                                         const dnnl::engine& engine);
// The same, computed as a forward convolution of dy, which oneDNN runs a quarter faster: input and
// output channels are exchanged, and the taps are in reverse order. Inputs dy and w with its taps
// reversed (FlipTaps); output dx. Also requires: stride 1, one group.
PrimitiveRun MakeConvolutionBackwardDataByForward(const ConvolutionDims& dims, DType type,
                                                  const dnnl::engine& engine);
// Inputs x, dy; outputs dw and, with_bias, db. Converts fp32 images to oneDNN's blocks of 16
// channels, which its gradient of weights needs.
PrimitiveRun MakeConvolutionBackwardWeights(const ConvolutionDims& dims, DType type, bool with_bias,
                                            const dnnl::engine& engine);

// oneDNN accepts rows (columns) of the input that no window reaches only if they are fewer than a
// stride. ReachedPart is `dims` with the reached part of the input. Requires: no empty tensor.
ConvolutionDims ReachedPart(const ConvolutionDims& dims);

// part = the reached part of x.
void CutOut(const ConvolutionDims& dims, const ConvolutionDims& reached, ConstValues x,
            Values part);
// x = part where it is reached, 0 elsewhere.
void PutBack(const ConvolutionDims& dims, const ConvolutionDims& reached, ConstValues part,
             Values x);

}  // namespace cadre
