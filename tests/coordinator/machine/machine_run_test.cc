// The life of runs, from submission to every kind of end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "base/protocol.h"
#include "coordinator/store/keys.h"
#include "tests/base/expect.h"
#include "tests/coordinator/machine/fake_cluster.h"

namespace cadre::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

class MachineRunTest : public MachineTest {
 protected:
  // Lets the groups train until the run has ended.
  v1::RunStatus Finish(const std::string& run) {
    cluster_.behaviour.train = true;
    EXPECT_TRUE(cluster_.RunUntilEnded(run));
    return cluster_.RunStatus(run);
  }
  static v1::RunSpec FromCheckpoint(v1::RunSpec spec, uint32_t step) {
    spec.mutable_checkpoint()->set_from("/ckpt");
    spec.mutable_checkpoint()->set_from_step(step);
    return spec;
  }
};

TEST_F(MachineRunTest, EvaluationsAfterACheckpointAreAtMultiples) {
  v1::RunSpec spec = FromCheckpoint(MakeSpec(1, 1, 7, 530), 500);
  spec.mutable_evaluation()->set_every_steps(10);
  const std::string run = SubmitTo(1, 1, spec);
  Finish(run);
  std::vector<uint32_t> steps;
  const v1::HistoryReply history = cluster_.History(run);
  for (const v1::HistoryEntry& entry : history.entries()) {
    if (entry.has_evaluation()) steps.push_back(entry.evaluation().step());
  }
  EXPECT_THAT(steps, ElementsAre(514, 521, 530)) << "the first versions from 510, 520 and 530 on";
}

TEST_F(MachineRunTest, TwoGroupsFinish) {
  const std::string run = SubmitTo(2, 4, MakeSpec(2, 2, 5, 20));
  EXPECT_EQ(run, "run-1-test");
  const v1::RunStatus status = Finish(run);
  EXPECT_EQ(status.state(), v1::RUN_STATE_DONE) << status.reason();
  EXPECT_EQ(status.version(), 4u);
  EXPECT_EQ(status.rounds_committed(), 4u);
  EXPECT_EQ(status.step(), 20u);
  EXPECT_EQ(status.total_steps(), 20u);
  EXPECT_EQ(status.samples(), 2u * 20 * 32);
  EXPECT_EQ(status.test().version(), 4u);
  EXPECT_EQ(status.test().samples(), kTestSamples);
  EXPECT_DOUBLE_EQ(status.test().accuracy(), 0.5);
  EXPECT_DOUBLE_EQ(status.test().loss(), 0.5);
  // 4 rounds of 2 groups; in each, a group stages 1000 bytes and pulls 100.
  EXPECT_EQ(status.payload_bytes_across_groups(), 4u * 2 * 1100);
  EXPECT_EQ(status.bytes_across_groups(), 4u * 2 * 1120);
  EXPECT_DOUBLE_EQ(status.traffic_factor(), 8.0 * 1000 * 20 * 2 / (4 * 2 * 1120));
  EXPECT_EQ(status.exposed_exchange_seconds(), 4 * 0.25);
  EXPECT_EQ(status.transfer_seconds(), 4 * 1);
  EXPECT_EQ(status.bytes_across_groups_synchronous(), 2u * 1000 * 4 * 20);
  EXPECT_EQ(status.test().seconds(), 0.5);
  const v1::HistoryReply history = cluster_.History(run);
  const auto evaluations =
      absl::c_count_if(history.entries(), [](const auto& entry) { return entry.has_evaluation(); });
  EXPECT_EQ(evaluations, 2) << "of both epochs";
  EXPECT_EQ(status.evaluation_seconds(), 0.5 * static_cast<double>(evaluations));
  EXPECT_FALSE(status.digest().empty());
  for (uint32_t round = 0; round <= 4; ++round) {
    ASSERT_TRUE(cluster_.Commit(run, round).has_value()) << round;
    EXPECT_TRUE(cluster_.Commit(run, round)->committed());
  }
  EXPECT_EQ(cluster_.Commit(run, 4)->participants_size(), 2);
  for (const FakeWorker& worker : cluster_.workers()) EXPECT_FALSE(worker.assignment.has_value());
  EXPECT_EQ(cluster_.Counter("rounds_committed"), 4u);
  EXPECT_EQ(cluster_.Counter("groups_formed"), 2u);
  EXPECT_EQ(cluster_.Counter("groups_failed"), 0u);
  EXPECT_EQ(cluster_.Counter("refused_stale_generation"), 0u);
  EXPECT_EQ(cluster_.aggregators()[0].received.back().body_case(),
            v1::CoordinatorMessage::kCloseRun);
}

TEST(MachineLimitsTest, EqualEventsGiveEqualStores) {
  std::map<std::string, std::string> stores[2];
  for (auto& store : stores) {
    FakeCluster cluster;
    cluster.AddAggregator("agg-0");
    cluster.AddWorkers(4);
    ASSERT_TRUE(cluster.RunUntilEnded(cluster.Submit(MakeSpec(2, 2, 5, 20))));
    store = cluster.store();
  }
  EXPECT_EQ(stores[0], stores[1]);
}

TEST_F(MachineRunTest, QueuedUntilMembersJoin) {
  v1::RunSpec spec = MakeSpec(1, 2, 5, 10);
  spec.mutable_cluster()->set_aggregators(2);
  const std::string run = cluster_.Submit(spec);
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_QUEUED);
  EXPECT_THAT(ReasonOf(run), HasSubstr("waiting for aggregators: 0 of 2"));
  AddMembers(1, 1);
  cluster_.Run(absl::Seconds(30));
  EXPECT_THAT(ReasonOf(run), HasSubstr("waiting for aggregators: 1 of 2"));
  cluster_.AddAggregator("agg-1");
  cluster_.AddAggregator("agg-2");
  cluster_.Run(absl::Seconds(30));
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_QUEUED);
  EXPECT_THAT(ReasonOf(run),
              HasSubstr("waiting for workers: a group needs 2, and only 1 can be used"));
  cluster_.AddWorkers(1);
  EXPECT_EQ(Finish(run).state(), v1::RUN_STATE_DONE);
}

TEST_F(MachineRunTest, NeverAveragingRunEvaluates) {
  cluster_.AddWorkers(2);
  // 640 samples and a batch of 32: an epoch has 20 steps.
  const v1::RunStatus status = Finish(cluster_.Submit(MakeSpec(1, 2, 0, 50)));
  EXPECT_EQ(status.state(), v1::RUN_STATE_DONE) << status.reason();
  EXPECT_EQ(status.step(), 50u);
  EXPECT_EQ(status.version(), 0u);
  EXPECT_EQ(status.rounds_committed(), 0u);
  EXPECT_EQ(status.samples(), 50u * 32);
  EXPECT_EQ(status.digest(), "000000000000004d");
  EXPECT_EQ(status.test().step(), 50u);
  EXPECT_EQ(status.bytes_across_groups(), 0u);
  EXPECT_EQ(status.bytes_across_groups_synchronous(), 0u);
  EXPECT_EQ(status.traffic_factor(), 0) << "there is nothing to compare with";
  int evaluations = 0;
  for (const v1::CoordinatorMessage& message : cluster_.workers()[0].received) {
    if (message.has_decision() && message.decision().evaluate_end() > 0) ++evaluations;
  }
  EXPECT_EQ(evaluations, 3) << "the run is evaluated at steps 20, 40 and 50";
}

// Without aggregators, the model is lost with its group.
TEST_F(MachineRunTest, LostModelRestartsRun) {
  cluster_.AddWorkers(1);
  for (const uint32_t first : {0, 40}) {  // from the seed at the last step; from a checkpoint
    const std::string run =
        cluster_.Submit(FromCheckpoint(MakeSpec(1, 1, 0, first == 0 ? 20 : 600), first));
    ASSERT_EQ(RunStateOf(run), v1::RUN_STATE_RUNNING);
    cluster_.behaviour.train = false;
    cluster_.behaviour.evaluate = false;
    Train(run);
    EXPECT_EQ(RunStateOf(run), first == 0 ? v1::RUN_STATE_FINISHING : v1::RUN_STATE_RUNNING);
    EXPECT_GT(cluster_.RunStatus(run).step(), first);
    EXPECT_EQ(cluster_.RunStatus(run).samples(), (cluster_.RunStatus(run).step() - first) * 32);
    cluster_.behaviour.evaluate = true;
    const uint32_t before = cluster_.Group(run, 0).generation();
    cluster_.Kill(cluster_.Lead(run, 0));
    cluster_.AddWorkers(1);
    ASSERT_TRUE(cluster_.RunUntil([&] { return cluster_.Group(run, 0).generation() > before; }));
    EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_RUNNING);
    EXPECT_EQ(cluster_.RunStatus(run).step(), first);
    EXPECT_EQ(cluster_.RunStatus(run).samples(), 0u);
    EXPECT_EQ(cluster_.Lead(run, 0).start->step(), first);
    EXPECT_EQ(Finish(run).state(), v1::RUN_STATE_DONE);
    cluster_.behaviour.train = false;
  }
}

TEST_F(MachineRunTest, EpochsNeedSampleCount) {
  AddMembers(1, 2);
  v1::RunSpec spec = MakeSpec(2, 1, 4, 0);
  spec.mutable_stop()->set_epochs(3);
  cluster_.behaviour.prepare = false;
  const std::string run = cluster_.Submit(spec);
  EXPECT_EQ(cluster_.RunStatus(run).total_steps(), 0u);
  EXPECT_EQ(ReasonOf(run), "workers are preparing");
  cluster_.behaviour.prepare = true;
  const v1::RunStatus status = Finish(run);
  EXPECT_EQ(status.total_steps(), 30u);  // 640 samples, 64 per step
  EXPECT_EQ(status.step(), 30u);
  EXPECT_EQ(status.version(), 8u);
  EXPECT_DOUBLE_EQ(status.epoch(), 3.0);
  EXPECT_DOUBLE_EQ(status.total_epochs(), 3.0);
}

TEST_F(MachineRunTest, EndsAtTargetAccuracy) {
  AddMembers(1, 2);
  v1::RunSpec spec = MakeSpec(2, 1, 5, 1000);
  spec.mutable_stop()->set_test_accuracy(0.5F);
  const v1::RunStatus status = Finish(cluster_.Submit(spec));
  EXPECT_EQ(status.state(), v1::RUN_STATE_DONE);
  EXPECT_LT(status.step(), 1000u);
  EXPECT_GE(status.test().accuracy(), 0.5);
  EXPECT_EQ(status.test().samples(), kTestSamples);
  for (const FakeWorker& worker : cluster_.workers()) EXPECT_FALSE(worker.assignment.has_value());
}

TEST_F(MachineRunTest, StopReleasesMembers) {
  const std::string run = SubmitTo(1, 1, MakeSpec(1, 1, 5, 1000));
  ASSERT_EQ(RunStateOf(run), v1::RUN_STATE_RUNNING);
  cluster_.StopRun(run);
  EXPECT_TRUE(cluster_.last_status.ok());
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_STOPPED);
  EXPECT_EQ(ReasonOf(run), "enough");
  EXPECT_FALSE(cluster_.workers()[0].assignment.has_value());
  EXPECT_EQ(cluster_.aggregators()[0].received.back().body_case(),
            v1::CoordinatorMessage::kCloseRun);
  cluster_.StopRun(run);
  EXPECT_TRUE(cluster_.last_status.ok()) << "a run may be stopped twice";
  cluster_.StopRun("run-9");
  EXPECT_EQ(cluster_.last_status.code(), absl::StatusCode::kNotFound);
}

TEST(MachineLimitsTest, InvalidSubmissions) {
  FakeCluster cluster([](Machine::Options& options) {
    options.max_live_runs = 2;
    options.validate = [](const v1::RunSpec& spec) {
      return spec.name() == "bad" ? absl::InvalidArgumentError("name: no") : absl::OkStatus();
    };
  });
  v1::RunSpec bad = MakeSpec(1, 1, 5, 10);
  bad.set_name("bad");
  EXPECT_EQ(cluster.Submit(bad), "");
  EXPECT_EQ(cluster.last_status.code(), absl::StatusCode::kInvalidArgument);
  cluster.Submit(MakeSpec(2, 1, 0, 10));
  EXPECT_THAT(cluster.last_status,
              IsError(absl::StatusCode::kInvalidArgument, "averaging.every_steps"));
  EXPECT_EQ(cluster.Submit(MakeSpec(1, 1, 5, 10)), "run-1-test");
  EXPECT_EQ(cluster.Submit(MakeSpec(1, 1, 5, 10)), "run-2-test");
  cluster.Submit(MakeSpec(1, 1, 5, 10));
  EXPECT_EQ(cluster.last_status.code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(MachineRunTest, AggregatorWaitReservesNoWorkers) {
  const std::string waits = cluster_.Submit(MakeSpec(1, 1, 5, 10));
  const std::string runs = cluster_.Submit(MakeSpec(1, 1, 0, 10));
  cluster_.AddWorkers(1);
  EXPECT_EQ(Finish(runs).state(), v1::RUN_STATE_DONE);
  EXPECT_EQ(RunStateOf(waits), v1::RUN_STATE_QUEUED);
}

// On a single host no other host can disprove the cause; see machine_failures_test.cc for several.
TEST_F(MachineRunTest, PermanentFailureEndsRun) {
  AddMembers(1, 2);
  cluster_.behaviour.prepare = false;
  const std::string run = cluster_.Submit(MakeSpec(1, 2, 5, 10));
  cluster_.Fail(cluster_.workers()[1], "/data/train.gz: no such file", v1::FAILURE_CAUSE_DATA);
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_FAILED);
  EXPECT_THAT(ReasonOf(run), HasSubstr("/data/train.gz"));
  EXPECT_FALSE(cluster_.workers()[0].assignment.has_value());
}

TEST_F(MachineRunTest, DifferentDataEndsRun) {
  const std::string run = SubmitTo(1, 1, MakeSpec(2, 1, 5, 10));
  cluster_.behaviour.train_samples = 999;
  cluster_.AddWorkers(1);
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_FAILED);
  EXPECT_THAT(ReasonOf(run), HasSubstr("the data sets differ"));
}

class DeleteRunTest : public ::testing::Test {
 protected:
  DeleteRunTest() {
    cluster_.AddAggregator("agg-0");
    cluster_.AddAggregator("agg-1");
    cluster_.AddWorker("w0");
  }
  std::string TrainRun() {
    const std::string run = cluster_.Submit(MakeSpec(1, 1, 5, 10));
    EXPECT_TRUE(cluster_.RunUntilEnded(run));
    cluster_.Run(absl::Seconds(1));
    return run;
  }
  // Deletes runs while agg-1 is away.
  std::set<std::string> DeleteRuns(int count) {
    std::set<std::string> runs;
    for (int i = 0; i < count; ++i) runs.insert(TrainRun());
    cluster_.Kill(cluster_.aggregators()[1]);
    for (const std::string& run : runs) cluster_.DeleteRun(run);
    return runs;
  }
  // Whether the coordinator has a record of the run, or an aggregator has not confirmed that it has
  // removed the files.
  bool Remembers(const std::string& run) const {
    return std::any_of(cluster_.store().begin(), cluster_.store().end(), [&](const auto& entry) {
      v1::DeletedRunRecord deleted;
      if (entry.first == DeletedKey(run)) {
        return !deleted.ParseFromString(entry.second) || !deleted.aggregators().empty();
      }
      return entry.first.find(run) != std::string::npos;
    });
  }
  bool Stores(size_t aggregator, const std::string& run) {
    return cluster_.aggregators()[aggregator].shards.contains(run);
  }

  FakeCluster cluster_;
};

TEST_F(DeleteRunTest, RecordsAndFilesAreRemoved) {
  const std::string run = TrainRun();
  ASSERT_TRUE(Stores(0, run) && Stores(1, run));
  cluster_.DeleteRun(run);
  EXPECT_EQ(cluster_.last_status, absl::OkStatus());
  EXPECT_FALSE(Stores(0, run) || Stores(1, run));
  EXPECT_FALSE(Remembers(run));
  EXPECT_TRUE(cluster_.machine().Revisions(run).empty());
  cluster_.RestartCoordinator();
  EXPECT_THAT(TrainRun(), StartsWith("run-2"));
}

TEST_F(DeleteRunTest, AbsentAggregatorRemovesItsFilesWhenItReturns) {
  const std::string run = TrainRun();
  cluster_.Kill(cluster_.aggregators()[1]);
  cluster_.DeleteRun(run);
  cluster_.DeleteRun(run);
  EXPECT_EQ(cluster_.last_status, absl::OkStatus()) << "a repeated request is no error";
  EXPECT_TRUE(Stores(1, run));
  cluster_.RestartCoordinator();
  cluster_.Restart(cluster_.aggregators()[1]);
  EXPECT_FALSE(Stores(1, run));
  EXPECT_FALSE(Remembers(run));
}

// More orders than may wait for a member (streams.cc).
TEST_F(DeleteRunTest, ManyOrdersAreSentInBatches) {
  std::set<std::string> runs = DeleteRuns(200);
  const ConnectionId connection = cluster_.Open();
  v1::Hello hello;
  hello.set_protocol(kProtocol);
  hello.set_role(v1::ROLE_AGGREGATOR);
  hello.set_name("agg-1");
  hello.set_incarnation("process");
  hello.set_address("agg-1:1");
  for (const auto& [run, shard] : cluster_.aggregators()[1].shards) {
    v1::ShardState& state = *hello.add_shards();
    state.set_run(run);
    state.set_lineage(shard.lineage);
  }
  ASSERT_EQ(hello.shards_size(), 200);
  cluster_.SendFrom(connection, hello);
  // Each answer is followed by the next order, and no run is named twice.
  size_t read = 0;
  size_t confirmed = 0;
  while (true) {
    const std::vector<v1::CoordinatorMessage> sent = cluster_.SentTo(connection);
    if (read == sent.size()) break;
    ASSERT_LE(sent.size(), confirmed + 65);
    const v1::CoordinatorMessage& message = sent[read++];
    if (!message.has_delete_run()) continue;
    EXPECT_EQ(runs.erase(message.delete_run().run()), 1U) << message.delete_run().run();
    v1::RunDeleted deleted;
    deleted.set_run(message.delete_run().run());
    deleted.set_lineage(message.delete_run().lineage());
    cluster_.SendFrom(connection, deleted);
    ++confirmed;
  }
  EXPECT_THAT(runs, IsEmpty());
}

// The orders of a stream that broke are repeated.
TEST_F(DeleteRunTest, UnconfirmedOrdersAreRepeated) {
  const std::set<std::string> runs = DeleteRuns(100);
  cluster_.Restart(cluster_.aggregators()[1]);
  EXPECT_THAT(cluster_.aggregators()[1].shards, IsEmpty());
  for (const std::string& run : runs) EXPECT_FALSE(Remembers(run));
}

// Its disk is a copy of before the deletion.
TEST_F(DeleteRunTest, AggregatorWithAnOlderDiskRemovesTheFilesAgain) {
  const std::string run = TrainRun();
  FakeAggregator& aggregator = cluster_.aggregators()[0];
  const auto shards = aggregator.shards;
  cluster_.DeleteRun(run);
  cluster_.RestartCoordinator();
  for (int i = 0; i < 2; ++i) {
    aggregator.shards = shards;
    cluster_.Restart(aggregator);
    EXPECT_FALSE(Stores(0, run));
  }
}

TEST_F(DeleteRunTest, UnknownRunsOfAggregatorsAreKept) {
  const std::string run = TrainRun();
  cluster_.LoseStore();
  EXPECT_TRUE(Stores(0, run) && Stores(1, run)) << "they may be adopted";
  cluster_.DeleteRun(run);
  EXPECT_EQ(cluster_.last_status.code(), absl::StatusCode::kNotFound);
}

// The id was given to another run by a coordinator that had lost its store.
TEST_F(DeleteRunTest, OtherLineageIsKept) {
  const std::string run = TrainRun();
  cluster_.Kill(cluster_.aggregators()[1]);
  cluster_.DeleteRun(run);
  cluster_.aggregators()[1].shards.at(run).lineage = run + ".another";
  cluster_.Restart(cluster_.aggregators()[1]);
  EXPECT_TRUE(Stores(1, run));
}

TEST_F(DeleteRunTest, LiveRunIsRefused) {
  cluster_.behaviour.train = false;
  const std::string run = cluster_.Submit(MakeSpec(1, 1, 5, 10));
  cluster_.DeleteRun(run);
  EXPECT_EQ(cluster_.last_status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(cluster_.last_status.message(), HasSubstr("cadre stop " + run));
  EXPECT_TRUE(Stores(0, run));
  cluster_.StopRun(run);
  cluster_.DeleteRun(run);
  EXPECT_EQ(cluster_.last_status, absl::OkStatus());
  EXPECT_FALSE(Stores(0, run));
}

// The shards of a run that has no version yet are assigned anew when an aggregator is lost.
TEST_F(DeleteRunTest, FormerAggregatorRemovesItsFiles) {
  cluster_.behaviour.open = false;
  const std::string run = cluster_.Submit(MakeSpec(1, 1, 5, 10));
  cluster_.Kill(cluster_.aggregators()[1]);
  cluster_.Run(absl::Minutes(1));
  cluster_.behaviour.open = true;
  cluster_.StopRun(run);
  cluster_.DeleteRun(run);
  cluster_.aggregators()[1].shards[run].lineage = run + ".";
  cluster_.Restart(cluster_.aggregators()[1]);
  const auto& received = cluster_.aggregators()[1].received;
  EXPECT_TRUE(std::any_of(received.begin(), received.end(),
                          [](const auto& message) { return message.has_delete_run(); }));
  EXPECT_FALSE(Remembers(run));
}

TEST_F(MachineRunTest, LimitOfTheProcessIsInTheStatus) {
  cluster_.Do(LimitReached{"all 46 open files are in use"});
  EXPECT_EQ(cluster_.Status().coordinator().exhausted(), "all 46 open files are in use");
  EXPECT_EQ(cluster_.Counter("limits_reached"), 1U);
  cluster_.Do(LimitReached{});
  EXPECT_EQ(cluster_.Status().coordinator().exhausted(), "");
  EXPECT_EQ(cluster_.Counter("limits_reached"), 1U);
  const v1::EventsReply events = cluster_.Events();
  EXPECT_EQ(events.events(events.events_size() - 1).kind(), v1::EVENT_KIND_COORDINATOR_LIMIT);
}

TEST_F(MachineRunTest, StatusIsComplete) {
  AddMembers(1, 2);
  v1::RunSpec spec = MakeSpec(1, 2, 5, 100);
  spec.mutable_cluster()->set_collectives(v1::Cluster::PAPER);
  spec.mutable_cluster()->set_overlap(v1::Cluster::OFF);
  const std::string run = cluster_.Submit(spec);
  auto progress = Parse<v1::Progress>(
      "step: 3 loss: 1.5 samples_per_second: 100 rate: 0.1 step_seconds: 0.5 "
      "exposed_seconds: 0.125");
  *progress.mutable_place() = cluster_.Lead(run, 0).place();
  cluster_.Send(cluster_.Lead(run, 0), progress);
  const v1::GroupStatus group = cluster_.Group(run, 0);
  EXPECT_EQ(group.state(), v1::GROUP_STATE_TRAINING);
  EXPECT_EQ(group.mesh().at("data"), 2u);
  ASSERT_EQ(group.members_size(), 2);
  EXPECT_EQ(group.members(1).name(), "w1");
  EXPECT_EQ(group.step(), 3u);
  EXPECT_EQ(group.step_seconds(), 0.5);
  EXPECT_EQ(group.exposed_seconds(), 0.125);
  EXPECT_EQ(group.collectives(), v1::Cluster::PAPER);
  EXPECT_EQ(group.overlap(), v1::Cluster::OFF);
  EXPECT_EQ(cluster_.RunStatus(run).groups_alive(), 1u);
  EXPECT_FLOAT_EQ(cluster_.RunStatus(run).rate(), 0.1F);
  EXPECT_FLOAT_EQ(cluster_.RunStatus(run).samples_per_second(), 100);
  progress.set_solo_steps(2);
  cluster_.Send(cluster_.Lead(run, 0), progress);
  EXPECT_EQ(StateOf(run), v1::GROUP_STATE_SOLO);
  EXPECT_EQ(cluster_.Group(run, 0).solo_steps(), 2u);
  const v1::StatusReply reply = cluster_.Status();
  ASSERT_EQ(reply.workers_size(), 2);
  EXPECT_EQ(reply.workers(0).place().run(), run);
  ASSERT_EQ(reply.aggregators_size(), 1);
  EXPECT_EQ(reply.aggregators(0).shards(0).run(), run);
  EXPECT_EQ(reply.coordinator().starts(), 1u);
}

TEST_F(MachineRunTest, CheckpointRunStartsAtItsStep) {
  const std::string run = SubmitTo(1, 1, FromCheckpoint(MakeSpec(1, 1, 8, 60), 40));
  EXPECT_EQ(cluster_.RunStatus(run).step(), 40u);
  EXPECT_EQ(cluster_.RunStatus(run).version(), 0u);
  FakeWorker& lead = cluster_.Lead(run, 0);
  EXPECT_EQ(lead.start->step(), 40u);
  EXPECT_EQ(lead.next_step, 48u);
  const v1::RunStatus status = Finish(run);
  EXPECT_EQ(status.state(), v1::RUN_STATE_DONE);
  EXPECT_EQ(status.step(), 60u);
  EXPECT_EQ(status.rounds_committed(), 3u) << "the rounds end at steps 48, 56 and 60";
}

TEST_F(MachineRunTest, CheckpointAtLastEpochFails) {
  AddMembers(1, 1);
  v1::RunSpec spec = FromCheckpoint(MakeSpec(1, 1, 5, 0), 100'000);
  spec.mutable_stop()->set_epochs(1);
  const std::string run = cluster_.Submit(spec);
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_FAILED);
  EXPECT_THAT(ReasonOf(run), HasSubstr("no steps left to train"));
}

TEST_F(MachineRunTest, PagesOfStatusAddUpToWholeStatus) {
  AddMembers(2, 5);
  const std::string run = cluster_.Submit(MakeSpec(2, 2, 5, 100));
  const v1::StatusReply whole = cluster_.Status();
  v1::StatusRequest request;
  request.set_details(true);
  request.set_page_size(2);
  v1::StatusReply sum;
  int pages = 0;
  do {
    const auto page = cluster_.machine().Status(cluster_.now(), request);
    ASSERT_TRUE(page.ok()) << page.status();
    EXPECT_LE(page->groups_size() + page->workers_size() + page->aggregators_size(), 2);
    sum.MergeFrom(*page);
    request.set_page_token(page->next_page_token());
    ++pages;
  } while (!request.page_token().empty());
  EXPECT_EQ(pages, 5) << "2 groups, 5 workers and 2 aggregators";
  sum.clear_next_page_token();
  EXPECT_EQ(sum.DebugString(), whole.DebugString());
  EXPECT_GT(whole.groups(0).plan().mesh_size() + whole.groups(0).plan().layers_size(), 0);
  request.set_details(false);
  EXPECT_FALSE(cluster_.machine().Status(cluster_.now(), request)->groups(0).has_plan());
  request.set_page_token("member");
  EXPECT_EQ(cluster_.machine().Status(cluster_.now(), request).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace cadre::testing
