// Tests random extents: on exact data a back end must compute the same bits as the reference, so no
// tolerance can hide a wrong element. One back end computes all cases, as a worker's back end
// computes all layers.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "kernels/backend.h"
#include "kernels/extents.h"
#include "tests/kernels/random_dims.h"
#include "tests/kernels/testing.h"

namespace cadre {
namespace {

constexpr uint64_t kLargeCases = 25;

PoolingDims RandomPooling(uint64_t seed) {
  RandomNumbers draws(seed);
  const auto kind = static_cast<PoolKind>(draws.Next(0, 2));
  const int64_t channels = draws.Extent(40);
  return Pooling(kind, draws.Extent(3), channels, RandomWindow(draws, 1));
}

using RandomDimsTest = BackEndTest;
INSTANTIATE_TEST_SUITE_P(BackEnds, RandomDimsTest, ::testing::ValuesIn(BackEnds()), NameOf);

TEST_P(RandomDimsTest, Convolutions) {
  for (uint64_t seed = 0; seed < kRandomCases; ++seed) {
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
  for (uint64_t seed = 1000; seed < 1000 + kRandomCases; ++seed) {
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
