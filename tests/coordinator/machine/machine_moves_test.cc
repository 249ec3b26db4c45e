// Shards that move from aggregators that are drained to others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/coordinator/machine/moves_test.h"

namespace cadre::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

TEST_F(MovesTest, ShardMovesWithTheNextVersion) {
  Begin();
  Drain("agg-0");
  EXPECT_EQ(Move().to(), "agg-2");
  EXPECT_EQ(Move().reason(), "it moves with version 2");
  EXPECT_THAT(Shards(), ElementsAre("agg-0", "agg-1")) << "until then, agg-0 serves it";
  TrainBoth(run_);
  EXPECT_EQ(VersionOf(run_), 2u) << ReasonOf(run_);
  ExpectMoved();
  EXPECT_TRUE(HasEvent(v1::EVENT_KIND_SHARD_MOVE,
                       "shard 0 has moved from aggregator agg-0 to agg-2, with version 2"));
  TrainBoth(run_);
  EXPECT_EQ(VersionOf(run_), 3u) << ReasonOf(run_);
  ExpectNoneEnded();
}

// So no group contributes to an aggregator that has lost the shard.
TEST_F(MovesTest, GroupsKnowTheAddressBeforeTheDecision) {
  Begin();
  Drain("agg-0");
  const size_t before = cluster_.Lead(run_, 0).received.size();
  TrainBoth(run_);
  std::vector<std::string> order;
  const auto& received = cluster_.Lead(run_, 0).received;
  for (size_t i = before; i < received.size(); ++i) {
    if (received[i].has_decision()) order.push_back("decision");
    if (received[i].has_shard_addresses()) {
      order.push_back(received[i].shard_addresses().shards(0).name());
    }
  }
  EXPECT_THAT(order, ElementsAre("agg-2", "decision"));
}

TEST_F(MovesTest, CommitWaitsForTheTarget) {
  Begin();
  Drain("agg-0");
  cluster_.behaviour.slow_copies = {"agg-2"};
  TrainBoth(run_);
  EXPECT_EQ(VersionOf(run_), 1u);
  EXPECT_EQ(ReasonOf(run_), "version 2 waits for the move of shard 0 to aggregator agg-2");
  EXPECT_EQ(Move().reason(), "it fetches version 2");
  cluster_.behaviour.slow_copies.clear();
  cluster_.Reconnect(agg(2));
  EXPECT_EQ(VersionOf(run_), 2u) << ReasonOf(run_);
  TrainBoth(run_);
  ExpectMoved();
  ExpectNoneEnded();
}

TEST_F(MovesTest, SlowTargetIsGivenUp) {
  Begin();
  Drain("agg-0");
  cluster_.behaviour.slow_copies = {"agg-2"};
  TrainBoth(run_);
  cluster_.Run(absl::Minutes(2) + absl::Seconds(5));
  EXPECT_EQ(VersionOf(run_), 2u) << ReasonOf(run_);
  EXPECT_THAT(Shards(), ElementsAre("agg-0", "agg-1"));
  EXPECT_TRUE(HasEvent(v1::EVENT_KIND_SHARD_MOVE,
                       "the move of shard 0 from aggregator agg-0 to agg-2 is undone: it is too "
                       "slow: it has not copied version 2 of shard 0, which moves to it"));
  EXPECT_EQ(Move().to(), "");
  EXPECT_EQ(Move().reason(),
            "no other aggregator can take it: aggregator agg-2 has recently failed to take it");
  // It is tried again.
  cluster_.behaviour.slow_copies.clear();
  cluster_.Run(absl::Minutes(11));
  TrainBoth(run_);
  EXPECT_EQ(VersionOf(run_), 3u);
  ExpectMoved();
  ExpectNoneEnded();
}

TEST_F(MovesTest, WithoutAnotherAggregatorItWaits) {
  Begin();
  cluster_.Cordon("agg-2");
  Drain("agg-0");
  EXPECT_EQ(Move().to(), "");
  EXPECT_EQ(Move().reason(), "no other aggregator can take it: aggregator agg-2 is cordoned");
  TrainBoth(run_);
  EXPECT_EQ(VersionOf(run_), 2u);
  cluster_.AddAggregator("agg-3");
  EXPECT_EQ(Move().to(), "agg-3");
  TrainBoth(run_);
  EXPECT_THAT(Shards(), ElementsAre("agg-3", "agg-1"));
  ExpectNoneEnded();
}

TEST_F(MovesTest, TargetWithTooLittleSpaceIsNotChosenAgain) {
  Begin();
  cluster_.AddAggregator("agg-3");
  cluster_.behaviour.open_error = "there is too little space";
  cluster_.behaviour.open_error_of = "agg-2";
  Drain("agg-0");
  EXPECT_TRUE(HasEvent(v1::EVENT_KIND_SHARD_MOVE, "is undone: there is too little space"));
  EXPECT_EQ(Move().to(), "agg-3");
  EXPECT_FALSE(Stores(2));
  TrainBoth(run_);
  EXPECT_THAT(Shards(), ElementsAre("agg-3", "agg-1"));
  ExpectNoneEnded();
}

TEST_F(MovesTest, UndoEndsTheMove) {
  Begin();
  Drain("agg-0");
  EXPECT_TRUE(Stores(2));
  cluster_.Cordon("agg-0", /*undo=*/true);
  EXPECT_FALSE(Stores(2)) << "the target removes what it has";
  EXPECT_FALSE(StatusOf("agg-0").draining());
  EXPECT_THAT(StatusOf("agg-0").moves(), IsEmpty());
  TrainBoth(run_);
  EXPECT_EQ(VersionOf(run_), 2u);
  EXPECT_THAT(Shards(), ElementsAre("agg-0", "agg-1"));
  EXPECT_THAT(cluster_.StoredRun(run_).leaving(), IsEmpty());
}

TEST_F(MovesTest, MoveMayBeUndoneSeveralTimes) {
  Begin();
  for (int i = 0; i < 3; ++i) {
    Drain("agg-0");
    EXPECT_TRUE(Stores(2)) << i;
    cluster_.Cordon("agg-0", /*undo=*/true);
    EXPECT_FALSE(Stores(2)) << i;
    EXPECT_THAT(cluster_.StoredRun(run_).leaving(), IsEmpty()) << i;
  }
}

// Its new aggregator has no older versions.
TEST_F(MovesTest, VersionsBeforeTheMoveAreNotRolledBackTo) {
  Begin();
  TrainBoth(run_);
  cluster_.behaviour.open = false;
  Drain("agg-0");
  cluster_.behaviour.open = true;
  cluster_.Reconnect(agg(2));
  TrainBoth(run_);
  TrainBoth(run_);
  ExpectMoved();
  const uint32_t version = VersionOf(run_);
  cluster_.RollBackRun(run_, version - 2);
  EXPECT_FALSE(cluster_.last_status.ok());
  TrainBoth(run_);
  EXPECT_EQ(VersionOf(run_), version + 1) << ReasonOf(run_);
}

TEST_F(MovesTest, TargetThatIsAwayIsNotAwaited) {
  Begin();
  Drain("agg-0");
  cluster_.Kill(agg(2));
  TrainBoth(run_);
  EXPECT_EQ(VersionOf(run_), 2u) << ReasonOf(run_);
  EXPECT_EQ(Move().reason(), "aggregator agg-2 is away");
  agg(2).alive = true;
  cluster_.Restart(agg(2));
  TrainBoth(run_);
  EXPECT_EQ(VersionOf(run_), 3u);
  ExpectMoved();
  ExpectNoneEnded();
}

// The run waits for it as without a drain, and the shard moves afterwards.
TEST_F(MovesTest, SourceIsLostDuringTheMove) {
  Begin();
  Drain("agg-0");
  cluster_.behaviour.slow_copies = {"agg-2"};
  TrainBoth(run_);
  cluster_.Kill(agg(0));
  EXPECT_EQ(VersionOf(run_), 2u) << ReasonOf(run_);
  EXPECT_THAT(ReasonOf(run_), HasSubstr("waiting for aggregator agg-0"));
  cluster_.behaviour.slow_copies.clear();
  agg(0).alive = true;
  cluster_.Restart(agg(0));
  TrainBoth(run_);
  EXPECT_EQ(VersionOf(run_), 3u) << ReasonOf(run_);
  ExpectMoved();
  ExpectNoneEnded();
}

TEST_F(MovesTest, ShardsMoveOneAfterTheOther) {
  Begin();
  cluster_.AddAggregator("agg-3");
  Drain("agg-0");
  Drain("agg-1");
  EXPECT_EQ(StatusOf("agg-1").moves(0).reason(), "another shard of the run moves first");
  TrainBoth(run_);
  TrainBoth(run_);
  EXPECT_EQ(VersionOf(run_), 3u) << ReasonOf(run_);
  EXPECT_THAT(Shards(), Not(::testing::Contains(::testing::AnyOf("agg-0", "agg-1"))));
  ExpectNoneEnded();
}

TEST_F(MovesTest, ShardsOfSeveralRunsMoveToSeveralAggregators) {
  Begin();
  cluster_.Cordon("agg-2", /*undo=*/false);
  cluster_.AddWorkers(4);
  const std::string other = cluster_.Submit(MakeSpec(2, 2, 5, 1000));
  TrainBoth(other);
  ASSERT_EQ(VersionOf(other), 1u) << ReasonOf(other);
  cluster_.Cordon("agg-2", /*undo=*/true);
  cluster_.AddAggregator("agg-3");
  Drain("agg-0");
  std::vector<std::string> targets;
  const v1::AggregatorStatus status = StatusOf("agg-0");
  for (const v1::ShardMove& move : status.moves()) targets.push_back(move.to());
  EXPECT_THAT(targets, UnorderedElementsAre("agg-2", "agg-3"));
}

TEST_F(MovesTest, MovesWhileNoGroupTrains) {
  Begin();
  for (FakeWorker& worker : cluster_.workers()) cluster_.Kill(worker);
  ASSERT_TRUE(cluster_.RunUntil([&] {
    return StateOf(run_, 0) == v1::GROUP_STATE_WAITING &&
           StateOf(run_, 1) == v1::GROUP_STATE_WAITING;
  }));
  Drain("agg-0");
  ExpectMoved();
  EXPECT_EQ(VersionOf(run_), 1u);
  cluster_.AddWorkers(4);
  TrainBoth(run_);
  EXPECT_EQ(VersionOf(run_), 2u) << ReasonOf(run_);
}

TEST_F(MovesTest, RunEndsDuringTheMove) {
  Begin();
  Drain("agg-0");
  EXPECT_TRUE(Stores(2));
  cluster_.StopRun(run_);
  EXPECT_FALSE(Stores(2));
  EXPECT_TRUE(Stores(0)) << "it has the model";
  EXPECT_THAT(StatusOf("agg-0").moves(), IsEmpty());
  Drain("agg-0");
  EXPECT_THAT(cluster_.last_sole_models, ElementsAre(run_));
  cluster_.Cordon("agg-2");
  EXPECT_THAT(cluster_.last_sole_models, IsEmpty());
}

// A round is left without the move, rather than a group without its version.
TEST_F(MovesTest, GroupThatLoadsAnOlderVersionPostponesTheMove) {
  v1::RunSpec spec = MakeSpec(2, 1, 5, 200);
  spec.mutable_averaging()->set_quorum(1);
  spec.mutable_averaging()->set_min_grace_ms(1);
  run_ = SubmitTo(2, 2, spec);
  TrainBoth(run_);
  cluster_.AddAggregator("agg-2");
  cluster_.behaviour.slow_pulls = {1};
  TrainBoth(run_);
  ASSERT_EQ(VersionOf(run_), 2u) << ReasonOf(run_);
  Drain("agg-0");
  EXPECT_EQ(Move().reason(), "group 1 loads an older version");
  Train(run_, 0);
  ASSERT_TRUE(cluster_.RunUntil([&] { return VersionOf(run_) == 3; }));
  EXPECT_THAT(Shards(), ElementsAre("agg-0", "agg-1"));
  cluster_.behaviour.slow_pulls.clear();
  cluster_.Reconnect(cluster_.Lead(run_, 1));
  TrainBoth(run_);
  ASSERT_TRUE(cluster_.RunUntil([&] { return VersionOf(run_) >= 4; }));
  TrainBoth(run_);
  ASSERT_TRUE(cluster_.RunUntil([&] { return VersionOf(run_) >= 5; }));
  ExpectMoved();
  ExpectNoneEnded();
}

TEST_F(MovesTest, OnlyAggregatorIsNotDrained) {
  run_ = SubmitTo(1, 1, MakeSpec(1, 1, 5, 100));
  Train(run_, 0);
  EXPECT_THAT(cluster_.Cordon("agg-0", /*undo=*/false, /*drain=*/true), IsEmpty());
  EXPECT_EQ(cluster_.last_status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(
      cluster_.last_status.message(),
      HasSubstr("no other aggregator can take the shards of live runs that 'agg-0' stores"));
  EXPECT_FALSE(StatusOf("agg-0").draining());
  EXPECT_FALSE(StatusOf("agg-0").member().cordoned());
  cluster_.AddAggregator("agg-1");
  Drain("agg-0");
  Train(run_, 0);
  EXPECT_THAT(Shards(), ElementsAre("agg-1"));
  EXPECT_EQ(VersionOf(run_), 2u) << ReasonOf(run_);
}

// The commits go on without it.
TEST_F(MovesTest, TargetThatDoesNotOpenTheShardIsGivenUp) {
  Begin();
  cluster_.behaviour.hung = {"agg-2"};
  Drain("agg-0");
  EXPECT_EQ(Move().reason(), "its new aggregator opens it");
  TrainBoth(run_);
  EXPECT_EQ(VersionOf(run_), 2u) << ReasonOf(run_);
  cluster_.Run(absl::Seconds(35));
  EXPECT_THAT(ReasonOf(run_), HasSubstr("aggregator agg-2 has not opened shard 0"));
  cluster_.AddAggregator("agg-3");
  cluster_.Run(absl::Minutes(2));
  EXPECT_TRUE(
      HasEvent(v1::EVENT_KIND_SHARD_MOVE, "is undone: it is too slow: it has not opened shard 0"));
  EXPECT_EQ(Move().to(), "agg-3");
  TrainBoth(run_);
  EXPECT_EQ(VersionOf(run_), 3u) << ReasonOf(run_);
  EXPECT_THAT(Shards(), ElementsAre("agg-3", "agg-1"));
  ExpectNoneEnded();
}

TEST_F(MovesTest, BothAggregatorsAreLostDuringTheMove) {
  Begin();
  Drain("agg-0");
  cluster_.behaviour.slow_copies = {"agg-2"};
  TrainBoth(run_);
  cluster_.Kill(agg(0));
  cluster_.Kill(agg(2));
  cluster_.behaviour.slow_copies.clear();
  for (const int i : {2, 0}) {
    agg(i).alive = true;
    cluster_.Restart(agg(i));
  }
  EXPECT_EQ(VersionOf(run_), 2u) << ReasonOf(run_);
  TrainBoth(run_);
  EXPECT_EQ(VersionOf(run_), 3u) << ReasonOf(run_);
  ExpectMoved();
  ExpectNoneEnded();
}

// Another process with the name of the target, and an empty disk.
TEST_F(MovesTest, TargetLosesItsDisk) {
  Begin();
  Drain("agg-0");
  cluster_.Wipe(agg(2));
  TrainBoth(run_);
  EXPECT_EQ(VersionOf(run_), 2u) << ReasonOf(run_);
  ExpectMoved();
  ExpectNoneEnded();
}

// The disk of the source is lost while its shard is to move: it is restored there, and moves then.
TEST_F(MovesTest, SourceLosesItsDisk) {
  Begin();
  Drain("agg-0");
  cluster_.Wipe(agg(0));
  ExpectRestored(run_);
  TrainBoth(run_);
  TrainBoth(run_);
  EXPECT_EQ(VersionOf(run_), 3u) << ReasonOf(run_);
  EXPECT_THAT(Shards(), ElementsAre("agg-2", "agg-1"));
  EXPECT_FALSE(Stores(0));
}

// It remains drained, and its files need not exist any more.
TEST_F(MovesTest, FormerAggregatorReturnsWithAnotherDisk) {
  Begin();
  Drain("agg-0");
  cluster_.behaviour.hung = {"agg-0"};
  cluster_.behaviour.apply = false;
  TrainBoth(run_);
  cluster_.behaviour.hung.clear();
  cluster_.behaviour.apply = true;
  cluster_.Reconnect(agg(0));
  cluster_.Reconnect(agg(1));
  cluster_.Kill(agg(0));
  TrainBoth(run_);
  cluster_.RestartCoordinator();
  cluster_.Wipe(agg(0));
  TrainBoth(run_);
  EXPECT_GE(VersionOf(run_), 3u) << ReasonOf(run_);
  EXPECT_THAT(Shards(), ElementsAre("agg-2", "agg-1"));
  EXPECT_THAT(cluster_.StoredRun(run_).leaving(), IsEmpty());
  EXPECT_TRUE(StatusOf("agg-0").draining());
  EXPECT_TRUE(StatusOf("agg-0").member().cordoned());
  EXPECT_EQ(RunStateOf(run_), v1::RUN_STATE_RUNNING) << ReasonOf(run_);
}

TEST_F(MovesTest, TargetIsDrained) {
  Begin();
  cluster_.AddAggregator("agg-3");
  Drain("agg-0");
  Drain("agg-2");
  EXPECT_EQ(Move().to(), "agg-3");
  EXPECT_FALSE(Stores(2));
  TrainBoth(run_);
  EXPECT_THAT(Shards(), ElementsAre("agg-3", "agg-1"));
  ExpectNoneEnded();
}

TEST_F(MovesTest, RunIsScaledAndRolledBackDuringTheMove) {
  Begin();
  TrainBoth(run_);
  Drain("agg-0");
  cluster_.RollBackRun(run_, 1);
  ASSERT_TRUE(cluster_.last_status.ok()) << cluster_.last_status;
  TrainBoth(run_);
  EXPECT_EQ(RunStateOf(run_), v1::RUN_STATE_RUNNING) << ReasonOf(run_);
  EXPECT_GE(VersionOf(run_), 3u) << ReasonOf(run_);
  cluster_.Scale(run_, 1);
  ASSERT_TRUE(cluster_.last_status.ok()) << cluster_.last_status;
  Train(run_, 0);
  Train(run_, 0);
  EXPECT_EQ(RunStateOf(run_), v1::RUN_STATE_RUNNING) << ReasonOf(run_);
  EXPECT_THAT(Shards(), ElementsAre("agg-2", "agg-1")) << ReasonOf(run_);
  EXPECT_EQ(cluster_.Counter("shards_lost"), 0u);
}

// Every transaction of a move leaves a state from which it continues.
TEST_F(MovesTest, CoordinatorCrashes) {
  Begin();
  for (int n = 1; n <= 12; ++n) {
    const std::string from = Shards()[0];
    cluster_.CrashAfterTransaction(n);
    Drain(from);
    const uint32_t version = VersionOf(run_);
    TrainBoth(run_);
    if (VersionOf(run_) == version) TrainBoth(run_);
    cluster_.RestartCoordinator();
    if (VersionOf(run_) == version) TrainBoth(run_);
    TrainBoth(run_);
    EXPECT_GT(VersionOf(run_), version) << "crash " << n << ": " << ReasonOf(run_);
    EXPECT_NE(Shards()[0], from) << "crash " << n;
    EXPECT_EQ(Stores(0) + Stores(1) + Stores(2), 2) << "crash " << n;
    EXPECT_THAT(cluster_.StoredRun(run_).leaving(), IsEmpty()) << "crash " << n;
    cluster_.Cordon(from, /*undo=*/true);
  }
  EXPECT_EQ(cluster_.Counter("shards_lost"), 0u);
}

// The record names an aggregator that the shard has left.
TEST_F(MovesTest, StoreIsOlderThanTheMove) {
  Begin();
  const std::map<std::string, std::string> copy = cluster_.store();
  Drain("agg-0");
  TrainBoth(run_);
  TrainBoth(run_);
  ExpectMoved();
  ASSERT_EQ(VersionOf(run_), 3u);
  cluster_.RollBackStore(copy);
  cluster_.Run(absl::Minutes(1));
  EXPECT_THAT(Shards(), ElementsAre("agg-2", "agg-1")) << ReasonOf(run_);
  EXPECT_EQ(VersionOf(run_), 3u) << ReasonOf(run_);
  TrainBoth(run_);
  EXPECT_EQ(VersionOf(run_), 4u) << ReasonOf(run_);
}

class MovesOfTheOnlyShardTest : public MovesTest {
 protected:
  // From agg-0 to agg-1. Returns the store of the time at which the move had begun.
  std::map<std::string, std::string> MoveTheOnlyShard() {
    run_ = SubmitTo(1, 1, MakeSpec(1, 1, 5, 1000));
    Train(run_);
    cluster_.AddAggregator("agg-1");
    Drain("agg-0");
    std::map<std::string, std::string> copy = cluster_.store();
    Train(run_);
    Train(run_);
    EXPECT_THAT(Shards(), ElementsAre("agg-1"));
    EXPECT_EQ(VersionOf(run_), 3u);
    return copy;
  }
};

// The target must not discard what it has.
TEST_F(MovesOfTheOnlyShardTest, StoreIsOlderThanTheEndOfTheMove) {
  const std::map<std::string, std::string> copy = MoveTheOnlyShard();
  cluster_.Kill(agg(0));
  cluster_.RollBackStore(copy);
  cluster_.Run(absl::Minutes(1));
  agg(0).alive = true;
  cluster_.Restart(agg(0));
  cluster_.Run(absl::Minutes(1));
  EXPECT_THAT(Shards(), ElementsAre("agg-1")) << ReasonOf(run_);
  EXPECT_EQ(VersionOf(run_), 3u) << ReasonOf(run_);
  Train(run_);
  EXPECT_EQ(VersionOf(run_), 4u) << ReasonOf(run_);
}

// The target may have the only model.
TEST_F(MovesOfTheOnlyShardTest, RunThatIsStoppedWithAnOlderStoreLosesNoModel) {
  const std::map<std::string, std::string> copy = MoveTheOnlyShard();
  cluster_.Kill(agg(1));
  cluster_.RollBackStore(copy);
  cluster_.Run(absl::Minutes(1));
  cluster_.StopRun(run_);
  agg(1).alive = true;
  cluster_.Restart(agg(1));
  cluster_.Run(absl::Minutes(1));
  EXPECT_TRUE(Stores(1));
  cluster_.DeleteRun(run_);
  cluster_.Run(absl::Minutes(1));
  EXPECT_FALSE(Stores(1)) << "with the run";
}

// No other shard shows that the record is older, and an aggregator that it does not name shows
// nothing (OlderStoreTest). What that one stores remains.
TEST_F(MovesTest, StoreIsOlderThanTheMoveOfTheOnlyShard) {
  run_ = SubmitTo(1, 1, MakeSpec(1, 1, 5, 1000));
  Train(run_);
  cluster_.AddAggregator("agg-1");
  const std::map<std::string, std::string> copy = cluster_.store();
  Drain("agg-0");
  Train(run_);
  Train(run_);
  ASSERT_THAT(Shards(), ElementsAre("agg-1"));
  ASSERT_EQ(VersionOf(run_), 3u);
  cluster_.RollBackStore(copy);
  cluster_.Run(absl::Minutes(1));
  EXPECT_EQ(RunStateOf(run_), v1::RUN_STATE_PARKED);
  EXPECT_THAT(ReasonOf(run_), HasSubstr("aggregator agg-0 has lost the values of shard 0"));
  EXPECT_TRUE(Stores(1));
  EXPECT_EQ(agg(1).shards.at(run_).version, 3u);
}

}  // namespace
}  // namespace cadre::testing
