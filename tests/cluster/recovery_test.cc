// Processes killed with SIGKILL in the middle of a run: it goes on and reaches its end.
#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cluster/cluster.h"

namespace cadre::testing {
namespace {

// Above the longest wait between two attempts to join again, which is 2 seconds.
constexpr absl::Duration kLease = absl::Seconds(3);
constexpr absl::Duration kLong = absl::Seconds(120);
constexpr absl::Duration kRecovery = absl::Seconds(45);
// Long enough that every kill falls into the middle.
constexpr uint32_t kSteps = 8000;
// A group at its boundary waits for another only until that one is known to be lost: at once when
// its peers see the connection break, else when its lease is over. The status learns of steps with
// rounds and about once a second. The rest is slack for a busy machine.
constexpr absl::Duration kLongestStall = absl::Seconds(3 /* lease */ + 1 + 3);

class RecoveryTest : public ::testing::Test {
 protected:
  RecoveryTest() : cluster_({.lease = kLease}) {}

  void Begin(const v1::RunSpec& spec, int aggregators, int workers) {
    ASSERT_EQ(cluster_.StartAll(aggregators, workers), absl::OkStatus());
    const absl::StatusOr<std::string> run = cluster_.client().Submit(spec);
    ASSERT_TRUE(run.ok()) << run.status();
    run_ = *run;
    AwaitVersion(3);
  }

  // Awaits the version; the run must still be going.
  v1::StatusReply AwaitVersion(uint32_t version) {
    const auto status = cluster_.Await(
        [&](const v1::StatusReply& seen) {
          const v1::RunStatus* run = FindRun(seen, run_);
          return run != nullptr && run->version() >= version;
        },
        kRecovery, absl::StrCat("version ", version));
    EXPECT_TRUE(status.ok()) << status.status();
    if (!status.ok()) return {};
    EXPECT_EQ(FindRun(*status, run_)->state(), v1::RUN_STATE_RUNNING) << "the run is too short";
    return *status;
  }

  // A worker of the group.
  static std::string WorkerOf(const v1::StatusReply& status, uint32_t group) {
    for (const v1::MemberStatus& worker : status.workers()) {
      if (!worker.place().run().empty() && worker.place().group() == group) return worker.name();
    }
    return "";
  }

  uint32_t GenerationOf(const v1::StatusReply& status, uint32_t group) {
    const v1::GroupStatus* found = FindGroup(status, run_, group);
    return found == nullptr ? 0 : found->generation();
  }

  // Awaits that `group` trains as a newer generation of `ranks`, and watches that the group beside
  // it goes on stepping meanwhile.
  void AwaitNewGeneration(uint32_t group, uint32_t older_than, int ranks, uint32_t beside) {
    uint32_t step = 0;
    absl::Time grew = absl::Now();
    absl::Duration longest;
    const auto status = cluster_.Await(
        [&](const v1::StatusReply& seen) {
          const v1::GroupStatus* other = FindGroup(seen, run_, beside);
          const absl::Time now = absl::Now();
          if (other != nullptr && other->step() > step) {
            step = other->step();
            longest = std::max(longest, now - grew);
            grew = now;
          }
          const v1::GroupStatus* mended = FindGroup(seen, run_, group);
          return mended != nullptr && mended->generation() > older_than &&
                 mended->members_size() == ranks &&
                 (mended->state() == v1::GROUP_STATE_TRAINING ||
                  mended->state() == v1::GROUP_STATE_AT_BOUNDARY);
        },
        kRecovery, "the group trains again");
    ASSERT_TRUE(status.ok()) << status.status();
    longest = std::max(longest, absl::Now() - grew);
    EXPECT_GT(step, 0u);
    EXPECT_LT(longest, kLongestStall) << "group " << beside << " stopped stepping";
    EXPECT_EQ(FindRun(*status, run_)->state(), v1::RUN_STATE_RUNNING) << "the run is too short";
  }

  v1::RunStatus FinishWell() {
    const auto status = cluster_.AwaitDone(run_, kLong);
    EXPECT_TRUE(status.ok()) << status.status();
    if (!status.ok()) return {};
    const v1::RunStatus run = *FindRun(*status, run_);
    EXPECT_EQ(run.step(), kSteps);
    EXPECT_EQ(run.test().version(), run.version());
    EXPECT_EQ(run.test().samples(), 512u);
    EXPECT_GE(run.test().accuracy(), 0.9);
    EXPECT_EQ(Counter(*status, "refused_wrong_digest"), 0u);
    return run;
  }

  // What must hold of the store at the end: every round committed once, in order, and no
  // generation given to two groups or taken back.
  void CheckStore(const v1::RunStatus& run) {
    cluster_.Kill("coordinator");
    const auto commits = cluster_.Commits(run_);
    ASSERT_TRUE(commits.ok()) << commits.status();
    // Version 0, which nobody contributed to, is on record too.
    ASSERT_EQ(commits->size(), run.version() + 1);
    const auto meta = cluster_.Meta();
    ASSERT_TRUE(meta.ok()) << meta.status();
    std::map<uint32_t, uint32_t> group_of;
    std::map<uint32_t, uint32_t> newest;
    uint32_t round = 0;
    uint32_t next_step = 0;
    for (const auto& [number, commit] : *commits) {
      EXPECT_EQ(number, round++);
      EXPECT_TRUE(commit.committed()) << number;
      EXPECT_GE(commit.step(), next_step) << number;
      next_step = commit.step() + 1;
      EXPECT_EQ(commit.participants().empty(), number == 0) << number;
      for (const v1::Participant& participant : commit.participants()) {
        const auto [place, fresh] = group_of.emplace(participant.generation(), participant.group());
        EXPECT_EQ(place->second, participant.group()) << "generation of two groups";
        EXPECT_GE(participant.generation(), newest[participant.group()]);
        EXPECT_LE(participant.generation(), meta->generation());
        newest[participant.group()] = participant.generation();
      }
    }
  }

  Cluster cluster_;
  std::string run_;
};

TEST_F(RecoveryTest, KilledWorkerIsReplaced) {
  Begin(SmallSpec({.every_steps = 8, .steps = kSteps, .rejoin_wait_ms = 30000}), 2, 4);
  v1::StatusReply before = AwaitVersion(5);
  // Twice: the second recovery must work as the first did.
  for (int time = 0; time < 2; ++time) {
    const uint32_t generation = GenerationOf(before, 0);
    const std::string victim = WorkerOf(before, 0);
    ASSERT_NE(victim, "");
    cluster_.Kill(victim);
    ASSERT_EQ(cluster_.StartWorker(absl::StrCat("replacement-", time)), absl::OkStatus());
    ASSERT_NO_FATAL_FAILURE(AwaitNewGeneration(0, generation, 2, 1));
    before = AwaitVersion(0);
  }
  const v1::RunStatus run = FinishWell();
  EXPECT_EQ(run.groups(), 2u);
  CheckStore(run);
}

TEST_F(RecoveryTest, SmallerGroupContinues) {
  Begin(SmallSpec({.every_steps = 8, .steps = kSteps, .min_ranks = 1, .rejoin_wait_ms = 500}), 2,
        4);
  const v1::StatusReply before = AwaitVersion(5);
  cluster_.Kill(WorkerOf(before, 1));
  ASSERT_NO_FATAL_FAILURE(AwaitNewGeneration(1, GenerationOf(before, 1), 1, 0));
  CheckStore(FinishWell());
}

TEST_F(RecoveryTest, CoordinatorRestart) {
  Begin(SmallSpec({.every_steps = 8, .steps = kSteps}), 2, 4);
  std::map<uint32_t, v1::CommitRecord> known;
  v1::StatusReply before = AwaitVersion(5);
  for (uint32_t time = 1; time <= 2; ++time) {
    cluster_.Kill("coordinator");
    const auto commits = cluster_.Commits(run_);
    ASSERT_TRUE(commits.ok()) << commits.status();
    const uint32_t version = FindRun(before, run_)->version();
    ASSERT_GE(commits->rbegin()->first, version) << "an acknowledged round is lost";
    // What was decided before still is.
    for (const auto& [round, commit] : known) {
      EXPECT_EQ(commits->at(round).SerializeAsString(), commit.SerializeAsString()) << round;
    }
    known = *commits;
    if (!known.rbegin()->second.committed()) known.erase(known.rbegin()->first);
    const auto meta = cluster_.Meta();
    ASSERT_TRUE(meta.ok()) << meta.status();

    ASSERT_EQ(cluster_.StartCoordinator(), absl::OkStatus());
    before = AwaitVersion(commits->rbegin()->first + 3);
    EXPECT_EQ(before.coordinator().starts(), time + 1);
    EXPECT_EQ(before.runs_size(), 1);
    // A generation made since is above all that were given out before.
    for (const v1::GroupStatus& group : before.groups()) {
      const auto& last = known.rbegin()->second;
      const bool kept = std::any_of(last.participants().begin(), last.participants().end(),
                                    [&](const auto& participant) {
                                      return participant.group() == group.group() &&
                                             participant.generation() == group.generation();
                                    });
      const bool none = group.generation() == 0;
      EXPECT_TRUE(kept || none || group.generation() > meta->generation())
          << group.ShortDebugString();
    }
  }
  CheckStore(FinishWell());
}

TEST_F(RecoveryTest, AggregatorRestart) {
  v1::RunSpec spec = SmallSpec({.every_steps = 8, .steps = kSteps});
  spec.mutable_cluster()->set_keep_plan(true);
  Begin(spec, 2, 4);
  for (int time = 0; time < 2; ++time) {
    const uint32_t version = FindRun(AwaitVersion(0), run_)->version();
    cluster_.Kill("aggregator-0");
    // Without this shard no round can be committed, so it must be the process that comes back.
    ASSERT_EQ(cluster_.StartAggregator("aggregator-0"), absl::OkStatus());
    const v1::StatusReply after = AwaitVersion(version + 5);
    const auto found = std::find_if(
        after.aggregators().begin(), after.aggregators().end(),
        [](const auto& aggregator) { return aggregator.member().name() == "aggregator-0"; });
    ASSERT_NE(found, after.aggregators().end());
    EXPECT_TRUE(found->member().connected());
  }
  const v1::RunStatus disturbed = FinishWell();
  // Nobody lost anything: the model is, bit for bit, that of a run without a death.
  const auto again = cluster_.client().Submit(spec);
  ASSERT_TRUE(again.ok()) << again.status();
  const auto undisturbed = cluster_.AwaitDone(*again, kLong);
  ASSERT_TRUE(undisturbed.ok()) << undisturbed.status();
  EXPECT_EQ(FindRun(*undisturbed, *again)->digest(), disturbed.digest());
  CheckStore(disturbed);
}

}  // namespace
}  // namespace cadre::testing
