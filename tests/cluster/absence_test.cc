// Tests that groups wait for an aggregator that is away for several times the silence that would
// end their exchange: no generation ends, and no step is lost.
#include <csignal>

#include <cstdint>
#include <map>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cluster/cluster.h"

namespace cadre::testing {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kSilence = absl::Seconds(3);
const absl::Duration kAbsence = 4 * kSilence;
constexpr absl::Duration kLong = absl::Seconds(180);
constexpr uint32_t kSteps = 1200;

class AbsenceTest : public ::testing::Test {
 protected:
  explicit AbsenceTest(absl::Duration patience = absl::Hours(1))
      : cluster_({.exchange_silence = kSilence, .aggregator_patience = patience}) {}

  // Two groups train.
  void Begin() {
    ASSERT_EQ(cluster_.StartAll(/*aggregators=*/2, /*workers=*/2), absl::OkStatus());
    spec_ = SmallSpec({.ranks = 1, .every_steps = 8, .steps = kSteps});
    spec_.mutable_cluster()->set_keep_plan(true);
    const auto run = cluster_.client().Submit(spec_);
    ASSERT_TRUE(run.ok()) << run.status();
    run_ = *run;
    AwaitVersion(5);
  }
  v1::StatusReply AwaitVersion(uint32_t version) {
    return Await(
        [&](const v1::StatusReply& seen) { return FindRun(seen, run_)->version() >= version; },
        absl::StrCat("version ", version));
  }
  // The run must still be running.
  v1::StatusReply Await(const Cluster::Predicate& predicate, const std::string& what) {
    const auto status = cluster_.Await(
        [&](const v1::StatusReply& seen) {
          return FindRun(seen, run_) != nullptr && predicate(seen);
        },
        kLong, what);
    EXPECT_TRUE(status.ok()) << status.status();
    if (!status.ok()) return {};
    EXPECT_EQ(FindRun(*status, run_)->state(), v1::RUN_STATE_RUNNING) << "the run is too short";
    return *status;
  }
  std::map<uint32_t, uint32_t> Generations(const v1::StatusReply& status) const {
    std::map<uint32_t, uint32_t> generations;
    for (uint32_t group = 0; group < 2; ++group) {
      generations[group] = FindGroup(status, run_, group)->generation();
    }
    return generations;
  }
  // The run and a group that has to wait name the aggregator.
  v1::StatusReply AwaitReasons() {
    const auto names = [](const std::string& reason) {
      return absl::StrContains(reason, "waiting for aggregator aggregator-1, away for ");
    };
    return Await(
        [&](const v1::StatusReply& seen) {
          return names(FindRun(seen, run_)->reason()) && names(FindGroup(seen, run_, 0)->reason());
        },
        "the status names the aggregator");
  }
  // The run ends with the model of an undisturbed run, without a failure of a group: no step and no
  // contribution is missing in any version.
  void ExpectNothingLost() {
    const auto disturbed = cluster_.AwaitDone(run_, kLong);
    ASSERT_TRUE(disturbed.ok()) << disturbed.status();
    EXPECT_EQ(Counter(*disturbed, "groups_failed"), 0u);
    EXPECT_EQ(Counter(*disturbed, "groups_formed"), 2u);
    const auto again = cluster_.client().Submit(spec_);
    ASSERT_TRUE(again.ok()) << again.status();
    const auto undisturbed = cluster_.AwaitDone(*again, kLong);
    ASSERT_TRUE(undisturbed.ok()) << undisturbed.status();
    EXPECT_EQ(FindRun(*undisturbed, *again)->digest(), FindRun(*disturbed, run_)->digest());
  }

  Cluster cluster_;
  v1::RunSpec spec_;
  std::string run_;
};

TEST_F(AbsenceTest, KilledAggregatorIsAwaited) {
  Begin();
  cluster_.Kill("aggregator-1");
  absl::SleepFor(kAbsence);
  const v1::StatusReply before = AwaitReasons();
  ASSERT_EQ(cluster_.StartAggregator("aggregator-1"), absl::OkStatus());
  const v1::StatusReply after = AwaitVersion(FindRun(before, run_)->version() + 3);
  EXPECT_EQ(Generations(after), Generations(before));
  EXPECT_EQ(FindRun(after, run_)->reason(), "");
  ExpectNothingLost();
}

// Its connections stay open, so that attempts hang until they are silent.
TEST_F(AbsenceTest, StoppedAggregatorIsAwaited) {
  Begin();
  cluster_.Signal("aggregator-1", SIGSTOP);
  absl::SleepFor(kAbsence);
  const v1::StatusReply before = AwaitReasons();
  cluster_.Signal("aggregator-1", SIGCONT);
  const v1::StatusReply after = AwaitVersion(FindRun(before, run_)->version() + 3);
  EXPECT_EQ(Generations(after), Generations(before));
  ExpectNothingLost();
}

class ImpatientTest : public AbsenceTest {
 protected:
  ImpatientTest() : AbsenceTest(kSilence) {}
};

TEST_F(ImpatientTest, GroupsEndAfterTheLimit) {
  Begin();
  cluster_.Kill("aggregator-1");
  const v1::StatusReply ended = Await(
      [&](const v1::StatusReply& seen) { return FindGroup(seen, run_, 0)->generation() == 0; },
      "the generation ends");
  EXPECT_EQ(FindGroup(ended, run_, 0)->reason(),
            "aggregator aggregator-1 has been away for 3s (--aggregator-patience of the "
            "coordinator)");
  EXPECT_THAT(FindRun(ended, run_)->reason(), HasSubstr("aggregator aggregator-1, away for "));
  ASSERT_EQ(cluster_.StartAggregator("aggregator-1"), absl::OkStatus());
  AwaitVersion(FindRun(ended, run_)->version() + 3);
}

}  // namespace
}  // namespace cadre::testing
