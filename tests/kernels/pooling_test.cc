#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <ostream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "kernels/extents.h"
#include "kernels/kernels.h"
#include "tests/kernels/testing.h"

namespace cadre {

void PrintTo(const PoolingDims& d, std::ostream* out) {
  *out << absl::StrCat(d.kind == PoolKind::kMax ? "max" : "average", ", batch ", d.batch, ", ",
                       d.channels, " x ", d.in_height, " x ", d.in_width, ", kernel ", d.kernel,
                       ", stride ", d.stride, ", padding ", d.padding);
}

namespace {

using ::testing::ElementsAre;

struct Outputs {
  Floats y, dx;
  std::vector<int32_t> argmax;
};

Outputs RunBoth(Kernels& kernels, const PoolingDims& dims, const Floats& x, const Floats& dy) {
  const LayerSizes sizes = SizesOf(dims);
  Outputs out{.y = Garbage(sizes.y), .dx = Garbage(sizes.x)};
  if (dims.kind == PoolKind::kMax) out.argmax.assign(static_cast<size_t>(sizes.y), -7);
  kernels.PoolingForward(dims, x, out.y, out.argmax);
  kernels.PoolingBackward(dims, dy, out.argmax, out.dx);
  return out;
}

TEST(ReferencePoolingTest, MaxKnownAnswer) {
  const Outputs out = RunBoth(*MakeReferenceKernels(), Pooling(PoolKind::kMax, 1, 1, 3, 5, 2, 2, 0),
                              {1, 5, 2, 2, 9,  //
                               3, 4, 2, 2, 9,  //
                               9, 9, 9, 9, 9},
                              {10, 20});
  EXPECT_THAT(out.y, ElementsAre(5, 2));
  // Of four equal twos the first wins; the fifth column and third row are in no window.
  EXPECT_THAT(out.argmax, ElementsAre(1, 2));
  EXPECT_THAT(out.dx, ElementsAre(0, 10, 20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0));
}

TEST(ReferencePoolingTest, MaxIgnoresPadding) {
  const Outputs out = RunBoth(*MakeReferenceKernels(), Pooling(PoolKind::kMax, 1, 1, 2, 2, 3, 2, 1),
                              {-4, -3, -2, -1}, {1});
  EXPECT_THAT(out.y, ElementsAre(-1));
  EXPECT_THAT(out.argmax, ElementsAre(3));
}

TEST(ReferencePoolingTest, AverageDividesByWhatIsInside) {
  const Outputs out =
      RunBoth(*MakeReferenceKernels(), Pooling(PoolKind::kAverage, 1, 1, 2, 2, 2, 1, 1),
              {1, 2, 3, 4}, {1, 2, 1, 2, 4, 2, 1, 2, 1});
  EXPECT_THAT(out.y, ElementsAre(1, 1.5, 2, 2, 2.5, 3, 3, 3.5, 4));
  EXPECT_THAT(out.dx, ElementsAre(4, 4, 4, 4));
}

TEST(ReferencePoolingTest, OverlappingWindowsAddTheirGradients) {
  const Outputs out = RunBoth(*MakeReferenceKernels(), Pooling(PoolKind::kMax, 1, 1, 1, 3, 1, 1, 0),
                              {1, 2, 3}, {1, 2, 3});
  EXPECT_THAT(out.dx, ElementsAre(1, 2, 3));
  const Outputs wide =
      RunBoth(*MakeReferenceKernels(), Pooling(PoolKind::kMax, 1, 1, 3, 3, 2, 1, 0),
              {0, 0, 0, 0, 9, 0, 0, 0, 0}, {1, 2, 3, 4});
  EXPECT_THAT(wide.dx, ElementsAre(0, 0, 0, 0, 10, 0, 0, 0, 0));
}

// Distinct integers, so that moving one by a quarter changes no winner: the loss is then linear
// and its difference exact.
TEST(ReferencePoolingTest, GradientsAreTheDifferences) {
  for (const PoolingDims& dims :
       {Pooling(PoolKind::kMax, 2, 2, 6, 5, 2, 2, 0), Pooling(PoolKind::kMax, 1, 2, 7, 7, 3, 2, 1),
        Pooling(PoolKind::kAverage, 2, 1, 6, 6, 2, 2, 0),
        Pooling(PoolKind::kAverage, 1, 2, 5, 5, 2, 1, 1)}) {
    SCOPED_TRACE(::testing::PrintToString(dims));
    const LayerSizes sizes = SizesOf(dims);
    Floats x;
    for (const uint32_t value :
         RandomPermutation(5, RandomStream::kTest, 0, static_cast<uint64_t>(sizes.x))) {
      x.push_back(static_cast<float>(value));
    }
    const Floats dy = SmallIntegers(sizes.y, 2);
    const auto kernels = MakeReferenceKernels();
    const Outputs out = RunBoth(*kernels, dims, x, dy);
    const auto loss = [&] {
      const Outputs moved = RunBoth(*kernels, dims, x, dy);
      double sum = 0;
      for (size_t i = 0; i < dy.size(); ++i) sum += static_cast<double>(moved.y[i]) * dy[i];
      return sum;
    };
    const double before = loss();
    for (size_t i = 0; i < x.size(); ++i) {
      x[i] += 0.25F;
      EXPECT_EQ((loss() - before) * 4, out.dx[i]) << i;
      x[i] -= 0.25F;
    }
  }
}

class CpuPoolingTest : public ::testing::TestWithParam<PoolingDims> {
 protected:
  const PoolingDims dims_ = GetParam();
  const LayerSizes sizes_ = SizesOf(dims_);
  const std::unique_ptr<Kernels> reference_ = MakeReferenceKernels();
  const std::unique_ptr<Kernels> cpu_ = MakeCpuKernels(1);
};

TEST_P(CpuPoolingTest, SumsAreNearTheReference) {
  const Floats x = Uniform(sizes_.x, 1), dy = Uniform(sizes_.y, 2);
  const Outputs want = RunBoth(*reference_, dims_, x, dy);
  const Outputs got = RunBoth(*cpu_, dims_, x, dy);
  EXPECT_EQ(got.argmax, want.argmax);
  if (dims_.kind == PoolKind::kMax) {
    EXPECT_EQ(got.y, want.y);
  }
  // Magnitudes of average pooling are its values on absolute data. For max pooling the winners must
  // stay, so |dy| alone is taken; y was compared above.
  const Outputs magnitude =
      RunBoth(*reference_, dims_, dims_.kind == PoolKind::kMax ? x : Absolute(x), Absolute(dy));
  // One more rounding for the division, and one for each share.
  const int64_t taps = dims_.kernel * dims_.kernel;
  ExpectSumsNear(got.y, want.y, Absolute(magnitude.y), taps + 1);
  ExpectSumsNear(got.dx, want.dx, magnitude.dx, taps + 1);
}

// Integers have many equals, and an image of one value nothing else.
TEST_P(CpuPoolingTest, FirstOfEqualsWins) {
  const Floats dy = SmallIntegers(sizes_.y, 2);
  for (const Floats& x :
       {SmallIntegers(sizes_.x, 1), Floats(static_cast<size_t>(sizes_.x), -1.0F)}) {
    const Outputs want = RunBoth(*reference_, dims_, x, dy);
    const Outputs got = RunBoth(*cpu_, dims_, x, dy);
    EXPECT_EQ(got.argmax, want.argmax);
    if (dims_.kind == PoolKind::kMax) {
      EXPECT_EQ(got.y, want.y);
      EXPECT_EQ(got.dx, want.dx);
    }
  }
}

std::vector<PoolingDims> Shapes() {
  std::vector<PoolingDims> shapes;
  for (const PoolKind kind : {PoolKind::kMax, PoolKind::kAverage}) {
    for (const auto& [kernel, stride, padding] : {std::array<int64_t, 3>{2, 2, 0},
                                                  {2, 1, 0},
                                                  {2, 2, 1},
                                                  {3, 2, 1},
                                                  {3, 3, 0},
                                                  {7, 7, 0},
                                                  {1, 2, 0},
                                                  {1, 1, 0},
                                                  {2, 3, 0}}) {
      shapes.push_back(Pooling(kind, 2, 3, 28, 28, kernel, stride, padding));
      shapes.push_back(Pooling(kind, 3, 17, 7, 9, kernel, stride, padding));
      shapes.push_back(Pooling(kind, 1, 1, 5, 33, kernel, stride, padding));
      shapes.push_back(Pooling(kind, 0, 3, 8, 8, kernel, stride, padding));
      shapes.push_back(Pooling(kind, 2, 0, 8, 8, kernel, stride, padding));
      shapes.push_back(Pooling(kind, 2, 3, 0, 8, kernel, stride, padding));
    }
    // Windows wholly in the padding.
    shapes.push_back(Pooling(kind, 2, 2, 3, 3, 1, 1, 1));
    shapes.push_back(Pooling(kind, 2, 2, 0, 0, 2, 1, 2));
    // The whole plane.
    shapes.push_back(Pooling(kind, 4, 8, 7, 7, 7, 1, 0));
  }
  return shapes;
}

INSTANTIATE_TEST_SUITE_P(Shapes, CpuPoolingTest, ::testing::ValuesIn(Shapes()));

TEST(CpuPoolingEdgeTest, SeveralThreadsGiveTheSameBits) {
  const PoolingDims dims = Pooling(PoolKind::kMax, 16, 32, 28, 28, 2, 2, 0);
  const Floats x = Uniform(SizesOf(dims).x, 1), dy = Uniform(SizesOf(dims).y, 2);
  const Outputs one = RunBoth(*MakeCpuKernels(1), dims, x, dy);
  const Outputs three = RunBoth(*MakeCpuKernels(3), dims, x, dy);
  EXPECT_EQ(three.y, one.y);
  EXPECT_EQ(three.argmax, one.argmax);
  EXPECT_EQ(three.dx, one.dx);
}

TEST(CpuPoolingEdgeTest, WindowsInThePaddingHaveNoWinner) {
  const Outputs out = RunBoth(*MakeCpuKernels(1), Pooling(PoolKind::kMax, 1, 1, 1, 1, 1, 1, 1), {5},
                              {1, 1, 1, 1, 3, 1, 1, 1, 1});
  EXPECT_THAT(out.y, ElementsAre(0, 0, 0, 0, 5, 0, 0, 0, 0));
  EXPECT_THAT(out.argmax, ElementsAre(-1, -1, -1, -1, 0, -1, -1, -1, -1));
  EXPECT_THAT(out.dx, ElementsAre(3));
}

TEST(PoolingDeathTest, MaxNeedsAnArgmax) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const PoolingDims dims = Pooling(PoolKind::kMax, 1, 1, 2, 2, 2, 2, 0);
  Floats y(1);
  EXPECT_DEATH(MakeCpuKernels(1)->PoolingForward(dims, Floats(4), y, {}), "argmax");
  EXPECT_DEATH(MakeReferenceKernels()->PoolingForward(dims, Floats(4), y, {}), "argmax");
}

}  // namespace
}  // namespace cadre
