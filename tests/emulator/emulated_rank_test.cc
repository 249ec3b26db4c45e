// Rounding of an emulated device's math, and graphs of a rank's back end. The tests of kernels
// compare its products, convolutions and attention with the reference (tests/kernels).
#include "tests/emulator/emulated_rank.h"

#include <functional>
#include <vector>

#include "base/error_reason.h"
#include "gtest/gtest.h"
#include "tests/emulator/emulated_math.h"
#include "tests/kernels/on_device.h"

namespace cadre {
namespace {

using Mode = EmulatedCuda::Mode;

class EmulatedRankTest : public testing::TestWithParam<Mode> {
 protected:
  EmulatedRankTest()
      : rank_(MakeEmulatedRank(GetParam())),
        math_(MakeEmulatedMath(*rank_.device, *rank_.machine)) {}

  OnDevice Put(const Floats& values, DType type = DType::kFloat32) {
    return OnDevice(*rank_.device, values, type);
  }

  EmulatedRank rank_;
  std::unique_ptr<DenseMath> math_;
};

INSTANTIATE_TEST_SUITE_P(Modes, EmulatedRankTest, testing::Values(Mode::kInline, Mode::kThreads),
                         [](const auto& info) {
                           return info.param == Mode::kInline ? "Inline" : "Threads";
                         });

TEST_P(EmulatedRankTest, Tf32AndBf16RoundTheirFactors) {
  const float fine = 1 + 0x1p-12F;
  const auto a = Put({fine});
  const auto one = Put({1});
  const auto c = Put({0});
  math_->MatrixProduct({.m = 1, .n = 1, .k = 1}, a.span(), one.span(), {}, c.span());
  EXPECT_EQ(c.Get()[0], fine);
  math_->set_tf32(true);
  math_->MatrixProduct({.m = 1, .n = 1, .k = 1}, a.span(), one.span(), {}, c.span());
  EXPECT_EQ(c.Get()[0], 1);
  // bf16 cannot hold 257: the sum is rounded if c is bf16, but not if it is fp32.
  const auto x = Put({256, 1}, DType::kBFloat16), y = Put({1, 1}, DType::kBFloat16),
             narrow = Put({0}, DType::kBFloat16);
  math_->MatrixProduct({.m = 1, .n = 1, .k = 2}, x.values(), y.values(), {}, c.span());
  EXPECT_EQ(c.Get()[0], 257);
  math_->MatrixProduct({.m = 1, .n = 1, .k = 2}, x.values(), y.values(), {}, narrow.values());
  EXPECT_EQ(narrow.Get()[0], 256);
}

TEST_P(EmulatedRankTest, WorkCanBeCapturedAndLaunched) {
  ASSERT_TRUE(rank_.device->can_capture());
  const auto x = Put(Floats(1000, 1));
  const auto y = Put(Floats(1000, 2));
  const auto two = Put({2});
  const auto c = Put({3}), doubled = Put({0});
  const auto work = [&] {
    rank_.kernels->pointwise().Add(x.span(), y.span());
    math_->MatrixProduct({.m = 1, .n = 1, .k = 1}, c.span(), two.span(), {}, doubled.span());
    rank_.kernels->pointwise().Add(doubled.span(), c.span());
    return rank_.device->status();
  };
  ASSERT_TRUE(work().ok());
  ASSERT_TRUE(rank_.device->Synchronize().ok());
  auto graph = rank_.device->CaptureGraph(work);
  ASSERT_TRUE(graph.ok() && *graph != nullptr) << graph.status();
  rank_.machine->ResetCalls();
  for (int i = 0; i < 3; ++i) rank_.device->LaunchGraph(**graph);
  EXPECT_EQ(rank_.machine->calls("launch"), 0);
  EXPECT_EQ(rank_.machine->calls("graph_launch"), 3);
  EXPECT_EQ(rank_.machine->calls("hidden_wait"), 0);
  EXPECT_EQ(y.Get(), Floats(1000, 6));
  EXPECT_EQ(c.Get()[0], 3 * 3 * 3 * 3 * 3);
}

// As libraries do, whose plans allocate memory and load kernels.
TEST_P(EmulatedRankTest, CapturesNeedPlansThatExist) {
  const auto x = Put(Floats(64, 1)), w = Put(Floats(9, 1)), y = Put(Floats(36)), c = Put({0});
  const AttentionDims attention{.batch = 1, .tokens = 4, .heads = 1, .head_features = 8};
  const std::function<bool()> uses[] = {
      [&] {
        math_->MatrixProduct({.m = 1, .n = 1, .k = 64}, x.span(), x.span(), {}, c.span());
        return true;
      },
      [&] {
        math_->ConvolutionForward(Convolution(1, 1, 1, Window(8, 8, 3)), x.span(), w.span(),
                                  y.span());
        return true;
      },
      [&] { return math_->HasFusedAttention(attention, DType::kBFloat16); }};
  for (const auto& use : uses) {
    const auto capture = [&] {
      use();
      return absl::OkStatus();
    };
    const auto refused = rank_.device->CaptureGraph(capture);
    ASSERT_TRUE(refused.ok()) << refused.status();
    EXPECT_EQ(*refused, nullptr);
    ASSERT_TRUE(use());
    const auto captured = rank_.device->CaptureGraph(capture);
    ASSERT_TRUE(captured.ok()) << captured.status();
    EXPECT_NE(*captured, nullptr);
  }
}

TEST_P(EmulatedRankTest, LibraryCallsFailByName) {
  const auto x = Put(Floats(64, 1)), c = Put({0});
  const auto multiply = [&] {
    math_->MatrixProduct({.m = 1, .n = 1, .k = 64}, x.span(), x.span(), {}, c.span());
    return rank_.device->status();
  };
  ASSERT_TRUE(multiply().ok());
  rank_.machine->FailNext("convolution", cudaErrorUnknown);
  rank_.machine->FailNext("matrix product", cudaErrorUnknown, 1);
  ASSERT_TRUE(multiply().ok());
  EXPECT_EQ(multiply().message(), "emulated library: execution of matrix product");
  EXPECT_EQ(rank_.machine->calls("library"), 3);
}

TEST_P(EmulatedRankTest, ExtentsMayHaveNoPlan) {
  const auto x = Put(Floats(64, 1)), w = Put(Floats(9, 1)), y = Put(Floats(64));
  const auto convolve = [&](const WindowDims& window) {
    const ConvolutionDims dims = Convolution(1, 1, 1, window);
    const size_t outputs = window.out_height * window.out_width;
    math_->ConvolutionForward(dims, x.span(), w.span(), y.span().first(outputs));
    return rank_.device->status();
  };
  ASSERT_TRUE(convolve(Window(8, 8, 3)).ok());
  rank_.machine->FailNext("plan of convolution", cudaErrorNotSupported);
  rank_.machine->FailNext("plan of attention", cudaErrorNotSupported);
  rank_.machine->FailNext("plan of matrix product", cudaErrorNotSupported);
  AttentionDims attention{.batch = 1, .tokens = 4, .heads = 1, .head_features = 8};
  for (int i = 0; i < 2; ++i) {
    EXPECT_FALSE(math_->HasFusedAttention(attention, DType::kBFloat16));
  }
  attention.tokens = 8;
  EXPECT_TRUE(math_->HasFusedAttention(attention, DType::kBFloat16));
  ASSERT_TRUE(convolve(Window(8, 8, 3)).ok());
  EXPECT_EQ(math_->counters().fallback_convolutions, 0);
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(convolve(Window(8, 8, 3, 2)).ok());
    EXPECT_EQ(y.Get()[0], 9);
  }
  EXPECT_EQ(math_->counters().fallback_convolutions, 1);
  EXPECT_EQ(math_->counters().convolution_reason, "emulated library: no plan of convolution");
  EXPECT_EQ(math_->counters().unfused_attentions, 1);
  EXPECT_EQ(math_->counters().attention_reason, "emulated library: no plan of attention");
  math_->MatrixProduct({.m = 1, .n = 1, .k = 9}, w.span(), w.span(), {}, y.span());
  EXPECT_EQ(rank_.device->status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(HasReason(rank_.device->status(), kReasonNoPlan));
}

TEST_P(EmulatedRankTest, DestructionReleasesEverything) {
  Put(Floats(100));
  math_.reset();
  rank_.kernels.reset();
  rank_.device.reset();
  EXPECT_EQ(rank_.machine->live().objects(), 0);
}

TEST(EmulatedRankDeathTest, RejectsOperandsInHostMemory) {
  const EmulatedRank rank = MakeEmulatedRank(Mode::kInline);
  const auto math = MakeEmulatedMath(*rank.device, *rank.machine);
  Floats x(4);
  EXPECT_DEATH(math->MatrixProduct({.m = 1, .n = 1, .k = 1}, x, x, {}, x), "matrix product: c");
}

TEST(EmulatedRankDeathTest, RejectsOperandsThatOverlap) {
  const EmulatedRank rank = MakeEmulatedRank(Mode::kInline);
  const auto math = MakeEmulatedMath(*rank.device, *rank.machine);
  const OnDevice x(*rank.device, Floats(48, 1));
  const auto multiply = [&](size_t a, size_t b, size_t c) {
    math->MatrixProduct({.m = 4, .n = 4, .k = 4}, x.span().subspan(a, 16), x.span().subspan(b, 16),
                        {}, x.span().subspan(c, 16));
  };
  multiply(0, 0, 16);
  multiply(32, 0, 16);
  EXPECT_TRUE(rank.device->status().ok());
  EXPECT_DEATH(multiply(15, 32, 0), "matrix product writes c, which overlaps a");
  EXPECT_DEATH(multiply(0, 16, 17), "matrix product writes c, which overlaps b");
}

}  // namespace
}  // namespace cadre
