// What reports of checkpoints change in the record of a run.
#include "coordinator/run/checkpoints.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "tests/base/expect.h"

namespace cadre {
namespace {

class CheckpointsTest : public ::testing::Test {
 protected:
  std::optional<std::string> Record(uint32_t step, const std::string& error = "",
                                    const std::string& warning = "") {
    Member member;
    member.record.set_name("w0");
    member.record.set_host("h0");
    v1::Checkpointed report;
    report.set_step(step);
    report.set_error(error);
    report.set_warning(warning);
    return checkpoints_.Record(member, report);
  }

  v1::RunRecord run_ = Parse<v1::RunRecord>(
      "spec { checkpoint { directory: '/checkpoints' } } state: RUN_STATE_FINISHING step: 20");
  Checkpoints checkpoints_{run_};
};

TEST_F(CheckpointsTest, RepeatedReportsSayNothing) {
  EXPECT_EQ(Record(0), "");
  EXPECT_EQ(Record(0), std::nullopt);
  EXPECT_EQ(Record(5, "", "old ones stay"),
            "the checkpoint of step 5 is written, but: old ones stay");
  EXPECT_EQ(Record(5, "", "old ones stay"), std::nullopt);
  EXPECT_EQ(run_.checkpoint().saved_step(), 5U);
}

TEST_F(CheckpointsTest, EachFailureCountsOnce) {
  EXPECT_EQ(Record(5, "disk full"), "no checkpoint of step 5 (worker w0 on h0): disk full");
  EXPECT_EQ(Record(5, "disk full"), std::nullopt);
  EXPECT_TRUE(Record(10, "disk full").has_value()) << "the same error, of another step";
  EXPECT_TRUE(Record(10, "no permission").has_value()) << "another error of the same step";
  EXPECT_EQ(run_.checkpoint().failures(), 3U);
  EXPECT_EQ(run_.checkpoint().failed_step(), 10U);
  EXPECT_EQ(run_.checkpoint().error(), "no permission");
}

TEST_F(CheckpointsTest, EndWaitsUntilTheLastOneIsReported) {
  EXPECT_TRUE(checkpoints_.LacksLast());
  Record(15);
  Record(15, "disk full");
  EXPECT_TRUE(checkpoints_.LacksLast()) << "these are reports of an earlier step";
  run_.set_state(v1::RUN_STATE_RUNNING);
  EXPECT_FALSE(checkpoints_.LacksLast()) << "the run does not end yet";
  run_.set_state(v1::RUN_STATE_FINISHING);
  Record(20, "disk full");
  EXPECT_FALSE(checkpoints_.LacksLast());
  EXPECT_EQ(checkpoints_.End(), "the last checkpoint, of step 20, is missing: disk full");
  EXPECT_TRUE(run_.checkpoint().last_missing());
}

TEST_F(CheckpointsTest, LastOneIsThere) {
  Record(20);
  EXPECT_FALSE(checkpoints_.LacksLast());
  EXPECT_EQ(checkpoints_.End(), "");
  EXPECT_FALSE(run_.checkpoint().last_missing());
}

TEST_F(CheckpointsTest, MissingLastOneIsNamed) {
  Record(15, "disk full");
  EXPECT_EQ(checkpoints_.End(),
            "the last checkpoint, of step 20, is missing: group 0 has not written it");
}

// A run may end at step 0, which is also what a record without reports has.
TEST_F(CheckpointsTest, StepZeroIsNotReportedByDefault) {
  run_.set_step(0);
  EXPECT_TRUE(checkpoints_.LacksLast());
  EXPECT_NE(checkpoints_.End(), "");
}

TEST_F(CheckpointsTest, RunWithoutCheckpointsLacksNone) {
  run_.mutable_spec()->clear_checkpoint();
  EXPECT_FALSE(checkpoints_.LacksLast());
  EXPECT_EQ(checkpoints_.End(), "");
}

}  // namespace
}  // namespace cadre
