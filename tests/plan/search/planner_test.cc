#include "plan/search/planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/graph.h"
#include "model/parameter_index.h"
#include "plan/plan.h"
#include "tests/model/testing.h"
#include "tests/plan/search/problems.h"

namespace cadre {
namespace {

using ::cadre::testing::DemoSpec;
using ::cadre::testing::LayerOf;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Two convolutions, then fully connected layers that grow and shrink.
constexpr char kImages[] = R"(
model {
  input { channels: 3 height: 8 width: 8 }
  layer { name: "conv" convolution { out_channels: 4 kernel: 3 padding: 1 } }
  layer { name: "pool" max_pool { kernel: 4 } }
  layer { name: "conv2" convolution { out_channels: 4 kernel: 1 } }
  layer { name: "flat" flatten {} }
  layer { name: "fc1" fully_connected { out_features: 32 } }
  layer { name: "relu1" relu {} }
  layer { name: "fc2" fully_connected { out_features: 8 } }
  layer { name: "relu2" relu {} }
  layer { name: "fc3" fully_connected { out_features: 32 } }
  layer { name: "loss" softmax_cross_entropy {} }
}
batch_per_group: 4)";

// A residual block without fully connected layers.
constexpr char kResidual[] = R"(
model {
  input { channels: 4 height: 6 width: 6 }
  layer { name: "conv" convolution { out_channels: 4 kernel: 3 padding: 1 } }
  layer { name: "norm" batch_norm {} }
  layer { name: "add" input: "norm" input: "input" add {} }
  layer { name: "gap" global_average_pool {} }
  layer { name: "drop" dropout { rate: 0.5 } }
  layer { name: "loss" softmax_cross_entropy {} }
}
batch_per_group: 4)";

constexpr char kTokens[] = R"(
model {
  tokens { length: 6 }
  layer { name: "embedding" embedding { vocabulary: 16 features: 8 positions: true } }
  layer { name: "norm" layer_norm {} }
  layer { name: "attention" attention { heads: 4 causal: true } }
  layer { name: "add1" input: "attention" input: "embedding" add {} }
  layer { name: "fc1" fully_connected { out_features: 32 } }
  layer { name: "gelu" gelu {} }
  layer { name: "fc2" fully_connected { out_features: 8 } }
  layer { name: "add2" input: "fc2" input: "add1" add {} }
  layer { name: "head" fully_connected { out_features: 16 } }
  layer { name: "loss" softmax_cross_entropy {} }
}
batch_per_group: 4)";

// The plan after a round trip through its message.
Plan PlanOf(const v1::RunSpec& spec, int ranks) {
  const auto proto = MakePlan(spec, ranks);
  EXPECT_TRUE(proto.ok()) << proto.status();
  const Graph graph = *Graph::FromModel(spec.model());
  const auto plan = PlanFromProto(*proto, graph, ParameterIndex::FromGraph(graph));
  EXPECT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->mesh.ranks(), ranks);
  return *plan;
}

v1::RunSpec With(v1::RunSpec spec, uint32_t model_ranks, uint32_t space_ranks = 1) {
  spec.mutable_cluster()->set_model_ranks(model_ranks);
  spec.mutable_cluster()->set_space_ranks(space_ranks);
  return spec;
}

v1::RunSpec DemoWith(uint32_t model_ranks) { return With(DemoSpec(), model_ranks); }

// The splits of each layer as text, such as "samples/data*model, height/space".
std::map<std::string, std::string> SplitsOf(const Plan& plan) {
  std::map<std::string, std::string> splits;
  for (const LayerLayouts& layer : plan.layers) {
    std::string& text = splits[layer.name];
    for (const IndexSplit& split : layer.splits) {
      text += (text.empty() ? "" : ", ") + split.index + "/";
      for (size_t a = 0; a < split.axes.size(); ++a) {
        text += (a == 0 ? "" : "*") + split.axes[a];
      }
    }
  }
  return splits;
}

using Splits = std::map<std::string, std::string>;

// --- the mesh ---

TEST(PlannerTest, ModelAxisTakesAllRanksByDefault) {
  for (const int ranks : {1, 2, 3, 4, 6}) {
    EXPECT_EQ(PlanOf(DemoSpec(), ranks).mesh, Mesh({{"data", 1}, {"model", ranks}})) << ranks;
  }
}

TEST(PlannerTest, DataParallelWithoutFullyConnected) {
  for (const int ranks : {1, 2, 3, 4, 6}) {
    EXPECT_EQ(PlanOf(testing::SpecOf(kResidual), ranks).mesh,
              Mesh({{"data", ranks}, {"model", 1}}));
  }
}

TEST(PlannerTest, UsesModelRanks) {
  EXPECT_EQ(PlanOf(DemoWith(1), 4).mesh, Mesh({{"data", 4}, {"model", 1}}));
  EXPECT_EQ(PlanOf(DemoWith(2), 4).mesh, Mesh({{"data", 2}, {"model", 2}}));
  EXPECT_EQ(PlanOf(DemoWith(2), 6).mesh, Mesh({{"data", 3}, {"model", 2}}));
  EXPECT_EQ(PlanOf(DemoWith(3), 6).mesh, Mesh({{"data", 2}, {"model", 3}}));
}

TEST(PlannerTest, UsesSpaceRanks) {
  const v1::RunSpec images = testing::SpecOf(kImages);
  EXPECT_EQ(PlanOf(With(images, 2, 2), 8).mesh, Mesh({{"data", 2}, {"space", 2}, {"model", 2}}));
  EXPECT_EQ(PlanOf(With(images, 0, 2), 8).mesh, Mesh({{"data", 1}, {"space", 2}, {"model", 4}}));
  EXPECT_EQ(PlanOf(With(images, 1, 4), 4).mesh, Mesh({{"data", 1}, {"space", 4}, {"model", 1}}));
  EXPECT_EQ(PlanOf(With(testing::SpecOf(kTokens), 2, 2), 4).mesh, Mesh({{"data", 2}, {"model", 2}}))
      << "tokens have no rows";
}

TEST(PlannerTest, SmallerGroupsUseLargestDivisors) {
  EXPECT_EQ(PlanOf(DemoWith(4), 3).mesh, Mesh({{"data", 1}, {"model", 3}}));
  EXPECT_EQ(PlanOf(DemoWith(4), 6).mesh, Mesh({{"data", 2}, {"model", 3}}));
  EXPECT_EQ(PlanOf(DemoWith(2), 3).mesh, Mesh({{"data", 3}, {"model", 1}}));
  EXPECT_EQ(PlanOf(DemoWith(2), 1).mesh, Mesh({{"data", 1}, {"model", 1}}));
  EXPECT_EQ(PlanOf(DemoWith(6), 5).mesh, Mesh({{"data", 1}, {"model", 5}}));
  EXPECT_EQ(PlanOf(DemoWith(0xffffffff), 5).mesh, Mesh({{"data", 1}, {"model", 5}}));
  EXPECT_EQ(PlanOf(With(DemoSpec(), 2, 4), 6).mesh,
            Mesh({{"data", 1}, {"space", 3}, {"model", 2}}));
}

// --- the rules ---

TEST(PlannerTest, GroupHybrid) {
  EXPECT_EQ(SplitsOf(PlanOf(With(testing::SpecOf(kImages), 2), 4)),
            (Splits{{"conv", "samples/data*model"},
                    {"pool", "samples/data*model"},
                    {"conv2", "samples/data*model"},
                    {"flat", "samples/data*model"},
                    {"fc1", "samples/data, out/model"},
                    {"relu1", "samples/data, features/model"},
                    {"fc2", "samples/data, in/model"},
                    {"relu2", "samples/data"},
                    {"fc3", "samples/data, out/model"},
                    {"loss", "samples/data*model"}}));
}

TEST(PlannerTest, DomainParallelImages) {
  EXPECT_EQ(SplitsOf(PlanOf(With(testing::SpecOf(kImages), 2, 3), 12)),
            (Splits{{"conv", "samples/data*model, height/space"},
                    // The image has two rows for three ranks, so rows are not split.
                    {"pool", "samples/data*model"},
                    {"conv2", "samples/data*model"},
                    {"flat", "samples/data*model"},
                    {"fc1", "samples/data, out/model*space"},
                    {"relu1", "samples/data, features/model*space"},
                    {"fc2", "samples/data, in/model*space"},
                    {"relu2", "samples/data"},
                    {"fc3", "samples/data, out/model*space"},
                    {"loss", "samples/data*space*model"}}));
}

TEST(PlannerTest, OneModelRankIsDataParallel) {
  const Plan plan = PlanOf(With(testing::SpecOf(kImages), 1), 4);
  for (const auto& [layer, splits] : SplitsOf(plan)) EXPECT_EQ(splits, "samples/data") << layer;
  ASSERT_EQ(plan.buckets.size(), 1U);
  EXPECT_THAT(plan.buckets[0].axes, ElementsAre("data"));
}

TEST(PlannerTest, ImagesUseAllRanks) {
  EXPECT_EQ(SplitsOf(PlanOf(With(testing::SpecOf(kResidual), 2, 2), 8)),
            (Splits{{"conv", "samples/data*model, height/space"},
                    {"norm", "samples/data*model, height/space"},
                    {"add", "samples/data*model, height/space"},
                    {"gap", "samples/data*model, height/space"},
                    {"drop", "samples/data*model"},
                    {"loss", "samples/data*space*model"}}));
}

TEST(PlannerTest, SequencesSplitHeadsAndOutputs) {
  const Plan plan = PlanOf(With(testing::SpecOf(kTokens), 2), 4);
  EXPECT_EQ(SplitsOf(plan), (Splits{{"embedding", "samples/data"},
                                    {"norm", "samples/data"},
                                    {"attention", "samples/data, heads/model"},
                                    {"add1", "samples/data"},
                                    {"fc1", "samples/data, out/model"},
                                    {"gelu", "samples/data, features/model"},
                                    {"fc2", "samples/data, in/model"},
                                    {"add2", "samples/data"},
                                    {"head", "samples/data, out/model"},
                                    {"loss", "samples/data*model"}}));
  EXPECT_THAT(plan.layers[2].output.partial_sum, ElementsAre("model"));
}

TEST(PlannerTest, OmitsAxesOfOneRank) {
  const Plan alone = PlanOf(DemoSpec(), 1);
  for (const LayerLayouts& layer : alone.layers) EXPECT_THAT(layer.splits, IsEmpty());
  for (const Bucket& bucket : alone.buckets) EXPECT_THAT(bucket.axes, IsEmpty());
}

TEST(PlannerTest, MoreRanksThanSamples) {
  for (const char* text : {kImages, kResidual, kTokens}) {
    v1::RunSpec spec = testing::SpecOf(text);
    spec.set_batch_per_group(1);
    for (const uint32_t model : {0U, 1U, 2U}) PlanOf(With(spec, model, 2), 16);
  }
}

// Statistics per rank depend on how the plan divides samples and rows.
TEST(PlannerTest, StatisticsOfARankNeedTwoValues) {
  const auto plan = [](int batch, int micro_batches, int side, int ranks, int space = 1,
                       bool per_rank = true) {
    v1::RunSpec spec = testing::SpecOf(
        absl::StrCat("model { input { channels: 4 height: ", side, " width: ", side,
                     " } layer { name: 'norm' batch_norm { per_rank: ", per_rank ? "true" : "false",
                     " } } layer { name: 'gap' global_average_pool {} }"
                     " layer { name: 'loss' softmax_cross_entropy {} } } batch_per_group: ",
                     batch, " micro_batches: ", micro_batches,
                     " cluster { ranks_per_group: ", ranks, " space_ranks: ", space, " }"));
    return MakePlan(spec, ranks).status();
  };
  EXPECT_EQ(plan(8, 1, 1, 4), absl::OkStatus());
  EXPECT_EQ(plan(8, 1, 2, 8), absl::OkStatus()) << "one sample of four positions";
  EXPECT_EQ(plan(4, 1, 1, 4, 1, /*per_rank=*/false), absl::OkStatus());
  EXPECT_EQ(plan(8, 4, 1, 1), absl::OkStatus());
  const absl::Status one = plan(4, 1, 1, 4);
  EXPECT_TRUE(absl::IsInvalidArgument(one)) << one;
  EXPECT_THAT(std::string(one.message()),
              ::testing::AllOf(HasSubstr("layer 'norm'"), HasSubstr("batch_norm.per_rank"),
                               HasSubstr("4 samples of a micro-batch over 4 ranks"),
                               HasSubstr("Unset per_rank")));
  // Five samples on four ranks, and micro-batches of one and two samples.
  EXPECT_FALSE(plan(5, 1, 1, 4).ok());
  EXPECT_FALSE(plan(12, 4, 1, 2).ok());
  EXPECT_FALSE(plan(7, 4, 1, 1).ok());
  // Fewer samples than ranks: some ranks have one, the others none.
  EXPECT_FALSE(plan(2, 1, 1, 4).ok());
  // A row of two columns.
  EXPECT_EQ(plan(2, 1, 2, 4, /*space=*/2), absl::OkStatus());
}

// --- Buckets ---

TEST(PlannerTest, LargeModelsHaveSeveralBuckets) {
  v1::RunSpec spec = DemoWith(1);
  for (v1::Layer& layer : *spec.mutable_model()->mutable_layer()) {
    if (layer.name() == "fc1") layer.mutable_fully_connected()->set_out_features(4096);
  }
  const Plan plan = PlanOf(spec, 2);
  ASSERT_GE(plan.buckets.size(), 2U);
  EXPECT_EQ(plan.buckets.back().parameters.front(), 0);
}

// Without a measured link, the policy alone determines the algorithm.
TEST(PlannerTest, UsesPolicyOfSpec) {
  v1::RunSpec spec = With(testing::SpecOf(kImages), 1);
  spec.mutable_cluster()->set_collectives(v1::Cluster::PAPER);
  const Plan plan = PlanOf(spec, 4);
  EXPECT_FALSE(plan.link.known());
  EXPECT_THAT(plan.buckets, ElementsAre(Field(&Bucket::algorithm, Algorithm::kRing),
                                        Field(&Bucket::algorithm, Algorithm::kButterfly)));
}

v1::RunSpec Pinned(std::vector<Mesh::Axis> mesh,
                   std::map<std::string, v1::LayerPin::Parallelism> layers) {
  v1::RunSpec spec = testing::SpecOf(kImages);
  v1::Cluster& cluster = *spec.mutable_cluster();
  uint32_t ranks = 1;
  for (const Mesh::Axis& axis : mesh) {
    cluster.add_mesh()->set_name(axis.name);
    cluster.mutable_mesh(cluster.mesh_size() - 1)->set_size(axis.size);
    ranks *= axis.size;
  }
  cluster.set_ranks_per_group(ranks);
  for (const auto& [layer, parallelism] : layers) {
    cluster.add_layer()->set_layer(layer);
    cluster.mutable_layer(cluster.layer_size() - 1)->set_parallelism(parallelism);
  }
  return spec;
}

TEST(PlannerTest, UsesPins) {
  const Plan plan = PlanOf(Pinned({{"model", 2}, {"data", 2}}, {{"conv", v1::LayerPin::MODEL},
                                                                {"fc1", v1::LayerPin::DATA},
                                                                {"fc2", v1::LayerPin::MODEL_IN}}),
                           4);
  EXPECT_EQ(plan.mesh, Mesh({{"model", 2}, {"data", 2}}));
  EXPECT_THAT(LayerOf(plan, "conv").axes("out"), ElementsAre("model"));
  EXPECT_THAT(LayerOf(plan, "conv").axes("samples"), ElementsAre("data"));
  EXPECT_THAT(LayerOf(plan, "fc1").axes("samples"), ElementsAre("data", "model"));
  EXPECT_THAT(LayerOf(plan, "fc2").axes("in"), ElementsAre("model"));
  EXPECT_THAT(LayerOf(plan, "conv2").axes("samples"), ElementsAre("data", "model"))
      << "not pinned: by rule";
}

v1::RunSpec Staged(const std::string& layer, int stages) {
  v1::RunSpec spec = Pinned({{"data", 2}, {"stage", stages}}, {});
  v1::LayerPin& pin = *spec.mutable_cluster()->add_layer();
  pin.set_layer(layer);
  pin.add_at()->set_axis("stage");
  pin.mutable_at(0)->set_coordinate(1);
  return spec;
}

std::vector<AxisCoordinate> Stage(int coordinate) {
  return {{.axis = "stage", .coordinate = coordinate}};
}

// A layer without a pin is at the stage of the layers that it reads.
TEST(PlannerTest, PlacesLayersByPins) {
  const Plan plan = PlanOf(Staged("fc1", 2), 4);
  for (const char* layer : {"conv", "pool", "conv2", "flat"}) {
    EXPECT_EQ(LayerOf(plan, layer).at, Stage(0)) << layer;
  }
  for (const char* layer : {"fc1", "relu1", "fc2", "relu2", "fc3", "loss"}) {
    EXPECT_EQ(LayerOf(plan, layer).at, Stage(1)) << layer;
  }
  EXPECT_THAT(LayerOf(plan, "conv").axes("samples"), ElementsAre("data"));
}

// Half of the ranks: one stage of two ranks, or two stages of one rank.
TEST(PlannerTest, SmallerGroupsKeepStages) {
  v1::RunSpec spec = Staged("fc1", 2);
  spec.mutable_cluster()->set_ranks_per_group(4);
  const Plan plan = PlanOf(spec, 2);
  EXPECT_EQ(plan.mesh, Mesh({{"data", 1}, {"stage", 2}}));
  EXPECT_EQ(LayerOf(plan, "fc3").at, Stage(1));
  const Plan alone = PlanOf(spec, 1);
  EXPECT_THAT(LayerOf(alone, "fc3").at, IsEmpty());
}

// Without pins, the stages of the smaller group are balanced again.
TEST(PlannerTest, SmallerGroupsBalanceStages) {
  v1::RunSpec spec = Pinned({{"stage", 4}}, {});
  spec.mutable_cluster()->set_ranks_per_group(4);
  v1::RunSpec two = Pinned({{"stage", 2}}, {});
  const Plan smaller = PlanOf(spec, 2);
  const Plan same = PlanOf(two, 2);
  EXPECT_EQ(smaller.mesh.Size(kStageAxis), 2);
  for (size_t l = 0; l < same.layers.size(); ++l) {
    EXPECT_EQ(smaller.layers[l].at, same.layers[l].at) << l;
  }
}

TEST(PlannerTest, RejectsMalformedModel) {
  v1::RunSpec spec = testing::SpecOf(kImages);
  spec.mutable_model()->mutable_layer(4)->mutable_fully_connected()->set_out_features(0);
  const absl::Status status = MakePlan(spec, 2).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("fc1"));
}

}  // namespace
}  // namespace cadre
