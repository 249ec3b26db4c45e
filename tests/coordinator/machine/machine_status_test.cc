// What the coordinator shows of itself, its members and where the versions of a run are.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/digest.h"
#include "base/protocol.h"
#include "tests/base/expect.h"
#include "tests/coordinator/machine/fake_cluster.h"

namespace cadre::testing {
namespace {

using ::testing::HasSubstr;

class MachineStatusTest : public MachineTest {
 protected:
  MachineStatusTest()
      : MachineTest([](Machine::Options& options) {
          options.insecure = true;
          options.version = "1.2";
          options.retention = {
              .keep_for = absl::Hours(100), .keep_bytes = 1'000'000, .keep_without_version = 3};
        }) {}
  absl::StatusOr<v1::StatusReply> Page(const std::string& token, const std::string& run = "") {
    v1::StatusRequest request;
    request.set_page_token(token);
    request.set_run(run);
    return cluster_.machine().Status(cluster_.now(), request);
  }
};

TEST_F(MachineStatusTest, CoordinatorAndRetention) {
  const std::string run = SubmitTo(1, 1, MakeSpec(1, 1, 5, 10));
  cluster_.behaviour.train = true;
  ASSERT_TRUE(cluster_.RunUntilEnded(run));
  cluster_.Submit(MakeSpec(2, 1, 5, 10));
  cluster_.RestartCoordinator();
  cluster_.Run(absl::Seconds(3));
  v1::CoordinatorStatus status = cluster_.Status().coordinator();
  EXPECT_EQ(status.protocol(), kProtocol);
  status.clear_protocol();
  EXPECT_EQ(status.DebugString(), Parse<v1::CoordinatorStatus>(R"(
      version: "1.2" uptime_seconds: 3 starts: 2 insecure: true
      retention { keep_seconds: 360000 keep_bytes: 1000000 keep_without_version: 3 runs: 1
                  stored_bytes: 12000 })")
                                      .DebugString())
      << "a run that has not ended takes no part";
}

TEST_F(MachineStatusTest, Aggregator) {
  const std::string run = SubmitTo(1, 1, MakeSpec(1, 1, 5, 100));
  v1::Heartbeat heartbeat;
  (*heartbeat.mutable_counters())["disk_free_bytes"] = 50;
  (*heartbeat.mutable_counters())["disk_reserved_bytes"] = 20;
  (*heartbeat.mutable_counters())["refused_malformed"] = 2;
  v1::DelayedOrder& order = *heartbeat.add_delayed_orders();
  order.set_run(run);
  order.set_order("apply");
  order.set_seconds(31);
  cluster_.Send(cluster_.aggregators()[0], heartbeat);
  const v1::StatusReply reply = cluster_.Status();
  const v1::AggregatorStatus& aggregator = reply.aggregators(0);
  EXPECT_EQ(aggregator.free_bytes(), 50U);
  EXPECT_EQ(aggregator.reserved_bytes(), 20U);
  EXPECT_EQ(aggregator.delayed_orders_size(), 1);
  EXPECT_EQ(aggregator.shards_size(), 1);
  EXPECT_EQ(aggregator.member().name(), "agg-0");
  EXPECT_EQ(aggregator.member().counters().at("disk_free_bytes"), 50U);
  EXPECT_FALSE(aggregator.member().cordoned());
  EXPECT_EQ(reply.counters().at("refused_malformed"), 2U) << "with those of the members";
  EXPECT_FALSE(reply.counters().contains("disk_free_bytes"));
  cluster_.Cordon("agg-0");
  EXPECT_TRUE(cluster_.Status().aggregators(0).member().cordoned());
}

TEST_F(MachineStatusTest, Worker) {
  FakeWorker& worker = cluster_.AddWorker("w0", "h0", "a device");
  cluster_.Run(absl::Milliseconds(1));
  v1::MemberStatus status = cluster_.Status().workers(0);
  EXPECT_EQ(status.DebugString(), Parse<v1::MemberStatus>(R"(
      member_id: "w1" name: "w0" host: "h0" address: "w0:1" device: "a device" connected: true
      heartbeat_age_seconds: 0.001)")
                                      .DebugString());
  cluster_.Cut(worker);
  EXPECT_FALSE(cluster_.Status().workers(0).connected());
  cluster_.Cordon("w0");
  EXPECT_TRUE(cluster_.Status().workers(0).cordoned());
}

// Its own failures are shown unless those of its host exclude it for longer.
TEST_F(MachineStatusTest, StandingOfAWorkerAndItsHost) {
  AddMembers(1, 0);
  for (const char* name : {"a", "b", "c"}) cluster_.AddWorker(name, "h0");
  cluster_.AddWorker("d", "h1");
  const std::string run = cluster_.Submit(MakeSpec(4, 1, 5, 100));
  const auto fail = [&](int worker) {
    FakeWorker& failed = cluster_.workers()[worker];
    ASSERT_TRUE(cluster_.RunUntil([&] { return failed.assignment.has_value(); }));
    cluster_.Fail(failed, "no such file", v1::FAILURE_CAUSE_DATA);
  };
  fail(0);
  v1::StatusReply reply = cluster_.Status();
  EXPECT_EQ(reply.workers(0).standing().failures(), 1U);
  EXPECT_THAT(reply.workers(0).standing().reason(), HasSubstr("no such file"));
  EXPECT_GT(reply.workers(0).standing().wait_seconds(), 0);
  EXPECT_FALSE(reply.workers(1).has_standing()) << "one worker says nothing of its host";
  fail(1);
  reply = cluster_.Status();
  ASSERT_EQ(reply.hosts_size(), 1);
  EXPECT_EQ(reply.hosts(0).host(), "h0");
  EXPECT_EQ(reply.hosts(0).standing().failures(), 2U);
  EXPECT_GT(reply.workers(2).standing().wait_seconds(), 0) << "the host is excluded";
  EXPECT_EQ(reply.workers(2).standing().failures(), 2U);
  EXPECT_FALSE(reply.workers(3).has_standing());
}

TEST_F(MachineStatusTest, CordonedHost) {
  cluster_.AddWorker("a", "h0");
  cluster_.Cordon("h0");
  const v1::StatusReply reply = cluster_.Status();
  ASSERT_EQ(reply.hosts_size(), 1);
  EXPECT_EQ(reply.hosts(0).standing().reason(), "cordoned");
}

TEST_F(MachineStatusTest, NumbersOfMembers) {
  const std::string run = SubmitTo(3, 4, MakeSpec(2, 1, 5, 100));
  const auto counts = [&] {
    const MemberCounts c = cluster_.machine().CountMembers();
    return std::vector<int>{c.idle,         c.busy,        c.excluded,
                            c.workers_away, c.aggregators, c.aggregators_away};
  };
  EXPECT_EQ(counts(), (std::vector<int>{2, 2, 0, 0, 3, 0}));
  cluster_.Cordon("w3");
  EXPECT_EQ(counts(), (std::vector<int>{1, 2, 1, 0, 3, 0}));
  cluster_.Cut(cluster_.workers()[2]);
  cluster_.Cut(cluster_.aggregators()[0]);
  EXPECT_EQ(counts(), (std::vector<int>{0, 2, 1, 1, 2, 1}));
  cluster_.Kill(cluster_.aggregators()[1]);
  cluster_.Run(absl::Minutes(2));
  EXPECT_EQ(counts()[5], 1) << "its lease has ended, and it has a shard of a live run";
  cluster_.StopRun(run);
  EXPECT_EQ(counts()[5], 0);
}

TEST_F(MachineStatusTest, TimeSinceTheRoundWasOpened) {
  AddMembers(1, 0);
  const std::string run = cluster_.Submit(MakeSpec(1, 1, 5, 100));
  EXPECT_EQ(cluster_.machine().Gauges(run).round_opened_ms, 0) << "it has not started";
  EXPECT_EQ(cluster_.machine().Gauges("run-9").round_opened_ms, 0);
  cluster_.AddWorkers(1);
  EXPECT_EQ(cluster_.machine().Gauges(run).round_opened_ms, absl::ToUnixMillis(cluster_.now()));
  cluster_.StopRun(run);
  EXPECT_EQ(cluster_.machine().Gauges(run).round_opened_ms, 0);
}

TEST_F(MachineStatusTest, PageTokens) {
  const std::string first = SubmitTo(1, 3, MakeSpec(2, 1, 5, 100));
  const std::string second = cluster_.Submit(MakeSpec(1, 1, 5, 100));
  for (const char* token : {"group", "group 1", "group x 0", "group 1 x", "group 1 0 0", "member",
                            "worker w1", "member w1 w2", "set 1 0"}) {
    EXPECT_THAT(Page(token), IsError(kInvalidArgument, "page_token")) << token;
  }
  ASSERT_THAT(Page("group 1 1"), IsOk());
  EXPECT_EQ(Page("group 1 1")->groups_size(), 2) << "the second group of the first run";
  EXPECT_EQ(Page("group 1 1")->groups(0).group(), 1U);
  EXPECT_EQ(Page("group 1 1")->runs_size(), 0) << "runs are on the first page";
  EXPECT_EQ(Page("group 2 0")->groups_size(), 1);
  EXPECT_EQ(Page("group 3 0")->groups_size(), 0);
  EXPECT_EQ(Page("group 3 0")->workers_size(), 3);
  EXPECT_EQ(Page("member w2")->groups_size(), 0);
  EXPECT_EQ(Page("member w3")->workers_size() + Page("member w3")->aggregators_size(), 2);
  EXPECT_EQ(Page("", first)->runs_size(), 1);
  EXPECT_EQ(Page("", first)->groups_size(), 2);
  EXPECT_THAT(Page("", "run-9"), IsError(kNotFound, "run-9"));
}

TEST_F(MachineStatusTest, PageHasAThousandItemsByDefault) {
  cluster_.AddWorkers(1001);
  const auto first = Page("");
  ASSERT_THAT(first, IsOk());
  EXPECT_EQ(first->workers_size(), 1000);
  EXPECT_EQ(Page(first->next_page_token())->workers_size(), 1);
  EXPECT_EQ(Page(first->next_page_token())->next_page_token(), "");
}

TEST_F(MachineStatusTest, PageIsFullAfterHalfAMegabyte) {
  for (int i = 0; i < 6; ++i) {
    cluster_.AddWorker("w" + std::to_string(i), "host", std::string(200 << 10, 'x'));
  }
  EXPECT_EQ(Page("")->workers_size(), 3);
}

TEST_F(MachineStatusTest, WhereTheNewestVersionIs) {
  v1::RunSpec spec = MakeSpec(1, 1, 5, 100);
  const std::string run = SubmitTo(2, 0, spec);
  v1::LocateRequest request;
  request.set_run(run);
  EXPECT_THAT(cluster_.machine().Locate(request),
              IsError(absl::StatusCode::kFailedPrecondition, "has no version yet"));
  cluster_.AddWorkers(1);
  Train(run);
  const auto located = cluster_.machine().Locate(request);
  ASSERT_THAT(located, IsOk());
  EXPECT_EQ(located->version(), 1U);
  EXPECT_EQ(located->step(), 5U);
  EXPECT_EQ(DigestHex(located->digest()), cluster_.RunStatus(run).digest());
  EXPECT_EQ(located->spec().name(), "test");
  EXPECT_THAT(located->lineage(), HasSubstr(run + "."));
  ASSERT_EQ(located->shards_size(), 2);
  EXPECT_EQ(located->shards(0).aggregator(), "agg-0");
  EXPECT_EQ(located->shards(0).address(), "agg-0:1");
}

// Two groups of one worker with 1000 parameters, of which the first one reports its progress in the
// second round. A group stages 1000 bytes, pulls 100, and has 10 bytes of overhead each time.
class RunningStatusTest : public MachineStatusTest {
 protected:
  std::string BeginSecondRound() {
    const std::string run = SubmitTo(2, 2, MakeSpec(2, 1, 5, 100));
    cluster_.Run(absl::Seconds(4));
    for (const uint32_t group : {0, 1}) Train(run, group);
    cluster_.Run(absl::Seconds(6));
    v1::Progress progress = Parse<v1::Progress>(R"(
        step: 8 loss: 0.5 samples_per_second: 64 rate: 0.25 solo_steps: 3 step_seconds: 0.5
        exposed_seconds: 0.125)");
    *progress.mutable_place() = cluster_.Lead(run, 0).place();
    cluster_.Send(cluster_.Lead(run, 0), progress);
    return run;
  }
};

TEST_F(RunningStatusTest, RunInTheSecondRound) {
  const std::string run = BeginSecondRound();
  const std::string digest = DigestHex(cluster_.Commit(run, 1)->digest());
  v1::RunStatus expected = Parse<v1::RunStatus>(R"(
      name: "test" version: 1 step: 5 total_steps: 100 epoch: 0.5 total_epochs: 10 loss: 1
      samples_per_second: 32 seconds: 10 rounds_committed: 1
      payload_bytes_across_groups: 2200 bytes_across_groups: 2240 bytes_up: 2020 bytes_down: 220
      bytes_across_groups_synchronous: 40000 traffic_factor: 35.714285714285715
      exposed_exchange_seconds: 0.25 transfer_seconds: 1 parameters: 1000 samples: 320 groups: 2
      kept_versions { version: 1 step: 5 } kept_versions { digest: "00000000000007d1" })");
  expected.set_run(run);
  expected.set_lineage(cluster_.StoredRun(run).lineage());
  expected.set_digest(digest);
  expected.mutable_kept_versions(0)->set_digest(digest);
  v1::RunStatus trains = expected;
  trains.set_state(v1::RUN_STATE_RUNNING);
  trains.set_rate(0.25);
  trains.set_groups_alive(2);
  trains.set_eta_seconds(10.0 / 8 * (100 - 8));
  EXPECT_EQ(cluster_.RunStatus(run).DebugString(), trains.DebugString());
  cluster_.StopRun(run);
  v1::RunStatus stopped = expected;
  stopped.set_state(v1::RUN_STATE_STOPPED);
  stopped.set_reason("enough");
  stopped.set_stored_bytes(2 * 4 * 1000);
  EXPECT_EQ(cluster_.RunStatus(run).DebugString(), stopped.DebugString());
}

TEST_F(RunningStatusTest, GroupsInTheSecondRound) {
  const std::string run = BeginSecondRound();
  v1::GroupStatus expected = Parse<v1::GroupStatus>(R"(
      version: 1 mesh { key: "data" value: 1 } plan { mesh { name: "data" size: 1 } }
      collectives: AUTO overlap: ON members { memory {} })");
  expected.set_run(run);
  v1::GroupStatus first = expected;
  first.MergeFrom(Parse<v1::GroupStatus>(R"(
      generation: 1 state: GROUP_STATE_SOLO step: 8 loss: 0.5 samples_per_second: 64 solo_steps: 3
      step_seconds: 0.5 exposed_seconds: 0.125)"));
  first.mutable_members(0)->set_member_id("w3");
  first.mutable_members(0)->set_name("w0");
  EXPECT_EQ(cluster_.Group(run, 0).DebugString(), first.DebugString());
  v1::GroupStatus second = expected;
  second.MergeFrom(Parse<v1::GroupStatus>(R"(
      group: 1 generation: 2 state: GROUP_STATE_TRAINING step: 5 loss: 1)"));
  second.mutable_members(0)->set_member_id("w4");
  second.mutable_members(0)->set_name("w1");
  EXPECT_EQ(cluster_.Group(run, 1).DebugString(), second.DebugString());
}

TEST_F(MachineStatusTest, UpdateOfARunThatEnds) {
  const std::string run = SubmitTo(1, 1, MakeSpec(1, 1, 5, 100));
  v1::WatchUpdate update = cluster_.machine().Update(run, cluster_.now());
  EXPECT_EQ(update.time_ms(), absl::ToUnixMillis(cluster_.now()));
  EXPECT_EQ(update.run().run(), run);
  ASSERT_EQ(update.groups_size(), 1);
  EXPECT_FALSE(update.groups(0).has_plan());
  cluster_.StopRun(run);
  EXPECT_EQ(cluster_.machine().Update(run, cluster_.now()).groups_size(), 0);
  EXPECT_EQ(cluster_.machine().List(cluster_.now()).runs_size(), 1);
  EXPECT_EQ(cluster_.machine().Revisions("").size(), 1U);
  EXPECT_EQ(cluster_.machine().Revisions("run-9").size(), 0U);
}

}  // namespace
}  // namespace cadre::testing
