#include "coordinator/events/retention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cadre::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const absl::Time kStart = absl::FromUnixSeconds(1'000'000);

std::vector<uint32_t> NumbersOf(const std::vector<RetentionChanges::Run>& runs) {
  std::vector<uint32_t> numbers;
  for (const RetentionChanges::Run& run : runs) numbers.push_back(run.number);
  return numbers;
}

EndedRun Model(uint32_t number, absl::Duration ended, uint64_t bytes = 100) {
  return {.number = number, .has_version = true, .ended = kStart + ended, .bytes = bytes};
}

EndedRun WithoutVersion(uint32_t number) {
  return {.number = number, .ended = kStart + absl::Seconds(number)};
}

TEST(Retention, ModelsStayByDefault) {
  std::vector<EndedRun> ended = {Model(1, absl::Seconds(0))};
  for (uint32_t number = 2; number <= 101; ++number) ended.push_back(WithoutVersion(number));
  const RetentionChanges changes =
      FindRetentionChanges({.keep_without_version = 16}, ended, kStart + absl::Hours(24 * 365));
  EXPECT_THAT(changes.remove, SizeIs(84)) << "runs without a version";
  EXPECT_EQ(changes.remove.front().number, 2u) << "the first that ended";
  EXPECT_EQ(changes.remove.back().number, 85u);
  EXPECT_THAT(changes.remove.front().reason, HasSubstr("--keep-runs-without-version"));
  EXPECT_THAT(changes.announce, IsEmpty());
  EXPECT_EQ(changes.next, absl::InfiniteFuture());
}

TEST(Retention, RunsWithoutVersionDoNotCountForTheBudget) {
  std::vector<EndedRun> ended = {Model(1, absl::Seconds(0)), WithoutVersion(2), WithoutVersion(3)};
  ended[1].bytes = ended[2].bytes = 1000;
  const RetentionChanges changes = FindRetentionChanges({.keep_bytes = 100}, ended, kStart);
  EXPECT_THAT(changes.announce, IsEmpty());
  EXPECT_THAT(changes.remove, IsEmpty());
}

TEST(Retention, AgeIsAnnouncedBeforeItTakesEffect) {
  const RetentionPolicy policy{.keep_for = absl::Hours(10), .notice = absl::Hours(1)};
  std::vector<EndedRun> ended = {Model(1, absl::ZeroDuration())};
  RetentionChanges changes = FindRetentionChanges(policy, ended, kStart + absl::Hours(8));
  EXPECT_THAT(changes.announce, IsEmpty());
  EXPECT_EQ(changes.next, kStart + absl::Hours(9));
  changes = FindRetentionChanges(policy, ended, kStart + absl::Hours(9));
  ASSERT_THAT(changes.announce, SizeIs(1));
  EXPECT_EQ(changes.announce[0].removal, kStart + absl::Hours(10));
  EXPECT_THAT(changes.announce[0].reason, HasSubstr("kept for 10h after their end"));
  ended[0].removal = changes.announce[0].removal;
  EXPECT_THAT(FindRetentionChanges(policy, ended, kStart + absl::Minutes(599)).remove, IsEmpty());
  changes = FindRetentionChanges(policy, ended, kStart + absl::Hours(10));
  EXPECT_THAT(NumbersOf(changes.remove), ElementsAre(1));
}

TEST(Retention, LongerTimeMovesAnAnnouncement) {
  std::vector<EndedRun> ended = {Model(1, absl::ZeroDuration())};
  ended[0].removal = kStart + absl::Hours(10);
  const RetentionPolicy longer{.keep_for = absl::Hours(15), .notice = absl::Hours(14)};
  RetentionChanges changes = FindRetentionChanges(longer, ended, kStart + absl::Hours(11));
  EXPECT_THAT(changes.remove, IsEmpty());
  ASSERT_THAT(changes.announce, SizeIs(1));
  EXPECT_EQ(changes.announce[0].removal, kStart + absl::Hours(15));
  EXPECT_EQ(changes.next, kStart + absl::Hours(15));
  ended[0].removal = changes.announce[0].removal;
  changes = FindRetentionChanges(longer, ended, kStart + absl::Hours(15));
  EXPECT_THAT(NumbersOf(changes.remove), ElementsAre(1));
}

// A coordinator that was away for a month, or whose flag is new, deletes nothing immediately.
TEST(Retention, OverdueRunsHaveTheirNoticeToo) {
  const RetentionPolicy policy{.keep_for = absl::Hours(10), .notice = absl::Hours(1)};
  const absl::Time now = kStart + absl::Hours(700);
  const RetentionChanges changes =
      FindRetentionChanges(policy, {Model(1, absl::ZeroDuration())}, now);
  ASSERT_THAT(changes.announce, SizeIs(1));
  EXPECT_EQ(changes.announce[0].removal, now + absl::Hours(1));
  EXPECT_THAT(changes.remove, IsEmpty());
}

TEST(Retention, ShortTimeIsTheNotice) {
  const RetentionPolicy policy{.keep_for = absl::Seconds(2)};
  const RetentionChanges changes =
      FindRetentionChanges(policy, {Model(1, absl::ZeroDuration())}, kStart);
  ASSERT_THAT(changes.announce, SizeIs(1));
  EXPECT_EQ(changes.announce[0].removal, kStart + absl::Seconds(2));
}

TEST(Retention, RunsThatEndedFirstGiveWayToTheBudget) {
  const RetentionPolicy policy{.keep_bytes = 250, .notice = absl::Hours(1)};
  std::vector<EndedRun> ended = {Model(7, absl::Seconds(1)), Model(3, absl::Seconds(3)),
                                 Model(5, absl::Seconds(2))};
  const absl::Time now = kStart + absl::Seconds(4);
  RetentionChanges changes = FindRetentionChanges(policy, ended, now);
  EXPECT_THAT(NumbersOf(changes.announce), ElementsAre(7));
  EXPECT_EQ(changes.announce[0].removal, now + absl::Hours(1));
  EXPECT_THAT(changes.announce[0].reason, HasSubstr("may take 250 bytes"));
  EXPECT_THAT(changes.announce[0].reason, HasSubstr("take 300"));
  ended[0].removal = now + absl::Hours(1);
  // Another run has been deleted meanwhile.
  std::vector<EndedRun> fewer = {ended[0], ended[1]};
  changes = FindRetentionChanges(policy, fewer, now + absl::Hours(2));
  EXPECT_THAT(changes.withdraw, ElementsAre(7));
  EXPECT_THAT(changes.remove, IsEmpty());
  changes = FindRetentionChanges(policy, ended, now + absl::Hours(1));
  EXPECT_THAT(NumbersOf(changes.remove), ElementsAre(7));
  EXPECT_THAT(changes.announce, IsEmpty()) << "the others fit";
}

}  // namespace
}  // namespace cadre::testing
