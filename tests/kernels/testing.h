// Data, extents and comparisons for the tests of kernels.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "kernels/backend.h"

namespace cadre {

using Floats = std::vector<float>;

// Uniform in [-1, 1), the same for the same seed.
Floats Uniform(int64_t n, uint64_t seed);
// Multiples of 1/8 in [-1, 1]: sums of products of two are exact in any order below 2^18 terms.
Floats Eighths(int64_t n, uint64_t seed);
// 0 to n - 1 in random order, so that no two are equal.
Floats Shuffled(int64_t n, uint64_t seed);
Floats Absolute(const Floats& values);
// NaN everywhere: the initial value of outputs, which operations must overwrite.
Floats Garbage(int64_t n);
// Random whole numbers in [0, below): tokens or labels.
Floats RandomIds(int64_t n, int64_t below);
std::vector<int32_t> RandomLabels(int64_t n, int64_t below);

// The bits of a value as bf16, rounded to nearest, ties to even; and the value of such bits.
uint16_t ToBf16(float value);
float FromBf16(uint16_t bits);
Floats Bf16Rounded(Floats values);
// A random whole number in [low, high].
int64_t Draw(int64_t low, int64_t high, uint64_t seed, uint64_t counter);

// How many windows fit.
int64_t WindowsAlong(int64_t in, int64_t kernel, int64_t stride, int64_t dilation,
                     int64_t padding_on_both_sides);
// `window` with the number of outputs that fit with this padding at the far edges.
WindowDims Fitted(WindowDims window, int64_t pad_bottom, int64_t pad_right);
// Square, the same on all sides.
WindowDims Window(int64_t height, int64_t width, int64_t kernel, int64_t stride = 1,
                  int64_t padding = 0, int64_t dilation = 1);
ConvolutionDims Convolution(int64_t batch, int64_t in_channels, int64_t out_channels,
                            const WindowDims& window, int64_t groups = 1);
PoolingDims Pooling(PoolKind kind, int64_t batch, int64_t channels, const WindowDims& window);

// Convolutions that networks rarely have: kernels of one row or column, padding at one end only,
// rows that no window reaches, outputs beyond the edge, dilation, groups, large strides and
// kernels.
std::vector<ConvolutionDims> UnusualConvolutions();

void PrintTo(const WindowDims& dims, std::ostream* out);
void PrintTo(const ConvolutionDims& dims, std::ostream* out);
void PrintTo(const PoolingDims& dims, std::ostream* out);
void PrintTo(const FullyConnectedDims& dims, std::ostream* out);
void PrintTo(const AttentionDims& dims, std::ostream* out);

// A back end that the tests of operations run on.
struct BackEnd {
  std::string name;
  std::function<std::unique_ptr<Backend>()> make;
  // Why it cannot be tested on this machine; empty where it can.
  std::string missing;
};
// Each test program has its own: back ends of the host in host_back_ends.cc (the reference, the CPU
// with one thread, the CPU with three), of a GPU and of an emulated one in cuda_back_ends.cc.
std::vector<BackEnd> BackEnds();
void PrintTo(const BackEnd& back_end, std::ostream* out);
std::string NameOf(const ::testing::TestParamInfo<BackEnd>& info);

class BackEndTest : public ::testing::TestWithParam<BackEnd> {
 protected:
  void SetUp() override {
    if (!GetParam().missing.empty()) GTEST_SKIP() << GetParam().missing;
  }

  const std::unique_ptr<Backend> kernels_ =
      GetParam().missing.empty() ? GetParam().make() : nullptr;
};

// Each value of `got` within its own bound of `want`. A sum of k products in floating point, taken
// in any order, is off by at most k * 2^-24 / (1 - k * 2^-24) times the sum of the absolute
// products (Higham 2002, section 3.1); `magnitude` is that sum, for each output, and one more term
// allows for the rounding of the result.
void ExpectSumsNear(std::span<const float> got, std::span<const float> want,
                    std::span<const float> magnitude, int64_t terms);

// Each value within `tolerance` of what is wanted, relative to it where it is larger than one.
void ExpectNear(std::span<const float> got, std::span<const float> want, double tolerance);

// Forward and both backward passes of an operation over the same data. Without b there is no bias.
struct LayerOutputs {
  Floats y, dx, dw, db;
};
LayerOutputs RunLayer(Backend& kernels, const ConvolutionDims& dims, const Floats& x,
                      const Floats& w, const Floats& b, const Floats& dy);
LayerOutputs RunLayer(Backend& kernels, const FullyConnectedDims& dims, const Floats& x,
                      const Floats& w, const Floats& b, const Floats& dy);
struct PoolingOutputs {
  Floats y, dx;
  std::vector<int32_t> argmax;
};
PoolingOutputs RunPooling(Backend& kernels, const PoolingDims& dims, const Floats& x,
                          const Floats& dy);
struct AttentionOutputs {
  Floats probabilities, context, dqkv;
};
AttentionOutputs RunAttention(Backend& kernels, const AttentionDims& dims, const Floats& qkv,
                              const Floats& dcontext);
struct LayerNormOutputs {
  Floats y, mean, inverse, dx, dscale, dshift;
};
LayerNormOutputs RunLayerNorm(Backend& kernels, const RowsDims& dims, const Floats& x,
                              const Floats& scale, const Floats& shift, const Floats& dy);
struct LrnOutputs {
  Floats y, d, dx;
};
LrnOutputs RunLrn(Backend& kernels, const LrnDims& dims, const Floats& x, const Floats& dy);

void ExpectEqual(const LayerOutputs& got, const LayerOutputs& want);
// Checks of a convolution or fully connected layer: its sums are near the reference's; they are
// equal on exact data; and a repeated call, and a new CPU back end, compute the same bits.
template <typename Dims>
void ExpectLayerNearReference(Backend& kernels, const Dims& dims);
template <typename Dims>
void ExpectLayerExact(Backend& kernels, const Dims& dims, bool with_bias = true);
template <typename Dims>
void ExpectLayerRepeats(Backend& cpu, const Dims& dims);

double Dot(std::span<const float> a, std::span<const float> b);

// `gradient` is that of <dy, forward()> by `values`: central differences along random directions.
// Directions are long (every value moves), so that a wrong element anywhere shows. With steps of
// 2^-7 the neglected third-order terms are below a thousandth for the smooth functions here; the
// outputs' own rounding is allowed for on top.
// Requires: forward() reads `values`, and is smooth within a step of them.
void ExpectGradient(Floats& values, const Floats& gradient, const Floats& dy,
                    const std::function<Floats()>& forward);

}  // namespace cadre
