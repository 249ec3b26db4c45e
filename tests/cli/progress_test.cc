#include "cli/progress.h"

#include <algorithm>
#include <sstream>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

v1::RunStatus Running(uint32_t step) {
  v1::RunStatus run;
  run.set_run("run-1");
  run.set_state(v1::RUN_STATE_RUNNING);
  run.set_step(step);
  run.set_total_steps(200);
  run.set_epoch(step / 100.0);
  run.set_total_epochs(2);
  run.set_loss(0.3412);
  run.set_samples_per_second(8412.4);
  run.set_rounds_committed(3);
  run.set_eta_seconds(72);
  return run;
}

size_t Lines(const std::string& text) { return std::count(text.begin(), text.end(), '\n'); }

TEST(ProgressTextTest, ShowsKnownFigures) {
  v1::RunStatus run = Running(50);
  EXPECT_EQ(
      ProgressText(run),
      "running  epoch 0.50/2.00  step 50/200  loss 0.3412  8,412 samples/s  round 3  ETA 1m12s");
  run.mutable_test()->set_samples(1000);
  run.mutable_test()->set_accuracy(0.875);
  EXPECT_THAT(ProgressText(run), HasSubstr("  test 0.8750  "));
  run.mutable_discrepancy()->set_smoothed(0.4249);
  EXPECT_THAT(ProgressText(run), HasSubstr("  round 3  discrepancy 0.42  test"));
}

TEST(ProgressTextTest, NoLossIsNotZero) {
  v1::RunStatus run = Running(50);
  run.clear_loss();
  EXPECT_THAT(ProgressText(run), Not(HasSubstr("loss")));
  run.set_loss(0);
  EXPECT_THAT(ProgressText(run), HasSubstr("  loss 0.0000  "));
}

TEST(ProgressTextTest, ShowsTokens) {
  v1::RunStatus run = Running(50);
  run.set_tokens_per_second(51'200.4);
  run.set_perplexity(1.4066);
  EXPECT_THAT(ProgressText(run),
              HasSubstr("  loss 0.3412  perplexity 1.407  8,412 samples/s  51,200 tokens/s  "));
}

TEST(ProgressTextTest, ShowsTheReason) {
  v1::RunStatus run;
  run.set_state(v1::RUN_STATE_QUEUED);
  run.set_reason("waits for 2 more workers");
  EXPECT_EQ(ProgressText(run), "queued  waits for 2 more workers");
}

TEST(ProgressTextTest, ShowsWhatARunningRunWaitsFor) {
  v1::RunStatus run = Running(50);
  run.set_reason("aggregator agg-1 cannot apply the round");
  EXPECT_THAT(ProgressText(run),
              StartsWith("running  aggregator agg-1 cannot apply the round  epoch 0.50/2.00"));
}

TEST(ProgressTest, FailedCheckpointIsALineOfItsOwn) {
  for (const bool terminal : {false, true}) {
    std::ostringstream out;
    Progress progress(out, {.terminal = terminal});
    v1::RunStatus run = Running(50);
    progress.Update(run, absl::Now());
    run.mutable_checkpoint()->set_failures(1);
    run.mutable_checkpoint()->set_failed_step(50);
    run.mutable_checkpoint()->set_error("No space left on device");
    progress.Update(run, absl::Now());
    progress.Update(run, absl::Now());
    const std::string line = "run-1  no checkpoint of step 50: No space left on device\n";
    const size_t first = out.str().find(line);
    ASSERT_NE(first, std::string::npos) << out.str();
    EXPECT_EQ(out.str().find(line, first + 1), std::string::npos) << out.str();
  }
}

TEST(ProgressTest, WarningsAreLinesOfTheirOwn) {
  std::ostringstream out;
  Progress progress(out, {});
  v1::RunStatus run = Running(50);
  run.add_warnings("no archive");
  progress.Update(run, absl::Now());
  run.add_warnings("no momentum");
  progress.Update(run, absl::Now());
  for (const char* line : {"run-1  no archive\n", "run-1  no momentum\n"}) {
    const size_t first = out.str().find(line);
    ASSERT_NE(first, std::string::npos) << out.str();
    EXPECT_EQ(out.str().find(line, first + 1), std::string::npos) << out.str();
  }
}

TEST(ProgressBarTest, FullOnlyAtTheEnd) {
  EXPECT_EQ(ProgressBar(0, 6), "[....]");
  EXPECT_EQ(ProgressBar(0.999, 6), "[###.]");
  EXPECT_EQ(ProgressBar(1, 6), "[####]");
  EXPECT_EQ(ProgressBar(7, 6), "[####]");
}

TEST(ProgressTest, PlainLinesAtIntervals) {
  std::ostringstream out;
  Progress progress(out, {.plain_interval = absl::Seconds(2)});
  const absl::Time start = absl::FromUnixSeconds(1000);
  for (int tenth = 0; tenth <= 40; ++tenth) {
    progress.Update(Running(tenth), start + absl::Milliseconds(100 * tenth));
  }
  // Lines are printed at 0, 2 and 4 seconds.
  EXPECT_EQ(Lines(out.str()), 3u);
  EXPECT_THAT(out.str(), Not(HasSubstr("\r")));
  EXPECT_THAT(out.str(), Not(HasSubstr("\x1b")));
}

TEST(ProgressTest, PlainLinesForTestsAndStates) {
  std::ostringstream out;
  Progress progress(out, {.plain_interval = absl::Hours(1)});
  const absl::Time now = absl::FromUnixSeconds(1000);
  v1::RunStatus run = Running(1);
  progress.Update(run, now);
  progress.Update(run, now);
  EXPECT_EQ(Lines(out.str()), 1u);
  run.mutable_test()->set_samples(10);
  run.mutable_test()->set_version(0);  // the first test may be of version 0
  progress.Update(run, now);
  progress.Update(run, now);
  EXPECT_EQ(Lines(out.str()), 2u);
  run.mutable_test()->set_version(4);
  progress.Update(run, now);
  EXPECT_EQ(Lines(out.str()), 3u);
  run.set_state(v1::RUN_STATE_FINISHING);
  progress.Update(run, now);
  EXPECT_EQ(Lines(out.str()), 4u);
}

TEST(ProgressTest, PlainLinesOfTwoRuns) {
  std::ostringstream out;
  Progress progress(out, {.plain_interval = absl::Hours(1)});
  v1::RunStatus other = Running(1);
  other.set_run("run-2");
  progress.Update(Running(1), absl::FromUnixSeconds(1));
  progress.Update(other, absl::FromUnixSeconds(1));
  EXPECT_THAT(out.str(), HasSubstr("run-1  running"));
  EXPECT_THAT(out.str(), HasSubstr("run-2  running"));
}

TEST(ProgressTest, TerminalRedrawsOneLine) {
  for (const int width : {20, 40, 80, 200}) {
    std::ostringstream out;
    Progress progress(out, {.terminal = true, .width = [width] { return width; }});
    progress.Update(Running(100), absl::Now());
    const std::string line = out.str();
    EXPECT_THAT(line, StartsWith("\r\x1b[K"));
    EXPECT_EQ(Lines(line), 0u);
    EXPECT_LT(line.size() - std::string("\r\x1b[K").size(), static_cast<size_t>(width));
  }
}

TEST(ProgressTest, NotesHaveTheirOwnLine) {
  std::ostringstream out;
  Progress progress(out, {.terminal = true});
  progress.Update(Running(1), absl::Now());
  progress.Note("worker-1 was started again");
  EXPECT_THAT(out.str(), EndsWith("\r\x1b[Kworker-1 was started again\n"));
  progress.Update(Running(2), absl::Now());
  progress.Finish();
  EXPECT_THAT(out.str(), EndsWith("\n"));
  const size_t size = out.str().size();
  progress.Finish();
  EXPECT_EQ(out.str().size(), size);
}

TEST(ProgressTest, ColorOnRequest) {
  std::ostringstream plain;
  Progress(plain, {.terminal = true}).Update(Running(1), absl::Now());
  EXPECT_THAT(plain.str(), Not(HasSubstr("\x1b[3")));
  std::ostringstream color;
  Progress(color, {.terminal = true, .color = true}).Update(Running(1), absl::Now());
  EXPECT_THAT(color.str(), HasSubstr("\x1b[32m"));
}

TEST(ProgressTest, QuietPrintsNothing) {
  std::ostringstream out;
  Progress progress(out, {.quiet = true});
  progress.Update(Running(1), absl::Now());
  progress.Note("note");
  progress.Finish();
  EXPECT_EQ(out.str(), "");
}

TEST(ProgressTest, EscapesReasons) {
  v1::RunStatus run;
  run.set_state(v1::RUN_STATE_FAILED);
  run.set_reason("rank 1: \x1b[2J\ndone");
  EXPECT_EQ(ProgressText(run), "failed  rank 1: \\x1b[2J\\ndone");
}

}  // namespace
}  // namespace cadre
