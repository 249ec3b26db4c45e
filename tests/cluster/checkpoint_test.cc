// Tests that a killed run continues from its checkpoint with the same result, even with another
// mesh or number of groups, and that invalid checkpoints are refused.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/formats/checkpoint_folder.h"
#include "model/formats/checkpoint_manifest.h"
#include "tests/cluster/cluster.h"
#include "tests/cluster/stored_model.h"

namespace cadre::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kLong = absl::Seconds(120);
// Steps between two checkpoints.
constexpr uint32_t kEvery = 20;

class CheckpointTest : public ::testing::Test {
 protected:
  // One group with momentum, whose ranks share the batch. The loss samples classes, by the position
  // in the run.
  v1::RunSpec Spec(const std::string& name, uint32_t steps) const {
    v1::RunSpec spec =
        SmallSpec({.groups = 1, .ranks = 2, .aggregators = 1, .every_steps = 5, .steps = steps});
    spec.mutable_cluster()->set_model_ranks(1);
    v1::Model& model = *spec.mutable_model();
    v1::Layer& loss = *model.mutable_layer(model.layer_size() - 1);
    loss.mutable_softmax_cross_entropy()->mutable_sampling()->set_classes(4);
    // Without changes of the plan, so that equal runs have equal plans.
    spec.mutable_cluster()->set_keep_plan(true);
    spec.mutable_checkpoint()->set_directory(folder_ / name);
    spec.mutable_checkpoint()->set_every_steps(kEvery);
    return spec;
  }

  // Trains in a new cluster.
  static absl::StatusOr<v1::StatusReply> Train(const v1::RunSpec& spec) {
    Cluster cluster;
    CADRE_ASSIGN_OR_RETURN(const std::string run, cluster.StartRun(spec));
    return cluster.AwaitDone(run, kLong);
  }

  // As Train, and replays the run from the archives of its aggregators.
  static absl::StatusOr<v1::StatusReply> TrainAndReplay(const v1::RunSpec& spec) {
    Cluster cluster({.archive = true});
    CADRE_ASSIGN_OR_RETURN(const std::string run, cluster.StartRun(spec));
    CADRE_ASSIGN_OR_RETURN(v1::StatusReply status, cluster.AwaitDone(run, kLong));
    std::vector<std::string> arguments = {"replay"};
    for (uint32_t i = 0; i < spec.cluster().aggregators(); ++i) {
      arguments.push_back(absl::StrCat(cluster.folder(), "/aggregator-", i, "/", run));
    }
    EXPECT_THAT(RunCadre(arguments),
                HasSubstr(absl::StrCat("digest ", FindRun(status, run)->digest())));
    return status;
  }

  // Starts the run and kills all processes after its second checkpoint; returns the newest.
  static absl::StatusOr<CheckpointEntry> TrainAndKill(const v1::RunSpec& spec) {
    const std::string& directory = spec.checkpoint().directory();
    {
      Cluster cluster;
      CADRE_RETURN_IF_ERROR(cluster.StartRun(spec).status());
      const auto saved = [&](const v1::StatusReply&) {
        const auto newest = NewestCheckpoint(directory);
        return newest.ok() && newest->step >= 2 * kEvery;
      };
      CADRE_RETURN_IF_ERROR(cluster.Await(saved, kLong, "a second checkpoint").status());
    }
    return NewestCheckpoint(directory);
  }

  // The weights of the checkpoint "step-<step>" of a run.
  static absl::StatusOr<std::vector<float>> Weights(const v1::RunSpec& spec, int64_t step) {
    CADRE_ASSIGN_OR_RETURN(const ParameterIndex index, ParameterIndex::FromModel(spec.model()));
    CADRE_ASSIGN_OR_RETURN(
        SafetensorsFile file,
        OpenWeights(absl::StrCat(spec.checkpoint().directory(), "/step-", step), spec.model()));
    std::vector<float> weights(index.size());
    for (const Parameter& parameter : index.parameters()) {
      CADRE_RETURN_IF_ERROR(
          file.Read(*file.Find(parameter.name), 0,
                    std::span(weights).subspan(parameter.offset, parameter.shape.elements())));
    }
    return weights;
  }

  // Trains to step `end`, in `rounds` rounds if given; returns how far the weights are from
  // `expected`, or NaN, which no comparison accepts.
  static double DifferenceAfterTraining(const v1::RunSpec& spec, int64_t end,
                                        const std::vector<float>& expected,
                                        std::optional<uint32_t> rounds = std::nullopt) {
    const auto status = Train(spec);
    EXPECT_TRUE(status.ok()) << status.status();
    if (!status.ok()) return std::nan("");
    if (rounds.has_value()) {
      EXPECT_EQ(status->runs(0).rounds_committed(), *rounds);
    }
    const auto weights = Weights(spec, end);
    EXPECT_TRUE(weights.ok()) << weights.status();
    return weights.ok() ? LargestDifference(*weights, expected) : std::nan("");
  }

  static void BeginFrom(const CheckpointEntry& entry, v1::RunSpec* spec) {
    spec->mutable_checkpoint()->set_from(entry.path);
    spec->mutable_checkpoint()->set_from_step(entry.step);
    spec->mutable_stop()->set_steps(entry.step + kEvery);
  }

  static std::string ReasonOfFailure(const v1::RunSpec& spec) {
    Cluster cluster;
    const absl::StatusOr<std::string> run = cluster.StartRun(spec);
    if (!run.ok()) return run.status().ToString();
    const auto status = cluster.AwaitEnd(*run, kLong);
    if (!status.ok()) return status.status().ToString();
    const v1::RunStatus& ended = *FindRun(*status, *run);
    EXPECT_EQ(ended.state(), v1::RUN_STATE_FAILED);
    return ended.reason();
  }

  const TemporaryFolder folder_;
};

TEST_F(CheckpointTest, KilledRunContinuesFromCheckpoint) {
  const auto killed = TrainAndKill(Spec("killed", 1000000));
  ASSERT_TRUE(killed.ok()) << killed.status();
  const int64_t begin = killed->step;
  const int64_t end = begin + kEvery;
  EXPECT_EQ(begin % kEvery, 0);

  v1::RunSpec undisturbed = Spec("undisturbed", end);
  const auto whole = Train(undisturbed);
  ASSERT_TRUE(whole.ok()) << whole.status();
  const auto expected = Weights(undisturbed, end);
  ASSERT_TRUE(expected.ok()) << expected.status();
  const auto halfway = Weights(undisturbed, begin);
  ASSERT_TRUE(halfway.ok()) << halfway.status();
  // The last steps change the weights, so the comparisons below can fail.
  EXPECT_GT(LargestDifference(*halfway, *expected), 1e-3);

  // With the same plan, every bit is equal.
  v1::RunSpec same = Spec("same", 0);
  BeginFrom(*killed, &same);
  const auto resumed = Train(same);
  ASSERT_TRUE(resumed.ok()) << resumed.status();
  EXPECT_EQ(resumed->runs(0).digest(), whole->runs(0).digest());
  EXPECT_EQ(resumed->runs(0).step(), end);
  EXPECT_EQ(resumed->runs(0).rounds_committed(), kEvery / 5)
      << "only the remaining steps are trained";
  EXPECT_EQ(resumed->runs(0).test().accuracy(), whole->runs(0).test().accuracy());

  // With three ranks, uneven parts of the weights and no aggregators, sums have another order.
  v1::RunSpec cut = Spec("cut", 0);
  BeginFrom(*killed, &cut);
  cut.mutable_cluster()->set_ranks_per_group(3);
  cut.mutable_cluster()->set_model_ranks(3);
  cut.mutable_cluster()->set_aggregators(0);
  cut.mutable_averaging()->set_every_steps(0);
  // Each of the 20 steps rounds weights below 1 to 2^-24 a few times, and gradients of slightly
  // different weights differ. Lost momentum would change weights by 1e-3 and more.
  EXPECT_LT(DifferenceAfterTraining(cut, end, *expected), 2e-5);

  // Two ranks that hold different layers, and average through an aggregator.
  v1::RunSpec placed = Spec("placed", 0);
  BeginFrom(*killed, &placed);
  placed.mutable_cluster()->clear_model_ranks();
  v1::MeshAxis& stages = *placed.mutable_cluster()->add_mesh();
  stages.set_name("stage");
  stages.set_size(2);
  v1::LayerPin& pin = *placed.mutable_cluster()->add_layer();
  pin.set_layer("fc1");
  pin.add_at()->set_axis("stage");
  pin.mutable_at(0)->set_coordinate(1);
  EXPECT_LT(DifferenceAfterTraining(placed, end, *expected, kEvery / 5), 2e-5);

  // A run from the weights alone lacks the momentum, which changes the result.
  v1::RunSpec bare = cut;
  bare.mutable_checkpoint()->set_directory(folder_ / "bare");
  bare.mutable_checkpoint()->set_from(killed->path + "/model.safetensors");
  EXPECT_GT(DifferenceAfterTraining(bare, end, *expected), 1e-4);
}

TEST_F(CheckpointTest, CheckpointStartsTwoGroups) {
  const auto killed = TrainAndKill(Spec("killed", 1000000));
  ASSERT_TRUE(killed.ok()) << killed.status();
  const auto manifest = ReadManifest(killed->path + "/manifest.textproto");
  ASSERT_TRUE(manifest.ok()) << manifest.status();

  v1::RunSpec spec = Spec("two", 0);
  BeginFrom(*killed, &spec);
  // With another number of samples per step, the run continues at the same data position.
  spec.set_batch_per_group(24);
  spec.mutable_checkpoint()->set_from_position(manifest->cursor().position());
  spec.mutable_cluster()->set_groups(2);
  spec.mutable_cluster()->set_ranks_per_group(1);
  spec.mutable_cluster()->set_aggregators(2);
  Cluster cluster;
  const auto run = cluster.StartRun(spec);
  ASSERT_TRUE(run.ok()) << run.status();
  const auto status = cluster.AwaitDone(*run, kLong);
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_EQ(status->runs(0).step(), spec.stop().steps());
  EXPECT_EQ(status->runs(0).samples(), uint64_t{kEvery} * 48);
  cluster.Kill("coordinator");
  const auto commits = cluster.Commits(*run);
  ASSERT_TRUE(commits.ok()) << commits.status();
  // The shards start from the checkpoint.
  ASSERT_TRUE(commits->contains(0));
  EXPECT_EQ(commits->at(0).digest(), manifest->weights_digest());
  EXPECT_EQ(commits->at(1).step(), killed->step + 5);
  const auto last = ReadManifest(
      absl::StrCat(folder_.path(), "/two/step-", spec.stop().steps(), "/manifest.textproto"));
  ASSERT_TRUE(last.ok()) << last.status();
  EXPECT_EQ(last->cursor().position(), manifest->cursor().position() + uint64_t{kEvery} * 48);
}

// The checkpoint has the momentum of the outer optimizer, what codes have left out of the versions
// and, of one group, what codes have left out of the contributions.
TEST_F(CheckpointTest, AveragingContinuesFromCheckpoint) {
  for (const uint32_t groups : {1, 2}) {
    const auto make_spec = [&](const std::string& name, uint32_t steps) {
      v1::RunSpec spec = Spec(absl::StrCat(name, "-", groups), steps);
      v1::Averaging& averaging = *spec.mutable_averaging();
      averaging.mutable_outer()->mutable_nesterov();
      averaging.mutable_down()->set_codec(v1::CODEC_STAT2);
      // A checkpoint has the optimizer's momentum of one group alone, too.
      if (groups == 2) {
        spec.mutable_optimizer()->mutable_sgd()->clear_momentum();
        spec.mutable_cluster()->set_groups(2);
        spec.mutable_cluster()->set_ranks_per_group(1);
        spec.mutable_cluster()->set_aggregators(2);
      } else {
        averaging.mutable_up()->set_codec(v1::CODEC_TOPK);
      }
      return spec;
    };
    const auto killed = TrainAndKill(make_spec("killed", 1000000));
    ASSERT_TRUE(killed.ok()) << killed.status();
    const auto manifest = ReadManifest(killed->path + "/manifest.textproto");
    ASSERT_TRUE(manifest.ok()) << manifest.status();
    EXPECT_EQ(manifest->averaging_state_size(), groups == 2 ? 2 : 3);
    const auto whole = Train(make_spec("undisturbed", killed->step + kEvery));
    ASSERT_TRUE(whole.ok()) << whole.status();

    const auto continue_run = [&](const std::string& name) {
      v1::RunSpec spec = make_spec(name, 0);
      BeginFrom(*killed, &spec);
      spec.mutable_checkpoint()->set_from_position(manifest->cursor().position());
      return TrainAndReplay(spec);
    };
    const auto continued = continue_run("continued");
    ASSERT_TRUE(continued.ok()) << continued.status();
    EXPECT_EQ(continued->runs(0).digest(), whole->runs(0).digest());

    // An older build has not saved the states.
    v1::CheckpointManifest older = *manifest;
    older.clear_averaging_state();
    ASSERT_EQ(WriteManifest(killed->path + "/manifest.textproto", older), absl::OkStatus());
    std::filesystem::remove(killed->path + "/averaging.safetensors");
    const auto bare = continue_run("bare");
    ASSERT_TRUE(bare.ok()) << bare.status();
    EXPECT_NE(bare->runs(0).digest(), whole->runs(0).digest());
  }
}

TEST_F(CheckpointTest, InvalidCheckpointIsRefused) {
  v1::RunSpec small = Spec("small", kEvery);
  const auto trained = Train(small);
  ASSERT_TRUE(trained.ok()) << trained.status();
  const CheckpointEntry entry = {kEvery, small.checkpoint().directory() + "/step-20"};

  v1::RunSpec other = Spec("other", 0);
  BeginFrom(entry, &other);
  other.mutable_model()->mutable_layer(3)->mutable_fully_connected()->set_out_features(33);
  EXPECT_THAT(ReasonOfFailure(other),
              AllOf(HasSubstr("aggregator-0"), HasSubstr("fc1/weight"), HasSubstr("33")));
  other.mutable_averaging()->set_every_steps(0);
  other.mutable_cluster()->set_aggregators(0);
  EXPECT_THAT(ReasonOfFailure(other),
              AllOf(HasSubstr("rank"), HasSubstr("fc1/weight"), HasSubstr("33")));

  v1::RunSpec missing = Spec("missing", 0);
  BeginFrom({kEvery, folder_ / "nowhere"}, &missing);
  EXPECT_THAT(ReasonOfFailure(missing), HasSubstr(folder_ / "nowhere"));

  v1::RunSpec adam = Spec("adam", 0);
  BeginFrom(entry, &adam);
  adam.mutable_optimizer()->mutable_adamw();
  EXPECT_THAT(ReasonOfFailure(adam), AllOf(HasSubstr("sgd"), HasSubstr("adamw")));

  v1::RunSpec step = Spec("step", 0);
  BeginFrom(entry, &step);
  step.mutable_checkpoint()->set_from_step(10);
  EXPECT_THAT(ReasonOfFailure(step), AllOf(HasSubstr("step 20"), HasSubstr("10")));
}

TEST_F(CheckpointTest, FindsNewestCheckpoint) {
  std::ofstream(folder_ / "run.textproto") << SpecText(Spec("kept", 2 * kEvery));
  RunCadre({"local", folder_ / "run.textproto"});
  std::ofstream(folder_ / "longer.textproto") << SpecText(Spec("", 3 * kEvery));
  EXPECT_THAT(RunCadre({"local", folder_ / "longer.textproto", "--from", folder_ / "kept",
                        "--checkpoint", folder_ / "more"}),
              HasSubstr(folder_ / "kept/step-40, step 40"));
  EXPECT_TRUE(std::filesystem::exists(folder_ / "more/step-60/model.safetensors"));

  EXPECT_THAT(RunCadre({"local", folder_ / "longer.textproto", "--from", folder_ / "nowhere"}, 1),
              AllOf(HasSubstr("checkpoint.from"), HasSubstr("nowhere")));
}

}  // namespace
}  // namespace cadre::testing
