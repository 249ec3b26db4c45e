#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/extents.h"
#include "kernels/kernels.h"
#include "tests/kernels/testing.h"

namespace cadre {

void PrintTo(const ConvolutionDims& d, std::ostream* out) {
  *out << absl::StrCat("batch ", d.batch, ", ", d.in_channels, " x ", d.in_height, " x ",
                       d.in_width, " to ", d.out_channels, ", kernel ", d.kernel, ", stride ",
                       d.stride, ", padding ", d.padding);
}

namespace {

using ::testing::Each;
using ::testing::ElementsAre;

struct Outputs {
  Floats y, dx, dw, db;
};

// All three passes over the same data.
Outputs RunAll(Kernels& kernels, const ConvolutionDims& dims, const Floats& x, const Floats& w,
               const Floats& b, const Floats& dy) {
  const LayerSizes sizes = SizesOf(dims);
  Outputs out{.y = Garbage(sizes.y),
              .dx = Garbage(sizes.x),
              .dw = Garbage(sizes.w),
              .db = Garbage(sizes.b)};
  kernels.ConvolutionForward(dims, x, w, b, out.y);
  kernels.ConvolutionBackwardData(dims, dy, w, out.dx);
  kernels.ConvolutionBackwardWeights(dims, x, dy, out.dw, out.db);
  return out;
}

TEST(ReferenceConvolutionTest, KnownAnswer) {
  const ConvolutionDims dims = Convolution(1, 1, 2, 3, 1, 3, 1, 1);
  const Floats x = {1, 2, 3,  //
                    4, 5, 6};
  const Floats w = {1, 0,  0,  //
                    0, 10, 0,  //
                    0, 0,  100};
  const Outputs out = RunAll(*MakeReferenceKernels(), dims, x, w, {0.5F}, {1, 0, 0, 0, 0, 0});
  EXPECT_THAT(out.y, ElementsAre(510.5F, 620.5F, 30.5F, 40.5F, 51.5F, 62.5F));
  EXPECT_THAT(out.dx, ElementsAre(10, 0, 0, 0, 100, 0));
  EXPECT_THAT(out.dw, ElementsAre(0, 0, 0, 0, 1, 2, 0, 4, 5));
  EXPECT_THAT(out.db, ElementsAre(1));
}

double Dot(const Floats& a, const Floats& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

// dL/dvalue by moving each value by one, L being the product of dy and the output. A convolution is
// linear in each of its arguments and integers are exact, so this is the gradient itself.
Floats Differences(Floats& values, const std::function<double()>& loss) {
  const double before = loss();
  Floats gradient;
  for (float& value : values) {
    value += 1;
    gradient.push_back(static_cast<float>(loss() - before));
    value -= 1;
  }
  return gradient;
}

TEST(ReferenceConvolutionTest, GradientsAreTheDifferences) {
  for (const ConvolutionDims& dims :
       {Convolution(2, 2, 5, 4, 3, 3, 1, 1), Convolution(1, 3, 6, 7, 2, 3, 2, 1),
        Convolution(2, 1, 5, 5, 2, 5, 1, 2), Convolution(1, 2, 4, 4, 2, 1, 1, 0)}) {
    SCOPED_TRACE(::testing::PrintToString(dims));
    const LayerSizes sizes = SizesOf(dims);
    Floats x = SmallIntegers(sizes.x, 1), w = SmallIntegers(sizes.w, 2),
           b = SmallIntegers(sizes.b, 3);
    const Floats dy = SmallIntegers(sizes.y, 4);
    const auto kernels = MakeReferenceKernels();
    const Outputs out = RunAll(*kernels, dims, x, w, b, dy);
    const auto loss = [&] {
      Floats y(dy.size());
      kernels->ConvolutionForward(dims, x, w, b, y);
      return Dot(y, dy);
    };
    EXPECT_EQ(out.dx, Differences(x, loss));
    EXPECT_EQ(out.dw, Differences(w, loss));
    EXPECT_EQ(out.db, Differences(b, loss));
  }
}

class CpuConvolutionTest : public ::testing::TestWithParam<ConvolutionDims> {
 protected:
  const ConvolutionDims dims_ = GetParam();
  const LayerSizes sizes_ = SizesOf(dims_);
  const std::unique_ptr<Kernels> reference_ = MakeReferenceKernels();
  const std::unique_ptr<Kernels> cpu_ = MakeCpuKernels(1);
};

TEST_P(CpuConvolutionTest, SumsAreNearTheReference) {
  const Floats x = Uniform(sizes_.x, 1), w = Uniform(sizes_.w, 2), b = Uniform(sizes_.b, 3),
               dy = Uniform(sizes_.y, 4);
  const Outputs want = RunAll(*reference_, dims_, x, w, b, dy);
  const Outputs got = RunAll(*cpu_, dims_, x, w, b, dy);
  const Outputs magnitude =
      RunAll(*reference_, dims_, Absolute(x), Absolute(w), Absolute(b), Absolute(dy));
  const int64_t taps = dims_.kernel * dims_.kernel;
  const int64_t outputs = dims_.batch * dims_.out_height * dims_.out_width;
  ExpectSumsNear(got.y, want.y, magnitude.y, dims_.in_channels * taps + 1);
  ExpectSumsNear(got.dx, want.dx, magnitude.dx, dims_.out_channels * taps);
  ExpectSumsNear(got.dw, want.dw, magnitude.dw, outputs);
  ExpectSumsNear(got.db, want.db, magnitude.db, outputs);
}

TEST_P(CpuConvolutionTest, IntegersAreExact) {
  const Floats x = SmallIntegers(sizes_.x, 1), w = SmallIntegers(sizes_.w, 2),
               b = SmallIntegers(sizes_.b, 3), dy = SmallIntegers(sizes_.y, 4);
  const Outputs want = RunAll(*reference_, dims_, x, w, b, dy);
  const Outputs got = RunAll(*cpu_, dims_, x, w, b, dy);
  EXPECT_EQ(got.y, want.y);
  EXPECT_EQ(got.dx, want.dx);
  EXPECT_EQ(got.dw, want.dw);
  EXPECT_EQ(got.db, want.db);
}

TEST_P(CpuConvolutionTest, SameCallSameBits) {
  const Floats x = Uniform(sizes_.x, 1), w = Uniform(sizes_.w, 2), b = Uniform(sizes_.b, 3),
               dy = Uniform(sizes_.y, 4);
  const Outputs first = RunAll(*cpu_, dims_, x, w, b, dy);
  const Outputs again = RunAll(*cpu_, dims_, x, w, b, dy);
  const Outputs other = RunAll(*MakeCpuKernels(1), dims_, x, w, b, dy);
  for (const Outputs* out : {&again, &other}) {
    EXPECT_EQ(out->y, first.y);
    EXPECT_EQ(out->dx, first.dx);
    EXPECT_EQ(out->dw, first.dw);
    EXPECT_EQ(out->db, first.db);
  }
}

std::vector<ConvolutionDims> Shapes() {
  std::vector<ConvolutionDims> shapes = {
      // The target network's, and shards of it.
      Convolution(3, 1, 28, 28, 32, 3, 1, 1),
      Convolution(3, 32, 14, 14, 64, 3, 1, 1),
      Convolution(5, 1, 28, 28, 16, 3, 1, 1),
      Convolution(2, 16, 14, 14, 64, 3, 1, 1),
      Convolution(2, 32, 14, 14, 21, 3, 1, 1),
      // Residual networks': pointwise, strided, and a wide first layer.
      Convolution(2, 17, 9, 9, 33, 1, 2, 0),
      Convolution(1, 3, 32, 32, 16, 7, 2, 3),
      // Larger windows than images, padded to fit; one output; a stride that leaves columns over.
      Convolution(2, 4, 2, 3, 5, 5, 1, 2),
      Convolution(1, 8, 7, 7, 8, 7, 1, 0),
      Convolution(2, 8, 10, 8, 9, 3, 3, 0),
      // A kernel that skips the far edge: the last row and column reach no window.
      Convolution(2, 16, 6, 6, 16, 1, 3, 0),
  };
  for (int64_t kernel : {1, 3, 5, 7}) {
    for (int64_t stride : {1, 2}) {
      for (int64_t in : {1, 17}) {
        for (int64_t out : {1, 17}) {
          shapes.push_back(Convolution(2, in, 9, 11, out, kernel, stride, kernel / 2));
          shapes.push_back(Convolution(1, in, 8, 7, out, kernel, stride, 0));
        }
      }
    }
  }
  return shapes;
}

INSTANTIATE_TEST_SUITE_P(Shapes, CpuConvolutionTest, ::testing::ValuesIn(Shapes()));

std::vector<ConvolutionDims> EmptyShapes() {
  return {
      Convolution(0, 3, 8, 8, 4, 3, 1, 1),  // no batch
      Convolution(2, 0, 8, 8, 4, 3, 1, 1),  // no input channels: y is the bias
      Convolution(2, 3, 8, 8, 0, 3, 1, 1),  // no output channels
      Convolution(2, 3, 2, 8, 4, 5, 1, 1),  // no window fits
      Convolution(2, 3, 0, 8, 4, 3, 1, 1),  // no image
  };
}
INSTANTIATE_TEST_SUITE_P(EmptyShapes, CpuConvolutionTest, ::testing::ValuesIn(EmptyShapes()));

TEST(CpuConvolutionEdgeTest, WithoutInputChannelsTheOutputIsTheBias) {
  const ConvolutionDims dims = Convolution(2, 0, 3, 3, 2, 3, 1, 1);
  const Outputs out = RunAll(*MakeCpuKernels(1), dims, {}, {}, {5, 7}, Floats(36, 1.0F));
  EXPECT_THAT(std::span(out.y).subspan(0, 9), Each(5.0F));
  EXPECT_THAT(std::span(out.y).subspan(9, 9), Each(7.0F));
  EXPECT_THAT(out.db, ElementsAre(18, 18));
}

TEST(CpuConvolutionEdgeTest, WithoutBatchGradientsAreZero) {
  const ConvolutionDims dims = Convolution(0, 3, 8, 8, 4, 3, 1, 1);
  const Outputs out =
      RunAll(*MakeCpuKernels(1), dims, {}, Uniform(SizesOf(dims).w, 1), Floats(4, 1.0F), {});
  EXPECT_THAT(out.dw, Each(0.0F));
  EXPECT_THAT(out.db, Each(0.0F));
}

// More extents than the cache holds, so that primitives are dropped and made again.
TEST(CpuConvolutionEdgeTest, ManyExtentsInTurn) {
  const auto cpu = MakeCpuKernels(1);
  const auto reference = MakeReferenceKernels();
  for (int turn = 0; turn < 2; ++turn) {
    for (int64_t width = 3; width < 90; ++width) {
      const ConvolutionDims dims = Convolution(1, 9, 3, width, 3, 3, 1, 1);
      const LayerSizes sizes = SizesOf(dims);
      const Floats x = SmallIntegers(sizes.x, 1), w = SmallIntegers(sizes.w, 2),
                   b = SmallIntegers(sizes.b, 3), dy = SmallIntegers(sizes.y, 4);
      const Outputs got = RunAll(*cpu, dims, x, w, b, dy);
      const Outputs want = RunAll(*reference, dims, x, w, b, dy);
      ASSERT_EQ(got.y, want.y) << width;
      ASSERT_EQ(got.dx, want.dx) << width;
      ASSERT_EQ(got.dw, want.dw) << width;
    }
  }
}

TEST(ConvolutionDeathTest, RefusesExtentsAndSpansThatDoNotFit) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  ConvolutionDims dims = Convolution(1, 1, 4, 4, 1, 3, 1, 1);
  const Floats x(16), w(9), b(1);
  Floats y(16);
  for (const auto make :
       {+[] { return MakeReferenceKernels(); }, +[] { return MakeCpuKernels(1); }}) {
    EXPECT_DEATH(make()->ConvolutionForward(dims, Floats(15), w, b, y), "elements of x");
    EXPECT_DEATH(make()->ConvolutionForward(dims, x, Floats(8), b, y), "elements of w");
    ConvolutionDims wrong = dims;
    wrong.out_height = 3;
    EXPECT_DEATH(make()->ConvolutionForward(wrong, x, w, b, y), "out_height");
    wrong = dims;
    wrong.stride = 0;
    EXPECT_DEATH(make()->ConvolutionForward(wrong, x, w, b, y), "stride");
  }
}

}  // namespace
}  // namespace cadre
