// Dims drawn by seed: whatever they are, a back end computes what the reference does. Data is
// exact, so "the same" is to the bit, and a wrong element cannot hide in a tolerance. One back end
// sees all of them, as a worker's sees its layers.
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

// Numbers for one case, one after the other.
class Dice {
 public:
  explicit Dice(uint64_t seed) : seed_(seed) {}
  int64_t Roll(int64_t low, int64_t high) { return Draw(low, high, seed_, counter_++); }
  // Mostly small, now and then none.
  int64_t Extent(int64_t high) { return Roll(0, 19) == 0 ? 0 : Roll(1, high); }

 private:
  const uint64_t seed_;
  uint64_t counter_ = 0;
};

// A window with as many outputs as may be, as few, or more than the image has room for.
WindowDims RandomWindow(Dice& dice, int64_t max_dilation) {
  WindowDims w{.in_height = dice.Extent(12),
               .in_width = dice.Extent(12),
               .kernel_height = dice.Roll(1, 5),
               .kernel_width = dice.Roll(1, 5),
               .stride = dice.Roll(1, 3),
               .dilation = dice.Roll(1, max_dilation)};
  w.pad_top = dice.Roll(0, w.kernel_height);
  w.pad_left = dice.Roll(0, w.kernel_width);
  w = Fitted(w, dice.Roll(0, w.kernel_height), dice.Roll(0, w.kernel_width));
  w.out_height = std::max<int64_t>(0, w.out_height + dice.Roll(-1, 1));
  w.out_width = std::max<int64_t>(0, w.out_width + dice.Roll(-1, 1));
  return w;
}

ConvolutionDims RandomConvolution(uint64_t seed) {
  Dice dice(seed);
  const int64_t groups = dice.Roll(0, 2) > 0 ? 1 : dice.Roll(1, 4);
  // Every third case has whole vectors of channels.
  const int64_t unit = groups * (dice.Roll(0, 2) == 0 ? 16 : 1);
  const int64_t in_channels = unit * dice.Extent(3), out_channels = unit * dice.Extent(5);
  return Convolution(dice.Extent(3), in_channels, out_channels, RandomWindow(dice, 3), groups);
}

PoolingDims RandomPooling(uint64_t seed) {
  Dice dice(seed);
  const auto kind = static_cast<PoolKind>(dice.Roll(0, 2));
  const int64_t channels = dice.Extent(40);
  return Pooling(kind, dice.Extent(3), channels, RandomWindow(dice, 1));
}

void ExpectTheReferences(Backend& tested, Backend& reference, const ConvolutionDims& dims,
                         bool bias) {
  const LayerSizes sizes = SizesOf(dims);
  const Floats x = Eighths(sizes.x, 1), w = Eighths(sizes.w, 2), dy = Eighths(sizes.y, 3);
  const Floats b = bias ? Eighths(sizes.b, 4) : Floats();
  Floats got = Garbage(sizes.y), want = got;
  tested.window().ConvolutionForward(dims, x, w, b, got);
  reference.window().ConvolutionForward(dims, x, w, b, want);
  ASSERT_EQ(got, want);
  got = want = Garbage(sizes.x);
  tested.window().ConvolutionBackwardData(dims, dy, w, got);
  reference.window().ConvolutionBackwardData(dims, dy, w, want);
  ASSERT_EQ(got, want);
  got = want = Garbage(sizes.w);
  Floats db = Garbage(std::ssize(b)), want_db = db;
  tested.window().ConvolutionBackwardWeights(dims, x, dy, got, db);
  reference.window().ConvolutionBackwardWeights(dims, x, dy, want, want_db);
  ASSERT_EQ(got, want);
  ASSERT_EQ(db, want_db);
}

using RandomDimsTest = BackEndTest;
INSTANTIATE_TEST_SUITE_P(BackEnds, RandomDimsTest, ::testing::ValuesIn(BackEnds()), NameOf);

TEST_P(RandomDimsTest, Convolutions) {
  const auto reference = MakeReferenceBackend();
  for (uint64_t seed = 0; seed < kCases; ++seed) {
    const ConvolutionDims dims = RandomConvolution(seed);
    SCOPED_TRACE(::testing::Message() << "seed " << seed << ": " << ::testing::PrintToString(dims));
    ASSERT_NO_FATAL_FAILURE(ExpectTheReferences(*kernels_, *reference, dims, seed % 2 == 0));
  }
}

// Large enough to be cut into parts inside, by images, rows and channels.
TEST(CpuRandomDimsTest, LargeConvolutions) {
  const auto reference = MakeReferenceBackend();
  const auto cpu = MakeCpuBackend(2);
  for (uint64_t seed = 2000; seed < 2000 + kLargeCases; ++seed) {
    Dice dice(seed);
    ConvolutionDims dims = RandomConvolution(seed);
    dims.batch = dice.Roll(1, 5);
    dims.groups = 1;
    dims.in_channels = dice.Roll(1, 50);
    dims.out_channels = dice.Roll(1, 40);
    WindowDims& w = dims.window;
    w.in_height = dice.Roll(12, 40);
    w.in_width = dice.Roll(12, 40);
    w = Fitted(w, dice.Roll(0, w.kernel_height), dice.Roll(0, w.kernel_width));
    SCOPED_TRACE(::testing::Message() << "seed " << seed << ": " << ::testing::PrintToString(dims));
    ASSERT_NO_FATAL_FAILURE(ExpectTheReferences(*cpu, *reference, dims, true));
  }
}

// Averages divide by anything up to 25, so the last bits may differ: by two roundings (a product
// with the inverse) of numbers up to one, and as many for each share of a gradient.
TEST_P(RandomDimsTest, Poolings) {
  const auto reference = MakeReferenceBackend();
  for (uint64_t seed = 1000; seed < 1000 + kCases; ++seed) {
    const PoolingDims dims = RandomPooling(seed);
    SCOPED_TRACE(::testing::Message() << "seed " << seed << ": " << ::testing::PrintToString(dims));
    const LayerSizes sizes = SizesOf(dims);
    const Floats x = Eighths(sizes.x, 1), dy = Eighths(sizes.y, 2);
    const bool max = dims.kind == PoolKind::kMax;
    const double tolerance = max ? 0 : 4e-6;
    std::vector<int32_t> argmax(max ? static_cast<size_t>(sizes.y) : 0, -7), want_argmax = argmax;
    Floats got = Garbage(sizes.y), want = got;
    kernels_->window().PoolingForward(dims, x, got, argmax);
    reference->window().PoolingForward(dims, x, want, want_argmax);
    ASSERT_EQ(argmax, want_argmax);
    ASSERT_NO_FATAL_FAILURE(ExpectNear(got, want, tolerance));
    got = want = Garbage(sizes.x);
    kernels_->window().PoolingBackward(dims, dy, argmax, got);
    reference->window().PoolingBackward(dims, dy, want_argmax, want);
    ASSERT_NO_FATAL_FAILURE(ExpectNear(got, want, tolerance));
  }
}

}  // namespace
}  // namespace cadre
