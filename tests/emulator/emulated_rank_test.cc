// The dense math of an emulated device against plain definitions, and a rank's back end at work.
#include "tests/emulator/emulated_rank.h"

#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"
#include "tests/emulator/emulated_math.h"

namespace cadre {
namespace {

using Floats = std::vector<float>;
using Mode = EmulatedCuda::Mode;

class EmulatedRankTest : public testing::TestWithParam<Mode> {
 protected:
  EmulatedRankTest()
      : rank_(MakeEmulatedRank(GetParam())),
        math_(MakeEmulatedMath(*rank_.device, *rank_.machine)) {}

  DeviceArray<float> Put(const Floats& values) {
    DeviceArray<float> array(*rank_.device, values.size(), "test");
    rank_.device->CopyIn(values.data(), array.data(), values.size() * sizeof(float));
    return array;
  }
  Floats Get(const DeviceArray<float>& array) {
    Floats values(array.size());
    EXPECT_TRUE(
        rank_.device->CopyOut(array.data(), values.data(), values.size() * sizeof(float)).ok());
    return values;
  }
  // bf16 from fp32, and back.
  DeviceArray<uint16_t> DivideToFloat(const Floats& values) {
    const DeviceArray<float> wide = Put(values);
    DeviceArray<uint16_t> narrow(*rank_.device, values.size(), "test");
    rank_.kernels->memory().Copy(wide.span(), {narrow.data(), narrow.size(), DType::kBFloat16});
    EXPECT_TRUE(rank_.device->Synchronize().ok());
    return narrow;
  }
  Floats Get(const DeviceArray<uint16_t>& array) {
    DeviceArray<float> wide(*rank_.device, array.size(), "test");
    rank_.kernels->memory().Copy(ConstValues(array.data(), array.size(), DType::kBFloat16),
                                 wide.span());
    return Get(wide);
  }

  EmulatedRank rank_;
  std::unique_ptr<DenseMath> math_;
};

INSTANTIATE_TEST_SUITE_P(Modes, EmulatedRankTest, testing::Values(Mode::kInline, Mode::kThreads),
                         [](const auto& info) {
                           return info.param == Mode::kInline ? "Inline" : "Threads";
                         });

Values Bf16(const DeviceArray<uint16_t>& array) {
  return {array.data(), array.size(), DType::kBFloat16};
}

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
      EXPECT_EQ(Get(c), expected);
    }
  }
}

TEST_P(EmulatedRankTest, ProductsWithBiasGapsAndSums) {
  const auto a = Put({1, 2, 9, 3, 4, 9});
  const auto b = Put({1, 0, 0, 1});
  const auto bias = Put({10, 20});
  const auto c = Put({1, 1, -7, 1, 1, -7});
  math_->MatrixProduct({.m = 2,
                        .n = 2,
                        .k = 2,
                        .a_row = 3,
                        .c_row = 3,
                        .alpha = 2,
                        .accumulate = true,
                        .epilogue = MatrixProductDims::Epilogue::kBias},
                       a.span(), b.span(), bias.span(), c.span());
  EXPECT_EQ(Get(c), (Floats{13, 25, -7, 17, 29, -7}));
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
  EXPECT_EQ(Get(c), (Floats{10, 200, 30, 400}));
}

TEST_P(EmulatedRankTest, Tf32AndBf16RoundTheirFactors) {
  const float fine = 1 + 0x1p-12F;
  const auto a = Put({fine});
  const auto one = Put({1});
  const auto c = Put({0});
  math_->MatrixProduct({.m = 1, .n = 1, .k = 1}, a.span(), one.span(), {}, c.span());
  EXPECT_EQ(Get(c)[0], fine);
  math_->set_tf32(true);
  math_->MatrixProduct({.m = 1, .n = 1, .k = 1}, a.span(), one.span(), {}, c.span());
  EXPECT_EQ(Get(c)[0], 1);
  // 257 is no bf16: rounded where c is bf16, not where it is fp32.
  const auto x = DivideToFloat({256, 1});
  const auto y = DivideToFloat({1, 1});
  const auto narrow = DivideToFloat({0});
  math_->MatrixProduct({.m = 1, .n = 1, .k = 2}, Bf16(x), Bf16(y), {}, c.span());
  EXPECT_EQ(Get(c)[0], 257);
  math_->MatrixProduct({.m = 1, .n = 1, .k = 2}, Bf16(x), Bf16(y), {}, Bf16(narrow));
  EXPECT_EQ(Get(narrow)[0], 256);
}

TEST_P(EmulatedRankTest, ConvolutionsAreTheReferences) {
  const ConvolutionDims dims = {.batch = 2,
                                .in_channels = 4,
                                .out_channels = 6,
                                .groups = 2,
                                .window = {.in_height = 5,
                                           .in_width = 4,
                                           .out_height = 3,
                                           .out_width = 2,
                                           .kernel_height = 3,
                                           .kernel_width = 2,
                                           .stride = 2,
                                           .pad_top = 1}};
  Floats x(2 * 5 * 4 * 4), w(6 * 2 * 3 * 2), dy(2 * 3 * 2 * 6);
  for (Floats* values : {&x, &w, &dy}) {
    for (size_t i = 0; i < values->size(); ++i) (*values)[i] = std::sin(static_cast<float>(i));
  }
  Floats y(dy.size()), dx(x.size()), dw(w.size());
  const auto reference = MakeReferenceBackend();
  reference->window().ConvolutionForward(dims, x, w, {}, y);
  reference->window().ConvolutionBackwardData(dims, dy, w, dx);
  reference->window().ConvolutionBackwardWeights(dims, x, dy, dw, {});
  const auto x_at = Put(x), w_at = Put(w), dy_at = Put(dy);
  const auto y_at = Put(Floats(y.size())), dx_at = Put(Floats(x.size()));
  const auto dw_at = Put(Floats(w.size()));
  math_->ConvolutionForward(dims, x_at.span(), w_at.span(), y_at.span());
  math_->ConvolutionBackwardData(dims, dy_at.span(), w_at.span(), dx_at.span());
  math_->ConvolutionBackwardWeights(dims, x_at.span(), dy_at.span(), dw_at.span());
  EXPECT_EQ(Get(y_at), y);
  EXPECT_EQ(Get(dx_at), dx);
  EXPECT_EQ(Get(dw_at), dw);
}

TEST_P(EmulatedRankTest, FusedAttentionIsAttention) {
  for (const bool causal : {false, true}) {
    const AttentionDims dims = {
        .batch = 2, .tokens = 5, .heads = 3, .head_features = 8, .causal = causal};
    ASSERT_TRUE(math_->HasFusedAttention(dims, DType::kBFloat16));
    Floats qkv(2 * 5 * 3 * 3 * 8), dcontext(2 * 5 * 3 * 8);
    for (size_t i = 0; i < qkv.size(); ++i) qkv[i] = std::sin(static_cast<float>(i * i % 89));
    for (size_t i = 0; i < dcontext.size(); ++i) dcontext[i] = std::cos(static_cast<float>(i));
    const auto qkv_at = DivideToFloat(qkv), dcontext_at = DivideToFloat(dcontext);
    qkv = Get(qkv_at);
    dcontext = Get(dcontext_at);
    Floats probabilities(2 * 3 * 5 * 5), context(dcontext.size()), dqkv(qkv.size());
    const auto reference = MakeReferenceBackend();
    reference->dense().AttentionForward(dims, qkv, probabilities, context);
    reference->dense().AttentionBackward(dims, qkv, probabilities, dcontext, dqkv);
    const auto context_at = DivideToFloat(Floats(context.size()));
    const auto dqkv_at = DivideToFloat(Floats(qkv.size()));
    const auto statistics = Put(Floats(2 * 3 * 5));
    math_->FusedAttentionForward(dims, Bf16(qkv_at), Bf16(context_at), statistics.span());
    math_->FusedAttentionBackward(dims, Bf16(qkv_at), Bf16(context_at), Bf16(dcontext_at),
                                  statistics.span(), Bf16(dqkv_at));
    const Floats context_seen = Get(context_at), dqkv_seen = Get(dqkv_at);
    // Rounded to 8 bits of mantissa at the end.
    for (size_t i = 0; i < context.size(); ++i) {
      EXPECT_NEAR(context_seen[i], context[i], std::abs(context[i]) / 256 + 1e-6) << i;
    }
    for (size_t i = 0; i < dqkv.size(); ++i) {
      EXPECT_NEAR(dqkv_seen[i], dqkv[i], std::abs(dqkv[i]) / 256 + 1e-5) << i;
    }
  }
}

TEST_P(EmulatedRankTest, WorkIsRecordedAndPlayed) {
  ASSERT_TRUE(rank_.device->can_capture());
  const auto x = Put(Floats(1000, 1));
  const auto y = Put(Floats(1000, 2));
  const auto identity = Put({2});
  const auto c = Put({3});
  ASSERT_TRUE(rank_.device->Synchronize().ok());
  auto recording = rank_.device->CaptureGraph([&] {
    rank_.kernels->pointwise().Add(x.span(), y.span());
    math_->MatrixProduct({.m = 1, .n = 1, .k = 1}, c.span(), identity.span(), {}, c.span());
    return absl::OkStatus();
  });
  ASSERT_TRUE(recording.ok()) << recording.status();
  rank_.machine->ResetCalls();
  for (int i = 0; i < 3; ++i) rank_.device->LaunchGraph(**recording);
  EXPECT_EQ(rank_.machine->calls("launch"), 0);
  EXPECT_EQ(rank_.machine->calls("graph_launch"), 3);
  EXPECT_EQ(rank_.machine->calls("hidden_wait"), 0);
  EXPECT_EQ(Get(y), Floats(1000, 5));
  EXPECT_EQ(Get(c)[0], 24);
}

TEST_P(EmulatedRankTest, LeavesNothingBehind) {
  Put(Floats(100));
  math_.reset();
  rank_.kernels.reset();
  rank_.device.reset();
  EXPECT_EQ(rank_.machine->live().objects(), 0);
}

TEST(EmulatedRankDeathTest, MemoryOfTheHostIsNoOperand) {
  const EmulatedRank rank = MakeEmulatedRank(Mode::kInline);
  const auto math = MakeEmulatedMath(*rank.device, *rank.machine);
  Floats x(4);
  EXPECT_DEATH(math->MatrixProduct({.m = 1, .n = 1, .k = 1}, x, x, {}, x), "matrix product");
}

}  // namespace
}  // namespace cadre
