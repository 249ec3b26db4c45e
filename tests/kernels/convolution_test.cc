#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "kernels/backend.h"
#include "kernels/extents.h"
#include "tests/kernels/testing.h"

namespace cadre {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

using ConvolutionTest = BackEndTest;
INSTANTIATE_TEST_SUITE_P(BackEnds, ConvolutionTest, ::testing::ValuesIn(BackEnds()), NameOf);

TEST_P(ConvolutionTest, KnownAnswer) {
  const Floats x = {1, 2, 3,  //
                    4, 5, 6};
  const Floats w = {1, 0,  0,  //
                    0, 10, 0,  //
                    0, 0,  100};
  const LayerOutputs out = RunLayer(*kernels_, Convolution(1, 1, 1, Window(2, 3, 3, 1, 1)), x, w,
                                    {0.5F}, {1, 0, 0, 0, 0, 0});
  EXPECT_THAT(out.y, ElementsAre(510.5F, 620.5F, 30.5F, 40.5F, 51.5F, 62.5F));
  EXPECT_THAT(out.dx, ElementsAre(10, 0, 0, 0, 100, 0));
  EXPECT_THAT(out.dw, ElementsAre(0, 0, 0, 0, 1, 2, 0, 4, 5));
  EXPECT_THAT(out.db, ElementsAre(1));
}

// The two channels of each of the two pixels are adjacent in memory; weights are [out, in].
TEST_P(ConvolutionTest, ChannelsAreLast) {
  const LayerOutputs out =
      RunLayer(*kernels_, Convolution(1, 2, 3, Window(1, 2, 1)),
               /*x=*/{1, 2, 3, 4}, /*w=*/{1, 0, 0, 1, 1, 1}, /*b=*/{10, 20, 30},
               /*dy=*/{1, 2, 3, 4, 5, 6});
  EXPECT_THAT(out.y, ElementsAre(11, 22, 33, 13, 24, 37));
  EXPECT_THAT(out.dx, ElementsAre(4, 5, 10, 11));
  EXPECT_THAT(out.dw, ElementsAre(13, 18, 17, 24, 21, 30));
  EXPECT_THAT(out.db, ElementsAre(5, 7, 9));
}

TEST_P(ConvolutionTest, GroupsAreIndependent) {
  const LayerOutputs out = RunLayer(*kernels_, Convolution(1, 4, 2, Window(1, 1, 1), 2),
                                    /*x=*/{1, 2, 3, 4}, /*w=*/{1, 10, 100, 1000}, /*b=*/{0, 0},
                                    /*dy=*/{1, 2});
  EXPECT_THAT(out.y, ElementsAre(21, 4300));
  EXPECT_THAT(out.dx, ElementsAre(1, 10, 200, 2000));
  EXPECT_THAT(out.dw, ElementsAre(1, 2, 6, 8));
}

// The last column of the output needs a column beyond the input, and only the first row of the
// input is used. The dilation is two.
TEST_P(ConvolutionTest, PaddingFollowsFromTheOutputs) {
  const ConvolutionDims dims = Convolution(1, 1, 1,
                                           {.in_height = 2,
                                            .in_width = 3,
                                            .out_height = 1,
                                            .out_width = 3,
                                            .kernel_height = 1,
                                            .kernel_width = 2,
                                            .dilation = 2,
                                            .pad_left = 1});
  const LayerOutputs out =
      RunLayer(*kernels_, dims, {1, 2, 3, 4, 5, 6}, {10, 100}, {0}, /*dy=*/{1, 1, 1});
  EXPECT_THAT(out.y, ElementsAre(200, 310, 20));
  EXPECT_THAT(out.dx, ElementsAre(10, 110, 100, 0, 0, 0));
  EXPECT_THAT(out.dw, ElementsAre(3, 5));
}

TEST_P(ConvolutionTest, BiasIsOptional) {
  ExpectLayerExact(*kernels_, Convolution(2, 3, 5, Window(4, 4, 3, 1, 1)), /*with_bias=*/false);
}

TEST_P(ConvolutionTest, WithoutInputChannelsTheOutputIsTheBias) {
  const ConvolutionDims dims = Convolution(1, 0, 2, Window(2, 2, 3, 1, 1));
  const LayerOutputs out = RunLayer(*kernels_, dims, {}, {}, {5, 7}, Floats(8, 1.0F));
  EXPECT_THAT(out.y, ElementsAre(5, 7, 5, 7, 5, 7, 5, 7));
  EXPECT_THAT(out.db, ElementsAre(4, 4));
}

// A rank without input rows may still have to compute outputs beyond the edge.
TEST_P(ConvolutionTest, WithoutImageTheOutputIsTheBias) {
  const ConvolutionDims dims = Convolution(
      1, 1, 2, {.in_height = 0, .in_width = 2, .out_height = 1, .out_width = 2, .pad_top = 1});
  const LayerOutputs out = RunLayer(*kernels_, dims, {}, {1, 2}, {5, 7}, Floats(4, 1.0F));
  EXPECT_THAT(out.y, ElementsAre(5, 7, 5, 7));
  EXPECT_THAT(out.dw, ElementsAre(0, 0));
  EXPECT_THAT(out.db, ElementsAre(2, 2));
}

TEST_P(ConvolutionTest, WithoutBatchGradientsAreZero) {
  const ConvolutionDims dims = Convolution(0, 3, 4, Window(8, 8, 3, 1, 1));
  const LayerOutputs out =
      RunLayer(*kernels_, dims, {}, Uniform(SizesOf(dims).w, 1), Floats(4, 1.0F), {});
  EXPECT_THAT(out.dw, Each(0.0F));
  EXPECT_THAT(out.db, Each(0.0F));
}

TEST_P(ConvolutionTest, WithoutOutputsTheInputsGradientIsZero) {
  const ConvolutionDims dims = Convolution(2, 3, 4, Window(2, 2, 3));
  const LayerOutputs out =
      RunLayer(*kernels_, dims, Uniform(24, 1), Uniform(SizesOf(dims).w, 1), Floats(4, 1.0F), {});
  EXPECT_THAT(out.dx, Each(0.0F));
  EXPECT_THAT(out.dw, Each(0.0F));
}

// Convolutions of networks and parts of them that a rank may own; numbers of channels that do not
// fill a vector.
std::vector<ConvolutionDims> UsualShapes() {
  std::vector<ConvolutionDims> shapes = {
      Convolution(3, 1, 32, Window(28, 28, 3, 1, 1)),
      Convolution(3, 32, 64, Window(14, 14, 3, 1, 1)),
      Convolution(2, 32, 21, Window(14, 14, 3, 1, 1)),
      Convolution(2, 6, 16, Window(14, 14, 5)),
      Convolution(1, 3, 64, Window(33, 35, 11, 4, 2)),
      Convolution(1, 3, 16, Window(32, 32, 7, 2, 3)),
      Convolution(2, 64, 256, Window(7, 7, 1)),
      Convolution(2, 17, 33, Window(9, 9, 1, 2)),
      // Thousands of outputs: in several images, and in rows longer than a thousand.
      Convolution(3, 33, 18, Window(23, 29, 3, 1, 1)),
      Convolution(3, 64, 20, Window(25, 31, 1)),
      Convolution(5, 20, 34, Window(41, 39, 3, 2, 1)),
      Convolution(3, 16, 5, Window(31, 33, 3, 1, 2, 2)),
      Convolution(2, 3, 5, Window(3, 1300, 3, 1, 1)),
      Convolution(2, 17, 18, Window(4, 1100, 3)),
      Convolution(2, 32, 16, Window(2, 1100, 1)),
  };
  for (int64_t kernel : {1, 3, 5}) {
    for (int64_t stride : {1, 2}) {
      for (int64_t in : {1, 3, 16, 17}) {
        for (int64_t out : {1, 16, 17}) {
          shapes.push_back(Convolution(2, in, out, Window(9, 11, kernel, stride, kernel / 2)));
          shapes.push_back(Convolution(1, in, out, Window(8, 7, kernel, stride)));
        }
      }
    }
  }
  return shapes;
}

std::vector<ConvolutionDims> EmptyShapes() {
  return {
      Convolution(0, 3, 4, Window(8, 8, 3, 1, 1)), Convolution(2, 0, 4, Window(8, 8, 3, 1, 1)),
      Convolution(2, 3, 0, Window(8, 8, 3, 1, 1)), Convolution(2, 3, 4, Window(2, 8, 5, 1, 1)),
      Convolution(2, 3, 4, Window(0, 8, 3, 1, 1)), Convolution(2, 3, 4, Window(8, 0, 3, 1, 2)),
  };
}

class ReferenceConvolutionTest : public ::testing::TestWithParam<ConvolutionDims> {};
INSTANTIATE_TEST_SUITE_P(UnusualShapes, ReferenceConvolutionTest,
                         ::testing::ValuesIn(UnusualConvolutions()));
INSTANTIATE_TEST_SUITE_P(EmptyShapes, ReferenceConvolutionTest, ::testing::ValuesIn(EmptyShapes()));

TEST_P(ReferenceConvolutionTest, GradientsMatchDifferences) { ExpectLayerGradients(GetParam()); }

class CpuConvolutionTest : public ::testing::TestWithParam<ConvolutionDims> {
 protected:
  const std::unique_ptr<Backend> cpu_ = MakeCpuBackend(1);
};
INSTANTIATE_TEST_SUITE_P(UsualShapes, CpuConvolutionTest, ::testing::ValuesIn(UsualShapes()));
INSTANTIATE_TEST_SUITE_P(UnusualShapes, CpuConvolutionTest,
                         ::testing::ValuesIn(UnusualConvolutions()));
INSTANTIATE_TEST_SUITE_P(EmptyShapes, CpuConvolutionTest, ::testing::ValuesIn(EmptyShapes()));

TEST_P(CpuConvolutionTest, SumsAreNearReference) { ExpectLayerNearReference(*cpu_, GetParam()); }
TEST_P(CpuConvolutionTest, ExactDataGivesEqualBits) { ExpectLayerExact(*cpu_, GetParam()); }
TEST_P(CpuConvolutionTest, RepeatedCallsGiveEqualBits) { ExpectLayerRepeats(*cpu_, GetParam()); }

// Parameters are slices of one long vector, so they may start anywhere.
TEST(CpuConvolutionEdgeTest, WeightsMayStartAnywhere) {
  const auto cpu = MakeCpuBackend(1);
  for (const ConvolutionDims& dims :
       {Convolution(2, 3, 16, Window(8, 8, 3, 1, 1)), Convolution(2, 16, 16, Window(8, 8, 3))}) {
    const LayerSizes sizes = SizesOf(dims);
    const Floats x = Uniform(sizes.x, 1), w = Uniform(sizes.w, 2), b = Uniform(sizes.b, 3),
                 dy = Uniform(sizes.y, 4);
    const LayerOutputs want = RunLayer(*cpu, dims, x, w, b, dy);
    for (const int64_t shift : {1, 3}) {
      Floats weights(shift, 0.0F), y = Garbage(sizes.y), dx = Garbage(sizes.x);
      Floats dw = Garbage(sizes.w + shift), db = Garbage(sizes.b);
      weights.insert(weights.end(), w.begin(), w.end());
      cpu->window().ConvolutionForward(dims, x, std::span(weights).subspan(shift), b, y);
      cpu->window().ConvolutionBackwardData(dims, dy, std::span(weights).subspan(shift), dx);
      cpu->window().ConvolutionBackwardWeights(dims, x, dy, std::span(dw).subspan(shift), db);
      EXPECT_EQ(y, want.y);
      EXPECT_EQ(dx, want.dx);
      EXPECT_EQ(Floats(dw.begin() + shift, dw.end()), want.dw);
    }
  }
}

// More extents than the cache holds, so that primitives are dropped and made again.
TEST(CpuConvolutionEdgeTest, MoreExtentsThanTheCacheHolds) {
  const auto cpu = MakeCpuBackend(1);
  for (int round = 0; round < 2; ++round) {
    for (int64_t width = 3; width < 90; ++width) {
      SCOPED_TRACE(width);
      ExpectLayerExact(*cpu, Convolution(1, 9, 3, Window(3, width, 3, 1, 1)));
    }
  }
}

// A product that is added to memory has the bits of a product and an addition.
void ExpectAddsBackwardData(Backend& kernels, const ConvolutionDims& dims) {
  SCOPED_TRACE(::testing::PrintToString(dims));
  const LayerSizes sizes = SizesOf(dims);
  const Floats w = Uniform(sizes.w, 1), dy = Uniform(sizes.y, 2);
  Floats product = Garbage(sizes.x), got = Uniform(sizes.x, 3), want = got;
  kernels.window().ConvolutionBackwardData(dims, dy, w, product);
  kernels.pointwise().Add(product, want);
  kernels.window().AddConvolutionBackwardData(dims, dy, w, got);
  EXPECT_EQ(got, want);
}

TEST_P(ConvolutionTest, AddsBackwardData) {
  for (const ConvolutionDims& dims :
       {Convolution(1, 5, 7, Window(3, 3, 1)), Convolution(2, 64, 16, Window(7, 7, 1)),
        Convolution(1, 16, 512, Window(7, 7, 1)), Convolution(0, 3, 4, Window(2, 2, 1))}) {
    ExpectAddsBackwardData(*kernels_, dims);
  }
}

// Those of ResNet-50.
TEST(CpuConvolutionAddsTest, LargeProducts) {
  for (const int threads : {1, 3}) {
    const auto cpu = MakeCpuBackend(threads);
    for (const ConvolutionDims& dims :
         {Convolution(1, 256, 64, Window(56, 56, 1)), Convolution(2, 512, 128, Window(28, 28, 1)),
          Convolution(3, 1024, 256, Window(14, 14, 1)),
          Convolution(1, 2048, 512, Window(7, 7, 1))}) {
      ExpectAddsBackwardData(*cpu, dims);
    }
  }
}

}  // namespace
}  // namespace cadre
