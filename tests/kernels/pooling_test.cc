#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "kernels/backend.h"
#include "kernels/extents.h"
#include "tests/kernels/testing.h"

namespace cadre {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

using PoolingTest = BackEndTest;
INSTANTIATE_TEST_SUITE_P(BackEnds, PoolingTest, ::testing::ValuesIn(BackEndsOfEverySize()), NameOf);

TEST_P(PoolingTest, MaxKnownAnswer) {
  const PoolingOutputs out =
      RunPooling(*kernels_, Pooling(PoolKind::kMax, 1, 1, Window(3, 5, 2, 2)),
                 {1, 5, 2, 2, 9,  //
                  3, 4, 2, 2, 9,  //
                  9, 9, 9, 9, 9},
                 {10, 20});
  EXPECT_THAT(out.y, ElementsAre(5, 2));
  // The first of four equal twos is the maximum; the fifth column and third row are in no window.
  EXPECT_THAT(out.argmax, ElementsAre(1, 2));
  EXPECT_THAT(out.dx, ElementsAre(0, 10, 20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0));
}

TEST_P(PoolingTest, ChannelsHaveSeparateMaxima) {
  const PoolingOutputs out = RunPooling(*kernels_, Pooling(PoolKind::kMax, 1, 2, Window(2, 2, 2)),
                                        {1, 8, 2, 7, 3, 6, 4, 5}, {10, 20});
  EXPECT_THAT(out.y, ElementsAre(4, 8));
  EXPECT_THAT(out.argmax, ElementsAre(3, 0));
  EXPECT_THAT(out.dx, ElementsAre(0, 20, 0, 0, 0, 0, 10, 0));
}

TEST_P(PoolingTest, MaxIgnoresPadding) {
  const PoolingOutputs out = RunPooling(
      *kernels_, Pooling(PoolKind::kMax, 1, 1, Window(2, 2, 3, 2, 1)), {-4, -3, -2, -1}, {1});
  EXPECT_THAT(out.y, ElementsAre(-1));
  EXPECT_THAT(out.argmax, ElementsAre(3));
}

TEST_P(PoolingTest, AverageDividesByElementsInside) {
  const PoolingOutputs out =
      RunPooling(*kernels_, Pooling(PoolKind::kAverage, 1, 1, Window(2, 2, 2, 1, 1)), {1, 2, 3, 4},
                 {1, 2, 1, 2, 4, 2, 1, 2, 1});
  EXPECT_THAT(out.y, ElementsAre(1, 1.5, 2, 2, 2.5, 3, 3, 3.5, 4));
  EXPECT_THAT(out.dx, ElementsAre(4, 4, 4, 4));
}

TEST_P(PoolingTest, AverageMayCountThePadding) {
  const PoolingOutputs out =
      RunPooling(*kernels_, Pooling(PoolKind::kAverageWithPadding, 1, 1, Window(2, 2, 2, 1, 1)),
                 {4, 8, 12, 16}, {4, 4, 4, 4, 8, 4, 4, 4, 4});
  EXPECT_THAT(out.y, ElementsAre(1, 3, 2, 4, 10, 6, 3, 7, 4));
  EXPECT_THAT(out.dx, ElementsAre(5, 5, 5, 5));
}

// For a rank with the lower part of an image: no padding above, and one row of padding below.
TEST_P(PoolingTest, PaddingFollowsFromTheOutputs) {
  const WindowDims window{.in_height = 3,
                          .in_width = 2,
                          .out_height = 2,
                          .out_width = 1,
                          .kernel_height = 2,
                          .kernel_width = 2,
                          .stride_height = 2,
                          .stride_width = 2};
  const Floats x = {1, 2, 3, 4, 5, 6};
  const PoolingOutputs max =
      RunPooling(*kernels_, Pooling(PoolKind::kMax, 1, 1, window), x, {1, 2});
  EXPECT_THAT(max.y, ElementsAre(4, 6));
  EXPECT_THAT(max.argmax, ElementsAre(3, 5));
  const PoolingOutputs average =
      RunPooling(*kernels_, Pooling(PoolKind::kAverage, 1, 1, window), x, {4, 4});
  EXPECT_THAT(average.y, ElementsAre(2.5, 5.5));
  EXPECT_THAT(average.dx, ElementsAre(1, 1, 1, 1, 2, 2));
}

TEST_P(PoolingTest, OverlappingWindowsAddTheirGradients) {
  const PoolingOutputs out = RunPooling(*kernels_, Pooling(PoolKind::kMax, 1, 1, Window(3, 3, 2)),
                                        {0, 0, 0, 0, 9, 0, 0, 0, 0}, {1, 2, 3, 4});
  EXPECT_THAT(out.dx, ElementsAre(0, 0, 0, 0, 10, 0, 0, 0, 0));
}

TEST_P(PoolingTest, WindowsInPaddingHaveNoMaximum) {
  const Floats dy = {1, 1, 1, 1, 3, 1, 1, 1, 1};
  const WindowDims window = Window(1, 1, 1, 1, 1);
  PoolingOutputs out = RunPooling(*kernels_, Pooling(PoolKind::kMax, 1, 1, window), {5}, dy);
  EXPECT_THAT(out.y, ElementsAre(0, 0, 0, 0, 5, 0, 0, 0, 0));
  EXPECT_THAT(out.argmax, ElementsAre(-1, -1, -1, -1, 0, -1, -1, -1, -1));
  EXPECT_THAT(out.dx, ElementsAre(3));
  for (const PoolKind kind : {PoolKind::kAverage, PoolKind::kAverageWithPadding}) {
    out = RunPooling(*kernels_, Pooling(kind, 1, 1, window), {5}, dy);
    EXPECT_THAT(out.y, ElementsAre(0, 0, 0, 0, 5, 0, 0, 0, 0));
    EXPECT_THAT(out.dx, ElementsAre(3));
  }
}

TEST_P(PoolingTest, GlobalAverage) {
  // Two images of three positions and two channels. The divisor is 4, as if another rank had a
  // fourth position.
  Floats y = Garbage(4), dx = Garbage(12);
  kernels_->window().GlobalAveragePoolForward(2, 3, 2, 4,
                                              Floats{1, 10, 2, 20, 5, 50, 0, 0, 4, 0, 0, 8}, y);
  EXPECT_THAT(y, ElementsAre(2, 20, 1, 2));
  kernels_->window().GlobalAveragePoolBackward(2, 3, 2, 4, Floats{4, 8, 12, 16}, dx);
  EXPECT_THAT(dx, ElementsAre(1, 2, 1, 2, 1, 2, 3, 4, 3, 4, 3, 4));
}

TEST_P(PoolingTest, GlobalAverageOfEmptyTensors) {
  Floats y = Garbage(6), none;
  kernels_->window().GlobalAveragePoolForward(2, 0, 3, 4, none, y);
  EXPECT_THAT(y, Each(0.0F));
  kernels_->window().GlobalAveragePoolBackward(2, 0, 3, 4, y, none);
  kernels_->window().GlobalAveragePoolForward(0, 5, 3, 5, none, none);
  kernels_->window().GlobalAveragePoolBackward(0, 5, 3, 5, none, none);
}

TEST_P(PoolingTest, GlobalAverageGradientMatchesDifferences) {
  Floats x = Uniform(3 * 7 * 5, 1);
  const Floats dy = Uniform(3 * 5, 2);
  Floats dx = Garbage(3 * 7 * 5);
  const auto reference = MakeReferenceBackend();
  kernels_->window().GlobalAveragePoolBackward(3, 7, 5, 9, dy, dx);
  ExpectGradient(x, dx, dy, [&] {
    Floats y = Garbage(3 * 5);
    reference->window().GlobalAveragePoolForward(3, 7, 5, 9, x, y);
    return y;
  });
}

TEST_P(PoolingTest, GlobalAverageIsNearTheReference) {
  for (const auto& [batch, positions, channels] :
       std::vector<std::array<int64_t, 3>>{{2, 49, 512}, {3, 1, 17}, {1, 64, 1}, {5, 35, 2048}}) {
    const Floats x = Uniform(batch * positions * channels, 1);
    const Floats dy = Uniform(batch * channels, 2);
    Floats y = Garbage(batch * channels), want_y = y, bound = y;
    Floats dx = Garbage(batch * positions * channels), want_dx = dx;
    const auto reference = MakeReferenceBackend();
    kernels_->window().GlobalAveragePoolForward(batch, positions, channels, positions, x, y);
    reference->window().GlobalAveragePoolForward(batch, positions, channels, positions, x, want_y);
    reference->window().GlobalAveragePoolForward(batch, positions, channels, positions, Absolute(x),
                                                 bound);
    // Two more roundings, because a division may be computed as a product with the inverse.
    ExpectSumsNear(y, want_y, bound, positions + 2);
    kernels_->window().GlobalAveragePoolBackward(batch, positions, channels, positions, dy, dx);
    reference->window().GlobalAveragePoolBackward(batch, positions, channels, positions, dy,
                                                  want_dx);
    ExpectSumsNear(dx, want_dx, Absolute(want_dx), 2);
  }
}

// Shapes with windows that few models have.
void AddUnusual(PoolKind kind, std::vector<PoolingDims>& shapes) {
  // Windows wholly in the padding.
  shapes.push_back(Pooling(kind, 2, 2, Window(3, 3, 1, 1, 1)));
  shapes.push_back(Pooling(kind, 2, 2, Window(0, 0, 2, 1, 2)));
  shapes.push_back(Pooling(kind, 2, 20,
                           {.in_height = 1,
                            .in_width = 2,
                            .out_height = 5,
                            .out_width = 6,
                            .kernel_height = 2,
                            .kernel_width = 2,
                            .pad_top = 3,
                            .pad_left = 2}));
  // Padding at one end, and oblong windows.
  shapes.push_back(Pooling(kind, 2, 16,
                           Fitted({.in_height = 6,
                                   .in_width = 7,
                                   .kernel_height = 3,
                                   .kernel_width = 3,
                                   .stride_height = 2,
                                   .stride_width = 1},
                                  1, 1)));
  shapes.push_back(Pooling(kind, 2, 5,
                           Fitted({.in_height = 6,
                                   .in_width = 7,
                                   .kernel_height = 1,
                                   .kernel_width = 4,
                                   .stride_height = 3,
                                   .stride_width = 2,
                                   .pad_left = 2},
                                  0, 0)));
  // Rows and columns that no window reaches.
  shapes.push_back(Pooling(kind, 2, 4,
                           {.in_height = 9,
                            .in_width = 9,
                            .out_height = 3,
                            .out_width = 2,
                            .kernel_height = 2,
                            .kernel_width = 2}));
  // The whole image.
  shapes.push_back(Pooling(kind, 4, 8, Window(7, 7, 7)));
}

std::vector<PoolingDims> Shapes() {
  std::vector<PoolingDims> shapes;
  for (const PoolKind kind : {PoolKind::kMax, PoolKind::kAverage, PoolKind::kAverageWithPadding}) {
    for (const auto& [kernel, stride, padding] : {std::array<int64_t, 3>{2, 2, 0},
                                                  {2, 1, 0},
                                                  {2, 2, 1},
                                                  {3, 2, 1},
                                                  {3, 1, 1},
                                                  {3, 3, 0},
                                                  {7, 7, 0},
                                                  {1, 2, 0},
                                                  {1, 1, 0},
                                                  {2, 3, 0}}) {
      shapes.push_back(Pooling(kind, 2, 3, Window(14, 14, kernel, stride, padding)));
      shapes.push_back(Pooling(kind, 3, 17, Window(7, 9, kernel, stride, padding)));
      shapes.push_back(Pooling(kind, 1, 32, Window(8, 8, kernel, stride, padding)));
      shapes.push_back(Pooling(kind, 1, 1, Window(5, 33, kernel, stride, padding)));
      shapes.push_back(Pooling(kind, 0, 3, Window(8, 8, kernel, stride, padding)));
      shapes.push_back(Pooling(kind, 2, 0, Window(8, 8, kernel, stride, padding)));
      shapes.push_back(Pooling(kind, 2, 3, Window(0, 8, kernel, stride, padding)));
    }
    AddUnusual(kind, shapes);
  }
  return shapes;
}

class ReferencePoolingTest : public ::testing::TestWithParam<PoolingDims> {};
INSTANTIATE_TEST_SUITE_P(Shapes, ReferencePoolingTest, ::testing::ValuesIn(Shapes()));

// Inputs are distinct whole numbers, so that steps far below one do not change which element is the
// maximum.
TEST_P(ReferencePoolingTest, GradientsMatchDifferences) {
  const PoolingDims& dims = GetParam();
  const LayerSizes sizes = SizesOf(dims);
  Floats x = Shuffled(sizes.x, 5);
  const Floats dy = Uniform(sizes.y, 2);
  const auto kernels = MakeReferenceBackend();
  const PoolingOutputs out = RunPooling(*kernels, dims, x, dy);
  ExpectGradient(x, out.dx, dy, [&] { return RunPooling(*kernels, dims, x, dy).y; });
}

TEST_P(PoolingTest, SumsAreNearTheReference) {
  const auto reference = MakeReferenceBackend();
  for (const PoolingDims& dims : Shapes()) {
    SCOPED_TRACE(::testing::PrintToString(dims));
    const LayerSizes sizes = SizesOf(dims);
    const Floats x = Uniform(sizes.x, 1), dy = Uniform(sizes.y, 2);
    const PoolingOutputs want = RunPooling(*reference, dims, x, dy);
    const PoolingOutputs got = RunPooling(*kernels_, dims, x, dy);
    EXPECT_EQ(got.argmax, want.argmax);
    if (dims.kind == PoolKind::kMax) {
      EXPECT_EQ(got.y, want.y);
    }
    // For average pooling, the sums of magnitudes are its results on absolute data. For max pooling
    // the maxima must not change, so only dy is replaced by |dy|; y was compared above.
    const PoolingOutputs magnitude =
        RunPooling(*reference, dims, dims.kind == PoolKind::kMax ? x : Absolute(x), Absolute(dy));
    // Two more roundings for the division, and for each share.
    const int64_t taps = dims.window.kernel_height * dims.window.kernel_width;
    ExpectSumsNear(got.y, want.y, Absolute(magnitude.y), taps + 2);
    ExpectSumsNear(got.dx, want.dx, magnitude.dx, taps + 2);
  }
}

// Eighths have many equal elements, and all elements of a constant image are equal.
TEST_P(PoolingTest, FirstOfEqualElementsIsTheMaximum) {
  const auto reference = MakeReferenceBackend();
  for (const PoolingDims& dims : Shapes()) {
    SCOPED_TRACE(::testing::PrintToString(dims));
    const LayerSizes sizes = SizesOf(dims);
    const Floats dy = Eighths(sizes.y, 2);
    for (const Floats& x : {Eighths(sizes.x, 1), Floats(sizes.x, -1.0F)}) {
      const PoolingOutputs want = RunPooling(*reference, dims, x, dy);
      const PoolingOutputs got = RunPooling(*kernels_, dims, x, dy);
      EXPECT_EQ(got.argmax, want.argmax);
      if (dims.kind == PoolKind::kMax) {
        EXPECT_EQ(got.y, want.y);
        EXPECT_EQ(got.dx, want.dx);
      }
    }
  }
}

// Divisors that are powers of two keep averages of exact data exact.
TEST_P(PoolingTest, ExactDataGivesTheSameBits) {
  const auto reference = MakeReferenceBackend();
  for (const PoolingDims& dims :
       {Pooling(PoolKind::kAverage, 2, 17, Window(8, 10, 2, 2)),
        Pooling(PoolKind::kAverage, 2, 16, Window(7, 5, 2, 1, 1)),
        Pooling(PoolKind::kAverageWithPadding, 3, 5, Window(9, 7, 4, 2, 2)),
        Pooling(PoolKind::kAverageWithPadding, 1, 32, Window(8, 8, 2, 1, 1))}) {
    SCOPED_TRACE(::testing::PrintToString(dims));
    const Floats x = Eighths(SizesOf(dims).x, 1), dy = Eighths(SizesOf(dims).y, 2);
    const PoolingOutputs want = RunPooling(*reference, dims, x, dy);
    const PoolingOutputs got = RunPooling(*kernels_, dims, x, dy);
    EXPECT_EQ(got.y, want.y);
    EXPECT_EQ(got.dx, want.dx);
  }
}

TEST(CpuPoolingEdgeTest, SeveralThreadsGiveTheSameBits) {
  for (const PoolKind kind : {PoolKind::kMax, PoolKind::kAverage}) {
    const PoolingDims dims = Pooling(kind, 16, 32, Window(28, 28, 3, 2, 1));
    const Floats x = Uniform(SizesOf(dims).x, 1), dy = Uniform(SizesOf(dims).y, 2);
    const PoolingOutputs one = RunPooling(*MakeCpuBackend(1), dims, x, dy);
    const PoolingOutputs three = RunPooling(*MakeCpuBackend(3), dims, x, dy);
    EXPECT_EQ(three.y, one.y);
    EXPECT_EQ(three.argmax, one.argmax);
    EXPECT_EQ(three.dx, one.dx);
  }
}

}  // namespace
}  // namespace cadre
