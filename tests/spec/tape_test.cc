#include "spec/tape.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "google/protobuf/text_format.h"
#include "spec/plan.h"

namespace cadre {
namespace {

constexpr char kModel[] = R"pb(
  input { channels: 2 height: 12 width: 6 }
  layer {
    name: "conv1"
    convolution { out_channels: 4 kernel: 3 padding: 1 }
  }
  layer {
    name: "relu1"
    relu {}
  }
  layer {
    name: "conv2"
    convolution { out_channels: 4 kernel: 3 padding: 1 }
  }
  layer {
    name: "add"
    input: "conv2"
    input: "relu1"
    add {}
  }
  layer {
    name: "pool"
    max_pool { kernel: 2 }
  }
  layer {
    name: "fc"
    fully_connected { out_features: 3 }
  }
  layer {
    name: "loss"
    softmax_cross_entropy {}
  }
)pb";

class TapeTest : public testing::Test {
 protected:
  TapeTest() {
    v1::Model model;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(kModel, &model));
    graph_ = *Graph::FromModel(model);
  }

  // Every layer splits the index if it has it.
  Plan PlanSplitting(const std::string& index, int ranks) const {
    Plan plan{.mesh = Mesh({{"axis", ranks}})};
    for (const GraphLayer& layer : graph_.layers()) {
      auto layouts = LayOut(layer, plan.mesh, {{index, {"axis"}}});
      if (!layouts.ok()) layouts = LayOut(layer, plan.mesh, {});
      EXPECT_TRUE(layouts.ok()) << layouts.status();
      plan.layers.push_back(*std::move(layouts));
    }
    plan.buckets = MakeBuckets(plan.layers, plan.mesh, ParameterIndex::FromGraph(graph_));
    return plan;
  }

  static std::set<int> BuffersOf(const TapeOp& op) {
    std::set<int> buffers(op.x.begin(), op.x.end());
    buffers.insert(op.dx.begin(), op.dx.end());
    buffers.insert({op.y, op.saved, op.scratch, op.dy});
    buffers.erase(buffers.begin(), buffers.lower_bound(0));
    return buffers;
  }

  const TapeOp& Find(const Tape& tape, TapeOpKind kind, const std::string& layer) const {
    const auto found = std::find_if(tape.ops.begin(), tape.ops.end(), [&](const TapeOp& op) {
      return op.kind == kind && graph_[op.layer].name == layer;
    });
    EXPECT_NE(found, tape.ops.end()) << layer;
    return *found;
  }

  Graph graph_;
};

TEST_F(TapeTest, NoBufferLiesWhereAnotherLives) {
  for (const char* index : {"samples", "height", "out", "in", "channels"}) {
    for (const bool training : {false, true}) {
      const Tape tape = MakeTape(graph_, PlanSplitting(index, 3), 1, 4, training);
      for (const TapeBuffer& a : tape.buffers) {
        EXPECT_LE(a.offset + a.words, tape.words);
        for (const TapeBuffer& b : tape.buffers) {
          if (&a == &b || a.words == 0 || b.words == 0) continue;
          const bool together = a.first <= b.last && b.first <= a.last;
          const bool apart = a.offset + a.words <= b.offset || b.offset + b.words <= a.offset;
          EXPECT_TRUE(!together || apart) << a.name << " and " << b.name;
        }
      }
    }
  }
}

TEST_F(TapeTest, LivesSpanEveryUse) {
  const Tape tape = MakeTape(graph_, PlanSplitting("height", 2), 0, 4, /*training=*/true);
  for (size_t i = 0; i < tape.ops.size(); ++i) {
    for (const int number : BuffersOf(tape.ops[i])) {
      const TapeBuffer& buffer = tape.buffers[static_cast<size_t>(number)];
      EXPECT_LE(buffer.first, static_cast<int>(i)) << buffer.name;
      EXPECT_GE(buffer.last, static_cast<int>(i)) << buffer.name;
    }
  }
}

TEST_F(TapeTest, WorksInPlaceWhereNobodyNeedsTheOperand) {
  const Tape tape = MakeTape(graph_, PlanSplitting("samples", 1), 0, 4, /*training=*/true);
  const TapeOp& relu = Find(tape, TapeOpKind::kForward, "relu1");
  EXPECT_EQ(relu.x[0], relu.y) << "conv1 does not look at its output on the way back";
  const TapeOp& add = Find(tape, TapeOpKind::kForward, "add");
  EXPECT_EQ(add.y, add.x[0]) << "conv2's output ends here";
  EXPECT_NE(add.y, add.x[1]) << "relu1's output is needed on relu1's way back";
}

TEST_F(TapeTest, SharesMemoryAndNeedsLessForEvaluation) {
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

TEST_F(TapeTest, MovesOnlyWhereLayoutsDiffer) {
  const auto moves = [&](const Plan& plan) {
    const Tape tape = MakeTape(graph_, plan, 0, 4, /*training=*/true);
    return std::count_if(tape.ops.begin(), tape.ops.end(), [](const TapeOp& op) {
      return op.kind == TapeOpKind::kMove || op.kind == TapeOpKind::kMoveGradient;
    });
  };
  EXPECT_EQ(moves(PlanSplitting("samples", 1)), 0);
  EXPECT_EQ(moves(PlanSplitting("samples", 2)), 0) << "data parallelism moves no activation";
  // conv1 is given whole images; conv2 needs a halo both ways; rows come together before flatten.
  EXPECT_GE(moves(PlanSplitting("height", 2)), 4);
}

TEST_F(TapeTest, TakesMoreRanksThanSamplesAndRows) {
  for (const char* index : {"samples", "height", "out"}) {
    for (int rank = 0; rank < 16; ++rank) {
      const Tape tape = MakeTape(graph_, PlanSplitting(index, 16), rank, 2, /*training=*/true);
      EXPECT_FALSE(tape.ops.empty());
    }
  }
}

// The first layer's input is data, which has no gradient to be sent back.
TEST_F(TapeTest, MakesNoGradientOfTheData) {
  const Tape tape = MakeTape(graph_, PlanSplitting("samples", 1), 0, 4, /*training=*/true);
  EXPECT_EQ(Find(tape, TapeOpKind::kBackward, "conv1").dx, std::vector<int>{TapeOp::kNone});
}

}  // namespace
}  // namespace cadre
