// Tests how the CUDA back end describes operations to cuBLASLt and cuDNN: swapped operands, windows
// and their padding, alignments.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "kernels/cuda/cublas_math.h"
#include "kernels/cuda/cudnn_plan.h"
#include "kernels/cuda/vendor_layout.h"
#include "kernels/extents.h"
#include "tests/kernels/testing.h"

namespace cadre {
namespace {

TEST(ProductLayoutTest, StepsBelongToTheirMatrix) {
  const ProductLayout layout =
      LayoutOf({.m = 2, .n = 3, .k = 4, .batch = 5, .a_step = 10, .b_step = 20, .c_step = 30});
  EXPECT_EQ(layout.first.step, 20);
  EXPECT_EQ(layout.second.step, 10);
  EXPECT_EQ(layout.result.step, 30);
}

TEST(ProductLayoutTest, TheLargerBatchIsTheInnerOne) {
  const MatrixProductDims few{.m = 2,
                              .n = 3,
                              .k = 4,
                              .batch = 5,
                              .a_step = 1,
                              .b_step = 2,
                              .c_step = 3,
                              .outer = 7,
                              .a_outer = 4,
                              .b_outer = 5,
                              .c_outer = 6};
  const MatrixProductDims exchanged = FewestCalls(few);
  EXPECT_EQ(exchanged.batch, 7);
  EXPECT_EQ(exchanged.outer, 5);
  EXPECT_EQ(exchanged.a_step, 4);
  EXPECT_EQ(exchanged.b_step, 5);
  EXPECT_EQ(exchanged.c_step, 6);
  EXPECT_EQ(exchanged.a_outer, 1);
  EXPECT_EQ(exchanged.b_outer, 2);
  EXPECT_EQ(exchanged.c_outer, 3);
  EXPECT_EQ(FewestCalls(exchanged), exchanged);
}

TEST(AlignmentTest, DividesAddressAndSteps) {
  const auto at = [](uintptr_t address) { return reinterpret_cast<const void*>(address); };
  EXPECT_EQ(AlignmentOf(at(4096), 0, 0), 256);
  EXPECT_EQ(AlignmentOf(at(4096), 96, 0), 32);
  EXPECT_EQ(AlignmentOf(at(4096), 256, 2), 2);
  EXPECT_EQ(AlignmentOf(at(4100), 256, 256), 4);
  EXPECT_EQ(CommonAlignment(at(4096), at(4096), nullptr), 16);
  EXPECT_EQ(CommonAlignment(at(4096), at(4104), at(4096)), 8);
  EXPECT_EQ(CommonAlignment(at(4098), at(4104), at(4096)), 2);
}

TEST(PlanKeyTest, DiffersInEverythingThatAPlanDependsOn) {
  const ConvolutionKey key{.dims = Convolution(2, 3, 4, Window(5, 5, 3))};
  ConvolutionKey other = key;
  EXPECT_EQ(key, other);
  other.pass = ConvolutionPass::kBackwardData;
  EXPECT_NE(key, other);
  other = key;
  other.tf32 = true;
  EXPECT_NE(key, other);
  other = key;
  other.alignment = 8;
  EXPECT_NE(key, other);
  other = key;
  other.dims.window.pad_top = 1;
  EXPECT_NE(key, other);
  const ProductKey product{.dims = {.m = 1, .n = 2, .k = 3}};
  ProductKey another = product;
  EXPECT_EQ(product, another);
  another.dims.transpose_a = true;
  EXPECT_NE(product, another);
  another = product;
  another.result = DType::kBFloat16;
  EXPECT_NE(product, another);
}

// Which rows of the input the windows of `dims` touch, along one side.
std::vector<bool> Touched(int64_t in, int64_t out, int64_t kernel, int64_t stride, int64_t pad,
                          int64_t dilation) {
  std::vector<bool> touched(in, false);
  for (int64_t o = 0; o < out; ++o) {
    for (int64_t k = 0; k < kernel; ++k) {
      const int64_t row = o * stride - pad + k * dilation;
      if (row >= 0 && row < in) touched[row] = true;
    }
  }
  return touched;
}

void CheckSide(const ConvolutionSide& side, int64_t in, int64_t out, int64_t kernel, int64_t stride,
               int64_t pad, int64_t dilation, bool windows_miss_image) {
  EXPECT_GE(side.pad_near, 0);
  EXPECT_GE(side.pad_far, 0);
  EXPECT_EQ(side.kernel, kernel);
  EXPECT_EQ(side.out, out);
  EXPECT_LE(side.in, in);
  const std::vector<bool> touched = Touched(in, out, kernel, stride, pad, dilation);
  for (int64_t row = side.in; row < in; ++row) EXPECT_FALSE(touched[row]) << "left out " << row;
  if (windows_miss_image) return;
  EXPECT_EQ(side.pad_near, pad);
  // The left side is the number of outputs that cuDNN derives.
  EXPECT_EQ((side.in + side.pad_near + side.pad_far - dilation * (kernel - 1) - 1) / stride + 1,
            out);
}

TEST(ConvolutionShapeTest, OutputsMatchTheDims) {
  int misses = 0, cropped = 0;
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    uint64_t draws = 0;
    const auto draw = [&](int64_t low, int64_t high) { return Draw(low, high, seed, draws++); };
    const WindowDims w{.in_height = draw(1, 9),
                       .in_width = draw(1, 9),
                       .out_height = draw(1, 6),
                       .out_width = draw(1, 6),
                       .kernel_height = draw(1, 4),
                       .kernel_width = draw(1, 4),
                       .stride_height = draw(1, 3),
                       .stride_width = draw(1, 3),
                       .dilation = draw(1, 3),
                       .pad_top = draw(0, 4),
                       .pad_left = draw(0, 4)};
    const ConvolutionDims dims = Convolution(1, 1, 1, w);
    const ConvolutionShape shape = ShapeOf(dims);
    SCOPED_TRACE(::testing::PrintToString(dims));
    CheckSide(shape.height, w.in_height, w.out_height, w.kernel_height, w.stride_height, w.pad_top,
              w.dilation, shape.windows_miss_image);
    CheckSide(shape.width, w.in_width, w.out_width, w.kernel_width, w.stride_width, w.pad_left,
              w.dilation, shape.windows_miss_image);
    EXPECT_EQ(shape.in_row, w.in_width);
    EXPECT_EQ(shape.in_image, w.in_height * w.in_width);
    EXPECT_EQ(shape.cropped, shape.height.in < w.in_height || shape.width.in < w.in_width);
    if (HasFailure()) return;
    misses += shape.windows_miss_image ? 1 : 0;
    cropped += shape.cropped ? 1 : 0;
  }
  // The random cases cover both.
  EXPECT_GT(misses, 10);
  EXPECT_GT(cropped, 100);
}

// As in ResNet's projections, one row at the end is in no window.
TEST(ConvolutionShapeTest, FewerUnusedRowsThanAStrideAreKept) {
  const ConvolutionShape shape = ShapeOf(Convolution(2, 64, 128, Window(56, 56, 1, 2)));
  EXPECT_FALSE(shape.cropped);
  EXPECT_EQ(shape.height.in, 56);
  EXPECT_EQ(shape.height.pad_far, 0);
}

TEST(ConvolutionShapeTest, WeightsOfOneTapOrOneChannelKeepTheirOrder) {
  EXPECT_FALSE(ShapeOf(Convolution(1, 8, 8, Window(5, 5, 1))).reorders_weights);
  EXPECT_FALSE(ShapeOf(Convolution(1, 8, 8, Window(5, 5, 3), 8)).reorders_weights);
  EXPECT_TRUE(ShapeOf(Convolution(1, 8, 8, Window(5, 5, 3), 4)).reorders_weights);
}

}  // namespace
}  // namespace cadre
