#include "kernels/extents.h"

#include <gtest/gtest.h>

#include "tests/kernels/testing.h"

namespace cadre {
namespace {

TEST(ExtentsTest, SizesFollowTheDims) {
  const WindowDims window{.in_height = 5,
                          .in_width = 7,
                          .out_height = 3,
                          .out_width = 4,
                          .kernel_height = 1,
                          .kernel_width = 3};
  const LayerSizes convolution = SizesOf(Convolution(2, 4, 6, window, 2));
  EXPECT_EQ(convolution.x, 2 * 5 * 7 * 4);
  EXPECT_EQ(convolution.w, 6 * 2 * 1 * 3);
  EXPECT_EQ(convolution.b, 6);
  EXPECT_EQ(convolution.y, 2 * 3 * 4 * 6);
  const LayerSizes pooling = SizesOf(Pooling(PoolKind::kMax, 2, 4, window));
  EXPECT_EQ(pooling.x, 2 * 5 * 7 * 4);
  EXPECT_EQ(pooling.y, 2 * 3 * 4 * 4);
  const LayerSizes connected = SizesOf(FullyConnectedDims{.batch = 2, .in = 3, .out = 5});
  EXPECT_EQ(connected.x, 6);
  EXPECT_EQ(connected.w, 15);
  EXPECT_EQ(connected.b, 5);
  EXPECT_EQ(connected.y, 10);
  const AttentionSizes attention =
      SizesOf(AttentionDims{.batch = 2, .tokens = 3, .heads = 4, .head_features = 5});
  EXPECT_EQ(attention.ids, 0);
  EXPECT_EQ(attention.qkv, 2 * 3 * 4 * 3 * 5);
  EXPECT_EQ(attention.context, 2 * 3 * 4 * 5);
  EXPECT_EQ(attention.statistics, 2 * 4 * 3);
  EXPECT_EQ(SizesOf(AttentionDims{.batch = 2, .tokens = 3, .heads = 4, .padding_token = 0}).ids, 6);
  const EmbeddingSizes embedding = SizesOf(
      EmbeddingDims{.batch = 2, .first_token = 3, .tokens = 4, .vocabulary = 10, .features = 5});
  EXPECT_EQ(embedding.ids, 8);
  EXPECT_EQ(embedding.w, 50);
  EXPECT_EQ(embedding.y, 40);
  EXPECT_EQ(embedding.positions, 35);
}

TEST(ExtentsTest, FarPaddingCoversTheOutputs) {
  // Windows of 5 (3, dilated) start at -1, 1, 3, 5 and so end before 10: three more than 7 rows.
  WindowPadding padding = PaddingOf({.in_height = 7,
                                     .in_width = 9,
                                     .out_height = 4,
                                     .out_width = 2,
                                     .kernel_height = 3,
                                     .kernel_width = 1,
                                     .stride_height = 2,
                                     .stride_width = 2,
                                     .dilation = 2,
                                     .pad_top = 1,
                                     .pad_left = 2});
  EXPECT_EQ(padding.top, 1);
  EXPECT_EQ(padding.bottom, 3);
  EXPECT_EQ(padding.left, 2);
  // The windows begin at columns -2 and 0; none reaches the last eight.
  EXPECT_EQ(padding.right, -8);
  padding = PaddingOf(Window(8, 8, 3, 1, 1));
  EXPECT_EQ(padding.bottom, 1);
  EXPECT_EQ(padding.right, 1);
}

TEST(ExtentsTest, NoOutputsNeedNoPadding) {
  const WindowPadding padding = PaddingOf({.in_height = 3, .in_width = 3, .pad_top = 2});
  EXPECT_EQ(padding.top, 0);
  EXPECT_EQ(padding.bottom, 0);
}

TEST(ExtentsDeathTest, RejectsInvalidDims) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const ConvolutionDims good = Convolution(1, 4, 6, Window(4, 4, 3));
  ConvolutionDims dims = good;
  dims.groups = 4;
  EXPECT_DEATH(SizesOf(dims), "out_channels");
  dims.groups = 3;
  EXPECT_DEATH(SizesOf(dims), "in_channels");
  dims = good;
  dims.window.stride_height = 0;
  EXPECT_DEATH(SizesOf(dims), "stride");
  dims = good;
  dims.window.kernel_width = 0;
  EXPECT_DEATH(SizesOf(dims), "kernel_width");
  dims = good;
  dims.batch = -1;
  EXPECT_DEATH(SizesOf(dims), "extent");
  EXPECT_DEATH(SizesOf(Pooling(PoolKind::kMax, 1, 1, Window(9, 9, 2, 1, 0, 2))), "dilation");
  EXPECT_DEATH(CheckEmbedding({.tokens = 5, .features = 2}, 0, 0, 9, 0), "positions");
  EXPECT_DEATH(CheckEmbedding({.tokens = 5, .features = 2}, 0, 0, 8, 0), "positions");
}

}  // namespace
}  // namespace cadre
