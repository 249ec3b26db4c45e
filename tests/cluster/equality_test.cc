// Tests, with real processes and aggregators, that averaging does not change certain results.
#include <optional>
#include <vector>

#include "absl/time/clock.h"
#include "base/digest.h"
#include "base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cluster/cluster.h"
#include "tests/cluster/stored_model.h"

namespace cadre::testing {
namespace {

constexpr absl::Duration kLong = absl::Seconds(120);

struct Trained {
  v1::RunStatus run;
  // The last version in parameter order; empty if the run never averages.
  std::vector<float> weights;
};

absl::StatusOr<Trained> Train(const v1::RunSpec& spec) {
  Cluster cluster;
  CADRE_ASSIGN_OR_RETURN(const std::string run, cluster.StartRun(spec));
  CADRE_ASSIGN_OR_RETURN(const v1::StatusReply status, cluster.AwaitDone(run, kLong));
  Trained trained{.run = status.runs(0)};
  if (spec.cluster().aggregators() == 0) return trained;
  CADRE_ASSIGN_OR_RETURN(trained.weights, ReadStoredModel(cluster.folder(), status, spec));
  // The stored values are those of the committed version.
  EXPECT_EQ(DigestHex(Digest(trained.weights, 0)), trained.run.digest());
  return trained;
}

// Two groups that average after every step of plain SGD compute (w - r g1 + w - r g2) / 2. That is
// w - r (g1 + g2) / 2, the step of one group on both batches.
TEST(EqualityTest, AveragingEveryStepEqualsOneGroup) {
  constexpr uint32_t kSteps = 20;
  v1::RunSpec two = SmallSpec({.groups = 2, .ranks = 2, .every_steps = 1, .steps = kSteps});
  two.mutable_optimizer()->mutable_sgd()->set_momentum(0);
  two.mutable_optimizer()->mutable_sgd()->set_weight_decay(0.001);
  v1::RunSpec one = two;
  one.mutable_cluster()->set_groups(1);
  one.set_batch_per_group(2 * two.batch_per_group());

  const auto averaged = Train(two);
  ASSERT_TRUE(averaged.ok()) << averaged.status();
  const auto united = Train(one);
  ASSERT_TRUE(united.ok()) << united.status();
  ASSERT_EQ(averaged->weights.size(), united->weights.size());
  EXPECT_EQ(averaged->run.samples(), united->run.samples());
  EXPECT_EQ(averaged->run.rounds_committed(), kSteps);
  // Weights are below 1, and averaging rounds them to 2^-24 once or twice more in each of the 20
  // steps; gradients of slightly different weights differ as well. A group that is missing in one
  // average would change weights by the rate times a gradient, 1e-3 and more.
  EXPECT_LT(LargestDifference(averaged->weights, united->weights), 1e-5);
}

TEST(EqualityTest, AggregatorsKeepBits) {
  v1::RunSpec through = SmallSpec({.groups = 1, .ranks = 2, .every_steps = 3, .steps = 30});
  v1::RunSpec alone = through;
  alone.mutable_averaging()->set_every_steps(0);
  alone.mutable_cluster()->set_aggregators(0);

  const auto with = Train(through);
  ASSERT_TRUE(with.ok()) << with.status();
  const auto without = Train(alone);
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_EQ(with->run.rounds_committed(), 10U);
  EXPECT_EQ(without->run.rounds_committed(), 0U);
  EXPECT_EQ(with->run.digest(), without->run.digest());
  EXPECT_EQ(with->run.test().accuracy(), without->run.test().accuracy());
  EXPECT_EQ(with->run.test().loss(), without->run.test().loss());
}

// The ranks execute the plan of the coordinator.
TEST(EqualityTest, RecomputationKeepsBits) {
  v1::RunSpec spec = SmallSpec({.groups = 1, .ranks = 2, .every_steps = 100, .steps = 1000});
  spec.mutable_cluster()->set_keep_plan(true);
  std::string digests[2];
  for (const bool recomputes : {false, true}) {
    spec.mutable_cluster()->set_recompute(recomputes ? v1::Recomputation::ALL
                                                     : v1::Recomputation::OFF);
    Cluster cluster;
    const auto run = cluster.StartRun(spec);
    ASSERT_TRUE(run.ok()) << run.status();
    const auto training = cluster.Await(
        [](const v1::StatusReply& status) {
          return status.groups_size() == 1 && status.groups(0).step() > 0;
        },
        kLong, "a step");
    ASSERT_TRUE(training.ok()) << training.status();
    EXPECT_EQ(training->groups(0).plan().recomputed_size() > 0, recomputes);
    const auto done = cluster.AwaitDone(*run, kLong);
    ASSERT_TRUE(done.ok()) << done.status();
    digests[recomputes ? 1 : 0] = done->runs(0).digest();
  }
  EXPECT_EQ(digests[0], digests[1]);
}

// The version of a single group is its contribution, so what it merges with the version is what it
// has trained since.
TEST(EqualityTest, OverlapOfOneGroupChangesOnlyRounding) {
  const v1::RunSpec waiting = SmallSpec({.groups = 1, .ranks = 2, .every_steps = 5, .steps = 30});
  v1::RunSpec overlapping = waiting;
  overlapping.mutable_averaging()->mutable_overlap()->set_steps(3);
  const auto waited = Train(waiting);
  ASSERT_TRUE(waited.ok()) << waited.status();
  const auto overlapped = Train(overlapping);
  ASSERT_TRUE(overlapped.ok()) << overlapped.status();
  EXPECT_EQ(overlapped->run.rounds_committed(), 6U);
  EXPECT_EQ(overlapped->run.samples(), waited->run.samples());
  ASSERT_EQ(overlapped->weights.size(), waited->weights.size());
  // A step that was lost or counted twice would change weights by 1e-3 and more.
  EXPECT_LT(LargestDifference(overlapped->weights, waited->weights), 1e-5);
}

// The version of a single group is what it has learned, fragment by fragment, and the last round
// exchanges the whole model.
TEST(EqualityTest, FragmentsOfOneGroupKeepBits) {
  const v1::RunSpec whole = SmallSpec({.groups = 1, .ranks = 2, .every_steps = 6, .steps = 30});
  v1::RunSpec fragments = whole;
  fragments.mutable_averaging()->mutable_fragments()->set_count(3);
  const auto once = Train(whole);
  ASSERT_TRUE(once.ok()) << once.status();
  const auto in_turn = Train(fragments);
  ASSERT_TRUE(in_turn.ok()) << in_turn.status();
  EXPECT_EQ(in_turn->run.rounds_committed(), 15U);
  EXPECT_EQ(in_turn->run.samples(), once->run.samples());
  EXPECT_EQ(in_turn->run.digest(), once->run.digest());
  EXPECT_EQ(in_turn->run.test().accuracy(), once->run.test().accuracy());
}

// Groups adopt versions at fixed steps, however long the exchanges take: one rank a group makes the
// same model as two, and with coded rounds, equal runs have equal bits.
void ExpectRepeatable(v1::RunSpec spec, std::optional<float> blend = std::nullopt) {
  spec.mutable_cluster()->set_keep_plan(true);
  spec.mutable_averaging()->mutable_overlap()->set_steps(2);
  const auto exact = Train(spec);
  ASSERT_TRUE(exact.ok()) << exact.status();
  EXPECT_EQ(exact->run.rounds_committed(), 6U);
  v1::RunSpec smaller = spec;
  smaller.mutable_cluster()->set_ranks_per_group(1);
  const auto alone = Train(smaller);
  ASSERT_TRUE(alone.ok()) << alone.status();
  EXPECT_LT(LargestDifference(exact->weights, alone->weights), 1e-5);

  spec.mutable_averaging()->mutable_up()->set_codec(v1::CODEC_E3M0);
  spec.mutable_averaging()->mutable_down()->set_codec(v1::CODEC_E3M0);
  spec.mutable_averaging()->mutable_outer()->mutable_nesterov();
  if (blend) spec.mutable_averaging()->mutable_overlap()->set_blend(*blend);
  const auto first = Train(spec);
  ASSERT_TRUE(first.ok()) << first.status();
  const auto second = Train(spec);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(first->run.digest(), second->run.digest());
}

TEST(EqualityTest, OverlappingRunsAreEqual) {
  ExpectRepeatable(SmallSpec({.groups = 2, .ranks = 2, .every_steps = 4, .steps = 24}), 0.5F);
}

TEST(EqualityTest, RunsWithFragmentsAreEqual) {
  v1::RunSpec spec = SmallSpec({.groups = 2, .ranks = 2, .every_steps = 8, .steps = 24});
  spec.mutable_averaging()->mutable_fragments()->set_count(2);
  ExpectRepeatable(spec);
}

}  // namespace
}  // namespace cadre::testing
