// Rounding of an emulated device's math, and graphs of a rank's back end. The tests of kernels
// compare its products, convolutions and attention with the reference (tests/kernels).
#include "tests/emulator/emulated_rank.h"

#include <vector>

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
  const auto identity = Put({2});
  const auto c = Put({3});
  ASSERT_TRUE(rank_.device->Synchronize().ok());
  auto graph = rank_.device->CaptureGraph([&] {
    rank_.kernels->pointwise().Add(x.span(), y.span());
    math_->MatrixProduct({.m = 1, .n = 1, .k = 1}, c.span(), identity.span(), {}, c.span());
    return absl::OkStatus();
  });
  ASSERT_TRUE(graph.ok()) << graph.status();
  rank_.machine->ResetCalls();
  for (int i = 0; i < 3; ++i) rank_.device->LaunchGraph(**graph);
  EXPECT_EQ(rank_.machine->calls("launch"), 0);
  EXPECT_EQ(rank_.machine->calls("graph_launch"), 3);
  EXPECT_EQ(rank_.machine->calls("hidden_wait"), 0);
  EXPECT_EQ(y.Get(), Floats(1000, 5));
  EXPECT_EQ(c.Get()[0], 24);
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
  EXPECT_DEATH(math->MatrixProduct({.m = 1, .n = 1, .k = 1}, x, x, {}, x), "matrix product");
}

}  // namespace
}  // namespace cadre
