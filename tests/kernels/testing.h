// Data and extents for the tests of kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/kernels.h"

namespace cadre {

using Floats = std::vector<float>;

// Uniform in [-1, 1), the same for the same seed.
Floats Uniform(int64_t n, uint64_t seed);
// Integers in [-4, 4]: sums of products of them are exact in any order below 2^24 / 16 terms.
Floats SmallIntegers(int64_t n, uint64_t seed);
Floats Absolute(const Floats& values);
// Not-a-number everywhere: what an output that must be overwritten holds before.
Floats Garbage(int64_t n);

// Extents with their outputs worked out.
ConvolutionDims Convolution(int64_t batch, int64_t in_channels, int64_t height, int64_t width,
                            int64_t out_channels, int64_t kernel, int64_t stride, int64_t padding);
PoolingDims Pooling(PoolKind kind, int64_t batch, int64_t channels, int64_t height, int64_t width,
                    int64_t kernel, int64_t stride, int64_t padding);

// Each value of `got` within its own bound of `want`. A sum of k products in floating point, taken
// in any order, is off by at most k * 2^-24 / (1 - k * 2^-24) times the sum of the absolute
// products (Higham 2002, section 3.1); `magnitude` is that sum, for each output, and one more term
// allows for the rounding of the result.
void ExpectSumsNear(std::span<const float> got, std::span<const float> want,
                    std::span<const float> magnitude, int64_t terms);

}  // namespace cadre
