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
// State tensors of an optimizer: States{m, v}.
using States = std::vector<FloatSpan>;

// Random numbers, uniform in [-1, 1). The same seed gives the same numbers.
Floats Uniform(int64_t n, uint64_t seed);
// Random multiples of 1/8 in [-1, 1]. Sums of less than 2^18 products of two are exact in any
// order.
Floats Eighths(int64_t n, uint64_t seed);
// The numbers 0 to n - 1 in random order.
Floats Shuffled(int64_t n, uint64_t seed);
Floats Absolute(const Floats& values);
// n NaNs: the initial values of outputs, which operations must overwrite.
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

// The number of windows that fit along one dimension.
int64_t WindowsAlong(int64_t in, int64_t kernel, int64_t stride, int64_t dilation,
                     int64_t padding_on_both_sides);
// `window` with as many outputs as fit with this padding at the bottom and right edges.
WindowDims Fitted(WindowDims window, int64_t pad_bottom, int64_t pad_right);
// A square window with the same padding on all sides.
WindowDims Window(int64_t height, int64_t width, int64_t kernel, int64_t stride = 1,
                  int64_t padding = 0, int64_t dilation = 1);
ConvolutionDims Convolution(int64_t batch, int64_t in_channels, int64_t out_channels,
                            const WindowDims& window, int64_t groups = 1);
PoolingDims Pooling(PoolKind kind, int64_t batch, int64_t channels, const WindowDims& window);

// Convolutions that networks rarely have: with kernels of one row or column, padding at one end
// only, rows that no window reaches, outputs beyond the edge, dilation, groups, large strides and
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
  // Why it cannot be tested on this machine; empty if it can.
  std::string missing;
};
// The back ends that a test program tests: those of the host (back_end_test.cc: the reference, the
// CPU with one thread, the CPU with three), or those of a GPU or an emulated one
// (cuda_back_ends.cc).
std::vector<BackEnd> BackEnds();
// The same, and an emulated GPU with as many processors as an H100, if GPUs are emulated: for the
// operations whose launch shapes depend on that number.
std::vector<BackEnd> BackEndsOfEverySize();
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

// Expects that each sum in `got` differs from `want` by rounding errors only. A sum of k products
// in fp32, in any order, has an error of at most k * 2^-24 / (1 - k * 2^-24) times the sum of the
// absolute products (Higham 2002, section 3.1). `magnitude` is that sum for each output; one more
// term allows for the rounding of the result.
void ExpectSumsNear(std::span<const float> got, std::span<const float> want,
                    std::span<const float> magnitude, int64_t terms);

// Expects that each value is within `tolerance` of the one in `want`, relative to that value if it
// is larger than one.
void ExpectNear(std::span<const float> got, std::span<const float> want, double tolerance);

// Results of forward and of both backward passes of a layer on the same data. Without b there is no
// bias.
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
  Floats context, statistics, dqkv;
};
AttentionOutputs RunAttention(Backend& kernels, const AttentionDims& dims, const Floats& qkv,
                              const Floats& dcontext, const Floats& ids = {});
struct LayerNormOutputs {
  Floats y, mean, inverse, dx, dscale, dshift;
};
LayerNormOutputs RunLayerNorm(Backend& kernels, const RowsDims& dims, const Floats& x,
                              const Floats& scale, const Floats& shift, const Floats& dy);
struct LrnOutputs {
  Floats y, d, dx;
};
LrnOutputs RunLrn(Backend& kernels, const LrnDims& dims, const Floats& x, const Floats& dy);

// The elements of a, then those of b, as the sums of a batch norm.
std::vector<double> Sums(const Floats& a, const Floats& b);

// Expects that a batch norm fused with an addition, a ReLU and a sum of gradients computes the bits
// of these operations one after the other.
void ExpectFusedBatchNormEqualsSeparate(Backend& kernels, const RowsDims& dims);

void ExpectEqual(const LayerOutputs& got, const LayerOutputs& want);
// Checks of a convolution or fully connected layer: its sums are near the reference's; they are
// equal on exact data; and a repeated call and a new CPU back end compute the same bits.
template <typename Dims>
void ExpectLayerNearReference(Backend& kernels, const Dims& dims);
template <typename Dims>
void ExpectLayerExact(Backend& kernels, const Dims& dims, bool with_bias = true);
template <typename Dims>
void ExpectLayerRepeats(Backend& cpu, const Dims& dims);
// Expects that the reference's gradients of such a layer are those of its outputs (ExpectGradient).
template <typename Dims>
void ExpectLayerGradients(const Dims& dims);

double Dot(std::span<const float> a, std::span<const float> b);

// Expects that `gradient` is the gradient of <dy, forward()> with respect to `values`, by central
// differences along random directions. A direction changes every value, so that any wrong element
// is detected. With steps of 2^-7 the neglected third-order terms are below a thousandth for the
// smooth functions here; the tolerance also allows for the rounding of the outputs. Requires:
// forward() reads `values`, is smooth within a step of them, and is the reference's, whose rounding
// does not depend on the back end that computed `gradient`.
void ExpectGradient(Floats& values, const Floats& gradient, const Floats& dy,
                    const std::function<Floats()>& forward);

}  // namespace cadre
