#include "plan/tape.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "plan/layer_memory.h"
#include "plan/plan.h"
#include "tests/plan/tape_fixture.h"

namespace cadre {
namespace {

constexpr char kImages[] = R"(model {
  input { channels: 2 height: 12 width: 6 }
  layer { name: "conv1" convolution { out_channels: 4 kernel: 3 padding: 1 } }
  layer { name: "relu1" relu {} }
  layer { name: "conv2" convolution { out_channels: 4 kernel: 3 padding: 1 } }
  layer { name: "add" input: "conv2" input: "relu1" add {} }
  layer { name: "pool" max_pool { kernel: 2 } }
  layer { name: "fc" fully_connected { out_features: 3 } }
  layer { name: "loss" softmax_cross_entropy {} }
})";

constexpr char kTokens[] = R"(model {
  tokens { length: 4 }
  layer { name: "embed" embedding { vocabulary: 5 features: 6 } }
  layer { name: "attention" attention { heads: 3 } }
  layer { name: "norm" layer_norm {} }
  layer { name: "fc" fully_connected { out_features: 5 } }
  layer { name: "loss" softmax_cross_entropy {} }
})";

class TapeTest : public testing::TapeFixture {
 protected:
  explicit TapeTest(const char* model = kImages) : TapeFixture(model) {}

  static std::set<int> BuffersOf(const TapeOp& op) {
    std::set<int> buffers(op.x.begin(), op.x.end());
    buffers.insert(op.dx.begin(), op.dx.end());
    buffers.insert({op.y, op.saved, op.scratch, op.dy});
    buffers.erase(buffers.begin(), buffers.lower_bound(0));
    return buffers;
  }
};

TEST_F(TapeTest, LiveBuffersDoNotOverlap) {
  for (const char* index : {"samples", "height", "out", "in", "channels"}) {
    for (const bool training : {false, true}) {
      const Tape tape = MakeTape(graph_, PlanSplitting(index, 3), 1, 4, training);
      testing::ExpectLiveBuffersDoNotOverlap(tape);
    }
  }
}

TEST_F(TapeTest, LifetimesSpanUses) {
  const Tape tape = MakeTape(graph_, PlanSplitting("height", 2), 0, 4, /*training=*/true);
  for (int i = 0; i < std::ssize(tape.ops); ++i) {
    for (const int number : BuffersOf(tape.ops[i])) {
      const TapeBuffer& buffer = tape.buffers[number];
      EXPECT_LE(buffer.first, i) << buffer.name;
      EXPECT_GE(buffer.last, i) << buffer.name;
    }
  }
}

TEST_F(TapeTest, WorksInPlaceOnLastUse) {
  for (const DType type : {DType::kFloat32, DType::kBFloat16}) {
    const Tape tape = MakeTape(graph_, PlanSplitting("samples", 1), 0, 4, /*training=*/true, type);
    const TapeOp& relu = Find(tape, TapeOpKind::kForward, "relu1");
    EXPECT_EQ(relu.x[0], relu.y) << "conv1's backward does not read its output";
    const TapeOp& add = Find(tape, TapeOpKind::kForward, "add");
    EXPECT_EQ(add.y, add.x[0]) << "last use of conv2's output";
    EXPECT_NE(add.y, add.x[1]) << "relu1's backward reads its output";
  }
}

TEST_F(TapeTest, GradientOfLossOverwritesItsScores) {
  for (const char* index : {"samples", "height", "out", "in", "channels"}) {
    for (const DType type : {DType::kFloat32, DType::kBFloat16}) {
      const Plan plan = PlanSplitting(index, 2);
      const Tape training = MakeTape(graph_, plan, 1, 4, /*training=*/true, type);
      const TapeOp& loss = Find(training, TapeOpKind::kLoss, "loss");
      EXPECT_GE(loss.x[0], 0);
      EXPECT_EQ(loss.dx[0], loss.x[0]) << index;
      const Tape evaluation = MakeTape(graph_, plan, 1, 4, /*training=*/false, type);
      EXPECT_EQ(Find(evaluation, TapeOpKind::kLoss, "loss").dx[0], TapeOp::kNone);
    }
  }
}

TEST_F(TapeTest, SharesMemory) {
  const Plan plan = PlanSplitting("samples", 1);
  const Tape training = MakeTape(graph_, plan, 0, 4, /*training=*/true);
  const Tape evaluation = MakeTape(graph_, plan, 0, 4, /*training=*/false);
  int64_t all = 0;
  for (const TapeBuffer& buffer : training.buffers) all += buffer.words;
  EXPECT_LT(training.words, all);
  EXPECT_LT(evaluation.words, training.words);
  EXPECT_TRUE(std::none_of(evaluation.ops.begin(), evaluation.ops.end(),
                           [](const TapeOp& op) { return op.kind == TapeOpKind::kBackward; }));
}

TEST_F(TapeTest, MovesOnlyBetweenLayouts) {
  const auto moves = [&](const Plan& plan) {
    const Tape tape = MakeTape(graph_, plan, 0, 4, /*training=*/true);
    return std::count_if(tape.ops.begin(), tape.ops.end(), [](const TapeOp& op) {
      return op.kind == TapeOpKind::kMove || op.kind == TapeOpKind::kMoveGradient;
    });
  };
  EXPECT_EQ(moves(PlanSplitting("samples", 1)), 0);
  EXPECT_EQ(moves(PlanSplitting("samples", 2)), 0) << "data parallelism moves no activation";
  // conv1 receives whole images; conv2 needs a halo in both directions; flatten gathers rows.
  EXPECT_GE(moves(PlanSplitting("height", 2)), 4);
}

// conv2 is on rank 1, all other layers are on rank 0: relu1 is sent there, and conv2 comes back.
class PlacedTapeTest : public TapeTest {
 protected:
  // The operations, such as "forward conv2".
  std::vector<std::string> OpsOf(const Tape& tape) const {
    const char* const names[] = {"move", "forward", "loss",    "backward",
                                 "move", "send",    "receive", "add"};
    const TapeOpKind kinds[] = {TapeOpKind::kMove,     TapeOpKind::kForward,      TapeOpKind::kLoss,
                                TapeOpKind::kBackward, TapeOpKind::kMoveGradient, TapeOpKind::kSend,
                                TapeOpKind::kReceive,  TapeOpKind::kAdd};
    std::vector<std::string> ops;
    for (const TapeOp& op : tape.ops) {
      const auto kind = std::find(std::begin(kinds), std::end(kinds), op.kind);
      ops.push_back(std::string(names[kind - kinds]) + " " + graph_[op.layer].name);
    }
    return ops;
  }

  const Plan plan_ = testing::PlanPlacing(graph_, "conv2");
};

TEST_F(PlacedTapeTest, RankPlaysItsLayers) {
  const Tape tape = MakeTape(graph_, plan_, 1, 4, /*training=*/true);
  const std::vector<std::string> wanted = {"receive conv2", "forward conv2", "send add",
                                           "loss loss",     "receive add",   "backward conv2",
                                           "send conv2"};
  EXPECT_EQ(OpsOf(tape), wanted);
  EXPECT_TRUE(tape.input.empty());
}

TEST_F(PlacedTapeTest, SendsAfterProducerAndReceivesBeforeConsumer) {
  const Tape tape = MakeTape(graph_, plan_, 0, 4, /*training=*/true);
  const std::vector<std::string> ops = OpsOf(tape);
  const auto at = [&](const std::string& op) {
    return std::find(ops.begin(), ops.end(), op) - ops.begin();
  };
  EXPECT_EQ(at("send conv2"), at("forward relu1") + 1);
  EXPECT_EQ(at("receive add") + 1, at("forward add"));
  // The gradient of the sum goes to both addends; relu1 adds that of conv2.
  EXPECT_EQ(at("send add"), at("backward pool") + 1);
  EXPECT_LT(at("receive conv2"), at("backward relu1"));
  EXPECT_EQ(at("receive conv2") + 1, at("add relu1"));
}

TEST_F(PlacedTapeTest, SentBuffersLiveUntilSent) {
  for (const int rank : {0, 1}) {
    const Tape tape = MakeTape(graph_, plan_, rank, 4, /*training=*/true);
    const int loss = &Find(tape, TapeOpKind::kLoss, "loss") - tape.ops.data();
    for (int i = 0; i < std::ssize(tape.ops); ++i) {
      const TapeOp& op = tape.ops[i];
      if (op.kind != TapeOpKind::kSend) continue;
      const int end = i < loss ? loss - 1 : static_cast<int>(tape.ops.size()) - 1;
      EXPECT_GE(tape.buffers[op.x[0]].last, end);
    }
  }
}

// A send may read its buffer until the loss is done, which therefore must not overwrite it.
TEST_F(PlacedTapeTest, LossOverwritesNothingThatIsSent) {
  for (const char* far : {"conv2", "fc", "loss"}) {
    const Plan plan = testing::PlanPlacing(graph_, far);
    for (const int rank : {0, 1}) {
      const Tape tape = MakeTape(graph_, plan, rank, 4, /*training=*/true);
      const TapeOp& loss = Find(tape, TapeOpKind::kLoss, "loss");
      const bool here = plan.mesh.IsAt(rank, plan.layers.back().at);
      EXPECT_EQ(loss.x[0] == loss.dx[0] && tape.buffers[loss.x[0]].elements > 0, here) << far;
      for (const TapeOp* op = tape.ops.data(); op != &loss; ++op) {
        if (op->kind != TapeOpKind::kSend) continue;
        EXPECT_NE(op->x[0], loss.dx[0]) << far;
      }
    }
  }
}

// A message may arrive as soon as the one before has: nothing else uses its memory then.
TEST_F(PlacedTapeTest, ReceivedBuffersLiveFromThePreviousReceive) {
  for (const int rank : {0, 1}) {
    Tape tape = MakeTape(graph_, plan_, rank, 4, /*training=*/true);
    // The messages of this plan are contiguous; others are unpacked from scratch.
    for (TapeOp& op : tape.ops) {
      if (op.kind != TapeOpKind::kReceive) continue;
      ASSERT_EQ(op.scratch, TapeOp::kNone);
      op.scratch = static_cast<int>(tape.buffers.size());
      tape.buffers.push_back({.name = "scratch", .elements = 3, .words = 3});
    }
    AssignMemory(tape);
    const int loss = &Find(tape, TapeOpKind::kLoss, "loss") - tape.ops.data();
    int received = -1;
    for (int i = 0; i < std::ssize(tape.ops); ++i) {
      const TapeOp& op = tape.ops[i];
      if (i == loss) received = loss - 1;
      if (op.kind != TapeOpKind::kReceive) continue;
      EXPECT_EQ(tape.buffers[op.y].first, received + 1);
      EXPECT_EQ(tape.buffers[op.scratch].first, received + 1);
      received = i;
    }
    EXPECT_GT(received, loss) << "each rank receives in forward and in backward";
  }
}

// What one rank sends by a number, the other one receives by it; numbers increase.
TEST_F(PlacedTapeTest, OrdersMatch) {
  const auto orders = [&](int rank, TapeOpKind kind) {
    std::vector<int> found;
    for (const TapeOp& op : MakeTape(graph_, plan_, rank, 4, /*training=*/true).ops) {
      if (op.kind == kind) found.push_back(op.order);
    }
    return found;
  };
  for (const int rank : {0, 1}) {
    const std::vector<int> received = orders(1 - rank, TapeOpKind::kReceive);
    EXPECT_EQ(orders(rank, TapeOpKind::kSend), received);
    EXPECT_TRUE(std::is_sorted(received.begin(), received.end()));
    EXPECT_EQ(received.size(), 2U);
  }
}

// On devices, messages are enqueued between the operations by these numbers, so all ranks must
// agree about them.
TEST_F(PlacedTapeTest, OperationsFollowTheReceivesBeforeThem) {
  for (const int rank : {0, 1}) {
    const Tape tape = MakeTape(graph_, plan_, rank, 4, /*training=*/true);
    int before = 0;
    for (const TapeOp& op : tape.ops) {
      if (op.kind == TapeOpKind::kSend) {
        EXPECT_GE(op.order, before) << "of layer " << op.layer;
        continue;
      }
      EXPECT_GE(op.order, before) << "of layer " << op.layer;
      before = op.order;
    }
    EXPECT_LE(before, tape.orders);
    EXPECT_EQ(Find(tape, TapeOpKind::kLoss, "loss").order,
              Find(MakeTape(graph_, plan_, 1 - rank, 4, true), TapeOpKind::kLoss, "loss").order);
  }
}

TEST_F(TapeTest, MoreRanksThanSamplesAndRows) {
  for (const char* index : {"samples", "height", "out"}) {
    for (int rank = 0; rank < 16; ++rank) {
      const Tape tape = MakeTape(graph_, PlanSplitting(index, 16), rank, 2, /*training=*/true);
      EXPECT_FALSE(tape.ops.empty());
    }
  }
}

TEST_F(TapeTest, NoGradientOfInput) {
  const Tape tape = MakeTape(graph_, PlanSplitting("samples", 1), 0, 4, /*training=*/true);
  EXPECT_EQ(Find(tape, TapeOpKind::kBackward, "conv1").dx, std::vector<int>{TapeOp::kNone});
}

TEST_F(TapeTest, WordsOfTypes) {
  for (const char* index : {"samples", "height", "out", "in", "channels"}) {
    for (const DType type : {DType::kFloat32, DType::kBFloat16}) {
      // With odd numbers of samples and ranks, buffers have odd numbers of elements.
      const Tape tape = MakeTape(graph_, PlanSplitting(index, 3), 1, 5, /*training=*/true, type);
      EXPECT_EQ(tape.activations, type);
      for (const TapeBuffer& buffer : tape.buffers) {
        const int64_t bytes = buffer.elements * SizeOf(buffer.type);
        EXPECT_GE(4 * buffer.words, bytes) << buffer.name;
        EXPECT_LT(4 * buffer.words, bytes + 4) << buffer.name;
      }
    }
  }
}

TEST_F(TapeTest, ActivationsHaveTypeOfTape) {
  const Plan plan = PlanSplitting("height", 2);
  const Tape tape = MakeTape(graph_, plan, 0, 4, /*training=*/true, DType::kBFloat16);
  const auto type = [&](int number) { return tape.buffers[number].type; };
  for (const TapeOp& op : tape.ops) {
    for (const int number : BuffersOf(op)) {
      const bool saved = number == op.saved;
      EXPECT_EQ(type(number), saved ? DType::kFloat32 : DType::kBFloat16)
          << tape.buffers[number].name;
    }
  }
  const TapeOp& pool = Find(tape, TapeOpKind::kForward, "pool");
  EXPECT_EQ(tape.buffers[pool.saved].elements, tape.buffers[pool.y].elements)
      << "one position per output";
  const Tape wide = MakeTape(graph_, plan, 0, 4, /*training=*/true);
  EXPECT_LT(tape.words, wide.words);
  EXPECT_EQ(tape.ops.size(), wide.ops.size());
}

class TokenTapeTest : public TapeTest {
 protected:
  TokenTapeTest() : TapeTest(kTokens) {}
};

TEST_F(TokenTapeTest, TokensStayFp32) {
  // Every rank loads all tokens and needs half of them, so a move has a buffer for them.
  const Tape tape =
      MakeTape(graph_, PlanSplitting("tokens", 2), 1, 2, /*training=*/true, DType::kBFloat16);
  const TapeOp& embed = Find(tape, TapeOpKind::kForward, "embed");
  ASSERT_GE(embed.x[0], 0) << "no move of the tokens";
  EXPECT_EQ(tape.buffers[embed.x[0]].type, DType::kFloat32);
  EXPECT_EQ(tape.buffers[embed.y].type, DType::kBFloat16);
}

TEST_F(TokenTapeTest, SavedTypes) {
  const Tape tape =
      MakeTape(graph_, PlanSplitting("samples", 1), 0, 2, /*training=*/true, DType::kBFloat16);
  const auto saved = [&](const char* layer) {
    const TapeOp& op = Find(tape, TapeOpKind::kForward, layer);
    return tape.buffers[op.saved];
  };
  EXPECT_EQ(saved("attention").type, DType::kBFloat16);
  EXPECT_EQ(saved("attention").elements, MemoryOfAttention(2, 4, 3, 2, DType::kBFloat16).saved());
  EXPECT_EQ(saved("norm").type, DType::kFloat32);
  EXPECT_EQ(saved("norm").elements, 2 * 2 * 4);
  const TapeOp& back = Find(tape, TapeOpKind::kBackward, "attention");
  const TapeBuffer& scratch = tape.buffers[back.scratch];
  EXPECT_EQ(scratch.type, DType::kBFloat16);
  EXPECT_EQ(scratch.elements, MemoryOfAttention(2, 4, 3, 2, DType::kBFloat16).scratch());
}

TEST(AttentionMemoryTest, IntervalsAreDisjointAndAligned) {
  for (const DType type : {DType::kFloat32, DType::kBFloat16}) {
    for (const int64_t tokens : {0, 1, 2, 7}) {
      for (const int64_t heads : {0, 1, 3}) {
        const AttentionMemory memory = MemoryOfAttention(3, tokens, heads, 5, type);
        const int64_t rows = 3 * tokens * heads;
        EXPECT_EQ(memory.qkv, 3 * rows * 5);
        EXPECT_EQ(memory.context, rows * 5);
        EXPECT_GE(memory.context_begin, memory.qkv);
        EXPECT_GE(memory.statistics_begin, memory.context_begin + memory.context);
        EXPECT_EQ(memory.statistics * SizeOf(type), 4 * rows);
        EXPECT_EQ(memory.statistics_begin * SizeOf(type) % 16, 0);
      }
    }
  }
}

TEST(AttentionMemoryTest, IsLinearInTheTokens) {
  for (const DType type : {DType::kFloat32, DType::kBFloat16}) {
    const AttentionMemory one = MemoryOfAttention(4, 2048, 8, 64, type);
    const AttentionMemory two = MemoryOfAttention(4, 4096, 8, 64, type);
    EXPECT_EQ(two.saved(), 2 * one.saved());
    EXPECT_EQ(two.scratch(), 2 * one.scratch());
  }
}

TEST(LstmMemoryTest, IntervalsAreDisjointAndAligned) {
  for (const DType type : {DType::kFloat32, DType::kBFloat16}) {
    for (const bool projects : {false, true}) {
      const LstmDims dims{.samples = 3,
                          .tokens = 5,
                          .features = 7,
                          .hidden = 11,
                          .outputs = projects ? 2 : 11,
                          .projects = projects};
      const LstmMemory m = MemoryOfLstm(dims, type);
      const auto expect_disjoint = [](const std::vector<Interval>& parts, int64_t end) {
        int64_t before = 0;
        for (const Interval& part : parts) {
          EXPECT_GE(part.begin, before);
          EXPECT_EQ(part.begin % kAlignmentElements, 0);
          before = part.end;
        }
        EXPECT_EQ(end, before);
      };
      expect_disjoint({m.gates, m.cells, m.outputs, m.projected}, m.saved);
      expect_disjoint({m.inputs, m.recurrent}, m.forward_scratch);
      expect_disjoint({m.backward_inputs, m.doutputs, m.drecurrent, m.dprojected, m.dcells},
                      m.backward_scratch);
      EXPECT_EQ(m.gates.size(), 15 * 4 * 11);
      EXPECT_EQ(m.cells.size() * SizeOf(type), 4 * 15 * 11);
      EXPECT_EQ(m.dcells.size() * SizeOf(type), 4 * 3 * 11);
      EXPECT_EQ(m.outputs.size(), 15 * dims.outputs);
      EXPECT_EQ(m.projected.size(), projects ? 15 * 11 : 0);
    }
  }
}

class TranslationTapeTest : public TapeTest {
 protected:
  TranslationTapeTest()
      : TapeTest(R"(model {
      tokens { length: 7 }
      layer { name: "embed" embedding { vocabulary: 5 features: 6 } }
      layer { name: "source" take_token { count: 4 } }
      layer { name: "encoder" lstm { hidden: 6 } }
      layer { name: "target" input: "embed" take_token { token: 4 count: 3 } }
      layer { name: "decoder" lstm { hidden: 8 projection: 6 } }
      layer { name: "context" input: "decoder" input: "encoder" dot_product_attention {} }
      layer { name: "fc" fully_connected { out_features: 5 } }
      layer { name: "loss" softmax_cross_entropy {} } })") {}
};

TEST_F(TranslationTapeTest, Memory) {
  for (const DType type : {DType::kFloat32, DType::kBFloat16}) {
    const Tape tape = MakeTape(graph_, PlanSplitting("samples", 2), 0, 4, /*training=*/true, type);
    testing::ExpectLiveBuffersDoNotOverlap(tape);
    const LstmMemory memory = MemoryOfLstm(LstmDimsOf(graph_[4], 2), type);
    const TapeOp& forward = Find(tape, TapeOpKind::kForward, "decoder");
    const TapeOp& backward = Find(tape, TapeOpKind::kBackward, "decoder");
    EXPECT_EQ(tape.buffers[forward.saved].elements, memory.saved);
    EXPECT_EQ(tape.buffers[forward.scratch].elements, memory.forward_scratch);
    EXPECT_EQ(tape.buffers[backward.scratch].elements, memory.backward_scratch);
    EXPECT_EQ(backward.x, forward.x);
    const TapeOp& context = Find(tape, TapeOpKind::kForward, "context");
    EXPECT_EQ(tape.buffers[context.saved].elements, 2 * 3 * 4);
    EXPECT_EQ(tape.buffers[context.saved].type, type);
    EXPECT_EQ(tape.buffers[context.scratch].words, 2 * 3 * 4) << "scores are fp32";
  }
}

class PaddedTapeTest : public TapeTest {
 protected:
  PaddedTapeTest()
      : TapeTest(R"(model {
      tokens { length: 4 }
      layer { name: "embed" embedding { vocabulary: 5 features: 6 } }
      layer { name: "attention" attention { heads: 2 padding_token: 0 } }
      layer { name: "fc" fully_connected { out_features: 5 } }
      layer { name: "loss" softmax_cross_entropy {} } })") {}
};

TEST_F(PaddedTapeTest, AttentionReadsTheLoadedTokens) {
  const Tape tape = MakeTape(graph_, PlanSplitting("samples", 2), 0, 4, /*training=*/true);
  for (const TapeOpKind kind : {TapeOpKind::kForward, TapeOpKind::kBackward}) {
    const TapeOp& op = Find(tape, kind, "attention");
    ASSERT_EQ(op.x.size(), 2U);
    EXPECT_EQ(op.x[1], TapeOp::kInput);
  }
  const TapeOp& back = Find(tape, TapeOpKind::kBackward, "attention");
  ASSERT_EQ(back.dx.size(), 2U);
  EXPECT_GE(back.dx[0], 0);
  EXPECT_EQ(back.dx[1], TapeOp::kNone);
}

// The embedding splits the samples, and attention its heads, so every rank needs all tokens; they
// are four bytes wide whatever the type of activations, and are kept for backward.
TEST_F(PaddedTapeTest, TokensMoveToThePartsOfAttention) {
  Plan plan = PlanSplitting("samples", 2);
  plan.layers[1] = *LayOut(graph_[1], plan.mesh, {{"heads", {"axis"}}});
  plan.buckets = MakeBuckets(plan.layers, plan.mesh, ParameterIndex::FromGraph(graph_));
  const Tape tape = MakeTape(graph_, plan, 0, 4, /*training=*/true, DType::kBFloat16);
  EXPECT_EQ(tape.input.shape(), (Shape{2, 4}));
  const TapeOp& forward = Find(tape, TapeOpKind::kForward, "attention");
  const TapeBuffer& moved = tape.buffers[forward.x[1]];
  EXPECT_EQ(moved.type, DType::kFloat32);
  EXPECT_EQ(moved.elements, 4 * 4);
  EXPECT_EQ(Find(tape, TapeOpKind::kBackward, "attention").x[1], forward.x[1]);
  EXPECT_GE(moved.last, &Find(tape, TapeOpKind::kBackward, "attention") - tape.ops.data());
}

// Ranks at both stages load the tokens that they need.
TEST_F(PaddedTapeTest, StagesLoadTheTokens) {
  Plan plan = PlanSplitting("samples", 1);
  plan.mesh = Mesh({{"stage", 2}});
  for (int l = 0; l < graph_.size(); ++l) {
    plan.layers[l] = *LayOut(graph_[l], plan.mesh, {}, {{"stage", l == 0 ? 0 : 1}});
  }
  plan.buckets = MakeBuckets(plan.layers, plan.mesh, ParameterIndex::FromGraph(graph_));
  const Tape tape = MakeTape(graph_, plan, 1, 4, /*training=*/true);
  EXPECT_EQ(tape.input.shape(), (Shape{4, 4}));
  EXPECT_EQ(Find(tape, TapeOpKind::kForward, "attention").x[1], TapeOp::kInput);
}

class SampledTapeTest : public TapeTest {
 protected:
  SampledTapeTest()
      : TapeTest(R"(model {
      tokens { length: 4 }
      layer { name: "embed" embedding { vocabulary: 9 features: 6 } }
      layer { name: "fc" fully_connected { out_features: 9 } }
      layer { name: "loss" softmax_cross_entropy { sampling { classes: 5 } } } })") {}
};

TEST_F(SampledTapeTest, OnlyRanksThatScoreClassesHaveCandidates) {
  Plan plan = PlanSplitting("samples", 1);
  plan.mesh = Mesh({{"stage", 2}});
  for (int l = 0; l < graph_.size(); ++l) {
    plan.layers[l] = *LayOut(graph_[l], plan.mesh, {}, {{"stage", l == 0 ? 0 : 1}});
  }
  plan.buckets = MakeBuckets(plan.layers, plan.mesh, ParameterIndex::FromGraph(graph_));
  EXPECT_EQ(MakeTape(graph_, plan, 0, 3, /*training=*/true).candidates, 0);
  EXPECT_EQ(MakeTape(graph_, plan, 1, 3, /*training=*/true).candidates, 5 + 3 * 4);
  EXPECT_EQ(MakeTape(graph_, plan, 1, 3, /*training=*/false).candidates, 0);
}

class ActivatedScoresTapeTest : public TapeTest {
 protected:
  ActivatedScoresTapeTest()
      : TapeTest(R"(model {
      input { channels: 3 height: 1 width: 1 }
      layer { name: "fc" fully_connected { out_features: 2 } }
      layer { name: "tanh" tanh {} }
      layer { name: "loss" softmax_cross_entropy {} } })") {}
};

TEST_F(ActivatedScoresTapeTest, LossKeepsScoresThatBackwardReads) {
  const Tape tape = MakeTape(graph_, PlanSplitting("samples", 1), 0, 4, /*training=*/true);
  const TapeOp& loss = Find(tape, TapeOpKind::kLoss, "loss");
  EXPECT_EQ(loss.x[0], Find(tape, TapeOpKind::kBackward, "tanh").y);
  EXPECT_NE(loss.dx[0], loss.x[0]);
}

class FirstNormTapeTest : public TapeTest {
 protected:
  FirstNormTapeTest()
      : TapeTest(R"(model {
      input { channels: 3 height: 1 width: 1 }
      layer { name: "flat" flatten {} }
      layer { name: "norm" layer_norm {} }
      layer { name: "fc" fully_connected { out_features: 2 } }
      layer { name: "loss" softmax_cross_entropy {} } })") {}
};

// The kernel of a layer norm computes the gradient of its input even if no layer needs it.
TEST_F(FirstNormTapeTest, HasRoomForUnusedGradient) {
  const Tape tape = MakeTape(graph_, PlanSplitting("samples", 1), 0, 4, /*training=*/true);
  const TapeOp& back = Find(tape, TapeOpKind::kBackward, "norm");
  EXPECT_EQ(back.dx[0], TapeOp::kNone);
  ASSERT_GE(back.scratch, 0);
  EXPECT_EQ(tape.buffers[back.scratch].elements, 4 * 3);
}

}  // namespace
}  // namespace cadre
