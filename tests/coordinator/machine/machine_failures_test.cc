// Failures of workers, hosts and runs in the coordinator's state machine (Machine): who receives no
// new work, when a run ends, stalled groups, cordons.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/coordinator/machine/fake_cluster.h"

namespace cadre::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using enum v1::FailureCause;

class MachineFailuresTest : public MachineTest {
 protected:
  // A run whose ranks are on hosts of their own, and one aggregator.
  std::string Begin(uint32_t groups, uint32_t ranks, v1::RunSpec spec) {
    cluster_.AddAggregator("agg-0");
    for (uint32_t i = 0; i < groups * ranks; ++i) {
      cluster_.AddWorker(absl::StrCat("w", i), absl::StrCat("host-", i));
    }
    const std::string run = cluster_.Submit(spec);
    EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_RUNNING);
    return run;
  }
  std::string Begin(uint32_t groups, uint32_t ranks) {
    return Begin(groups, ranks, MakeSpec(groups, ranks, 5, 1000));
  }
  // All groups contribute to the open round.
  void Commit(const std::string& run, uint32_t groups) {
    const uint32_t version = cluster_.RunStatus(run).version();
    for (uint32_t group = 0; group < groups; ++group) Train(run, group);
    ASSERT_EQ(cluster_.RunStatus(run).version(), version + 1);
  }
  // The host of a lost worker counts as another one that could train the run, until it has been
  // away for ten minutes.
  void ExpectCountsForAWhile(FakeWorker& lost, const std::string& run) {
    cluster_.Kill(lost);
    cluster_.Run(absl::Seconds(15));
    ASSERT_EQ(cluster_.Counter("leases_lost"), 1u);
    cluster_.Fail(cluster_.Lead(run, 0), "truncated", FAILURE_CAUSE_DATA);
    EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_RUNNING);
    cluster_.Run(absl::Minutes(10));
    cluster_.Fail(cluster_.Lead(run, 0), "truncated", FAILURE_CAUSE_DATA);
    EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_FAILED) << "there is no other host";
  }
  v1::MemberStatus WorkerStatus(const std::string& name) {
    const v1::StatusReply status = cluster_.Status();
    for (const v1::MemberStatus& worker : status.workers()) {
      if (worker.name() == name) return worker;
    }
    ADD_FAILURE() << "no worker " << name;
    return {};
  }
  std::string MembersOf(const std::string& run, uint32_t group) {
    std::string names;
    const v1::GroupStatus status = cluster_.Group(run, group);
    for (const v1::GroupMember& member : status.members()) {
      absl::StrAppend(&names, names.empty() ? "" : " ", member.name());
    }
    return names;
  }
  // The worker has an incomplete copy of the data.
  void LimitDataOf(int worker) {
    cluster_.behaviour.on_prepared = [this, worker](v1::Prepared& prepared) {
      const FakeWorker& limited = cluster_.workers()[worker];
      if (limited.assignment.has_value() && SamePlace(prepared.place(), limited.place())) {
        prepared.set_train_samples(kTrainSamples / 2);
      }
    };
  }
  void SetActivity(v1::Activity activity) {
    for (FakeWorker& worker : cluster_.workers()) worker.activity = activity;
  }
};

// Also after its lease has ended, when it is no longer a member.
TEST_F(MachineFailuresTest, AggregatorOfARunIsAwayUntilItReturns) {
  Begin(1, 1, MakeSpec(1, 1, 5, 1000));
  EXPECT_EQ(cluster_.machine().CountMembers().aggregators_away, 0);
  FakeAggregator& aggregator = cluster_.aggregators()[0];
  cluster_.Kill(aggregator);
  cluster_.Run(absl::Minutes(1));
  EXPECT_EQ(cluster_.Status().aggregators_size(), 0);
  EXPECT_EQ(cluster_.machine().CountMembers().aggregators_away, 1);
  cluster_.Restart(aggregator);
  EXPECT_EQ(cluster_.machine().CountMembers().aggregators_away, 0);
}

TEST_F(MachineFailuresTest, MembersAreCountedByWhatTheyDo) {
  Begin(1, 2);
  cluster_.AddWorker("idle", "other-host");
  cluster_.Cut(cluster_.AddWorker("away", "other-host"));
  cluster_.AddWorker("cordoned", "other-host");
  cluster_.Cordon("cordoned");
  const MemberCounts counts = cluster_.machine().CountMembers();
  EXPECT_EQ(counts.aggregators, std::ssize(cluster_.aggregators()));
  EXPECT_EQ(counts.busy, 2);
  EXPECT_EQ(counts.idle, 1);
  EXPECT_EQ(counts.excluded, 1);
  EXPECT_EQ(counts.workers_away, 1);
}

// An idle worker that is older than the spare cannot read the data.
TEST_F(MachineFailuresTest, SpareReplacesBadWorker) {
  const std::string run = Begin(2, 2);
  Commit(run, 2);
  cluster_.AddWorker("bad", "bad-host");
  cluster_.AddWorker("good", "good-host");
  cluster_.behaviour.prepare = false;
  cluster_.Kill(cluster_.Rank(run, 0, 1));
  cluster_.Fail(cluster_.Lead(run, 0), "connection reset", FAILURE_CAUSE_PEER, {1});
  ASSERT_EQ(MembersOf(run, 0), "w0 bad");
  cluster_.Fail(cluster_.Rank(run, 0, 1), "/data: no such file", FAILURE_CAUSE_DATA);
  EXPECT_EQ(MembersOf(run, 0), "w0 good") << "at the same moment";
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_RUNNING);
  const v1::Standing standing = WorkerStatus("bad").standing();
  EXPECT_EQ(standing.cause(), FAILURE_CAUSE_DATA);
  EXPECT_EQ(standing.failures(), 1u);
  EXPECT_EQ(standing.wait_seconds(), 1);
  EXPECT_THAT(standing.reason(), HasSubstr("/data"));
  ASSERT_EQ(cluster_.Status().hosts_size(), 1);
  EXPECT_EQ(cluster_.Status().hosts(0).host(), "bad-host");
  cluster_.behaviour.prepare = true;
  cluster_.Run(absl::Minutes(1));
  Commit(run, 2);
  EXPECT_EQ(MembersOf(run, 0), "w0 good");
}

// Without a spare the worker is tried again after waits that double, then quarantined.
TEST_F(MachineFailuresTest, OnlyWorkerIsTriedAgain) {
  v1::RunSpec spec = MakeSpec(2, 1, 5, 1000);
  const std::string run = Begin(2, 1, spec);
  for (const int wait : {1, 2, 4, 8}) {
    cluster_.Fail(cluster_.Rank(run, 1, 0), "lost", FAILURE_CAUSE_DEVICE);
    EXPECT_EQ(StateOf(run, 1), v1::GROUP_STATE_WAITING);
    cluster_.Run(absl::Seconds(wait) - absl::Milliseconds(1));
    EXPECT_EQ(StateOf(run, 1), v1::GROUP_STATE_WAITING) << wait;
    cluster_.Run(absl::Milliseconds(1));
    EXPECT_EQ(StateOf(run, 1), v1::GROUP_STATE_TRAINING) << wait;
  }
  cluster_.Fail(cluster_.Rank(run, 1, 0), "lost", FAILURE_CAUSE_DEVICE);
  EXPECT_TRUE(WorkerStatus("w1").standing().quarantined());
  cluster_.RestartCoordinator();
  cluster_.Run(absl::Minutes(10));
  EXPECT_EQ(StateOf(run, 1), v1::GROUP_STATE_WAITING) << "the record is durable";
  Commit(run, 1);
  EXPECT_THAT(cluster_.Cordon("w1", /*undo=*/true), ElementsAre("w3"));
  EXPECT_EQ(StateOf(run, 1), v1::GROUP_STATE_TRAINING);
  EXPECT_EQ(WorkerStatus("w1").standing().failures(), 0u);
}

TEST_F(MachineFailuresTest, CommitClearsRecord) {
  const std::string run = Begin(2, 1);
  cluster_.Fail(cluster_.Rank(run, 1, 0), "lost", FAILURE_CAUSE_DEVICE);
  cluster_.Run(absl::Seconds(1));
  EXPECT_EQ(WorkerStatus("w1").standing().failures(), 1u);
  Commit(run, 2);
  EXPECT_EQ(WorkerStatus("w1").standing().failures(), 0u);
}

// A restarted process has another member id, but the record of its name and host.
TEST_F(MachineFailuresTest, RestartKeepsRecord) {
  const std::string run = Begin(2, 1);
  FakeWorker& worker = cluster_.Rank(run, 1, 0);
  cluster_.Fail(worker, "lost", FAILURE_CAUSE_DEVICE);
  cluster_.Kill(worker);
  cluster_.Restart(worker);
  EXPECT_EQ(StateOf(run, 1), v1::GROUP_STATE_WAITING);
  EXPECT_EQ(WorkerStatus("w1").standing().failures(), 1u);
}

TEST_F(MachineFailuresTest, UnexplainedFailureCostsNothing) {
  const std::string run = Begin(1, 2);
  const uint32_t before = cluster_.Group(run, 0).generation();
  cluster_.Fail(cluster_.Lead(run, 0));
  EXPECT_EQ(cluster_.Group(run, 0).generation(), before + 1);
  cluster_.Run(absl::Seconds(5));
  EXPECT_THAT(cluster_.Status().hosts(), IsEmpty());
  EXPECT_EQ(WorkerStatus("w0").standing().failures(), 0u);
  EXPECT_EQ(WorkerStatus("w1").standing().failures(), 0u);
}

TEST_F(MachineFailuresTest, RankThatPeersCannotReachIsReplaced) {
  const std::string run = Begin(1, 3);
  cluster_.AddWorker("spare", "spare-host");
  const std::deque<FakeWorker> before = cluster_.workers();
  for (const uint32_t rank : {2, 0}) {
    const FakeWorker& sender = before[rank];
    cluster_.Fail(sender, "cannot connect", FAILURE_CAUSE_PEER, {rank == 2 ? 0u : 1u, 1});
  }
  EXPECT_EQ(MembersOf(run, 0), "w2 spare w0") << "w1 was named by the first report";
  cluster_.Run(absl::Seconds(3));
  EXPECT_EQ(WorkerStatus("w1").standing().cause(), FAILURE_CAUSE_PEER);
  EXPECT_EQ(WorkerStatus("w0").standing().failures(), 0u);
  EXPECT_EQ(WorkerStatus("w2").standing().failures(), 0u);
}

// A slot without a suspect waits longer and longer, and the run continues.
TEST_F(MachineFailuresTest, SlotThatFailsOftenWaits) {
  const std::string run = Begin(2, 1);
  for (int i = 0; i < 11; ++i) {
    ASSERT_EQ(StateOf(run, 1), v1::GROUP_STATE_TRAINING) << i;
    cluster_.Fail(cluster_.Lead(run, 1), "peer lost");
  }
  EXPECT_EQ(StateOf(run, 1), v1::GROUP_STATE_WAITING);
  EXPECT_THAT(
      cluster_.Group(run, 1).reason(),
      AllOf(HasSubstr("11 failures without a commit; next attempt in 1s"), HasSubstr("peer lost")));
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_RUNNING);
  cluster_.Run(absl::Seconds(1));
  EXPECT_EQ(StateOf(run, 1), v1::GROUP_STATE_TRAINING);
  Commit(run, 2);
  cluster_.Fail(cluster_.Lead(run, 1), "peer lost");
  EXPECT_EQ(StateOf(run, 1), v1::GROUP_STATE_TRAINING) << "the commit has reset the count";
}

TEST_F(MachineFailuresTest, ThirtyLostLeases) {
  const std::string run = Begin(31, 1);
  Commit(run, 31);
  for (uint32_t group = 0; group < 30; ++group) cluster_.Kill(cluster_.Lead(run, group));
  cluster_.Run(absl::Seconds(15));
  EXPECT_EQ(cluster_.Counter("leases_lost"), 30u);
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_RUNNING);
  Train(run, 30);
  EXPECT_EQ(cluster_.RunStatus(run).version(), 2u);
  for (FakeWorker& worker : cluster_.workers()) {
    if (!worker.alive) cluster_.Restart(worker);
  }
  EXPECT_EQ(cluster_.RunStatus(run).groups_alive(), 31u) << "they receive work again at once";
}

TEST_F(MachineFailuresTest, HostsThatAgreeEndTheRun) {
  for (const bool at_start : {true, false}) {
    const std::string run = at_start ? Begin(4, 1) : cluster_.Submit(MakeSpec(4, 1, 5, 1000));
    ASSERT_EQ(RunStateOf(run), v1::RUN_STATE_RUNNING);
    if (!at_start) Commit(run, 4);
    const int needed = at_start ? 2 : 3;
    for (int host = 0; host < needed; ++host) {
      ASSERT_EQ(RunStateOf(run), v1::RUN_STATE_RUNNING) << host;
      const uint32_t group = host;
      for (int repeat = 0; repeat < (host == 0 ? 3 : 1); ++repeat) {
        cluster_.Fail(cluster_.Lead(run, group), "truncated", FAILURE_CAUSE_DATA);
        if (host + 1 < needed) cluster_.Run(absl::Seconds(10));
      }
    }
    EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_FAILED);
    EXPECT_THAT(ReasonOf(run), HasSubstr("truncated"));
    cluster_.Run(absl::Hours(2));
    for (const FakeWorker& worker : cluster_.workers()) cluster_.Cordon(worker.name, true);
  }
}

TEST_F(MachineFailuresTest, LostHostMayReturn) {
  const std::string run = Begin(2, 1);
  ExpectCountsForAWhile(cluster_.Lead(run, 1), run);
}

TEST_F(MachineFailuresTest, HostOfALostIdleWorkerMayReturn) {
  const std::string run = Begin(1, 1);
  FakeWorker& idle = cluster_.AddWorker("idle", "another-host");
  ASSERT_FALSE(idle.assignment.has_value());
  ExpectCountsForAWhile(idle, run);
}

// A worker that the store does not name was lost before the start, or has joined since the copy of
// the store was made.
TEST_F(MachineFailuresTest, UnknownHostHasALeaseToReturnAfterRestart) {
  const std::string run = Begin(1, 1);
  const std::map<std::string, std::string> copy = cluster_.store();
  cluster_.AddWorker("later", "another-host").alive = false;
  cluster_.RollBackStore(copy);
  cluster_.Fail(cluster_.Lead(run, 0), "truncated", FAILURE_CAUSE_DATA);
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_RUNNING);
  cluster_.Run(absl::Seconds(15));
  cluster_.Fail(cluster_.Lead(run, 0), "truncated", FAILURE_CAUSE_DATA);
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_FAILED) << "there is no other host";
}

// Two of three ranks hang at the same time: no majority accuses them.
TEST_F(MachineFailuresTest, NamedWorkersAreTheLastChoice) {
  const std::string run = Begin(1, 3);
  while (StateOf(run, 0) != v1::GROUP_STATE_WAITING) {
    cluster_.Fail(cluster_.Lead(run, 0), "not connected in time", FAILURE_CAUSE_PEER, {1, 2});
    cluster_.Run(absl::Seconds(3));
  }
  for (const char* name : {"w3", "w4"}) cluster_.AddWorker(name, absl::StrCat("host of ", name));
  ASSERT_TRUE(cluster_.RunUntil([&] { return StateOf(run, 0) != v1::GROUP_STATE_WAITING; }));
  EXPECT_EQ(MembersOf(run, 0), "w0 w3 w4");
}

TEST_F(MachineFailuresTest, OtherDataExcludesTheWorker) {
  const std::string run = Begin(2, 1);
  cluster_.AddWorker("w2", "host-2");
  cluster_.AddWorker("w3", "host-3");
  LimitDataOf(2);
  cluster_.Kill(cluster_.Lead(run, 1));
  cluster_.Run(absl::Seconds(15));
  EXPECT_EQ(MembersOf(run, 1), "w3");
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_RUNNING);
  EXPECT_EQ(WorkerStatus("w2").standing().cause(), FAILURE_CAUSE_DATA_DIFFERS);
  EXPECT_THAT(WorkerStatus("w2").standing().reason(), HasSubstr("the data sets differ"));
}

// The first host that prepares has an incomplete copy of the data.
TEST_F(MachineFailuresTest, MostHostsDecideOnTheData) {
  cluster_.AddAggregator("agg-0");
  LimitDataOf(0);
  const std::string run = cluster_.Submit(MakeSpec(4, 1, 5, 1000));
  cluster_.AddWorker("w0", "host-0");
  cluster_.AddWorker("w1", "host-1");
  EXPECT_EQ(WorkerStatus("w1").standing().cause(), FAILURE_CAUSE_DATA_DIFFERS) << "one of two";
  cluster_.AddWorker("w2", "host-2");
  EXPECT_EQ(WorkerStatus("w0").standing().cause(), FAILURE_CAUSE_DATA_DIFFERS) << "one of three";
  EXPECT_EQ(WorkerStatus("w1").standing().failures(), 0u);
  cluster_.behaviour.on_prepared = nullptr;
  cluster_.AddWorker("w3", "host-3");
  cluster_.Run(absl::Minutes(1));
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_RUNNING) << ReasonOf(run);
  Commit(run, 4);
}

// Neither the good hosts that report after two bad ones nor the two that are outvoted later end the
// run: there are others, and most hosts agree at last.
TEST_F(MachineFailuresTest, TwoBadHostsThatReportFirstDoNotEndTheRun) {
  cluster_.AddAggregator("agg-0");
  cluster_.behaviour.on_prepared = [this](v1::Prepared& prepared) {
    for (const int bad : {0, 1}) {
      const FakeWorker& worker = cluster_.workers()[bad];
      if (worker.assignment.has_value() && SamePlace(prepared.place(), worker.place())) {
        prepared.set_train_samples(kTrainSamples / 2);
      }
    }
  };
  for (int host = 0; host < 5; ++host) {
    cluster_.AddWorker(absl::StrCat("w", host), absl::StrCat("host-", host));
  }
  const std::string run = cluster_.Submit(MakeSpec(3, 1, 5, 1000));
  cluster_.Run(absl::Minutes(10));
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_RUNNING) << ReasonOf(run);
  EXPECT_GT(WorkerStatus("w0").standing().failures(), 0u);
  EXPECT_EQ(WorkerStatus("w4").standing().failures(), 0u);
}

TEST_F(MachineFailuresTest, TwoHostsWithDifferentDataDoNotEndTheRun) {
  cluster_.AddAggregator("agg-0");
  cluster_.AddWorker("w0", "host-0");
  cluster_.AddWorker("w1", "host-1");
  LimitDataOf(0);
  const std::string run = cluster_.Submit(MakeSpec(1, 2, 5, 1000));
  cluster_.Run(absl::Minutes(10));
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_QUEUED) << ReasonOf(run);
}

TEST_F(MachineFailuresTest, SecondDivergenceParksTheRun) {
  const std::string run = Begin(2, 1);
  cluster_.Fail(cluster_.Lead(run, 0), "loss is nan", FAILURE_CAUSE_DIVERGED);
  EXPECT_EQ(StateOf(run, 0), v1::GROUP_STATE_TRAINING) << "no worker is to blame";
  Commit(run, 2);
  cluster_.Fail(cluster_.Lead(run, 0), "loss is nan", FAILURE_CAUSE_DIVERGED);
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_RUNNING);
  cluster_.Fail(cluster_.Lead(run, 1), "layer 'fc' has a loss of nan", FAILURE_CAUSE_DIVERGED);
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_PARKED);
  EXPECT_TRUE(cluster_.RunStatus(run).diverged());
  EXPECT_THAT(ReasonOf(run),
              AllOf(HasSubstr("group 1, rank 0"), HasSubstr("layer 'fc'"),
                    HasSubstr("parked at version 1"), HasSubstr(absl::StrCat("cadre resume ", run)),
                    HasSubstr(absl::StrCat("cadre rollback ", run))));
  cluster_.ResumeRun(run);
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_RUNNING);
  EXPECT_FALSE(cluster_.RunStatus(run).diverged());
  Commit(run, 2);
  EXPECT_EQ(cluster_.RunStatus(run).version(), 2u);
  // What was reported before it was parked does not count any more.
  cluster_.Fail(cluster_.Lead(run, 0), "loss is nan", FAILURE_CAUSE_DIVERGED);
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_RUNNING);
}

// Without averaging there is no version with which the run could continue.
TEST_F(MachineFailuresTest, DivergenceWithoutAveragingEndsTheRun) {
  const std::string run = SubmitTo(0, 1, MakeSpec(1, 1, 0, 100));
  cluster_.Fail(cluster_.Lead(run, 0), "loss is nan", FAILURE_CAUSE_DIVERGED);
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_FAILED);
}

// A faulty host is the only one whose groups diverge.
TEST_F(MachineFailuresTest, GroupThatDivergesMovesToOtherHosts) {
  const std::string run = Begin(2, 1);
  ASSERT_EQ(MembersOf(run, 0), "w0");
  cluster_.AddWorker("spare", "spare-host");
  cluster_.Fail(cluster_.Lead(run, 0), "loss is nan", FAILURE_CAUSE_DIVERGED);
  cluster_.Run(absl::Seconds(10));
  EXPECT_EQ(MembersOf(run, 0), "spare");
  EXPECT_EQ(WorkerStatus("w0").standing().failures(), 0u);
}

TEST_F(MachineFailuresTest, AggregatorFailureBlamesNobody) {
  const std::string run = Begin(1, 1);
  cluster_.Fail(cluster_.Lead(run, 0), "no room", FAILURE_CAUSE_AGGREGATOR);
  EXPECT_EQ(StateOf(run, 0), v1::GROUP_STATE_TRAINING);
  EXPECT_EQ(WorkerStatus("w0").standing().failures(), 0u);
}

// ---- Stalled groups

TEST_F(MachineFailuresTest, HungRankIsReplaced) {
  const std::string run = Begin(2, 2);
  cluster_.AddWorker("spare", "spare-host");
  SetActivity(v1::ACTIVITY_TRAINING);
  cluster_.Run(absl::Minutes(5));
  EXPECT_EQ(cluster_.Group(run, 1).generation(), 2u);
  // Rank 0 hangs; rank 1 waits for it in the middle of the step.
  FakeWorker& hung = cluster_.Rank(run, 1, 0);
  FakeWorker& blocked = cluster_.Rank(run, 1, 1);
  hung.hung = blocked.hung = true;
  const absl::Time began = cluster_.now();
  cluster_.RunUntil([&] {
    // A healthy rank leaves the generation when it is released.
    if (!blocked.assignment.has_value()) blocked.hung = false;
    return cluster_.Group(run, 1).generation() == 3 && StateOf(run, 1) == v1::GROUP_STATE_TRAINING;
  });
  EXPECT_LT(cluster_.now() - began, absl::Minutes(2));
  EXPECT_THAT(MembersOf(run, 1), AllOf(HasSubstr(blocked.name), HasSubstr("spare")));
  EXPECT_THAT(cluster_.Group(run, 1).reason(), HasSubstr("no progress for 1m"));
  EXPECT_EQ(cluster_.Counter("groups_stalled"), 1u);
  cluster_.Run(absl::Seconds(15));
  EXPECT_EQ(WorkerStatus(hung.name).standing().cause(), FAILURE_CAUSE_STALLED);
  EXPECT_EQ(WorkerStatus(blocked.name).standing().failures(), 0u);
  // It receives no work while it hangs, even if it is the only one.
  cluster_.Kill(cluster_.workers()[4]);
  cluster_.Run(absl::Minutes(3));
  EXPECT_EQ(MembersOf(run, 1), blocked.name);
  hung.hung = false;
  cluster_.Run(absl::Minutes(1));
  Commit(run, 2);
  EXPECT_THAT(MembersOf(run, 1), HasSubstr(hung.name)) << "the group grows with it";
}

TEST_F(MachineFailuresTest, PreparationThatHangsIsBounded) {
  cluster_.behaviour.prepare = false;
  AddMembers(1, 1);
  cluster_.AddWorker("other", "other");
  cluster_.workers()[0].activity = v1::ACTIVITY_PREPARING;
  const std::string run = cluster_.Submit(MakeSpec(1, 1, 5, 100));
  ASSERT_EQ(MembersOf(run, 0), "w0");
  cluster_.workers()[0].hung = true;
  ASSERT_TRUE(cluster_.RunUntil([&] { return MembersOf(run, 0) == "other"; }, absl::Minutes(2)));
  EXPECT_EQ(WorkerStatus("w0").standing().cause(), FAILURE_CAUSE_STALLED);
}

// The training thread does not take the assignment.
TEST_F(MachineFailuresTest, IdleThreadThatHangsIsReplaced) {
  cluster_.behaviour.prepare = false;
  AddMembers(1, 1);
  cluster_.AddWorker("other", "other");
  const std::string run = cluster_.Submit(MakeSpec(1, 1, 5, 100));
  ASSERT_EQ(MembersOf(run, 0), "w0");
  ASSERT_EQ(cluster_.workers()[0].activity, v1::ACTIVITY_UNSPECIFIED);
  cluster_.workers()[0].hung = true;
  ASSERT_TRUE(cluster_.RunUntil([&] { return MembersOf(run, 0) == "other"; }, absl::Minutes(2)));
  EXPECT_EQ(WorkerStatus("w0").standing().cause(), FAILURE_CAUSE_STALLED);
}

TEST_F(MachineFailuresTest, GroupAtBoundaryHasNoDeadline) {
  const std::string run = Begin(2, 1);
  SetActivity(v1::ACTIVITY_TRAINING);
  Train(run, 0);
  cluster_.Lead(run, 0).hung = true;
  cluster_.Run(absl::Minutes(30));
  EXPECT_EQ(cluster_.Counter("groups_stalled"), 0u) << "it waits for the other group";
}

// The thread does not continue after the message for which it waited.
TEST_F(MachineFailuresTest, RankThatHangsWhileItWaitsIsReplaced) {
  const std::string run = Begin(1, 1);
  cluster_.AddWorker("spare", "spare-host");
  SetActivity(v1::ACTIVITY_WAITING);
  cluster_.Lead(run, 0).hung = true;
  Commit(run, 1);
  ASSERT_TRUE(cluster_.RunUntil([&] { return MembersOf(run, 0) == "spare"; }, absl::Minutes(2)));
}

TEST_F(MachineFailuresTest, ExchangeWithALostAggregatorHasNoDeadline) {
  const std::string run = Begin(2, 1);
  SetActivity(v1::ACTIVITY_EXCHANGING);
  for (FakeWorker& worker : cluster_.workers()) worker.hung = true;
  cluster_.Kill(cluster_.aggregators()[0]);
  cluster_.Run(absl::Minutes(30));
  EXPECT_EQ(cluster_.Counter("groups_stalled"), 0u);
  cluster_.Restart(cluster_.aggregators()[0]);
  cluster_.Run(absl::Minutes(6));
  EXPECT_GT(cluster_.Counter("groups_stalled"), 0u) << "it is open again, and nothing moves";
}

// A run that cannot succeed ends, and its causes do not count against the workers that report them.
TEST_F(MachineFailuresTest, MistakesOfRunsDoNotExcludeWorkers) {
  cluster_.AddAggregator("agg-0");
  cluster_.AddWorker("w0", "host-0");
  for (int i = 0; i < 6; ++i) {
    const std::string run = cluster_.Submit(MakeSpec(1, 1, 5, 100));
    cluster_.Run(absl::Minutes(1));
    ASSERT_EQ(StateOf(run), v1::GROUP_STATE_TRAINING) << "run " << i << ": " << ReasonOf(run);
    cluster_.Fail(cluster_.Lead(run, 0), "out of memory", FAILURE_CAUSE_MEMORY);
    ASSERT_EQ(RunStateOf(run), v1::RUN_STATE_FAILED);
  }
}

// Its peers notice the death of a worker before its lease ends.
TEST_F(MachineFailuresTest, DeathReportedByPeersIsRecorded) {
  const std::string run = Begin(1, 3);
  FakeWorker& dead = cluster_.Rank(run, 0, 2);
  FakeWorker& lead = cluster_.Lead(run, 0);
  cluster_.Kill(dead);
  cluster_.Fail(lead, "connection reset", FAILURE_CAUSE_PEER, {2});
  cluster_.Run(absl::Seconds(15));
  cluster_.Restart(dead);
  EXPECT_EQ(WorkerStatus(dead.name).standing().failures(), 1u);
}

// A worker whose process is killed in every generation (by the kernel, for its memory) must not
// keep the others from training without it.
TEST_F(MachineFailuresTest, CrashingWorkerDoesNotStopItsGroup) {
  const std::string run = Begin(1, 3);
  for (int i = 0; i < 100 && cluster_.RunStatus(run).version() == 0; ++i) {
    const std::string members = MembersOf(run, 0);
    FakeWorker& crashing = cluster_.workers()[2];
    if (members.find("w2") != std::string::npos) {
      const int rank = crashing.place().rank();
      FakeWorker& witness = cluster_.Rank(run, 0, rank == 0 ? 1 : 0);
      cluster_.Kill(crashing);
      cluster_.Fail(witness, "connection reset", FAILURE_CAUSE_PEER, {static_cast<uint32_t>(rank)});
      cluster_.Restart(crashing);
    } else if (!members.empty()) {
      Train(run, 0);
    }
    cluster_.Run(absl::Seconds(10));
  }
  EXPECT_GT(cluster_.RunStatus(run).version(), 0u);
}

// ---- Cordons

TEST_F(MachineFailuresTest, CordonedWorkerReceivesNoNewRank) {
  const std::string run = Begin(2, 1);
  EXPECT_THAT(cluster_.Cordon("w1"), ElementsAre("w3"));
  EXPECT_TRUE(WorkerStatus("w1").cordoned());
  EXPECT_EQ(StateOf(run, 1), v1::GROUP_STATE_TRAINING) << "it finishes its work";
  cluster_.Fail(cluster_.Lead(run, 1));
  cluster_.RestartCoordinator();
  cluster_.Run(absl::Hours(1));
  EXPECT_EQ(StateOf(run, 1), v1::GROUP_STATE_WAITING);
  cluster_.AddWorker("new", "host-1");
  EXPECT_EQ(MembersOf(run, 1), "new");
  cluster_.Fail(cluster_.Lead(run, 1));
  EXPECT_THAT(cluster_.Cordon("host-1"), ElementsAre("w3", "w4"));
  cluster_.Fail(cluster_.Lead(run, 1));
  EXPECT_EQ(StateOf(run, 1), v1::GROUP_STATE_WAITING);
  EXPECT_EQ(cluster_.Status().hosts(0).standing().reason(), "cordoned");
  EXPECT_THAT(cluster_.Cordon("host-1", /*undo=*/true), ElementsAre("w3", "w4"));
  EXPECT_EQ(StateOf(run, 1), v1::GROUP_STATE_TRAINING);
  EXPECT_FALSE(WorkerStatus("w1").cordoned());
}

TEST_F(MachineFailuresTest, CordonOfUnknownMember) {
  cluster_.AddAggregator("agg-0");
  cluster_.AddWorker("w0", "");
  for (const char* name : {"", "nobody"}) {
    EXPECT_THAT(cluster_.Cordon(name), IsEmpty());
    EXPECT_EQ(cluster_.last_status.code(), absl::StatusCode::kNotFound) << name;
  }
}

TEST_F(MachineFailuresTest, WaitingRunNamesExcludedWorkers) {
  cluster_.AddWorkers(2);
  cluster_.Cordon("w1");
  const std::string run = cluster_.Submit(MakeSpec(1, 2, 0, 10));
  EXPECT_EQ(
      ReasonOf(run),
      "waiting for workers: a group needs 2, and only 1 can be used, 1 is excluded (see 'cadre "
      "members'); other runs are served meanwhile");
}

}  // namespace
}  // namespace cadre::testing
