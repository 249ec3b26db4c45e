#include "cli/summary.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cli/follow.h"
#include "cli/group_text.h"
#include "cli/query_tables.h"
#include "cli/table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// The summary of a run with two groups of two ranks, each of which holds half of one layer.
Summary Trained() {
  Summary summary;
  v1::RunStatus& run = summary.run;
  run.set_run("run-1");
  run.set_name("demo");
  run.set_state(v1::RUN_STATE_DONE);
  run.set_version(32);
  run.set_step(128);
  run.set_epoch(4);
  run.mutable_test()->set_version(32);
  run.mutable_test()->set_samples(10000);
  run.mutable_test()->set_accuracy(0.9134);
  run.mutable_test()->set_loss(0.25);
  run.set_seconds(84);
  run.set_evaluation_seconds(12);
  run.set_exposed_exchange_seconds(0.5);
  run.set_transfer_seconds(20);
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
  summary.aggregators = 1;
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

TEST(SummaryTest, JsonHasFixedKeys) {
  const Json json = ToJson(Trained());
  EXPECT_EQ(json["test_accuracy"], 0.9134);
  EXPECT_EQ(json["seconds"], 84);
  EXPECT_EQ(json["evaluation_seconds"], 12);
  EXPECT_EQ(json["transfer_seconds"], 20);
  EXPECT_EQ(json["hidden_exchange_share"], 0.975);
  EXPECT_EQ(json["samples_per_second"], 2857);
  EXPECT_EQ(json["rounds_committed"], 32);
  EXPECT_EQ(json["bytes_across_groups"], (1 << 20) + 1024);
  EXPECT_EQ(json["bytes_across_groups_synchronous"], 20 << 20);
  EXPECT_EQ(json["final_digest"], "0123456789abcdef");
  EXPECT_THAT(json["bytes_across_groups_is"].get<std::string>(), HasSubstr("measured"));
  EXPECT_THAT(json["bytes_across_groups_synchronous_is"].get<std::string>(), HasSubstr("formula"));
  EXPECT_EQ(json["state"], "done");
  EXPECT_TRUE(json["discrepancy"].is_null());
  const Json& group = json["group_meshes"][1];
  EXPECT_EQ(group["mesh"]["model"], 2);
  ASSERT_EQ(group["held"].size(), 4u);
  EXPECT_EQ(OneLine(group["held"][0]),
            R"({"rank":0,"parameter":"fc1/weight","elements":1500000,"of":3000000,"owned":0})");
}

TEST(SummaryTest, HiddenShareIsBetweenNothingAndOne) {
  v1::RunStatus run;
  run.set_exposed_exchange_seconds(3);
  EXPECT_TRUE(std::isnan(HiddenExchangeShare(run))) << "no transfers";
  run.set_transfer_seconds(2);
  EXPECT_EQ(HiddenExchangeShare(run), 0) << "the groups waited longer than they transferred";
  run.set_exposed_exchange_seconds(0);
  EXPECT_EQ(HiddenExchangeShare(run), 1);
}

TEST(SummaryTest, WarningsAreShown) {
  Summary summary = Trained();
  EXPECT_TRUE(ToJson(summary)["warnings"].empty());
  EXPECT_THAT(ToText(summary), Not(HasSubstr("warnings")));
  summary.run.add_warnings("no slowmo_momentum");
  summary.run.add_warnings("no archive");
  EXPECT_THAT(ToText(summary), ContainsRegex("warnings +no slowmo_momentum; no archive\n"));
  EXPECT_EQ(ToJson(summary)["warnings"], Json::array({"no slowmo_momentum", "no archive"}));
  v1::StatusReply status;
  *status.add_runs() = summary.run;
  EXPECT_THAT(RunDetailsText(status), ContainsRegex("Warnings\n.*\nrun-1 +no slowmo_momentum\n"));
  EXPECT_THAT(ProblemsOf(status), IsEmpty()) << "a warning needs no operator";
  EXPECT_TRUE(HasSucceeded(summary.run));
}

TEST(SummaryTest, MissingCheckpointIsShownAndIsNoSuccess) {
  Summary summary = Trained();
  EXPECT_TRUE(ToJson(summary)["checkpoint"].is_null());
  EXPECT_TRUE(HasSucceeded(summary.run));
  v1::CheckpointStatus& checkpoint = *summary.run.mutable_checkpoint();
  checkpoint.set_saved_step(20);
  EXPECT_TRUE(HasSucceeded(summary.run));
  EXPECT_THAT(ToText(summary), ContainsRegex("checkpoints +the newest is of step 20\n"));
  checkpoint.clear_saved_step();
  checkpoint.set_failures(2);
  checkpoint.set_failed_step(40);
  checkpoint.set_error("No space left on device");
  checkpoint.set_last_missing(true);
  EXPECT_FALSE(HasSucceeded(summary.run));
  EXPECT_THAT(ToText(summary),
              ContainsRegex("checkpoints +none; the last one is missing; 2 failures, the newest "
                            "at step 40: No space\n +left on device\n"));
  const Json json = ToJson(summary);
  EXPECT_EQ(json["checkpoint"]["last_missing"], true);
  EXPECT_EQ(json["checkpoint"]["error"], "No space left on device");
}

TEST(SummaryTest, UntestedAccuracyIsNull) {
  Summary summary = Trained();
  summary.run.clear_test();
  EXPECT_TRUE(Json::parse(OneLine(ToJson(summary)))["test_accuracy"].is_null());
  EXPECT_THAT(ToText(summary), ContainsRegex("test accuracy +<none>"));
}

TEST(SummaryTest, Text) {
  const std::string text = ToText(Trained());
  EXPECT_THAT(
      text, AllOf(HasSubstr("demo (run-1), done"), HasSubstr("0.9134"),
                  HasSubstr("1m24s, of which evaluations 12s, 2,857 samples/s"),
                  HasSubstr("3,214,282 parameters"), HasSubstr("each worker holds at most 50.0%")));
  EXPECT_THAT(text,
              HasSubstr("1.0 MiB (measured; 0.098% of it headers; 97.5% of the time hidden)"));
  EXPECT_THAT(text, HasSubstr("20.0 MiB, 20.0 times as much (formula: "));
  EXPECT_THAT(text, ContainsRegex("mesh of a group +data=1,model=2\n"));
  EXPECT_THAT(text, ContainsRegex("cluster +2 groups of 2 workers, 1 aggregator\n"));
}

TEST(SummaryTest, TextOfPlacedLayers) {
  Summary summary = Trained();
  for (auto& [number, group] : summary.groups) {
    group.mutable_plan()->add_layers()->add_at()->set_axis("model");
  }
  EXPECT_THAT(ToText(summary), ContainsRegex("mesh of a group +data=1,model=2, layers placed\n"));
}

TEST(SummaryTest, FitsOnAScreen) {
  Summary summary = Trained();
  summary.one_machine = true;
  v1::Discrepancy& discrepancy = *summary.run.mutable_discrepancy();
  discrepancy.set_smoothed(0.4213);
  discrepancy.set_recommendation(
      "the groups agree: averages as seldom as every 18 steps may be tried, or more groups");
  for (auto& [slot, group] : summary.groups) group.set_step_seconds(0.04 + 0.01 * slot);
  const std::string text = ToText(summary);
  EXPECT_THAT(text, HasSubstr("0.421: the groups agree"));
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  EXPECT_LE(lines.size(), 24u);
  for (const std::string& line : lines) EXPECT_LE(Width(line), 100u) << line;
}

TEST(SummaryTest, PredictsTheStepOfASingleGroupOnly) {
  Summary summary = Trained();
  summary.one_machine = true;
  for (auto& [slot, group] : summary.groups) {
    group.set_step_seconds(0.04);
    group.mutable_measured()->set_step(0.04);
    group.mutable_predicted()->set_step(0.03);
    group.set_prediction_error(-0.25);
  }
  EXPECT_THAT(ToText(summary), AllOf(HasSubstr("40 ms; not predicted"), Not(HasSubstr("-25%"))));
  summary.groups.erase(1);
  EXPECT_THAT(ToText(summary), HasSubstr("40 ms; predicted: 30 ms (-25%)"));
}

TEST(SummaryTest, EmptyRun) {
  Summary summary;
  summary.run.set_run("run-2");
  summary.run.set_state(v1::RUN_STATE_FAILED);
  summary.run.set_reason("no data");
  EXPECT_THAT(ToText(summary), AllOf(HasSubstr("run-2, failed: no data"), Not(HasSubstr("nan")),
                                     Not(HasSubstr("inf"))));
}

TEST(KeepGroupsTest, KeepsGroupsWithoutMembers) {
  Summary summary = Trained();
  google::protobuf::RepeatedPtrField<v1::GroupStatus> groups;
  v1::GroupStatus& empty = *groups.Add();
  empty.set_group(1);
  empty.set_state(v1::GROUP_STATE_WAITING);
  KeepGroups(groups, summary);
  EXPECT_EQ(summary.groups.at(1).generation(), 2u);
  EXPECT_EQ(summary.groups.at(1).members_size(), 2);
}

TEST(OverviewTest, ShowsEveryPart) {
  const Summary summary = Trained();
  v1::StatusReply status;
  status.mutable_coordinator()->set_version("0.1.0");
  status.mutable_coordinator()->set_uptime_seconds(192);
  *status.add_runs() = summary.run;
  for (const auto& [slot, group] : summary.groups) *status.add_groups() = group;
  v1::MemberStatus& worker = *status.add_workers();
  worker.set_name("worker-0");
  worker.set_member_id("m-1");
  worker.set_heartbeat_age_seconds(3);
  v1::AggregatorStatus& aggregator = *status.add_aggregators();
  aggregator.mutable_member()->set_name("aggregator-0");
  aggregator.mutable_member()->set_connected(true);
  aggregator.add_shards()->set_run("run-1");
  worker.mutable_standing()->set_failures(2);
  worker.mutable_standing()->set_cause(v1::FAILURE_CAUSE_DATA);
  worker.mutable_standing()->set_reason("/data: no such file");
  worker.mutable_standing()->set_wait_seconds(4);
  v1::HostStatus& host = *status.add_hosts();
  host.set_host("host-1");
  host.mutable_standing()->set_failures(5);
  host.mutable_standing()->set_cause(v1::FAILURE_CAUSE_CHECKPOINT);
  host.mutable_standing()->set_wait_seconds(3600);
  host.mutable_standing()->set_quarantined(true);
  (*status.mutable_counters())["rounds_committed"] = 1234;
  EXPECT_THAT(
      OverviewText(status, "127.0.0.1:7000"),
      AllOf(HasSubstr("127.0.0.1:7000   0.1.0     3m12s"), HasSubstr("RUN     NAME"),
            HasSubstr("GENERATION"), HasSubstr("worker,worker"), HasSubstr("3s ago, away"),
            HasSubstr("<1s ago     <none>\n"), HasSubstr("run-1/0@0"), HasSubstr("1,234"),
            HasSubstr("excluded for 4s; 2 failures: data, /data: no such file\n"),
            HasSubstr("host-1   in quarantine for 1h"), HasSubstr("5 failures: checkpoint")));
  worker.set_cordoned(true);
  EXPECT_THAT(MembersText(status), HasSubstr("cordoned; 2 failures: data"));
  worker.clear_standing();
  EXPECT_THAT(MembersText(status), HasSubstr("cordoned\n"));
  EXPECT_THAT(OverviewText({}, ""), Not(HasSubstr("Runs\n"))) << "no empty parts";
  EXPECT_THAT(OverviewText({}, ""), Not(HasSubstr("insecure")));
  status.mutable_coordinator()->set_insecure(true);
  EXPECT_THAT(OverviewText(status, ""), HasSubstr("none (--insecure)"));
  EXPECT_THAT(MembersText(status), AllOf(HasSubstr("worker-0"), HasSubstr("\n\nAGGREGATOR")));
  EXPECT_THAT(MembersText(status), Not(HasSubstr("ADDRESS")));
  EXPECT_THAT(MembersText(status, /*wide=*/true),
              AllOf(HasSubstr("ADDRESS"), HasSubstr("RESERVED")));
  status.mutable_runs(0)->mutable_test()->set_seconds(1.25);
  status.mutable_runs(0)->set_transfer_seconds(4);
  status.mutable_runs(0)->set_exposed_exchange_seconds(1);
  EXPECT_THAT(RunsTable(status.runs(), /*wide=*/true),
              AllOf(HasSubstr("TRAFFIC FACTOR"), HasSubstr("1.25s"), HasSubstr("0.7500")));
  EXPECT_EQ(OneLine(MembersJson({})), R"({"workers":[],"aggregators":[]})");
}

v1::RunStatus TrainedOnTokens() {
  v1::RunStatus run;
  run.set_run("run-1");
  run.set_tokens_per_second(51'200);
  run.set_perplexity(12.25);
  run.set_test_perplexity(14.5);
  run.set_rate(0.0003F);
  run.mutable_metrics()->set_tokens(1'234'567);
  (*run.mutable_metrics()->mutable_mean())["gradient_norm"] = 1.25;
  (*run.mutable_metrics()->mutable_mean())["a"] = -3;
  return run;
}

TEST(MetricsTest, AreInStatusAndTables) {
  v1::StatusReply status;
  *status.add_runs() = TrainedOnTokens();
  status.add_runs()->set_run("run-2");
  const char* const row =
      "run-1 +1,234,567 +51,200 +12\\.25 +14\\.5 +0\\.0003 +a -3, gradient_norm 1\\.25\n";
  for (const std::string& text : {RunDetailsText(status), OverviewText(status, "")}) {
    EXPECT_THAT(text, ContainsRegex(absl::StrCat("Metrics\n.*\n", row)));
    EXPECT_THAT(text, Not(ContainsRegex("run-2 +<none> +<none> +<none>\n"))) << "it has none";
  }
  EXPECT_THAT(RunsTable(status.runs(), /*wide=*/true),
              AllOf(HasSubstr("TOKENS/S   PERPLEXITY   METRICS"),
                    ContainsRegex("51,200 +12\\.25 +a -3, gradient_norm 1\\.25")));
}

TEST(MetricsTest, AreInTheSummary) {
  Summary summary = Trained();
  EXPECT_THAT(ToText(summary), Not(HasSubstr("perplexity")));
  EXPECT_TRUE(Json::parse(OneLine(ToJson(summary)))["perplexity"].is_null());
  const v1::RunStatus tokens = TrainedOnTokens();
  summary.run.MergeFrom(tokens);
  EXPECT_THAT(ToText(summary), AllOf(HasSubstr("12.25, of the test samples 14.5\n"),
                                     HasSubstr(" samples/s, 51,200 tokens/s\n")));
  const Json json = ToJson(summary);
  EXPECT_EQ(json["tokens"], 1'234'567);
  EXPECT_EQ(json["metrics"]["gradient_norm"], 1.25);
  EXPECT_EQ(json["test_perplexity"], 14.5);
}

TEST(HistoryTableTest, HasTokensAndMetricsIfAVersionHas) {
  v1::HistoryReply history;
  v1::CommitPoint& commit = *history.add_entries()->mutable_commit();
  commit.set_loss(0);
  commit.set_rate(0.25);
  EXPECT_THAT(HistoryTable(history), AllOf(HasSubstr("RATE\n"), HasSubstr("0.25\n")));
  commit.mutable_metrics()->set_tokens(4096);
  (*commit.mutable_metrics()->mutable_mean())["gradient_norm"] = 2;
  history.add_entries()->mutable_evaluation()->set_accuracy(0.5);
  EXPECT_THAT(HistoryTable(history), AllOf(ContainsRegex("RATE +TOKENS +PERPLEXITY +METRICS\n"),
                                           ContainsRegex("0\\.25 +4,096 +1 +gradient_norm 2\n"),
                                           ContainsRegex("0\\.5000( +<none>)+\n")));
}

TEST(HistoryTableTest, ARoundWithoutALossShowsNone) {
  v1::HistoryReply history;
  v1::CommitPoint& commit = *history.add_entries()->mutable_commit();
  commit.set_version(1);
  EXPECT_THAT(HistoryTable(history), ContainsRegex("0\\.00 +<none> +<none>"));
  commit.set_loss(0.25);
  EXPECT_THAT(HistoryTable(history), ContainsRegex("0\\.00 +0\\.2500 +<none>"));
}

TEST(RunDetailsTest, ShowsShardsAndMemory) {
  const Summary summary = Trained();
  v1::StatusReply status;
  *status.add_runs() = summary.run;
  for (const auto& [slot, group] : summary.groups) *status.add_groups() = group;
  v1::GroupMember& member = *status.mutable_groups(0)->mutable_members(0);
  member.mutable_memory()->set_weights(3 << 20);
  member.mutable_memory()->set_activations(1 << 20);
  member.mutable_memory()->set_buffers(1 << 19);
  member.mutable_memory()->set_exchange(2 << 20);
  member.mutable_planned_memory()->set_weights(5 << 20);
  const std::string text = RunDetailsText(status);
  EXPECT_THAT(text, HasSubstr("1,500,000   3,000,000   50.0%"));
  EXPECT_THAT(text, Not(HasSubstr("conv1"))) << "not sharded";
  EXPECT_THAT(text, ContainsRegex("3\\.0 MiB +0 B +0 B +1\\.0 MiB +512\\.0 KiB +2\\.0 MiB +"
                                  "6\\.5 MiB +5\\.0 MiB\n"));
  EXPECT_THAT(text, Not(HasSubstr("Slower than the device could")));
}

TEST(RunDetailsTest, ProgramsHaveNoPlan) {
  v1::StatusReply status;
  v1::GroupStatus& group = *status.add_groups();
  group.set_run("run-1");
  group.mutable_plan()->set_own_loop(true);
  group.mutable_plan()->add_mesh()->set_name("data");
  v1::GroupMember& member = *group.add_members();
  member.set_name("program");
  member.mutable_memory()->set_weights(1 << 20);
  member.mutable_memory()->set_exchange(5 << 20);
  const std::string text = RunDetailsText(status);
  EXPECT_THAT(text, Not(HasSubstr("Collectives")));
  EXPECT_THAT(text, ContainsRegex("program +1\\.0 MiB +<none> +<none> +<none> +<none> +5\\.0 MiB +"
                                  "6\\.0 MiB +<none>\n"));
}

TEST(RunDetailsTest, ShowsFallbacks) {
  const Summary summary = Trained();
  v1::StatusReply status;
  *status.add_runs() = summary.run;
  for (const auto& [slot, group] : summary.groups) *status.add_groups() = group;
  v1::Fallback& fallback = *status.mutable_groups(0)->mutable_members(0)->add_fallbacks();
  fallback.set_kind(v1::Fallback::RECORDING);
  fallback.set_count(1);
  fallback.set_reason("cuDNN: not while capturing");
  const std::string text = RunDetailsText(status);
  EXPECT_THAT(text, HasSubstr("Slower than the device could"));
  EXPECT_THAT(text, ContainsRegex("recording +1 +cuDNN: not while capturing"));
}

v1::GroupStatus Measured() {
  v1::GroupStatus group;
  group.set_run("run-1");
  v1::Plan& plan = *group.mutable_plan();
  plan.add_mesh()->set_name("data");
  for (const auto algorithm :
       {v1::Plan::RING, v1::Plan::HALVING_DOUBLING, v1::Plan::HALVING_DOUBLING, v1::Plan::RING}) {
    plan.add_buckets()->set_algorithm(algorithm);
  }
  plan.mutable_link()->set_alpha(2.5e-6);
  plan.mutable_link()->set_beta(1 / 6.25e9);
  plan.mutable_link()->set_kind(v1::LinkProfile::SHARED_MEMORY);
  group.set_collectives(v1::Cluster::HALVING_DOUBLING);
  group.set_overlap(v1::Cluster::ON);
  group.set_step_seconds(0.041);
  group.set_exposed_seconds(0.0025);
  return group;
}

TEST(GroupTextTest, Texts) {
  v1::GroupStatus group = Measured();
  EXPECT_EQ(LinkText(group), "2.5 us, 6.25 GB/s, shared memory");
  EXPECT_EQ(BucketsText(group), "4 buckets: ring 2, halving-doubling 2");
  EXPECT_EQ(StepText(group), "41 ms, 6% waiting");
  // GPU workers do not report how long they waited.
  group.clear_exposed_seconds();
  EXPECT_EQ(StepText(group), "41 ms");
  group.mutable_plan()->mutable_buckets()->DeleteSubrange(1, 3);
  group.mutable_plan()->mutable_link()->Clear();
  group.mutable_plan()->mutable_link()->set_kind(v1::LinkProfile::THREADS);
  EXPECT_EQ(BucketsText(group), "1 bucket: ring 1");
  EXPECT_EQ(LinkText(group), "threads");
  const v1::GroupStatus empty;
  for (auto* text : {LinkText, BucketsText, StepText, ErrorText}) EXPECT_EQ(text(empty), "");
}

TEST(RunDetailsTest, ShowsPredictionsThatApply) {
  v1::StatusReply status;
  for (uint32_t slot = 0; slot < 2; ++slot) {
    v1::GroupStatus& group = *status.add_groups();
    group = Measured();
    group.set_group(slot);
    group.mutable_predicted()->set_step(0.03);
    group.mutable_measured()->set_step(0.04);
    group.set_prediction_error(-0.25);
    group.set_prediction_error_cause("overlap: waiting took 12.5 ms, 0 ms predicted");
    v1::MemberStatus& worker = *status.add_workers();
    worker.set_host(absl::StrCat("host-", slot));
    worker.set_device("cpu");
    worker.mutable_place()->set_run("run-1");
    worker.mutable_place()->set_group(slot);
  }
  EXPECT_THAT(RunDetailsText(status), AllOf(ContainsRegex("predicted +30 ms"),
                                            ContainsRegex("measured +40 ms.*-25% +overlap")));
  status.mutable_groups(0)->set_prediction_from_own_measurement(true);
  EXPECT_THAT(RunDetailsText(status), HasSubstr("predicted from measured layers   30 ms"));

  status.mutable_workers(1)->set_host("host-0");
  EXPECT_TRUE(SharesDevices(status.groups(0), status));
  EXPECT_THAT(RunDetailsText(status),
              AllOf(Not(HasSubstr("predicted ")), Not(HasSubstr("-25%")),
                    HasSubstr("share a machine's cores with others have no prediction")));
  // Neither a worker on another device of the host nor an idle worker shares the device.
  status.mutable_workers(1)->set_device("cuda:1");
  EXPECT_FALSE(SharesDevices(status.groups(0), status));
  status.mutable_workers(1)->set_device("cpu");
  status.mutable_workers(1)->clear_place();
  EXPECT_FALSE(SharesDevices(status.groups(0), status));
}

TEST(PredictionNotesTest, ReportsEachMeasurementOnce) {
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
  group.set_prediction_error_cause("link: moves took 12.0 ms, 2.00 ms predicted");
  EXPECT_THAT(notes.New(update),
              ElementsAre("run-1  group 0  a step takes 40 ms, 30 ms predicted (-25%); link: moves "
                          "took 12.0 ms, 2.00 ms predicted"));
}

}  // namespace
}  // namespace cadre
