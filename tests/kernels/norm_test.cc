#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/backend.h"
#include "kernels/extents.h"
#include "tests/kernels/testing.h"

namespace cadre {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

using Doubles = std::vector<double>;

Floats Ones(int64_t n) { return Floats(n, 1.0F); }

// --- batch norm ----------------------------------------------------------------------------------

struct Statistics {
  Floats mean, inverse;
};

// The statistics, computed from the sums over the whole batch as a layer does.
Statistics StatisticsOf(Backend& kernels, const RowsDims& dims, const Floats& x) {
  Doubles sums(2 * dims.channels, NAN);
  kernels.norm().BatchNormSums(dims, x, sums);
  Statistics result;
  for (int64_t c = 0; c < dims.channels; ++c) {
    const double mean = sums[c] / dims.rows;
    const double square = sums[dims.channels + c] / dims.rows;
    result.mean.push_back(mean);
    result.inverse.push_back(1 / std::sqrt(square - mean * mean + 1e-5));
  }
  return result;
}

struct BatchNormOutputs {
  Floats y, dx, dscale, dshift;
};

BatchNormOutputs RunBatchNorm(Backend& kernels, const RowsDims& dims, const Floats& x,
                              const Floats& scale, const Floats& shift, const Floats& dy) {
  const Statistics s = StatisticsOf(kernels, dims, x);
  BatchNormOutputs out{.y = Garbage(SizeOf(dims)),
                       .dx = Garbage(SizeOf(dims)),
                       .dscale = Garbage(dims.channels),
                       .dshift = Garbage(dims.channels)};
  kernels.norm().BatchNormForward(dims, x, s.mean, s.inverse, scale, shift, {}, {}, out.y);
  Doubles sums(2 * dims.channels, NAN);
  kernels.norm().BatchNormBackwardSums(dims, x, dy, {}, {}, s.mean, s.inverse, {}, sums, out.dscale,
                                       out.dshift);
  kernels.norm().BatchNormBackward(dims, x, dy, {}, s.mean, s.inverse, scale, dims.rows, sums,
                                   out.dx);
  return out;
}

using NormTest = BackEndTest;
INSTANTIATE_TEST_SUITE_P(BackEnds, NormTest, ::testing::ValuesIn(BackEndsOfEverySize()), NameOf);

TEST_P(NormTest, BatchNormKnownAnswer) {
  const RowsDims dims{.rows = 3, .channels = 2};
  const Floats x = {1, 10, 2, 20, 3, 60}, dy = {1, 2, 3, 4, 5, 6};
  Doubles sums(4, NAN);
  kernels_->norm().BatchNormSums(dims, x, sums);
  EXPECT_THAT(sums, ElementsAre(6, 90, 14, 4100));
  Floats y = Garbage(6);
  kernels_->norm().BatchNormForward(dims, x, Floats{2, 30}, Floats{0.5F, 0.25F}, Floats{4, 8},
                                    Floats{100, 200}, {}, {}, y);
  EXPECT_THAT(y, ElementsAre(98, 160, 100, 180, 102, 260));
  Floats dscale = Garbage(2), dshift = Garbage(2);
  kernels_->norm().BatchNormBackwardSums(dims, x, dy, {}, {}, Floats{2, 30}, Floats{0.5F, 0.25F},
                                         {}, sums, dscale, dshift);
  // The normalised values are -0.5, 0, 0.5 and -5, -2.5, 7.5.
  EXPECT_THAT(sums, ElementsAre(9, 12, 2, 25));
  EXPECT_THAT(dscale, ElementsAre(2, 25));
  EXPECT_THAT(dshift, ElementsAre(9, 12));
  Floats dx = Garbage(6);
  kernels_->norm().BatchNormBackward(dims, x, dy, {}, Floats{2, 30}, Floats{0.5F, 0.25F},
                                     Floats{4, 8}, /*rows=*/6, Doubles{6, 12, 12, 24}, dx);
  EXPECT_THAT(dx, ElementsAre(2 * (1 - 1 + 1), 2 * (2 - 2 + 20), 2 * (3 - 1), 2 * (4 - 2 + 10),
                              2 * (5 - 1 - 1), 2 * (6 - 2 - 30)));
}

TEST_P(NormTest, BatchNormMakesMeanZeroAndVarianceOne) {
  const RowsDims dims{.rows = 500, .channels = 19};
  Floats x = Uniform(SizeOf(dims), 1);
  for (float& value : x) value = 5 + 3 * value;
  const Floats y =
      RunBatchNorm(*kernels_, dims, x, Ones(19), Floats(19, 0.0F), Floats(x.size(), 0.0F)).y;
  Doubles sums(38, NAN);
  kernels_->norm().BatchNormSums(dims, y, sums);
  for (size_t c = 0; c < 19; ++c) {
    EXPECT_NEAR(sums[c] / 500, 0, 1e-5);
    EXPECT_NEAR(sums[19 + c] / 500, 1, 1e-4);
  }
}

// The sums of a whole batch are the sums of its parts, added up.
TEST_P(NormTest, BatchNormSumsAddUp) {
  const RowsDims whole{.rows = 101, .channels = 33}, first{.rows = 40, .channels = 33},
      second{.rows = 61, .channels = 33};
  const Floats x = Eighths(SizeOf(whole), 1);
  Doubles all(66), a(66), b(66);
  kernels_->norm().BatchNormSums(whole, x, all);
  kernels_->norm().BatchNormSums(first, std::span(x).first(SizeOf(first)), a);
  kernels_->norm().BatchNormSums(second, std::span(x).subspan(SizeOf(first)), b);
  for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i], a[i] + b[i]);
}

TEST_P(NormTest, BatchNormGradientsMatchDifferences) {
  const RowsDims dims{.rows = 21, .channels = 5};
  Floats x = Uniform(SizeOf(dims), 1), scale = Uniform(5, 2), shift = Uniform(5, 3);
  const Floats dy = Uniform(SizeOf(dims), 4);
  const BatchNormOutputs out = RunBatchNorm(*kernels_, dims, x, scale, shift, dy);
  const auto reference = MakeReferenceBackend();
  const auto forward = [&] { return RunBatchNorm(*reference, dims, x, scale, shift, dy).y; };
  ExpectGradient(x, out.dx, dy, forward);
  ExpectGradient(scale, out.dscale, dy, forward);
  ExpectGradient(shift, out.dshift, dy, forward);
}

TEST_P(NormTest, BatchNormInPlace) {
  const RowsDims dims{.rows = 77, .channels = 37};
  const Floats x = Uniform(SizeOf(dims), 1), dy = Uniform(SizeOf(dims), 2);
  const Floats a = Uniform(37, 3), b = Uniform(37, 4), c = Uniform(37, 5), d = Uniform(37, 6);
  const Doubles sums = Sums(d, a);
  Floats y = Garbage(SizeOf(dims)), dx = y, in_place = x, gradient = dy;
  kernels_->norm().BatchNormForward(dims, x, a, b, c, d, {}, {}, y);
  kernels_->norm().BatchNormForward(dims, in_place, a, b, c, d, {}, {}, in_place);
  EXPECT_EQ(in_place, y);
  kernels_->norm().BatchNormBackward(dims, x, dy, {}, a, b, c, 1, sums, dx);
  kernels_->norm().BatchNormBackward(dims, x, gradient, {}, a, b, c, 1, sums, gradient);
  EXPECT_EQ(gradient, dx);
}

TEST_P(NormTest, BatchNormOfEmptyTensors) {
  Floats none;
  const Floats three(3, 1.0F);
  for (const RowsDims& dims :
       {RowsDims{.rows = 0, .channels = 3}, RowsDims{.rows = 4, .channels = 0}}) {
    const Floats by_channel(dims.channels, 1.0F);
    Doubles sums(2 * dims.channels, NAN);
    kernels_->norm().BatchNormSums(dims, none, sums);
    EXPECT_THAT(sums, Each(0.0));
    sums.assign(sums.size(), NAN);
    Floats dscale = Garbage(dims.channels), dshift = dscale;
    kernels_->norm().BatchNormBackwardSums(dims, none, none, {}, {}, by_channel, by_channel, {},
                                           sums, dscale, dshift);
    EXPECT_THAT(sums, Each(0.0));
    EXPECT_THAT(dscale, Each(0.0F));
    EXPECT_THAT(dshift, Each(0.0F));
    kernels_->norm().BatchNormForward(dims, none, by_channel, by_channel, by_channel, by_channel,
                                      {}, {}, none);
    kernels_->norm().BatchNormBackward(dims, none, none, {}, by_channel, by_channel, by_channel,
                                       dims.rows, sums, none);
  }
}

std::vector<RowsDims> Rows() {
  return {{1, 1}, {2, 3}, {49, 16}, {300, 17}, {64, 64}, {5, 1000}, {10'000, 3}, {7, 33}};
}

TEST_P(NormTest, BatchNormIsNearTheReference) {
  const auto reference = MakeReferenceBackend();
  for (const RowsDims& dims : Rows()) {
    SCOPED_TRACE(::testing::Message() << dims.rows << " rows of " << dims.channels);
    const Floats x = Uniform(SizeOf(dims), 1), dy = Uniform(SizeOf(dims), 2);
    const Floats scale = Uniform(dims.channels, 3), shift = Uniform(dims.channels, 4);
    const Floats mean = Uniform(dims.channels, 5), inverse = Absolute(Uniform(dims.channels, 6));
    Doubles got_sums(2 * dims.channels, NAN), want_sums = got_sums;
    kernels_->norm().BatchNormSums(dims, x, got_sums);
    reference->norm().BatchNormSums(dims, x, want_sums);
    // Terms are below one. Each may be rounded to fp32, and sums of some consecutive rows may be
    // fp32.
    const double bound = dims.rows * 0x1.0p-22;
    for (size_t i = 0; i < got_sums.size(); ++i) {
      ASSERT_NEAR(got_sums[i], want_sums[i], bound);
    }
    Floats dscale = Garbage(dims.channels), dshift = dscale, unused = dscale;
    kernels_->norm().BatchNormBackwardSums(dims, x, dy, {}, {}, mean, inverse, {}, got_sums, dscale,
                                           dshift);
    reference->norm().BatchNormBackwardSums(dims, x, dy, {}, {}, mean, inverse, {}, want_sums,
                                            unused, unused);
    for (size_t i = 0; i < got_sums.size(); ++i) {
      ASSERT_NEAR(got_sums[i], want_sums[i], 4 * bound);
    }
    for (int64_t c = 0; c < dims.channels; ++c) {
      ASSERT_EQ(dshift[c], static_cast<float>(got_sums[c]));
      ASSERT_EQ(dscale[c], static_cast<float>(got_sums[dims.channels + c]));
    }
    // A handful of roundings of numbers up to three.
    Floats got = Garbage(SizeOf(dims)), want = got;
    kernels_->norm().BatchNormForward(dims, x, mean, inverse, scale, shift, {}, {}, got);
    reference->norm().BatchNormForward(dims, x, mean, inverse, scale, shift, {}, {}, want);
    ExpectNear(got, want, 1e-6);
    const Doubles sums = Sums(shift, mean);
    kernels_->norm().BatchNormBackward(dims, x, dy, {}, mean, inverse, scale, 1, sums, got);
    reference->norm().BatchNormBackward(dims, x, dy, {}, mean, inverse, scale, 1, sums, want);
    ExpectNear(got, want, 2e-6);
  }
}

TEST_P(NormTest, FusedBatchNormEqualsSeparateOperations) {
  for (const RowsDims& dims : Rows()) ExpectFusedBatchNormEqualsSeparate(*kernels_, dims);
}

// A NaN is not positive, and is not hidden by the ReLU.
TEST_P(NormTest, FusedBatchNormKeepsNaN) {
  const RowsDims dims{.rows = 40, .channels = 17};
  const Floats one(17, 1.0F), zero(17, 0.0F);
  Floats x = Uniform(SizeOf(dims), 1), y = Garbage(SizeOf(dims));
  x[35 * 17 + 3] = NAN;
  std::vector<int32_t> positive(PositiveWords(dims));
  kernels_->norm().BatchNormForward(dims, x, zero, one, one, zero, {}, positive, y);
  EXPECT_TRUE(std::isnan(y[35 * 17 + 3]));
  EXPECT_EQ(positive[17 + 3] & 1 << 3, 0);
}

// --- layer norm ----------------------------------------------------------------------------------

TEST_P(NormTest, LayerNormKnownAnswer) {
  const RowsDims dims{.rows = 2, .channels = 4};
  Floats y = Garbage(8), mean = Garbage(2), inverse = Garbage(2);
  // Variances 4 and 0; an epsilon of 12 makes the first root a whole number.
  kernels_->norm().LayerNormForward(dims, 12, Floats{1, 1, 5, 5, 7, 7, 7, 7}, Floats{4, 8, 4, 8},
                                    Floats{0, 1, 2, 3}, y, mean, inverse);
  EXPECT_THAT(mean, ElementsAre(3, 7));
  ExpectNear(inverse, Floats{0.25F, 0.28867513F}, 1e-6);
  ExpectNear(y, Floats{-2, -3, 4, 7, 0, 1, 2, 3}, 1e-6);
}

TEST_P(NormTest, LayerNormGradientsMatchDifferences) {
  const RowsDims dims{.rows = 6, .channels = 21};
  Floats x = Uniform(SizeOf(dims), 1), scale = Uniform(21, 2), shift = Uniform(21, 3);
  const Floats dy = Uniform(SizeOf(dims), 4);
  const LayerNormOutputs out = RunLayerNorm(*kernels_, dims, x, scale, shift, dy);
  const auto reference = MakeReferenceBackend();
  const auto forward = [&] { return RunLayerNorm(*reference, dims, x, scale, shift, dy).y; };
  ExpectGradient(x, out.dx, dy, forward);
  ExpectGradient(scale, out.dscale, dy, forward);
  ExpectGradient(shift, out.dshift, dy, forward);
}

// A mean far from zero must not cancel the variance.
TEST_P(NormTest, LayerNormFarFromZero) {
  const RowsDims dims{.rows = 1, .channels = 256};
  Floats x = Uniform(256, 1), far = x;
  for (float& value : x) value = std::round(64 * value) / 64;
  for (size_t i = 0; i < x.size(); ++i) far[i] = x[i] + 1000;
  const Floats scale = Ones(256), shift(256, 0.0F), dy(256, 0.0F);
  // x + 1000 is exact, so the results differ only by the rounding of the mean (2^-15 of the
  // standard deviation).
  ExpectNear(RunLayerNorm(*kernels_, dims, far, scale, shift, dy).y,
             RunLayerNorm(*kernels_, dims, x, scale, shift, dy).y, 2e-4);
}

TEST_P(NormTest, LayerNormOfEmptyTensors) {
  Floats none, three = Garbage(3), four = Garbage(4);
  LayerNormOutputs out =
      RunLayerNorm(*kernels_, {.rows = 0, .channels = 3}, {}, Ones(3), Ones(3), {});
  EXPECT_THAT(out.dscale, Each(0.0F));
  EXPECT_THAT(out.dshift, Each(0.0F));
  out = RunLayerNorm(*kernels_, {.rows = 4, .channels = 0}, {}, {}, {}, {});
  EXPECT_THAT(out.mean, Each(0.0F));
}

TEST_P(NormTest, LayerNormIsNearTheReference) {
  const auto reference = MakeReferenceBackend();
  for (const RowsDims& dims : Rows()) {
    SCOPED_TRACE(::testing::Message() << dims.rows << " rows of " << dims.channels);
    const Floats x = Uniform(SizeOf(dims), 1), dy = Uniform(SizeOf(dims), 2);
    const Floats scale = Uniform(dims.channels, 3), shift = Uniform(dims.channels, 4);
    const LayerNormOutputs got = RunLayerNorm(*kernels_, dims, x, scale, shift, dy);
    const LayerNormOutputs want = RunLayerNorm(*reference, dims, x, scale, shift, dy);
    // The inverse (of the deviation) of a row of three may be 20 or more, and multiplies the
    // rounding errors.
    ExpectNear(got.mean, want.mean, 1e-6);
    ExpectNear(got.inverse, want.inverse, 2e-5);
    ExpectNear(got.y, want.y, 2e-5);
    ExpectNear(got.dx, want.dx, 5e-5);
    // Sums over the rows of numbers up to two.
    const double bound = 1e-5 + dims.rows * 0x1.0p-21;
    ExpectNear(got.dscale, want.dscale, bound);
    ExpectNear(got.dshift, want.dshift, bound);
  }
}

// --- local response norm -------------------------------------------------------------------------

TEST_P(NormTest, LrnKnownAnswer) {
  // Two channels before and one after; alpha / size is one.
  const LrnDims dims{.rows = 2, .channels = 4, .size = 4, .alpha = 4, .beta = 1, .k = 1};
  const LrnOutputs out =
      RunLrn(*kernels_, dims, {1, 2, 3, 4, 0, 0, 1, 0}, {0, 0, 0, 0, 1, 1, 1, 1});
  ExpectNear(out.d, Floats{6, 15, 31, 30, 1, 2, 2, 2}, 1e-6);
  ExpectNear(out.y, Floats{1.0F / 6, 2.0F / 15, 3.0F / 31, 4.0F / 30, 0, 0, 0.5F, 0}, 1e-6);
  // In the second row only channel 2 is not zero, and d = 1 + 1 there, so its gradient is 1 / 2 - 2
  // / 4.
  ExpectNear(out.dx, Floats{0, 0, 0, 0, 1, 0.5F, 0, 0.5F}, 1e-6);
}

TEST_P(NormTest, LrnGradientMatchesDifferences) {
  const auto reference = MakeReferenceBackend();
  for (const int64_t size : {1, 2, 5, 20}) {
    SCOPED_TRACE(size);
    const LrnDims dims{.rows = 4, .channels = 11, .size = size, .alpha = 2, .beta = 0.75F, .k = 1};
    Floats x = Uniform(SizeOf(dims), 1);
    const Floats dy = Uniform(SizeOf(dims), 2);
    const LrnOutputs out = RunLrn(*kernels_, dims, x, dy);
    ExpectGradient(x, out.dx, dy, [&] { return RunLrn(*reference, dims, x, dy).y; });
  }
}

TEST_P(NormTest, LrnOfEmptyTensors) {
  RunLrn(*kernels_, {.rows = 0, .channels = 3}, {}, {});
  RunLrn(*kernels_, {.rows = 3, .channels = 0}, {}, {});
}

TEST_P(NormTest, LrnIsNearTheReference) {
  const auto reference = MakeReferenceBackend();
  for (const RowsDims& rows : Rows()) {
    for (const int64_t size : {2, 5}) {
      for (const float beta : {0.75F, 0.5F, 1.0F}) {
        const LrnDims dims{.rows = rows.rows,
                           .channels = rows.channels,
                           .size = size,
                           .alpha = 0.5F,
                           .beta = beta,
                           .k = 2};
        const Floats x = Uniform(SizeOf(dims), 1), dy = Uniform(SizeOf(dims), 2);
        const LrnOutputs got = RunLrn(*kernels_, dims, x, dy),
                         want = RunLrn(*reference, dims, x, dy);
        // A power in fp32 is a few roundings; sums have at most five terms.
        ExpectNear(got.y, want.y, 2e-6);
        ExpectNear(got.d, want.d, 2e-6);
        ExpectNear(got.dx, want.dx, 4e-6);
      }
    }
  }
}

}  // namespace
}  // namespace cadre
