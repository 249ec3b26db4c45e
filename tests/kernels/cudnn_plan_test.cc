// Tests that cuDNN accepts our descriptions and has kernels for them. No GPU is needed, because
// plans can be made for a device that this machine does not have (plans_without_gpu.h).
#include "kernels/cuda/cudnn_plan.h"

#include <gtest/gtest.h>

#include <iostream>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/match.h"
#include "kernels/cuda/vendor_layout.h"
#include "kernels/extents.h"
#include "tests/kernels/plans_without_gpu.h"
#include "tests/kernels/random_dims.h"
#include "tests/kernels/testing.h"

namespace cadre {
namespace {

using CudnnPlanTest = PlansWithoutGpu;

// Convolutions of networks, and unusual ones.
std::vector<ConvolutionDims> Shapes() {
  std::vector<ConvolutionDims> shapes = UnusualConvolutions();
  for (const ConvolutionDims& dims :
       {Convolution(2, 64, 64, Window(56, 56, 1)), Convolution(2, 64, 256, Window(56, 56, 1)),
        Convolution(2, 256, 512, Window(56, 56, 1, 2)),
        Convolution(2, 128, 128, Window(28, 28, 3, 2, 1)),
        Convolution(2, 256, 256, Window(14, 14, 3, 1, 1)),
        Convolution(2, 3, 64, Window(224, 224, 7, 2, 3)),
        Convolution(2, 3, 96, Window(227, 227, 11, 4)),
        Convolution(3, 1, 32, Window(28, 28, 3, 1, 1)), Convolution(2, 17, 33, Window(9, 9, 1, 2)),
        Convolution(2, 3, 5, Window(3, 1300, 3, 1, 1))}) {
    shapes.push_back(dims);
  }
  return shapes;
}

TEST_F(CudnnPlanTest, EveryConvolutionHasAPlanInEveryTypeAndPass) {
  for (const ConvolutionDims& dims : Shapes()) {
    ASSERT_FALSE(ShapeOf(dims).windows_miss_image);
    for (const ConvolutionPass pass : {ConvolutionPass::kForward, ConvolutionPass::kBackwardData,
                                       ConvolutionPass::kBackwardWeights}) {
      for (const auto& [type, tf32, alignment] :
           {std::tuple(DType::kBFloat16, false, 16), std::tuple(DType::kBFloat16, false, 2),
            std::tuple(DType::kFloat32, true, 16), std::tuple(DType::kFloat32, false, 4)}) {
        const auto plan = MakeConvolutionPlan(
            target_,
            {.dims = dims, .pass = pass, .type = type, .tf32 = tf32, .alignment = alignment});
        ASSERT_TRUE(plan.ok()) << plan.status();
        const int64_t workspace = (*plan)->workspace();
        EXPECT_LE(workspace, target_.workspace_limit);
        EXPECT_FALSE((*plan)->name().empty());
      }
    }
  }
}

// Makes plans for the random cases that the back ends compute, in every type. Lists those without a
// plan, which Cadre's own kernels compute.
TEST_F(CudnnPlanTest, RandomConvolutionsWithoutAPlanAreLeftToTheFallback) {
  int planned = 0, missing = 0, without_work = 0;
  for (uint64_t seed = 0; seed < kRandomCases; ++seed) {
    const ConvolutionDims dims = RandomConvolution(seed);
    const LayerSizes sizes = SizesOf(dims);
    if (sizes.x == 0 || sizes.w == 0 || sizes.y == 0 || ShapeOf(dims).windows_miss_image) {
      ++without_work;
      continue;
    }
    for (const ConvolutionPass pass : {ConvolutionPass::kForward, ConvolutionPass::kBackwardData,
                                       ConvolutionPass::kBackwardWeights}) {
      for (const auto& [type, tf32, alignment] :
           {std::tuple(DType::kBFloat16, false, 16), std::tuple(DType::kBFloat16, false, 2),
            std::tuple(DType::kFloat32, true, 16), std::tuple(DType::kFloat32, false, 16),
            std::tuple(DType::kFloat32, false, 4)}) {
        const auto plan = MakeConvolutionPlan(
            target_,
            {.dims = dims, .pass = pass, .type = type, .tf32 = tf32, .alignment = alignment});
        ++(plan.ok() ? planned : missing);
        if (plan.ok()) continue;
        EXPECT_TRUE(absl::IsUnimplemented(plan.status())) << plan.status();
        std::cout << "no plan: seed " << seed << ": " << plan.status().message() << std::endl;
      }
    }
  }
  std::cout << planned << " plans, " << missing << " left to the fallback, " << without_work
            << " convolutions need none" << std::endl;
  EXPECT_GT(planned, 1000);
}

TEST_F(CudnnPlanTest, WorkspacesAreWithinTheLimit) {
  ConvolutionKey key{.dims = Convolution(64, 3, 64, Window(224, 224, 7, 2, 3)),
                     .pass = ConvolutionPass::kBackwardWeights,
                     .type = DType::kBFloat16};
  const auto large = MakeConvolutionPlan(target_, key);
  ASSERT_TRUE(large.ok()) << large.status();
  ASSERT_GT((*large)->workspace(), size_t{1} << 20);
  target_.workspace_limit = (*large)->workspace() - 1;
  const auto small = MakeConvolutionPlan(target_, key);
  ASSERT_TRUE(small.ok()) << small.status();
  EXPECT_LT((*small)->workspace(), (*large)->workspace());
}

// Tensor cores compute fp32 products as TF32, so a plan without TF32 must differ.
TEST_F(CudnnPlanTest, Fp32DoesNotUseTensorCores) {
  ConvolutionKey key{.dims = Convolution(64, 256, 256, Window(14, 14, 3, 1, 1)), .tf32 = true};
  const auto coarse = MakeConvolutionPlan(target_, key);
  key.tf32 = false;
  const auto exact = MakeConvolutionPlan(target_, key);
  ASSERT_TRUE(coarse.ok() && exact.ok()) << coarse.status() << exact.status();
  EXPECT_NE((*coarse)->name(), (*exact)->name());
}

TEST_F(CudnnPlanTest, ErrorsNameTheOperation) {
  const auto plan = MakeAttentionPlan(
      target_, {.batch = 2, .tokens = 16, .heads = 2, .head_features = 1023}, false);
  ASSERT_FALSE(plan.ok());
  EXPECT_TRUE(absl::StrContains(plan.status().message(),
                                "attention forward, batch 2, 16 tokens, 2 heads of 1023"))
      << plan.status();
}

// cuDNN compiles kernels for attention when it makes a plan, and needs a driver and NVIDIA's
// run-time compiler for that.
TEST_F(CudnnPlanTest, AttentionHasPlansForBothPasses) {
  for (const auto& [features, tokens, causal] :
       {std::tuple(64, 128, true), std::tuple(64, 37, false), std::tuple(24, 128, true),
        std::tuple(128, 37, true)}) {
    const AttentionDims dims{
        .batch = 2, .tokens = tokens, .heads = 6, .head_features = features, .causal = causal};
    for (const bool backward : {false, true}) {
      const auto plan = MakeAttentionPlan(target_, dims, backward);
      if (!plan.ok() && absl::StrContains(plan.status().message(), "PREREQUISITE_MISSING")) {
        GTEST_SKIP() << "no driver or no NVRTC here: " << plan.status().message();
      }
      ASSERT_TRUE(plan.ok()) << plan.status();
    }
  }
}

}  // namespace
}  // namespace cadre
