// What ranks send is what the formulas of Gholami et al. 2018 say, word for word.
#include <gtest/gtest.h>

#include <string>

#include "google/protobuf/text_format.h"
#include "spec/plan.h"
#include "tests/equivalence/ranks.h"
#include "worker/comm/box_exchange.h"
#include "worker/comm/thread_transport.h"

namespace cadre {
namespace {

v1::RunSpec Parse(const char* text) {
  v1::RunSpec spec;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &spec));
  return spec;
}

// Words that each rank sends forward and backward for one layer of a plan: its moves, both ways.
int64_t MoveWords(const Tape& tape, int layer, TapeOpKind kind) {
  int64_t words = 0;
  for (const TapeOp& op : tape.ops) {
    if (op.layer == layer && op.kind == kind) words += op.move.words_sent();
  }
  return words;
}

Plan PlanWith(const Graph& graph, const Mesh& mesh,
              const std::vector<std::vector<IndexSplit>>& splits) {
  Plan plan{.mesh = mesh};
  for (int l = 0; l < graph.size(); ++l) {
    auto layouts = LayOut(graph[l], mesh, splits[static_cast<size_t>(l)]);
    EXPECT_TRUE(layouts.ok()) << layouts.status();
    plan.layers.push_back(*std::move(layouts));
  }
  plan.buckets = MakeBuckets(plan.layers, mesh, ParameterIndex::FromGraph(graph));
  return plan;
}

// The tiny grid: 4 inputs, 6 outputs, 6 samples on 2 x 3 ranks. A layer before makes the gradient
// of the inputs wanted.
TEST(Grid, MovesSixEightAndSixteenWords) {
  const v1::RunSpec spec = Parse(R"pb(
    model {
      input { channels: 1 height: 1 width: 5 }
      layer {
        name: "before"
        fully_connected { out_features: 4 no_bias: true }
      }
      layer {
        name: "fc"
        fully_connected { out_features: 6 no_bias: true }
      }
      layer {
        name: "loss"
        softmax_cross_entropy {}
      }
    }
    batch_per_group: 6
  )pb");
  const Graph graph = *Graph::FromModel(spec.model());
  const Mesh mesh({{"rows", 2}, {"columns", 3}});
  const std::vector<IndexSplit> samples = {{"samples", {"columns"}}};
  const std::vector<IndexSplit> grid = {{"samples", {"columns"}}, {"out", {"rows"}}};
  ASSERT_EQ(graph.size(), 4) << "flatten, before, fc, loss";
  const Plan plan = PlanWith(graph, mesh, {samples, samples, grid, samples});
  for (int rank = 0; rank < 6; ++rank) {
    const Tape tape = MakeTape(graph, plan, rank, 6, /*training=*/true);
    EXPECT_EQ(MoveWords(tape, 3, TapeOpKind::kMove), 6) << "all-gather of y over the rows";
    EXPECT_EQ(MoveWords(tape, 2, TapeOpKind::kMoveGradient), 8) << "all-reduce of dx over the rows";
  }
  // The gradient's all-reduce over the columns, as reduce-scatter and all-gather: 2 (3 - 1) / 3 of
  // the 12 weights that a rank has of 24.
  const ParameterIndex index = ParameterIndex::FromGraph(graph);
  Ranks ranks([] { return MakeCpuKernels(1); });
  Training training{.steps = 1, .batches = RandomBatches(graph, 6, 1)};
  const auto with = ranks.Train(spec, PlanToProto(plan, index), training);
  training.steps = 0;
  const auto without = ranks.Train(spec, PlanToProto(plan, index), training);
  ASSERT_TRUE(with.ok() && without.ok()) << with.status() << without.status();
  // One step: y 6, dx 8, dw 16; the layer before, held alike by the rows and so owned in sixths:
  // reduce-scatter of 20 words over 3, all-gather of sixths; the loss's three numbers apart.
  const int64_t fc_words = 6 + 8 + 16;
  int64_t total = 0;
  for (size_t rank = 0; rank < 6; ++rank) {
    total += static_cast<int64_t>(with->bytes_sent[rank] - without->bytes_sent[rank]);
  }
  const int64_t before_words = 2 * (3 - 1) * 20 + (6 - 1) * 20;  // over all ranks
  // Three doubles of the loss are gathered at rank 0 and broadcast: 2 (p - 1) * 24 bytes in all.
  EXPECT_EQ(total, 4 * (6 * fc_words + before_words) + 2 * 5 * 24);
}

// A kernel of 3 on 2 samples of 3 channels, 5 columns: 2 * 5 * 3 = 30 words each way.
TEST(Halo, SendsThirtyWordsPerDirection) {
  const v1::RunSpec spec = Parse(R"pb(
    model {
      input { channels: 3 height: 9 width: 5 }
      layer {
        name: "conv"
        convolution { out_channels: 2 kernel: 3 padding: 1 }
      }
      layer {
        name: "conv2"
        convolution { out_channels: 3 kernel: 3 padding: 1 }
      }
      layer {
        name: "relu"
        relu {}
      }
      layer {
        name: "conv3"
        convolution { out_channels: 2 kernel: 3 padding: 1 }
      }
      layer {
        name: "fc"
        fully_connected { out_features: 4 }
      }
      layer {
        name: "loss"
        softmax_cross_entropy {}
      }
    }
    batch_per_group: 2
  )pb");
  const Graph graph = *Graph::FromModel(spec.model());
  const Mesh mesh({{"space", 3}});
  const std::vector<IndexSplit> rows = {{"height", {"space"}}};
  const Plan plan = PlanWith(graph, mesh, {rows, rows, rows, rows, {}, {}, {}});
  const int conv3 = 3;
  for (int rank = 0; rank < 3; ++rank) {
    const Tape tape = MakeTape(graph, plan, rank, 2, /*training=*/true);
    const int64_t directions = rank == 1 ? 2 : 1;
    EXPECT_EQ(MoveWords(tape, conv3, TapeOpKind::kMove), 30 * directions) << "rank " << rank;
    EXPECT_EQ(MoveWords(tape, conv3, TapeOpKind::kMoveGradient), 30 * directions)
        << "rank " << rank;
  }
}

}  // namespace
}  // namespace cadre
