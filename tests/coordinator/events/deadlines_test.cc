// When a group has stalled, and which ranks stopped first.
#include "coordinator/events/deadlines.h"

#include <gtest/gtest.h>

namespace cadre::testing {
namespace {

using enum v1::Activity;
using Ranks = std::vector<uint32_t>;

constexpr absl::Duration kHeartbeat = absl::Seconds(2);

class DeadlinesTest : public ::testing::Test {
 protected:
  // All ranks send heartbeats for `duration` with the activities and progress of `ranks_`.
  void Beat(absl::Duration duration) {
    for (const absl::Time end = now_ + duration; now_ < end;) {
      now_ += kHeartbeat;
      for (const auto& [rank, state] : ranks_) {
        watch_.OnHeartbeat(rank, state.first, state.second, now_, pauses_);
      }
    }
  }
  std::optional<ProgressWatch::Stall> Check(absl::Duration step = absl::ZeroDuration()) const {
    return watch_.Check(ranks_.size(), step, pauses_);
  }

  absl::Time now_ = absl::FromUnixSeconds(1000);
  // Activity and progress by rank.
  std::map<uint32_t, std::pair<v1::Activity, uint64_t>> ranks_;
  ProgressWatch watch_{kHeartbeat};
  Pauses pauses_;
};

TEST_F(DeadlinesTest, StalledTrainer) {
  ranks_ = {{0, {ACTIVITY_TRAINING, 5}}};
  Beat(absl::Seconds(60));
  EXPECT_FALSE(Check().has_value());
  Beat(absl::Seconds(2));
  const auto stall = Check();
  ASSERT_TRUE(stall.has_value());
  EXPECT_EQ(stall->activity, ACTIVITY_TRAINING);
  EXPECT_GE(stall->pause, absl::Minutes(1));
  EXPECT_EQ(stall->suspects, (Ranks{0}));
}

// One rank prepares in seconds; another needs longer than the limit, in every generation.
TEST_F(DeadlinesTest, StallsRaiseTheLimitDespiteShortPauses) {
  pauses_.Observe(ACTIVITY_PREPARING, absl::Seconds(2));
  for (int i = 0; i < 6; ++i) pauses_.ObserveStall(ACTIVITY_PREPARING);
  EXPECT_GT(pauses_.Limit(ACTIVITY_PREPARING, absl::ZeroDuration()), absl::Minutes(1));
}

TEST_F(DeadlinesTest, LimitFollowsStepsAndPauses) {
  EXPECT_EQ(pauses_.Limit(ACTIVITY_TRAINING, absl::Seconds(1)), absl::Minutes(1));
  EXPECT_EQ(pauses_.Limit(ACTIVITY_TRAINING, absl::Seconds(30)), absl::Minutes(5));
  EXPECT_EQ(pauses_.Limit(ACTIVITY_PREPARING, absl::Seconds(30)), absl::Minutes(1));
  ranks_ = {{0, {ACTIVITY_PREPARING, 1}}};
  Beat(absl::Seconds(22));
  ranks_[0] = {ACTIVITY_TRAINING, 2};
  Beat(absl::Seconds(2));
  EXPECT_EQ(pauses_.Limit(ACTIVITY_PREPARING, absl::ZeroDuration()), absl::Seconds(200));
  EXPECT_EQ(pauses_.Limit(ACTIVITY_EXCHANGING, absl::Hours(1)), absl::Seconds(110));
  EXPECT_EQ(pauses_.Limit(ACTIVITY_SAVING, absl::Hours(1)), absl::Minutes(2));
}

TEST_F(DeadlinesTest, WaitingHasNoDeadline) {
  ranks_ = {{0, {ACTIVITY_WAITING, 5}}, {1, {ACTIVITY_WAITING, 5}}};
  Beat(absl::Hours(2));
  EXPECT_FALSE(Check().has_value());
}

TEST_F(DeadlinesTest, RanksThatStopTogetherAreNotSuspected) {
  ranks_ = {{0, {ACTIVITY_TRAINING, 5}}, {1, {ACTIVITY_TRAINING, 7}}};
  Beat(absl::Seconds(70));
  ASSERT_TRUE(Check().has_value());
  EXPECT_TRUE(Check()->suspects.empty());
}

TEST_F(DeadlinesTest, RankThatStoppedFirstIsSuspected) {
  ranks_ = {{0, {ACTIVITY_TRAINING, 5}}, {1, {ACTIVITY_TRAINING, 5}}};
  for (int i = 0; i < 5; ++i) {
    ++ranks_[0].second;
    Beat(absl::Seconds(2));
  }
  Beat(absl::Seconds(56));
  EXPECT_FALSE(Check().has_value()) << "rank 0 has made progress a minute ago";
  Beat(absl::Seconds(6));
  ASSERT_TRUE(Check().has_value());
  EXPECT_EQ(Check()->suspects, (Ranks{1}));
}

TEST_F(DeadlinesTest, PeersWaitForASlowCheckpoint) {
  ranks_ = {{0, {ACTIVITY_SAVING, 5}}, {1, {ACTIVITY_TRAINING, 5}}};
  Beat(absl::Seconds(110));
  EXPECT_FALSE(Check().has_value());
  Beat(absl::Seconds(20));
  EXPECT_TRUE(Check().has_value());
}

TEST_F(DeadlinesTest, OnlyTheRankThatDoesNotWaitIsSuspected) {
  ranks_ = {{0, {ACTIVITY_WAITING, 5}}, {1, {ACTIVITY_PREPARING, 5}}};
  Beat(absl::Seconds(70));
  ASSERT_TRUE(Check().has_value());
  EXPECT_EQ(Check()->suspects, (Ranks{1}));
}

TEST_F(DeadlinesTest, MembersWithoutActivityAreNotWatched) {
  ranks_ = {{0, {ACTIVITY_TRAINING, 5}}, {1, {ACTIVITY_UNSPECIFIED, 0}}};
  Beat(absl::Hours(1));
  EXPECT_FALSE(Check().has_value());
  EXPECT_FALSE(watch_.Check(3, absl::ZeroDuration(), pauses_).has_value());
}

TEST_F(DeadlinesTest, PauseOfTheCoordinatorDoesNotCount) {
  ranks_ = {{0, {ACTIVITY_TRAINING, 5}}};
  Beat(absl::Seconds(2));
  now_ += absl::Hours(1);
  Beat(absl::Seconds(2));
  EXPECT_FALSE(Check().has_value());
}

// The first step of a large model on a slow host may take longer than the limit.
TEST_F(DeadlinesTest, StallsDoubleTheLimitUntilALongPause) {
  pauses_.ObserveStall(ACTIVITY_TRAINING);
  EXPECT_EQ(pauses_.Limit(ACTIVITY_TRAINING, absl::ZeroDuration()), absl::Minutes(2));
  for (int i = 0; i < 100; ++i) pauses_.ObserveStall(ACTIVITY_TRAINING);
  EXPECT_EQ(pauses_.Limit(ACTIVITY_TRAINING, absl::ZeroDuration()), absl::Minutes(16));
  pauses_.Observe(ACTIVITY_TRAINING, absl::Seconds(1));
  EXPECT_EQ(pauses_.Limit(ACTIVITY_TRAINING, absl::ZeroDuration()), absl::Minutes(16));
  pauses_.Observe(ACTIVITY_TRAINING, absl::Minutes(3));
  EXPECT_EQ(pauses_.Limit(ACTIVITY_TRAINING, absl::ZeroDuration()), absl::Minutes(30));
}

// A program compiles before its first step, evaluates, and saves, in its own time.
TEST_F(DeadlinesTest, ProgramsMayPause) {
  watch_ = ProgressWatch(kHeartbeat, absl::Minutes(30));
  for (const v1::Activity activity : {ACTIVITY_PREPARING, ACTIVITY_TRAINING}) {
    ranks_ = {{0, {activity, 1}}};
    Beat(absl::Hours(5));
    EXPECT_FALSE(Check().has_value()) << "before the first step";
  }
  watch_.SetStepped();
  for (const v1::Activity activity :
       {ACTIVITY_TRAINING, ACTIVITY_EVALUATING, ACTIVITY_SAVING, ACTIVITY_PREPARING}) {
    ranks_[0] = {activity, ranks_[0].second + 1};
    Beat(absl::Minutes(29));
    EXPECT_FALSE(Check().has_value());
    Beat(absl::Minutes(2));
    ASSERT_TRUE(Check().has_value());
    EXPECT_EQ(Check()->activity, activity);
  }
  // The program has no part in an exchange.
  ranks_[0] = {ACTIVITY_EXCHANGING, 9};
  Beat(absl::Seconds(112));
  EXPECT_TRUE(Check().has_value());
  EXPECT_EQ(pauses_.Limit(ACTIVITY_TRAINING, absl::ZeroDuration()), absl::Minutes(1))
      << "pauses of programs do not raise the limits of other groups";
}

TEST_F(DeadlinesTest, ProgramPausesWhileItWorks) {
  watch_ = ProgressWatch(kHeartbeat, absl::Minutes(30));
  ranks_ = {{0, {ACTIVITY_TRAINING, 5}}, {1, {ACTIVITY_EVALUATING, 5}}};
  Beat(absl::Seconds(20));
  EXPECT_GE(watch_.program_pause(), absl::Seconds(18));
  ranks_[1].second = 6;
  Beat(absl::Seconds(2));
  EXPECT_EQ(watch_.program_pause(), absl::ZeroDuration());
  Beat(absl::Seconds(20));
  EXPECT_GE(watch_.program_pause(), absl::Seconds(18));
  // It waits for the others, or for an aggregator.
  for (const v1::Activity activity : {ACTIVITY_WAITING, ACTIVITY_EXCHANGING}) {
    ranks_[1] = {activity, 6};
    Beat(absl::Seconds(20));
    EXPECT_EQ(watch_.program_pause(), absl::ZeroDuration());
  }
  watch_ = ProgressWatch(kHeartbeat);
  ranks_ = {{0, {ACTIVITY_TRAINING, 5}}};
  Beat(absl::Seconds(20));
  EXPECT_EQ(watch_.program_pause(), absl::ZeroDuration()) << "it is a native group";
}

}  // namespace
}  // namespace cadre::testing
