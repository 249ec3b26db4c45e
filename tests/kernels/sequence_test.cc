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

using SequenceTest = BackEndTest;
INSTANTIATE_TEST_SUITE_P(BackEnds, SequenceTest, ::testing::ValuesIn(BackEnds()), NameOf);

// --- embedding -----------------------------------------------------------------------------------

TEST_P(SequenceTest, EmbeddingKnownAnswer) {
  const EmbeddingDims dims{
      .batch = 2, .first_token = 1, .tokens = 2, .vocabulary = 4, .features = 2};
  const Floats ids = {3, 0, 3, 3}, w = {1, 2, 3, 4, 5, 6, 7, 8};
  const Floats positions = {10, 10, 100, 200, 300, 400, 9, 9};
  Floats y = Garbage(8);
  kernels_->dense().EmbeddingForward(dims, ids, w, positions, y);
  EXPECT_THAT(y, ElementsAre(107, 208, 301, 402, 107, 208, 307, 408));
  kernels_->dense().EmbeddingForward(dims, ids, w, {}, y);
  EXPECT_THAT(y, ElementsAre(7, 8, 1, 2, 7, 8, 7, 8));
  Floats dw = Garbage(8), dpositions = Garbage(8);
  const Floats dy = {1, 2, 3, 4, 5, 6, 7, 8};
  kernels_->dense().EmbeddingBackward(dims, ids, dy, dw, dpositions);
  EXPECT_THAT(dw, ElementsAre(3, 4, 0, 0, 0, 0, 13, 16));
  EXPECT_THAT(dpositions, ElementsAre(0, 0, 6, 8, 10, 12, 0, 0));
  dw = Garbage(8);
  kernels_->dense().EmbeddingBackward(dims, ids, dy, dw, {});
  EXPECT_THAT(dw, ElementsAre(3, 4, 0, 0, 0, 0, 13, 16));
}

TEST_P(SequenceTest, EmbeddingGradientsMatchDifferences) {
  const EmbeddingDims dims{
      .batch = 3, .first_token = 2, .tokens = 5, .vocabulary = 11, .features = 4};
  const Floats ids = RandomIds(SizesOf(dims).ids, dims.vocabulary);
  Floats w = Uniform(44, 1), positions = Uniform(9 * 4, 2);
  const Floats dy = Uniform(60, 3);
  Floats dw = Garbage(44), dpositions = Garbage(36);
  kernels_->dense().EmbeddingBackward(dims, ids, dy, dw, dpositions);
  const auto forward = [&] {
    Floats y = Garbage(60);
    kernels_->dense().EmbeddingForward(dims, ids, w, positions, y);
    return y;
  };
  ExpectGradient(w, dw, dy, forward);
  ExpectGradient(positions, dpositions, dy, forward);
}

TEST_P(SequenceTest, EmbeddingOfEmptyTensors) {
  Floats none, dw = Garbage(6), dpositions = Garbage(4);
  const EmbeddingDims dims{.batch = 0, .tokens = 2, .vocabulary = 3, .features = 2};
  kernels_->dense().EmbeddingForward(dims, none, dw, dpositions, none);
  kernels_->dense().EmbeddingBackward(dims, none, none, dw, dpositions);
  EXPECT_THAT(dw, Each(0.0F));
  EXPECT_THAT(dpositions, Each(0.0F));
  kernels_->dense().EmbeddingForward({.batch = 1, .tokens = 2, .vocabulary = 3}, Floats{1, 2}, none,
                                     {}, none);
}

TEST_P(SequenceTest, EmbeddingEqualsReferenceOnExactData) {
  for (const EmbeddingDims& dims :
       {EmbeddingDims{.batch = 4, .tokens = 33, .vocabulary = 7, .features = 65},
        EmbeddingDims{
            .batch = 2, .first_token = 16, .tokens = 16, .vocabulary = 500, .features = 64},
        EmbeddingDims{.batch = 1, .tokens = 1, .vocabulary = 1, .features = 1}}) {
    const EmbeddingSizes sizes = SizesOf(dims);
    const Floats ids = RandomIds(SizesOf(dims).ids, dims.vocabulary), w = Eighths(sizes.w, 1),
                 p = Eighths(sizes.positions, 2), dy = Eighths(sizes.y, 3);
    Floats got = Garbage(sizes.y), want = got;
    Floats got_dw = Garbage(sizes.w), want_dw = got_dw;
    Floats got_dp = Garbage(sizes.positions), want_dp = got_dp;
    kernels_->dense().EmbeddingForward(dims, ids, w, p, got);
    MakeReferenceBackend()->dense().EmbeddingForward(dims, ids, w, p, want);
    EXPECT_EQ(got, want);
    kernels_->dense().EmbeddingBackward(dims, ids, dy, got_dw, got_dp);
    MakeReferenceBackend()->dense().EmbeddingBackward(dims, ids, dy, want_dw, want_dp);
    EXPECT_EQ(got_dw, want_dw);
    EXPECT_EQ(got_dp, want_dp);
  }
}

// --- attention -----------------------------------------------------------------------------------

// Two tokens and one head of four features: scores are products divided by the square root of four.
TEST_P(SequenceTest, AttentionKnownAnswer) {
  const float log3 = std::log(3.0F);
  const Floats qkv = {
      2 * log3, 0, 0, 0, /**/ 1, 0, 0, 0, /**/ 4, 8,  12, 16,  // first token: q, k, v
      0,        0, 0, 5, /**/ 0, 1, 0, 0, /**/ 8, 16, 0,  0,   // second
  };
  AttentionDims dims{.batch = 1, .tokens = 2, .heads = 1, .head_features = 4};
  AttentionOutputs out = RunAttention(*kernels_, dims, qkv, Floats(8, 0.0F));
  // The first token has weights exp(log 3) and exp(0), normalised; the second has equal weights.
  ExpectNear(out.probabilities, Floats{0.75F, 0.25F, 0.5F, 0.5F}, 1e-6);
  ExpectNear(out.context, Floats{5, 10, 9, 12, 6, 12, 6, 8}, 1e-6);
  dims.causal = true;
  out = RunAttention(*kernels_, dims, qkv, {1, 2, 3, 4, 1, 2, 3, 4});
  ExpectNear(out.probabilities, Floats{1, 0, 0.5F, 0.5F}, 1e-6);
  EXPECT_EQ(out.probabilities[1], 0);
  ExpectNear(out.context, Floats{4, 8, 12, 16, 6, 12, 6, 8}, 1e-6);
  // Values: the first's gradient is 1 + 0.5 times (1, 2, 3, 4). dp is 120 and 40 for the second
  // token, so its scores' gradients are 0.5 * (120 - 80) and its negative, halved by the root.
  ExpectNear(out.dqkv, Floats{0,  0,   0, 0, /**/ 0, 0, 0, 50,  /**/ 1.5F, 3, 4.5F, 6,
                              10, -10, 0, 0, /**/ 0, 0, 0, -50, /**/ 0.5F, 1, 1.5F, 2},
             1e-6);
}

TEST_P(SequenceTest, AttentionGradientMatchesDifferences) {
  for (const AttentionDims& dims :
       {AttentionDims{.batch = 2, .tokens = 5, .heads = 3, .head_features = 4},
        AttentionDims{.batch = 1, .tokens = 7, .heads = 2, .head_features = 8, .causal = true}}) {
    SCOPED_TRACE(::testing::PrintToString(dims));
    Floats qkv = Uniform(SizesOf(dims).qkv, 1);
    for (float& value : qkv) value *= 2;
    const Floats dcontext = Uniform(SizesOf(dims).context, 2);
    const AttentionOutputs out = RunAttention(*kernels_, dims, qkv, dcontext);
    ExpectGradient(qkv, out.dqkv, dcontext,
                   [&] { return RunAttention(*kernels_, dims, qkv, dcontext).context; });
  }
}

TEST_P(SequenceTest, CausalAttentionIgnoresLaterTokens) {
  const AttentionDims dims{
      .batch = 1, .tokens = 19, .heads = 2, .head_features = 5, .causal = true};
  Floats qkv = Uniform(SizesOf(dims).qkv, 1);
  const Floats zero(SizesOf(dims).context, 0.0F);
  const AttentionOutputs before = RunAttention(*kernels_, dims, qkv, zero);
  for (size_t i = 18 * 2 * 3 * 5; i < qkv.size(); ++i) qkv[i] += 1;
  const AttentionOutputs after = RunAttention(*kernels_, dims, qkv, zero);
  for (size_t i = 0; i < 18 * 2 * 5; ++i) EXPECT_EQ(after.context[i], before.context[i]);
  for (size_t row = 0; row < 2 * 19; ++row) {
    double sum = 0;
    for (size_t s = 0; s < 19; ++s) {
      const float p = after.probabilities[row * 19 + s];
      sum += p;
      EXPECT_TRUE(s <= row % 19 ? p > 0 : p == 0);
    }
    EXPECT_NEAR(sum, 1, 1e-6);
  }
}

TEST_P(SequenceTest, AttentionWithLargeScoresStaysFinite) {
  const AttentionDims dims{.batch = 1, .tokens = 17, .heads = 1, .head_features = 16};
  Floats qkv = Uniform(SizesOf(dims).qkv, 1);
  for (float& value : qkv) value *= 1000;
  const AttentionOutputs out = RunAttention(*kernels_, dims, qkv, Uniform(17 * 16, 2));
  for (const Floats* part : {&out.probabilities, &out.context, &out.dqkv}) {
    for (const float value : *part) ASSERT_TRUE(std::isfinite(value));
  }
}

TEST_P(SequenceTest, AttentionOfEmptyTensors) {
  for (const AttentionDims& dims :
       {AttentionDims{.batch = 0, .tokens = 3, .heads = 2, .head_features = 4},
        AttentionDims{.batch = 2, .tokens = 0, .heads = 2, .head_features = 4, .causal = true},
        AttentionDims{.batch = 2, .tokens = 3, .heads = 0, .head_features = 4}}) {
    RunAttention(*kernels_, dims, {}, {});
  }
}

TEST_P(SequenceTest, AttentionIsNearTheReference) {
  const auto reference = MakeReferenceBackend();
  for (const AttentionDims& shape :
       {AttentionDims{.batch = 1, .tokens = 1, .heads = 1, .head_features = 1},
        AttentionDims{.batch = 2, .tokens = 7, .heads = 3, .head_features = 5},
        AttentionDims{.batch = 2, .tokens = 64, .heads = 4, .head_features = 16},
        AttentionDims{.batch = 1, .tokens = 65, .heads = 1, .head_features = 33}}) {
    for (const bool causal : {false, true}) {
      AttentionDims dims = shape;
      dims.causal = causal;
      SCOPED_TRACE(::testing::PrintToString(dims));
      const Floats qkv = Uniform(SizesOf(dims).qkv, 1),
                   dcontext = Uniform(SizesOf(dims).context, 2);
      const AttentionOutputs got = RunAttention(*kernels_, dims, qkv, dcontext);
      const AttentionOutputs want = RunAttention(*reference, dims, qkv, dcontext);
      // Scores are below six and sums of 33 products, so their errors are at most 33 * 2^-24 * 6;
      // through exp() the probabilities, which are below one, have errors of the same size.
      ExpectNear(got.probabilities, want.probabilities, 1e-5);
      ExpectNear(got.context, want.context, 1e-5);
      ExpectNear(got.dqkv, want.dqkv, 2e-5);
    }
  }
}

}  // namespace
}  // namespace cadre
