// What aggregators store, in the coordinator's state machine: which aggregators are refused, and
// the adoption of runs after the loss of the store.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "base/protocol.h"
#include "coordinator/store/keys.h"
#include "tests/base/expect.h"
#include "tests/coordinator/machine/restore_shard_test.h"

namespace cadre::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using StoredRunsTest = RestoreShardTest;

// Hello of another process with the name of an aggregator and an empty folder.
v1::Hello ImpostorHello(const std::string& name) {
  v1::Hello hello;
  hello.set_protocol(kProtocol);
  hello.set_role(v1::ROLE_AGGREGATOR);
  hello.set_name(name);
  hello.set_incarnation("another process");
  hello.set_address("elsewhere:1");
  return hello;
}

TEST_F(StoredRunsTest, ImpostorIsRefused) {
  const std::string run = Begin();
  const ConnectionId impostor = cluster_.Open();
  const v1::Hello hello = ImpostorHello("agg-0");
  cluster_.SendFrom(impostor, hello);
  EXPECT_FALSE(cluster_.IsOpen(impostor));
  EXPECT_THAT(cluster_.SentTo(impostor).back().refused().reason(),
              HasSubstr("another process named agg-0"));
  EXPECT_NE(agg(0).connection, 0u);
  EXPECT_EQ(ReasonOf(run), "");
  // Once the process has gone, the name is free.
  cluster_.Kill(agg(0));
  const ConnectionId successor = cluster_.Open();
  cluster_.SendFrom(successor, hello);
  EXPECT_TRUE(cluster_.IsOpen(successor));
}

// Neither a parked run nor one that the coordinator does not know has open shards.
TEST_F(StoredRunsTest, ImpostorOfAnAggregatorWithoutOpenShardsIsRefused) {
  const std::string run = Begin();
  const auto expect_refused = [&] {
    const ConnectionId impostor = cluster_.Open();
    cluster_.SendFrom(impostor, ImpostorHello("agg-1"));
    EXPECT_FALSE(cluster_.IsOpen(impostor));
    EXPECT_NE(agg(1).connection, 0u);
  };
  for (FakeWorker& worker : cluster_.workers()) cluster_.Kill(worker);
  cluster_.Wipe(agg(0));
  cluster_.Run(absl::Minutes(1));
  ASSERT_EQ(RunStateOf(run), v1::RUN_STATE_PARKED);
  cluster_.Reconnect(agg(1));
  expect_refused();
  cluster_.LoseStore();
  ASSERT_NE(agg(1).connection, 0u);
  expect_refused();
}

TEST_F(StoredRunsTest, FolderWithoutADeletedRunIsNoImpostor) {
  const std::string run = Begin();
  cluster_.Reconnect(agg(1));
  cluster_.StopRun(run);
  cluster_.DeleteRun(run);
  ASSERT_FALSE(agg(1).shards.contains(run));
  const ConnectionId successor = cluster_.Open();
  cluster_.SendFrom(successor, ImpostorHello("agg-1"));
  EXPECT_TRUE(cluster_.IsOpen(successor));
}

// The folder of another cluster, with higher generations.
TEST_F(StoredRunsTest, UnknownRunsDoNotEndGroups) {
  const std::string run = Begin();
  const uint32_t generation = cluster_.Group(run, 0).generation();
  FakeAggregator& other = cluster_.AddAggregator("agg-2");
  other.shards["other-7"] = agg(0).shards.at(run);
  other.shards["other-7"].lineage = "other-7.1";
  other.shards["other-7"].generations[0] = 5'000'000;
  cluster_.Restart(other);
  EXPECT_NE(other.connection, 0u);
  EXPECT_EQ(cluster_.Group(run, 0).generation(), generation);
}

TEST_F(StoredRunsTest, ImplausibleGenerationIsIgnored) {
  const std::string run = Begin();
  const uint32_t generation = cluster_.Group(run, 0).generation();
  agg(0).shards.at(run).generations[0] = kMaxReportedNumber;
  cluster_.behaviour.open = false;
  cluster_.Reconnect(agg(0));
  cluster_.behaviour.open = true;
  EXPECT_EQ(cluster_.Group(run, 0).generation(), generation);
  EXPECT_EQ(cluster_.Counter("implausible_generations"), 1u);
  agg(0).shards.at(run).generations[0] = 5'000'000;
  cluster_.Reconnect(agg(0));
  EXPECT_GT(cluster_.Group(run, 0).generation(), 5'000'000u) << "the store is older";
  EXPECT_LT(cluster_.Group(run, 0).generation(), 10'000'000u);
}

// OpenRun names the next generation for a group that is not formed.
TEST_F(StoredRunsTest, OnlyGenerationsAboveTheNextOneShowAnOlderStore) {
  const std::string run = Begin();
  cluster_.behaviour.open = false;
  const auto highest = [&] {
    v1::MetaRecord meta;
    EXPECT_TRUE(meta.ParseFromString(cluster_.store().at(kMetaKey)));
    return meta.generation();
  };
  const auto report = [&](uint32_t generation) {
    agg(0).shards.at(run).generations[0] = generation;
    cluster_.Reconnect(agg(0));
  };
  const uint32_t before = highest();
  report(before + 1);
  EXPECT_EQ(highest(), before);
  report(before + 100'000'001);
  EXPECT_EQ(highest(), before);
  EXPECT_EQ(cluster_.Counter("implausible_generations"), 1U);
  report(before + 2);
  EXPECT_GE(highest(), before + 2 + 1'000'000);
  const uint32_t after = highest();
  report(after + 100'000'000);
  EXPECT_GE(highest(), after + 100'000'000 + 1'000'000);
  EXPECT_EQ(cluster_.Counter("implausible_generations"), 1U);
}

// OpenRun would set aside what the folder stores.
TEST_F(StoredRunsTest, OtherLineageOfALiveRunIsRefused) {
  const std::string run = Begin();
  FakeAggregator& other = cluster_.AddAggregator("agg-2");
  other.shards[run] = agg(0).shards.at(run);
  other.shards[run].lineage = run + ".another";
  cluster_.Restart(other);
  ASSERT_FALSE(other.received.empty());
  EXPECT_EQ(other.received.back().refused().refusal(), v1::REFUSAL_WRONG_LINEAGE);
  EXPECT_THAT(other.received.back().refused().reason(),
              AllOf(HasSubstr("move the folder " + run), HasSubstr("--data-dir")));
  cluster_.StopRun(run);
  cluster_.Restart(other);
  EXPECT_NE(other.connection, 0u) << "the ended run orders nothing";
}

class AdoptTest : public RestoreShardTest {
 protected:
  // The store is lost after version 2.
  std::string Lose() {
    const std::string run = Begin(2);
    digest_ = cluster_.RunStatus(run).digest();
    cluster_.LoseStore();
    return run;
  }
  std::string ProblemOf(const std::string& run) {
    const v1::AdoptReply reply = cluster_.Adopt(run);
    EXPECT_TRUE(cluster_.last_status.ok()) << cluster_.last_status;
    EXPECT_EQ(reply.runs_size(), 1);
    return reply.runs_size() == 1 ? reply.runs(0).problem() : "";
  }
  std::string digest_;
};

TEST_F(AdoptTest, RunContinues) {
  const std::string run = Lose();
  for (FakeAggregator& aggregator : cluster_.aggregators()) {
    EXPECT_FALSE(aggregator.shards.at(run).closed) << "unknown runs are left alone";
  }
  const uint32_t generation = agg(0).shards.at(run).generations.at(0);
  const v1::AdoptReply reply = cluster_.Adopt();
  ASSERT_EQ(reply.runs_size(), 1);
  EXPECT_EQ(reply.runs(0).run(), run);
  EXPECT_EQ(reply.runs(0).problem(), "");
  EXPECT_EQ(reply.runs(0).version(), 2u);
  EXPECT_EQ(reply.runs(0).step(), 10u);
  EXPECT_EQ(cluster_.RunStatus(run).digest(), digest_);
  EXPECT_EQ(cluster_.RunStatus(run).samples(), 2u * 10 * 32);
  cluster_.Run(absl::Seconds(2));
  EXPECT_EQ(cluster_.Group(run, 0).generation(), generation + 1'000'001);
  EXPECT_EQ(cluster_.Counter("runs_adopted"), 1U);
  cluster_.RestartCoordinator();  // What was adopted is durable.
  cluster_.behaviour.train = true;
  ASSERT_TRUE(cluster_.RunUntilEnded(run));
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_DONE) << ReasonOf(run);
  EXPECT_EQ(cluster_.RunStatus(run).step(), 100u);
  EXPECT_EQ(cluster_.Adopt().runs_size(), 0) << "the run is known";
  EXPECT_EQ(cluster_.Submit(MakeSpec(1, 1, 5, 10)), "run-2-test") << "numbers continue";
}

TEST_F(AdoptTest, NumbersOfUnknownRunsAreNotGivenAway) {
  const std::string run = Lose();
  cluster_.behaviour.prepare = false;
  EXPECT_EQ(cluster_.Submit(MakeSpec(1, 1, 5, 10)), "run-2-test");
  EXPECT_EQ(ProblemOf(run), "");
}

TEST_F(AdoptTest, AdoptionsThatAreRefused) {
  const std::string run = Lose();
  cluster_.Adopt("run-7-other");
  EXPECT_THAT(cluster_.last_status, IsError(kNotFound, "no connected aggregator stores a run"));
  cluster_.Kill(agg(0));
  cluster_.Kill(agg(1));
  EXPECT_EQ(cluster_.Adopt().runs_size(), 0);
  EXPECT_THAT(cluster_.last_status, IsOk()) << "there is none to adopt";
  cluster_.Restart(agg(0));
  cluster_.Restart(agg(1));
  const ConnectionId stream = agg(1).connection;
  agg(1).connection = 999;  // It does not receive the order.
  cluster_.Adopt(run);
  cluster_.Adopt();
  EXPECT_THAT(cluster_.last_status,
              IsError(absl::StatusCode::kFailedPrecondition, "another adoption is in progress"));
  agg(1).connection = stream;
  cluster_.Run(absl::Minutes(1));
  EXPECT_EQ(ProblemOf(run), "");
  cluster_.Adopt(run);
  EXPECT_THAT(cluster_.last_status,
              IsError(absl::StatusCode::kFailedPrecondition, "run run-1-test is known"));
}

TEST_F(AdoptTest, MissingShard) {
  const std::string run = Lose();
  cluster_.Kill(agg(1));
  EXPECT_THAT(ProblemOf(run), HasSubstr("shard 1 of 2 is missing"));
  EXPECT_EQ(cluster_.Status().runs_size(), 0);
  cluster_.Restart(agg(1));
  EXPECT_EQ(ProblemOf(run), "");
}

TEST_F(AdoptTest, SilentAggregatorIsLeftOut) {
  const std::string run = Lose();
  cluster_.Do(AdoptRuns{.request = 900});
  agg(1).connection = 999;  // It does not receive the order.
  cluster_.Run(absl::Minutes(1));
  ASSERT_EQ(cluster_.last_adopted.runs_size(), 1);
  EXPECT_THAT(cluster_.last_adopted.runs(0).problem(), HasSubstr("shard 1 of 2 is missing"));
}

TEST_F(AdoptTest, ShardOneVersionAhead) {
  const std::string run = Begin(2);
  cluster_.Kill(agg(1));
  TrainBoth(run);
  ASSERT_EQ(agg(0).shards.at(run).version, 3u);
  cluster_.LoseStore();
  const v1::AdoptReply reply = cluster_.Adopt();
  ASSERT_EQ(reply.runs_size(), 1);
  EXPECT_THAT(reply.runs(0).problem(), HasSubstr("shard 1 of 2 is missing"));
  cluster_.Connect(agg(1));
  EXPECT_EQ(ProblemOf(run), "");
  EXPECT_EQ(VersionOf(run), 3u) << "the other shard has its contributions";
  cluster_.behaviour.train = true;
  ASSERT_TRUE(cluster_.RunUntilEnded(run));
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_DONE);
}

// Two coordinators have closed the round, and each of them has reached one of the shards.
TEST_F(AdoptTest, ShardsThatWereMadeOfDifferentContributions) {
  const std::string run = Lose();
  v1::Participant& participant = *agg(0).shards.at(run).newest.mutable_participants(0);
  participant.set_generation(participant.generation() + 1);
  EXPECT_THAT(ProblemOf(run), HasSubstr("agg-0 and agg-1 have made version 2 of different"));
  participant.set_generation(participant.generation() - 1);
  EXPECT_EQ(ProblemOf(run), "");
}

// The order of a seed names only the group that had the version, and not those that made it.
TEST_F(AdoptTest, RestoredShardAheadDoesNotCloseTheRoundAgain) {
  const std::string run = Begin(2);
  cluster_.Kill(agg(1));
  TrainBoth(run);
  agg(0).shards.at(run).newest.set_seed(true);
  cluster_.LoseStore();
  cluster_.Connect(agg(1));
  EXPECT_THAT(ProblemOf(run),
              HasSubstr("agg-1 does not have version 3 of shard 1, and which groups "
                        "made it is not known"));
}

TEST_F(AdoptTest, ShardAheadWithoutTheContributionsParksTheRun) {
  const std::string run = Begin(2);
  cluster_.Kill(agg(0));
  TrainBoth(run);
  ASSERT_EQ(agg(1).shards.at(run).version, 3u);
  cluster_.LoseStore();
  // The shard at version 2 has lost what was staged.
  agg(0).shards.at(run).hollow = 2;
  cluster_.Connect(agg(0));
  EXPECT_EQ(ProblemOf(run), "");
  ExpectParked(run);
}

TEST_F(AdoptTest, OtherLineage) {
  const std::string run = Lose();
  const std::string another = run + ".0123456789abcdef";
  for (std::string* lineage :
       {agg(1).shards.at(run).open.mutable_lineage(), &agg(1).shards.at(run).lineage}) {
    *lineage = another;
  }
  EXPECT_THAT(ProblemOf(run), AllOf(HasSubstr("agg-0 and agg-1"), HasSubstr(another)));
}

TEST_F(AdoptTest, EndedRun) {
  const std::string run = Begin();
  cluster_.StopRun(run);
  cluster_.LoseStore();
  EXPECT_EQ(cluster_.Adopt().runs_size(), 0);
  EXPECT_EQ(ProblemOf(run), "it has ended");
}

// Its aggregators were away when it was stopped and until its record was removed.
TEST(AdoptEvictedTest, EndedRunIsNotAdopted) {
  FakeCluster cluster(
      [](Machine::Options& options) { options.retention.keep_without_version = 1; });
  cluster.behaviour.train = false;
  cluster.AddWorker("w0");
  cluster.AddAggregator("agg-0");
  const std::string run = cluster.Submit(MakeSpec(1, 1, 5, 10));
  cluster.Kill(cluster.aggregators()[0]);
  cluster.StopRun(run);
  cluster.StopRun(cluster.Submit(MakeSpec(1, 1, 5, 10)));
  ASSERT_EQ(cluster.machine().Status(cluster.now(), run).runs_size(), 0);
  cluster.RestartCoordinator();
  FakeAggregator& aggregator = cluster.aggregators()[0];
  const FakeAggregator::Shard stored = aggregator.shards.at(run);
  cluster.Restart(aggregator);
  EXPECT_FALSE(aggregator.shards.contains(run)) << "the run was deleted with its record";
  // It returns with a disk of before it removed the files.
  aggregator.shards[run] = stored;
  cluster.Restart(aggregator);
  EXPECT_FALSE(aggregator.shards.contains(run));
  EXPECT_EQ(cluster.Adopt().runs_size(), 0);
}

// No record of the deletion remains after many others.
TEST(AdoptEvictedTest, ForgottenRunIsNotAdopted) {
  FakeCluster cluster(
      [](Machine::Options& options) { options.retention.keep_without_version = 0; });
  cluster.behaviour.train = false;
  cluster.AddWorker("w0");
  cluster.AddAggregator("agg-0");
  const std::string run = cluster.Submit(MakeSpec(1, 1, 5, 10));
  FakeAggregator& aggregator = cluster.aggregators()[0];
  const FakeAggregator::Shard stored = aggregator.shards.at(run);
  cluster.StopRun(run);
  ASSERT_FALSE(aggregator.shards.contains(run));
  for (int i = 0; i < 1024; ++i) cluster.StopRun(cluster.Submit(MakeSpec(1, 1, 5, 10)));
  aggregator.shards[run] = stored;
  cluster.Restart(aggregator);
  EXPECT_EQ(cluster.Adopt().runs_size(), 0);
  const v1::AdoptReply reply = cluster.Adopt(run);
  ASSERT_EQ(reply.runs_size(), 1);
  EXPECT_THAT(reply.runs(0).problem(), HasSubstr("it may have ended"));
  EXPECT_EQ(cluster.machine().Status(cluster.now(), run).runs_size(), 0);
}

// Both were submitted after the backup that the store was restored from.
TEST_F(AdoptTest, OlderUnknownRunAfterYoungerOneWasDeleted) {
  const std::string older = Begin();
  cluster_.AddWorkers(1);
  const std::string younger = cluster_.Submit(MakeSpec(1, 1, 5, 10));
  cluster_.LoseStore();
  EXPECT_EQ(ProblemOf(younger), "");
  cluster_.StopRun(younger);
  cluster_.DeleteRun(younger);
  ASSERT_EQ(cluster_.last_status, absl::OkStatus());
  EXPECT_EQ(ProblemOf(older), "");
}

struct MalformedReport {
  const char* label;
  void (*change)(FakeAggregator::Shard& shard);
  const char* problem;
};
class MalformedReportTest : public AdoptTest,
                            public ::testing::WithParamInterface<MalformedReport> {};

TEST_P(MalformedReportTest, IsRefused) {
  const std::string run = Lose();
  for (FakeAggregator& aggregator : cluster_.aggregators()) {
    GetParam().change(aggregator.shards.at(run));
  }
  const auto before = cluster_.store();
  EXPECT_THAT(ProblemOf(run), HasSubstr(GetParam().problem));
  EXPECT_EQ(cluster_.Status().runs_size(), 0);
  EXPECT_EQ(cluster_.store(), before);
}

INSTANTIATE_TEST_SUITE_P(
    All, MalformedReportTest,
    ::testing::Values(
        MalformedReport{"NoShards", [](auto& shard) { shard.open.set_shards(0); },
                        "agg-0 stores shard 0 of 0"},
        MalformedReport{"ShardOutOfRange", [](auto& shard) { shard.open.set_shard(2); },
                        "agg-0 stores shard 2 of 2"},
        MalformedReport{"OtherState", [](auto& shard) { shard.lineage = "other"; },
                        "agg-0 stores values of another run"},
        MalformedReport{"Lineage",
                        [](auto& shard) { shard.open.set_lineage(std::string(1000, 'x')); },
                        "agg-0 stores a malformed lineage"},
        MalformedReport{"Name", [](auto& shard) { shard.open.mutable_spec()->set_name("other"); },
                        "agg-0 stores a run of another name"},
        MalformedReport{
            "Generation",
            [](auto& shard) { (*shard.open.mutable_generations())[0] = 0xffffffffU - 1'000'000; },
            "agg-0 stores generation 4293967295"},
        MalformedReport{"NoOrder", [](auto& shard) { shard.newest.Clear(); },
                        "agg-0 does not store the order that made version 2"},
        MalformedReport{
            "Division",
            [](auto& shard) { shard.newest.mutable_division()->set_groups(0xffffffffU); },
            "agg-0 stores a division among 4294967295 groups"}),
    [](const auto& info) { return info.param.label; });

TEST(AdoptInvalidTest, SpecIsValidated) {
  bool valid = true;
  FakeCluster cluster([&](Machine::Options& options) {
    options.validate = [&](const v1::RunSpec&) {
      return valid ? absl::OkStatus() : absl::InvalidArgumentError("batch_per_group: is 0");
    };
  });
  cluster.behaviour.train = false;
  cluster.AddWorker("w0");
  cluster.AddAggregator("agg-0");
  const std::string run = cluster.Submit(MakeSpec(1, 1, 5, 10));
  cluster.LoseStore();
  valid = false;
  const v1::AdoptReply reply = cluster.Adopt(run);
  ASSERT_EQ(reply.runs_size(), 1);
  EXPECT_EQ(reply.runs(0).problem(), "batch_per_group: is 0");
  EXPECT_EQ(cluster.Status().runs_size(), 0);
}

// The next number must not wrap around.
TEST_F(AdoptTest, HugeRunNumber) {
  const std::string run = Lose();
  const std::string huge = "run-4294967295-test";
  for (FakeAggregator& aggregator : cluster_.aggregators()) {
    aggregator.shards[huge] = aggregator.shards.at(run);
    cluster_.Restart(aggregator);
  }
  EXPECT_EQ(ProblemOf(huge), "this is not the id of a run");
  EXPECT_EQ(cluster_.Submit(MakeSpec(1, 1, 5, 10)), "run-2-test");
  EXPECT_EQ(cluster_.Submit(MakeSpec(1, 1, 5, 10)), "run-3-test");
}

TEST_F(AdoptTest, UnknownName) {
  const std::string run = Lose();
  cluster_.Adopt("run-7");
  EXPECT_EQ(cluster_.last_status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ProblemOf(run), "");
  cluster_.Adopt(run);
  EXPECT_EQ(cluster_.last_status.code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(AdoptTest, RunAtItsEnd) {
  AddMembers(2, 4);
  const std::string run = cluster_.Submit(MakeSpec(2, 2, 5, 10));
  cluster_.behaviour.evaluate = false;
  TrainBoth(run);
  TrainBoth(run);
  ASSERT_EQ(RunStateOf(run), v1::RUN_STATE_FINISHING);
  cluster_.behaviour.evaluate = true;
  cluster_.LoseStore();
  EXPECT_EQ(ProblemOf(run), "");
  ASSERT_TRUE(cluster_.RunUntilEnded(run));
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_DONE);
  EXPECT_EQ(cluster_.RunStatus(run).test().samples(), kTestSamples);
}

}  // namespace
}  // namespace cadre::testing
