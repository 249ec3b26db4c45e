// Whom the reports of one generation incriminate.
#include "coordinator/cluster/failure_reports.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace cadre::testing {
namespace {

using Ranks = std::vector<uint32_t>;

const absl::Time kNow = absl::FromUnixSeconds(1000);

v1::RankSlot PlaceOf(uint32_t rank) {
  v1::RankSlot place;
  place.set_run("run-1");
  place.set_generation(7);
  place.set_rank(rank);
  return place;
}

FailureReports Generation(uint32_t ranks) {
  std::vector<FailureReports::Rank> members;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    members.push_back({.member_id = absl::StrCat("w", rank)});
  }
  return {PlaceOf(0), members, kNow};
}

bool Report(FailureReports& reports, uint32_t sender, const Ranks& suspects,
            v1::FailureCause cause = v1::FAILURE_CAUSE_PEER) {
  v1::GroupFailed failed;
  *failed.mutable_place() = PlaceOf(sender);
  failed.set_cause(cause);
  failed.set_reason(absl::StrCat("from ", sender));
  failed.mutable_suspects()->Add(suspects.begin(), suspects.end());
  return reports.Add(failed);
}

TEST(FailureReportsTest, NamedRank) {
  FailureReports reports = Generation(3);
  EXPECT_TRUE(reports.Suspects().empty());
  EXPECT_TRUE(Report(reports, 0, {2}));
  EXPECT_EQ(reports.Suspects(), (Ranks{2}));
  EXPECT_EQ(reports.ReasonOf(2), "from 0");
  EXPECT_FALSE(Report(reports, 0, {1})) << "a rank reports once";
}

TEST(FailureReportsTest, MostReportsDecide) {
  FailureReports reports = Generation(3);
  Report(reports, 2, {0, 1});
  EXPECT_TRUE(reports.Suspects().empty()) << "rank 2 may be cut off";
  Report(reports, 0, {2});
  Report(reports, 1, {2});
  EXPECT_EQ(reports.Suspects(), (Ranks{2}));
  EXPECT_EQ(reports.ReasonOf(2), "from 0");
}

TEST(FailureReportsTest, MutualAccusationsAreNoEvidence) {
  FailureReports reports = Generation(2);
  Report(reports, 0, {1});
  EXPECT_EQ(reports.Suspects(), (Ranks{1}));
  Report(reports, 1, {0});
  EXPECT_TRUE(reports.Suspects().empty());
}

TEST(FailureReportsTest, SilentRankWithoutNames) {
  FailureReports reports = Generation(4);
  Report(reports, 0, {});
  EXPECT_TRUE(reports.Suspects().empty()) << "the others may not have had time to report";
  Report(reports, 1, {});
  EXPECT_TRUE(reports.Suspects().empty());
  Report(reports, 3, {});
  EXPECT_EQ(reports.Suspects(), (Ranks{2}));
  EXPECT_EQ(reports.ReasonOf(2), "from 0");
}

TEST(FailureReportsTest, RankZeroMayBeSilent) {
  FailureReports reports = Generation(4);
  for (const uint32_t rank : {1, 2, 3}) Report(reports, rank, {});
  EXPECT_EQ(reports.Suspects(), (Ranks{0}));
}

TEST(FailureReportsTest, SilentRankAmongNamedOnes) {
  FailureReports reports = Generation(4);
  Report(reports, 0, {1, 2});
  Report(reports, 1, {2, 0});
  Report(reports, 3, {1, 2});
  EXPECT_EQ(reports.Suspects(), (Ranks{2}));
}

// Among the ranks that most reports name, those that have reported themselves are not suspect.
TEST(FailureReportsTest, SilentRankIsSuspectAmongEquallyOftenNamedOnes) {
  FailureReports reports = Generation(4);
  Report(reports, 0, {1, 2});
  Report(reports, 3, {1, 2});
  EXPECT_EQ(reports.Suspects(), (Ranks{1, 2}));
  Report(reports, 1, {});
  EXPECT_EQ(reports.Suspects(), (Ranks{2}));
}

TEST(FailureReportsTest, CauseOfItsOwnExplainsTheFailure) {
  FailureReports reports = Generation(2);
  Report(reports, 0, {1});
  Report(reports, 1, {}, v1::FAILURE_CAUSE_DEVICE);
  EXPECT_TRUE(reports.Suspects().empty());
}

TEST(FailureReportsTest, InvalidNamesAreIgnored) {
  FailureReports reports = Generation(2);
  Report(reports, 0, {0, 2, 9});
  EXPECT_TRUE(reports.Suspects().empty());
}

TEST(FailureReportsTest, WaitsForAllRanks) {
  FailureReports reports = Generation(2);
  Report(reports, 0, {1});
  EXPECT_EQ(reports.until(), kNow + absl::Seconds(2));
  Report(reports, 1, {0});
  EXPECT_EQ(reports.until(), absl::InfinitePast());
  EXPECT_TRUE(reports.Covers(PlaceOf(1), "w1"));
  EXPECT_FALSE(reports.Covers(PlaceOf(1), "w0"));
  EXPECT_FALSE(reports.Covers(PlaceOf(2), "w2"));
  v1::RankSlot other = PlaceOf(1);
  other.set_generation(8);
  EXPECT_FALSE(reports.Covers(other, "w1"));
  other = PlaceOf(1);
  other.set_group(1);
  EXPECT_FALSE(reports.Covers(other, "w1"));
  other = PlaceOf(1);
  other.set_run("run-2");
  EXPECT_FALSE(reports.Covers(other, "w1"));
}

TEST(FailureReportsTest, NamedRanksOfAllReports) {
  FailureReports reports = Generation(3);
  EXPECT_TRUE(reports.Named().empty());
  Report(reports, 0, {2, 3, 9});
  Report(reports, 1, {0, 2});
  EXPECT_EQ(reports.Named(), (Ranks{0, 2})) << "there are no ranks 3 and 9";
  Report(reports, 2, {1}, v1::FAILURE_CAUSE_DEVICE);
  EXPECT_TRUE(reports.Named().empty()) << "the device explains the failure";
}

TEST(FailureReportsTest, HalfOfTheGroupAtMostIsSuspect) {
  FailureReports reports = Generation(4);
  Report(reports, 0, {2, 3});
  EXPECT_EQ(reports.Suspects(), (Ranks{2, 3}));
  FailureReports most = Generation(3);
  Report(most, 0, {1, 2});
  EXPECT_TRUE(most.Suspects().empty());
}

TEST(FailureReportsTest, ReasonWithoutANameIsThatOfTheFirstReport) {
  FailureReports reports = Generation(3);
  EXPECT_EQ(reports.ReasonOf(0), "");
  Report(reports, 2, {});
  Report(reports, 1, {0});
  EXPECT_EQ(reports.ReasonOf(0), "from 1");
  EXPECT_EQ(reports.ReasonOf(1), "from 2");
}

}  // namespace
}  // namespace cadre::testing
