#include "cli/summary.h"

#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>

#include "cli/prediction_notes.h"
#include "cli/query_tables.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

// Two groups of two, half of one layer each.
Summary Trained() {
  Summary summary;
  v1::RunStatus& run = summary.run;
  run.set_run("run-1");
  run.set_name("demo");
  run.set_state(v1::DONE);
  run.set_version(32);
  run.set_step(128);
  run.set_epoch(4);
  run.mutable_test()->set_version(32);
  run.mutable_test()->set_samples(10000);
  run.mutable_test()->set_accuracy(0.9134);
  run.mutable_test()->set_loss(0.25);
  run.set_seconds(84);
  run.set_samples_per_second(2857);
  run.set_rounds_committed(32);
  run.set_payload_bytes_across_groups(1 << 20);
  run.set_bytes_across_groups((1 << 20) + 1024);
  run.set_bytes_across_groups_synchronous(20 << 20);
  run.set_digest("0123456789abcdef");
  run.set_parameters(3214282);
  run.set_samples(240000);
  run.set_groups(2);
  summary.ranks = 2;
  summary.aggregators = 2;
  google::protobuf::RepeatedPtrField<v1::GroupStatus> groups;
  for (uint32_t slot = 0; slot < 2; ++slot) {
    v1::GroupStatus& group = *groups.Add();
    group.set_run("run-1");
    group.set_group(slot);
    group.set_generation(slot + 1);
    (*group.mutable_mesh())["data"] = 1;
    (*group.mutable_mesh())["model"] = 2;
    for (uint32_t rank = 0; rank < 2; ++rank) {
      v1::GroupMember& member = *group.add_members();
      member.set_rank(rank);
      member.set_name("worker");
      v1::HeldParameter& sharded = *member.add_held();
      sharded.set_parameter("fc1/weight");
      sharded.set_elements(1500000);
      sharded.set_of(3000000);
      v1::HeldParameter& whole = *member.add_held();
      whole.set_parameter("conv1/weight");
      whole.set_elements(100);
      whole.set_of(100);
    }
  }
  KeepGroups(groups, summary);
  return summary;
}

google::protobuf::Struct Parse(const std::string& json) {
  google::protobuf::Struct parsed;
  EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(json, &parsed).ok()) << json;
  return parsed;
}

TEST(SummaryTest, JsonHasTheFixedNamesAsNumbers) {
  const std::string json = SummaryJson(Trained());
  EXPECT_THAT(json, Not(HasSubstr("\n")));
  const auto parsed = Parse(json);
  const auto& fields = parsed.fields();
  EXPECT_EQ(fields.at("test_accuracy").number_value(), 0.9134);
  EXPECT_EQ(fields.at("seconds").number_value(), 84);
  EXPECT_EQ(fields.at("samples_per_second").number_value(), 2857);
  EXPECT_EQ(fields.at("rounds_committed").number_value(), 32);
  EXPECT_EQ(fields.at("bytes_across_groups").number_value(), (1 << 20) + 1024);
  EXPECT_EQ(fields.at("bytes_across_groups_synchronous").number_value(), 20 << 20);
  EXPECT_EQ(fields.at("final_digest").string_value(), "0123456789abcdef");
  EXPECT_THAT(fields.at("bytes_across_groups_is").string_value(), HasSubstr("measured"));
  EXPECT_THAT(fields.at("bytes_across_groups_synchronous_is").string_value(), HasSubstr("formula"));
  EXPECT_EQ(fields.at("state").string_value(), "done");
  const auto& group = fields.at("group_meshes").list_value().values(1).struct_value().fields();
  EXPECT_EQ(group.at("mesh").struct_value().fields().at("model").number_value(), 2);
  EXPECT_EQ(group.at("held").list_value().values_size(), 4);
}

TEST(SummaryTest, WhatWasNotTestedIsNull) {
  Summary summary = Trained();
  summary.run.clear_test();
  EXPECT_TRUE(Parse(SummaryJson(summary)).fields().at("test_accuracy").has_null_value());
  EXPECT_THAT(SummaryText(summary), HasSubstr("test accuracy          <none>"));
}

TEST(SummaryTest, TextSaysWhatIsMeasuredAndWhatIsNot) {
  const std::string text = SummaryText(Trained());
  EXPECT_THAT(text, AllOf(HasSubstr("demo"), HasSubstr("done"), HasSubstr("0.9134"),
                          HasSubstr("1m24s"), HasSubstr("2,857"), HasSubstr("3,214,282")));
  EXPECT_THAT(text, HasSubstr("1.0 MiB  (measured; values and 0.098% of headers)"));
  EXPECT_THAT(text, HasSubstr("20.0 MiB  (formula: "));
  EXPECT_THAT(text, HasSubstr("20.0 times as much"));
  EXPECT_THAT(text, HasSubstr("data=1,model=2"));
  EXPECT_THAT(text, HasSubstr("1,500,000   3,000,000   50.0%"));
  EXPECT_THAT(text, Not(HasSubstr("conv1"))) << "what is whole on every rank is not listed";
}

TEST(SummaryTest, SaysHowFarTheGroupsDiffer) {
  Summary summary = Trained();
  EXPECT_THAT(SummaryText(summary), Not(HasSubstr("groups differ")));
  EXPECT_TRUE(Parse(SummaryJson(summary)).fields().at("discrepancy").has_null_value());
  v1::Discrepancy& discrepancy = *summary.run.mutable_discrepancy();
  discrepancy.set_newest(0.4);
  discrepancy.set_smoothed(0.4213);
  discrepancy.set_rounds(32);
  discrepancy.set_recommendation("the groups agree");
  EXPECT_THAT(SummaryText(summary),
              HasSubstr("0.421 (0.4 in the newest of 32 rounds): the groups agree"));
  const auto parsed = Parse(SummaryJson(summary));
  const auto& fields = parsed.fields().at("discrepancy").struct_value().fields();
  EXPECT_EQ(fields.at("smoothed").number_value(), 0.4213);
  EXPECT_EQ(fields.at("rounds").number_value(), 32);
  EXPECT_EQ(fields.at("recommendation").string_value(), "the groups agree");

  v1::StatusReply status;
  *status.add_runs() = summary.run;
  EXPECT_THAT(StatusText(status, "x:1"),
              HasSubstr("\nDiscrepancy\nRUN     GROUPS DIFFER\nrun-1   0.421"));
}

TEST(SummaryTest, NothingIsDividedByZero) {
  Summary summary;
  summary.run.set_run("run-2");
  summary.run.set_state(v1::FAILED);
  summary.run.set_reason("no data");
  EXPECT_THAT(SummaryText(summary),
              AllOf(HasSubstr("failed: no data"), Not(HasSubstr("nan")), Not(HasSubstr("inf"))));
}

TEST(KeepGroupsTest, AGroupThatIsGoneIsRemembered) {
  Summary summary = Trained();
  google::protobuf::RepeatedPtrField<v1::GroupStatus> groups;
  v1::GroupStatus& empty = *groups.Add();
  empty.set_group(1);
  empty.set_state(v1::WAITING);
  KeepGroups(groups, summary);
  EXPECT_EQ(summary.groups.at(1).generation(), 2u);
  EXPECT_EQ(summary.groups.at(1).members_size(), 2);
}

TEST(StatusTextTest, ShowsEveryPart) {
  const Summary summary = Trained();
  v1::StatusReply status;
  status.mutable_coordinator()->set_version("0.1.0");
  status.mutable_coordinator()->set_uptime_seconds(192);
  *status.add_runs() = summary.run;
  for (const auto& [slot, group] : summary.groups) *status.add_groups() = group;
  v1::GroupMember& member = *status.mutable_groups(0)->mutable_members(0);
  member.mutable_memory()->set_weights(3 << 20);
  member.mutable_memory()->set_activations(1 << 20);
  member.mutable_memory()->set_buffers(1 << 19);
  member.mutable_planned_memory()->set_weights(5 << 20);
  v1::MemberStatus& worker = *status.add_workers();
  worker.set_name("worker-0");
  worker.set_member_id("m-1");
  worker.set_heartbeat_age_seconds(3);
  v1::AggregatorStatus& aggregator = *status.add_aggregators();
  aggregator.mutable_member()->set_name("aggregator-0");
  aggregator.mutable_member()->set_connected(true);
  aggregator.add_shards()->set_run("run-1");
  (*status.mutable_counters())["rounds_committed"] = 1234;
  const std::string text = StatusText(status, "127.0.0.1:7000");
  EXPECT_THAT(text,
              AllOf(HasSubstr("127.0.0.1:7000   0.1.0     3m12s"), HasSubstr("RUN     NAME"),
                    HasSubstr("GENERATION"), HasSubstr("worker,worker"), HasSubstr("3s ago, away"),
                    HasSubstr("<1s ago\n"), HasSubstr("run-1/0@0"), HasSubstr("1,234")));
  EXPECT_THAT(text, ::testing::ContainsRegex("ACTIVATIONS +BUFFERS +IN ALL +PLANNED\n"));
  EXPECT_THAT(text, ::testing::ContainsRegex(
                        "3\\.0 MiB +0 B +0 B +1\\.0 MiB +512\\.0 KiB +4\\.5 MiB +5\\.0 MiB\n"));
  // An empty cluster is a coordinator and nothing else.
  EXPECT_THAT(StatusText({}, "x:1"), Not(HasSubstr("Runs\n")));
}

v1::GroupStatus Measured() {
  v1::GroupStatus group;
  group.set_run("run-1");
  v1::Plan& plan = *group.mutable_plan();
  plan.add_mesh()->set_name("data");
  for (const char* const algorithm : {"ring", "halving-doubling", "halving-doubling", "ring"}) {
    plan.add_buckets()->set_algorithm(algorithm);
  }
  plan.mutable_link()->set_alpha(2.5e-6);
  plan.mutable_link()->set_beta(1 / 6.25e9);
  plan.mutable_link()->set_kind("shared memory");
  group.set_collectives(v1::HALVING_DOUBLING);
  group.set_overlap(v1::ON);
  group.set_step_seconds(0.041);
  group.set_exposed_seconds(0.0025);
  return group;
}

TEST(CollectivesTableTest, ShowsWhatWasChosenAndBecauseOfWhat) {
  v1::StatusReply status;
  *status.add_groups() = Measured();
  const std::string text = StatusText(status, "x:1");
  EXPECT_THAT(text,
              AllOf(HasSubstr("\nCollectives\nRUN "),
                    HasSubstr("halving_doubling   on        2.5 us, 6.25 GB/s, shared memory "
                              "  4 buckets: ring 2, halving-doubling 2   41 ms, 6% waiting\n")));
}

// Devices do not tell how long they waited.
TEST(CollectivesTableTest, SaysNothingOfWaitingThatNobodyMeasured) {
  v1::StatusReply status;
  v1::GroupStatus& group = *status.add_groups();
  group = Measured();
  group.clear_exposed_seconds();
  const std::string text = StatusText(status, "x:1");
  EXPECT_THAT(text, HasSubstr("   41 ms\n"));
  EXPECT_THAT(text, Not(HasSubstr("waiting")));
}

TEST(PredictionsTableTest, ShowsPredictedAndMeasuredPartByPart) {
  v1::StatusReply status;
  v1::GroupStatus& group = *status.add_groups();
  group = Measured();
  EXPECT_EQ(PredictionsTable(status.groups()), "");
  group.mutable_predicted()->set_step(0.03);
  group.mutable_predicted()->set_compute(0.025);
  EXPECT_EQ(ErrorText(group), "") << "nothing was measured yet";
  group.mutable_measured()->set_step(0.04);
  group.mutable_measured()->set_exposed(0.0125);
  group.set_prediction_error(-0.25);
  group.set_prediction_blame("overlap: waiting took 12.5 ms, 0 ms predicted");
  EXPECT_EQ(ErrorText(group), "-25%");
  const std::string text = StatusText(status, "x:1");
  EXPECT_THAT(text, HasSubstr("\nPredictions\nRUN     GROUP   TIMES       STEP    COMPUTE"));
  EXPECT_THAT(text, HasSubstr("predicted   30 ms   25 ms     0       0             0        0"));
  EXPECT_THAT(text, HasSubstr("measured    40 ms   0         0       0             0        "
                              "12.5 ms   -25%     overlap: waiting took 12.5 ms"));
  EXPECT_THAT(text, Not(HasSubstr("from measured layers")));
  group.set_prediction_from_own_measurement(true);
  EXPECT_THAT(StatusText(status, "x:1"), HasSubstr("predicted from measured layers   30 ms"));
}

TEST(PredictionNotesTest, SaysOnceWhatWasMeasured) {
  PredictionNotes notes;
  v1::WatchUpdate update;
  v1::GroupStatus& group = *update.add_groups();
  group.set_run("run-1");
  group.set_generation(3);
  EXPECT_TRUE(notes.New(update).empty());
  group.mutable_measured()->set_step(0.04);
  EXPECT_THAT(notes.New(update), ElementsAre("run-1  group 0  a step takes 40 ms"));
  EXPECT_TRUE(notes.New(update).empty());
  group.set_generation(4);
  group.mutable_predicted()->set_step(0.03);
  group.set_prediction_error(-0.25);
  group.set_prediction_blame("link: moves took 12.0 ms, 2.00 ms predicted");
  EXPECT_THAT(notes.New(update),
              ElementsAre("run-1  group 0  a step takes 40 ms, 30 ms predicted (-25%); link: moves "
                          "took 12.0 ms, 2.00 ms predicted"));
}

TEST(CollectivesTableTest, SaysNothingOfWhatIsNotKnownYet) {
  v1::GroupStatus group;
  EXPECT_EQ(LinkText(group), "");
  EXPECT_EQ(BucketsText(group), "");
  EXPECT_EQ(StepText(group), "");
  v1::StatusReply status;
  *status.add_groups() = group;
  EXPECT_EQ(CollectivesTable(status.groups()), "") << "a slot that waits has chosen nothing";
  group = Measured();
  group.mutable_plan()->mutable_buckets()->DeleteSubrange(1, 3);
  group.mutable_plan()->mutable_link()->Clear();
  group.mutable_plan()->mutable_link()->set_kind("threads");
  EXPECT_EQ(BucketsText(group), "1 bucket: ring 1");
  EXPECT_EQ(LinkText(group), "threads");
}

}  // namespace
}  // namespace cadre
