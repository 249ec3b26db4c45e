// Shards that move with their copies: those of aggregators that hang, or are drained and away.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "tests/coordinator/machine/moves_test.h"

namespace cadre::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class MovesFromCopiesTest : public MovesTest {};

TEST_F(MovesFromCopiesTest, CopiesOfShardsFollow) {
  Begin(/*copies=*/2);
  Drain("agg-0");
  TrainBoth(run_);
  TrainBoth(run_);
  EXPECT_EQ(VersionOf(run_), 3u) << ReasonOf(run_);
  ExpectMoved();
  const v1::RunStatus run = cluster_.RunStatus(run_);
  ASSERT_EQ(run.copies_size(), 2);
  EXPECT_EQ(run.copies(1).aggregator(), "agg-2");
  EXPECT_EQ(run.copies(0).version(), 3u);
  EXPECT_EQ(run.copies(1).version(), 3u);
  cluster_.Wipe(agg(2));
  ExpectRestored(run_);
  EXPECT_THAT(cluster_.RunStatus(run_).warnings(), IsEmpty()) << "from the copy, with its states";
}

// A disk hangs while a round is applied.
TEST_F(MovesFromCopiesTest, HungShardContinuesFromItsCopy) {
  Begin(/*copies=*/2);
  cluster_.behaviour.hung = {"agg-0"};
  TrainBoth(run_);
  cluster_.Run(absl::Seconds(25));
  EXPECT_EQ(VersionOf(run_), 1u);
  EXPECT_THAT(Shards(), ElementsAre("agg-0", "agg-1"));
  cluster_.Run(absl::Seconds(10));
  EXPECT_EQ(VersionOf(run_), 2u) << ReasonOf(run_);
  EXPECT_THAT(Shards(), ElementsAre("agg-2", "agg-1"));
  EXPECT_TRUE(HasEvent(v1::EVENT_KIND_SHARD_MOVE,
                       "shard 0 moves from aggregator agg-0, which does not carry out its orders, "
                       "to agg-2, from the copy on agg-1"));
  EXPECT_TRUE(HasEvent(v1::EVENT_KIND_SHARD_MOVE,
                       "shard 0 has moved from aggregator agg-0 to agg-2, with version 1 of its "
                       "copy"));
  EXPECT_EQ(cluster_.Counter("shards_lost"), 0u);
  EXPECT_THAT(cluster_.RunStatus(run_).warnings(), IsEmpty());
  // Its late answer has no effect.
  v1::Applied late;
  late.set_run(run_);
  late.set_round(2);
  late.set_digest(12345);
  cluster_.Send(agg(0), late);
  EXPECT_EQ(cluster_.Counter("refused_malformed"), 1u);
  TrainBoth(run_);
  EXPECT_EQ(VersionOf(run_), 3u) << ReasonOf(run_);
  ExpectNoneEnded();
  cluster_.behaviour.hung.clear();
  cluster_.Reconnect(agg(0));
  EXPECT_FALSE(Stores(0));
  EXPECT_THAT(cluster_.StoredRun(run_).leaving(), IsEmpty());
}

TEST_F(MovesFromCopiesTest, HungShardWithoutACopyOrAnotherAggregatorWaits) {
  for (const uint32_t copies : {1, 2}) {
    v1::RunSpec spec = MakeSpec(2, 1, 5, 100);
    spec.mutable_averaging()->set_copies(copies);
    if (copies == 2) cluster_.Cordon("agg-2");
    run_ = copies == 1 ? SubmitTo(2, 4, spec) : cluster_.Submit(spec);
    TrainBoth(run_);
    if (copies == 1) cluster_.AddAggregator("agg-2");
    cluster_.behaviour.hung = {"agg-0"};
    TrainBoth(run_);
    cluster_.Run(absl::Minutes(2));
    EXPECT_EQ(VersionOf(run_), 1u);
    EXPECT_THAT(Shards(), ElementsAre("agg-0", "agg-1"));
    EXPECT_THAT(ReasonOf(run_), HasSubstr("aggregator agg-0 has not applied round 2"));
    if (copies == 2) {
      EXPECT_THAT(ReasonOf(run_),
                  HasSubstr("; shard 0 cannot continue from its copy: no other aggregator can take "
                            "it: aggregator agg-2 is cordoned"));
    }
    cluster_.behaviour.hung.clear();
    cluster_.Reconnect(agg(0));
    EXPECT_EQ(VersionOf(run_), 2u);
    cluster_.StopRun(run_);
  }
}

// What depends on the copy alone until then: the former aggregator keeps its files, and the run
// goes on with them if its disk answers.
TEST_F(MovesFromCopiesTest, HungShardReturnsBeforeItsCopyIsFetched) {
  Begin(/*copies=*/2);
  cluster_.behaviour.hung = {"agg-0"};
  cluster_.behaviour.slow_copies = {"agg-2"};
  TrainBoth(run_);
  cluster_.Run(absl::Seconds(35));
  EXPECT_THAT(Shards(), ElementsAre("agg-0", "agg-1"));
  EXPECT_THAT(ReasonOf(run_), HasSubstr("; shard 0 moves to aggregator agg-2 from its copy"));
  EXPECT_TRUE(Stores(0));
  cluster_.behaviour.hung.clear();
  cluster_.Reconnect(agg(0));
  EXPECT_EQ(VersionOf(run_), 2u) << ReasonOf(run_);
  EXPECT_THAT(Shards(), ElementsAre("agg-0", "agg-1"));
  EXPECT_TRUE(HasEvent(v1::EVENT_KIND_SHARD_MOVE, "the aggregator has carried out its orders"));
  EXPECT_FALSE(Stores(2));
  TrainBoth(run_);
  EXPECT_EQ(VersionOf(run_), 3u) << ReasonOf(run_);
  ExpectNoneEnded();
}

// Only the former aggregator has the contribution of a group whose worker is away.
TEST_F(MovesFromCopiesTest, HungShardWithTheValuesOfLostRanksWaits) {
  Begin(/*copies=*/2);
  cluster_.behaviour.hung = {"agg-0"};
  TrainBoth(run_);
  cluster_.Run(absl::Seconds(25));
  cluster_.Kill(cluster_.workers()[0]);
  cluster_.Run(absl::Seconds(35));
  EXPECT_THAT(Shards(), ElementsAre("agg-0", "agg-1"));
  EXPECT_EQ(RunStateOf(run_), v1::RUN_STATE_RUNNING) << ReasonOf(run_);
  cluster_.behaviour.hung.clear();
  cluster_.Reconnect(agg(0));
  EXPECT_EQ(VersionOf(run_), 2u) << ReasonOf(run_);
  EXPECT_EQ(cluster_.Counter("shards_lost"), 0u);
}

TEST_F(MovesFromCopiesTest, TargetOfAHungShardIsReplaced) {
  Begin(/*copies=*/2);
  cluster_.AddAggregator("agg-3");
  cluster_.behaviour.hung = {"agg-0"};
  cluster_.behaviour.open_error = "there is too little space";
  cluster_.behaviour.open_error_of = "agg-2";
  TrainBoth(run_);
  cluster_.Run(absl::Seconds(35));
  EXPECT_EQ(RunStateOf(run_), v1::RUN_STATE_RUNNING) << ReasonOf(run_);
  EXPECT_EQ(VersionOf(run_), 2u) << ReasonOf(run_);
  EXPECT_THAT(Shards(), ElementsAre("agg-3", "agg-1"));
  EXPECT_FALSE(Stores(2));
  ExpectNoneEnded();
}

// An aggregator that is only slow would be left again and again, and no round would be applied.
TEST_F(MovesFromCopiesTest, ShardContinuesFromItsCopyOnceInARound) {
  Begin(/*copies=*/2);
  cluster_.AddAggregator("agg-3");
  cluster_.behaviour.hung = {"agg-0"};
  cluster_.behaviour.slow_copies = {"agg-2"};
  TrainBoth(run_);
  cluster_.Run(absl::Seconds(35));
  cluster_.behaviour.slow_copies.clear();
  cluster_.behaviour.apply = false;
  cluster_.Reconnect(agg(2));
  ASSERT_THAT(Shards(), ElementsAre("agg-2", "agg-1")) << ReasonOf(run_);
  cluster_.Run(absl::Minutes(5));
  EXPECT_THAT(Shards(), ElementsAre("agg-2", "agg-1"));
  EXPECT_THAT(ReasonOf(run_), HasSubstr("aggregator agg-2 has not applied round 2"));
  cluster_.behaviour.apply = true;
  cluster_.Reconnect(agg(2));
  EXPECT_EQ(VersionOf(run_), 2u) << ReasonOf(run_);
  ExpectNoneEnded();
}

TEST_F(MovesFromCopiesTest, AggregatorThatVerifiesItsFilesIsNotLeft) {
  Begin(/*copies=*/2);
  cluster_.behaviour.open = false;
  cluster_.Reconnect(agg(0));
  cluster_.Run(absl::Minutes(5));
  EXPECT_THAT(Shards(), ElementsAre("agg-0", "agg-1"));
  EXPECT_THAT(ReasonOf(run_), HasSubstr("aggregator agg-0 has not opened shard 0"));
}

TEST_F(MovesFromCopiesTest, DrainedAggregatorThatIsAwayIsLeftWithACopy) {
  for (const uint32_t copies : {1, 2}) {
    if (copies == 1) {
      Begin(copies);
    } else {
      v1::RunSpec spec = MakeSpec(2, 2, 5, 1000);
      spec.mutable_averaging()->set_copies(2);
      spec.mutable_cluster()->set_aggregators(2);
      cluster_.Cordon("agg-2");
      run_ = cluster_.Submit(spec);
      TrainBoth(run_);
      cluster_.Cordon("agg-2", /*undo=*/true);
    }
    cluster_.Kill(agg(0));
    cluster_.Run(absl::Minutes(1));
    EXPECT_THAT(Shards(), ElementsAre("agg-0", "agg-1")) << "it may return";
    Drain("agg-0");
    EXPECT_THAT(Shards()[0], copies == 1 ? "agg-0" : "agg-2") << ReasonOf(run_);
    if (copies == 1) {
      agg(0).alive = true;
      cluster_.Restart(agg(0));
      cluster_.Cordon("agg-0", /*undo=*/true);
      cluster_.StopRun(run_);
    }
  }
  TrainBoth(run_);
  EXPECT_EQ(VersionOf(run_), 2u) << ReasonOf(run_);
  agg(0).alive = true;
  cluster_.Restart(agg(0));
  EXPECT_FALSE(Stores(0));
  EXPECT_THAT(cluster_.StoredRun(run_).leaving(), IsEmpty());
}

// What the copy has is not known until its holder has returned.
TEST_F(MovesFromCopiesTest, CoordinatorRestartsWhileTheFormerAggregatorIsLost) {
  Begin(/*copies=*/2);
  cluster_.Kill(agg(0));
  cluster_.Run(absl::Minutes(1));
  cluster_.behaviour.slow_copies = {"agg-2"};
  Drain("agg-0");
  EXPECT_TRUE(cluster_.StoredRun(run_).move().from_copy());
  cluster_.RestartCoordinator();
  cluster_.Run(absl::Seconds(5));
  EXPECT_TRUE(cluster_.StoredRun(run_).move().from_copy()) << ReasonOf(run_);
  cluster_.behaviour.slow_copies.clear();
  cluster_.Reconnect(agg(2));
  cluster_.Run(absl::Seconds(5));
  EXPECT_THAT(Shards(), ElementsAre("agg-2", "agg-1")) << ReasonOf(run_);
  TrainBoth(run_);
  EXPECT_EQ(VersionOf(run_), 2u) << ReasonOf(run_);
}

// A shard that is ordered to be hollow would discard what groups have contributed since.
TEST_F(MovesFromCopiesTest, TargetThatHasTheVersionKeepsIt) {
  Begin(/*copies=*/2);
  cluster_.Kill(agg(0));
  cluster_.Run(absl::Minutes(1));
  cluster_.behaviour.slow_copies = {"agg-2"};
  Drain("agg-0");
  const std::map<std::string, std::string> older = cluster_.store();
  ASSERT_TRUE(cluster_.StoredRun(run_).move().from_copy());
  cluster_.behaviour.slow_copies.clear();
  cluster_.Reconnect(agg(2));
  cluster_.Run(absl::Seconds(5));
  ASSERT_THAT(Shards(), ElementsAre("agg-2", "agg-1")) << ReasonOf(run_);
  agg(2).received.clear();
  cluster_.RollBackStore(older);
  ASSERT_THAT(Shards(), ElementsAre("agg-2", "agg-1")) << ReasonOf(run_);
  for (const v1::CoordinatorMessage& message : agg(2).received) {
    EXPECT_FALSE(message.open_run().has_hollow()) << message.ShortDebugString();
  }
  cluster_.Run(absl::Seconds(5));
  TrainBoth(run_);
  EXPECT_EQ(VersionOf(run_), 2u) << ReasonOf(run_);
  EXPECT_EQ(cluster_.Counter("refused_wrong_digest"), 0u);
}

// Every transaction of a move from a hung aggregator leaves a state from which the run continues.
TEST_F(MovesFromCopiesTest, CoordinatorCrashesWhileAShardContinuesFromItsCopy) {
  Begin(/*copies=*/2);
  for (int n = 1; n <= 10; ++n) {
    const std::string from = Shards()[0];
    const uint32_t version = VersionOf(run_);
    cluster_.behaviour.hung = {from};
    TrainBoth(run_);
    cluster_.CrashAfterTransaction(n);
    cluster_.Run(absl::Minutes(1));
    cluster_.RestartCoordinator();
    cluster_.Run(absl::Minutes(1));
    cluster_.behaviour.hung.clear();
    for (FakeAggregator& aggregator : cluster_.aggregators()) {
      if (aggregator.name == from) cluster_.Reconnect(aggregator);
    }
    EXPECT_GT(VersionOf(run_), version) << "crash " << n << ": " << ReasonOf(run_);
    EXPECT_EQ(Stores(0) + Stores(1) + Stores(2), 2) << "crash " << n;
    EXPECT_THAT(cluster_.StoredRun(run_).leaving(), IsEmpty()) << "crash " << n;
  }
  EXPECT_EQ(RunStateOf(run_), v1::RUN_STATE_RUNNING) << ReasonOf(run_);
}

}  // namespace
}  // namespace cadre::testing
