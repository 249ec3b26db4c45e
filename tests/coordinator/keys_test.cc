#include "coordinator/keys.h"

#include <gtest/gtest.h>

namespace cadre {
namespace {

TEST(KeysTest, NamesSortByNumberAndStayApart) {
  EXPECT_LT(CommitKey("run-1", 9), CommitKey("run-1", 10));
  EXPECT_LT(GroupKey("run-1", 9), GroupKey("run-1", 10));
  EXPECT_NE(CommitKey("run-1", 0).rfind(CommitsPrefix("run-1"), 0), std::string::npos);
  EXPECT_EQ(CommitKey("run-10", 0).rfind(CommitsPrefix("run-1"), 0), std::string::npos);
  EXPECT_EQ(CommitKey("run-1-x", 0).rfind(CommitsPrefix("run-1"), 0), std::string::npos);
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
