// When failures end a run.
#include "coordinator/run/run_failures.h"

#include <gtest/gtest.h>

namespace cadre::testing {
namespace {

constexpr v1::FailureCause kDataFailure = v1::FAILURE_CAUSE_DATA;
constexpr v1::FailureCause kPlan = v1::FAILURE_CAUSE_PLAN;

TEST(RunFailuresTest, SingleHost) {
  RunFailures failures;
  EXPECT_TRUE(failures.Add(kDataFailure, "a", /*version=*/0, /*hosts=*/1));
  failures.OnCommit();
  EXPECT_FALSE(failures.Add(kDataFailure, "a", 1, 1));
  EXPECT_FALSE(failures.Add(kDataFailure, "a", 1, 1));
  EXPECT_TRUE(failures.Add(kDataFailure, "a", 1, 1));
}

TEST(RunFailuresTest, HostsThatMustAgree) {
  const struct {
    uint32_t version;
    size_t hosts;
    size_t needed;
  } cases[] = {{0, 2, 2}, {0, 9, 2}, {1, 2, 2}, {1, 3, 3}, {1, 9, 3}};
  for (const auto& c : cases) {
    RunFailures failures;
    for (size_t host = 1; host <= c.needed; ++host) {
      for (int repeat = 0; repeat < 2; ++repeat) {
        EXPECT_EQ(failures.Add(kDataFailure, std::to_string(host), c.version, c.hosts),
                  host == c.needed)
            << c.version << " " << c.hosts << " " << host;
      }
    }
  }
}

TEST(RunFailuresTest, CausesAreSeparate) {
  RunFailures failures;
  EXPECT_FALSE(failures.Add(kDataFailure, "a", 0, 3));
  EXPECT_FALSE(failures.Add(kPlan, "b", 0, 3));
  EXPECT_TRUE(failures.Add(kPlan, "c", 0, 3));
}

TEST(RunFailuresTest, CommitDiscardsReports) {
  RunFailures failures;
  EXPECT_FALSE(failures.Add(kDataFailure, "a", 0, 3));
  failures.OnCommit();
  EXPECT_FALSE(failures.Add(kDataFailure, "b", 1, 2));
  EXPECT_TRUE(failures.Add(kDataFailure, "a", 1, 2));
}

TEST(RunFailuresTest, Divergence) {
  RunFailures failures;
  EXPECT_TRUE(failures.AddDivergence(/*generation=*/7, {"a"}, /*groups=*/1, /*hosts=*/3));
  failures.OnCommit();
  EXPECT_FALSE(failures.AddDivergence(7, {"a"}, 2, 3));
  EXPECT_FALSE(failures.AddDivergence(7, {"a"}, 2, 3)) << "all ranks report";
  failures.OnCommit();
  EXPECT_FALSE(failures.AddDivergence(8, {"a"}, 2, 3));
  EXPECT_TRUE(failures.AddDivergence(9, {"b"}, 2, 3));
}

TEST(RunFailuresTest, DivergenceOnOneHost) {
  RunFailures failures;
  EXPECT_FALSE(failures.AddDivergence(1, {"a", "b"}, 2, 3));
  EXPECT_FALSE(failures.AddDivergence(2, {"b", "c"}, 2, 3)) << "b may be faulty";
  EXPECT_TRUE(failures.AddDivergence(3, {"a", "c"}, 2, 3));
  failures.OnCommit();
  for (uint32_t generation = 4; generation < 7; ++generation) {
    EXPECT_FALSE(failures.AddDivergence(generation, {"a"}, 2, 3));
  }
  EXPECT_TRUE(failures.AddDivergence(7, {"a"}, 2, 3)) << "no other host is tried";
  failures.OnCommit();
  EXPECT_FALSE(failures.AddDivergence(8, {"a"}, 2, 1));
  EXPECT_TRUE(failures.AddDivergence(9, {"a"}, 2, 1)) << "there is no other host";
}

}  // namespace
}  // namespace cadre::testing
