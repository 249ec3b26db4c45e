#include "plan/search/placed_prediction.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "plan/search/placed_plans.h"
#include "plan/search/prediction.h"
#include "tests/model/testing.h"

namespace cadre {
namespace {

// a -> {b, c} -> d, which take 2, 4, 3 and 2 seconds. Without parameters there is no backward.
constexpr char kDiamond[] = R"(model {
  input { channels: 4 height: 1 width: 1 }
  layer { name: "a" relu {} }
  layer { name: "b" input: "a" gelu {} }
  layer { name: "c" input: "a" tanh {} }
  layer { name: "d" input: "b" input: "c" add {} }
  layer { name: "flat" flatten {} }
  layer { name: "loss" softmax_cross_entropy {} }
})";

class DiamondTest : public ::testing::Test {
 protected:
  explicit DiamondTest(const std::string& model = kDiamond)
      : graph_(*Graph::FromModel(testing::SpecOf(model).model())),
        index_(ParameterIndex::FromGraph(graph_)) {}

  // `edge_seconds`: of an edge between devices. `backward`: backward takes as long as forward.
  PlanProblem ProblemWith(double edge_seconds, bool backward = false) const {
    PlanProblem problem{.graph = &graph_, .index = &index_, .ranks = 2};
    v1::ModelTimes times;
    for (const auto& [layer, seconds] :
         {std::pair{"a", 2.0}, std::pair{"b", 4.0}, std::pair{"c", 3.0}, std::pair{"d", 2.0}}) {
      v1::LayerTime& time = *times.add_time();
      time.set_layer(layer);
      time.set_samples(1);
      time.set_forward(seconds);
      if (backward) time.set_backward(seconds);
    }
    problem.hardware.times = MeasuredLayers(times, graph_);
    problem.hardware.link.beta = edge_seconds / (4 * 4);  // four fp32
    return problem;
  }

  // Layer l of the diamond is on rank (mask >> l) & 1, what follows on the rank of d.
  Plan PlanOf(int mask) const {
    Plan plan{.mesh = Mesh({{"stage", 2}})};
    for (int l = 0; l < graph_.size(); ++l) {
      const int stage = mask >> std::min(l, 3) & 1;
      plan.layers.push_back(
          *LayOut(graph_[l], plan.mesh, {}, {{.axis = "stage", .coordinate = stage}}));
    }
    plan.buckets = MakeBuckets(plan.layers, plan.mesh, index_);
    return plan;
  }

  static double Makespan(const PlanProblem& problem, const Plan& plan) {
    double makespan = 0;
    for (const PlacedRankTime& rank : SimulatePasses(problem, plan, PassOrder(1))) {
      makespan = std::max(makespan, rank.end);
    }
    return makespan;
  }

  const Graph graph_;
  const ParameterIndex index_;
};

// The optima that follow from the paper's model of a placement (Pal et al. 2019).
TEST_F(DiamondTest, BestPlacements) {
  const double wanted[] = {8, 9, 10, 11, 11};
  for (int edge = 0; edge <= 4; ++edge) {
    const PlanProblem problem = ProblemWith(edge);
    double best = 1e9;
    for (int mask = 0; mask < 16; ++mask) best = std::min(best, Makespan(problem, PlanOf(mask)));
    EXPECT_NEAR(best, wanted[edge], 1e-9) << "edges of " << edge << " seconds";
  }
}

// The same with parameters in a, so that there is a backward pass.
class TrainedDiamondTest : public DiamondTest {
 protected:
  TrainedDiamondTest()
      : DiamondTest(absl::StrReplaceAll(
            kDiamond, {{"relu {}", "convolution { out_channels: 4 kernel: 1 }"}})) {}
};

TEST_F(TrainedDiamondTest, ThePlacerFindsThem) {
  const double wanted[] = {8, 9, 10, 11, 11};
  for (int edge = 0; edge <= 4; ++edge) {
    SCOPED_TRACE(edge);
    const PlanProblem problem = ProblemWith(edge, /*backward=*/true);
    const absl::StatusOr<PlacedPlan> placed = PlaceLayersOnRanks(problem, 2);
    ASSERT_TRUE(placed.ok()) << placed.status();
    EXPECT_NEAR(placed->placement.schedule.makespan, 2 * wanted[edge], 1e-6);
    const Plan& plan = placed->candidate.plan;
    EXPECT_EQ(CheckPlan(plan, graph_, index_), absl::OkStatus());
    for (int l = 0; l < graph_.size(); ++l) {
      ASSERT_EQ(plan.layers[l].at.size(), 1U);
      EXPECT_EQ(plan.layers[l].at[0].coordinate, placed->placement.schedule.device[l]);
    }
  }
}

TEST(PlacedPlan, RefusesSharedWeights) {
  const Graph graph = *Graph::FromModel(testing::SpecOf(R"(model {
    tokens { length: 4 }
    layer { name: "in" embedding { vocabulary: 8 features: 4 } }
    layer { name: "out" fully_connected { tied_to: "in" no_bias: true } }
    layer { name: "loss" softmax_cross_entropy {} }
  })")
                                            .model());
  const ParameterIndex index = ParameterIndex::FromGraph(graph);
  const absl::StatusOr<PlacedPlan> placed =
      PlaceLayersOnRanks({.graph = &graph, .index = &index, .ranks = 2}, 2);
  EXPECT_EQ(placed.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(placed.status().message(), ::testing::HasSubstr("'in'"));
}

TEST_F(DiamondTest, OneRankComputesEverythingInTurn) {
  const PlanProblem problem = ProblemWith(1);
  EXPECT_NEAR(Makespan(problem, PlanOf(0)), 11, 1e-9);
  const Prediction prediction = Predict(problem, PlanOf(0b0100));
  EXPECT_NEAR(prediction.times.step(), 9, 1e-9) << "c on the second rank";
  EXPECT_NEAR(prediction.times.compute(), 8, 1e-9) << "of the first rank, which ends last";
  EXPECT_NEAR(prediction.times.moves(), 1, 1e-9);
  EXPECT_EQ(prediction.bound, "compute");
}

// Layers without parameters, in forward alone; a message between ranks takes one second.
class MessagesTest : public ::testing::Test {
 protected:
  struct PlacedLayer {
    int rank = 0;
    double seconds = 0;
  };

  // When rank 0 ends. Layers that are not in `placed` are on rank 0 and take no time.
  static double Seconds(const std::string& layers, const std::map<std::string, PlacedLayer>& placed,
                        int ranks, int micro_batches = 1) {
    const Graph graph = *Graph::FromModel(
        testing::SpecOf(absl::StrCat("model { input { channels: 4 height: 1 width: 1 } ", layers,
                                     " layer { name: 'flat' flatten {} }"
                                     " layer { name: 'loss' softmax_cross_entropy {} } }"))
            .model());
    const ParameterIndex index = ParameterIndex::FromGraph(graph);
    PlanProblem problem{.graph = &graph, .index = &index, .ranks = ranks};
    problem.batch = micro_batches;
    problem.micro_batches = micro_batches;
    problem.hardware.link.beta = 1.0 / (4 * 4);  // four fp32
    v1::ModelTimes times;
    Plan plan{.mesh = Mesh({{kModelAxis, ranks}})};
    for (int l = 0; l < graph.size(); ++l) {
      const auto found = placed.find(graph[l].name);
      const PlacedLayer layer = found == placed.end() ? PlacedLayer() : found->second;
      v1::LayerTime& time = *times.add_time();
      time.set_layer(graph[l].name);
      time.set_samples(1);
      time.set_forward(layer.seconds);
      plan.layers.push_back(
          *LayOut(graph[l], plan.mesh, {}, {{.axis = kModelAxis, .coordinate = layer.rank}}));
    }
    problem.hardware.times = MeasuredLayers(times, graph);
    return SimulatePasses(problem, plan, PassOrder(micro_batches))[0].end;
  }
};

constexpr char kThreeBranches[] =
    "layer { name: 'b' input: 'input' gelu {} } layer { name: 'c' input: 'input' gelu {} } "
    "layer { name: 'd' input: 'input' gelu {} } ";

TEST_F(MessagesTest, ArriveOneAtATime) {
  EXPECT_NEAR(
      Seconds(absl::StrCat(kThreeBranches,
                           "layer { name: 'join' input: 'b' input: 'c' input: 'd' add {} }"),
              {{"b", {1, 4}}, {"c", {2, 4}}, {"d", {3, 4}}}, 4),
      4 + 3, 1e-9);
}

// The join of b and c begins after two messages; that of d arrives meanwhile.
TEST_F(MessagesTest, ArriveWhileTheReceiverComputes) {
  EXPECT_NEAR(Seconds(absl::StrCat(kThreeBranches,
                                   "layer { name: 'join' input: 'b' input: 'c' add {} } "
                                   "layer { name: 'all' input: 'join' input: 'd' add {} }"),
                      {{"b", {1, 4}}, {"c", {2, 4}}, {"d", {3, 4}}, {"join", {0, 2}}}, 4),
              4 + 2 + 2, 1e-9);
}

// While rank 0 computes, it receives b, but not what it needs after b.
TEST_F(MessagesTest, ArriveAtMostOneAhead) {
  EXPECT_NEAR(Seconds(absl::StrCat("layer { name: 'a' input: 'input' gelu {} } ", kThreeBranches,
                                   "layer { name: 'join' input: 'b' input: 'c' input: 'd' add {} } "
                                   "layer { name: 'all' input: 'a' input: 'join' add {} }"),
                      {{"a", {0, 10}}, {"b", {1, 4}}, {"c", {2, 4}}, {"d", {3, 4}}}, 4),
              10 + 2, 1e-9);
}

// Rank 1 sends b, then c; rank 0 receives c when it has received b, and rank 2 receives nothing
// before rank 0.
TEST_F(MessagesTest, WaitForTheirReceiver) {
  const std::string layers =
      "layer { name: 'a' input: 'input' gelu {} } layer { name: 'd' input: 'input' gelu {} } "
      "layer { name: 'b' input: 'input' gelu {} } layer { name: 'c' input: 'input' gelu {} } "
      "layer { name: 'e' input: 'd' input: 'a' add {} } "
      "layer { name: 'f' input: 'b' input: 'e' add {} } "
      "layer { name: 'g' input: 'c' tanh {} } "
      "layer { name: 'h' input: 'f' input: 'g' add {} }";
  // At 11 rank 0 has received d, and b arrives at 12. Only then c is sent to rank 2, where g takes
  // until 14, and its output arrives at 15.
  EXPECT_NEAR(
      Seconds(layers, {{"a", {0, 10}}, {"d", {2, 10}}, {"b", {1, 1}}, {"c", {1, 1}}, {"g", {2, 1}}},
              3),
      15, 1e-9);
}

// Rank 1 computes the second micro-batch while rank 0 computes the first, but rank 0 has memory for
// one micro-batch.
TEST_F(MessagesTest, WaitForTheMemoryOfThePassBefore) {
  const std::string layers =
      "layer { name: 'a' input: 'input' gelu {} } layer { name: 'b' tanh {} }";
  EXPECT_NEAR(Seconds(layers, {{"a", {1, 1}}, {"b", {0, 4}}}, 2, /*micro_batches=*/3),
              1 + 3 * (1 + 4), 1e-9);
}

// Four layers whose forward takes 1 s and whose backward takes 2 s, each at a stage of its own.
constexpr char kChain[] = R"(model {
  input { channels: 4 height: 1 width: 1 }
  layer { name: "a" fully_connected { out_features: 4 } }
  layer { name: "b" fully_connected { out_features: 4 } }
  layer { name: "c" fully_connected { out_features: 4 } }
  layer { name: "d" fully_connected { out_features: 4 } }
  layer { name: "loss" softmax_cross_entropy {} }
})";
constexpr int kStages = 4;

class ChainTest : public ::testing::Test {
 protected:
  // Seconds of a step, without collectives and updates. `edge_seconds`: of a message.
  double Seconds(int micro_batches, v1::Cluster::Pipeline pipeline, double edge_seconds = 0) const {
    PlanProblem problem{.graph = &graph_, .index = &index_, .ranks = kStages};
    problem.batch = micro_batches;
    problem.micro_batches = micro_batches;
    problem.pipeline = pipeline;
    problem.hardware.link.beta = edge_seconds / (4 * 4);  // four fp32
    v1::ModelTimes times;
    for (const char* layer : {"a", "b", "c", "d"}) {
      v1::LayerTime& time = *times.add_time();
      time.set_layer(layer);
      time.set_samples(1);
      time.set_forward(1);
      time.set_backward(2);
    }
    problem.hardware.times = MeasuredLayers(times, graph_);
    Plan plan{.mesh = Mesh({{"stage", kStages}})};
    for (int l = 0; l < graph_.size(); ++l) {
      // Before the first one, the image is flattened.
      const int stage = std::clamp(l - 1, 0, kStages - 1);
      plan.layers.push_back(
          *LayOut(graph_[l], plan.mesh, {}, {{.axis = "stage", .coordinate = stage}}));
    }
    const PassOrder order = PassOrderOf(pipeline, micro_batches, graph_, plan);
    double seconds = 0;
    for (const PlacedRankTime& rank : SimulatePasses(problem, plan, order)) {
      seconds = std::max(seconds, rank.end);
    }
    return seconds;
  }

  const Graph graph_ = *Graph::FromModel(testing::SpecOf(kChain).model());
  const ParameterIndex index_ = ParameterIndex::FromGraph(graph_);
};

// A stage computes for m passes of m + S - 1 in each direction.
TEST_F(ChainTest, TheBubbleIsThatOfTheFormula) {
  for (const int micro_batches : {1, 2, 4, 8, 16}) {
    const double wanted = (micro_batches + kStages - 1) * 3;
    EXPECT_NEAR(Seconds(micro_batches, v1::Cluster::ONE_FORWARD_ONE_BACKWARD), wanted, 1e-9);
    EXPECT_NEAR(Seconds(micro_batches, v1::Cluster::ALL_FORWARD_FIRST), wanted, 1e-9);
    EXPECT_NEAR(Seconds(micro_batches, v1::Cluster::NO_PIPELINE), micro_batches * kStages * 3,
                1e-9);
  }
}

// Messages are on their way while the stages compute.
TEST_F(ChainTest, SlowLinksDelayAllForwardFirstLess) {
  const double free = Seconds(8, v1::Cluster::ALL_FORWARD_FIRST);
  EXPECT_NEAR(Seconds(8, v1::Cluster::ALL_FORWARD_FIRST, 0.5), free + 2 * 3 * 0.5, 1e-9)
      << "the first micro-batch and the last gradient cross every link";
  EXPECT_GT(Seconds(8, v1::Cluster::ONE_FORWARD_ONE_BACKWARD, 0.5), free + 2 * 3 * 0.5);
}

}  // namespace
}  // namespace cadre
