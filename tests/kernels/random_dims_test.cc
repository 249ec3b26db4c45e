// Tests random extents: on exact data a back end must compute the same bits as the reference, so no
// tolerance can hide a wrong element. One back end computes all cases, as a worker's back end
// computes all layers.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "kernels/backend.h"
#include "kernels/extents.h"
#include "tests/kernels/testing.h"

namespace cadre {
namespace {

constexpr uint64_t kCases = 200;
constexpr uint64_t kLargeCases = 25;

// The random numbers of one case, in sequence.
class RandomNumbers {
 public:
  explicit RandomNumbers(uint64_t seed) : seed_(seed) {}
  int64_t Next(int64_t low, int64_t high) { return Draw(low, high, seed_, counter_++); }
  // Zero in one of twenty cases.
  int64_t Extent(int64_t high) { return Next(0, 19) == 0 ? 0 : Next(1, high); }

 private:
  const uint64_t seed_;
  uint64_t counter_ = 0;
};

// A window with as many outputs as fit, or one more or fewer.
WindowDims RandomWindow(RandomNumbers& draws, int64_t max_dilation) {
  WindowDims w{.in_height = draws.Extent(12),
               .in_width = draws.Extent(12),
               .kernel_height = draws.Next(1, 5),
               .kernel_width = draws.Next(1, 5),
               .stride_height = draws.Next(1, 3),
               .stride_width = draws.Next(1, 3),
               .dilation = draws.Next(1, max_dilation)};
  w.pad_top = draws.Next(0, w.kernel_height);
  w.pad_left = draws.Next(0, w.kernel_width);
  w = Fitted(w, draws.Next(0, w.kernel_height), draws.Next(0, w.kernel_width));
  w.out_height = std::max<int64_t>(0, w.out_height + draws.Next(-1, 1));
  w.out_width = std::max<int64_t>(0, w.out_width + draws.Next(-1, 1));
  return w;
}

ConvolutionDims RandomConvolution(uint64_t seed) {
  RandomNumbers draws(seed);
  const int64_t groups = draws.Next(0, 2) > 0 ? 1 : draws.Next(1, 4);
  // In every third case the channels fill whole vectors.
  const int64_t unit = groups * (draws.Next(0, 2) == 0 ? 16 : 1);
  const int64_t in_channels = unit * draws.Extent(3), out_channels = unit * draws.Extent(5);
  return Convolution(draws.Extent(3), in_channels, out_channels, RandomWindow(draws, 3), groups);
}

PoolingDims RandomPooling(uint64_t seed) {
  RandomNumbers draws(seed);
  const auto kind = static_cast<PoolKind>(draws.Next(0, 2));
  const int64_t channels = draws.Extent(40);
  return Pooling(kind, draws.Extent(3), channels, RandomWindow(draws, 1));
}

using RandomDimsTest = BackEndTest;
INSTANTIATE_TEST_SUITE_P(BackEnds, RandomDimsTest, ::testing::ValuesIn(BackEnds()), NameOf);

TEST_P(RandomDimsTest, Convolutions) {
  for (uint64_t seed = 0; seed < kCases; ++seed) {
    const ConvolutionDims dims = RandomConvolution(seed);
    SCOPED_TRACE(::testing::Message() << "seed " << seed << ": " << ::testing::PrintToString(dims));
    ExpectLayerExact(*kernels_, dims, /*with_bias=*/seed % 2 == 0);
    if (HasFailure()) return;
  }
}

// These are large enough that the back end divides them by images, rows and channels.
TEST(CpuRandomDimsTest, LargeConvolutions) {
  const auto cpu = MakeCpuBackend(2);
  for (uint64_t seed = 2000; seed < 2000 + kLargeCases; ++seed) {
    RandomNumbers draws(seed);
    ConvolutionDims dims = RandomConvolution(seed);
    dims.batch = draws.Next(1, 5);
    dims.groups = 1;
    dims.in_channels = draws.Next(1, 50);
    dims.out_channels = draws.Next(1, 40);
    WindowDims& w = dims.window;
    w.in_height = draws.Next(12, 40);
    w.in_width = draws.Next(12, 40);
    w = Fitted(w, draws.Next(0, w.kernel_height), draws.Next(0, w.kernel_width));
    SCOPED_TRACE(::testing::Message() << "seed " << seed << ": " << ::testing::PrintToString(dims));
    ExpectLayerExact(*cpu, dims);
    if (HasFailure()) return;
  }
}

// Averages are divided by numbers up to 25, so the last bits may differ: by two roundings (for a
// product with the inverse) of numbers up to one, and by two for each term of a gradient.
TEST_P(RandomDimsTest, Poolings) {
  const auto reference = MakeReferenceBackend();
  for (uint64_t seed = 1000; seed < 1000 + kCases; ++seed) {
    const PoolingDims dims = RandomPooling(seed);
    SCOPED_TRACE(::testing::Message() << "seed " << seed << ": " << ::testing::PrintToString(dims));
    const LayerSizes sizes = SizesOf(dims);
    const Floats x = Eighths(sizes.x, 1), dy = Eighths(sizes.y, 2);
    const double tolerance = dims.kind == PoolKind::kMax ? 0 : 4e-6;
    const PoolingOutputs got = RunPooling(*kernels_, dims, x, dy);
    const PoolingOutputs want = RunPooling(*reference, dims, x, dy);
    ASSERT_EQ(got.argmax, want.argmax);
    ASSERT_NO_FATAL_FAILURE(ExpectNear(got.y, want.y, tolerance));
    ASSERT_NO_FATAL_FAILURE(ExpectNear(got.dx, want.dx, tolerance));
  }
}

}  // namespace
}  // namespace cadre
