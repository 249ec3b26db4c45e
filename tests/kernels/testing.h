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
// 0 to n - 1 in random order: no two alike.
Floats Shuffled(int64_t n, uint64_t seed);
Floats Absolute(const Floats& values);
// Not-a-number everywhere: what an output that must be overwritten holds before.
Floats Garbage(int64_t n);
// A whole number in [low, high].
int64_t Draw(int64_t low, int64_t high, uint64_t seed, uint64_t counter);

// How many windows fit.
int64_t WindowsAlong(int64_t in, int64_t kernel, int64_t stride, int64_t dilation,
                     int64_t padding_on_both_sides);
// `window` with its outputs worked out: as many as fit with this padding at the far edges.
WindowDims Fitted(WindowDims window, int64_t pad_bottom, int64_t pad_right);
// Square, the same on all sides.
WindowDims Window(int64_t height, int64_t width, int64_t kernel, int64_t stride = 1,
                  int64_t padding = 0, int64_t dilation = 1);
ConvolutionDims Convolution(int64_t batch, int64_t in_channels, int64_t out_channels,
                            const WindowDims& window, int64_t groups = 1);
PoolingDims Pooling(PoolKind kind, int64_t batch, int64_t channels, const WindowDims& window);

void PrintTo(const WindowDims& dims, std::ostream* out);
void PrintTo(const ConvolutionDims& dims, std::ostream* out);
void PrintTo(const PoolingDims& dims, std::ostream* out);
void PrintTo(const FullyConnectedDims& dims, std::ostream* out);
void PrintTo(const AttentionDims& dims, std::ostream* out);

// What every back end must do, word for word, is tested with each of these.
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

double Dot(std::span<const float> a, std::span<const float> b);

// `gradient` is that of <dy, forward()> by `values`: central differences along random directions.
// Directions are long (every value moves), so that a wrong element anywhere shows. With steps of
// 2^-7 the neglected third-order terms are below a thousandth for the smooth functions here; the
// outputs' own rounding is allowed for on top.
// Requires: forward() reads `values`, and is smooth within a step of them.
void ExpectGradient(Floats& values, const Floats& gradient, const Floats& dy,
                    const std::function<Floats()>& forward);

}  // namespace cadre
