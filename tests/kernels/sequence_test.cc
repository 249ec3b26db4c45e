#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/backend.h"
#include "kernels/extents.h"
#include "tests/kernels/attention_bounds.h"
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
  const auto reference = MakeReferenceBackend();
  const auto forward = [&] {
    Floats y = Garbage(60);
    reference->dense().EmbeddingForward(dims, ids, w, positions, y);
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

// Ids of which some, among them all of the CPU back end's second tile, are the padding token 3.
Floats IdsWithPadding(const AttentionDims& d) {
  Floats ids;
  for (int64_t n = 0; n < d.batch; ++n) {
    for (int64_t t = 0; t < d.tokens; ++t) {
      const bool padding = (t >= 64 && t < 128) || (t + 2 * n) % 5 > 2;
      ids.push_back(padding ? 3 : 4);
    }
  }
  return ids;
}

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
  ExpectNear(out.statistics, Floats{2 * std::log(2.0F), std::log(2.0F)}, 1e-6);
  ExpectNear(out.context, Floats{5, 10, 9, 12, 6, 12, 6, 8}, 1e-6);
  dims.causal = true;
  out = RunAttention(*kernels_, dims, qkv, {1, 2, 3, 4, 1, 2, 3, 4});
  ExpectNear(out.statistics, Floats{log3, std::log(2.0F)}, 1e-6);
  ExpectNear(out.context, Floats{4, 8, 12, 16, 6, 12, 6, 8}, 1e-6);
  // Values: the first's gradient is 1 + 0.5 times (1, 2, 3, 4). dp is 120 and 40 for the second
  // token, so its scores' gradients are 0.5 * (120 - 80) and its negative, halved by the root.
  ExpectNear(out.dqkv, Floats{0,  0,   0, 0, /**/ 0, 0, 0, 50,  /**/ 1.5F, 3, 4.5F, 6,
                              10, -10, 0, 0, /**/ 0, 0, 0, -50, /**/ 0.5F, 1, 1.5F, 2},
             1e-6);
}

TEST_P(SequenceTest, AttentionGradientMatchesDifferences) {
  const auto reference = MakeReferenceBackend();
  for (const AttentionDims& dims :
       {AttentionDims{.batch = 2, .tokens = 5, .heads = 3, .head_features = 4},
        AttentionDims{.batch = 1, .tokens = 7, .heads = 2, .head_features = 8, .causal = true},
        AttentionDims{
            .batch = 2, .tokens = 7, .heads = 2, .head_features = 4, .padding_token = 3}}) {
    SCOPED_TRACE(::testing::PrintToString(dims));
    const Floats ids = SizesOf(dims).ids > 0 ? IdsWithPadding(dims) : Floats();
    Floats qkv = Uniform(SizesOf(dims).qkv, 1);
    for (float& value : qkv) value *= 2;
    const Floats dcontext = Uniform(SizesOf(dims).context, 2);
    const AttentionOutputs out = RunAttention(*kernels_, dims, qkv, dcontext, ids);
    ExpectGradient(qkv, out.dqkv, dcontext,
                   [&] { return RunAttention(*reference, dims, qkv, dcontext, ids).context; });
  }
}

// The tokens that are not padding attend to one another as in a sample without the padding.
TEST_P(SequenceTest, AttentionLeavesOutPadding) {
  for (const int64_t tokens : {1, 19, 150}) {
    for (const bool causal : {false, true}) {
      AttentionDims padded{.batch = 2,
                           .tokens = tokens,
                           .heads = 2,
                           .head_features = 5,
                           .causal = causal,
                           .padding_token = 3};
      SCOPED_TRACE(::testing::PrintToString(padded));
      const Floats ids = IdsWithPadding(padded);
      const Floats qkv = Uniform(SizesOf(padded).qkv, 1);
      Floats dcontext = Uniform(SizesOf(padded).context, 2);
      const int64_t row = padded.heads * padded.head_features;
      for (int64_t n = 0; n < padded.batch; ++n) {
        std::vector<int64_t> kept;
        Floats kept_qkv, kept_dcontext;
        for (int64_t t = n * tokens; t < (n + 1) * tokens; ++t) {
          if (ids[t] == padded.padding_token) {
            std::fill_n(dcontext.begin() + t * row, row, 0.0F);
            continue;
          }
          kept.push_back(t);
          kept_qkv.insert(kept_qkv.end(), &qkv[3 * t * row], &qkv[3 * t * row] + 3 * row);
          kept_dcontext.insert(kept_dcontext.end(), &dcontext[t * row], &dcontext[t * row] + row);
        }
        const AttentionDims short_dims{.batch = 1,
                                       .tokens = std::ssize(kept),
                                       .heads = padded.heads,
                                       .head_features = padded.head_features,
                                       .causal = causal};
        const AttentionOutputs want = RunAttention(*kernels_, short_dims, kept_qkv, kept_dcontext);
        const AttentionOutputs got = RunAttention(*kernels_, padded, qkv, dcontext, ids);
        for (size_t i = 0; i < kept.size(); ++i) {
          for (int64_t f = 0; f < row; ++f) {
            EXPECT_NEAR(got.context[kept[i] * row + f], want.context[i * row + f], 1e-6);
          }
          for (int64_t f = 0; f < 3 * row; ++f) {
            EXPECT_NEAR(got.dqkv[3 * kept[i] * row + f], want.dqkv[3 * i * row + f], 2e-6);
          }
        }
        for (int64_t t = n * tokens; t < (n + 1) * tokens; ++t) {
          if (ids[t] != padded.padding_token) continue;
          for (int64_t f = 0; f < 3 * row; ++f) EXPECT_EQ(got.dqkv[3 * t * row + f], 0);
        }
      }
    }
  }
}

TEST_P(SequenceTest, AttentionOfPaddingAloneHasNoMask) {
  for (const bool causal : {false, true}) {
    AttentionDims dims{.batch = 2, .tokens = 70, .heads = 2, .head_features = 4, .causal = causal};
    const Floats qkv = Uniform(SizesOf(dims).qkv, 1), dcontext = Uniform(SizesOf(dims).context, 2);
    const AttentionOutputs want = RunAttention(*kernels_, dims, qkv, dcontext);
    dims.padding_token = 3;
    const AttentionOutputs got =
        RunAttention(*kernels_, dims, qkv, dcontext, Floats(SizesOf(dims).ids, 3.0F));
    EXPECT_EQ(got.context, want.context);
    EXPECT_EQ(got.statistics, want.statistics);
    EXPECT_EQ(got.dqkv, want.dqkv);
  }
}

// The first tokens are padding, so under a causal mask they attend to nothing.
TEST_P(SequenceTest, AttentionOfQueriesWithoutKeysIsZero) {
  const AttentionDims dims{
      .batch = 1, .tokens = 70, .heads = 1, .head_features = 4, .causal = true, .padding_token = 3};
  Floats ids(70, 4.0F);
  std::fill_n(ids.begin(), 66, 3.0F);
  const AttentionOutputs out = RunAttention(*kernels_, dims, Uniform(SizesOf(dims).qkv, 1),
                                            Uniform(SizesOf(dims).context, 2), ids);
  for (int64_t t = 0; t < 70; ++t) {
    for (int64_t f = 0; f < 4; ++f) EXPECT_EQ(out.context[4 * t + f] == 0, t < 66);
    for (int64_t f = 0; f < 12 && t < 66; ++f) EXPECT_EQ(out.dqkv[12 * t + f], 0);
    EXPECT_EQ(out.statistics[t] == 0, t < 66);
  }
}

// 150 tokens are more than a tile of the CPU back end.
TEST_P(SequenceTest, CausalAttentionIgnoresLaterTokens) {
  for (const int64_t tokens : {19, 150}) {
    const AttentionDims dims{
        .batch = 1, .tokens = tokens, .heads = 2, .head_features = 5, .causal = true};
    Floats qkv = Uniform(SizesOf(dims).qkv, 1);
    const Floats zero(SizesOf(dims).context, 0.0F);
    const AttentionOutputs before = RunAttention(*kernels_, dims, qkv, zero);
    for (int64_t i = (tokens - 1) * 2 * 3 * 5; i < std::ssize(qkv); ++i) qkv[i] += 1;
    const AttentionOutputs after = RunAttention(*kernels_, dims, qkv, zero);
    for (int64_t i = 0; i < (tokens - 1) * 2 * 5; ++i) {
      EXPECT_EQ(after.context[i], before.context[i]);
    }
    for (int64_t row = 0; row < 2 * tokens; ++row) {
      if (row % tokens == tokens - 1) continue;
      EXPECT_EQ(after.statistics[row], before.statistics[row]);
    }
  }
}

TEST_P(SequenceTest, AttentionWithLargeScoresStaysFinite) {
  const AttentionDims dims{.batch = 1, .tokens = 150, .heads = 1, .head_features = 16};
  Floats qkv = Uniform(SizesOf(dims).qkv, 1);
  for (float& value : qkv) value *= 1000;
  const AttentionOutputs out =
      RunAttention(*kernels_, dims, qkv, Uniform(SizesOf(dims).context, 2));
  for (const Floats* part : {&out.statistics, &out.context, &out.dqkv}) {
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

// Extents below, at and above the tiles of the CPU back end, which have 64 tokens.
TEST_P(SequenceTest, AttentionIsNearTheReference) {
  const auto reference = MakeReferenceBackend();
  for (const AttentionDims& shape :
       {AttentionDims{.batch = 1, .tokens = 1, .heads = 1, .head_features = 1},
        AttentionDims{.batch = 2, .tokens = 7, .heads = 3, .head_features = 5},
        AttentionDims{.batch = 2, .tokens = 64, .heads = 4, .head_features = 16},
        AttentionDims{.batch = 1, .tokens = 65, .heads = 1, .head_features = 33},
        AttentionDims{.batch = 1, .tokens = 128, .heads = 2, .head_features = 8},
        AttentionDims{.batch = 2, .tokens = 129, .heads = 1, .head_features = 8},
        AttentionDims{.batch = 1, .tokens = 300, .heads = 2, .head_features = 16}}) {
    for (const int masks : {0, 1, 2, 3}) {
      AttentionDims dims = shape;
      dims.causal = masks % 2 == 1;
      if (masks >= 2) dims.padding_token = 3;
      SCOPED_TRACE(::testing::PrintToString(dims));
      const Floats ids = masks >= 2 ? IdsWithPadding(dims) : Floats();
      const Floats qkv = Uniform(SizesOf(dims).qkv, 1),
                   dcontext = Uniform(SizesOf(dims).context, 2);
      const AttentionOutputs got = RunAttention(*kernels_, dims, qkv, dcontext, ids);
      const AttentionOutputs want = RunAttention(*reference, dims, qkv, dcontext, ids);
      const AttentionBounds bounds = BoundsOf(dims, DType::kFloat32, qkv, 1, ids);
      EXPECT_LE(LargestShare(got.statistics, want.statistics, bounds.statistics), 1);
      EXPECT_LE(LargestShare(got.context, want.context, bounds.context), 1);
      EXPECT_LE(LargestShare(got.dqkv, want.dqkv, bounds.dqkv), 1);
    }
  }
}

// Queries whose largest score is that of an early or of a late key, so that the running maximum of
// a query is final after the first tile, or rises with each; the scores of other keys are smaller
// by up to 60, which makes probabilities vanish.
TEST_P(SequenceTest, AttentionWithRisingAndFallingScores) {
  const AttentionDims dims{.batch = 1, .tokens = 400, .heads = 2, .head_features = 2};
  Floats qkv = Uniform(SizesOf(dims).qkv, 1);
  for (int64_t t = 0; t < dims.tokens; ++t) {
    for (int64_t h = 0; h < dims.heads; ++h) {
      float* const token = qkv.data() + (t * dims.heads + h) * 6;
      token[0] = h == 0 ? 8 : -8;                          // query
      token[2] = 8 * static_cast<float>(t) / dims.tokens;  // key
    }
  }
  const Floats dcontext = Uniform(SizesOf(dims).context, 2);
  const AttentionOutputs got = RunAttention(*kernels_, dims, qkv, dcontext);
  const AttentionOutputs want = RunAttention(*MakeReferenceBackend(), dims, qkv, dcontext);
  const AttentionBounds bounds = BoundsOf(dims, DType::kFloat32, qkv, 8);
  EXPECT_LE(LargestShare(got.statistics, want.statistics, bounds.statistics), 1);
  EXPECT_LE(LargestShare(got.context, want.context, bounds.context), 1);
  EXPECT_LE(LargestShare(got.dqkv, want.dqkv, bounds.dqkv), 1);
}

}  // namespace
}  // namespace cadre
