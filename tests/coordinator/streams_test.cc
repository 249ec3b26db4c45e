#include "coordinator/streams.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/time/time.h"
#include "tests/coordinator/fake_cluster.h"

namespace cadre::testing {
namespace {

class RunUpdatesTest : public MachineTest {
 protected:
  RunUpdatesTest() : run_(SubmitTo(1, 1, MakeSpec(1, 1, 5, 100))) {}

  RunUpdates::Entry Find(uint64_t revision, absl::Duration after) {
    return updates_.Find(cluster_.machine(), run_, revision, start_ + after);
  }

  const std::string run_;
  const absl::Time start_ = cluster_.now();
  RunUpdates updates_;
};

TEST_F(RunUpdatesTest, UpdateIsThatOfTheMachine) {
  const RunUpdates::Entry entry = Find(7, absl::ZeroDuration());
  EXPECT_EQ(entry.revision, 7U);
  EXPECT_EQ(entry.computed, start_);
  EXPECT_EQ(entry.update.SerializeAsString(),
            cluster_.machine().Update(run_, start_).SerializeAsString());
}

TEST_F(RunUpdatesTest, EqualRevisionIsNotComputedAgain) {
  Find(7, absl::ZeroDuration());
  EXPECT_EQ(Find(7, absl::Hours(1)).computed, start_);
}

TEST_F(RunUpdatesTest, AtMostTenUpdatesPerSecond) {
  Find(7, absl::ZeroDuration());
  EXPECT_EQ(Find(8, absl::Milliseconds(99)).revision, 7U);
  EXPECT_EQ(Find(9, absl::Milliseconds(100)).revision, 9U);
  EXPECT_EQ(Find(10, absl::Milliseconds(199)).revision, 9U);
}

// Watchers of an unchanged run receive no update because time has passed.
TEST_F(RunUpdatesTest, TextHasNoTimes) {
  const RunUpdates::Entry first = Find(7, absl::ZeroDuration());
  const RunUpdates::Entry later = Find(8, absl::Seconds(5));
  EXPECT_NE(later.update.time_ms(), first.update.time_ms());
  EXPECT_EQ(later.text, first.text);
  cluster_.StopRun(run_);
  EXPECT_NE(Find(9, absl::Seconds(6)).text, first.text);
}

TEST_F(RunUpdatesTest, RunsThatNobodyWatchesAreForgotten) {
  const std::string other = cluster_.Submit(MakeSpec(1, 1, 5, 100));
  Find(7, absl::ZeroDuration());
  const auto find_other = [&](uint64_t revision, absl::Duration after) {
    updates_.Find(cluster_.machine(), other, revision, start_ + after);
  };
  find_other(1, absl::Seconds(60));
  EXPECT_EQ(Find(7, absl::Seconds(60)).computed, start_);
  find_other(2, absl::Seconds(61));
  EXPECT_EQ(Find(7, absl::Seconds(61)).computed, start_ + absl::Seconds(61));
}

}  // namespace
}  // namespace cadre::testing
