// The number of bytes that ranks send equals the formulas of Gholami et al. 2018.
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "comm/box_exchange.h"
#include "comm/schedule.h"
#include "comm/transport/thread_transport.h"
#include "plan/ownership.h"
#include "plan/plan.h"
#include "tests/base/expect.h"
#include "tests/equivalence/ranks.h"

namespace cadre {
namespace {

// Number of elements that a rank sends in the operations of `kind` on the layer.
int64_t MoveElements(const Tape& tape, int layer, TapeOpKind kind) {
  int64_t elements = 0;
  for (const TapeOp& op : tape.ops) {
    if (op.layer == layer && op.kind == kind) elements += op.move.elements_sent();
  }
  return elements;
}

Plan PlanWith(const Graph& graph, const Mesh& mesh,
              const std::vector<std::vector<IndexSplit>>& splits) {
  Plan plan{.mesh = mesh};
  for (int l = 0; l < graph.size(); ++l) {
    auto layouts = LayOut(graph[l], mesh, splits[l]);
    EXPECT_TRUE(layouts.ok()) << layouts.status();
    plan.layers.push_back(*std::move(layouts));
  }
  plan.buckets = MakeBuckets(plan.layers, mesh, ParameterIndex::FromGraph(graph));
  return plan;
}

// Bytes that each rank sends in one step: the communicators' counts with the step, less those
// without.
std::vector<int64_t> StepBytes(const v1::RunSpec& spec, const Graph& graph, const Plan& plan) {
  const ParameterIndex index = ParameterIndex::FromGraph(graph);
  Ranks ranks([] { return MakeCpuBackend(1); });
  Training training{.steps = 1, .batches = RandomBatches(graph, spec.batch_per_group(), 1)};
  const auto with = ranks.Train(spec, PlanToProto(plan, index), training);
  training.steps = 0;
  const auto without = ranks.Train(spec, PlanToProto(plan, index), training);
  EXPECT_TRUE(with.ok() && without.ok()) << with.status() << without.status();
  std::vector<int64_t> bytes;
  for (size_t rank = 0; with.ok() && without.ok() && rank < with->bytes_sent.size(); ++rank) {
    bytes.push_back(with->bytes_sent[rank] - without->bytes_sent[rank]);
  }
  return bytes;
}

// Bytes of the sum of the group's loss, three doubles.
int64_t LossBytes(int rank, int ranks) {
  return WorkOf(AllReduceSchedule(Algorithm::kButterfly, rank, ranks, 3)).elements * 8;
}

// A layer with 4 inputs, 6 outputs and 6 samples on a grid of 2 x 3 ranks. The layer before it
// requires the gradient of the inputs.
TEST(Grid, MovesEqualTheFormula) {
  const v1::RunSpec spec = Parse<v1::RunSpec>(R"(
    model {
      input { channels: 1 height: 1 width: 5 }
      layer { name: "before" fully_connected { out_features: 4 no_bias: true } }
      layer { name: "fc" fully_connected { out_features: 6 no_bias: true } }
      layer { name: "loss" softmax_cross_entropy {} }
    }
    batch_per_group: 6
  )");
  const Graph graph = *Graph::FromModel(spec.model());
  const Mesh mesh({{"rows", 2}, {"columns", 3}});
  const std::vector<IndexSplit> samples = {{"samples", {"columns"}}};
  const std::vector<IndexSplit> grid = {{"samples", {"columns"}}, {"out", {"rows"}}};
  ASSERT_EQ(graph.size(), 4) << "flatten, before, fc, loss";
  const Plan plan = PlanWith(graph, mesh, {samples, samples, grid, samples});
  for (int rank = 0; rank < 6; ++rank) {
    const Tape tape = MakeTape(graph, plan, rank, 6, /*training=*/true);
    EXPECT_EQ(MoveElements(tape, 3, TapeOpKind::kMove), 6) << "all-gather of y over the rows";
    EXPECT_EQ(MoveElements(tape, 2, TapeOpKind::kMoveGradient), 8)
        << "all-reduce of dx over the rows";
  }
  // Each rank holds 12 of the 24 weights, and sends 2 (3 - 1) / 3 * 12 = 16 elements in the
  // all-reduce of their gradient over the columns. The weights of the layer before are replicated
  // over the rows, so each rank owns a sixth of their 20 elements. In the reduce-scatter over its
  // row, a rank sends what the ranks of the row own, except for its own sixth; in the all-gather it
  // sends all but its successor's sixth.
  const std::vector<int64_t> bytes = StepBytes(spec, graph, plan);
  ASSERT_EQ(bytes.size(), 6U);
  for (int rank = 0; rank < 6; ++rank) {
    const int column = rank % 3;
    const int row = rank / 3;
    const int owner = column * 2 + row;  // by columns, then by rows
    const auto sixth = [](int i) { return PartBegin(20, i + 1, 6) - PartBegin(20, i, 6); };
    const int64_t of_row = sixth(row) + sixth(2 + row) + sixth(4 + row);
    const int64_t before = (of_row - sixth(owner)) + (20 - sixth((owner + 1) % 6));
    EXPECT_EQ(bytes[rank], 4 * (6 + 8 + 16 + before) + LossBytes(rank, 6)) << "rank " << rank;
  }
}

// A kernel of 3 on 2 samples of 3 channels and 5 columns: 2 * 5 * 3 = 30 elements per direction.
TEST(Halo, SendsOneRowPerDirection) {
  const v1::RunSpec spec = Parse<v1::RunSpec>(R"(
    model {
      input { channels: 3 height: 9 width: 5 }
      layer { name: "conv" convolution { out_channels: 2 kernel: 3 padding: 1 } }
      layer { name: "conv2" convolution { out_channels: 3 kernel: 3 padding: 1 } }
      layer { name: "relu" relu {} }
      layer { name: "conv3" convolution { out_channels: 2 kernel: 3 padding: 1 } }
      layer { name: "fc" fully_connected { out_features: 4 } }
      layer { name: "loss" softmax_cross_entropy {} }
    }
    batch_per_group: 2
  )");
  const Graph graph = *Graph::FromModel(spec.model());
  const Mesh mesh({{"space", 3}});
  const std::vector<IndexSplit> rows = {{"height", {"space"}}};
  const Plan plan = PlanWith(graph, mesh, {rows, rows, rows, rows, {}, {}, {}});
  const int conv3 = 3;
  for (int rank = 0; rank < 3; ++rank) {
    const Tape tape = MakeTape(graph, plan, rank, 2, /*training=*/true);
    const int64_t directions = rank == 1 ? 2 : 1;
    EXPECT_EQ(MoveElements(tape, conv3, TapeOpKind::kMove), 30 * directions) << "rank " << rank;
    EXPECT_EQ(MoveElements(tape, conv3, TapeOpKind::kMoveGradient), 30 * directions)
        << "rank " << rank;
  }
  // The counted bytes agree: besides conv3, only conv2 has halos, of 2 channels. The images are
  // whole on every rank, and the layers after conv3 are replicated, so their input is gathered.
  const std::vector<int64_t> bytes = StepBytes(spec, graph, plan);
  ASSERT_EQ(bytes.size(), 3U);
  const ParameterIndex index = ParameterIndex::FromGraph(graph);
  for (int rank = 0; rank < 3; ++rank) {
    const Tape tape = MakeTape(graph, plan, rank, 2, /*training=*/true);
    int64_t moved = 0;
    for (const TapeOp& op : tape.ops) moved += op.move.elements_sent();
    const int64_t directions = rank == 1 ? 2 : 1;
    const int64_t conv2_halos = 2 * (2 * 5 * 2) * directions;
    // The output of conv3, 2 channels of 3 of the 9 rows, is sent to both other ranks.
    const int64_t gathered = 2 * (2 * 3 * 5 * 2);
    EXPECT_EQ(moved, conv2_halos + 2 * 30 * directions + gathered) << "rank " << rank;
    // Parameters: the all-gather sends all but the successor's slice; the reduce-scatter, if
    // gradients are partial sums, all but the rank's own.
    int64_t ring = 0;
    const std::vector<BucketOwnership> owned = OwnershipOf(plan, index, rank);
    for (size_t b = 0; b < owned.size(); ++b) {
      const auto slice = [&](int i) {
        return owned[b].borders[i % 3 + 1] - owned[b].borders[i % 3];
      };
      ring += owned[b].size - slice(owned[b].own_slice + 1);
      if (!plan.buckets[b].axes.empty()) ring += owned[b].size - slice(owned[b].own_slice);
    }
    EXPECT_EQ(bytes[rank], 4 * (moved + ring) + LossBytes(rank, 3)) << "rank " << rank;
  }
}

// A block that is recomputed receives its halos a second time; what it does not need again, it does
// not receive.
TEST(Halo, IsSentAgainForRecomputation) {
  const v1::RunSpec spec = Parse<v1::RunSpec>(R"(
    model {
      input { channels: 3 height: 9 width: 5 }
      layer { name: "conv" convolution { out_channels: 2 kernel: 3 padding: 1 } }
      layer { name: "tanh" tanh {} }
      layer { name: "conv2" convolution { out_channels: 3 kernel: 3 padding: 1 } }
      layer { name: "tanh2" tanh {} }
      layer { name: "pool" max_pool { kernel: 3 } }
      layer { name: "fc" fully_connected { out_features: 4 } }
      layer { name: "loss" softmax_cross_entropy {} }
    }
    batch_per_group: 2
  )");
  const Graph graph = *Graph::FromModel(spec.model());
  const Mesh mesh({{"space", 3}});
  const std::vector<IndexSplit> rows = {{"height", {"space"}}};
  Plan plan = PlanWith(graph, mesh, {rows, rows, rows, rows, rows, {}, {}, {}});
  const std::vector<int64_t> before = StepBytes(spec, graph, plan);
  plan.recomputed = {{0, 5}};
  const std::vector<int64_t> again = StepBytes(spec, graph, plan);
  ASSERT_EQ(again.size(), 3U);
  for (int rank = 0; rank < 3; ++rank) {
    // Images are whole on every rank. A row of conv2's input has 5 columns of 2 channels, in 2
    // samples.
    const int64_t halos = (rank == 1 ? 2 : 1) * 2 * 5 * 2;
    EXPECT_EQ(again[rank] - before[rank], 4 * halos) << "rank " << rank;
  }
}

// Every layer is on one rank: what is sent are the edges of the graph between layers on different
// ranks, once with the values and once with their gradients.
TEST(Placement, SendsCutEdges) {
  const v1::RunSpec spec = Parse<v1::RunSpec>(R"(
    model {
      input { channels: 3 height: 8 width: 8 }
      layer { name: "conv1" convolution { out_channels: 4 kernel: 3 padding: 1 no_bias: true } }
      layer { name: "a" convolution { out_channels: 4 kernel: 3 padding: 1 } }
      layer { name: "b" input: "conv1" convolution { out_channels: 6 kernel: 1 } }
      layer { name: "bn" batch_norm {} }
      layer { name: "joined" input: "a" input: "bn" input: "conv1" concat {} }
      layer { name: "fc" fully_connected { out_features: 5 } }
      layer { name: "loss" softmax_cross_entropy {} }
    }
    batch_per_group: 4
  )");
  const Graph graph = *Graph::FromModel(spec.model());
  std::mt19937_64 random(3);
  for (int round = 0; round < 6; ++round) {
    const Mesh mesh({{"stage", 3}});
    Plan plan{.mesh = mesh};
    std::vector<int> stages;
    for (const GraphLayer& layer : graph.layers()) {
      stages.push_back(random() % 3);
      plan.layers.push_back(
          *LayOut(layer, mesh, {}, {{.axis = "stage", .coordinate = stages.back()}}));
    }
    plan.buckets = MakeBuckets(plan.layers, mesh, ParameterIndex::FromGraph(graph));
    std::vector<int64_t> wanted(3);
    for (int rank = 0; rank < 3; ++rank) wanted[rank] = LossBytes(rank, 3);
    for (int l = 0; l < graph.size(); ++l) {
      for (const int producer : graph[l].inputs) {
        if (producer == Graph::kInput || stages[producer] == stages[l]) continue;
        const int64_t bytes = 4 * 4 * graph[producer].output.elements();
        wanted[stages[producer]] += bytes;
        wanted[stages[l]] += bytes;
      }
    }
    EXPECT_EQ(StepBytes(spec, graph, plan), wanted)
        << PrintPlan(plan, graph, ParameterIndex::FromGraph(graph));
  }
}

// The hybrid of Joo and Youn 2021: convolutions are data parallel over all ranks, fully connected
// layers are sharded over `model`. N = 4 ranks form groups of g = 2, and each rank has b samples.
// The input of the first sharded layer is all-gathered ((g - 1) b d elements) and its gradient
// reduce-scattered, and likewise the outputs and their gradients. Gradients of convolutions are
// reduced over all ranks, gradients of each shard over the N / g ranks that hold it.
TEST(GroupHybrid, MovesEqualTheFormula) {
  const v1::RunSpec spec = Parse<v1::RunSpec>(R"(
    model {
      input { channels: 2 height: 4 width: 4 }
      layer { name: "conv" convolution { out_channels: 3 kernel: 3 padding: 1 no_bias: true } }
      layer { name: "fc1" fully_connected { out_features: 8 no_bias: true } }
      layer { name: "fc2" fully_connected { out_features: 4 no_bias: true } }
      layer { name: "loss" softmax_cross_entropy {} }
    }
    batch_per_group: 8
  )");
  const Graph graph = *Graph::FromModel(spec.model());
  const Mesh mesh({{"data", 2}, {"model", 2}});
  const std::vector<IndexSplit> all = {{"samples", {"data", "model"}}};
  const std::vector<IndexSplit> sharded = {{"samples", {"data"}}, {"out", {"model"}}};
  ASSERT_EQ(graph.size(), 5) << "conv, flatten, fc1, fc2, loss";
  const Plan plan = PlanWith(graph, mesh, {all, all, sharded, sharded, {{"samples", {"data"}}}});
  // b = 2 samples per rank, an input of 48 features, outputs of 8 and 4.
  const int64_t b = 2;
  const int64_t entry = b * 48;         // (g - 1) b d_in
  const int64_t outputs = b * (8 + 4);  // (g - 1) b d_l, gathered in halves
  // (g - 1) b d_{l-1}: reduce-scatter of the gradients of the inputs of fc1 and fc2.
  const int64_t gradients = b * (48 + 8);
  const int64_t conv = 2 * 3 * (3 * 2 * 9) / 4;         // 2 (N - 1) / N of |W_conv|
  const int64_t shards = 2 * (48 * 8 + 8 * 4) / 2 / 2;  // 2 (G - 1) / G of |W_fc| / g
  const std::vector<int64_t> bytes = StepBytes(spec, graph, plan);
  ASSERT_EQ(bytes.size(), 4U);
  int64_t total = 0;
  for (int rank = 0; rank < 4; ++rank) {
    total += bytes[rank] - LossBytes(rank, 4);
    // 54 weights are not divisible by 4, so a rank may send one element more or less than the mean.
    EXPECT_NEAR(bytes[rank] - LossBytes(rank, 4), 4 * (entry + outputs + gradients + conv + shards),
                4 * 2)
        << "rank " << rank;
  }
  EXPECT_EQ(total, 4 * (4 * (entry + outputs + gradients + shards) + 2 * 3 * 54));
}

}  // namespace
}  // namespace cadre
