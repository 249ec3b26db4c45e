// The memory that tapes have for scores: on GPUs those of attention; those of the loss.
#include <gtest/gtest.h>

#include <algorithm>

#include "plan/layer_memory.h"
#include "plan/plan.h"
#include "plan/tape.h"
#include "tests/plan/tape_fixture.h"

namespace cadre {
namespace {

// Scores are computed by blocks, whose size has a limit; the workspace of fused kernels has not.
TEST(ScoreMemoryTest, CountsBlocksAndTheWorkspaceOfFusedKernels) {
  const auto fp32 = [](int64_t samples, int64_t tokens) {
    return MemoryOfScores(samples, tokens, 8, 64, /*fuses=*/true, DType::kFloat32);
  };
  EXPECT_EQ(fp32(2, 64).forward, 2 * 8 * 64 * 64);
  EXPECT_EQ(fp32(2, 64).backward, 2 * 2 * 8 * 64 * 64);
  EXPECT_EQ(fp32(1000, 512).forward, 1 << 22);
  EXPECT_EQ(fp32(1, 3000).forward, (1 << 22) / 3000 * 3000) << "rows of one head";
  EXPECT_EQ(fp32(0, 64).forward + fp32(2, 0).forward, 0);
  const auto bf16 = [](int64_t tokens, int64_t features, bool fuses) {
    return SizeOf(DType::kBFloat16) *
           MemoryOfScores(4, tokens, 8, features, fuses, DType::kBFloat16).backward;
  };
  EXPECT_EQ(bf16(64, 64, false), 12 * 4 * 8 * 64 * 64);
  EXPECT_EQ(bf16(2000, 64, false), 12 * ((1 << 22) / 4'000'000) * 4'000'000);
  EXPECT_GE(bf16(2000, 64, true), 2 * 4 * 8 * 2048 * 2048 + 4 * 4 * 8 * 2000);
  EXPECT_LE(bf16(2000, 64, true), 2 * 4 * 8 * 2048 * 2048 + 4 * 4 * 8 * 2000 + 256);
  EXPECT_EQ(bf16(2000, 60, true), bf16(2000, 60, false)) << "no kernel for such features";
  EXPECT_EQ(bf16(8000, 64, true), bf16(8000, 64, false)) << "more than the library's limit";
}

constexpr char kSelfAttention[] = R"(model {
  tokens { length: 4 }
  layer { name: "embed" embedding { vocabulary: 5 features: 6 } }
  layer { name: "attention" attention { heads: 3 } }
  layer { name: "fc" fully_connected { out_features: 5 } }
  layer { name: "loss" softmax_cross_entropy {} }
})";

class AttentionTapeTest : public testing::TapeFixture {
 protected:
  AttentionTapeTest() : TapeFixture(kSelfAttention) {}
};

TEST_F(AttentionTapeTest, OnlyGpusHaveMemoryForScores) {
  const Plan plan = PlanSplitting("samples", 1);
  for (const DType type : {DType::kFloat32, DType::kBFloat16}) {
    const Tape host = MakeTape(graph_, plan, 0, 2, /*training=*/true, type);
    const Tape gpu =
        MakeTape(graph_, plan, 0, 2, /*training=*/true, type, Fusion::kCommon, v1::Cluster::CUDA);
    const ScoreMemory scores = MemoryOfScores(2, 4, 3, 2, /*fuses=*/true, type);
    EXPECT_EQ(Find(host, TapeOpKind::kForward, "attention").scratch, TapeOp::kNone);
    const auto scratch = [this](const Tape& tape, TapeOpKind kind) {
      return tape.buffers[Find(tape, kind, "attention").scratch].elements;
    };
    EXPECT_EQ(scratch(gpu, TapeOpKind::kForward), scores.forward);
    EXPECT_EQ(scratch(gpu, TapeOpKind::kBackward),
              AlignedOffset(scratch(host, TapeOpKind::kBackward)) + scores.backward);
  }
}

TEST(ScoreRowTest, AlignsRowsOfManyClasses) {
  EXPECT_EQ(ScoreRow(50'257, DType::kBFloat16), 50'304);
  EXPECT_EQ(ScoreRow(50'257, DType::kFloat32), 50'304);
  EXPECT_EQ(ScoreRow(50'304, DType::kBFloat16), 50'304);
  EXPECT_EQ(ScoreRow(1000, DType::kBFloat16), 1000) << "aligned";
  EXPECT_EQ(ScoreRow(516, DType::kFloat32), 516) << "aligned";
  EXPECT_EQ(ScoreRow(516, DType::kBFloat16), 576);
  EXPECT_EQ(ScoreRow(511, DType::kBFloat16), 511) << "few";
  EXPECT_EQ(ScoreRow(0, DType::kFloat32), 0);
}

constexpr char kManyClasses[] = R"(model {
  tokens { length: 4 }
  layer { name: "embed" embedding { vocabulary: 515 features: 6 } }
  layer { name: "fc" fully_connected { out_features: 515 } }
  layer { name: "loss" softmax_cross_entropy {} }
})";

class ManyClassesTapeTest : public testing::TapeFixture {
 protected:
  ManyClassesTapeTest() : TapeFixture(kManyClasses) {}

  // Elements of the scores, after checks that their gradient has their memory.
  int64_t Scores(const Plan& plan, v1::Cluster::Device device, bool training) {
    const Tape tape =
        MakeTape(graph_, plan, 0, 6, training, DType::kBFloat16, Fusion::kCommon, device);
    testing::ExpectLiveBuffersDoNotOverlap(tape);
    const int scores = Find(tape, TapeOpKind::kForward, "fc").y;
    const TapeOp& loss = Find(tape, TapeOpKind::kLoss, "loss");
    EXPECT_TRUE(!training || loss.x[0] != scores || loss.dx[0] == scores) << "overwritten";
    return tape.buffers[scores].elements;
  }
};

TEST_F(ManyClassesTapeTest, RowsOfScoresArePaddedOnGpus) {
  for (const bool training : {false, true}) {
    for (const int ranks : {1, 2}) {
      const Plan plan = PlanSplitting("samples", ranks);
      const int64_t rows = 6 / ranks * 4;
      EXPECT_EQ(Scores(plan, v1::Cluster::CPU, training), rows * 515);
      EXPECT_EQ(Scores(plan, v1::Cluster::CUDA, training), rows * 576);
    }
    // Scores that are moved.
    const int64_t part = 6 * 4 * 257;
    EXPECT_EQ(Scores(PlanSplitting("out", 2), v1::Cluster::CUDA, training), part);
    EXPECT_EQ(Scores(PlanSplitting("in", 2), v1::Cluster::CUDA, training), 6 * 4 * 515);
  }
}

constexpr char kManyScores[] = R"(model {
  tokens { length: 100 }
  layer { name: "embed" embedding { vocabulary: 60000 features: 6 } }
  layer { name: "fc" fully_connected { out_features: 60000 } }
  layer { name: "loss" softmax_cross_entropy {} }
})";

class ChunksTapeTest : public testing::TapeFixture {
 protected:
  ChunksTapeTest() : TapeFixture(kManyScores) {}

  Tape TapeOf(const Plan& plan, bool training, v1::Cluster::Device device = v1::Cluster::CPU,
              Fusion fusion = Fusion::kHost) {
    return MakeTape(graph_, plan, 0, 4, training, DType::kFloat32, fusion, device);
  }
  static bool HasChunks(const Tape& tape) {
    return std::any_of(tape.ops.begin(), tape.ops.end(),
                       [](const TapeOp& op) { return op.scorer != TapeOp::kNone; });
  }
};

TEST(ScoreRowsPerChunkTest, ChunksAreEqualAndWithinTheLimit) {
  const auto rows = [](int64_t all) { return ScoreRowsPerChunk(all, 60'000, DType::kFloat32); };
  EXPECT_EQ(rows(209), 209) << "they fit";
  EXPECT_EQ(rows(210), 105);
  EXPECT_EQ(rows(4096), 205);
  EXPECT_EQ(rows(0), 0);
  EXPECT_EQ(ScoreRowsPerChunk(4096, int64_t{1} << 30, DType::kBFloat16), 1) << "at least one";
}

TEST_F(ChunksTapeTest, LossTakesScoresOfManyClassesInChunks) {
  for (const bool training : {true, false}) {
    const Tape tape = TapeOf(PlanSplitting("samples", 1), training);
    testing::ExpectLiveBuffersDoNotOverlap(tape);
    const TapeOp& loss = Find(tape, TapeOpKind::kLoss, "loss");
    EXPECT_EQ(graph_[loss.scorer].name, "fc");
    EXPECT_EQ(loss.chunk_rows, 200);
    EXPECT_EQ(tape.buffers[loss.scratch].elements, 200 * 60'000);
    EXPECT_EQ(loss.x[0], Find(tape, TapeOpKind::kForward, "embed").y);
    EXPECT_LT(4 * tape.words, kMaxScoreBytes + 1'000'000);
    for (const TapeOp& op : tape.ops) {
      EXPECT_FALSE(op.kind == TapeOpKind::kForward && op.layer == loss.scorer);
    }
    if (!training) {
      EXPECT_EQ(loss.dx[0], TapeOp::kNone);
      continue;
    }
    EXPECT_TRUE(Find(tape, TapeOpKind::kBackward, "fc").in_loss);
    EXPECT_EQ(Find(tape, TapeOpKind::kBackward, "embed").dy, loss.dx[0]);
    EXPECT_EQ(BytesMoved(graph_, tape, loss), 4 * (3 * 400 * 60'000 + 2 * 400 * 6));
    EXPECT_EQ(BytesMoved(graph_, tape, Find(tape, TapeOpKind::kBackward, "fc")), 0);
  }
}

TEST_F(ChunksTapeTest, ScoresAreWholeWhereTheyMustBe) {
  EXPECT_FALSE(HasChunks(TapeOf(PlanSplitting("samples", 2), true))) << "few enough";
  EXPECT_FALSE(HasChunks(TapeOf(PlanSplitting("out", 2), true))) << "parts of rows";
  EXPECT_FALSE(HasChunks(TapeOf(PlanSplitting("in", 2), true))) << "addends of scores";
  const Plan whole = PlanSplitting("samples", 1);
  EXPECT_FALSE(HasChunks(TapeOf(whole, true, v1::Cluster::CUDA)));
  EXPECT_FALSE(HasChunks(TapeOf(whole, true, v1::Cluster::CPU, Fusion::kOff)));
  EXPECT_FALSE(HasChunks(TapeOf(testing::PlanPlacing(graph_, "embed"), true))) << "a pipeline";
}

}  // namespace
}  // namespace cadre
