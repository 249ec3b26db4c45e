// Which reports of aggregators amount to a run, and what its records are then.
#include "coordinator/run/adoption.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "coordinator/store/keys.h"
#include "model/validate.h"
#include "tests/base/expect.h"

namespace cadre {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kAdopted[] = "run-1-test";
constexpr char kAdoptedLineage[] = "run-1-test.0123456789abcdef";

// What the aggregator of a shard reports that has made the version from contributions of group 0.
v1::RunReport ReportOf(uint32_t shard, uint32_t version, uint32_t shards = 2) {
  v1::RunReport report;
  report.set_run(kAdopted);
  v1::OpenRun& open = *report.mutable_open();
  open.set_run(kAdopted);
  open.set_lineage(kAdoptedLineage);
  open.mutable_spec()->set_name("test");
  open.mutable_spec()->mutable_checkpoint()->set_from_step(30);
  open.mutable_spec()->mutable_evaluation()->set_every_epochs(3);
  open.set_shard(shard);
  open.set_shards(shards);
  v1::ShardState& state = *report.mutable_state();
  state.set_run(kAdopted);
  state.set_lineage(kAdoptedLineage);
  state.set_shard(shard);
  state.set_version(version);
  state.set_digest(100 * version + shard);
  if (version == 0) return report;
  v1::Apply& order = *report.mutable_newest();
  order.set_shard(shard);
  order.set_round(version);
  order.set_step(10 * version);
  order.set_samples(1000 * version);
  order.add_participants()->set_samples(64);
  return report;
}

RunReports ReportsAt(uint32_t version, uint32_t of_second) {
  return {{"agg-0", ReportOf(0, version)}, {"agg-1", ReportOf(1, of_second)}};
}

std::string ProblemOf(const RunReports& reports, const std::string& run = kAdopted) {
  return RebuildRun(run, reports).problem;
}

// The problem if a correct report of agg-0 is changed in one respect.
std::string ProblemAfter(const std::function<void(v1::RunReport&)>& change) {
  RunReports reports = ReportsAt(5, 5);
  change(reports.at("agg-0"));
  return ProblemOf(reports);
}

TEST(AdoptionTest, RecordsAreThoseOfTheNewestVersion) {
  RunReports reports = ReportsAt(5, 5);
  const auto order = Parse<v1::Apply>(R"(
      round: 5 step: 50 samples: 5000 fragment: 2 restores: 3 keep: 1 keep: 4 attempt: 2 trim: 1
      participants { group: 0 generation: 7 ranks: 1 samples: 64 }
      participants { group: 1 generation: 8 ranks: 1 samples: 36 }
      included { group: 0 round: 5 generation: 7 }
      division { groups: 2 step: 40 position: 9 }
      outer { rate: 0.5 } up { codec: CODEC_INT8 } down { codec: CODEC_BF16 })");
  for (auto& [name, report] : reports) *report.mutable_newest() = order;
  const RebuiltRun rebuilt = RebuildRun(kAdopted, reports);
  ASSERT_EQ(rebuilt.problem, "");
  EXPECT_FALSE(rebuilt.closing.has_value());
  EXPECT_EQ(rebuilt.record.DebugString(), Parse<v1::RunRecord>(R"(
      run: "run-1-test" lineage: "run-1-test.0123456789abcdef"
      spec { name: "test" checkpoint { from_step: 30 } evaluation { every_epochs: 3 } }
      state: RUN_STATE_QUEUED version: 5 step: 50 digest: 1001 samples: 5000
      shards: "agg-0" shards: "agg-1" rounds_committed: 5 next_evaluation: 3
      division { groups: 2 step: 40 position: 9 })")
                                              .DebugString());
  EXPECT_EQ(rebuilt.newest.DebugString(), Parse<v1::CommitRecord>(R"(
      run: "run-1-test" round: 5 step: 50 samples: 100 run_samples: 5000 committed: true
      fragment: 2 restores: 3 keep: 1 keep: 4 attempt: 2 trim: 1 digest: 1001
      participants { group: 0 generation: 7 ranks: 1 samples: 64 }
      participants { group: 1 generation: 8 ranks: 1 samples: 36 }
      included { group: 0 round: 5 generation: 7 }
      division { groups: 2 step: 40 position: 9 }
      outer { rate: 0.5 } up { codec: CODEC_INT8 } down { codec: CODEC_BF16 }
      digests { shard: 0 applied: true digest: 500 }
      digests { shard: 1 applied: true digest: 501 })")
                                              .DebugString());
}

// What an order does not have, the records do not have either.
TEST(AdoptionTest, OptionalPartsOfAnOrderAreNotInvented) {
  const RebuiltRun rebuilt = RebuildRun(kAdopted, ReportsAt(5, 5));
  ASSERT_EQ(rebuilt.problem, "");
  EXPECT_FALSE(rebuilt.record.has_division());
  EXPECT_FALSE(rebuilt.newest.has_division());
  EXPECT_FALSE(rebuilt.newest.has_outer());
  EXPECT_FALSE(rebuilt.newest.has_up());
  EXPECT_FALSE(rebuilt.newest.has_down());
  EXPECT_FALSE(rebuilt.newest.has_restores());
}

TEST(AdoptionTest, StepIsTheFirstOneUntilThereIsAVersion) {
  EXPECT_EQ(RebuildRun(kAdopted, ReportsAt(0, 0)).record.step(), 30U);
  EXPECT_EQ(RebuildRun(kAdopted, ReportsAt(1, 1)).record.step(), 10U);
}

TEST(AdoptionTest, RoundThatOnlySomeShardsHaveAppliedIsClosing) {
  const RebuiltRun rebuilt = RebuildRun(kAdopted, ReportsAt(5, 6));
  ASSERT_EQ(rebuilt.problem, "");
  EXPECT_EQ(rebuilt.record.version(), 5U);
  EXPECT_EQ(rebuilt.record.digest(), 0U) << "the digest of shard 1 in version 5 is not known";
  EXPECT_EQ(rebuilt.newest.round(), 5U);
  EXPECT_TRUE(rebuilt.newest.committed());
  ASSERT_EQ(rebuilt.newest.digests_size(), 1);
  EXPECT_EQ(rebuilt.newest.digests(0).digest(), 500U);
  ASSERT_TRUE(rebuilt.closing.has_value());
  EXPECT_EQ(rebuilt.closing->round(), 6U);
  EXPECT_FALSE(rebuilt.closing->committed());
  ASSERT_EQ(rebuilt.closing->digests_size(), 2);
  EXPECT_FALSE(rebuilt.closing->digests(0).applied());
  EXPECT_EQ(rebuilt.closing->digests(1).shard(), 1U);
  EXPECT_TRUE(rebuilt.closing->digests(1).applied());
  EXPECT_EQ(rebuilt.closing->digests(1).digest(), 601U);
  EXPECT_EQ(ProblemOf(ReportsAt(5, 7)),
            "agg-0 has version 5 of shard 0, but agg-1 has version 7 of shard 1");
}

TEST(AdoptionTest, HighestGenerationOfAllReports) {
  RunReports reports = ReportsAt(5, 5);
  (*reports.at("agg-0").mutable_open()->mutable_generations())[0] = 7;
  (*reports.at("agg-1").mutable_open()->mutable_generations())[1] = 6;
  EXPECT_EQ(RebuildRun(kAdopted, reports).generation, 7U);
}

TEST(AdoptionTest, WhatNoCoordinatorHasSentIsNamed) {
  const struct {
    std::function<void(v1::RunReport&)> change;
    std::string problem;
  } cases[] = {
      {[](auto& r) { r.mutable_open()->mutable_spec()->set_name("other"); },
       "agg-0 stores a run of another name"},
      {[](auto& r) { r.mutable_open()->set_lineage("run-2-test.0123456789abcdef"); },
       "agg-0 stores a malformed lineage"},
      {[](auto& r) { r.mutable_open()->set_lineage("run-1-test.0123456789abcde"); },
       "agg-0 stores a malformed lineage"},
      {[](auto& r) { r.mutable_open()->set_lineage("run-1-test.0123456789abcdef0"); },
       "agg-0 stores a malformed lineage"},
      {[](auto& r) { r.mutable_open()->set_shard(2); }, "agg-0 stores shard 2 of 2"},
      {[](auto& r) { (*r.mutable_open()->mutable_generations())[0] = kMaxReportedNumber + 1; },
       "agg-0 stores generation 2147483649"},
      {[](auto& r) { r.clear_state(); }, "agg-0 has lost the values of shard 0"},
      {[](auto& r) { r.mutable_state()->set_run("run-2-test"); },
       "agg-0 stores values of another run or shard"},
      {[](auto& r) { r.mutable_state()->set_lineage("another"); },
       "agg-0 stores values of another run or shard"},
      {[](auto& r) { r.mutable_state()->set_shard(1); },
       "agg-0 stores values of another run or shard"},
      {[](auto& r) { r.mutable_newest()->set_round(4); },
       "agg-0 does not store the order that made version 5"},
      {[](auto& r) { r.mutable_newest()->mutable_division()->set_groups(0); },
       "agg-0 stores a division among 0 groups"},
      {[](auto& r) { r.mutable_newest()->mutable_division()->set_groups(kMaxGroups + 1); },
       "agg-0 stores a division among 4097 groups"},
  };
  for (const auto& [change, problem] : cases) EXPECT_EQ(ProblemAfter(change), problem);
}

TEST(AdoptionTest, LargestNumbersAreAccepted) {
  EXPECT_EQ(ProblemAfter([](v1::RunReport& report) {
              (*report.mutable_open()->mutable_generations())[0] = kMaxReportedNumber;
              report.mutable_newest()->mutable_division()->set_groups(kMaxGroups);
            }),
            "");
}

TEST(AdoptionTest, IdsOfRunsHaveANumber) {
  const auto problem_of = [](uint32_t number) {
    const std::string run = RunId(number, "test");
    RunReports reports = ReportsAt(0, 0);
    for (auto& [name, report] : reports) {
      report.mutable_open()->set_lineage(run + ".0123456789abcdef");
      report.mutable_state()->set_run(run);
      report.mutable_state()->set_lineage(report.open().lineage());
    }
    return ProblemOf(reports, run);
  };
  EXPECT_EQ(problem_of(0), "this is not the id of a run");
  EXPECT_EQ(problem_of(1), "");
  EXPECT_EQ(problem_of(kMaxReportedNumber), "");
  EXPECT_EQ(problem_of(kMaxReportedNumber + 1), "this is not the id of a run");
}

TEST(AdoptionTest, ShardsOfDifferentRunsAreNotCombined) {
  const std::string different = "agg-0 and agg-1 store different runs of this id, of lineages ";
  RunReports reports = ReportsAt(5, 5);
  v1::RunReport& second = reports.at("agg-1");
  second.mutable_open()->set_lineage("run-1-test.fedcba9876543210");
  second.mutable_state()->set_lineage(second.open().lineage());
  EXPECT_EQ(ProblemOf(reports),
            different + "run-1-test.0123456789abcdef and run-1-test.fedcba9876543210");
  second = ReportOf(1, 5, /*shards=*/3);
  EXPECT_THAT(ProblemOf(reports), HasSubstr(different));
  second = ReportOf(1, 5);
  second.mutable_open()->mutable_spec()->set_batch_per_group(1);
  EXPECT_THAT(ProblemOf(reports), HasSubstr(different));
  second = ReportOf(0, 5);
  second.mutable_state()->set_digest(1);
  EXPECT_EQ(ProblemOf(reports), "shard 0 is stored by agg-0 and by agg-1");
}

TEST(AdoptionTest, MissingShardsAreNamed) {
  EXPECT_EQ(ProblemOf({}), "no connected aggregator stores it");
  RunReports reports = ReportsAt(5, 5);
  reports.erase("agg-1");
  EXPECT_EQ(ProblemOf(reports), "shard 1 of 2 is missing: start its aggregator");
}

TEST(AdoptionTest, RunThatHasEndedIsNotContinued) {
  RunReports reports = ReportsAt(5, 5);
  EXPECT_FALSE(RebuildRun(kAdopted, reports).ended);
  reports.at("agg-0").set_closed(true);
  const RebuiltRun rebuilt = RebuildRun(kAdopted, reports);
  EXPECT_TRUE(rebuilt.ended);
  EXPECT_EQ(rebuilt.problem, "it has ended");
}

// A shard has moved, and the aggregator that it has left was away since, or has not removed it yet;
// or a move had begun, for which the aggregator had opened the shard without values.
TEST(AdoptionTest, ShardThatHasMovedIsALeftover) {
  v1::RunReport hollow = ReportOf(0, 0);
  hollow.clear_state();
  for (const v1::RunReport& leftover : {ReportOf(0, 4), ReportOf(0, 5), hollow}) {
    RunReports reports = ReportsAt(5, 5);
    reports["agg-2"] = leftover;
    const RebuiltRun rebuilt = RebuildRun(kAdopted, reports);
    EXPECT_EQ(rebuilt.problem, "");
    EXPECT_THAT(rebuilt.record.shards(), ElementsAre("agg-0", "agg-1"));
    EXPECT_THAT(rebuilt.record.former_shards(), ElementsAre("agg-2"));
  }
}

// Two aggregators have the same version of a shard: the one to which it has moved was opened with
// newer generations, or at a newer version.
TEST(AdoptionTest, ShardIsWhereItWasOpenedLast) {
  for (const std::string moved_to : {"agg-0", "agg-2"}) {
    RunReports reports = ReportsAt(5, 5);
    reports["agg-2"] = ReportOf(0, 5);
    reports[moved_to].mutable_open()->set_version(5);
    EXPECT_THAT(RebuildRun(kAdopted, reports).record.shards(), ElementsAre(moved_to, "agg-1"));
    const std::string moved_from = moved_to == "agg-0" ? "agg-2" : "agg-0";
    (*reports[moved_from].mutable_open()->mutable_generations())[0] = 7;
    (*reports[moved_from].mutable_open()->mutable_generations())[1] = 8;
    (*reports[moved_to].mutable_open()->mutable_generations())[0] = 9;
    EXPECT_THAT(RebuildRun(kAdopted, reports).record.shards(), ElementsAre(moved_to, "agg-1"));
    (*reports[moved_from].mutable_open()->mutable_generations())[1] = 10;
    EXPECT_THAT(RebuildRun(kAdopted, reports).record.shards(), ElementsAre(moved_from, "agg-1"));
  }
}

// An aggregator that was chosen, and opened its shard, before the choice changed.
TEST(AdoptionTest, ShardWithoutAVersionThatContradictsOthersIsALeftover) {
  for (const v1::RunReport& leftover : {ReportOf(0, 0), ReportOf(2, 0, /*shards=*/3)}) {
    RunReports reports = ReportsAt(5, 5);
    reports["agg-2"] = leftover;
    const RebuiltRun rebuilt = RebuildRun(kAdopted, reports);
    EXPECT_EQ(rebuilt.problem, "");
    EXPECT_THAT(rebuilt.record.former_shards(), ElementsAre("agg-2"));
    EXPECT_THAT(rebuilt.record.shards(), ElementsAre("agg-0", "agg-1"));
  }
  // A shard that has not applied the first round yet contradicts no other.
  const RebuiltRun first = RebuildRun(kAdopted, ReportsAt(1, 0));
  EXPECT_EQ(first.problem, "");
  EXPECT_EQ(first.record.version(), 0U);
  EXPECT_THAT(first.record.former_shards(), IsEmpty());
  // A shard of another lineage may belong to a run that is continued elsewhere.
  RunReports reports = ReportsAt(5, 5);
  v1::RunReport& other = reports["agg-2"] = ReportOf(0, 0);
  other.mutable_open()->set_lineage("run-1-test.fedcba9876543210");
  other.mutable_state()->set_lineage(other.open().lineage());
  EXPECT_THAT(ProblemOf(reports), HasSubstr("different runs of this id"));
  // With another version of the same number, it is not a leftover either.
  reports["agg-2"] = ReportOf(0, 5);
  reports["agg-2"].mutable_state()->set_digest(1);
  EXPECT_THAT(ProblemOf(reports), HasSubstr("shard 0 is stored by agg-0 and by agg-2"));
}

// A shard that was restored from the values of a group does not know which groups made the version.
TEST(AdoptionTest, OrderOfAShardThatMadeTheVersionIsPreferred) {
  for (const std::vector<std::string>& restored :
       {std::vector<std::string>{"agg-0"}, {"agg-1"}, {"agg-0", "agg-1"}}) {
    RunReports reports = ReportsAt(5, 5);
    for (const std::string& name : restored) {
      v1::Apply& order = *reports.at(name).mutable_newest();
      order.set_seed(true);
      order.mutable_participants(0)->set_samples(1);
    }
    const RebuiltRun rebuilt = RebuildRun(kAdopted, reports);
    EXPECT_EQ(rebuilt.problem, "");
    EXPECT_EQ(rebuilt.newest.samples(), restored.size() == 1 ? 64U : 0U);
    EXPECT_EQ(rebuilt.newest.participants_size(), restored.size() == 1 ? 1 : 0);
  }
}

TEST(AdoptionTest, ClosingRoundNeedsTheGroupsThatMadeIt) {
  RunReports reports = ReportsAt(5, 6);
  reports.at("agg-1").mutable_newest()->set_seed(true);
  EXPECT_EQ(ProblemOf(reports),
            "agg-0 does not have version 6 of shard 0, and which groups made it is not known");
}

// Two coordinators may have closed a round differently.
TEST(AdoptionTest, VersionsOfDifferentContributionsAreNotCombined) {
  const std::string contradiction =
      "agg-0 and agg-1 have made version 5 of different contributions";
  RunReports reports = ReportsAt(5, 5);
  v1::Apply& second = *reports.at("agg-1").mutable_newest();
  second.mutable_participants(0)->set_samples(63);
  EXPECT_EQ(ProblemOf(reports), contradiction);
  second.set_seed(true);
  EXPECT_EQ(ProblemOf(reports), "") << "a restored shard does not know the contributions";
  second.set_seed(false);
  second.clear_participants();
  EXPECT_EQ(ProblemOf(reports), "") << "nor does an order without any";
  second.set_restores(2);
  EXPECT_EQ(ProblemOf(reports), contradiction) << "a rollback has no participants";
  v1::Apply& first = *reports.at("agg-0").mutable_newest();
  first.clear_participants();
  first.set_restores(1);
  EXPECT_EQ(ProblemOf(reports), contradiction);
  first.set_restores(2);
  EXPECT_EQ(ProblemOf(reports), "");
  // The round that only some of three shards have applied.
  reports = {
      {"agg-0", ReportOf(0, 5, 3)}, {"agg-1", ReportOf(1, 6, 3)}, {"agg-2", ReportOf(2, 6, 3)}};
  EXPECT_EQ(ProblemOf(reports), "");
  reports.at("agg-2").mutable_newest()->mutable_participants(0)->set_samples(63);
  EXPECT_EQ(ProblemOf(reports), "agg-1 and agg-2 have made version 6 of different contributions");
}

// A screened round is made again, without the groups that it leaves out, until it is published.
TEST(AdoptionTest, EarlierAttemptIsMadeAgainLikeTheLastOne) {
  RunReports reports = {
      {"agg-0", ReportOf(0, 6, 3)}, {"agg-1", ReportOf(1, 6, 3)}, {"agg-2", ReportOf(2, 5, 3)}};
  v1::RunReport& first = reports.at("agg-0");
  first.mutable_newest()->set_attempt(1);
  first.mutable_newest()->add_participants()->set_group(1);
  v1::Apply& second = *reports.at("agg-1").mutable_newest();
  second.set_attempt(2);
  const std::string contradiction =
      "agg-0 and agg-1 have made version 6 of different contributions";
  EXPECT_EQ(ProblemOf(reports), contradiction) << "agg-0 does not store version 5";
  *first.mutable_before() = ReportOf(0, 5, 3).newest();
  first.set_before_digest(500);
  for (const uint32_t of_third : {5, 6}) {
    reports.at("agg-2") = ReportOf(2, of_third, 3);
    if (of_third == 6) *reports.at("agg-2").mutable_newest() = second;
    const RebuiltRun rebuilt = RebuildRun(kAdopted, reports);
    ASSERT_EQ(rebuilt.problem, "");
    EXPECT_EQ(rebuilt.record.version(), 5U);
    EXPECT_EQ(rebuilt.record.step(), 50U);
    EXPECT_EQ(rebuilt.newest.digests(0).digest(), 500U);
    ASSERT_TRUE(rebuilt.closing.has_value());
    EXPECT_EQ(rebuilt.closing->round(), 6U);
    EXPECT_EQ(rebuilt.closing->attempt(), 2U);
    EXPECT_EQ(rebuilt.closing->participants_size(), 1);
    EXPECT_FALSE(rebuilt.closing->digests(0).applied());
    EXPECT_TRUE(rebuilt.closing->digests(1).applied());
    EXPECT_EQ(rebuilt.closing->digests(2).applied(), of_third == 6);
  }
  first.mutable_before()->set_round(4);
  EXPECT_EQ(ProblemOf(reports), "agg-0 does not store the order that made version 5");
}

// Version 0 has no order.
TEST(AdoptionTest, EarlierAttemptOfTheFirstRoundIsMadeAgain) {
  RunReports reports = ReportsAt(1, 1);
  reports.at("agg-0").mutable_newest()->set_attempt(1);
  reports.at("agg-0").mutable_before();
  reports.at("agg-1").mutable_newest()->set_attempt(3);
  const RebuiltRun rebuilt = RebuildRun(kAdopted, reports);
  ASSERT_EQ(rebuilt.problem, "");
  EXPECT_EQ(rebuilt.record.version(), 0U);
  EXPECT_EQ(rebuilt.record.step(), 30U);
  ASSERT_TRUE(rebuilt.closing.has_value());
  EXPECT_EQ(rebuilt.closing->attempt(), 3U);
}

TEST(AdoptionTest, CallAwaitsTheAnswersToItsOrders) {
  Adoption adoption;
  adoption.awaited = {{"agg-0", kAdopted}, {"agg-1", kAdopted}, {"agg-1", "run-2-test"}};
  adoption.Add("agg-2", ReportOf(0, 5));
  EXPECT_THAT(adoption.runs, IsEmpty()) << "agg-2 was not asked";
  adoption.Add("agg-0", ReportOf(0, 5));
  EXPECT_EQ(adoption.runs.at(kAdopted).at("agg-0").state().version(), 5U);
  EXPECT_EQ(adoption.awaited.size(), 2U);
  v1::RunReport nothing;
  nothing.set_run("run-2-test");
  adoption.Add("agg-1", nothing);
  EXPECT_FALSE(adoption.runs.contains("run-2-test")) << "the aggregator does not store it";
  EXPECT_EQ(adoption.awaited.size(), 1U);
  adoption.Lose("agg-0");
  EXPECT_EQ(adoption.awaited.size(), 1U);
  adoption.Lose("agg-1");
  EXPECT_THAT(adoption.awaited, IsEmpty());
}

}  // namespace
}  // namespace cadre
