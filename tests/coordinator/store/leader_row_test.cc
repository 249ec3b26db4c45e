// When a standby decides that the leader is gone.
#include "coordinator/store/leader_row.h"

#include <gtest/gtest.h>

namespace cadre {
namespace {

class LeaderWatchTest : public ::testing::Test {
 protected:
  bool Read(uint64_t term, uint64_t beat) { return Read(term, beat, absl::ZeroDuration()); }
  // The reading takes this long.
  bool Read(uint64_t term, uint64_t beat, absl::Duration takes) {
    const absl::Time begin = now_;
    now_ += takes;
    return watch_.OnRead({.term = term, .beat = beat, .instance = "i", .address = "a:1"}, begin,
                         now_);
  }

  absl::Time now_ = absl::FromUnixSeconds(1000);
  LeaderWatch watch_;
};

TEST_F(LeaderWatchTest, LeaderThatChangesTheRowLeads) {
  for (uint64_t beat = 1; beat <= 20; ++beat) {
    EXPECT_FALSE(Read(1, beat)) << beat;
    now_ += kLeaderTimeout - absl::Milliseconds(1);
  }
}

TEST_F(LeaderWatchTest, RowThatDoesNotChangeIsThatOfALeaderThatIsGone) {
  EXPECT_FALSE(Read(1, 7)) << "the first reading shows nothing about time";
  now_ += kLeaderTimeout - absl::Milliseconds(1);
  EXPECT_FALSE(Read(1, 7));
  now_ += absl::Milliseconds(1);
  EXPECT_TRUE(Read(1, 7));
}

TEST_F(LeaderWatchTest, NewTermIsAnotherLeader) {
  EXPECT_FALSE(Read(1, 7));
  now_ += kLeaderTimeout;
  EXPECT_FALSE(Read(2, 7));
}

TEST_F(LeaderWatchTest, LeaderThatHasEndedIsGone) {
  EXPECT_TRUE(watch_.OnRead({.term = 3, .beat = 9}, now_, now_));
}

// The standby was paused, or the database was slow.
TEST_F(LeaderWatchTest, TimeOfAReadingDoesNotCount) {
  EXPECT_FALSE(Read(1, 7, kLeaderTimeout * 10));
  EXPECT_FALSE(Read(1, 7, kLeaderTimeout * 10)) << "the row may be as old as the reading's begin";
  EXPECT_TRUE(Read(1, 7));
}

// While the database is away, the leader cannot change the row either.
TEST_F(LeaderWatchTest, TimeWithoutDatabaseDoesNotCount) {
  EXPECT_FALSE(Read(1, 7));
  now_ += kLeaderTimeout * 10;
  watch_.OnUnreadable();
  EXPECT_FALSE(Read(1, 7)) << "the leader may need time to connect";
  now_ += kLeaderTimeout;
  EXPECT_TRUE(Read(1, 7));
}

}  // namespace
}  // namespace cadre
