#include "plan/search/plan_problem.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/model/testing.h"

namespace cadre {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr char kModel[] = R"(
model {
  input { channels: 3 height: 8 width: 8 }
  layer { name: "conv" convolution { out_channels: 4 kernel: 3 padding: 1 } }
  layer { name: "relu" relu {} }
  layer { name: "flat" flatten {} }
  layer { name: "fc" fully_connected { out_features: 8 } }
  layer { name: "loss" softmax_cross_entropy {} }
}
batch_per_group: 16
micro_batches: 2
optimizer { sgd { momentum: 0.9 } clip_norm: 1 }
cluster { ranks_per_group: 8 overlap: OFF collectives: RING )";

v1::RunSpec With(const std::string& cluster) {
  return testing::SpecOf(absl::StrCat(kModel, cluster, "}"));
}

absl::StatusOr<Pins> PinsWith(const std::string& cluster, int ranks = 8) {
  const v1::RunSpec spec = With(cluster);
  return PinsOf(spec, *Graph::FromModel(spec.model()), ranks);
}

std::string ErrorWith(const std::string& cluster, int ranks = 8) {
  const absl::Status status = PinsWith(cluster, ranks).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << cluster;
  return std::string(status.message());
}

TEST(PlanProblemTest, StrategiesHaveNames) {
  EXPECT_EQ(AllStrategies().size(), 7U);
  for (const Strategy strategy : AllStrategies()) {
    EXPECT_EQ(StrategyFromName(StrategyName(strategy)), strategy);
  }
  EXPECT_EQ(StrategyName(Strategy::kConvBatchFcGrid), "conv-batch-fc-grid");
  EXPECT_EQ(StrategyFromName("best"), std::nullopt);
}

TEST(PlanProblemTest, DefaultsPinNothing) {
  EXPECT_TRUE(PinsWith("")->empty());
  EXPECT_TRUE(PinsWith("", 3)->empty());
}

TEST(PlanProblemTest, PinsMeshAndLayers) {
  const auto pins = PinsWith(R"(
      mesh { name: "data" size: 4 } mesh { name: "model" size: 2 }
      layer { layer: "fc" parallelism: MODEL_IN }
      layer { layer: "conv" parallelism: DOMAIN })");
  ASSERT_TRUE(pins.ok()) << pins.status();
  EXPECT_EQ(Mesh(pins->mesh), Mesh({{"data", 4}, {"model", 2}}));
  EXPECT_THAT(pins->layers, ElementsAre(Pair("conv", "height"), Pair("fc", "in")));
}

TEST(PlanProblemTest, OneAxisLeavesOthersFree) {
  EXPECT_EQ(Mesh(PinsWith("model_ranks: 2")->mesh), Mesh({{"model", 2}}));
  EXPECT_EQ(Mesh(PinsWith("space_ranks: 4")->mesh), Mesh({{"space", 4}}));
  EXPECT_EQ(Mesh(PinsWith("space_ranks: 4 model_ranks: 2")->mesh),
            Mesh({{"space", 4}, {"model", 2}}));
}

TEST(PlanProblemTest, SmallerGroupsUseLargestDivisors) {
  const std::string mesh = R"(mesh { name: "data" size: 2 } mesh { name: "model" size: 4 })";
  EXPECT_EQ(Mesh(PinsWith(mesh, 6)->mesh), Mesh({{"data", 2}, {"model", 3}}));
  EXPECT_EQ(Mesh(PinsWith(mesh, 1)->mesh), Mesh({{"data", 1}, {"model", 1}}));
  EXPECT_EQ(Mesh(PinsWith("model_ranks: 4", 6)->mesh), Mesh({{"data", 2}, {"model", 3}}));
}

TEST(PlanProblemTest, RejectsContradictions) {
  const std::string mesh = R"(mesh { name: "data" size: 4 } mesh { name: "model" size: 2 })";
  EXPECT_THAT(ErrorWith(R"(mesh { name: "data" size: 4 })"), HasSubstr("makes 4 ranks"));
  EXPECT_THAT(ErrorWith(mesh, 16), HasSubstr("(data=4,model=2) makes 8 ranks; there are 16"));
  EXPECT_THAT(ErrorWith(mesh + "model_ranks: 4"),
              HasSubstr("cluster.model_ranks is 4, but cluster.mesh (data=4,model=2) has 2"));
  EXPECT_THAT(ErrorWith(mesh + "space_ranks: 2"), HasSubstr("cluster.space_ranks is 2"));
  EXPECT_THAT(ErrorWith(R"(mesh { name: "rows" size: 8 })"), HasSubstr("axis 'rows'"));
  EXPECT_THAT(ErrorWith(R"(mesh { name: "data" size: 8 } mesh { name: "data" size: 1 })"),
              HasSubstr("twice"));
  EXPECT_THAT(ErrorWith(R"(mesh { name: "data" size: 0 })"), HasSubstr("has 0 ranks"));
  EXPECT_THAT(ErrorWith("model_ranks: 3"), HasSubstr("does not divide the 8 ranks"));
  EXPECT_THAT(ErrorWith("model_ranks: 4 space_ranks: 4"), HasSubstr("cluster.space_ranks is 4"));
}

TEST(PlanProblemTest, RejectsImpossibleLayerPins) {
  EXPECT_THAT(ErrorWith(R"(layer { layer: "fc9" parallelism: MODEL })"), HasSubstr("'fc9'"));
  EXPECT_THAT(ErrorWith(R"(layer { layer: "fc" parallelism: PARALLELISM_UNSPECIFIED })"),
              HasSubstr("give DATA, MODEL, MODEL_IN or DOMAIN"));
  EXPECT_THAT(ErrorWith(R"(layer { layer: "fc" parallelism: DOMAIN })"),
              HasSubstr("cannot be split along 'domain', only along data, model, model-in"));
  EXPECT_THAT(ErrorWith(R"(layer { layer: "relu" parallelism: MODEL })"),
              HasSubstr("only along data, domain"));
  EXPECT_THAT(ErrorWith(R"(layer { layer: "fc" parallelism: MODEL }
                           layer { layer: "fc" parallelism: DATA })"),
              HasSubstr("pinned twice"));
  EXPECT_THAT(ErrorWith(R"(mesh { name: "data" size: 8 }
                           layer { layer: "fc" parallelism: MODEL })"),
              HasSubstr("no axis besides data"));
}

TEST(PlanProblemTest, TakesProblemFromSpec) {
  const v1::RunSpec spec = With("model_ranks: 2");
  const Graph graph = *Graph::FromModel(spec.model());
  const ParameterIndex index = ParameterIndex::FromGraph(graph);
  const auto problem = ProblemOf(spec, graph, index, 8, UniformHardware({.beta = 1e-9}, 1e9));
  ASSERT_TRUE(problem.ok()) << problem.status();
  EXPECT_EQ(problem->ranks, 8);
  EXPECT_EQ(problem->batch, 16);
  EXPECT_EQ(problem->micro_batches, 2);
  EXPECT_EQ(problem->optimizer_states, 1);
  EXPECT_TRUE(problem->update_together);
  EXPECT_FALSE(problem->overlap);
  EXPECT_EQ(problem->collectives, v1::Cluster::RING);
  EXPECT_EQ(problem->hardware.flops, 1e9);
  EXPECT_EQ(Mesh(problem->pins.mesh), Mesh({{"model", 2}}));
  EXPECT_FALSE(ProblemOf(spec, graph, index, 9, HardwareModel()).ok());
}

}  // namespace
}  // namespace cadre
