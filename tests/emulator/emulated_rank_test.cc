// Matrix products of an emulated device, and graphs of a rank's back end. The tests of kernels
// compare its convolutions and attention with the reference (tests/kernels).
#include "tests/emulator/emulated_rank.h"

#include <numeric>
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

Floats Numbers(size_t count, float first = 1) {
  Floats numbers(count);
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

TEST_P(EmulatedRankTest, ProductsOfEveryOrientation) {
  // a = [[1, 2, 3], [4, 5, 6]], b = [[1, 2], [3, 4], [5, 6]].
  const Floats expected = {22, 28, 49, 64};
  for (const bool transpose_a : {false, true}) {
    for (const bool transpose_b : {false, true}) {
      const auto a = Put(transpose_a ? Floats{1, 4, 2, 5, 3, 6} : Numbers(6));
      const auto b = Put(transpose_b ? Floats{1, 3, 5, 2, 4, 6} : Numbers(6));
      const auto c = Put(Floats(4, -1));
      math_->MatrixProduct(
          {.m = 2, .n = 2, .k = 3, .transpose_a = transpose_a, .transpose_b = transpose_b},
          a.span(), b.span(), {}, c.span());
      EXPECT_EQ(c.Get(), expected);
    }
  }
}

TEST_P(EmulatedRankTest, ProductsWithBiasAndStrides) {
  const auto a = Put({1, 2, 9, 3, 4, 9});
  const auto b = Put({1, 0, 0, 1});
  const auto bias = Put({10, 20});
  const auto c = Put({1, 1, -7, 1, 1, -7});
  math_->MatrixProduct({.m = 2, .n = 2, .k = 2, .a_row = 3, .c_row = 3, .alpha = 2}, a.span(),
                       b.span(), bias.span(), c.span());
  EXPECT_EQ(c.Get(), (Floats{12, 24, -7, 16, 28, -7}));
}

TEST_P(EmulatedRankTest, BatchesOfProducts) {
  // c[o][i] = a[o][i] b[i]: b is the same for both outer ones.
  const auto a = Put(Numbers(4));
  const auto b = Put({10, 100});
  const auto c = Put(Floats(4));
  math_->MatrixProduct({.m = 1,
                        .n = 1,
                        .k = 1,
                        .batch = 2,
                        .a_step = 1,
                        .b_step = 1,
                        .c_step = 1,
                        .outer = 2,
                        .a_outer = 2,
                        .c_outer = 2},
                       a.span(), b.span(), {}, c.span());
  EXPECT_EQ(c.Get(), (Floats{10, 200, 30, 400}));
}

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
