// The change of LibraryMath from cuDNN's plans to Cadre's kernels, through a fake cuDNN on an
// emulated device. The fake's plans compute nothing, so results show which of the two computed
// them. Inputs are multiples of 1/8, of which sums are exact (direct_convolution_test.cc).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "device/cuda/cuda_machine.h"
#include "kernels/cuda/library_math.h"
#include "kernels/extents.h"
#include "tests/emulator/emulated_cuda.h"
#include "tests/kernels/fake_cudnn.h"
#include "tests/kernels/on_device.h"
#include "tests/kernels/testing.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

// No products are computed.
CublasLtApi IdleCublasLt() {
  CublasLtApi api;
  api.create = [](cublasLtHandle_t*) { return CUBLAS_STATUS_SUCCESS; };
  api.destroy = [](cublasLtHandle_t) { return CUBLAS_STATUS_SUCCESS; };
  api.version = []() -> size_t { return 130100; };
  return api;
}

constexpr char kForwardConvolution[] = "convolution forward of 2 x 6 x 5 x 3";
constexpr char kLastConvolution[] = "convolution backward to weights of 2 x 6 x 5 x 3";

// By type, and by rows and columns of the window: the order of the weights differs from cuDNN's
// unless there is one.
class ConvolutionFallbackTest : public ::testing::TestWithParam<std::tuple<DType, int>> {
 protected:
  ConvolutionFallbackTest() {
    fake_cudnn = {};
    const auto reference = MakeReferenceBackend();
    const Floats x = Eighths(sizes_.x, 1), w = Eighths(sizes_.w, 2), dy = Eighths(sizes_.y, 3);
    want_ = RunLayer(*reference, dims_, x, w, {}, dy);
    if (type_ == DType::kBFloat16) {
      want_.y = Bf16Rounded(want_.y);
      want_.dx = Bf16Rounded(want_.dx);
    }
    auto device = CudaDevice::Make(cuda_.api(), {});
    EXPECT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
    auto math = MakeLibraryMath(*device_, IdleCublasLt(), FakeCudnn());
    EXPECT_TRUE(math.ok()) << math.status();
    math_ = *std::move(math);
    x_ = Put(x);
    w_ = Put(w);
    dy_ = Put(dy);
    y_ = Put(Garbage(sizes_.y));
    dx_ = Put(Garbage(sizes_.x));
    dw_ = std::make_unique<OnDevice>(*device_, Garbage(sizes_.w));
  }
  ~ConvolutionFallbackTest() override {
    math_.reset();
    EXPECT_EQ(fake_cudnn.handles, 0);
    EXPECT_EQ(fake_cudnn.descriptors, 0);
  }

  std::unique_ptr<OnDevice> Put(const Floats& values) {
    return std::make_unique<OnDevice>(*device_, values, type_);
  }
  // Enqueues the three passes.
  absl::Status Enqueue() {
    math_->ConvolutionForward(dims_, x_->values(), w_->values(), y_->values());
    math_->ConvolutionBackwardData(dims_, dy_->values(), w_->values(), dx_->values());
    math_->ConvolutionBackwardWeights(dims_, x_->values(), dy_->values(), dw_->span());
    return device_->status();
  }
  void ExpectResultsOfCadresKernels() {
    EXPECT_EQ(y_->Get(), want_.y);
    EXPECT_EQ(dx_->Get(), want_.dx);
    EXPECT_EQ(dw_->Get(), want_.dw);
    device_->Zero(y_->values().data(), y_->values().bytes());
    device_->Zero(dx_->values().data(), dx_->values().bytes());
    device_->Zero(dw_->values().data(), dw_->values().bytes());
  }

  const DType type_ = std::get<0>(GetParam());
  const int kernel_ = std::get<1>(GetParam());
  const ConvolutionDims dims_ = Convolution(2, 3, 4, Window(6, 5, kernel_, 2, kernel_ / 2));
  const LayerSizes sizes_ = SizesOf(dims_);
  LayerOutputs want_;
  EmulatedCuda cuda_{EmulatedCuda::Mode::kInline};
  std::unique_ptr<CudaDevice> device_;
  std::unique_ptr<DenseMath> math_;
  std::unique_ptr<OnDevice> x_, w_, dy_, y_, dx_, dw_;
};

TEST_P(ConvolutionFallbackTest, PlansAreUsedAsLongAsTheyWork) {
  for (int i = 1; i <= 2; ++i) {
    ASSERT_TRUE(Enqueue().ok()) << device_->status();
    EXPECT_EQ(fake_cudnn.executions, 3 * i);
  }
  EXPECT_EQ(math_->counters().fallback_convolutions, 0);
  EXPECT_EQ(math_->counters().convolution_reason, "");
  EXPECT_TRUE(std::isnan(y_->Get()[0]));
  EXPECT_TRUE(std::isnan(dx_->Get()[0]));
}

TEST_P(ConvolutionFallbackTest, AttentionWithoutAPlanIsCountedWithItsReason) {
  fake_cudnn.engines = 0;
  AttentionDims attention{.batch = 1, .tokens = 16, .heads = 2, .head_features = 8};
  for (int i = 0; i < 2; ++i) {
    EXPECT_FALSE(math_->HasFusedAttention(attention, DType::kBFloat16));
    EXPECT_EQ(math_->counters().unfused_attentions, 1);
    EXPECT_THAT(math_->counters().attention_reason, HasSubstr("attention backward, batch 1"));
    EXPECT_THAT(math_->counters().attention_reason, HasSubstr("may have 134217728 bytes"));
  }
  EXPECT_EQ(math_->counters().fallback_convolutions, 0);
}

TEST_P(ConvolutionFallbackTest, CadresKernelsComputeWhatHasNoPlan) {
  fake_cudnn.engines = 0;
  ASSERT_TRUE(Enqueue().ok()) << device_->status();
  ExpectResultsOfCadresKernels();
  EXPECT_EQ(math_->counters().fallback_convolutions, 3);
  EXPECT_THAT(math_->counters().convolution_reason, HasSubstr(kLastConvolution));
  EXPECT_THAT(math_->counters().convolution_reason, HasSubstr("no engine fits"));
  // The library is not asked again, even if it had a plan now.
  fake_cudnn.engines = 1;
  const int queries = fake_cudnn.queries;
  ASSERT_TRUE(Enqueue().ok()) << device_->status();
  ExpectResultsOfCadresKernels();
  EXPECT_EQ(fake_cudnn.queries, queries);
  EXPECT_EQ(fake_cudnn.executions, 0);
  EXPECT_EQ(math_->counters().fallback_convolutions, 3);
}

TEST_P(ConvolutionFallbackTest, CadresKernelsReplacePlansThatFail) {
  ASSERT_TRUE(Enqueue().ok()) << device_->status();
  fake_cudnn.execution = CUDNN_STATUS_EXECUTION_FAILED;
  ASSERT_TRUE(Enqueue().ok()) << device_->status();
  ExpectResultsOfCadresKernels();
  EXPECT_EQ(math_->counters().fallback_convolutions, 3);
  EXPECT_EQ(fake_cudnn.executions, 6);
  EXPECT_THAT(math_->counters().convolution_reason, HasSubstr(kLastConvolution));
  EXPECT_THAT(math_->counters().convolution_reason, HasSubstr("it did not work"));
  ASSERT_TRUE(Enqueue().ok()) << device_->status();
  ExpectResultsOfCadresKernels();
  EXPECT_EQ(fake_cudnn.executions, 6);
  EXPECT_EQ(math_->counters().fallback_convolutions, 3);
}

TEST_P(ConvolutionFallbackTest, OnlyThePassWithoutAPlanIsReplaced) {
  math_->ConvolutionForward(dims_, x_->values(), w_->values(), y_->values());
  fake_cudnn.engines = 0;
  ASSERT_TRUE(Enqueue().ok()) << device_->status();
  EXPECT_EQ(fake_cudnn.executions, 2);
  EXPECT_EQ(math_->counters().fallback_convolutions, 2);
  EXPECT_TRUE(std::isnan(y_->Get()[0]));
  EXPECT_EQ(dx_->Get(), want_.dx);
  EXPECT_EQ(dw_->Get(), want_.dw);
}

TEST_P(ConvolutionFallbackTest, FallbackIsCapturedAfterItRanOnce) {
  fake_cudnn.engines = 0;
  const auto refused = device_->CaptureGraph([&] { return Enqueue(); });
  ASSERT_TRUE(refused.ok()) << refused.status();
  EXPECT_EQ(*refused, nullptr);
  EXPECT_EQ(math_->counters().fallback_convolutions, 0);
  ASSERT_TRUE(Enqueue().ok()) << device_->status();
  ExpectResultsOfCadresKernels();
  const auto graph = device_->CaptureGraph([&] { return Enqueue(); });
  ASSERT_TRUE(graph.ok()) << graph.status();
  ASSERT_NE(*graph, nullptr);
  device_->LaunchGraph(**graph);
  ExpectResultsOfCadresKernels();
}

// The same plan may work outside of a capture, so it is kept.
TEST_P(ConvolutionFallbackTest, PlanThatFailsInACaptureRefusesTheCaptureOnly) {
  ASSERT_TRUE(Enqueue().ok()) << device_->status();
  fake_cudnn.execution = CUDNN_STATUS_NOT_SUPPORTED;
  const auto refused = device_->CaptureGraph([&] { return Enqueue(); });
  ASSERT_TRUE(refused.ok()) << refused.status();
  EXPECT_EQ(*refused, nullptr);
  EXPECT_THAT(device_->capture_refusal(), HasSubstr(kForwardConvolution));
  EXPECT_EQ(math_->counters().fallback_convolutions, 0);
  fake_cudnn.execution = CUDNN_STATUS_SUCCESS;
  const int before = fake_cudnn.executions;
  ASSERT_TRUE(Enqueue().ok()) << device_->status();
  EXPECT_EQ(fake_cudnn.executions, before + 3);
}

// Cadre's kernels could not run either.
TEST_P(ConvolutionFallbackTest, ErrorsOfTheDeviceAreNotReplaced) {
  ASSERT_TRUE(Enqueue().ok()) << device_->status();
  fake_cudnn.execution = CUDNN_STATUS_EXECUTION_FAILED;
  fake_cudnn.on_execute = [&] { cuda_.Break(cudaErrorIllegalAddress); };
  const absl::Status status = Enqueue();
  EXPECT_EQ(status.code(), CudaStatus(cuda_.api(), cudaErrorIllegalAddress, "").code()) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(kForwardConvolution));
  EXPECT_TRUE(device_->lost());
  EXPECT_EQ(math_->counters().fallback_convolutions, 0);
}

INSTANTIATE_TEST_SUITE_P(Types, ConvolutionFallbackTest,
                         ::testing::Combine(::testing::Values(DType::kFloat32, DType::kBFloat16),
                                            ::testing::Values(1, 3)),
                         [](const auto& info) {
                           return absl::StrCat(DTypeName(std::get<0>(info.param)), "_",
                                               std::get<1>(info.param));
                         });

}  // namespace
}  // namespace cadre
