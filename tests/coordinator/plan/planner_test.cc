#include "coordinator/plan/planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "spec/graph.h"
#include "spec/ownership.h"
#include "spec/parameter_index.h"
#include "spec/plan.h"
#include "tests/spec/testing.h"

namespace cadre {
namespace {

using ::cadre::testing::DemoSpec;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kImagesOnly[] = R"(
model {
  input { channels: 1 height: 4 width: 4 }
  layer { name: "conv" convolution { out_channels: 2 kernel: 3 } }
  layer { name: "loss" softmax_cross_entropy {} }
})";

// The plan as the workers read it.
Plan PlanOf(const v1::RunSpec& spec, int ranks) {
  const auto proto = MakePlan(spec, ranks);
  EXPECT_TRUE(proto.ok()) << proto.status();
  const auto index = ParameterIndex::FromModel(spec.model());
  const auto plan = PlanFromProto(*proto, *index);
  EXPECT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(CheckPlan(*plan, *Graph::FromModel(spec.model()), *index), absl::OkStatus());
  return *plan;
}

Mesh MeshOf(const v1::RunSpec& spec, int ranks) { return PlanOf(spec, ranks).mesh; }

v1::RunSpec DemoWith(uint32_t model_ranks) {
  v1::RunSpec spec = DemoSpec();
  spec.mutable_cluster()->set_model_ranks(model_ranks);
  return spec;
}

TEST(PlannerTest, AllRanksShareFullyConnectedLayersUnlessTold) {
  for (const int ranks : {1, 2, 3, 4, 6}) {
    EXPECT_EQ(MeshOf(DemoSpec(), ranks), Mesh({{"data", 1}, {"model", ranks}})) << ranks;
  }
}

TEST(PlannerTest, WithoutAFullyConnectedLayerAllIsData) {
  for (const int ranks : {1, 2, 3, 4, 6}) {
    const Plan plan = PlanOf(testing::SpecOf(kImagesOnly), ranks);
    EXPECT_EQ(plan.mesh, Mesh({{"data", ranks}, {"model", 1}})) << ranks;
  }
}

TEST(PlannerTest, TheSpecsModelRanksAreTaken) {
  EXPECT_EQ(MeshOf(DemoWith(1), 4), Mesh({{"data", 4}, {"model", 1}}));
  EXPECT_EQ(MeshOf(DemoWith(2), 4), Mesh({{"data", 2}, {"model", 2}}));
  EXPECT_EQ(MeshOf(DemoWith(2), 6), Mesh({{"data", 3}, {"model", 2}}));
  EXPECT_EQ(MeshOf(DemoWith(3), 6), Mesh({{"data", 2}, {"model", 3}}));
}

// A group that lost workers goes on with the largest divisor that it can have.
TEST(PlannerTest, SmallerGroupsTakeTheLargestDivisor) {
  EXPECT_EQ(MeshOf(DemoWith(4), 3), Mesh({{"data", 1}, {"model", 3}}));
  EXPECT_EQ(MeshOf(DemoWith(4), 6), Mesh({{"data", 2}, {"model", 3}}));
  EXPECT_EQ(MeshOf(DemoWith(2), 3), Mesh({{"data", 3}, {"model", 1}}));
  EXPECT_EQ(MeshOf(DemoWith(2), 1), Mesh({{"data", 1}, {"model", 1}}));
  EXPECT_EQ(MeshOf(DemoWith(6), 5), Mesh({{"data", 1}, {"model", 5}}));
}

TEST(PlannerTest, LayoutsOfTheHybrid) {
  const Plan plan = PlanOf(DemoWith(2), 4);
  const Layout all = Layout::Split(0, {"data", "model"});
  const Layout data = Layout::Split(0, {"data"});
  const Layout both{.split = {{"data"}, {"model"}}};
  for (size_t l = 0; l < 6; ++l) {
    EXPECT_EQ(plan.layers[l].input, all) << plan.layers[l].name;
    EXPECT_EQ(plan.layers[l].output, all) << plan.layers[l].name;
  }
  EXPECT_THAT(plan.layers[0].parameters, ElementsAre(Layout::Replicated(), Layout::Replicated()));
  EXPECT_EQ(plan.layers[6].name, "fc1");
  EXPECT_EQ(plan.layers[6].input, data);
  EXPECT_EQ(plan.layers[6].output, both);
  EXPECT_THAT(plan.layers[6].parameters,
              ElementsAre(Layout::Split(0, {"model"}), Layout::Split(0, {"model"})));
  EXPECT_EQ(plan.layers[7].input, both) << "relu works on what fc1 leaves";
  EXPECT_EQ(plan.layers[8].input, data);
  EXPECT_EQ(plan.layers[9].input, data) << "the loss needs whole features";
}

TEST(PlannerTest, AxesOfOneRankAreNotWritten) {
  const Plan alone = PlanOf(DemoSpec(), 1);
  for (const LayerLayouts& layer : alone.layers) {
    EXPECT_EQ(layer.input, Layout::Replicated()) << layer.name;
    EXPECT_EQ(layer.output, Layout::Replicated()) << layer.name;
  }
  for (const Bucket& bucket : alone.buckets) EXPECT_THAT(bucket.axes, IsEmpty());
}

// fc1 alone is 12.8 MB and fills a bucket; fc2 is behind it in the model and so finishes before.
TEST(PlannerTest, BucketsComeInTheOrderOfBackward) {
  const Plan plan = PlanOf(DemoSpec(), 2);
  ASSERT_EQ(plan.buckets.size(), 3U);
  EXPECT_THAT(plan.buckets[0].parameters, ElementsAre(6, 7)) << "fc2";
  EXPECT_THAT(plan.buckets[1].parameters, ElementsAre(4, 5)) << "fc1";
  EXPECT_THAT(plan.buckets[2].parameters, ElementsAre(0, 1, 2, 3)) << "both convolutions";
  EXPECT_THAT(plan.buckets[0].axes, IsEmpty()) << "each rank has the whole batch for its part";
  EXPECT_THAT(plan.buckets[2].axes, ElementsAre("model"));
}

TEST(PlannerTest, SmallLayersShareABucket) {
  v1::RunSpec spec = DemoWith(1);
  spec.mutable_model()->mutable_layer(6)->mutable_fully_connected()->set_out_features(16);
  const Plan plan = PlanOf(spec, 2);
  ASSERT_EQ(plan.buckets.size(), 1U) << "all over [data], and below the size of one bucket";
  EXPECT_THAT(plan.buckets[0].parameters, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
}

// With two ranks each holds, owns and updates half of the fully connected layers.
TEST(PlannerTest, TwoRanksHoldHalfOfTheFullyConnectedLayersEach) {
  const v1::RunSpec spec = DemoSpec();
  const auto index = ParameterIndex::FromModel(spec.model());
  const Plan plan = PlanOf(spec, 2);
  const int64_t fc1 = (*index)[4].offset;
  const int64_t half = 512 * 3136;
  for (const int rank : {0, 1}) {
    const std::vector<BucketOwnership> buckets = OwnershipOf(plan, *index, rank);
    const LocalParameter& weight = buckets[1].parameters[0];
    EXPECT_EQ(weight.box, (Box{{512 * rank, 0}, {512 * rank + 512, 3136}}));
    EXPECT_EQ(weight.flat, (FlatRange{fc1 + half * rank, fc1 + half * (rank + 1)}));
    ASSERT_EQ(buckets[1].owned.size(), 2U);
    EXPECT_EQ(buckets[1].owned[0].flat, weight.flat);
    int64_t owned = 0;
    for (const BucketOwnership& bucket : buckets)
      owned += bucket.slice_end() - bucket.slice_begin();
    EXPECT_EQ(owned, index->size() / 2) << "n / p words up and n / p down in a round";
  }
}

TEST(PlannerTest, EveryElementIsOwnedOnceInEveryGroup) {
  for (const int ranks : {1, 2, 3, 4, 6}) {
    for (const uint32_t model : {0U, 1U, 2U, 3U}) {
      const v1::RunSpec spec = DemoWith(model);
      const auto index = ParameterIndex::FromModel(spec.model());
      const Plan plan = PlanOf(spec, ranks);
      std::vector<int> owners(static_cast<size_t>(index->size()), 0);
      for (int rank = 0; rank < ranks; ++rank) {
        for (const BucketOwnership& bucket : OwnershipOf(plan, *index, rank)) {
          for (const OwnedPiece& piece : bucket.owned) {
            for (auto i = piece.flat.begin; i < piece.flat.end; ++i)
              ++owners[static_cast<size_t>(i)];
          }
        }
      }
      EXPECT_EQ(std::count(owners.begin(), owners.end(), 1), index->size())
          << ranks << " ranks, model_ranks " << model;
    }
  }
}

TEST(PlannerTest, ABrokenModelIsRefused) {
  v1::RunSpec spec = DemoSpec();
  spec.mutable_model()->mutable_layer(6)->mutable_fully_connected()->set_out_features(0);
  const absl::Status status = MakePlan(spec, 2).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("fc1"));
}

TEST(PlannerTest, PrintsForPeople) {
  const v1::RunSpec spec = DemoSpec();
  const auto index = ParameterIndex::FromModel(spec.model());
  EXPECT_EQ(PrintPlan(PlanOf(spec, 2), *Graph::FromModel(spec.model()), *index),
            R"(mesh {data: 1, model: 2}
  conv1        convolution            {0: model} -> {0: model}, weight replicated
  relu1        relu                   {0: model} -> {0: model}
  pool1        max_pool               {0: model} -> {0: model}
  conv2        convolution            {0: model} -> {0: model}, weight replicated
  relu2        relu                   {0: model} -> {0: model}
  pool2        max_pool               {0: model} -> {0: model}
  (reshard)    {0: model} -> replicated
  fc1          fully_connected        replicated -> {1: model}, weight {0: model}
  relu3        relu                   {1: model} -> {1: model}
  (reshard)    {1: model} -> replicated
  fc2          fully_connected        replicated -> {1: model}, weight {0: model}
  (reshard)    {1: model} -> replicated
  loss         softmax_cross_entropy  replicated -> replicated
  bucket 0: fc2/weight, fc2/bias over [] by ring
  bucket 1: fc1/weight, fc1/bias over [] by ring
  bucket 2: conv1/weight, conv1/bias, conv2/weight, conv2/bias over [model] by ring
)");
}

}  // namespace
}  // namespace cadre
