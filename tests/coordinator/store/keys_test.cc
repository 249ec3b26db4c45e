#include "coordinator/store/keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cadre {
namespace {

using ::testing::MatchesRegex;

TEST(KeysTest, KeysSortByNumberAndAreUnique) {
  EXPECT_LT(CommitKey("run-1", 9), CommitKey("run-1", 10));
  EXPECT_LT(GroupKey("run-1", 9), GroupKey("run-1", 10));
  EXPECT_NE(CommitKey("run-1", 0).rfind(CommitsPrefix("run-1"), 0), std::string::npos);
  EXPECT_EQ(CommitKey("run-10", 0).rfind(CommitsPrefix("run-1"), 0), std::string::npos);
  EXPECT_EQ(CommitKey("run-1-x", 0).rfind(CommitsPrefix("run-1"), 0), std::string::npos);
}

TEST(KeysTest, StandingKeysAreUnique) {
  EXPECT_NE(StandingKey("a/b", "c"), StandingKey("a", "b/c"));
  EXPECT_NE(StandingKey("a", ""), StandingKey("", "a"));
}

TEST(KeysTest, LayerTimesHavePlainNames) {
  EXPECT_THAT(LayerTimesKey("cpu:1", "00ff"), MatchesRegex("profile/cpu:1-[0-9a-f]+/00ff"));
  EXPECT_THAT(LayerTimesKey("A/B \n\xc3\xa9, 1 thread", "00ff"),
              MatchesRegex("profile/A_B____,_1_thread-[0-9a-f]+/00ff"));
  EXPECT_EQ(LayerTimesKey("a b", "00ff"), LayerTimesKey("a b", "00ff"));
  EXPECT_NE(LayerTimesKey("a b", "00ff"), LayerTimesKey("a_b", "00ff"));
}

TEST(KeysTest, RunNumbers) {
  EXPECT_EQ(RunNumber("run-7"), 7u);
  EXPECT_EQ(RunNumber("run-12-fashion-mnist-2"), 12u);
  EXPECT_EQ(RunNumber("run-"), 0u);
  EXPECT_EQ(RunNumber("run-x"), 0u);
  EXPECT_EQ(RunNumber("walk-7"), 0u);
  EXPECT_EQ(RunNumber(""), 0u);
  EXPECT_EQ(RunNumber("run-99999999999999"), 0u);
}

}  // namespace
}  // namespace cadre
