// When the reports of aggregators replace the record of a run, and by what.
#include "coordinator/run/stale_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "tests/base/expect.h"
#include "tests/coordinator/run/fake_run.h"

namespace cadre {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kOldRecord[] = R"(
    run: "run-1-test" lineage: "run-1-test.0123456789abcdef" spec { name: "test" }
    state: RUN_STATE_FINISHING reason: "a reason" version: 2 step: 20 digest: 77 samples: 2000
    rounds_committed: 2 train_samples: 640 test_samples: 100 shards: "agg-0" shards: "agg-1"
    former_shards: "agg-8" evaluating { step: 20 } left { round: 2 } rollback: 1 started_ms: 5
    division { groups: 3 } warnings: "a warning")";

class StaleRecordTest : public ::testing::Test {
 protected:
  static v1::RunReport ReportOf(uint32_t shard, uint32_t version) {
    v1::RunReport report;
    v1::OpenRun& open = *report.mutable_open();
    open.set_lineage("run-1-test.0123456789abcdef");
    open.mutable_spec()->set_name("test");
    open.set_shard(shard);
    open.set_shards(2);
    v1::ShardState& state = *report.mutable_state();
    state.set_run("run-1-test");
    state.set_lineage(open.lineage());
    state.set_shard(shard);
    state.set_version(version);
    state.set_digest(1);
    v1::Apply& order = *report.mutable_newest();
    order.set_round(version);
    order.set_step(10 * version);
    order.set_samples(1000 * version);
    return report;
  }
  std::optional<RebuiltRun> Report(uint32_t shard, uint32_t version) {
    return stale_.OnReport(run_, "agg-" + std::to_string(shard), ReportOf(shard, version));
  }

  CoordinatorOptions options_;
  Cluster cluster_{options_};
  testing::FakeRun run_{Parse<v1::RunRecord>(kOldRecord), cluster_};
  StaleRecord stale_;
};

TEST_F(StaleRecordTest, ReportsReplaceWhatTheyKnow) {
  EXPECT_FALSE(stale_.known());
  EXPECT_TRUE(stale_.Add(5));
  EXPECT_FALSE(stale_.Add(4));
  EXPECT_TRUE(stale_.known());
  EXPECT_FALSE(Report(0, 5).has_value());
  EXPECT_THAT(stale_.problem(), HasSubstr("shard 1 of 2 is missing"));
  const std::optional<RebuiltRun> rebuilt = Report(1, 5);
  ASSERT_TRUE(rebuilt.has_value());
  EXPECT_EQ(stale_.problem(), "");
  EXPECT_EQ(rebuilt->record.DebugString(), Parse<v1::RunRecord>(R"(
      run: "run-1-test" lineage: "run-1-test.0123456789abcdef" spec { name: "test" }
      state: RUN_STATE_QUEUED version: 5 step: 50 digest: 2 samples: 5000 rounds_committed: 5
      shards: "agg-0" shards: "agg-1" former_shards: "agg-8" started_ms: 5
      division { groups: 3 } warnings: "a warning")")
                                               .DebugString());
}

TEST_F(StaleRecordTest, DivisionIsThatOfTheNewestVersion) {
  stale_.Add(5);
  Report(0, 5);
  v1::RunReport second = ReportOf(1, 5);
  second.mutable_newest()->mutable_division()->set_groups(7);
  v1::RunReport first = ReportOf(0, 5);
  *first.mutable_newest() = second.newest();
  stale_.OnReport(run_, "agg-0", first);
  const auto rebuilt = stale_.OnReport(run_, "agg-1", second);
  ASSERT_TRUE(rebuilt.has_value());
  EXPECT_EQ(rebuilt->record.division().groups(), 7U);
}

TEST_F(StaleRecordTest, ReportsOfOtherRunsAreNotUsed) {
  stale_.Add(5);
  v1::RunReport other = ReportOf(0, 5);
  other.mutable_open()->set_lineage("run-1-test.fedcba9876543210");
  EXPECT_FALSE(stale_.OnReport(run_, "agg-0", other).has_value());
  EXPECT_FALSE(stale_.OnReport(run_, "agg-0", v1::RunReport()).has_value());
  EXPECT_TRUE(stale_.reports().empty());
  EXPECT_EQ(stale_.problem(), "its aggregators have not reported");
}

// The aggregator that the record names has no values of it.
TEST_F(StaleRecordTest, ShardMayHaveMovedSince) {
  stale_.Add(5);
  EXPECT_FALSE(stale_.OnReport(run_, "agg-1", ReportOf(1, 5)).has_value());
  const auto rebuilt = stale_.OnReport(run_, "agg-2", ReportOf(0, 5));
  ASSERT_TRUE(rebuilt.has_value()) << stale_.problem();
  EXPECT_EQ(rebuilt->record.shards(0), "agg-2");
  EXPECT_EQ(rebuilt->record.shards(1), "agg-1");
}

// The aggregator that the record names was away when its shard has moved, and has its files still.
TEST_F(StaleRecordTest, ShardIsWhereItsNewestVersionIs) {
  stale_.Add(6);
  Report(0, 5);
  Report(1, 6);
  const auto rebuilt = stale_.OnReport(run_, "agg-2", ReportOf(0, 6));
  ASSERT_TRUE(rebuilt.has_value()) << stale_.problem();
  EXPECT_EQ(rebuilt->record.version(), 6U);
  EXPECT_FALSE(rebuilt->closing.has_value());
  EXPECT_EQ(rebuilt->record.shards(0), "agg-2");
  // With equal versions, the record is right.
  EXPECT_EQ(Report(0, 6)->record.shards(0), "agg-0");
}

// Other aggregators had been chosen before those that the record names, and one of them has
// version 0 still.
TEST_F(StaleRecordTest, VersionZeroElsewhereDoesNotReplaceAShardThatIsAwaited) {
  run_.stored.record().set_version(0);
  stale_.Add(1);
  Report(0, 1);
  v1::RunReport other = ReportOf(1, 0);
  other.clear_newest();
  EXPECT_FALSE(stale_.OnReport(run_, "agg-2", other).has_value());
  EXPECT_THAT(stale_.problem(), HasSubstr("shard 1 of 2 is missing"));
  const auto rebuilt = Report(1, 1);
  ASSERT_TRUE(rebuilt.has_value()) << stale_.problem();
  EXPECT_EQ(rebuilt->record.version(), 1U);
  EXPECT_EQ(rebuilt->record.shards(1), "agg-1");
}

// What other aggregators have counts only if it is newer.
TEST_F(StaleRecordTest, OtherAggregatorsOfAShardWithValuesAreNotUsed) {
  stale_.Add(5);
  v1::RunReport other = ReportOf(0, 5);
  other.mutable_state()->set_digest(9);
  EXPECT_FALSE(stale_.OnReport(run_, "agg-2", other).has_value());
  Report(0, 5);
  const auto rebuilt = Report(1, 5);
  ASSERT_TRUE(rebuilt.has_value()) << stale_.problem();
  EXPECT_EQ(rebuilt->record.shards(0), "agg-0");
}

TEST_F(StaleRecordTest, OtherAggregatorsWithoutValuesAreNotUsed) {
  stale_.Add(5);
  v1::RunReport hollow = ReportOf(0, 5);
  hollow.clear_state();
  stale_.OnReport(run_, "agg-2", hollow);
  EXPECT_FALSE(Report(1, 5).has_value());
  EXPECT_THAT(stale_.problem(), HasSubstr("shard 0 of 2 is missing"));
}

TEST_F(StaleRecordTest, OtherAggregatorsOfAnotherNumberOfShardsAreNotUsed) {
  stale_.Add(5);
  v1::RunReport other = ReportOf(0, 5);
  other.mutable_open()->set_shards(3);
  stale_.OnReport(run_, "agg-2", other);
  EXPECT_FALSE(Report(1, 5).has_value());
  EXPECT_THAT(stale_.problem(), HasSubstr("shard 0 of 2 is missing"));
}

TEST_F(StaleRecordTest, VersionThatAnAggregatorHadIsAwaited) {
  stale_.Add(6);
  Report(0, 5);
  EXPECT_FALSE(Report(1, 5).has_value());
  EXPECT_EQ(stale_.problem(), "no connected aggregator has version 6, which one had before");
  EXPECT_TRUE(Report(1, 6).has_value()) << "one shard has it, so the round is being closed";
  StaleRecord later;
  later.Add(7);
  for (const uint32_t shard : {0U, 1U}) {
    EXPECT_FALSE(later.OnReport(run_, "agg-" + std::to_string(shard), ReportOf(shard, 5 + shard))
                     .has_value());
  }
  EXPECT_THAT(later.problem(), HasSubstr("has version 7"));
}

TEST_F(StaleRecordTest, ReportsOfLostAggregatorsAreForgotten) {
  stale_.Add(5);
  Report(0, 5);
  stale_.OnAggregatorLost("agg-0");
  EXPECT_FALSE(Report(1, 5).has_value());
  EXPECT_THAT(stale_.problem(), HasSubstr("shard 0 of 2 is missing"));
}

// A coordinator that was replaced while it closed a round knows the version before, and its digest.
TEST_F(StaleRecordTest, KnownCommitOfTheSameVersionIsKept) {
  stale_.Add(3);
  Report(0, 2);
  auto rebuilt = Report(1, 3);
  ASSERT_TRUE(rebuilt.has_value());
  EXPECT_EQ(rebuilt->record.version(), 2U);
  EXPECT_EQ(rebuilt->newest.loss(), 0) << "the commit of version 2 is not known";
  EXPECT_EQ(rebuilt->record.digest(), 0U);
  v1::CommitRecord commit;
  commit.set_round(2);
  commit.set_loss(0.5F);
  commit.set_committed(true);
  run_.made.Load(commit, 2);
  rebuilt = Report(1, 3);
  ASSERT_TRUE(rebuilt.has_value());
  EXPECT_EQ(rebuilt->newest.loss(), 0.5F);
  EXPECT_EQ(rebuilt->record.digest(), 77U);
  EXPECT_EQ(rebuilt->closing->round(), 3U);
  Report(0, 3);
  rebuilt = Report(1, 3);
  ASSERT_TRUE(rebuilt.has_value());
  EXPECT_EQ(rebuilt->newest.round(), 3U) << "that of version 2 says nothing of version 3";
  EXPECT_EQ(rebuilt->record.digest(), 2U);
}

// Its files are deleted with the run.
TEST_F(StaleRecordTest, AggregatorOfAnEarlierChoiceIsAFormerOne) {
  run_.stored.record().set_version(0);
  stale_.Add(5);
  v1::RunReport earlier = ReportOf(0, 0);
  earlier.mutable_open()->set_shards(3);
  stale_.OnReport(run_, "agg-2", earlier);
  Report(0, 5);
  const auto rebuilt = Report(1, 5);
  ASSERT_TRUE(rebuilt.has_value()) << stale_.problem();
  EXPECT_THAT(rebuilt->record.shards(), ElementsAre("agg-0", "agg-1"));
  EXPECT_THAT(rebuilt->record.former_shards(), ElementsAre("agg-8", "agg-2"));
}

TEST_F(StaleRecordTest, EndOfTheRunIsReturnedWithoutTheOtherShards) {
  stale_.Add(5);
  v1::RunReport closed = ReportOf(0, 5);
  closed.set_closed(true);
  const auto rebuilt = stale_.OnReport(run_, "agg-0", closed);
  ASSERT_TRUE(rebuilt.has_value());
  EXPECT_TRUE(rebuilt->ended);
}

}  // namespace
}  // namespace cadre
