#include "coordinator/measured_planning.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/peer_text.h"
#include "base/rpc/bounded_parse.h"
#include "base/rpc/grpc_channel.h"
#include "coordinator/run/replan.h"
#include "coordinator/service/service.h"
#include "model/graph.h"
#include "model/validate.h"
#include "plan/search/planner.h"
#include "proto/cadre/v1/control.pb.h"
#include "proto/cadre/v1/membership.pb.h"
#include "tests/model/testing.h"

namespace cadre {
namespace {

using ::testing::IsSupersetOf;
using ::testing::Not;

// A model with many weights and few activations.
constexpr char kWide[] = R"(
model {
  input { channels: 1 height: 4 width: 4 }
  layer { name: "fc1" fully_connected { out_features: 1024 } }
  layer { name: "relu1" relu {} }
  layer { name: "fc2" fully_connected { out_features: 1024 } }
  layer { name: "relu2" relu {} }
  layer { name: "fc3" fully_connected { out_features: 8 } }
  layer { name: "loss" softmax_cross_entropy {} }
}
batch_per_group: 8)";

v1::LinkProfile LinkOf(double seconds_per_byte) {
  v1::LinkProfile link;
  link.set_alpha(1e-5);
  link.set_beta(seconds_per_byte);
  return link;
}

// Times of all layers, each measured whole with `samples` samples.
v1::LayerTimesRecord TimesOf(const v1::RunSpec& spec, uint32_t samples, double seconds) {
  v1::LayerTimesRecord record;
  record.set_update_seconds(1e-9);
  const Graph graph = *Graph::FromModel(spec.model());
  for (const GraphLayer& layer : graph.layers()) {
    v1::LayerTime& time = *record.mutable_times()->add_time();
    time.set_layer(layer.name);
    time.set_samples(samples);
    time.set_forward(seconds);
    time.set_backward(2 * seconds);
  }
  return record;
}

class MeasuredPlanningTest : public ::testing::Test {
 protected:
  PlanQuery QueryOf(size_t ranks) const {
    PlanQuery query{.spec = spec_};
    query.ranks.resize(ranks, {.host = "a", .device = "cpu"});
    return query;
  }

  // Number of layers, including the flattening.
  int Layers() const { return Graph::FromModel(spec_.model())->size(); }

  v1::RunSpec spec_ = testing::SpecOf(kWide);
  const MeasuredPlanning planning_;
};

TEST_F(MeasuredPlanningTest, NoMeasurementsUsesRules) {
  const auto plans = planning_.PlansFor(QueryOf(2));
  ASSERT_TRUE(plans.ok()) << plans.status();
  ASSERT_EQ(plans->size(), 1U);
  EXPECT_EQ(plans->front().plan.SerializeAsString(), MakePlan(spec_, 2)->SerializeAsString());
  EXPECT_FALSE(plans->front().predicted.has_value());
  EXPECT_EQ(planning_.Predict(QueryOf(2), plans->front().plan).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

// A chain of layers. Activations overwrite the outputs of the layers before them, so 24 outputs of
// 64 values in 4,096 samples take 25 MB.
v1::RunSpec Chain() {
  std::string text = "batch_per_group: 4096 model { input { channels: 1 height: 8 width: 8 } ";
  for (int l = 0; l < 24; ++l) {
    absl::StrAppend(&text, "layer { name: 'fc", l, "' fully_connected { out_features: 64 } } ",
                    "layer { name: 'tanh", l, "' tanh {} } ");
  }
  return testing::SpecOf(text + "layer { name: 'loss' softmax_cross_entropy {} } }");
}

// Also before anything is measured, a plan recomputes what memory requires.
TEST_F(MeasuredPlanningTest, RecomputesWhereMemoryIsSmall) {
  spec_ = Chain();
  PlanQuery query = QueryOf(1);
  const auto recomputed = [&] {
    const auto plans = planning_.PlansFor(query);
    EXPECT_TRUE(plans.ok()) << plans.status();
    return plans.ok() ? plans->front().plan.recomputed_size() : -1;
  };
  for (const bool known : {false, true}) {
    if (known) query.times.push_back(TimesOf(spec_, 4096, 1e-3));
    query.ranks[0].memory_bytes = 0;
    EXPECT_EQ(recomputed(), 0);
    query.ranks[0].memory_bytes = int64_t{1} << 40;
    EXPECT_EQ(recomputed(), 0);
    query.ranks[0].memory_bytes = 20 << 20;
    const int few = recomputed();
    EXPECT_GT(few, 0);
    query.ranks[0].memory_bytes = 15 << 20;
    EXPECT_GT(recomputed(), few);
    query.spec.mutable_cluster()->set_recompute(v1::Recomputation::OFF);
    EXPECT_EQ(recomputed(), 0);
    query.spec.mutable_cluster()->set_recompute(v1::Recomputation::AUTO);
  }
}

TEST_F(MeasuredPlanningTest, PinnedStagesRecomputeWhereMemoryIsSmall) {
  spec_ = Chain();
  spec_.set_micro_batches(4);
  v1::Cluster& cluster = *spec_.mutable_cluster();
  cluster.set_ranks_per_group(2);
  cluster.set_pipeline(v1::Cluster::ALL_FORWARD_FIRST);
  cluster.add_mesh()->set_name("stage");
  cluster.mutable_mesh(0)->set_size(2);
  PlanQuery query = QueryOf(2);
  int recomputed = 0;
  for (int64_t memory = int64_t{1} << 30;; memory = memory * 9 / 10) {
    for (RankResources& rank : query.ranks) rank.memory_bytes = memory;
    const auto plans = planning_.PlansFor(query);
    if (!plans.ok()) {
      EXPECT_EQ(plans.status().code(), absl::StatusCode::kResourceExhausted);
      break;
    }
    EXPECT_GE(plans->front().plan.recomputed_size(), recomputed) << memory;
    recomputed = plans->front().plan.recomputed_size();
    if (memory > 100 << 20) {
      EXPECT_EQ(recomputed, 0);
    }
  }
  EXPECT_GT(recomputed, 2);
}

TEST_F(MeasuredPlanningTest, TwoRanksNeedALink) {
  PlanQuery query = QueryOf(2);
  query.times.push_back(TimesOf(spec_, 8, 1e-3));
  EXPECT_FALSE(planning_.PlansFor(query)->front().predicted.has_value());
  query.ranks.resize(1);
  const auto alone = planning_.PlansFor(query);
  ASSERT_TRUE(alone.ok()) << alone.status();
  ASSERT_TRUE(alone->front().predicted.has_value()) << "one rank needs no link";
  EXPECT_NEAR(alone->front().predicted->compute(), Layers() * 3e-3, 1e-6);
}

TEST_F(MeasuredPlanningTest, PlanDependsOnLink) {
  PlanQuery query = QueryOf(2);
  query.times.push_back(TimesOf(spec_, 8, 1e-6));
  query.link = LinkOf(1e-7);
  const auto plans = planning_.PlansFor(query);
  ASSERT_TRUE(plans.ok()) << plans.status();
  EXPECT_GT(plans->size(), 1U);
  for (const GroupPlan& plan : *plans) {
    ASSERT_TRUE(plan.predicted.has_value());
    EXPECT_GE(plan.predicted->step(), plans->front().predicted->step());
    EXPECT_FALSE(plan.plan.has_link() && plan.plan.link().beta() > 0)
        << "the ranks measure the link";
    const auto again = planning_.Predict(query, plan.plan);
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_DOUBLE_EQ(again->step(), plan.predicted->step());
  }
  // At 10 MB/s, a million weights take 800 ms; eight samples of a thousand values take 3 ms.
  uint32_t data = 1;
  for (const v1::MeshAxis& axis : plans->front().plan.mesh()) {
    if (axis.name() == "data") data = axis.size();
  }
  EXPECT_EQ(data, 1U) << plans->front().plan.DebugString();
}

TEST_F(MeasuredPlanningTest, PinsAreRespected) {
  for (const char* axis : {"data", "model"}) {
    spec_.mutable_cluster()->clear_mesh();
    v1::MeshAxis& mesh = *spec_.mutable_cluster()->add_mesh();
    mesh.set_name(axis);
    mesh.set_size(2);
    spec_.mutable_cluster()->set_ranks_per_group(2);
    PlanQuery query = QueryOf(2);
    for (const bool known : {false, true}) {
      if (known) {
        query.times.push_back(TimesOf(spec_, 8, 1e-3));
        query.link = LinkOf(1e-9);
      }
      const auto plans = planning_.PlansFor(query);
      ASSERT_TRUE(plans.ok()) << plans.status();
      EXPECT_EQ(plans->front().predicted.has_value(), known);
      for (const v1::MeshAxis& chosen : plans->front().plan.mesh()) {
        EXPECT_EQ(chosen.size(), chosen.name() == axis ? 2U : 1U);
      }
    }
  }
}

// A group that has lost a worker is planned anew, without the coordinates of the larger group.
TEST_F(MeasuredPlanningTest, PlacesBranchesOnRanks) {
  spec_ = testing::SpecOf(testing::kTwoBranches);
  PlanQuery query = QueryOf(2);
  query.times.push_back(TimesOf(spec_, 8, 1e-2));
  query.link = LinkOf(1e-7);
  query.link->set_alpha(1e-2);
  const auto plans = planning_.PlansFor(query);
  ASSERT_TRUE(plans.ok()) << plans.status();
  const v1::Plan& plan = plans->front().plan;
  std::map<std::string, int> rank_of;
  for (const v1::LayerPlan& layer : plan.layers()) {
    ASSERT_EQ(layer.at_size(), 1) << plan.DebugString();
    rank_of[layer.layer()] = layer.at(0).coordinate();
  }
  EXPECT_NE(rank_of.at("left2"), rank_of.at("right2"));
  const auto again = planning_.Predict(query, plan);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_DOUBLE_EQ(again->step(), plans->front().predicted->step());
  EXPECT_EQ(planning_.PlansFor(query)->front().plan.SerializeAsString(), plan.SerializeAsString());
  query.ranks.resize(1);
  const auto alone = planning_.PlansFor(query);
  ASSERT_TRUE(alone.ok()) << alone.status();
  for (const v1::LayerPlan& layer : alone->front().plan.layers()) {
    EXPECT_EQ(layer.at_size(), 0);
  }
}

TEST_F(MeasuredPlanningTest, PlacedLayersFitIntoMemory) {
  spec_ = testing::SpecOf(testing::kTwoBranches);
  PlanQuery query = QueryOf(2);
  query.times.push_back(TimesOf(spec_, 8, 1e-2));
  query.link = LinkOf(1e-7);
  query.link->set_alpha(1e-2);
  for (RankResources& rank : query.ranks) rank.memory_bytes = 1 << 20;
  const auto plans = planning_.PlansFor(query);
  ASSERT_TRUE(plans.ok()) << plans.status();
  for (const GroupPlan& each : *plans) {
    for (const v1::LayerPlan& layer : each.plan.layers()) EXPECT_EQ(layer.at_size(), 0);
  }
}

TEST_F(MeasuredPlanningTest, SlowestDeviceIsUsed) {
  PlanQuery query = QueryOf(1);
  query.times = {TimesOf(spec_, 8, 1e-3), TimesOf(spec_, 8, 2e-3)};
  EXPECT_NEAR(planning_.PlansFor(query)->front().predicted->compute(), Layers() * 6e-3, 1e-6);
}

// Times of layers that were not timed follow from their arithmetic and the speed of the others.
TEST_F(MeasuredPlanningTest, UntimedLayersAreEstimated) {
  const Graph graph = *Graph::FromModel(spec_.model());
  const auto timed_alone = [&](absl::string_view name) {
    v1::LayerTimesRecord record = TimesOf(spec_, 8, 1e-3);
    v1::ModelTimes& times = *record.mutable_times();
    const auto all = times.time();
    times.clear_time();
    for (const v1::LayerTime& time : all) {
      if (time.layer() == name) *times.add_time() = time;
    }
    return record;
  };
  double flops = 0;
  double fc2 = 0;
  for (const GraphLayer& layer : graph.layers()) {
    flops += layer.flops;
    if (layer.name == "fc2") fc2 = layer.flops;
  }
  PlanQuery query = QueryOf(1);
  query.times = {timed_alone("fc2")};
  const auto plans = planning_.PlansFor(query);
  ASSERT_TRUE(plans->front().predicted.has_value());
  EXPECT_NEAR(plans->front().predicted->compute(), 3e-3 * flops / fc2, 1e-6);
  query.times = {timed_alone("none")};
  EXPECT_FALSE(planning_.PlansFor(query)->front().predicted.has_value());
  EXPECT_EQ(planning_.Predict(query, plans->front().plan).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(MeasuredPlanningTest, MeasuredCopiesCount) {
  PlanQuery query = QueryOf(2);
  query.link = LinkOf(1e-7);
  query.times.push_back(TimesOf(spec_, 8, 1e-6));
  const v1::Plan plan = planning_.PlansFor(query)->front().plan;
  const double without = planning_.Predict(query, plan)->moves();
  ASSERT_GT(without, 0);
  query.times.front().set_copy_seconds(1e-6);
  EXPECT_GT(planning_.Predict(query, plan)->moves(), 1.1 * without);
}

// If the pins leave no choice, the search finds the plan of the rules.
TEST_F(MeasuredPlanningTest, PinnedLayersGiveOnePlan) {
  v1::MeshAxis& mesh = *spec_.mutable_cluster()->add_mesh();
  mesh.set_name("model");
  mesh.set_size(2);
  spec_.mutable_cluster()->set_ranks_per_group(2);
  const Graph graph = *Graph::FromModel(spec_.model());
  for (const GraphLayer& layer : graph.layers()) {
    v1::LayerPin& pin = *spec_.mutable_cluster()->add_layer();
    pin.set_layer(layer.name);
    pin.set_parallelism(layer.kind == LayerKind::kFullyConnected ? v1::LayerPin::MODEL
                                                                 : v1::LayerPin::DATA);
  }
  const std::string by_rules = SignatureOf(planning_.PlansFor(QueryOf(2))->front().plan);
  for (const double seconds : {1e-11, 1e-6}) {
    PlanQuery query = QueryOf(2);
    query.link = LinkOf(seconds);
    query.times.push_back(TimesOf(spec_, 8, 1e-4));
    EXPECT_EQ(SignatureOf(planning_.PlansFor(query)->front().plan), by_rules);
  }
}

TEST_F(MeasuredPlanningTest, NoRanksIsAnError) {
  PlanQuery query = QueryOf(0);
  query.times.push_back(TimesOf(spec_, 8, 1e-3));
  query.link = LinkOf(1e-9);
  EXPECT_FALSE(planning_.Predict(query, *MakePlan(spec_, 1)).ok());
}

// No plan fits by the planner's estimate, which is an upper bound, so the plan of the rules is
// used.
TEST_F(MeasuredPlanningTest, NoFittingPlanUsesRules) {
  PlanQuery query = QueryOf(2);
  query.times.push_back(TimesOf(spec_, 8, 1e-3));
  query.link = LinkOf(1e-9);
  for (RankResources& rank : query.ranks) rank.memory_bytes = 1000;
  const auto plans = planning_.PlansFor(query);
  ASSERT_TRUE(plans.ok()) << plans.status();
  EXPECT_EQ(plans->size(), 1U);
  EXPECT_FALSE(plans->front().predicted.has_value());
}

TEST_F(MeasuredPlanningTest, UntrainableRunIsRefused) {
  spec_.mutable_model()->mutable_layer(0)->mutable_fully_connected()->set_out_features(0);
  PlanQuery query = QueryOf(2);
  EXPECT_EQ(planning_.PlansFor(query).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(MeasuredPlanningTest, KeyDependsOnLayers) {
  const std::string key = planning_.KeyOf(spec_.model());
  EXPECT_EQ(planning_.KeyOf(spec_.model()), key);
  EXPECT_THAT(planning_.LayersOf(spec_.model()), IsSupersetOf({"fc1", "relu2", "loss"}));
  spec_.mutable_model()->mutable_layer(0)->mutable_fully_connected()->set_out_features(512);
  EXPECT_THAT(planning_.KeyOf(spec_.model()), Not(key));
}

// The largest spec that is accepted, for the largest group, fits into the messages that carry it:
// otherwise no member could ever receive it.
void ExpectMessagesFit(const v1::RunSpec& largest, const v1::Plan& plan) {
  v1::CoordinatorMessage message;
  v1::Assignment& assignment = *message.mutable_assignment();
  *assignment.mutable_spec() = largest;
  *assignment.mutable_plan() = plan;
  for (uint32_t i = 0; i < kMaxRanksPerGroup; ++i) {
    assignment.add_peers(std::string(kMaxPeerLine, 'a'));
  }
  for (uint32_t i = 0; i < kMaxAggregators; ++i) {
    v1::ShardAddress& shard = *assignment.add_shards();
    shard.set_shard(i);
    shard.set_address(std::string(kMaxPeerLine, 'a'));
  }
  EXPECT_LT(message.ByteSizeLong(), kMaxMessageBytes * 9 / 10);

  v1::OpenRun& open = *message.mutable_open_run();
  *open.mutable_spec() = largest;
  for (uint32_t i = 0; i < kMaxGroups; ++i) (*open.mutable_generations())[i] = 0xffffffffU;
  EXPECT_LT(message.ByteSizeLong(), kMaxMessageBytes * 9 / 10);

  v1::SubmitRequest submit;
  *submit.mutable_spec() = largest;
  v1::SubmitRequest parsed;
  EXPECT_EQ(ParseWithin(kMaxSubmitMemory, Serialize(submit), &parsed), absl::OkStatus());
}

TEST(SpecLimitsTest, AcceptedSpecFitsMessages) {
  v1::RunSpec spec = testing::DemoSpec();
  v1::Model& model = *spec.mutable_model();
  model.mutable_layer()->DeleteSubrange(0, model.layer_size() - 2);
  spec.mutable_cluster()->Clear();
  spec.mutable_cluster()->set_ranks_per_group(kMaxRanksPerGroup);
  spec.mutable_cluster()->set_aggregators(kMaxAggregators);
  spec.set_batch_per_group(kMaxRanksPerGroup);
  // Layers with parameters, whose names a plan repeats.
  v1::RunSpec largest = spec;
  largest.mutable_model()->clear_layer();
  for (int i = 0; i < kMaxLayers - 2; ++i) {
    v1::Layer& layer = *largest.mutable_model()->add_layer();
    layer.set_name(absl::StrFormat("%050d", i));
    layer.mutable_fully_connected()->set_out_features(1);
  }
  largest.mutable_model()->mutable_layer()->MergeFrom(model.layer());
  ASSERT_EQ(ValidateRunSpec(largest), absl::OkStatus());
  EXPECT_GT(largest.ByteSizeLong(), kMaxSpecBytes * 9 / 10);

  ExpectMessagesFit(largest, MakePlan(largest, kMaxRanksPerGroup).value());
}

// A mixture of experts: 48 layers of 128 experts with 3 matrices each, all with a LoRA adapter.
TEST(SpecLimitsTest, ParametersOfMixtureOfExpertsFitMessages) {
  v1::RunSpec spec = testing::SpecOf(
      "name: 'experts' batch_per_group: 4096 averaging { every_steps: 1 } stop { steps: 1 } "
      "cluster { ranks_per_group: 4096 aggregators: 4096 }");
  for (int i = 0; i < 48 * 128 * 3; ++i) {
    const std::string name = absl::StrFormat(
        "base_model.model.model.layers.%d.mlp.experts.%d.gate_proj", i / 384, i % 384);
    v1::OpaqueModel& model = *spec.mutable_model()->mutable_opaque();
    v1::OpaqueParameter& frozen = *model.add_parameter();
    frozen.set_name(name + ".base_layer.weight");
    frozen.add_shape(768);
    frozen.add_shape(2048);
    frozen.set_frozen_digest("0123456789abcdef");
    for (const char* part : {".lora_A.default.weight", ".lora_B.default.weight"}) {
      v1::OpaqueParameter& adapter = *model.add_parameter();
      adapter.set_name(name + part);
      adapter.add_shape(2048);
      adapter.add_shape(16);
    }
  }
  EXPECT_EQ(ValidateRunSpec(spec), absl::OkStatus());
  EXPECT_LT(spec.ByteSizeLong(), kMaxOpaqueSpecBytes * 3 / 4);

  v1::OpaqueModel& model = *spec.mutable_model()->mutable_opaque();
  while (spec.ByteSizeLong() < kMaxOpaqueSpecBytes * 99 / 100) {
    for (int i = 0; i < 200; ++i) {
      v1::OpaqueParameter& more = *model.add_parameter();
      more.set_name(absl::StrFormat("%0200d", model.parameter_size()));
    }
  }
  ASSERT_EQ(ValidateRunSpec(spec), absl::OkStatus());
  ExpectMessagesFit(spec, v1::Plan());
}

}  // namespace
}  // namespace cadre
