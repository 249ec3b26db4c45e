// Tests that a run continues to its end although processes are killed with SIGKILL.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cluster/cluster.h"

namespace cadre::testing {
namespace {

using ::testing::HasSubstr;

// Several times the longest wait between two attempts to join again.
constexpr absl::Duration kLease = absl::Seconds(3);
constexpr absl::Duration kLong = absl::Seconds(120);
constexpr absl::Duration kRecovery = absl::Seconds(45);
// Several times the steps at which the last process is killed (about 400), so that every
// kill happens during training.
constexpr uint32_t kSteps = 1600;
// Longest time without progress. A group at its boundary waits for a lost group until the loss is
// detected: immediately if peers of the lost process see their connections break, otherwise when
// its lease expires. Steps are reported with rounds and about once per second. The rest is a margin
// for a busy host.
constexpr absl::Duration kMaxStall = absl::Seconds(3 /* lease */ + 1 + 3);

class RecoveryTest : public ::testing::Test {
 protected:
  explicit RecoveryTest(bool archive = false) : cluster_({.lease = kLease, .archive = archive}) {}

  // Submits the run and waits until all of its groups train. The run keeps its plans: otherwise, on
  // a busy host, the measured times of so small a model could cause groups to be formed again.
  void Begin(v1::RunSpec spec, int aggregators, int workers) {
    spec.mutable_cluster()->set_keep_plan(true);
    ASSERT_EQ(cluster_.StartAll(aggregators, workers), absl::OkStatus());
    const absl::StatusOr<std::string> run = cluster_.client().Submit(spec);
    ASSERT_TRUE(run.ok()) << run.status();
    spec_ = spec;
    run_ = *run;
    const auto status = cluster_.Await(
        [&](const v1::StatusReply& seen) {
          uint32_t training = 0;
          for (const v1::GroupStatus& group : seen.groups()) {
            if (group.run() == run_ && IsTraining(group)) ++training;
          }
          return training == spec.cluster().groups();
        },
        kRecovery, "all groups train");
    ASSERT_TRUE(status.ok()) << status.status();
    AwaitVersion(3);
  }

  // No data is lost: every bit of the model equals that of a run without faults.
  void ExpectEqualToUndisturbed(const v1::RunStatus& disturbed) {
    const auto again = cluster_.client().Submit(spec_);
    ASSERT_TRUE(again.ok()) << again.status();
    const auto undisturbed = cluster_.AwaitDone(*again, kLong);
    ASSERT_TRUE(undisturbed.ok()) << undisturbed.status();
    EXPECT_EQ(FindRun(*undisturbed, *again)->digest(), disturbed.digest());
  }

  static bool IsTraining(const v1::GroupStatus& group) {
    return group.state() == v1::GROUP_STATE_TRAINING ||
           group.state() == v1::GROUP_STATE_AT_BOUNDARY;
  }

  // Awaits the version; the run must still be running.
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

  static std::string WorkerOfRank(const v1::StatusReply& status, uint32_t group, uint32_t rank) {
    for (const v1::MemberStatus& worker : status.workers()) {
      const v1::RankSlot& place = worker.place();
      if (!place.run().empty() && place.group() == group && place.rank() == rank) {
        return worker.name();
      }
    }
    return "";
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

  // Awaits that `group` trains as a newer generation of `ranks`, and checks that the group `other`
  // continues meanwhile.
  void AwaitNewGeneration(uint32_t group, uint32_t older_than, int ranks, uint32_t other) {
    uint32_t step = 0;
    absl::Time last_step_at = absl::Now();
    absl::Duration longest;
    const auto status = cluster_.Await(
        [&](const v1::StatusReply& seen) {
          const v1::GroupStatus* continuing = FindGroup(seen, run_, other);
          const absl::Time now = absl::Now();
          if (continuing != nullptr && continuing->step() > step) {
            step = continuing->step();
            longest = std::max(longest, now - last_step_at);
            last_step_at = now;
          }
          const v1::GroupStatus* formed = FindGroup(seen, run_, group);
          return formed != nullptr && formed->generation() > older_than &&
                 formed->members_size() == ranks && IsTraining(*formed);
        },
        kRecovery, "the group trains again");
    ASSERT_TRUE(status.ok()) << status.status();
    longest = std::max(longest, absl::Now() - last_step_at);
    EXPECT_GT(step, 0u);
    EXPECT_LT(longest, kMaxStall) << "group " << other << " was delayed";
    EXPECT_EQ(FindRun(*status, run_)->state(), v1::RUN_STATE_RUNNING) << "the run is too short";
  }

  v1::RunStatus Finish() {
    const auto status = cluster_.AwaitDone(run_, kLong);
    EXPECT_TRUE(status.ok()) << status.status();
    if (!status.ok()) return {};
    const v1::RunStatus run = *FindRun(*status, run_);
    EXPECT_EQ(run.step(), spec_.stop().steps());
    EXPECT_EQ(run.test().version(), run.version());
    EXPECT_EQ(run.test().samples(), 512u);
    EXPECT_GE(run.test().accuracy(), 0.9);
    EXPECT_EQ(Counter(*status, "refused_wrong_digest"), 0u);
    return run;
  }

  // Checks the store at the end: every round is committed once, in order, and no generation belongs
  // to two groups or decreases.
  void CheckStore(const v1::RunStatus& run) {
    cluster_.Kill("coordinator");
    const auto commits = cluster_.Commits(run_);
    ASSERT_TRUE(commits.ok()) << commits.status();
    // The store also has version 0, which has no participants.
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
        EXPECT_EQ(place->second, participant.group()) << "a generation belongs to only one group";
        EXPECT_GE(participant.generation(), newest[participant.group()]);
        EXPECT_LE(participant.generation(), meta->generation());
        newest[participant.group()] = participant.generation();
      }
    }
  }

  Cluster cluster_;
  v1::RunSpec spec_;
  std::string run_;
};

TEST_F(RecoveryTest, KilledWorkerIsReplaced) {
  Begin(SmallSpec({.every_steps = 8, .steps = kSteps, .rejoin_wait_ms = 30000}), 2, 4);
  v1::StatusReply before = AwaitVersion(5);
  // The second recovery must work like the first.
  for (int time = 0; time < 2; ++time) {
    const uint32_t generation = GenerationOf(before, 0);
    const std::string victim = WorkerOf(before, 0);
    ASSERT_NE(victim, "");
    cluster_.Kill(victim);
    ASSERT_EQ(cluster_.StartWorker(absl::StrCat("replacement-", time)), absl::OkStatus());
    ASSERT_NO_FATAL_FAILURE(AwaitNewGeneration(0, generation, 2, 1));
    before = AwaitVersion(0);
  }
  const v1::RunStatus run = Finish();
  EXPECT_EQ(run.groups(), 2u);
  CheckStore(run);
}

// Anonymous memory of a process in KiB.
int64_t AnonymousMemory(int pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/status"));
  std::string line;
  while (std::getline(file, line)) {
    if (absl::StartsWith(line, "RssAnon:")) return std::stoll(line.substr(8));
  }
  ADD_FAILURE() << "no RssAnon of process " << pid;
  return 0;
}

// A model of 4 MiB, so that what remained of a generation would be visible.
TEST_F(RecoveryTest, GenerationsDoNotAddMemory) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer keeps freed memory";
  Begin(
      SmallSpec({.groups = 1, .every_steps = 8, .steps = 100000, .hidden = 16384, .min_ranks = 2}),
      2, 2);
  v1::StatusReply status = AwaitVersion(5);
  const int survivor = cluster_.process(WorkerOfRank(status, 0, /*rank=*/0)).pid();
  std::string victim = WorkerOfRank(status, 0, /*rank=*/1);
  int64_t first = 0, last = 0;
  for (int time = 0; time < 6; ++time) {
    const uint32_t version = FindRun(status, run_)->version();
    cluster_.Kill(victim);
    victim = absl::StrCat("replacement-", time);
    ASSERT_EQ(cluster_.StartWorker(victim), absl::OkStatus());
    // Later than what the generation before can have contributed.
    status = AwaitVersion(version + 3);
    last = AnonymousMemory(survivor);
    if (time == 0) first = last;
  }
  EXPECT_LT(last, 1.15 * first) << "KiB";
}

TEST_F(RecoveryTest, SmallerGroupContinues) {
  Begin(SmallSpec({.every_steps = 8, .steps = kSteps, .min_ranks = 1, .rejoin_wait_ms = 500}), 2,
        4);
  const v1::StatusReply before = AwaitVersion(5);
  cluster_.Kill(WorkerOf(before, 1));
  ASSERT_NO_FATAL_FAILURE(AwaitNewGeneration(1, GenerationOf(before, 1), 1, 0));
  CheckStore(Finish());
}

TEST_F(RecoveryTest, DrainedWorkerFinishesItsPeriodAndIsExcluded) {
  Begin(SmallSpec({.every_steps = 8, .steps = kSteps, .min_ranks = 1, .rejoin_wait_ms = 500}), 2,
        4);
  const v1::StatusReply before = AwaitVersion(5);
  const std::string worker = WorkerOfRank(before, 1, /*rank=*/0);
  RunCadre({"drain", worker, "--coordinator", cluster_.coordinator()});
  const auto ending = cluster_.process(worker).WaitUntil(absl::Now() + kRecovery);
  ASSERT_TRUE(ending.has_value());
  EXPECT_EQ(*ending, (Ending{false, 143}));
  ASSERT_EQ(cluster_.StartWorker(worker), absl::OkStatus());
  ASSERT_NO_FATAL_FAILURE(AwaitNewGeneration(1, GenerationOf(before, 1), 1, 0));
  EXPECT_EQ(Counter(AwaitVersion(0), "groups_failed"), Counter(before, "groups_failed"));
  CheckStore(Finish());
}

// The period would take minutes.
TEST_F(RecoveryTest, DrainedWorkerContributesAfterItsStep) {
  constexpr uint32_t kPeriod = 10'000'000;
  ASSERT_EQ(cluster_.StartAll(1, 1), absl::OkStatus());
  v1::RunSpec spec = SmallSpec(
      {.groups = 1, .ranks = 1, .aggregators = 1, .every_steps = kPeriod, .steps = 2 * kPeriod});
  const auto run = cluster_.client().Submit(spec);
  ASSERT_TRUE(run.ok()) << run.status();
  run_ = *run;
  const auto trains = [&](const v1::StatusReply& seen) {
    return seen.groups_size() == 1 && seen.groups(0).step() > 100;
  };
  ASSERT_TRUE(cluster_.Await(trains, kRecovery, "the group trains").ok());
  RunCadre({"drain", "worker-0", "--within", "20s", "--coordinator", cluster_.coordinator()});
  const auto ending = cluster_.process("worker-0").WaitUntil(absl::Now() + kRecovery);
  ASSERT_TRUE(ending.has_value());
  EXPECT_EQ(*ending, (Ending{false, 143}));
  const v1::StatusReply status = AwaitVersion(0);
  EXPECT_EQ(FindRun(status, run_)->version(), 1U);
  EXPECT_GT(FindRun(status, run_)->step(), 100U);
  EXPECT_LT(FindRun(status, run_)->step(), kPeriod);
}

TEST_F(RecoveryTest, WorkerThatIsTerminatedFinishesItsPeriod) {
  Begin(SmallSpec({.every_steps = 8, .steps = kSteps, .min_ranks = 1, .rejoin_wait_ms = 500}), 2,
        4);
  const v1::StatusReply before = AwaitVersion(5);
  // Rank 0 and another rank, since rank 0 alone receives decisions.
  for (const uint32_t group : {0, 1}) {
    const std::string worker = WorkerOfRank(before, group, /*rank=*/group);
    cluster_.Signal(worker, SIGTERM);
    const auto ending = cluster_.process(worker).WaitUntil(absl::Now() + kRecovery);
    ASSERT_TRUE(ending.has_value());
    EXPECT_EQ(*ending, (Ending{false, 143}));
    ASSERT_NO_FATAL_FAILURE(AwaitNewGeneration(group, GenerationOf(before, group), 1, 1 - group));
  }
  EXPECT_EQ(Counter(AwaitVersion(0), "groups_failed"), Counter(before, "groups_failed"));
  CheckStore(Finish());
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
    // Earlier decisions have not changed.
    for (const auto& [round, commit] : known) {
      EXPECT_EQ(commits->at(round).SerializeAsString(), commit.SerializeAsString()) << round;
    }
    known = *commits;
    if (!known.rbegin()->second.committed()) known.erase(known.rbegin()->first);

    ASSERT_EQ(cluster_.StartCoordinator(), absl::OkStatus());
    const v1::StatusReply earlier = std::move(before);
    before = AwaitVersion(commits->rbegin()->first + 3);
    EXPECT_EQ(before.coordinator().starts(), time + 1);
    EXPECT_EQ(before.runs_size(), 1);
    // Members return before their leases end.
    for (const v1::GroupStatus& group : before.groups()) {
      EXPECT_EQ(group.generation(), GenerationOf(earlier, group.group()))
          << group.ShortDebugString();
    }
  }
  CheckStore(Finish());
}

// The shard is restored from the groups, which continue. A group that has not loaded the newest
// version yet when all others have overwritten it with their next contributions begins again with a
// later version. Only then are contributions missing.
TEST_F(RecoveryTest, AggregatorLosesItsFolder) {
  Begin(SmallSpec({.every_steps = 8, .steps = kSteps}), 2, 4);
  for (int time = 0; time < 2; ++time) {
    const uint32_t version = FindRun(AwaitVersion(0), run_)->version();
    cluster_.Kill("aggregator-0");
    std::filesystem::remove_all(cluster_.folder() + "/aggregator-0");
    ASSERT_EQ(cluster_.StartAggregator("aggregator-0"), absl::OkStatus());
    const v1::StatusReply after = AwaitVersion(version + 5);
    EXPECT_GT(Counter(after, "shards_restored"), static_cast<uint64_t>(time));
  }
  const v1::RunStatus disturbed = Finish();
  const auto status = cluster_.client().Status();
  ASSERT_TRUE(status.ok()) << status.status();
  const bool left_out = Counter(*status, "groups_left_out") > 0;
  if (!left_out) ExpectEqualToUndisturbed(disturbed);
  CheckStore(disturbed);
  const auto commits = cluster_.Commits(run_);
  ASSERT_TRUE(commits.ok()) << commits.status();
  const bool complete = std::all_of(std::next(commits->begin()), commits->end(), [](const auto& c) {
    return c.second.participants_size() == 2;
  });
  EXPECT_EQ(complete, !left_out);
}

// Optimizers without states: those of the old generations are lost.
TEST_F(RecoveryTest, CoordinatorLosesItsStore) {
  v1::RunSpec spec = SmallSpec({.every_steps = 8, .steps = kSteps});
  spec.mutable_optimizer()->mutable_sgd()->set_momentum(0);
  Begin(spec, 2, 4);
  cluster_.Kill("coordinator");
  for (const char* suffix : {"", "-wal", "-shm"}) {
    std::filesystem::remove(cluster_.store() + suffix);
  }
  ASSERT_EQ(cluster_.StartCoordinator(), absl::OkStatus());
  const auto joined =
      cluster_.Await([](const v1::StatusReply& status) { return status.aggregators_size() == 2; },
                     kRecovery, "the aggregators join");
  ASSERT_TRUE(joined.ok()) << joined.status();
  EXPECT_EQ(joined->runs_size(), 0) << "unknown runs are left alone";
  const auto adopted = cluster_.client().Call(&v1::Runs::Stub::Adopt, v1::AdoptRequest());
  ASSERT_TRUE(adopted.ok()) << adopted.status();
  ASSERT_EQ(adopted->runs_size(), 1);
  EXPECT_EQ(adopted->runs(0).run(), run_);
  EXPECT_EQ(adopted->runs(0).problem(), "");
  EXPECT_GE(adopted->runs(0).version(), 3u);
  AwaitVersion(adopted->runs(0).version() + 3);
  ExpectEqualToUndisturbed(Finish());
}

// The run goes on as if nothing had happened: its newest version is on the aggregators.
TEST_F(RecoveryTest, BackupIsRestored) {
  v1::RunSpec spec = SmallSpec({.every_steps = 8, .steps = kSteps});
  spec.mutable_optimizer()->mutable_sgd()->set_momentum(0);
  Begin(spec, 2, 4);
  const std::string backup = cluster_.folder() + "/backup.db";
  const uint32_t copied = FindRun(AwaitVersion(2), run_)->version();
  RunCadre({"backup", backup, "--coordinator", cluster_.coordinator()});
  const uint32_t newest = FindRun(AwaitVersion(copied + 5), run_)->version();
  cluster_.Kill("coordinator");
  for (const char* suffix : {"", "-wal", "-shm"}) {
    std::filesystem::remove(cluster_.store() + suffix);
  }
  std::filesystem::copy_file(backup, cluster_.store());
  const auto permissions = std::filesystem::status(backup).permissions();
  EXPECT_EQ(permissions, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  ASSERT_EQ(cluster_.StartCoordinator(), absl::OkStatus());
  const auto restored = cluster_.Await(
      [](const v1::StatusReply& status) { return Counter(status, "runs_brought_forward") == 1; },
      kRecovery, "the run is brought forward");
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_GE(FindRun(*restored, run_)->version(), newest) << "a committed version is lost";
  AwaitVersion(newest + 3);
  const auto done = cluster_.AwaitDone(run_, kLong);
  ASSERT_TRUE(done.ok()) << done.status();
  ExpectEqualToUndisturbed(*FindRun(*done, run_));
  RunCadre({"delete", run_, "--coordinator", cluster_.coordinator()});
  const auto files_are_removed = [&](const v1::StatusReply&) {
    return !std::filesystem::exists(cluster_.folder() + "/aggregator-0/" + run_) &&
           !std::filesystem::exists(cluster_.folder() + "/aggregator-1/" + run_);
  };
  const auto deleted = cluster_.Await(files_are_removed, kRecovery, "the files are removed");
  ASSERT_TRUE(deleted.ok()) << deleted.status();
  EXPECT_EQ(FindRun(*deleted, run_), nullptr);
}

enum class Rounds { kPlain, kCoded, kFragments };

class AggregatorRestartTest : public RecoveryTest, public ::testing::WithParamInterface<Rounds> {
 protected:
  AggregatorRestartTest() : RecoveryTest(/*archive=*/true) {}
};
INSTANTIATE_TEST_SUITE_P(Each, AggregatorRestartTest,
                         ::testing::Values(Rounds::kPlain, Rounds::kCoded, Rounds::kFragments));

// In coded rounds, with momentum and what the codes have left out; in rounds of fragments, which
// overlap steps, also the coordinator restarts.
TEST_P(AggregatorRestartTest, LosesNothing) {
  const bool fragments = GetParam() == Rounds::kFragments;
  v1::RunSpec spec = SmallSpec({.every_steps = fragments ? 16U : 8U, .steps = kSteps});
  v1::Averaging& averaging = *spec.mutable_averaging();
  if (GetParam() != Rounds::kPlain) {
    averaging.mutable_up()->set_codec(v1::CODEC_STAT2);
    averaging.mutable_down()->set_codec(v1::CODEC_E3M0);
    averaging.mutable_outer()->mutable_nesterov()->set_momentum(0.5F);
  }
  if (fragments) {
    averaging.mutable_fragments()->set_count(2);
    averaging.mutable_overlap()->set_steps(2);
  }
  Begin(spec, 2, 4);
  for (int time = 0; time < 2; ++time) {
    const uint32_t version = FindRun(AwaitVersion(0), run_)->version();
    cluster_.Kill("aggregator-0");
    // Without this shard no round can be committed, so later versions prove that the new process
    // works.
    ASSERT_EQ(cluster_.StartAggregator("aggregator-0"), absl::OkStatus());
    const v1::StatusReply after = AwaitVersion(version + 5);
    if (fragments) {
      cluster_.Kill("coordinator");
      ASSERT_EQ(cluster_.StartCoordinator(), absl::OkStatus());
      AwaitVersion(FindRun(after, run_)->version() + 5);
    }
    const auto found = std::find_if(
        after.aggregators().begin(), after.aggregators().end(),
        [](const auto& aggregator) { return aggregator.member().name() == "aggregator-0"; });
    ASSERT_NE(found, after.aggregators().end());
    EXPECT_TRUE(found->member().connected());
  }
  const v1::RunStatus disturbed = Finish();
  ExpectEqualToUndisturbed(disturbed);
  CheckStore(disturbed);
  const std::string replayed =
      RunCadre({"replay", absl::StrCat(cluster_.folder(), "/aggregator-0/", run_),
                absl::StrCat(cluster_.folder(), "/aggregator-1/", run_)});
  EXPECT_THAT(replayed, HasSubstr(absl::StrCat("digest ", disturbed.digest(), ".")));
}

}  // namespace
}  // namespace cadre::testing
