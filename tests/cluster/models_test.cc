// Tests special models with real processes: tokens, batch norm with split images, and a run that
// diverges.
#include <cmath>
#include <fstream>
#include <map>

#include "base/digest.h"
#include "base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/base/expect.h"
#include "tests/cluster/cluster.h"
#include "tests/cluster/stored_model.h"

namespace cadre::testing {
namespace {

constexpr absl::Duration kLong = absl::Seconds(120);

struct Trained {
  v1::RunStatus run;
  // Status of the group when its ranks were prepared.
  v1::GroupStatus group;
};

absl::StatusOr<Trained> Train(const v1::RunSpec& spec) {
  Cluster cluster;
  CADRE_ASSIGN_OR_RETURN(const std::string run, cluster.StartRun(spec));
  Trained trained;
  const auto prepared = [&](const v1::StatusReply& status) {
    for (const v1::GroupStatus& group : status.groups()) {
      bool all = group.members_size() > 0;
      for (const v1::GroupMember& member : group.members()) all = all && member.has_memory();
      if (all) trained.group = group;
    }
    return trained.group.members_size() > 0;
  };
  CADRE_RETURN_IF_ERROR(
      cluster.Await(prepared, kLong, "all ranks of a group are prepared").status());
  CADRE_ASSIGN_OR_RETURN(const v1::StatusReply status, cluster.AwaitDone(run, kLong));
  trained.run = status.runs(0);
  return trained;
}

uint64_t TotalOf(const v1::MemoryUse& use) {
  return use.weights() + use.gradients() + use.optimizer() + use.activations() + use.buffers() +
         use.exchange();
}

void ExpectMemoryAsPlanned(const v1::GroupStatus& group) {
  for (const v1::GroupMember& member : group.members()) {
    const double held = TotalOf(member.memory());
    const double planned = TotalOf(member.planned_memory());
    EXPECT_GT(member.memory().weights(), 0u);
    EXPECT_GT(member.memory().activations(), 0u);
    EXPECT_LE(std::abs(held - planned), 0.05 * planned)
        << member.memory().ShortDebugString() << " planned "
        << member.planned_memory().ShortDebugString();
  }
}

// The token after t is (5 t + 3) mod 16, so it can be predicted exactly.
void WriteTokens(const std::string& path, int count) {
  std::string bytes;
  int token = 1;
  for (int i = 0; i < count; ++i) {
    bytes.push_back(token);
    token = (5 * token + 3) % 16;
  }
  std::ofstream(path, std::ios::binary) << bytes;
}

constexpr char kTransformer[] = R"(
  name: "tokens"
  model {
    tokens { length: 8 }
    layer { name: "embedding" embedding { vocabulary: 16 features: 16 positions: true } }
    layer { name: "norm1" layer_norm {} }
    layer { name: "attention" attention { heads: 2 causal: true } }
    layer { name: "add1" input: "attention" input: "embedding" add {} }
    layer { name: "norm2" layer_norm {} }
    layer { name: "fc1" fully_connected { out_features: 32 } }
    layer { name: "gelu" gelu {} }
    layer { name: "fc2" fully_connected { out_features: 16 } }
    layer { name: "add2" input: "fc2" input: "add1" add {} }
    layer { name: "norm3" layer_norm {} }
    layer { name: "head" fully_connected { out_features: 16 no_bias: true } }
    layer { name: "loss" softmax_cross_entropy {} }
  }
  batch_per_group: 16
  optimizer { adamw { weight_decay: 0.01 } clip_norm: 1 }
  schedule { base_rate: 0.01 warmup_steps: 8 }
  averaging { every_steps: 4 }
  cluster { groups: 2 ranks_per_group: 2 aggregators: 2 }
  stop { epochs: 4 }
  seed: 3)";

TEST(ModelsTest, TwoGroupsLearnTokens) {
  const TemporaryFolder folder;
  WriteTokens(folder / "train", 1024 * 8 + 1);
  WriteTokens(folder / "test", 100 * 8 + 1);
  v1::RunSpec spec = Parse<v1::RunSpec>(kTransformer);
  v1::TokenFiles& files = *spec.mutable_data()->mutable_token_files();
  files.set_train(folder / "train");
  files.set_test(folder / "test");
  files.set_bytes_per_token(1);
  const auto once = Train(spec);
  const auto again = Train(spec);
  ASSERT_TRUE(once.ok()) << once.status();
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(once->run.samples(), 4u * 1024);
  EXPECT_EQ(once->run.test().samples(), 100u);
  // A random guess has an accuracy of 1/16.
  EXPECT_GE(once->run.test().accuracy(), 0.9);
  EXPECT_LE(once->run.test().accuracy(), 1.0);
  EXPECT_EQ(once->run.digest(), again->run.digest());
  EXPECT_EQ(once->group.mesh().at("model"), 2u);
  ExpectMemoryAsPlanned(once->group);
}

TEST(ModelsTest, BatchNormIsReproducible) {
  v1::RunSpec spec = SmallSpec({.epochs = 4});
  spec.mutable_cluster()->set_space_ranks(2);
  spec.mutable_cluster()->set_model_ranks(1);
  v1::Model model = spec.model();
  model.clear_layer();
  for (const v1::Layer& layer : spec.model().layer()) {
    *model.add_layer() = layer;
    if (layer.name() != "conv1") continue;
    v1::Layer* norm = model.add_layer();
    norm->set_name("norm1");
    norm->mutable_batch_norm();
  }
  *spec.mutable_model() = model;
  const auto once = Train(spec);
  ASSERT_TRUE(once.ok()) << once.status();
  const auto again = Train(spec);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(once->group.mesh().at("space"), 2u);
  EXPECT_GE(once->run.test().accuracy(), 0.9);
  EXPECT_EQ(once->run.digest(), again->run.digest());
  EXPECT_EQ(once->run.test().loss(), again->run.test().loss());
  ExpectMemoryAsPlanned(once->group);
}

// Trains until the run is parked. Checks that its last version is `version` and that the shards
// store that version with finite values. Returns the reason.
std::string ReasonOfDivergence(const v1::RunSpec& spec, uint32_t version) {
  Cluster cluster;
  const auto run = cluster.StartRun(spec);
  if (!run.ok()) return run.status().ToString();
  const auto status = cluster.AwaitEnd(*run, kLong);
  if (!status.ok()) return status.status().ToString();
  const v1::RunStatus& ended = *FindRun(*status, *run);
  EXPECT_EQ(ended.state(), v1::RUN_STATE_PARKED);
  EXPECT_EQ(ended.version(), version);
  const auto weights = ReadStoredModel(cluster.folder(), *status, spec);
  if (!weights.ok()) return weights.status().ToString();
  EXPECT_EQ(DigestHex(Digest(*weights, 0)), ended.digest());
  for (const float weight : *weights) EXPECT_TRUE(std::isfinite(weight));
  return ended.reason();
}

// The first update makes the weights so large that products of the second step overflow.
TEST(ModelsTest, DivergenceParksRun) {
  v1::RunSpec spec = SmallSpec({.every_steps = 1, .steps = 1000});
  spec.mutable_schedule()->set_base_rate(1e20F);
  EXPECT_THAT(ReasonOfDivergence(spec, 1),
              ::testing::ContainsRegex(
                  "step 1: the loss is .*layer 'fc[12]' on rank [01].*version 1 is kept"));
}

TEST(ModelsTest, OverflowIsNotAveraged) {
  v1::RunSpec spec = SmallSpec({.every_steps = 1, .steps = 1000});
  spec.mutable_schedule()->set_base_rate(1e20F);
  spec.mutable_optimizer()->mutable_sgd()->set_weight_decay(1e30F);
  EXPECT_THAT(ReasonOfDivergence(spec, 0),
              ::testing::ContainsRegex("step 0: the update of 'conv1/weight' produced a non-finite "
                                       "value, first on rank [01]; version 0 is kept"));
}

}  // namespace
}  // namespace cadre::testing
