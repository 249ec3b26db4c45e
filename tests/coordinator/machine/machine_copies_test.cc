// Copies of shards on other aggregators: commits that wait for them, copies that are behind, and
// shards that are restored from them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/coordinator/machine/restore_shard_test.h"

namespace cadre::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

class CopiesTest : public RestoreShardTest {
 protected:
  static v1::RunSpec Spec(uint32_t copies = 2) {
    v1::RunSpec spec = MakeSpec(2, 2, 5, 100);
    spec.mutable_averaging()->mutable_outer()->mutable_nesterov();
    spec.mutable_averaging()->set_copies(copies);
    return spec;
  }
  // Two shards and two groups of two workers; version 1 is committed.
  void Begin(const v1::RunSpec& spec) {
    run_ = SubmitTo(2, 4, spec);
    TrainBoth(run_);
    ASSERT_EQ(VersionOf(run_), 1u) << ReasonOf(run_);
  }
  std::vector<uint32_t> CopiesOf() {
    std::vector<uint32_t> versions;
    const v1::RunStatus run = cluster_.RunStatus(run_);
    for (const v1::ShardCopyStatus& copy : run.copies()) {
      versions.push_back(copy.version());
    }
    return versions;
  }
  // Whether a rank was requested to stage values again.
  bool Restaged() {
    for (const FakeWorker& worker : cluster_.workers()) {
      for (const v1::CoordinatorMessage& message : worker.received) {
        if (message.has_restage()) return true;
      }
    }
    return false;
  }

  std::string run_;
};

TEST_F(CopiesTest, EveryVersionIsCopied) {
  Begin(Spec());
  TrainBoth(run_);
  EXPECT_EQ(VersionOf(run_), 2u);
  EXPECT_THAT(CopiesOf(), ElementsAre(2, 2));
  EXPECT_EQ(cluster_.RunStatus(run_).copies(0).aggregator(), "agg-1");
  EXPECT_EQ(cluster_.RunStatus(run_).copies(1).aggregator(), "agg-0");
}

TEST_F(CopiesTest, RunBeginsWithTwoAggregators) {
  v1::RunSpec spec = Spec();
  spec.mutable_cluster()->clear_aggregators();
  run_ = SubmitTo(1, 4, spec);
  EXPECT_EQ(ReasonOf(run_), "waiting for aggregators: 1 of 2 connected");
  cluster_.AddAggregator("agg-1");
  TrainBoth(run_);
  EXPECT_EQ(VersionOf(run_), 1u);
}

TEST_F(CopiesTest, CommitWaitsForTheCopies) {
  Begin(Spec());
  cluster_.behaviour.slow_copies = {"agg-0", "agg-1"};
  TrainBoth(run_);
  EXPECT_EQ(VersionOf(run_), 1u);
  EXPECT_EQ(ReasonOf(run_), "version 2 waits for the copy of shard 0 on aggregator agg-1");
  cluster_.behaviour.slow_copies = {"agg-0"};
  cluster_.Reconnect(agg(1));
  EXPECT_EQ(ReasonOf(run_), "version 2 waits for the copy of shard 1 on aggregator agg-0");
  cluster_.behaviour.slow_copies.clear();
  cluster_.RestartCoordinator();
  EXPECT_EQ(VersionOf(run_), 2u);
}

TEST_F(CopiesTest, RunGoesOnWithoutASlowHolder) {
  Begin(Spec());
  cluster_.behaviour.slow_copies = {"agg-0", "agg-1"};
  TrainBoth(run_);
  EXPECT_EQ(VersionOf(run_), 1u);
  cluster_.Run(absl::Minutes(2) + absl::Seconds(5));
  EXPECT_EQ(VersionOf(run_), 2u);
  EXPECT_TRUE(HasEvent(v1::EVENT_KIND_SHARD_COPY,
                       "the copy of shard 0 on aggregator agg-1 is behind since version 2"));
  EXPECT_THAT(CopiesOf(), ElementsAre(1, 1));
  TrainBoth(run_);
  EXPECT_EQ(VersionOf(run_), 3u) << "it is not awaited again";
  cluster_.behaviour.slow_copies = {"agg-0"};
  cluster_.Reconnect(agg(1));
  EXPECT_THAT(CopiesOf(), ElementsAre(3, 1));
  EXPECT_TRUE(HasEvent(v1::EVENT_KIND_SHARD_COPY,
                       "the copy of shard 0 on aggregator agg-1 has the newest version again"));
}

TEST_F(CopiesTest, CommitWaitsForAHolderThatIsAway) {
  Begin(Spec());
  cluster_.behaviour.slow_copies = {"agg-0", "agg-1"};
  TrainBoth(run_);
  cluster_.Kill(agg(1));
  cluster_.behaviour.slow_copies.clear();
  cluster_.Run(absl::Minutes(3));
  EXPECT_EQ(VersionOf(run_), 1u) << "the shard of the holder may be lost, too";
  cluster_.Wipe(agg(1));
  EXPECT_EQ(VersionOf(run_), 2u) << ReasonOf(run_);
  EXPECT_THAT(CopiesOf(), ElementsAre(2, 2));
}

TEST_F(CopiesTest, LostShardIsRestoredFromItsCopy) {
  Begin(Spec());
  cluster_.behaviour.slow_copies = {"agg-0", "agg-1"};
  cluster_.Wipe(agg(0));
  EXPECT_EQ(ReasonOf(run_), "shard 0 on agg-0 is being restored from the copy on agg-1");
  cluster_.behaviour.slow_copies.clear();
  cluster_.Reconnect(agg(1));
  ExpectRestored(run_);
  EXPECT_FALSE(Restaged());
  EXPECT_THAT(cluster_.RunStatus(run_).warnings(), IsEmpty());
  TrainBoth(run_);
  EXPECT_EQ(VersionOf(run_), 2u);
  EXPECT_THAT(CopiesOf(), ElementsAre(2, 2)) << "the copy on the lost disk is made again";
}

// What it has made of the round can be made again, from the version before, also by the mean alone.
TEST_F(CopiesTest, ShardIsLostBeforeTheCopyOfTheClosingRound) {
  v1::RunSpec plain = Spec();
  plain.mutable_averaging()->clear_outer();
  uint32_t version = 0;
  for (const v1::RunSpec& spec : {Spec(), plain}) {
    run_ = version == 0 ? SubmitTo(2, 4, spec) : cluster_.Submit(spec);
    TrainBoth(run_);
    cluster_.behaviour.slow_copies = {"agg-0", "agg-1"};
    TrainBoth(run_);
    ASSERT_EQ(VersionOf(run_), version = 1u);
    cluster_.behaviour.slow_copies.clear();
    cluster_.Wipe(agg(0));
    EXPECT_EQ(VersionOf(run_), 2u) << ReasonOf(run_);
    EXPECT_EQ(RunStateOf(run_), v1::RUN_STATE_RUNNING);
    cluster_.StopRun(run_);
  }
}

TEST_F(CopiesTest, ShardIsLostAfterTheCopyOfTheClosingRound) {
  Begin(Spec());
  cluster_.behaviour.slow_copies = {"agg-0", "agg-1"};
  TrainBoth(run_);
  cluster_.behaviour.slow_copies = {"agg-0"};
  cluster_.Reconnect(agg(1));
  ASSERT_EQ(ReasonOf(run_), "version 2 waits for the copy of shard 1 on aggregator agg-0");
  cluster_.behaviour.slow_copies.clear();
  // No group takes part in what follows.
  for (FakeWorker& worker : cluster_.workers()) cluster_.Kill(worker);
  cluster_.Wipe(agg(0));
  EXPECT_EQ(VersionOf(run_), 2u) << ReasonOf(run_);
  EXPECT_FALSE(Restaged());
}

TEST_F(CopiesTest, LostShardWaitsForTheHolderOfItsCopy) {
  Begin(Spec());
  cluster_.Kill(agg(1));
  cluster_.Wipe(agg(0));
  EXPECT_THAT(ReasonOf(run_), StartsWith("waiting for aggregator agg-1, away for "));
  EXPECT_FALSE(Restaged());
  agg(1).alive = true;
  cluster_.Restart(agg(1));
  ExpectRestored(run_);
  EXPECT_FALSE(Restaged());
}

TEST_F(CopiesTest, SeedIfTheCopyIsLostAsWell) {
  Begin(Spec());
  cluster_.Kill(agg(1));
  cluster_.Wipe(agg(0));
  agg(1).copies.clear();
  agg(1).alive = true;
  cluster_.Restart(agg(1));
  ExpectRestored(run_);
  EXPECT_TRUE(Restaged());
  EXPECT_THAT(cluster_.RunStatus(run_).warnings(),
              ElementsAre(HasSubstr("the momentum of the outer optimizer begins with zeros")));
}

TEST_F(CopiesTest, LateAnswerToACopyOrderIsNoFailureOfAnotherSource) {
  Begin(Spec());
  cluster_.behaviour.restage = false;
  cluster_.Kill(agg(1));
  cluster_.Wipe(agg(0));
  agg(1).copies.clear();
  agg(1).alive = true;
  cluster_.Restart(agg(1));
  EXPECT_EQ(ReasonOf(run_), "shard 0 on agg-0 is being restored from group 0");
  v1::Applied late;
  late.set_run(run_);
  late.set_round(VersionOf(run_));
  late.set_error("the copy is damaged");
  late.set_from_copy(true);
  cluster_.Send(agg(0), late);
  EXPECT_EQ(ReasonOf(run_), "shard 0 on agg-0 is being restored from group 0");
}

TEST_F(CopiesTest, WithoutCopiesAWarningNamesTheLostStates) {
  Begin(Spec(/*copies=*/1));
  cluster_.Wipe(agg(0));
  ExpectRestored(run_);
  EXPECT_THAT(CopiesOf(), IsEmpty());
  EXPECT_THAT(cluster_.RunStatus(run_).warnings(),
              ElementsAre("shard 0 on aggregator agg-0 was restored at version 1 without its "
                          "states: the momentum of the outer optimizer begins with zeros; "
                          "averaging.copies: 2 keeps a copy"));
  EXPECT_TRUE(HasEvent(v1::EVENT_KIND_RUN_WARNING, "begins with zeros"));
}

}  // namespace
}  // namespace cadre::testing
