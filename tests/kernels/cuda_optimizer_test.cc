// Compares updates of slices on the device with the host's loop over segments.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <variant>

#include "tests/kernels/cuda_rig.h"

namespace cadre {

void UpdateSliceOnHost(Backend& host, float rate, int64_t updates, const OptimizerStep& step,
                       const UpdateGuard& guard, std::span<const SliceSegment> segments,
                       ConstFloatSpan g, FloatSpan w, std::span<const FloatSpan> states) {
  if (guard.loss != nullptr && !std::isfinite(*guard.loss)) return;
  float scale = 1;
  if (guard.squares != nullptr) {
    scale = std::min(1.0, guard.clip_norm / (std::sqrt(*guard.squares) + 1e-6));
  }
  for (const SliceSegment& segment : segments) {
    const auto part = [&segment](auto span) {
      return span.subspan(segment.begin, segment.end - segment.begin);
    };
    if (segment.statistic) {
      host.optimizer().DrawTowards(segment.momentum, part(g), part(w));
      continue;
    }
    OptimizerStep own = step;
    std::visit(
        [&](auto& rule) {
          rule.rate = rate;
          rule.gradient_scale = scale;
          if (!segment.decays) rule.weight_decay = 0;
          rule.SetUpdates(updates);
        },
        own);
    States parts;
    for (const FloatSpan state : states) parts.push_back(part(state));
    host.optimizer().Update(own, part(g), part(w), parts);
  }
}

namespace {

// Segments of all kinds that cover [0, n), some of one element and some empty.
std::vector<SliceSegment> SegmentsOf(int64_t n, uint64_t seed) {
  std::vector<SliceSegment> segments;
  for (int64_t begin = 0; begin < n;) {
    const auto i = segments.size();
    const int64_t most = Draw(0, 2, seed, 3 * i) == 0 ? 3 : 1 + n / 3;
    const int64_t end = std::min(n, begin + Draw(0, most, seed, 3 * i + 1));
    segments.push_back({.begin = begin,
                        .end = end,
                        .decays = i % 2 == 0,
                        .statistic = i % 5 == 3,
                        .momentum = 0.25F});
    begin = end;
  }
  return segments;
}

struct Slice {
  Floats g, w, m, v;
};

// The state tensors that the step has, of m and v.
States StatesOf(const OptimizerStep& step, FloatSpan m, FloatSpan v) {
  if (std::holds_alternative<SgdStep>(step)) return {v};
  return {m, v};
}

Slice RandomSlice(int64_t n) {
  return {.g = Uniform(n, 3), .w = Uniform(n, 1), .m = Uniform(n, 2), .v = Absolute(Uniform(n, 4))};
}

struct Rule {
  std::string name;
  OptimizerStep step;
  // The powers of the corrections may differ in their last bit between the host and a device.
  double tolerance = 0;
};

std::vector<Rule> Rules() {
  const SgdStep sgd{.momentum = 0.9F, .weight_decay = 1e-2F};
  SgdStep nesterov = sgd;
  nesterov.nesterov = true;
  const AdamWStep adamw{.weight_decay = 0.1F};
  return {{"sgd", sgd, 0}, {"nesterov", nesterov, 0}, {"adamw", adamw, 0x1.0p-22}};
}

class CudaOptimizerTest : public CudaTest {
 protected:
  // An array of one number in the device's memory.
  DeviceArray<double> Number(double value) {
    DeviceArray<double> number(device(), 1, "test");
    device().CopyIn(&value, number.data(), sizeof(value));
    return number;
  }

  Slice Updated(const OptimizerStep& step, const UpdateGuard& guard,
                const std::vector<SliceSegment>& segments, const Slice& slice, int64_t shift = 0) {
    const auto table = kernels().slices()->MakeSegmentTable(segments);
    const OnDevice g(device(), slice.g, DType::kFloat32, shift),
        w(device(), slice.w, DType::kFloat32, shift), m(device(), slice.m), v(device(), slice.v);
    kernels().slices()->UpdateSlice(step, guard, *table, g.span(), w.span(),
                                    StatesOf(step, m.span(), v.span()));
    return {.g = slice.g, .w = w.Get(), .m = m.Get(), .v = v.Get()};
  }

  const std::unique_ptr<Backend> cpu_ = MakeCpuBackend(1);
};

TEST_F(CudaOptimizerTest, SlicesAgreeWithTheHost) {
  constexpr double kSquares = 50;
  const auto squares = Number(kSquares), loss = Number(1.5);
  for (const int64_t n : {1, 5, 1023, 1024, 1025, 100'003}) {
    for (const Rule& rule : Rules()) {
      for (const int64_t shift : {0, 1}) {
        SCOPED_TRACE(::testing::Message() << rule.name << " of " << n << ", shift " << shift);
        const auto segments = SegmentsOf(n, static_cast<uint64_t>(n));
        kernels().slices()->SetUpdate(0.05F, 7);
        const double host_squares = kSquares;
        const double host_loss = 1.5;
        Slice want = RandomSlice(n);
        UpdateSliceOnHost(*cpu_, 0.05F, 7, rule.step,
                          {.loss = &host_loss, .squares = &host_squares, .clip_norm = 2}, segments,
                          want.g, want.w, StatesOf(rule.step, want.m, want.v));
        const UpdateGuard guard{.loss = loss.data(), .squares = squares.data(), .clip_norm = 2};
        const Slice got = Updated(rule.step, guard, segments, RandomSlice(n), shift);
        ExpectNear(got.w, want.w, rule.tolerance);
        ExpectNear(got.m, want.m, rule.tolerance);
        ExpectNear(got.v, want.v, rule.tolerance);
      }
    }
  }
}

TEST_F(CudaOptimizerTest, NothingChangesUnlessTheLossIsFinite) {
  kernels().slices()->SetUpdate(0.05F, 1);
  const Slice before = RandomSlice(3000);
  for (const Rule& rule : Rules()) {
    for (const double bad :
         {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
      const auto loss = Number(bad);
      const Slice after = Updated(rule.step, {.loss = loss.data()}, SegmentsOf(3000, 1), before);
      EXPECT_EQ(after.w, before.w);
      EXPECT_EQ(after.m, before.m);
      EXPECT_EQ(after.v, before.v);
    }
  }
}

TEST_F(CudaOptimizerTest, UpdatesByValueAgreeWithTheHost) {
  const Slice slice = RandomSlice(10'007);
  const SgdStep sgd{.rate = 0.05F, .momentum = 0.9F, .weight_decay = 1e-3F, .gradient_scale = 0.7F};
  Slice want = slice;
  cpu_->optimizer().Update(sgd, want.g, want.w, States{want.v});
  const OnDevice g(device(), slice.g), w(device(), slice.w), m(device(), slice.m),
      v(device(), slice.v);
  kernels().optimizer().Update(sgd, g.span(), w.span(), States{v.span()});
  EXPECT_EQ(w.Get(), want.w);
  EXPECT_EQ(v.Get(), want.v);
  // The host computes the corrections here, so the bits are the same.
  const AdamWStep adamw{.rate = 0.01F,
                        .weight_decay = 0.1F,
                        .correction1 = 1 - std::pow(0.9, 7),
                        .correction2 = 1 - std::pow(0.999, 7)};
  want = {.g = slice.g, .w = want.w, .m = slice.m, .v = Absolute(want.v)};
  const OnDevice second(device(), want.v);
  cpu_->optimizer().Update(adamw, want.g, want.w, States{want.m, want.v});
  kernels().optimizer().Update(adamw, g.span(), w.span(), States{m.span(), second.span()});
  EXPECT_EQ(w.Get(), want.w);
  EXPECT_EQ(m.Get(), want.m);
  EXPECT_EQ(second.Get(), want.v);
}

TEST_F(CudaOptimizerTest, SumsOfSquaresAddUp) {
  const auto sum = Number(3);
  double want = 3;
  for (const int64_t n : {0, 1, 4097, 200'001}) {
    for (const int64_t shift : {0, 1}) {
      const Floats x = Eighths(n, 1);
      kernels().slices()->AddSumOfSquares(OnDevice(device(), x, DType::kFloat32, shift).span(),
                                          sum.data());
      for (const float value : x) want += static_cast<double>(value) * value;
    }
  }
  EXPECT_EQ(FromDevice<double>(device(), sum.span())[0], want);
}

// --- bf16 copies of the parameters ---------------------------------------------------------------

class CudaWeightsTest : public CudaOptimizerTest {
 protected:
  static constexpr FullyConnectedDims kDims{.batch = 1, .in = 1, .out = 16};

  // The weights as products use them: y = 1 w^T.
  Floats Seen(ConstFloatSpan w) {
    const OnDevice x(device(), {1}, DType::kBFloat16), y(device(), Garbage(16), DType::kBFloat16);
    kernels().dense().FullyConnectedForward(kDims, x.values(), w, {}, y.values());
    return y.Get();
  }
};

TEST_F(CudaWeightsTest, WithoutACopyWeightsAreRoundedOnUse) {
  UseBf16();
  const Floats w = Uniform(17, 1);
  const OnDevice weights(device(), w);
  EXPECT_EQ(Seen(weights.span().first(16)), Bf16Rounded(Floats(w.begin(), w.end() - 1)));
  EXPECT_EQ(Seen(weights.span().subspan(1)), Bf16Rounded(Floats(w.begin() + 1, w.end())));
}

// A copy has the weights of the last WeightsChanged. Later changes have no effect on products,
// which proves that the copy is used.
TEST_F(CudaWeightsTest, ChangedWeightsHaveACopy) {
  UseBf16();
  const Floats w = Uniform(64, 1), other = Uniform(64, 2);
  const OnDevice weights(device(), w);
  kernels().WeightsChanged(weights.span());
  const auto second = weights.span().subspan(16, 16);
  const auto misaligned = weights.span().subspan(33, 16);
  const auto part = [](const Floats& all, size_t begin) {
    const auto first = all.begin() + begin;
    return Bf16Rounded(Floats(first, first + 16));
  };
  EXPECT_EQ(Seen(second), part(w, 16));
  EXPECT_EQ(Seen(misaligned), part(w, 33));
  device().CopyIn(other.data(), weights.span().data(), 64 * sizeof(float));
  EXPECT_EQ(Seen(second), part(w, 16));
  kernels().WeightsChanged(second);
  EXPECT_EQ(Seen(second), part(other, 16));
  EXPECT_EQ(Seen(misaligned), part(w, 33));
  kernels().WeightsChanged(weights.span());
  EXPECT_EQ(Seen(misaligned), part(other, 33));
}

TEST_F(CudaWeightsTest, UpdatesWriteTheCopy) {
  UseBf16();
  kernels().slices()->SetUpdate(0.5F, 1);
  const std::vector<SliceSegment> segments = {{.begin = 0, .end = 64, .decays = true}};
  const auto table = kernels().slices()->MakeSegmentTable(segments);
  for (const Rule& rule : Rules()) {
    const Slice slice = RandomSlice(64);
    const OnDevice g(device(), slice.g), w(device(), slice.w), m(device(), slice.m),
        v(device(), slice.v);
    kernels().WeightsChanged(w.span());
    // A part of the weights that have a copy, unaligned in the copy.
    kernels().slices()->UpdateSlice(rule.step, {},
                                    *kernels().slices()->MakeSegmentTable(std::vector<SliceSegment>{
                                        {.begin = 0, .end = 31, .decays = true}}),
                                    g.span().first(31), w.span().subspan(1, 31),
                                    StatesOf(rule.step, m.span().first(31), v.span().first(31)));
    kernels().slices()->UpdateSlice(rule.step, {}, *table, g.span(), w.span(),
                                    StatesOf(rule.step, m.span(), v.span()));
    const Floats now = w.Get();
    EXPECT_NE(now, slice.w);
    EXPECT_EQ(Seen(w.span().subspan(16, 16)),
              Bf16Rounded(Floats(now.begin() + 16, now.begin() + 32)));
  }
}

// WeightsChanged is called again for the same memory in other pieces: the last calls count.
TEST_F(CudaWeightsTest, OverlappingPiecesReplaceEachOther) {
  UseBf16();
  const Floats w = Uniform(64, 1), other = Uniform(64, 2);
  const OnDevice weights(device(), w);
  kernels().WeightsChanged(weights.span().first(40));
  kernels().WeightsChanged(weights.span().subspan(24));
  device().CopyIn(other.data(), weights.span().data(), 64 * sizeof(float));
  const auto part = [](const Floats& all, size_t begin) {
    const auto first = all.begin() + begin;
    return Bf16Rounded(Floats(first, first + 16));
  };
  // The copy of the first piece was dropped, so these weights are rounded on use.
  EXPECT_EQ(Seen(weights.span().first(16)), part(other, 0));
  EXPECT_EQ(Seen(weights.span().subspan(40, 16)), part(w, 40));
}

}  // namespace
}  // namespace cadre
