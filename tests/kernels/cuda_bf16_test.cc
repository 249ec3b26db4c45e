// Every operation with bf16 activations against the reference in fp32, on inputs that bf16 holds.
//
// Bounds. A value that is rounded to bf16 is off by 2^-9 of itself at most (half a unit in the last
// of 8 places). Operations compute in fp32 and round once at the end, so their results are within
// 2^-9 of the reference's, give or take fp32's own error; 2^-8 leaves room for that and for results
// which the reference rounds elsewhere. Where a value is rounded to bf16 on the way and then
// multiplied or added to others, the bound says so.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/extents.h"
#include "tests/kernels/cuda_rig.h"

namespace cadre {
namespace {

constexpr double kRounding = 0x1.0p-8;

// Each value within kRounding of what is wanted, and `besides`, an absolute error.
void ExpectBf16Near(const Floats& got, const Floats& want, double besides = 1e-6) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], want[i], kRounding * std::abs(static_cast<double>(want[i])) + besides)
        << "element " << i;
  }
}

// The same with the sum of the magnitudes of what was added up for each value.
void ExpectBf16SumsNear(const Floats& got, const Floats& want, const Floats& magnitude) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], want[i],
                kRounding * std::abs(static_cast<double>(want[i])) + 1e-4 * magnitude[i] + 1e-6)
        << "element " << i;
  }
}

class CudaBf16Test : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (!IsSkipped()) UseBf16();
  }

  static Floats Random(int64_t n, uint64_t seed) { return Bf16Rounded(Uniform(n, seed)); }
  OnDevice DivideToFloat(const Floats& values, int64_t shift = 0) {
    return OnDevice(device(), values, DType::kBFloat16, shift);
  }
  OnDevice NarrowGarbage(int64_t n, int64_t shift = 0) { return DivideToFloat(Garbage(n), shift); }
  OnDevice Wide(const Floats& values) { return OnDevice(device(), values); }
};

TEST_F(CudaBf16Test, ActivationsAreBf16) {
  EXPECT_EQ(kernels().activation_type(), DType::kBFloat16);
  ASSERT_TRUE(kernels().SetPrecision(Precision::kTf32).ok());
  EXPECT_EQ(kernels().activation_type(), DType::kFloat32);
}

TEST_F(CudaBf16Test, Activations) {
  for (const Activation kind :
       {Activation::kRelu, Activation::kGelu, Activation::kSigmoid, Activation::kTanh}) {
    for (const int64_t shift : {0, 1}) {
      SCOPED_TRACE(static_cast<int>(kind));
      constexpr int64_t kSize = 3003;
      Floats x = Random(kSize, 1);
      for (float& value : x) value *= 8;
      const Floats dy = Random(kSize, 2);
      Floats want_y = x, want_dx = x;
      reference_->pointwise().ActivationForward(kind, x, want_y);
      const OnDevice in = DivideToFloat(x, shift), y = NarrowGarbage(kSize, shift),
                     gradient = DivideToFloat(dy, shift), dx = NarrowGarbage(kSize, shift);
      kernels().pointwise().ActivationForward(kind, in.values(), y.values());
      ExpectBf16Near(y.Get(), want_y);
      // Backward sees the output as bf16 has it.
      const Floats seen = kind == Activation::kGelu ? x : y.Get();
      reference_->pointwise().ActivationBackward(kind, seen, dy, want_dx);
      kernels().pointwise().ActivationBackward(kind,
                                               kind == Activation::kGelu ? in.values() : y.values(),
                                               gradient.values(), dx.values());
      ExpectBf16Near(dx.Get(), want_dx);
      kernels().pointwise().ActivationBackward(kind,
                                               kind == Activation::kGelu ? in.values() : y.values(),
                                               gradient.values(), gradient.values());
      EXPECT_EQ(gradient.Get(), dx.Get());
    }
  }
}

TEST_F(CudaBf16Test, AddAndDropout) {
  const Floats x = Random(1001, 1), before = Random(1001, 2);
  Floats want = before;
  reference_->pointwise().Add(x, want);
  const OnDevice in = DivideToFloat(x), sum = DivideToFloat(before), y = NarrowGarbage(1001);
  kernels().pointwise().Add(in.values(), sum.values());
  EXPECT_EQ(sum.Get(), Bf16Rounded(want));
  const DropoutKey key{.seed = 5, .layer = 2, .rate = 0.3F};
  reference_->pointwise().Dropout(key, 77, x, want);
  kernels().pointwise().Dropout(key, 77, in.values(), y.values());
  const Floats got = y.Get();
  ExpectBf16Near(got, want);
  for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(got[i] == 0, want[i] == 0);
}

TEST_F(CudaBf16Test, BatchNorm) {
  for (const RowsDims& dims : {RowsDims{1, 1}, RowsDims{300, 17}, RowsDims{64, 64},
                               RowsDims{5, 1000}, RowsDims{3000, 8}}) {
    SCOPED_TRACE(::testing::Message() << dims.rows << " rows of " << dims.channels);
    const int64_t n = SizeOf(dims);
    const Floats x = Random(n, 1), dy = Random(n, 2), mean = Uniform(dims.channels, 3),
                 inverse = Absolute(Uniform(dims.channels, 4)), scale = Uniform(dims.channels, 5),
                 shift = Uniform(dims.channels, 6), mean_dy = Uniform(dims.channels, 7);
    const OnDevice in = DivideToFloat(x), gradient = DivideToFloat(dy), y = NarrowGarbage(n),
                   dx = NarrowGarbage(n);
    const OnDevice m = Wide(mean), i = Wide(inverse), a = Wide(scale), b = Wide(shift),
                   d = Wide(mean_dy);
    DeviceArray<double> sums(device(), static_cast<size_t>(2 * dims.channels), "test");
    std::vector<double> want_sums(sums.size());
    reference_->norm().BatchNormSums(dims, x, want_sums);
    kernels().norm().BatchNormSums(dims, in.values(), sums.span());
    auto got_sums = FromDevice<double>(device(), sums.span());
    // Sums of exact products in double, in another order.
    for (size_t c = 0; c < got_sums.size(); ++c) EXPECT_NEAR(got_sums[c], want_sums[c], 1e-9);
    reference_->norm().BatchNormBackwardSums(dims, x, dy, mean, inverse, want_sums);
    kernels().norm().BatchNormBackwardSums(dims, in.values(), gradient.values(), m.span(), i.span(),
                                           sums.span());
    got_sums = FromDevice<double>(device(), sums.span());
    // Terms up to two, rounded to fp32.
    for (size_t c = 0; c < got_sums.size(); ++c) {
      EXPECT_NEAR(got_sums[c], want_sums[c], static_cast<double>(dims.rows) * 0x1.0p-21);
    }
    Floats want = x;
    reference_->norm().BatchNormForward(dims, x, mean, inverse, scale, shift, want);
    kernels().norm().BatchNormForward(dims, in.values(), m.span(), i.span(), a.span(), b.span(),
                                      y.values());
    ExpectBf16Near(y.Get(), want);
    reference_->norm().BatchNormBackward(dims, x, dy, mean, inverse, scale, mean_dy, shift, want);
    kernels().norm().BatchNormBackward(dims, in.values(), gradient.values(), m.span(), i.span(),
                                       a.span(), d.span(), b.span(), dx.values());
    ExpectBf16Near(dx.Get(), want, 2e-6);
  }
}

TEST_F(CudaBf16Test, LayerNorm) {
  for (const RowsDims& dims :
       {RowsDims{1, 2}, RowsDims{70, 17}, RowsDims{64, 64}, RowsDims{5, 1000}, RowsDims{300, 8}}) {
    SCOPED_TRACE(::testing::Message() << dims.rows << " rows of " << dims.channels);
    const int64_t n = SizeOf(dims);
    const Floats x = Random(n, 1), dy = Random(n, 2), scale = Uniform(dims.channels, 3),
                 shift = Uniform(dims.channels, 4);
    const OnDevice in = DivideToFloat(x), gradient = DivideToFloat(dy), y = NarrowGarbage(n),
                   dx = NarrowGarbage(n);
    const OnDevice a = Wide(scale), b = Wide(shift), mean = Wide(Garbage(dims.rows)),
                   inverse = Wide(Garbage(dims.rows)), dscale = Wide(Garbage(dims.channels)),
                   dshift = Wide(Garbage(dims.channels));
    Floats want_y = x, want_mean = Garbage(dims.rows), want_inverse = want_mean, want_dx = x,
           want_dscale = scale, want_dshift = shift;
    reference_->norm().LayerNormForward(dims, 1e-5F, x, scale, shift, want_y, want_mean,
                                        want_inverse);
    kernels().norm().LayerNormForward(dims, 1e-5F, in.values(), a.span(), b.span(), y.values(),
                                      mean.span(), inverse.span());
    ExpectNear(mean.Get(), want_mean, 1e-6);
    ExpectNear(inverse.Get(), want_inverse, 2e-5);
    ExpectBf16Near(y.Get(), want_y, 2e-5);
    reference_->norm().LayerNormBackward(dims, x, dy, want_mean, want_inverse, scale, want_dx,
                                         want_dscale, want_dshift);
    kernels().norm().LayerNormBackward(dims, in.values(), gradient.values(), mean.span(),
                                       inverse.span(), a.span(), dx.values(), dscale.span(),
                                       dshift.span());
    // The inverse of a row of two may be large, and multiplies fp32's roundings.
    ExpectBf16Near(dx.Get(), want_dx, 1e-3);
    const double bound = 1e-5 + static_cast<double>(dims.rows) * 0x1.0p-21;
    ExpectNear(dscale.Get(), want_dscale, 10 * bound);
    ExpectNear(dshift.Get(), want_dshift, bound);
  }
}

TEST_F(CudaBf16Test, Lrn) {
  for (const float beta : {0.75F, 0.5F}) {
    const LrnDims dims{.rows = 40, .channels = 33, .size = 5, .alpha = 0.5F, .beta = beta, .k = 2};
    const Floats x = Random(SizeOf(dims), 1), dy = Random(SizeOf(dims), 2);
    Floats want_y = x, want_d = x, want_dx = x;
    reference_->norm().LrnForward(dims, x, want_y, want_d);
    const OnDevice in = DivideToFloat(x), gradient = DivideToFloat(dy),
                   y = NarrowGarbage(SizeOf(dims)), dx = NarrowGarbage(SizeOf(dims)),
                   d = Wide(Garbage(SizeOf(dims)));
    kernels().norm().LrnForward(dims, in.values(), y.values(), d.span());
    ExpectBf16Near(y.Get(), want_y);
    ExpectNear(d.Get(), want_d, 2e-6);
    reference_->norm().LrnBackward(dims, x, want_d, dy, want_dx);
    kernels().norm().LrnBackward(dims, in.values(), d.span(), gradient.values(), dx.values());
    ExpectBf16Near(dx.Get(), want_dx, 4e-6);
  }
}

TEST_F(CudaBf16Test, Pooling) {
  for (const PoolKind kind : {PoolKind::kMax, PoolKind::kAverage, PoolKind::kAverageWithPadding}) {
    for (const int64_t channels : {3, 16}) {
      const PoolingDims dims = Pooling(kind, 2, channels, Window(9, 7, 3, 2, 1));
      const LayerSizes sizes = SizesOf(dims);
      const Floats x = Random(sizes.x, 1), dy = Random(sizes.y, 2);
      const bool max = kind == PoolKind::kMax;
      Floats want_y = dy, want_dx = x;
      std::vector<int32_t> want_argmax(max ? static_cast<size_t>(sizes.y) : 0);
      DeviceArray<int32_t> argmax(device(), want_argmax.size(), "test");
      const OnDevice in = DivideToFloat(x), gradient = DivideToFloat(dy),
                     y = NarrowGarbage(sizes.y), dx = NarrowGarbage(sizes.x);
      reference_->window().PoolingForward(dims, x, want_y, want_argmax);
      kernels().window().PoolingForward(dims, in.values(), y.values(), argmax.span());
      EXPECT_EQ(FromDevice<int32_t>(device(), argmax.span()), want_argmax);
      ExpectBf16Near(y.Get(), want_y);
      reference_->window().PoolingBackward(dims, dy, want_argmax, want_dx);
      kernels().window().PoolingBackward(dims, gradient.values(), argmax.span(), dx.values());
      ExpectBf16Near(dx.Get(), want_dx);
    }
  }
  const Floats x = Random(3 * 49 * 24, 1);
  Floats want = Garbage(3 * 24), want_dx = x;
  const OnDevice in = DivideToFloat(x), y = NarrowGarbage(3 * 24), dx = NarrowGarbage(3 * 49 * 24);
  reference_->window().GlobalAveragePoolForward(3, 49, 24, 49, x, want);
  kernels().window().GlobalAveragePoolForward(3, 49, 24, 49, in.values(), y.values());
  ExpectBf16Near(y.Get(), want);
  reference_->window().GlobalAveragePoolBackward(3, 49, 24, 49, y.Get(), want_dx);
  kernels().window().GlobalAveragePoolBackward(3, 49, 24, 49, y.values(), dx.values());
  ExpectBf16Near(dx.Get(), want_dx);
}

TEST_F(CudaBf16Test, Embedding) {
  const EmbeddingDims dims{
      .batch = 4, .first_token = 3, .tokens = 33, .vocabulary = 7, .features = 65};
  const EmbeddingSizes sizes = SizesOf(dims);
  Floats ids;
  for (int64_t i = 0; i < sizes.ids; ++i) {
    ids.push_back(static_cast<float>(Draw(0, dims.vocabulary - 1, 9, static_cast<uint64_t>(i))));
  }
  const Floats w = Uniform(sizes.w, 1), p = Uniform(sizes.positions, 2), dy = Eighths(sizes.y, 3);
  Floats want = Garbage(sizes.y), want_dw = w, want_dp = p;
  const OnDevice tokens = Wide(ids), table = Wide(w), positions = Wide(p),
                 gradient = DivideToFloat(dy), y = NarrowGarbage(sizes.y),
                 dw = Wide(Garbage(sizes.w)), dp = Wide(Garbage(sizes.positions));
  reference_->dense().EmbeddingForward(dims, ids, w, p, want);
  kernels().dense().EmbeddingForward(dims, tokens.span(), table.span(), positions.span(),
                                     y.values());
  EXPECT_EQ(y.Get(), Bf16Rounded(want));
  // Sums of eighths are exact.
  reference_->dense().EmbeddingBackward(dims, ids, dy, want_dw, want_dp);
  kernels().dense().EmbeddingBackward(dims, tokens.span(), gradient.values(), dw.span(), dp.span());
  EXPECT_EQ(dw.Get(), want_dw);
  EXPECT_EQ(dp.Get(), want_dp);
}

TEST_F(CudaBf16Test, SoftmaxCrossEntropy) {
  for (const int64_t classes : {10, 64, 1000, 1003}) {
    const int64_t rows = 37;
    Floats x = Random(rows * classes, 1);
    for (float& value : x) value *= 4;
    std::vector<int32_t> labels;
    for (int64_t r = 0; r < rows; ++r) {
      labels.push_back(static_cast<int32_t>(Draw(0, classes - 1, 2, static_cast<uint64_t>(r))));
    }
    DeviceArray<int32_t> on_device(device(), labels.size(), "test");
    device().CopyIn(labels.data(), on_device.data(), labels.size() * sizeof(int32_t));
    Floats want = x;
    const auto sums =
        reference_->pointwise().SoftmaxCrossEntropy(rows, classes, 0.1F, x, labels, 2, want);
    const OnDevice in = DivideToFloat(x), dx = NarrowGarbage(rows * classes);
    const auto got = kernels().pointwise().SoftmaxCrossEntropy(rows, classes, 0.1F, in.values(),
                                                               on_device.span(), 2, dx.values());
    // Scores are read as bf16 has them and all else is wider: a few roundings of fp32 by row.
    EXPECT_NEAR(got.loss, sums.loss, 1e-6 * static_cast<double>(rows) * 10);
    EXPECT_EQ(got.correct, sums.correct);
    ExpectBf16Near(dx.Get(), want);
  }
}

TEST_F(CudaBf16Test, FullyConnected) {
  const FullyConnectedDims dims{.batch = 9, .in = 40, .out = 24};
  const LayerSizes sizes = SizesOf(dims);
  const Floats x = Random(sizes.x, 1), w = Random(sizes.w, 2), b = Uniform(sizes.b, 3),
               dy = Random(sizes.y, 4);
  Floats want_y = dy, magnitude_y = dy, want_dx = x, magnitude_dx = x, want_dw = w, want_db = b;
  reference_->dense().FullyConnectedForward(dims, x, w, b, want_y);
  reference_->dense().FullyConnectedForward(dims, Absolute(x), Absolute(w), Absolute(b),
                                            magnitude_y);
  const OnDevice in = DivideToFloat(x), gradient = DivideToFloat(dy), weights = Wide(w),
                 bias = Wide(b), y = NarrowGarbage(sizes.y), dx = NarrowGarbage(sizes.x),
                 dw = Wide(Garbage(sizes.w)), db = Wide(Garbage(sizes.b));
  kernels().dense().FullyConnectedForward(dims, in.values(), weights.span(), bias.span(),
                                          y.values());
  ExpectBf16SumsNear(y.Get(), want_y, magnitude_y);
  reference_->dense().FullyConnectedBackwardData(dims, dy, w, want_dx);
  reference_->dense().FullyConnectedBackwardData(dims, Absolute(dy), Absolute(w), magnitude_dx);
  kernels().dense().FullyConnectedBackwardData(dims, gradient.values(), weights.span(),
                                               dx.values());
  ExpectBf16SumsNear(dx.Get(), want_dx, magnitude_dx);
  reference_->dense().FullyConnectedBackwardWeights(dims, x, dy, want_dw, want_db);
  kernels().dense().FullyConnectedBackwardWeights(dims, in.values(), gradient.values(), dw.span(),
                                                  db.span());
  // Products of bf16 are exact in fp32, and the sums are fp32.
  ExpectNear(dw.Get(), want_dw, 1e-5);
  ExpectNear(db.Get(), want_db, 1e-6);
}

TEST_F(CudaBf16Test, Convolution) {
  const ConvolutionDims dims = Convolution(2, 16, 24, Window(8, 7, 3, 1, 1));
  const LayerSizes sizes = SizesOf(dims);
  const Floats x = Random(sizes.x, 1), w = Random(sizes.w, 2), b = Uniform(sizes.b, 3),
               dy = Random(sizes.y, 4);
  Floats want_y = dy, magnitude = dy, want_dx = x, magnitude_dx = x, want_dw = w, want_db = b,
         magnitude_dw = w, magnitude_db = b;
  reference_->window().ConvolutionForward(dims, x, w, b, want_y);
  reference_->window().ConvolutionForward(dims, Absolute(x), Absolute(w), Absolute(b), magnitude);
  const OnDevice in = DivideToFloat(x), gradient = DivideToFloat(dy), weights = Wide(w),
                 bias = Wide(b), y = NarrowGarbage(sizes.y), dx = NarrowGarbage(sizes.x),
                 dw = Wide(Garbage(sizes.w)), db = Wide(Garbage(sizes.b));
  kernels().window().ConvolutionForward(dims, in.values(), weights.span(), bias.span(), y.values());
  // Rounded before the bias is added, too; and libraries may transform what they multiply.
  const Floats got = y.Get();
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], want_y[i], kRounding * (std::abs(want_y[i]) + 1) + 0x1.0p-9 * magnitude[i]);
  }
  reference_->window().ConvolutionBackwardData(dims, dy, w, want_dx);
  reference_->window().ConvolutionBackwardData(dims, Absolute(dy), Absolute(w), magnitude_dx);
  kernels().window().ConvolutionBackwardData(dims, gradient.values(), weights.span(), dx.values());
  const Floats got_dx = dx.Get();
  for (size_t i = 0; i < got_dx.size(); ++i) {
    ASSERT_NEAR(got_dx[i], want_dx[i],
                kRounding * std::abs(want_dx[i]) + 0x1.0p-9 * magnitude_dx[i]);
  }
  reference_->window().ConvolutionBackwardWeights(dims, x, dy, want_dw, want_db);
  reference_->window().ConvolutionBackwardWeights(dims, Absolute(x), Absolute(dy), magnitude_dw,
                                                  magnitude_db);
  kernels().window().ConvolutionBackwardWeights(dims, in.values(), gradient.values(), dw.span(),
                                                db.span());
  const Floats got_dw = dw.Get();
  for (size_t i = 0; i < got_dw.size(); ++i) {
    ASSERT_NEAR(got_dw[i], want_dw[i],
                kRounding * std::abs(want_dw[i]) + 0x1.0p-9 * magnitude_dw[i]);
  }
  ExpectNear(db.Get(), want_db, 1e-5);
}

TEST_F(CudaBf16Test, Attention) {
  for (const AttentionDims& dims :
       {AttentionDims{.batch = 2, .tokens = 24, .heads = 3, .head_features = 8, .causal = true},
        // Enough tokens that what fused attention keeps fits where probabilities would be.
        AttentionDims{.batch = 1, .tokens = 96, .heads = 2, .head_features = 16, .causal = true},
        AttentionDims{.batch = 1, .tokens = 96, .heads = 2, .head_features = 64},
        AttentionDims{.batch = 1, .tokens = 1, .heads = 1, .head_features = 8}}) {
    SCOPED_TRACE(::testing::PrintToString(dims));
    const AttentionSizes sizes = SizesOf(dims);
    const Floats qkv = Random(sizes.qkv, 1), dcontext = Random(sizes.context, 2);
    Floats want_p = Garbage(sizes.probabilities), want = Garbage(sizes.context), want_dqkv = qkv;
    reference_->dense().AttentionForward(dims, qkv, want_p, want);
    reference_->dense().AttentionBackward(dims, qkv, want_p, dcontext, want_dqkv);
    const OnDevice in = DivideToFloat(qkv), gradient = DivideToFloat(dcontext),
                   probabilities = NarrowGarbage(sizes.probabilities),
                   context = NarrowGarbage(sizes.context), dqkv = NarrowGarbage(sizes.qkv);
    kernels().dense().AttentionForward(dims, in.values(), probabilities.values(), context.values());
    // Probabilities rounded to bf16 weigh values below one: their sum is 1, so 2^-9 besides.
    ExpectBf16Near(context.Get(), want, 0x1.0p-8);
    kernels().dense().AttentionBackward(dims, in.values(), probabilities.values(),
                                        gradient.values(), dqkv.values());
    // Sums over the tokens of rounded gradients of scores; those are probabilities times numbers up
    // to the features, which bf16 holds to 2^-9.
    ExpectBf16Near(dqkv.Get(), want_dqkv, 0x1.0p-8 * std::sqrt(dims.head_features) * 4);
  }
}

}  // namespace
}  // namespace cadre
