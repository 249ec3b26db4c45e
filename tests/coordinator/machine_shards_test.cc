// Aggregators: what they bring back, and what becomes of the run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/coordinator/fake_cluster.h"

namespace cadre::testing {
namespace {

using ::testing::HasSubstr;

class MachineShardsTest : public ::testing::Test {
 protected:
  // Two shards, one group; trains by itself up to `train_until` versions, then stands still.
  std::string Begin() {
    cluster_.AddAggregator("agg-0");
    cluster_.AddAggregator("agg-1");
    cluster_.AddWorker("w0");
    cluster_.behaviour.train = false;
    const std::string run = cluster_.Submit(MakeSpec(1, 1, 5, 100));
    EXPECT_EQ(cluster_.RunStatus(run).state(), v1::RUN_STATE_RUNNING);
    return run;
  }
  void TrainOneRound(const std::string& run) {
    FakeWorker& lead = cluster_.Lead(run, 0);
    v1::MemberMessage message;
    v1::Contributed& contributed = *message.mutable_contributed();
    *contributed.mutable_place() = lead.place();
    contributed.set_round(lead.version + 1);
    contributed.set_base_version(lead.version);
    contributed.set_step(*lead.next_step);
    contributed.set_samples(32);
    lead.contributed = contributed;
    cluster_.SendFrom(lead.connection, message);
  }
  FakeAggregator& agg(int i) { return cluster_.aggregators()[i]; }

  FakeCluster cluster_;
};

TEST_F(MachineShardsTest, WaitsForDisconnectedAggregator) {
  const std::string run = Begin();
  cluster_.Kill(agg(1));
  TrainOneRound(run);
  EXPECT_EQ(cluster_.RunStatus(run).version(), 0u);
  EXPECT_EQ(cluster_.RunStatus(run).reason(), "waiting for aggregator agg-1");
  cluster_.Run(absl::Minutes(10));
  EXPECT_EQ(cluster_.RunStatus(run).state(), v1::RUN_STATE_RUNNING)
      << "it waits as long as it takes";
  cluster_.Restart(agg(1));
  EXPECT_EQ(cluster_.RunStatus(run).version(), 1u) << "Apply was sent again";
  EXPECT_EQ(cluster_.RunStatus(run).reason(), "");
}

TEST_F(MachineShardsTest, LostAnswerIsRequestedAgain) {
  const std::string run = Begin();
  cluster_.behaviour.apply = false;
  TrainOneRound(run);
  // It applied, then its stream broke before Applied was read.
  cluster_.behaviour.apply = true;
  cluster_.Cut(agg(0));
  cluster_.Connect(agg(0));
  EXPECT_EQ(cluster_.RunStatus(run).version(), 0u) << "the other shard has not applied";
  cluster_.Cut(agg(0));
  cluster_.Connect(agg(0));
  EXPECT_EQ(cluster_.RunStatus(run).version(), 0u);
  cluster_.Cut(agg(1));
  cluster_.Connect(agg(1));
  EXPECT_EQ(cluster_.RunStatus(run).version(), 1u);
}

TEST_F(MachineShardsTest, VersionZeroErrorFailsRun) {
  cluster_.AddAggregator("agg-0");
  cluster_.AddWorker("w0");
  cluster_.behaviour.open_error = "/ckpt/step-3: no such file";
  const std::string run = cluster_.Submit(MakeSpec(1, 1, 5, 100));
  ASSERT_EQ(cluster_.RunStatus(run).state(), v1::RUN_STATE_FAILED);
  EXPECT_THAT(cluster_.RunStatus(run).reason(),
              ::testing::AllOf(HasSubstr("agg-0"), HasSubstr("/ckpt/step-3: no such file")));
  // The next one has its workers and shards.
  cluster_.behaviour.open_error.clear();
  const std::string next = cluster_.Submit(MakeSpec(1, 1, 5, 100));
  ASSERT_TRUE(cluster_.RunUntilEnded(next));
  EXPECT_EQ(cluster_.RunStatus(next).state(), v1::RUN_STATE_DONE);
}

// What a shard says of the model depends on how many shards there were when it was asked.
TEST_F(MachineShardsTest, AnswerBeforeReassignmentIsIgnored) {
  const auto join = [&](const std::string& name) {
    const ConnectionId connection = cluster_.Open();
    v1::MemberMessage message;
    v1::Hello& hello = *message.mutable_hello();
    hello.set_schema_hash(kSchema);
    hello.set_role(v1::ROLE_AGGREGATOR);
    hello.set_name(name);
    hello.set_incarnation(name);
    hello.set_address(absl::StrCat(name, ":1"));
    cluster_.SendFrom(connection, message);
    return connection;
  };
  const ConnectionId stays = join("agg-0");
  const ConnectionId leaves = join("agg-1");
  cluster_.AddWorker("w0");
  const std::string run = cluster_.Submit(MakeSpec(1, 1, 5, 100));
  v1::MemberMessage goodbye;
  goodbye.mutable_goodbye()->set_reason("moves");
  cluster_.SendFrom(leaves, goodbye);
  ASSERT_EQ(cluster_.SentTo(stays).back().open_run().shards(), 1u);

  v1::MemberMessage message;
  v1::RunOpened& opened = *message.mutable_run_opened();
  opened.set_run(run);
  opened.set_shards(2);
  opened.set_digest(11);
  cluster_.SendFrom(stays, message);
  EXPECT_FALSE(cluster_.Commit(run, 0).has_value());
  EXPECT_EQ(cluster_.Counter("refused_malformed"), 1u);

  opened.set_shards(1);
  opened.set_digest(22);
  cluster_.SendFrom(stays, message);
  ASSERT_TRUE(cluster_.Commit(run, 0).has_value());
  EXPECT_EQ(cluster_.Commit(run, 0)->digest(), 22u);
}

TEST_F(MachineShardsTest, ReturningAggregatorContinues) {
  const std::string run = Begin();
  TrainOneRound(run);
  cluster_.Kill(agg(0));
  cluster_.Restart(agg(0));
  TrainOneRound(run);
  EXPECT_EQ(cluster_.RunStatus(run).version(), 2u);
}

TEST_F(MachineShardsTest, LostAcknowledgedDataFailsRun) {
  const std::string run = Begin();
  TrainOneRound(run);
  cluster_.Kill(agg(0));
  agg(0).shards.clear();
  cluster_.Restart(agg(0));
  EXPECT_EQ(cluster_.RunStatus(run).state(), v1::RUN_STATE_FAILED);
  EXPECT_THAT(cluster_.RunStatus(run).reason(), HasSubstr("agg-0 holds version 0"));
  EXPECT_FALSE(cluster_.workers()[0].assignment.has_value());
}

TEST_F(MachineShardsTest, ADamagedShardFailsTheRun) {
  const std::string run = Begin();
  TrainOneRound(run);
  cluster_.Kill(agg(0));
  agg(0).shards.at(run).digests[1] ^= 1;
  cluster_.Restart(agg(0));
  EXPECT_EQ(cluster_.RunStatus(run).state(), v1::RUN_STATE_FAILED);
  EXPECT_THAT(cluster_.RunStatus(run).reason(), HasSubstr("corrupt"));
}

TEST_F(MachineShardsTest, OlderStoreFailsRun) {
  const std::string run = Begin();
  cluster_.Kill(agg(0));
  agg(0).shards.at(run).version = 4;
  agg(0).shards.at(run).digests[4] = 44;
  cluster_.Restart(agg(0));
  EXPECT_EQ(cluster_.RunStatus(run).state(), v1::RUN_STATE_FAILED);
  EXPECT_THAT(cluster_.RunStatus(run).reason(), HasSubstr("store is older"));
}

TEST_F(MachineShardsTest, ApplyErrorFailsRun) {
  const std::string run = Begin();
  cluster_.behaviour.apply = false;
  TrainOneRound(run);
  v1::MemberMessage message;
  message.mutable_applied()->set_run(run);
  message.mutable_applied()->set_shard(0);
  message.mutable_applied()->set_round(1);
  message.mutable_applied()->set_error("group 0's contribution is not here");
  cluster_.SendFrom(agg(0).connection, message);
  EXPECT_EQ(cluster_.RunStatus(run).state(), v1::RUN_STATE_FAILED);
  EXPECT_THAT(cluster_.RunStatus(run).reason(), HasSubstr("group 0's contribution"));
}

TEST_F(MachineShardsTest, MismatchedAnswersAreIgnored) {
  const std::string run = Begin();
  cluster_.behaviour.apply = false;
  TrainOneRound(run);
  v1::MemberMessage message;
  v1::Applied& applied = *message.mutable_applied();
  applied.set_run(run);
  applied.set_round(1);
  applied.set_shard(1);
  cluster_.SendFrom(agg(0).connection, message);  // the other's shard
  applied.set_shard(7);
  cluster_.SendFrom(agg(0).connection, message);  // no such shard
  EXPECT_EQ(cluster_.Counter("refused_malformed"), 2u);
  applied.set_shard(0);
  applied.set_round(9);
  cluster_.SendFrom(agg(0).connection, message);  // another round
  applied.set_run("run-5");
  cluster_.SendFrom(agg(0).connection, message);
  EXPECT_EQ(cluster_.Counter("refused_unknown_run"), 1u);
  EXPECT_EQ(cluster_.RunStatus(run).version(), 0u);
  EXPECT_EQ(cluster_.RunStatus(run).state(), v1::RUN_STATE_RUNNING);
}

TEST_F(MachineShardsTest, NewShardAddressIsSent) {
  const std::string run = Begin();
  cluster_.Kill(agg(1));
  agg(1).address = "elsewhere:9";
  cluster_.Restart(agg(1));
  const v1::CoordinatorMessage& last = cluster_.workers()[0].received.back();
  ASSERT_TRUE(last.has_shard_addresses());
  EXPECT_EQ(last.shard_addresses().run(), run);
  ASSERT_EQ(last.shard_addresses().shards_size(), 2);
  EXPECT_EQ(last.shard_addresses().shards(1).address(), "elsewhere:9");
}

TEST_F(MachineShardsTest, EndedRunIsClosedOnReturn) {
  const std::string run = Begin();
  cluster_.Kill(agg(0));
  cluster_.StopRun(run);
  cluster_.Restart(agg(0));
  EXPECT_EQ(agg(0).received.back().close_run().run(), run);
}

TEST_F(MachineShardsTest, OtherLineageIsCounted) {
  const std::string run = Begin();
  cluster_.Kill(agg(0));
  cluster_.StopRun(run);
  agg(0).shards.at(run).lineage = "another history";
  cluster_.Restart(agg(0));
  EXPECT_EQ(cluster_.Counter("refused_wrong_lineage"), 1u);
  EXPECT_FALSE(agg(0).received.back().has_close_run());
}

TEST_F(MachineShardsTest, ShardLostBeforeStartIsReplaced) {
  // Held back: the aggregator that is chosen never answers OpenRun.
  FakeAggregator& lost = cluster_.AddAggregator("agg-0");
  v1::RunSpec spec = MakeSpec(1, 1, 5, 10);
  spec.mutable_cluster()->set_aggregators(1);
  cluster_.AddWorker("w0");
  cluster_.Do(SubmitRun{.request = 900, .spec = spec});  // OpenRun is in flight
  lost.alive = false;
  lost.connection = 0;
  cluster_.AddAggregator("agg-1");
  const std::string run = cluster_.last_run;
  ASSERT_TRUE(cluster_.RunUntilEnded(run));
  EXPECT_EQ(cluster_.RunStatus(run).state(), v1::RUN_STATE_DONE);
  EXPECT_EQ(cluster_.aggregators()[1].shards.count(run), 1u);
}

TEST_F(MachineShardsTest, NoGroupWithoutAggregator) {
  const std::string run = Begin();
  cluster_.Kill(agg(0));
  FakeWorker& worker = cluster_.workers()[0];
  v1::MemberMessage failed;
  *failed.mutable_group_failed()->mutable_place() = worker.place();
  cluster_.SendFrom(worker.connection, failed);
  EXPECT_EQ(cluster_.Group(run, 0).state(), v1::GROUP_STATE_WAITING);
  cluster_.Restart(agg(0));
  EXPECT_EQ(cluster_.Group(run, 0).state(), v1::GROUP_STATE_TRAINING);
}

}  // namespace
}  // namespace cadre::testing
