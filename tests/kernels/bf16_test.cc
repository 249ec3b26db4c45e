// Compares every operation with bf16 activations with the fp32 reference, on inputs that are exact
// in bf16.
//
// Bounds. Rounding to bf16 has a relative error of at most 2^-8 (half a unit in the last of 8
// places). Operations compute in fp32 and round once at the end, so their results are within 2^-8
// of the reference's, plus fp32's own error, for which each bound has an absolute term. If a value
// is rounded to bf16 before it is multiplied or added to others, the bound is larger, with a
// comment.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/extents.h"
#include "tests/kernels/attention_bounds.h"
#include "tests/kernels/on_device.h"
#include "tests/kernels/rig.h"

namespace cadre {
namespace {

constexpr double kRounding = 0x1.0p-8;

// Expects that each error is at most kRounding of the expected value plus `absolute`.
void ExpectBf16Near(const Floats& got, const Floats& want, double absolute = 1e-6) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], want[i], kRounding * std::abs(want[i]) + absolute) << "element " << i;
  }
}

// Expects that each error is at most kRounding of the expected value plus `relative` of the sum of
// the terms' magnitudes.
void ExpectBf16SumsNear(const Floats& got, const Floats& want, const Floats& magnitude,
                        double relative) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], want[i], kRounding * std::abs(want[i]) + relative * magnitude[i] + 1e-6)
        << "element " << i;
  }
}

class Bf16Test : public RigTest {
 protected:
  void SetUp() override {
    RigTest::SetUp();
    if (!IsSkipped()) bf16_ = MakeStagedBackend(MakeRig(), 0, DType::kBFloat16);
  }

  static Floats Random(int64_t n, uint64_t seed) { return Bf16Rounded(Uniform(n, seed)); }

  std::unique_ptr<Backend> bf16_;
};

TEST_F(Bf16Test, ActivationsAreBf16) {
  UseBf16();
  EXPECT_EQ(kernels().activation_type(), DType::kBFloat16);
  ASSERT_TRUE(kernels().SetPrecision(Precision::kFp32).ok());
  EXPECT_EQ(kernels().activation_type(), DType::kFloat32);
}

TEST_F(Bf16Test, Activations) {
  constexpr int64_t kSize = 3003;
  for (const int64_t shift : {0, 1}) {
    const auto bf16 = MakeStagedBackend(MakeRig(), shift, DType::kBFloat16);
    for (const Activation kind :
         {Activation::kRelu, Activation::kGelu, Activation::kSigmoid, Activation::kTanh,
          Activation::kSilu, Activation::kApproximateGelu}) {
      SCOPED_TRACE(static_cast<int>(kind));
      Floats x = Random(kSize, 1);
      for (float& value : x) value *= 8;
      const Floats dy = Random(kSize, 2);
      Floats y = Garbage(kSize), want_y = x, dx = Garbage(kSize), want_dx = x, in_place = dy;
      bf16->pointwise().ActivationForward(kind, x, y);
      reference_->pointwise().ActivationForward(kind, x, want_y);
      ExpectBf16Near(y, want_y);
      // Backward reads the output, which is rounded to bf16.
      const Floats& seen = GradientReadsInput(kind) ? x : y;
      bf16->pointwise().ActivationBackward(kind, seen, dy, dx);
      reference_->pointwise().ActivationBackward(kind, seen, dy, want_dx);
      ExpectBf16Near(dx, want_dx);
      bf16->pointwise().ActivationBackward(kind, seen, in_place, in_place);
      EXPECT_EQ(in_place, dx);
    }
  }
}

TEST_F(Bf16Test, AddAndDropout) {
  const Floats x = Random(1001, 1);
  Floats sum = Random(1001, 2), want = sum, got = Garbage(1001);
  bf16_->pointwise().Add(x, sum);
  reference_->pointwise().Add(x, want);
  EXPECT_EQ(sum, Bf16Rounded(want));
  bf16_->pointwise().Sum(x, Random(1001, 2), got);
  EXPECT_EQ(got, sum);
  const DropoutKey key{.seed = 5, .layer = 2, .rate = 0.3F};
  bf16_->pointwise().Dropout(key, 77, x, got);
  reference_->pointwise().Dropout(key, 77, x, want);
  ExpectBf16Near(got, want);
  for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i] == 0, want[i] == 0) << i;
}

TEST_F(Bf16Test, BatchNorm) {
  for (const RowsDims& dims : {RowsDims{2, 3}, RowsDims{300, 17}, RowsDims{64, 64},
                               RowsDims{5, 1000}, RowsDims{3000, 8}}) {
    SCOPED_TRACE(::testing::Message() << dims.rows << " rows of " << dims.channels);
    const int64_t n = SizeOf(dims), channels = dims.channels;
    const Floats x = Random(n, 1), dy = Random(n, 2), scale = Uniform(channels, 3),
                 shift = Uniform(channels, 4), mean = Uniform(channels, 5),
                 inverse = Absolute(Uniform(channels, 6)), mean_dy = Uniform(channels, 7);
    std::vector<double> got_sums(2 * channels), want_sums(2 * channels);
    bf16_->norm().BatchNormSums(dims, x, got_sums);
    reference_->norm().BatchNormSums(dims, x, want_sums);
    // Terms are exact and at most one. Back ends sum up to 32 of them in fp32, with an error of at
    // most 32 * 2^-24 for each, and these sums in double.
    for (size_t c = 0; c < got_sums.size(); ++c) {
      EXPECT_NEAR(got_sums[c], want_sums[c], dims.rows * 0x1.0p-19);
    }
    Floats dscale = Garbage(channels), dshift = dscale;
    bf16_->norm().BatchNormBackwardSums(dims, x, dy, {}, {}, mean, inverse, {}, got_sums, dscale,
                                        dshift);
    reference_->norm().BatchNormBackwardSums(dims, x, dy, {}, {}, mean, inverse, {}, want_sums,
                                             dscale, dshift);
    // The terms are at most two and are rounded to fp32.
    for (size_t c = 0; c < got_sums.size(); ++c) {
      EXPECT_NEAR(got_sums[c], want_sums[c], dims.rows * 0x1.0p-21);
    }
    Floats got = Garbage(n), want = x;
    bf16_->norm().BatchNormForward(dims, x, mean, inverse, scale, shift, {}, {}, got);
    reference_->norm().BatchNormForward(dims, x, mean, inverse, scale, shift, {}, {}, want);
    ExpectBf16Near(got, want);
    const std::vector<double> sums = Sums(mean_dy, shift);
    bf16_->norm().BatchNormBackward(dims, x, dy, {}, mean, inverse, scale, 1, sums, got);
    reference_->norm().BatchNormBackward(dims, x, dy, {}, mean, inverse, scale, 1, sums, want);
    ExpectBf16Near(got, want, 2e-6);
  }
}

TEST_F(Bf16Test, FusedBatchNormEqualsSeparateOperations) {
  for (const RowsDims& dims : {RowsDims{2, 3}, RowsDims{300, 17}, RowsDims{64, 64}}) {
    ExpectFusedBatchNormEqualsSeparate(*bf16_, dims);
  }
}

TEST_F(Bf16Test, LayerNorm) {
  for (const RowsDims& dims :
       {RowsDims{1, 2}, RowsDims{70, 17}, RowsDims{64, 64}, RowsDims{5, 1000}, RowsDims{300, 8}}) {
    SCOPED_TRACE(::testing::Message() << dims.rows << " rows of " << dims.channels);
    const Floats x = Random(SizeOf(dims), 1), dy = Random(SizeOf(dims), 2),
                 scale = Uniform(dims.channels, 3), shift = Uniform(dims.channels, 4);
    const LayerNormOutputs got = RunLayerNorm(*bf16_, dims, x, scale, shift, dy);
    const LayerNormOutputs want = RunLayerNorm(*reference_, dims, x, scale, shift, dy);
    ExpectNear(got.mean, want.mean, 1e-6);
    ExpectNear(got.inverse, want.inverse, 2e-5);
    ExpectBf16Near(got.y, want.y, 2e-5);
    // The inverse (of the deviation) may be large for a row of two, and multiplies fp32's rounding
    // errors.
    ExpectBf16Near(got.dx, want.dx, 1e-3);
    const double bound = 1e-5 + dims.rows * 0x1.0p-21;
    ExpectNear(got.dscale, want.dscale, 10 * bound);
    ExpectNear(got.dshift, want.dshift, bound);
  }
}

TEST_F(Bf16Test, Lrn) {
  for (const float beta : {0.75F, 0.5F}) {
    const LrnDims dims{.rows = 40, .channels = 33, .size = 5, .alpha = 0.5F, .beta = beta, .k = 2};
    const Floats x = Random(SizeOf(dims), 1), dy = Random(SizeOf(dims), 2);
    const LrnOutputs got = RunLrn(*bf16_, dims, x, dy), want = RunLrn(*reference_, dims, x, dy);
    ExpectBf16Near(got.y, want.y);
    ExpectNear(got.d, want.d, 2e-6);
    ExpectBf16Near(got.dx, want.dx, 4e-6);
  }
}

TEST_F(Bf16Test, Pooling) {
  for (const PoolKind kind : {PoolKind::kMax, PoolKind::kAverage, PoolKind::kAverageWithPadding}) {
    for (const int64_t channels : {3, 16}) {
      const PoolingDims dims = Pooling(kind, 2, channels, Window(9, 7, 3, 2, 1));
      const Floats x = Random(SizesOf(dims).x, 1), dy = Random(SizesOf(dims).y, 2);
      const PoolingOutputs got = RunPooling(*bf16_, dims, x, dy);
      const PoolingOutputs want = RunPooling(*reference_, dims, x, dy);
      EXPECT_EQ(got.argmax, want.argmax);
      ExpectBf16Near(got.y, want.y);
      ExpectBf16Near(got.dx, want.dx);
    }
  }
  const Floats x = Random(3 * 49 * 24, 1);
  Floats y = Garbage(3 * 24), want_y = y, dx = x, want_dx = x;
  bf16_->window().GlobalAveragePoolForward(3, 49, 24, 49, x, y);
  reference_->window().GlobalAveragePoolForward(3, 49, 24, 49, x, want_y);
  ExpectBf16Near(y, want_y);
  bf16_->window().GlobalAveragePoolBackward(3, 49, 24, 49, y, dx);
  reference_->window().GlobalAveragePoolBackward(3, 49, 24, 49, y, want_dx);
  ExpectBf16Near(dx, want_dx);
}

TEST_F(Bf16Test, Embedding) {
  const EmbeddingDims dims{
      .batch = 4, .first_token = 3, .tokens = 33, .vocabulary = 7, .features = 65};
  const EmbeddingSizes sizes = SizesOf(dims);
  const Floats ids = RandomIds(sizes.ids, dims.vocabulary), w = Uniform(sizes.w, 1),
               p = Uniform(sizes.positions, 2), dy = Eighths(sizes.y, 3);
  Floats got = Garbage(sizes.y), want = got, dw = Garbage(sizes.w), want_dw = w,
         dp = Garbage(sizes.positions), want_dp = p;
  bf16_->dense().EmbeddingForward(dims, ids, w, p, got);
  reference_->dense().EmbeddingForward(dims, ids, w, p, want);
  EXPECT_EQ(got, Bf16Rounded(want));
  // Sums of eighths are exact.
  bf16_->dense().EmbeddingBackward(dims, ids, dy, dw, dp);
  reference_->dense().EmbeddingBackward(dims, ids, dy, want_dw, want_dp);
  EXPECT_EQ(dw, want_dw);
  EXPECT_EQ(dp, want_dp);
}

TEST_F(Bf16Test, SoftmaxCrossEntropy) {
  for (const int64_t classes : {10, 64, 1000, 1003}) {
    const int64_t rows = 37;
    Floats x = Random(rows * classes, 1), dx = x, want_dx = x;
    for (float& value : x) value *= 4;
    const std::vector<int32_t> labels = RandomLabels(rows, classes);
    const LossSums got =
        bf16_->pointwise().SoftmaxCrossEntropy(rows, classes, 0.1F, x, labels, 2, dx);
    const LossSums want =
        reference_->pointwise().SoftmaxCrossEntropy(rows, classes, 0.1F, x, labels, 2, want_dx);
    // The scores are exact and everything else is wider: a few roundings of fp32 per row.
    EXPECT_NEAR(got.loss, want.loss, 1e-5 * rows);
    EXPECT_EQ(got.correct, want.correct);
    ExpectBf16Near(dx, want_dx);
    bf16_->pointwise().SoftmaxCrossEntropy(rows, classes, 0.1F, x, labels, 2, x);
    EXPECT_EQ(x, dx) << "over the scores";
  }
}

TEST_F(Bf16Test, SampledScores) {
  const RowsDims dims{.rows = 7, .channels = 19};
  const int64_t candidates = dims.rows + dims.channels;
  Floats ids;
  for (const int32_t id : RandomLabels(candidates, 12)) ids.push_back(id);
  const Floats offsets = Uniform(candidates, 1), label_scores = Uniform(dims.rows, 2),
               scores = Uniform(SizeOf(dims), 3);
  Floats got = Garbage(SizeOf(dims) + dims.rows), want = got;
  bf16_->pointwise().SampledScores(dims, ids, offsets, label_scores, scores, got);
  reference_->pointwise().SampledScores(dims, ids, offsets, label_scores, scores, want);
  EXPECT_EQ(got, Bf16Rounded(want));
}

TEST_F(Bf16Test, FullyConnected) {
  const FullyConnectedDims dims{.batch = 9, .in = 40, .out = 24};
  const LayerSizes sizes = SizesOf(dims);
  const Floats x = Random(sizes.x, 1), w = Random(sizes.w, 2), b = Uniform(sizes.b, 3),
               dy = Random(sizes.y, 4);
  const LayerOutputs got = RunLayer(*bf16_, dims, x, w, b, dy);
  const LayerOutputs want = RunLayer(*reference_, dims, x, w, b, dy);
  const LayerOutputs magnitude =
      RunLayer(*reference_, dims, Absolute(x), Absolute(w), Absolute(b), Absolute(dy));
  ExpectBf16SumsNear(got.y, want.y, magnitude.y, 1e-4);
  ExpectBf16SumsNear(got.dx, want.dx, magnitude.dx, 1e-4);
  // Products of bf16 are exact in fp32, and the sums are fp32.
  ExpectNear(got.dw, want.dw, 1e-5);
  ExpectNear(got.db, want.db, 1e-6);
  Floats dw = got.dw, db = got.db, want_dw = want.dw, want_db = want.db;
  bf16_->dense().FullyConnectedAddGradients(dims, x, dy, dw, db);
  reference_->dense().FullyConnectedAddGradients(dims, x, dy, want_dw, want_db);
  ExpectNear(dw, want_dw, 1e-5);
  ExpectNear(db, want_db, 1e-6);
}

TEST_F(Bf16Test, Convolution) {
  const ConvolutionDims dims = Convolution(2, 16, 24, Window(8, 7, 3, 1, 1));
  const LayerSizes sizes = SizesOf(dims);
  const Floats x = Random(sizes.x, 1), w = Random(sizes.w, 2), b = Uniform(sizes.b, 3),
               dy = Random(sizes.y, 4);
  const LayerOutputs got = RunLayer(*bf16_, dims, x, w, b, dy);
  const LayerOutputs want = RunLayer(*reference_, dims, x, w, b, dy);
  LayerOutputs magnitude =
      RunLayer(*reference_, dims, Absolute(x), Absolute(w), Absolute(b), Absolute(dy));
  // The output is also rounded before the bias, which is at most one, is added; and libraries may
  // transform the factors.
  for (float& value : magnitude.y) value += 2;
  ExpectBf16SumsNear(got.y, want.y, magnitude.y, 0x1.0p-9);
  ExpectBf16SumsNear(got.dx, want.dx, magnitude.dx, 0x1.0p-9);
  ExpectBf16SumsNear(got.dw, want.dw, magnitude.dw, 0x1.0p-9);
  ExpectNear(got.db, want.db, 1e-5);
}

// The ids of samples of which one in three has no padding, one has some, and one has only padding.
Floats PaddedIds(const AttentionDims& dims) {
  Floats ids(SizesOf(dims).ids, 4.0F);
  for (size_t i = 0; i < ids.size(); ++i) {
    const int64_t sample = i / dims.tokens % 3, token = i % dims.tokens;
    if (sample == 2 || (sample == 1 && token % 4 > 1) || (dims.batch == 1 && token > 1000)) {
      ids[i] = dims.padding_token;
    }
  }
  return ids;
}

TEST_F(Bf16Test, Attention) {
  for (const AttentionDims& dims :
       {AttentionDims{.batch = 2, .tokens = 24, .heads = 3, .head_features = 8, .causal = true},
        AttentionDims{.batch = 1, .tokens = 96, .heads = 2, .head_features = 16, .causal = true},
        AttentionDims{.batch = 1, .tokens = 96, .heads = 2, .head_features = 64},
        // Not fused.
        AttentionDims{.batch = 2, .tokens = 40, .heads = 3, .head_features = 12},
        AttentionDims{.batch = 1, .tokens = 71, .heads = 2, .head_features = 5, .causal = true},
        AttentionDims{.batch = 1, .tokens = 1, .heads = 1, .head_features = 8},
        AttentionDims{
            .batch = 3, .tokens = 24, .heads = 2, .head_features = 8, .padding_token = 3}}) {
    SCOPED_TRACE(::testing::PrintToString(dims));
    const AttentionSizes sizes = SizesOf(dims);
    const Floats qkv = Random(sizes.qkv, 1), dcontext = Random(sizes.context, 2);
    const Floats ids = PaddedIds(dims);
    Floats logs = Garbage(sizes.statistics), want = Garbage(sizes.context), want_dqkv = qkv;
    reference_->dense().AttentionForward(dims, ids, qkv, want, logs, {});
    reference_->dense().AttentionBackward(dims, ids, qkv, want, dcontext, logs, {}, want_dqkv);
    UseBf16();
    const OnDevice in(device(), qkv, DType::kBFloat16),
        gradient(device(), dcontext, DType::kBFloat16),
        context(device(), Garbage(sizes.context), DType::kBFloat16),
        dqkv(device(), Garbage(sizes.qkv), DType::kBFloat16);
    const DeviceArray<float> statistics(device(), sizes.statistics, "test");
    const OnDevice ids_on_device(device(), ids, DType::kFloat32);
    const ConstFloatSpan tokens = ids_on_device.span();
    kernels().dense().AttentionForward(dims, tokens, in.values(), context.values(),
                                       statistics.span(), {});
    const AttentionBounds bounds = BoundsOf(dims, DType::kBFloat16, qkv, 1, ids);
    EXPECT_LE(LargestShare(context.Get(), want, bounds.context, DType::kBFloat16), 1);
    kernels().dense().AttentionBackward(dims, tokens, in.values(), context.values(),
                                        gradient.values(), statistics.span(), {}, dqkv.values());
    EXPECT_LE(LargestShare(dqkv.Get(), want_dqkv, bounds.dqkv, DType::kBFloat16), 1);
  }
}

// Bounds for the errors of a step's gates, cells and outputs in fp32, from their exact values: u is
// the largest relative error of one rounding. A gate rounds its sum and has a function that is
// within four units in the last place (8 u), as those of devices are; the derivative of a sigmoid
// is at most 1/4, that of tanh at most 1. Requires: cells before the step are at most 1 in
// magnitude.
struct LstmBounds {
  std::vector<double> gates, cell, y;
};

LstmBounds BoundsOf(const RowsDims& dims, const Floats& sums, const Floats& recurrent) {
  constexpr double u = 0x1p-24;
  LstmBounds bounds;
  bounds.gates.resize(sums.size());
  for (int64_t row = 0; row < dims.rows; ++row) {
    for (int64_t c = 0; c < dims.channels; ++c) {
      double gate_errors = 0;
      for (int64_t gate = 0; gate < 4; ++gate) {
        const int64_t at = (row * 4 + gate) * dims.channels + c;
        const double sum = std::abs(double{sums[at]} + recurrent[at]);
        bounds.gates[at] = (gate == 2 ? sum : sum / 4) * u + 8 * u;
        gate_errors += bounds.gates[at];
      }
      // f * previous + i * g, whose factors are at most 1; and o * tanh(cell).
      bounds.cell.push_back(gate_errors + 3 * 2 * u);
      bounds.y.push_back(gate_errors + bounds.cell.back() + 9 * u);
    }
  }
  return bounds;
}

TEST_F(Bf16Test, LstmStep) {
  for (const RowsDims& dims : {RowsDims{1, 1}, RowsDims{5, 33}, RowsDims{16, 256}}) {
    const int64_t cells = SizeOf(dims);
    const Floats sums = Random(4 * cells, 1), recurrent = Random(4 * cells, 2),
                 previous = Uniform(cells, 3), dy = Random(cells, 4);
    Floats gates = sums, want_gates = sums, cell = Garbage(cells), want_cell = cell;
    Floats y = Garbage(cells), want_y = y;
    bf16_->pointwise().LstmForward(dims, recurrent, previous, gates, cell, y);
    reference_->pointwise().LstmForward(dims, recurrent, previous, want_gates, want_cell, want_y);
    const LstmBounds bounds = BoundsOf(dims, sums, recurrent);
    EXPECT_LE(LargestShare(gates, want_gates, bounds.gates, DType::kBFloat16), 1);
    EXPECT_LE(LargestShare(cell, want_cell, bounds.cell), 1);
    EXPECT_LE(LargestShare(y, want_y, bounds.y, DType::kBFloat16), 1);
    // From the same rounded gates.
    want_gates = gates;
    Floats dcell = Uniform(cells, 5), want_dcell = dcell;
    // The gradient of a cell is dcell + dy * o * (1 - tanh(cell)^2); the others are products of it
    // with at most three factors, which are at most 1 and have a few roundings.
    std::vector<double> of_cells, of_gates(4 * cells);
    for (int64_t i = 0; i < cells; ++i) {
      of_cells.push_back(24 * 0x1p-24 * (std::abs(dcell[i]) + std::abs(dy[i])));
      for (int64_t gate = 0; gate < 4; ++gate) {
        const int64_t row = i / dims.channels, c = i % dims.channels;
        of_gates[(row * 4 + gate) * dims.channels + c] = of_cells.back();
      }
    }
    bf16_->pointwise().LstmBackward(dims, dy, previous, cell, gates, dcell);
    reference_->pointwise().LstmBackward(dims, dy, previous, cell, want_gates, want_dcell);
    EXPECT_LE(LargestShare(gates, want_gates, of_gates, DType::kBFloat16), 1);
    EXPECT_LE(LargestShare(dcell, want_dcell, of_cells), 1);
  }
}

TEST_F(Bf16Test, Softmax) {
  constexpr float kScale = 3;
  const RowsDims dims{.rows = 30, .channels = 45};
  const int64_t n = SizeOf(dims);
  const Floats x = Uniform(n, 1), dy = Uniform(n, 2);
  Floats y = Garbage(n), want = y, dx = y, want_dx = y;
  bf16_->pointwise().SoftmaxForward(dims, kScale, x, y);
  reference_->pointwise().SoftmaxForward(dims, kScale, x, want);
  // The scaled values are at most kScale in magnitude, and their differences from the largest one
  // twice that; the exponential is within two units in the last place (4 u), and the sum of
  // exponentials has one rounding for each.
  constexpr double u = 0x1p-24;
  const double probability = (6 * kScale + 8 + dims.channels + 2) * u;
  std::vector<double> bounds, of_dx;
  for (const float p : want) bounds.push_back(probability * p);
  EXPECT_LE(LargestShare(y, want, bounds, DType::kBFloat16), 1);
  bf16_->pointwise().SoftmaxBackward(dims, kScale, y, dy, dx);
  reference_->pointwise().SoftmaxBackward(dims, kScale, y, dy, want_dx);
  // The sum of y * dy, whose magnitudes add up to about 1, and the difference from it.
  for (const float p : y) of_dx.push_back(kScale * p * (dims.channels + 1 + 3 * 2) * u * 1.1);
  EXPECT_LE(LargestShare(dx, want_dx, of_dx, DType::kBFloat16), 1);
}

TEST_F(Bf16Test, BatchedProduct) {
  for (const BatchedProductDims& dims :
       {BatchedProductDims{.batch = 3, .m = 8, .n = 16, .k = 24, .transpose_b = true},
        BatchedProductDims{.batch = 3, .m = 8, .n = 16, .k = 24, .transpose_a = true},
        // Products of vectors, and of a number and a vector.
        BatchedProductDims{.batch = 9, .m = 1, .n = 1, .k = 37},
        BatchedProductDims{.batch = 9, .m = 1, .n = 37, .k = 1}}) {
    const LayerSizes sizes = SizesOf(dims);
    const Floats a = Random(sizes.x, 1), b = Random(sizes.w, 2);
    Floats want = Garbage(sizes.y), magnitude = want, rounded = want;
    reference_->dense().BatchedProduct(dims, a, b, want);
    reference_->dense().BatchedProduct(dims, Absolute(a), Absolute(b), magnitude);
    bf16_->dense().BatchedProduct(dims, a, b, rounded);
    ExpectBf16SumsNear(rounded, want, magnitude, 1e-6);
    // The result may also be fp32.
    UseBf16();
    const OnDevice a_on_device(device(), a, DType::kBFloat16),
        b_on_device(device(), b, DType::kBFloat16),
        exact(device(), Garbage(sizes.y), DType::kFloat32);
    kernels().dense().BatchedProduct(dims, a_on_device.values(), b_on_device.values(),
                                     exact.values());
    ExpectSumsNear(exact.Get(), want, magnitude, dims.k);
  }
}

// More scores than one block of attention's scratch memory holds (2^22): heads of one sample, whole
// samples, and rows of one head. In fp32, so that errors of the division into blocks are not hidden
// by rounding.
TEST_F(Bf16Test, AttentionInBlocks) {
  for (const AttentionDims& dims :
       {AttentionDims{.batch = 1, .tokens = 1400, .heads = 3, .head_features = 2},
        AttentionDims{.batch = 3, .tokens = 800, .heads = 3, .head_features = 2, .causal = true},
        AttentionDims{.batch = 1, .tokens = 2100, .heads = 1, .head_features = 2},
        AttentionDims{.batch = 1, .tokens = 2100, .heads = 1, .head_features = 2, .causal = true},
        AttentionDims{
            .batch = 3, .tokens = 800, .heads = 3, .head_features = 2, .padding_token = 3},
        AttentionDims{.batch = 1,
        .tokens = 2100,
        .heads = 1,
        .head_features = 2,
        .causal = true,
        .padding_token = 3}}) {
    SCOPED_TRACE(::testing::PrintToString(dims));
    const AttentionSizes sizes = SizesOf(dims);
    const Floats qkv = Uniform(sizes.qkv, 1), dcontext = Uniform(sizes.context, 2);
    const Floats ids = PaddedIds(dims);
    const AttentionOutputs got =
        RunAttention(*MakeStagedBackend(MakeRig(), 0, DType::kFloat32), dims, qkv, dcontext, ids);
    const AttentionOutputs want = RunAttention(*reference_, dims, qkv, dcontext, ids);
    // Sums of up to 2,100 terms in fp32, whose products are at most 1 and whose weights sum to 1,
    // in parts of 32 lanes.
    ExpectNear(got.statistics, want.statistics, 1e-5);
    ExpectNear(got.context, want.context, 1e-5);
    ExpectNear(got.dqkv, want.dqkv, 2e-5);
  }
}

}  // namespace
}  // namespace cadre
