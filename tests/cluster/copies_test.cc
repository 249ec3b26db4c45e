// Tests, with real processes, that a run whose shards have copies continues with equal bits after
// an aggregator has lost its disk, although momentum and residual are nowhere else.
#include <algorithm>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cluster/cluster.h"

namespace cadre::testing {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr absl::Duration kLong = absl::Seconds(180);
constexpr absl::Duration kRecovery = absl::Seconds(60);
// Several times the steps at which the last process is killed.
constexpr uint32_t kSteps = 1200;

class CopiesTest : public ::testing::Test {
 protected:
  // Three groups of one worker and two shards, with momentum and with codes in both directions.
  static v1::RunSpec Spec(uint32_t copies) {
    v1::RunSpec spec = SmallSpec({.groups = 3, .ranks = 1, .every_steps = 4, .steps = kSteps});
    v1::Averaging& averaging = *spec.mutable_averaging();
    averaging.mutable_up()->set_codec(v1::CODEC_E3M0);
    averaging.mutable_down()->set_codec(v1::CODEC_E3M0);
    averaging.mutable_outer()->mutable_nesterov();
    averaging.set_copies(copies);
    spec.mutable_cluster()->set_keep_plan(true);
    return spec;
  }

  void Begin(const v1::RunSpec& spec) {
    const auto run = cluster_.StartRun(spec);
    ASSERT_TRUE(run.ok()) << run.status();
    run_ = *run;
  }
  void AwaitVersion(uint32_t version) {
    const auto status = cluster_.Await(
        [&](const v1::StatusReply& seen) {
          const v1::RunStatus* const run = FindRun(seen, run_);
          return run != nullptr && run->version() >= version;
        },
        kRecovery, absl::StrCat("version ", version));
    ASSERT_TRUE(status.ok()) << status.status();
    version_ = FindRun(*status, run_)->version();
    ASSERT_EQ(FindRun(*status, run_)->state(), v1::RUN_STATE_RUNNING) << "the run is too short";
  }
  v1::RunStatus AwaitDone(const std::string& run) {
    const auto status = cluster_.AwaitDone(run, kLong);
    EXPECT_TRUE(status.ok()) << status.status();
    return status.ok() ? *FindRun(*status, run) : v1::RunStatus();
  }
  v1::RunStatus TrainAgain(const v1::RunSpec& spec) {
    const auto run = cluster_.client().Submit(spec);
    EXPECT_TRUE(run.ok()) << run.status();
    return run.ok() ? AwaitDone(*run) : v1::RunStatus();
  }
  // Stops a worker so that no round closes, and awaits that the other groups hold the newest
  // version: only then can they restore it.
  void AwaitHeldVersion(const std::string& stopped) {
    cluster_.Signal(stopped, SIGSTOP);
    const auto held = cluster_.Await(
        [&](const v1::StatusReply& seen) {
          const v1::RunStatus* const run = FindRun(seen, run_);
          const auto holds = [run](const v1::GroupStatus& group) {
            return group.state() == v1::GROUP_STATE_AT_BOUNDARY &&
                   group.version() == run->version();
          };
          return run != nullptr && std::ranges::count_if(seen.groups(), holds) == 2;
        },
        kRecovery, "two groups with the newest version");
    ASSERT_TRUE(held.ok()) << held.status();
  }
  void LoseDisk(const std::string& aggregator) {
    cluster_.Kill(aggregator);
    std::filesystem::remove_all(cluster_.folder() + "/" + aggregator);
    ASSERT_EQ(cluster_.StartAggregator(aggregator), absl::OkStatus());
  }
  uint64_t CounterOf(const std::string& name) {
    const auto status = cluster_.client().Status();
    return status.ok() ? Counter(*status, name) : 0;
  }

  Cluster cluster_{{.lease = absl::Seconds(3)}};
  std::string run_;
  uint32_t version_ = 0;
};

TEST_F(CopiesTest, LostDisksChangeNoBit) {
  Begin(Spec(/*copies=*/2));
  for (const char* const aggregator : {"aggregator-1", "aggregator-0", "aggregator-1"}) {
    ASSERT_NO_FATAL_FAILURE(AwaitVersion(version_ + 12));
    ASSERT_NO_FATAL_FAILURE(LoseDisk(aggregator));
  }
  const v1::RunStatus disturbed = AwaitDone(run_);
  EXPECT_THAT(disturbed.warnings(), IsEmpty());
  EXPECT_GE(CounterOf("shards_restored"), 3U);
  const v1::RunStatus undisturbed = TrainAgain(Spec(/*copies=*/2));
  EXPECT_EQ(disturbed.digest(), undisturbed.digest());
  ASSERT_EQ(undisturbed.copies_size(), 2);
  EXPECT_EQ(undisturbed.copies(0).aggregator(), "aggregator-1");
  EXPECT_EQ(undisturbed.copies(1).aggregator(), "aggregator-0");
  // The copies cost the groups nothing, and change no value.
  const v1::RunStatus single = TrainAgain(Spec(/*copies=*/1));
  EXPECT_EQ(single.digest(), undisturbed.digest());
  EXPECT_THAT(single.copies(), IsEmpty());
  EXPECT_EQ(single.payload_bytes_across_groups(), undisturbed.payload_bytes_across_groups());
  EXPECT_EQ(single.bytes_up(), undisturbed.bytes_up());
  EXPECT_EQ(single.bytes_down(), undisturbed.bytes_down());
}

TEST_F(CopiesTest, WithoutCopiesTheStatusNamesWhatIsLost) {
  Begin(Spec(/*copies=*/1));
  ASSERT_NO_FATAL_FAILURE(AwaitVersion(12));
  ASSERT_NO_FATAL_FAILURE(AwaitHeldVersion("worker-2"));
  ASSERT_NO_FATAL_FAILURE(LoseDisk("aggregator-1"));
  cluster_.Signal("worker-2", SIGCONT);
  const v1::RunStatus run = AwaitDone(run_);
  EXPECT_THAT(run.warnings(),
              Contains(HasSubstr("the momentum of the outer optimizer and the residual of coded "
                                 "versions begin with zeros")));
}

}  // namespace
}  // namespace cadre::testing
