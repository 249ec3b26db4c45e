// Aggregators: the versions on their disks, lost answers, changed addresses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/protocol.h"
#include "tests/coordinator/machine/fake_cluster.h"

namespace cadre::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::StartsWith;

class MachineShardsTest : public MachineTest {
 protected:
  // Two shards and one group of one worker.
  std::string Begin() {
    AddMembers(2, 1);
    const std::string run = cluster_.Submit(MakeSpec(1, 1, 5, 100));
    EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_RUNNING);
    return run;
  }
  FakeAggregator& agg(int i) { return cluster_.aggregators()[i]; }
};

TEST_F(MachineShardsTest, WaitsForDisconnectedAggregator) {
  const std::string run = Begin();
  const uint32_t generation = cluster_.Group(run, 0).generation();
  cluster_.Kill(agg(1));
  Train(run);
  EXPECT_EQ(cluster_.RunStatus(run).version(), 0u);
  EXPECT_THAT(ReasonOf(run), StartsWith("waiting for aggregator agg-1, away for "));
  cluster_.Run(absl::Minutes(10));
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_RUNNING);
  EXPECT_EQ(ReasonOf(run), "waiting for aggregator agg-1, away for 10m (limit 1h)");
  EXPECT_EQ(cluster_.Group(run, 0).reason(), ReasonOf(run)) << "it has contributed";
  cluster_.Restart(agg(1));
  EXPECT_EQ(cluster_.RunStatus(run).version(), 1u) << "Apply is sent again";
  EXPECT_EQ(ReasonOf(run), "");
  EXPECT_EQ(cluster_.Group(run, 0).reason(), "");
  EXPECT_EQ(cluster_.Group(run, 0).generation(), generation);
}

// The rank is told when the aggregator goes away and when it returns, at whatever address.
TEST_F(MachineShardsTest, GroupsKnowThatAnAggregatorIsAway) {
  const std::string run = Begin();
  FakeWorker& worker = cluster_.workers()[0];
  const auto addresses = [&] {
    std::vector<std::string> texts;
    for (const v1::CoordinatorMessage& message : worker.received) {
      for (const v1::ShardAddress& shard : message.shard_addresses().shards()) {
        texts.push_back(absl::StrCat(shard.name(), " ", shard.address()));
      }
    }
    worker.received.clear();
    return texts;
  };
  worker.received.clear();
  const std::string first = absl::StrCat("agg-0 ", agg(0).address);
  cluster_.Kill(agg(1));
  EXPECT_THAT(addresses(), ElementsAre(first, "agg-1 "));
  cluster_.Run(absl::Minutes(1));
  EXPECT_THAT(addresses(), IsEmpty()) << "the end of its lease changes nothing";
  cluster_.Restart(agg(1));
  EXPECT_THAT(addresses(), ElementsAre(first, absl::StrCat("agg-1 ", agg(1).address)));
  // A worker that joins again meanwhile.
  cluster_.Kill(agg(1));
  worker.received.clear();
  cluster_.Connect(worker);
  EXPECT_THAT(addresses(), ElementsAre(first, "agg-1 "));
}

TEST_F(MachineShardsTest, RunMayHaveAPatienceOfItsOwn) {
  AddMembers(2, 1);
  v1::RunSpec spec = MakeSpec(1, 1, 5, 100);
  spec.mutable_cluster()->set_aggregator_wait_ms(90'000);
  const std::string run = cluster_.Submit(spec);
  cluster_.Kill(agg(1));
  cluster_.Run(absl::Seconds(85));
  EXPECT_NE(cluster_.Group(run, 0).generation(), 0u);
  EXPECT_THAT(ReasonOf(run), MatchesRegex(".*limit 1m30s.*"));
  cluster_.Run(absl::Seconds(10));
  EXPECT_EQ(cluster_.Group(run, 0).generation(), 0u);
  EXPECT_EQ(cluster_.Group(run, 0).reason(),
            "aggregator agg-1 has been away for 1m30s (cluster.aggregator_wait_ms)");
}

TEST_F(MachineShardsTest, PatienceWithAnAggregatorHasALimit) {
  const std::string run = Begin();
  cluster_.Kill(agg(1));
  cluster_.Run(absl::Minutes(59));
  EXPECT_NE(cluster_.Group(run, 0).generation(), 0u);
  cluster_.Run(absl::Minutes(2));
  const v1::GroupStatus group = cluster_.Group(run, 0);
  EXPECT_EQ(group.generation(), 0u);
  EXPECT_EQ(group.reason(),
            "aggregator agg-1 has been away for 1h (--aggregator-patience of the coordinator)");
  EXPECT_THAT(ReasonOf(run), MatchesRegex("waiting for aggregator agg-1, away for 1h1m.*"));
  EXPECT_EQ(cluster_.Counter("groups_formed"), 1u);
  cluster_.Restart(agg(1));
  cluster_.Run(absl::Seconds(5));
  EXPECT_NE(cluster_.Group(run, 0).generation(), 0u);
  EXPECT_EQ(cluster_.Counter("groups_formed"), 2u);
}

v1::Heartbeat DelayOf(const std::string& run, const std::string& order, const std::string& reason,
                      float seconds) {
  v1::Heartbeat heartbeat;
  v1::DelayedOrder& delayed = *heartbeat.add_delayed_orders();
  delayed.set_run(run);
  delayed.set_order(order);
  delayed.set_reason(reason);
  delayed.set_seconds(seconds);
  return heartbeat;
}

TEST_F(MachineShardsTest, ShardThatCannotBeCreatedIsNamed) {
  cluster_.behaviour.open = false;
  AddMembers(2, 1);
  const std::string run = cluster_.Submit(MakeSpec(1, 1, 5, 100));
  EXPECT_EQ(ReasonOf(run), "aggregators are opening their shards: agg-0, agg-1");
  cluster_.Send(agg(1), DelayOf(run, "open_run", "cannot write version-0.new: File too large", 4));
  EXPECT_EQ(ReasonOf(run),
            "aggregator agg-1 cannot open its shard, for 4s: cannot write "
            "version-0.new: File too large; it tries again");
  ASSERT_EQ(cluster_.Status().aggregators_size(), 2);
  EXPECT_EQ(cluster_.Status().aggregators(1).delayed_orders_size(), 1);
  const auto events = [&] {
    const v1::EventsReply all = cluster_.Events();
    return std::count_if(all.events().begin(), all.events().end(), [](const auto& event) {
      return event.kind() == v1::EVENT_KIND_ORDER_DELAYED;
    });
  };
  EXPECT_EQ(events(), 1);
  cluster_.Send(agg(1), DelayOf(run, "open_run", "cannot write version-0.new: File too large", 6));
  EXPECT_EQ(events(), 1);
  // As in cluster_.Run: the order is carried out.
  cluster_.Send(agg(1), v1::Heartbeat());
  EXPECT_EQ(ReasonOf(run), "aggregators are opening their shards: agg-0, agg-1");
}

TEST_F(MachineShardsTest, DiskThatHangsEndsTheCreation) {
  cluster_.behaviour.open = false;
  AddMembers(1, 1);
  const std::string run = cluster_.Submit(MakeSpec(1, 1, 5, 100));
  cluster_.Send(agg(0), DelayOf(run, "open_run", "", 60));
  EXPECT_EQ(ReasonOf(run),
            "aggregator agg-0 has taken 1m to open its shard, and has not finished: "
            "its disk is slow or does not answer");
  cluster_.Send(agg(0), DelayOf(run, "open_run", "", 1800));
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_FAILED);
  EXPECT_THAT(ReasonOf(run), HasSubstr("agg-0"));
}

TEST_F(MachineShardsTest, RoundThatCannotBeAppliedWaitsWithItsReason) {
  const std::string run = Begin();
  cluster_.Send(agg(0), DelayOf(run, "apply", "No space left on device", 4000));
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_RUNNING);
  EXPECT_THAT(ReasonOf(run), AllOf(HasSubstr("agg-0 cannot apply the round"),
                                   HasSubstr("No space left on device")));
}

TEST_F(MachineShardsTest, NewGenerationSendsFenceInsteadOfTerms) {
  const std::string run = Begin();
  const auto count = [&](auto has) {
    return std::count_if(agg(0).received.begin(), agg(0).received.end(), has);
  };
  const auto opens = [&] {
    return count([](const v1::CoordinatorMessage& message) { return message.has_open_run(); });
  };
  EXPECT_EQ(opens(), 1);
  const uint32_t before = cluster_.Group(run, 0).generation();
  EXPECT_EQ(agg(0).shards.at(run).generations.at(0), before);
  cluster_.Fail(cluster_.Lead(run, 0));
  const uint32_t after = cluster_.Group(run, 0).generation();
  ASSERT_GT(after, before);
  EXPECT_EQ(agg(0).shards.at(run).generations.at(0), after);
  EXPECT_EQ(opens(), 1);
  cluster_.Reconnect(agg(0));
  EXPECT_EQ(opens(), 2) << "after a reconnect, OpenRun carries all fences";
}

TEST_F(MachineShardsTest, AggregatorsReceiveTheKeyOfTheGeneration) {
  const std::string run = Begin();
  const auto key_at = [&](const FakeAggregator& aggregator) {
    return aggregator.shards.at(run).keys.at(0);
  };
  const std::string first = cluster_.Lead(run, 0).assignment->key();
  EXPECT_EQ(first.size(), 16u);
  EXPECT_EQ(key_at(agg(0)), first);
  EXPECT_EQ(key_at(agg(1)), first);
  cluster_.Reconnect(agg(1));
  EXPECT_EQ(key_at(agg(1)), first) << "with OpenRun";
  cluster_.Fail(cluster_.Lead(run, 0));
  const std::string second = cluster_.Lead(run, 0).assignment->key();
  EXPECT_NE(second, first);
  EXPECT_EQ(key_at(agg(0)), second) << "with Fence";
  // While the group waits for a worker, no generation may call.
  for (FakeWorker& worker : cluster_.workers()) worker.alive = false;
  for (FakeWorker& worker : cluster_.workers()) worker.connection = 0;
  cluster_.Run(absl::Minutes(1));
  ASSERT_EQ(cluster_.RunStatus(run).groups_alive(), 0u);
  EXPECT_EQ(key_at(agg(0)), "");
  cluster_.Reconnect(agg(1));
  EXPECT_EQ(key_at(agg(1)), "");
}

// The queue of a stream holds 1,024 messages.
TEST_F(MachineShardsTest, ManyGroupsAreFencedByFewMessages) {
  constexpr uint32_t kGroups = 1200;
  AddMembers(2, kGroups);
  cluster_.behaviour.load = false;
  const std::string run = cluster_.Submit(MakeSpec(kGroups, 1, 5, 100));
  cluster_.Run(absl::ZeroDuration());
  EXPECT_LT(agg(0).received.size(), 100u) << "forming";
  ASSERT_EQ(cluster_.RunStatus(run).groups_alive(), kGroups);
  // All leases end in one event.
  for (FakeWorker& worker : cluster_.workers()) worker.alive = false;
  for (FakeWorker& worker : cluster_.workers()) worker.connection = 0;
  agg(0).received.clear();
  cluster_.Run(absl::Minutes(1));
  ASSERT_EQ(cluster_.RunStatus(run).groups_alive(), 0u);
  EXPECT_LT(agg(0).received.size(), 100u) << "fencing";
  for (const auto& [group, generation] : agg(0).shards.at(run).generations) {
    EXPECT_GT(generation, kGroups) << group;
  }
}

TEST_F(MachineShardsTest, RestartRaisesEpochAndKeepsKeys) {
  AddMembers(1, 2);
  cluster_.behaviour.prepare = false;
  const std::string run = cluster_.Submit(MakeSpec(1, 2, 5, 100));
  FakeWorker& first = cluster_.workers()[0];
  FakeWorker& second = cluster_.workers()[1];
  ASSERT_TRUE(first.assignment.has_value() && second.assignment.has_value());
  const std::string key = first.assignment->key();
  EXPECT_EQ(key.size(), 16u);
  EXPECT_EQ(second.assignment->key(), key);
  const uint64_t epoch = first.received.back().epoch();
  EXPECT_GT(epoch, 0u);
  cluster_.RestartCoordinator();
  cluster_.Run(absl::Seconds(1));
  EXPECT_GT(first.received.back().epoch(), epoch);
  EXPECT_EQ(first.assignment->key(), key) << "the same generation";
  cluster_.Fail(first);
  EXPECT_NE(first.assignment->key(), key) << "another generation";
}

// A rank knows the key of its generation. Keys that were outputs of a generator of random numbers,
// whose function can be inverted (base/random.h), would reveal those of all other generations.
TEST_F(MachineShardsTest, KeyDoesNotRevealThoseOfOtherGenerations) {
  constexpr uint64_t kGolden = 0x9e3779b97f4a7c15ULL;
  const auto mix = [](uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
  };
  const auto invert = [](uint64_t x) {
    x = (x ^ (x >> 31) ^ (x >> 62)) * 0x319642b2d24d8ec3ULL;
    x = (x ^ (x >> 27) ^ (x >> 54)) * 0x96de1b173f119089ULL;
    return x ^ (x >> 30) ^ (x >> 60);
  };
  ASSERT_EQ(invert(mix(12345)), 12345u);
  AddMembers(1, 1);
  cluster_.behaviour.prepare = false;
  cluster_.Submit(MakeSpec(1, 1, 5, 100));
  FakeWorker& worker = cluster_.workers()[0];
  const auto word = [&] {
    uint64_t bits = 0;
    std::memcpy(&bits, worker.assignment->key().data(), sizeof(bits));
    return bits;
  };
  const uint64_t secret =
      invert(word()) - kGolden * (worker.assignment->place().generation() + uint64_t{1});
  cluster_.Fail(worker);
  EXPECT_NE(word(),
            mix(secret + kGolden * (worker.assignment->place().generation() + uint64_t{1})));
}

TEST_F(MachineShardsTest, LostAnswerIsRequestedAgain) {
  const std::string run = Begin();
  cluster_.behaviour.apply = false;
  Train(run);
  cluster_.behaviour.apply = true;
  for (int time = 0; time < 2; ++time) {
    cluster_.Reconnect(agg(0));
    EXPECT_EQ(cluster_.RunStatus(run).version(), 0u) << "the other shard has not applied";
  }
  cluster_.Reconnect(agg(1));
  EXPECT_EQ(cluster_.RunStatus(run).version(), 1u);
}

TEST_F(MachineShardsTest, VersionZeroErrorFailsRun) {
  AddMembers(1, 1);
  cluster_.behaviour.open_error = "/ckpt/step-3: no such file";
  const std::string run = cluster_.Submit(MakeSpec(1, 1, 5, 100));
  ASSERT_EQ(RunStateOf(run), v1::RUN_STATE_FAILED);
  EXPECT_THAT(ReasonOf(run), AllOf(HasSubstr("agg-0"), HasSubstr("/ckpt/step-3: no such file")));
  // The members are available to the next run.
  cluster_.behaviour.open_error.clear();
  cluster_.behaviour.train = true;
  const std::string next = cluster_.Submit(MakeSpec(1, 1, 5, 100));
  ASSERT_TRUE(cluster_.RunUntilEnded(next));
  EXPECT_EQ(RunStateOf(next), v1::RUN_STATE_DONE);
}

// An answer belongs to the number of shards for which OpenRun was sent: the digest depends on it.
TEST_F(MachineShardsTest, AnswerBeforeReassignmentIsIgnored) {
  const auto join = [&](const std::string& name) {
    const ConnectionId connection = cluster_.Open();
    v1::Hello hello;
    hello.set_protocol(kProtocol);
    hello.set_role(v1::ROLE_AGGREGATOR);
    hello.set_name(name);
    hello.set_incarnation(name);
    hello.set_address(absl::StrCat(name, ":1"));
    cluster_.SendFrom(connection, hello);
    return connection;
  };
  const ConnectionId stays = join("agg-0");
  const ConnectionId leaves = join("agg-1");
  cluster_.behaviour.load = false;
  cluster_.AddWorker("w0");
  const std::string run = cluster_.Submit(MakeSpec(1, 1, 5, 100));
  cluster_.SendFrom(leaves, v1::Goodbye());
  ASSERT_EQ(cluster_.SentTo(stays).back().open_run().shards(), 1u);

  v1::RunOpened opened;
  opened.set_run(run);
  opened.set_shards(2);
  opened.set_digest(11);
  cluster_.SendFrom(stays, opened);
  EXPECT_FALSE(cluster_.Commit(run, 0).has_value());
  EXPECT_EQ(cluster_.Counter("refused_malformed"), 1u);

  opened.set_shards(1);
  opened.set_digest(22);
  cluster_.SendFrom(stays, opened);
  ASSERT_TRUE(cluster_.Commit(run, 0).has_value());
  EXPECT_EQ(cluster_.Commit(run, 0)->digest(), 22u);
}

struct WrongDisk {
  const char* label;
  void (*change)(std::map<std::string, FakeAggregator::Shard>& shards);
  const char* reason;
};
class MachineWrongDiskTest : public MachineShardsTest,
                             public ::testing::WithParamInterface<WrongDisk> {};

TEST_P(MachineWrongDiskTest, IsRestored) {
  const std::string run = Begin();
  Train(run);
  cluster_.Kill(agg(0));
  GetParam().change(agg(0).shards);
  cluster_.behaviour.restage = false;
  cluster_.Restart(agg(0));
  EXPECT_EQ(ReasonOf(run), "shard 0 on agg-0 is being restored from group 0");
  cluster_.behaviour.restage = true;
  cluster_.Reconnect(cluster_.workers()[0]);
  EXPECT_EQ(ReasonOf(run), "");
  Train(run);
  EXPECT_EQ(cluster_.RunStatus(run).version(), 2u);
}

TEST_P(MachineWrongDiskTest, ParksRunWithoutGroups) {
  const std::string run = Begin();
  Train(run);
  cluster_.Kill(agg(0));
  GetParam().change(agg(0).shards);
  cluster_.Kill(cluster_.workers()[0]);
  cluster_.Run(absl::Minutes(1));
  cluster_.Restart(agg(0));
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_PARKED);
  EXPECT_THAT(ReasonOf(run), HasSubstr(GetParam().reason));
}

INSTANTIATE_TEST_SUITE_P(
    All, MachineWrongDiskTest,
    ::testing::Values(WrongDisk{"LostData", [](auto& shards) { shards.clear(); },
                                "agg-0 has lost the values of shard 0"},
                      WrongDisk{"CorruptData",
                                [](auto& shards) { shards.begin()->second.digests[1] ^= 1; },
                                "corrupt"}),
    [](const auto& info) { return info.param.label; });

// The coordinator's store is older than the aggregator's. Nothing is discarded, although the groups
// could restore the version that the store has.
TEST_F(MachineShardsTest, NewerValuesAreKept) {
  const std::string run = Begin();
  Train(run);
  cluster_.Kill(agg(0));
  agg(0).shards.at(run).version = 4;
  agg(0).shards.at(run).digests[4] = 44;
  cluster_.Restart(agg(0));
  EXPECT_THAT(ReasonOf(run), HasSubstr("its record is older"));
  EXPECT_THAT(ReasonOf(run), HasSubstr("does not store the order that made version 4"));
  cluster_.Run(absl::Minutes(1));
  EXPECT_EQ(agg(0).shards.at(run).digests.at(4), 44u);
}

TEST_F(MachineShardsTest, ApplyErrorFailsRun) {
  const std::string run = Begin();
  cluster_.behaviour.apply = false;
  Train(run);
  v1::Applied applied;
  applied.set_run(run);
  applied.set_round(1);
  applied.set_error("group 0 does not cover the shard");
  cluster_.Send(agg(0), applied);
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_FAILED);
  EXPECT_THAT(ReasonOf(run), HasSubstr("group 0 does not cover the shard"));
  EXPECT_EQ(cluster_.Counter("runs_failed"), 1u);
  EXPECT_EQ(cluster_.Counter("runs_stopped"), 0u);
}

TEST_F(MachineShardsTest, MismatchedAnswersAreIgnored) {
  const std::string run = Begin();
  cluster_.behaviour.apply = false;
  Train(run);
  v1::Applied applied;
  applied.set_run(run);
  applied.set_round(1);
  for (const uint32_t shard : {1, 7}) {  // the other aggregator's shard, and an unknown one
    applied.set_shard(shard);
    cluster_.Send(agg(0), applied);
  }
  EXPECT_EQ(cluster_.Counter("refused_malformed"), 2u);
  applied.set_shard(0);
  applied.set_round(9);
  cluster_.Send(agg(0), applied);
  applied.set_run("run-5");
  cluster_.Send(agg(0), applied);
  EXPECT_EQ(cluster_.Counter("refused_unknown_run"), 1u);
  EXPECT_EQ(cluster_.RunStatus(run).version(), 0u);
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_RUNNING);
}

TEST_F(MachineShardsTest, AnswersOfOtherShardsAreNotTaken) {
  const std::string run = Begin();
  cluster_.behaviour.open = false;
  cluster_.Reconnect(agg(0));
  v1::RunOpened opened;
  opened.set_run(run);
  opened.set_digest(agg(0).shards.at(run).digests.at(0));
  opened.set_shards(3);
  cluster_.Send(agg(0), opened);
  EXPECT_EQ(cluster_.Counter("refused_malformed"), 1U) << "another number of shards";
  opened.set_shards(2);
  opened.set_shard(1);
  cluster_.Send(agg(0), opened);
  EXPECT_EQ(cluster_.Counter("refused_malformed"), 2U) << "the shard of another aggregator";
  opened.set_shard(0);
  cluster_.Send(agg(0), opened);
  EXPECT_EQ(cluster_.Counter("refused_malformed"), 2U);
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

// A rank cuts the model by the number of shards, and trains alone if there are none.
TEST_F(MachineShardsTest, AssignmentContainsShardsOfAbsentAggregators) {
  Begin();
  cluster_.behaviour.prepare = false;
  FakeWorker& worker = cluster_.workers()[0];
  cluster_.Fail(worker);
  ASSERT_TRUE(cluster_.RunUntil([&] { return worker.assignment.has_value(); }));
  cluster_.Kill(agg(1));
  cluster_.Run(absl::Seconds(15));
  worker.received.clear();
  // The coordinator has not noticed the end of the old stream.
  cluster_.Connect(worker);
  const auto repeated = std::find_if(worker.received.begin(), worker.received.end(),
                                     [](const auto& message) { return message.has_assignment(); });
  ASSERT_NE(repeated, worker.received.end());
  const v1::Assignment& assignment = repeated->assignment();
  ASSERT_EQ(assignment.shards_size(), 2);
  EXPECT_EQ(assignment.shards(0).address(), agg(0).address);
  EXPECT_EQ(assignment.shards(1).shard(), 1u);
  EXPECT_EQ(assignment.shards(1).address(), "");
  EXPECT_EQ(assignment.shards(1).name(), agg(1).name);
}

TEST_F(MachineShardsTest, EndedRunIsClosedOnReturn) {
  const std::string run = Begin();
  cluster_.Kill(agg(0));
  cluster_.Kill(agg(1));
  cluster_.StopRun(run);
  cluster_.Restart(agg(0));
  EXPECT_EQ(agg(0).received.back().close_run().run(), run);
  // The same run id with another lineage is another run, which is not closed.
  agg(1).shards.at(run).lineage = "another lineage";
  cluster_.Restart(agg(1));
  EXPECT_EQ(cluster_.Counter("refused_wrong_lineage"), 1u);
  EXPECT_FALSE(agg(1).received.back().has_close_run());
}

TEST_F(MachineShardsTest, ShardLostBeforeStartIsReplaced) {
  FakeAggregator& lost = cluster_.AddAggregator("agg-0");
  v1::RunSpec spec = MakeSpec(1, 1, 5, 10);
  spec.mutable_cluster()->set_aggregators(1);
  cluster_.AddWorker("w0");
  cluster_.behaviour.train = true;
  // The aggregator is lost before it receives OpenRun.
  cluster_.Do(SubmitRun{.request = 900, .spec = spec});
  lost.alive = false;
  lost.connection = 0;
  cluster_.AddAggregator("agg-1");
  const std::string run = cluster_.last_run;
  ASSERT_TRUE(cluster_.RunUntilEnded(run));
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_DONE);
  EXPECT_EQ(cluster_.aggregators()[1].shards.count(run), 1u);
}

TEST_F(MachineShardsTest, NoGroupWithoutAggregator) {
  const std::string run = Begin();
  cluster_.Kill(agg(0));
  cluster_.Fail(cluster_.Lead(run, 0));
  EXPECT_EQ(StateOf(run), v1::GROUP_STATE_WAITING);
  cluster_.Restart(agg(0));
  EXPECT_EQ(StateOf(run), v1::GROUP_STATE_TRAINING);
}

}  // namespace
}  // namespace cadre::testing
