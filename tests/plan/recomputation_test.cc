#include "plan/recomputation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "plan/tape.h"
#include "tests/plan/tape_fixture.h"

namespace cadre {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Blocks of a transformer, which have two residual connections each.
std::string Transformer(int blocks) {
  std::string text =
      "model { tokens { length: 16 } "
      "layer { name: 'embed' embedding { vocabulary: 5 features: 8 } } ";
  std::string before = "embed";
  for (int b = 1; b <= blocks; ++b) {
    absl::StrAppend(&text, "layer { name: 'norm", b, "' input: '", before, "' layer_norm {} } ",
                    "layer { name: 'attention", b, "' attention { heads: 2 causal: true } } ",
                    "layer { name: 'add", b, "' input: '", before, "' input: 'attention", b,
                    "' add {} } ", "layer { name: 'norm", b, "b' layer_norm {} } ",
                    "layer { name: 'up", b, "' fully_connected { out_features: 32 } } ",
                    "layer { name: 'gelu", b, "' gelu {} } ", "layer { name: 'down", b,
                    "' fully_connected { out_features: 8 } } ", "layer { name: 'add", b,
                    "b' input: 'add", b, "' input: 'down", b, "' add {} } ");
    before = absl::StrCat("add", b, "b");
  }
  return text +
         "layer { name: 'head' fully_connected { out_features: 5 } } "
         "layer { name: 'loss' softmax_cross_entropy {} } }";
}

class RecomputationTest : public testing::TapeFixture {
 protected:
  RecomputationTest() : TapeFixture(Transformer(8).c_str()) {}

  int NumberOf(const std::string& layer) const {
    const auto found = std::find_if(graph_.layers().begin(), graph_.layers().end(),
                                    [&](const GraphLayer& each) { return each.name == layer; });
    EXPECT_NE(found, graph_.layers().end()) << layer;
    return found - graph_.layers().begin();
  }

  int64_t WordsWith(std::vector<Interval> blocks) const {
    Plan plan = PlanSplitting("samples", 1);
    plan.recomputed = std::move(blocks);
    EXPECT_EQ(CheckPlan(plan, graph_, ParameterIndex::FromGraph(graph_)), absl::OkStatus());
    return MakeTape(graph_, plan, 0, 4, /*training=*/true).words;
  }
};

TEST_F(RecomputationTest, BlocksEndWhereOneOutputIsNeeded) {
  const std::vector<Interval> blocks = RecomputationBlocks(graph_);
  ASSERT_GE(blocks.size(), 7U);
  int64_t end = 0;
  for (const Interval& block : blocks) {
    EXPECT_EQ(block.begin, end);
    end = block.end;
    const std::string& last = graph_[block.end - 1].name;
    EXPECT_TRUE(last == "embed" || last.substr(0, 3) == "add") << last;
  }
  EXPECT_LT(end, graph_.size() - 1) << "the last block is not among them";
  EXPECT_GE(end, NumberOf("add7b") + 1);
}

TEST_F(RecomputationTest, OneBlockKeepsWhatBackwardReads) {
  const Interval block{NumberOf("norm3"), NumberOf("add3b") + 1};
  const std::vector<RecomputedLayer> layers = RecomputedLayers(graph_, {&block, 1});
  const auto layer = [&](const std::string& name) { return layers[NumberOf(name)]; };
  EXPECT_FALSE(layer("add2b").in_block);
  EXPECT_FALSE(layer("norm4").in_block);
  for (const char* name : {"norm3", "attention3", "add3", "norm3b", "up3", "gelu3"}) {
    EXPECT_TRUE(layer(name).forward && layer(name).inputs) << name;
    EXPECT_FALSE(layer(name).keeps_output) << name;
  }
  EXPECT_TRUE(layer("down3").inputs) << "its backward reads its input";
  EXPECT_FALSE(layer("down3").forward) << "nothing reads its output again";
  EXPECT_TRUE(layer("add3b").keeps_output);
  EXPECT_FALSE(layer("add3b").inputs);
}

TEST_F(RecomputationTest, TapeHasTheMemoryOfOneBlock) {
  const std::vector<Interval> blocks = RecomputationBlocks(graph_);
  const int64_t none = WordsWith({});
  int64_t before = none;
  for (size_t n = 1; n <= blocks.size(); ++n) {
    const int64_t words = WordsWith({blocks.begin(), blocks.begin() + n});
    EXPECT_LE(words, before) << n << " blocks";
    before = words;
  }
  EXPECT_LT(before, none / 3) << "of 16 halves of blocks";
}

TEST_F(RecomputationTest, TapeComputesTheBlockAgainBeforeItsBackward) {
  Plan plan = PlanSplitting("samples", 2);
  plan.recomputed = {{NumberOf("norm3"), NumberOf("add3b") + 1}};
  const Tape tape = MakeTape(graph_, plan, 1, 4, /*training=*/true);
  testing::ExpectLiveBuffersDoNotOverlap(tape);
  std::vector<std::string> again;
  for (const TapeOp& op : tape.ops) {
    if (op.again) again.push_back(graph_[op.layer].name);
  }
  EXPECT_THAT(again, ElementsAre("norm3", "attention3", "add3", "norm3b", "up3", "gelu3"));
  const auto first =
      std::find_if(tape.ops.begin(), tape.ops.end(), [](const TapeOp& op) { return op.again; });
  EXPECT_EQ((first - 1)->kind, TapeOpKind::kAdd) << "the gradient of add3b is complete";
  EXPECT_EQ((first - 2)->layer, NumberOf("norm4"));
  EXPECT_EQ((first + 6)->kind, TapeOpKind::kBackward);
  EXPECT_EQ((first + 6)->layer, NumberOf("down3"));
  const Tape evaluation = MakeTape(graph_, plan, 1, 4, /*training=*/false);
  EXPECT_TRUE(std::none_of(evaluation.ops.begin(), evaluation.ops.end(),
                           [](const TapeOp& op) { return op.again; }));
}

TEST_F(RecomputationTest, RefusesMalformedBlocks) {
  const int loss = graph_.size() - 1;
  for (const std::vector<Interval>& blocks : std::vector<std::vector<Interval>>{
           {{2, 2}}, {{-1, 3}}, {{2, loss + 1}}, {{4, 6}, {5, 8}}, {{4, 6}, {1, 2}}}) {
    EXPECT_EQ(CheckBlocks(graph_, blocks).code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(CheckBlocks(graph_, std::vector<Interval>{{0, 2}, {2, loss}}), absl::OkStatus());
}

// gelu3 is on rank 1, all other layers are on rank 0, which keeps what it has received.
TEST_F(RecomputationTest, PlacedLayersKeepWhatTheyReceive) {
  Plan plan = testing::PlanPlacing(graph_, "gelu3");
  plan.recomputed = {{NumberOf("norm3"), NumberOf("add3b") + 1}};
  for (const int rank : {0, 1}) {
    const Tape tape = MakeTape(graph_, plan, rank, 4, /*training=*/true);
    testing::ExpectLiveBuffersDoNotOverlap(tape);
    std::vector<std::string> again;
    int messages = 0;
    for (const TapeOp& op : tape.ops) {
      if (op.again) again.push_back(graph_[op.layer].name);
      messages += op.kind == TapeOpKind::kSend || op.kind == TapeOpKind::kReceive ? 1 : 0;
    }
    EXPECT_EQ(messages, 4) << "of both directions, once in forward and once in backward";
    // gelu3 reads what it has received, and up3 has sent its output.
    if (rank == 1) {
      EXPECT_THAT(again, IsEmpty());
    } else {
      EXPECT_THAT(again, ElementsAre("norm3", "attention3", "add3", "norm3b"));
    }
  }
}

// What up3 has sent to gelu3 on the other rank is not read again.
TEST_F(RecomputationTest, BlocksAcrossCoordinatesComputeNothingInVain) {
  const Plan plan = testing::PlanPlacing(graph_, "gelu3");
  const Interval block{NumberOf("up3"), NumberOf("add3b") + 1};
  const auto layers = RecomputedLayers(graph_, {&block, 1}, plan.layers);
  EXPECT_FALSE(layers[NumberOf("up3")].forward);
  EXPECT_TRUE(RecomputedLayers(graph_, {&block, 1})[NumberOf("up3")].forward);
}

// Two stages. The first one keeps the outputs of its blocks for each micro-batch, and the passes of
// all micro-batches share the activations of one block.
class StagedTapeTest : public RecomputationTest {
 protected:
  StagedTapeTest() {
    const int border = NumberOf("add4b") + 1;
    for (int l = 0; l < graph_.size(); ++l) {
      plan_.layers.push_back(*LayOut(graph_[l], plan_.mesh, {},
                                     {{.axis = "stage", .coordinate = l < border ? 0 : 1}}));
    }
    plan_.buckets = MakeBuckets(plan_.layers, plan_.mesh, ParameterIndex::FromGraph(graph_));
  }

  Tape TapeOf(int rank) const { return MakeTape(graph_, plan_, rank, 4, /*training=*/true); }

  Plan plan_{.mesh = Mesh({{"stage", 2}})};
};

TEST_F(StagedTapeTest, MicroBatchesKeepLittle) {
  const Tape whole = TapeOf(0);
  plan_.recomputed = RecomputationBlocks(graph_);
  Tape again = TapeOf(0);
  SeparatePasses(again);
  EXPECT_GT(again.pass_words, 0);
  EXPECT_LT(4 * again.words, whole.words);
  EXPECT_LT(again.words + again.pass_words, whole.words);
}

TEST_F(StagedTapeTest, SeparationTakesNoMoreMemory) {
  int separated = 0;
  for (const bool recomputes : {false, true}) {
    if (recomputes) plan_.recomputed = RecomputationBlocks(graph_);
    for (const int rank : {0, 1}) {
      Tape tape = TapeOf(rank);
      const int64_t together = tape.words;
      SeparatePasses(tape);
      EXPECT_LE(2 * tape.words + tape.pass_words, 2 * together);
      separated += tape.pass_words > 0 ? 1 : 0;
    }
  }
  EXPECT_GT(separated, 0);
}

TEST_F(StagedTapeTest, OnlyWhatLivesInOnePassIsShared) {
  plan_.recomputed = RecomputationBlocks(graph_);
  Tape tape = TapeOf(0);
  SeparatePasses(tape);
  const auto loss = std::find_if(tape.ops.begin(), tape.ops.end(),
                                 [](const TapeOp& op) { return op.kind == TapeOpKind::kLoss; });
  const int border = loss - tape.ops.begin();
  for (const TapeBuffer& a : tape.buffers) {
    if (a.words == 0) continue;
    if (a.of_pass) {
      EXPECT_TRUE(a.last <= border || a.first > border) << a.name;
    }
    EXPECT_LE(a.offset + a.words, a.of_pass ? tape.pass_words : tape.words) << a.name;
    for (const TapeBuffer& b : tape.buffers) {
      if (&a == &b || b.words == 0 || a.of_pass != b.of_pass) continue;
      const bool together = a.first <= b.last && b.first <= a.last;
      const bool apart = a.offset + a.words <= b.offset || b.offset + b.words <= a.offset;
      EXPECT_TRUE(!together || apart) << a.name << " and " << b.name;
    }
  }
  for (const TapeOp& op : tape.ops) {
    if (op.kind != TapeOpKind::kSend && op.kind != TapeOpKind::kReceive) continue;
    for (const int number : {op.x[0], op.y, op.scratch}) {
      EXPECT_TRUE(number < 0 || !tape.buffers[number].of_pass);
    }
  }
}

TEST_F(RecomputationTest, PlanMessageHasTheBlocks) {
  const ParameterIndex index = ParameterIndex::FromGraph(graph_);
  Plan plan = PlanSplitting("samples", 2);
  plan.recomputed = RecomputationBlocks(graph_);
  v1::Plan proto = PlanToProto(plan, index);
  const auto read = PlanFromProto(proto, graph_, index);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->recomputed, plan.recomputed);
  EXPECT_THAT(PrintPlan(plan, graph_, index), HasSubstr("recomputed for backward: norm2"));
  proto.mutable_recomputed(0)->set_last("nowhere");
  EXPECT_THAT(PlanFromProto(proto, graph_, index).status().message(),
              HasSubstr("recomputed block: the model has no layer 'nowhere'"));
}

// A chain of equal layers needs about the square root of its memory.
TEST(RecomputationOfChain, TakesAboutTheSquareRoot) {
  std::string text = "model { input { channels: 1 height: 1 width: 64 } ";
  for (int l = 0; l < 100; ++l) {
    absl::StrAppend(&text, "layer { name: 'fc", l, "' fully_connected { out_features: 64 } } ",
                    "layer { name: 'tanh", l, "' tanh {} } ");
  }
  const Graph graph = *Graph::FromModel(
      testing::SpecOf(text + "layer { name: 'loss' softmax_cross_entropy {} } }").model());
  Plan plan = testing::PlanSplitting(graph, "samples", 1);
  const int64_t whole = MakeTape(graph, plan, 0, 8, /*training=*/true).words;
  plan.recomputed = RecomputationBlocks(graph);
  const int64_t words = MakeTape(graph, plan, 0, 8, /*training=*/true).words;
  EXPECT_GE(whole, 100 * 8 * 64);
  EXPECT_LE(words, 25 * 8 * 64) << plan.recomputed.size() << " blocks";
}

}  // namespace
}  // namespace cadre
