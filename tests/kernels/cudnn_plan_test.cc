// Plans of cuDNN can be made for a device that is not here: whether the library takes what we tell
// it and has kernels for it is seen without a GPU, wherever the library itself is. Without it the
// tests are skipped, saying where it was looked for.
#include "kernels/cuda/cudnn_plan.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "kernels/cuda/convolution_shape.h"
#include "kernels/cuda/cudnn_library.h"
#include "tests/kernels/testing.h"

namespace cadre {
namespace {

// An H100, in the words of cuDNN's device properties.
constexpr char kH100[] =
    R"({"maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],)"
    R"("regsPerBlock":65536,"multiProcessorCount":132,"warpSize":32,)"
    R"("maxSharedMemoryPerBlock":49152,"maxSharedMemoryPerBlockOptin":232448,)"
    R"("reservedSharedMemoryPerBlock":1024,"maxRegistersPerSM":65536,"maxCtasPerSM":32,)"
    R"("maxThreadsPerBlock":1024,"maxThreadsPerSM":2048,"pciDeviceId":0,"isTccDriver":0,)"
    R"("supportCoopLaunch":1,"totalGlobalMem":85000000000,"smClockRateKHz":1980000,)"
    R"("memClockRateKHz":2619000,"l2CacheSize":52428800,"cudaDeviceId":0,"deviceVer":900,)"
    R"("driverVer":13000,"deviceName":"NVIDIA H100 80GB HBM3"})";

std::vector<std::string> Folders() { return absl::StrSplit(CADRE_CUDA_LIBRARY_FOLDERS, ':'); }

LibrarySearch Search() {
  LibrarySearch search;
  for (const std::string& folder : Folders()) {
    if (std::filesystem::is_directory(folder)) search.directories.push_back(folder);
  }
  return search;
}

cudaError_t H100Properties(cudaDeviceProp* properties, int /*device*/) {
  std::memset(properties, 0, sizeof(*properties));
  properties->major = 9;
  properties->multiProcessorCount = 132;
  return cudaSuccess;
}

class CudnnPlanTest : public ::testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<CudnnApi> api = LoadCudnn(Search());
    if (!api.ok()) GTEST_SKIP() << "no cuDNN here: " << api.status().message();
    api_ = *api;
    cuda_.properties = &H100Properties;
    machine_ = {.cudnn = &api_, .cuda = &cuda_, .description = kH100};
  }

  CudnnApi api_;
  CudaApi cuda_;
  CudnnMachine machine_;
};

// What the reference is tested with, and what networks have.
std::vector<ConvolutionDims> Shapes() {
  return {
      Convolution(2, 64, 64, Window(56, 56, 1)),
      Convolution(2, 64, 256, Window(56, 56, 1)),
      Convolution(2, 256, 512, Window(56, 56, 1, 2)),
      Convolution(2, 128, 128, Window(28, 28, 3, 2, 1)),
      Convolution(2, 256, 256, Window(14, 14, 3, 1, 1)),
      Convolution(2, 3, 64, Window(224, 224, 7, 2, 3)),
      Convolution(2, 3, 96, Window(227, 227, 11, 4)),
      Convolution(3, 1, 32, Window(28, 28, 3, 1, 1)),
      Convolution(
          2, 16, 16,
          Fitted(
              {.in_height = 5, .in_width = 8, .kernel_height = 3, .kernel_width = 3, .pad_left = 1},
              1, 1)),
      Convolution(
          2, 16, 32,
          Fitted(
              {.in_height = 9, .in_width = 6, .kernel_height = 7, .kernel_width = 1, .pad_top = 3},
              3, 0)),
      Convolution(2, 3, 4,
                  {.in_height = 9,
                   .in_width = 9,
                   .out_height = 3,
                   .out_width = 2,
                   .kernel_height = 3,
                   .kernel_width = 3}),
      Convolution(2, 16, 6, Window(6, 6, 1, 3)),
      Convolution(1, 2, 3,
                  {.in_height = 1,
                   .in_width = 2,
                   .out_height = 5,
                   .out_width = 6,
                   .kernel_height = 2,
                   .kernel_width = 2,
                   .pad_top = 3,
                   .pad_left = 2}),
      Convolution(2, 5, 7, Window(11, 10, 3, 1, 2, 2)),
      Convolution(1, 8, 8, Window(13, 9, 3, 2, 3, 3)),
      Convolution(2, 6, 9, Window(5, 5, 3, 1, 1), 3),
      Convolution(2, 32, 64, Window(5, 6, 3, 1, 1), 2),
      Convolution(2, 17, 17, Window(7, 7, 3, 2, 1), 17),
      Convolution(2, 32, 32, Window(7, 7, 3, 1, 1), 32),
      Convolution(1, 4, 8, Window(9, 9, 3, 1, 2, 2), 4),
      Convolution(2, 8, 9, Window(10, 8, 2, 3)),
      Convolution(2, 4, 5, Window(2, 3, 5, 1, 2)),
      Convolution(2, 17, 33, Window(9, 9, 1, 2)),
      Convolution(2, 3, 5, Window(3, 1300, 3, 1, 1)),
  };
}

TEST_F(CudnnPlanTest, EveryConvolutionHasAPlanInEveryTypeAndPass) {
  for (const ConvolutionDims& dims : Shapes()) {
    ASSERT_FALSE(ShapeOf(dims).blind);
    for (const ConvolutionPass pass : {ConvolutionPass::kForward, ConvolutionPass::kBackwardData,
                                       ConvolutionPass::kBackwardWeights}) {
      for (const auto& [type, tf32, alignment] :
           {std::tuple(DType::kBFloat16, false, 16), std::tuple(DType::kBFloat16, false, 2),
            std::tuple(DType::kFloat32, true, 16), std::tuple(DType::kFloat32, false, 4)}) {
        const auto plan = MakeConvolutionPlan(
            machine_,
            {.dims = dims, .pass = pass, .type = type, .tf32 = tf32, .alignment = alignment});
        ASSERT_TRUE(plan.ok()) << plan.status();
        EXPECT_LE((*plan)->workspace(), static_cast<size_t>(machine_.workspace_limit));
        EXPECT_FALSE((*plan)->name().empty());
      }
    }
  }
}

TEST_F(CudnnPlanTest, NoPlanWorksInMoreThanTheLimit) {
  ConvolutionKey key{.dims = Convolution(64, 3, 64, Window(224, 224, 7, 2, 3)),
                     .pass = ConvolutionPass::kBackwardWeights,
                     .type = DType::kBFloat16};
  const auto large = MakeConvolutionPlan(machine_, key);
  ASSERT_TRUE(large.ok()) << large.status();
  ASSERT_GT((*large)->workspace(), size_t{1} << 20);
  machine_.workspace_limit = static_cast<int64_t>((*large)->workspace()) - 1;
  const auto small = MakeConvolutionPlan(machine_, key);
  ASSERT_TRUE(small.ok()) << small.status();
  EXPECT_LT((*small)->workspace(), (*large)->workspace());
}

// TF32 is what tensor cores make of fp32, so a plan that must not use it is another one.
TEST_F(CudnnPlanTest, Fp32KeepsOffTensorCores) {
  ConvolutionKey key{.dims = Convolution(64, 256, 256, Window(14, 14, 3, 1, 1)), .tf32 = true};
  const auto coarse = MakeConvolutionPlan(machine_, key);
  key.tf32 = false;
  const auto exact = MakeConvolutionPlan(machine_, key);
  ASSERT_TRUE(coarse.ok() && exact.ok()) << coarse.status() << exact.status();
  EXPECT_NE((*coarse)->name(), (*exact)->name());
}

TEST_F(CudnnPlanTest, WhatIsNotSupportedSaysWhatWasAskedFor) {
  const auto plan = MakeAttentionPlan(
      machine_, {.batch = 2, .tokens = 16, .heads = 2, .head_features = 1023}, false);
  ASSERT_FALSE(plan.ok());
  EXPECT_TRUE(absl::StrContains(plan.status().message(),
                                "attention forward, batch 2, 16 tokens, 2 heads of 1023"))
      << plan.status();
}

// Kernels for attention are compiled when they are chosen, for which the library wants a driver and
// NVIDIA's run-time compiler.
TEST_F(CudnnPlanTest, AttentionHasPlansForBothPasses) {
  for (const auto& [features, tokens, causal] :
       {std::tuple(64, 128, true), std::tuple(64, 37, false), std::tuple(24, 128, true),
        std::tuple(128, 37, true)}) {
    const AttentionDims dims{
        .batch = 2, .tokens = tokens, .heads = 6, .head_features = features, .causal = causal};
    for (const bool backward : {false, true}) {
      const auto plan = MakeAttentionPlan(machine_, dims, backward);
      if (!plan.ok() && absl::StrContains(plan.status().message(), "PREREQUISITE_MISSING")) {
        GTEST_SKIP() << "no driver or no NVRTC here: " << plan.status().message();
      }
      ASSERT_TRUE(plan.ok()) << plan.status();
    }
  }
}

}  // namespace
}  // namespace cadre
