// Plan reports as text and JSON; tests/lab tests their values.
#include "cli/plan_render.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>

#include "cli/placement.h"
#include "lab/formulas.h"
#include "plan/placement/placement_problem.h"
#include "tests/cli/json_document.h"
#include "tests/lab/questions.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::SmallRequest;
using testing::ZooRequest;

// A report, and its input (PlanQuestion), which the report borrows.
struct Asked {
  std::unique_ptr<PlanQuestion> question;
  PlanReport report;
};

Asked Report(PlanRequest request) {
  Asked asked{.question = testing::QuestionOf(std::move(request))};
  auto report = BuildPlanReport(*asked.question);
  EXPECT_TRUE(report.ok()) << report.status();
  asked.report = *std::move(report);
  return asked;
}

PlanRequest WithEveryPart() {
  PlanRequest request = SmallRequest(8);
  request.compare = AllStrategies();
  request.sensitivity = true;
  request.epochs = testing::Epochs({{1, 4}, {4, 5}, {8, 50}});
  request.max_groups = 8;
  return request;
}

PlanRequest WithoutLink(Strategy strategy) {
  PlanRequest request = SmallRequest(4);
  request.link.reset();
  request.strategy = strategy;
  return request;
}

TEST(PlanTextTest, WithoutALinkHasThePlanAlone) {
  const std::string text = ToText(Report(WithoutLink(Strategy::kAuto)).report);
  EXPECT_THAT(text, AllOf(HasSubstr("mesh {data: 1, model: 4}\n"), HasSubstr("  conv1 "),
                          HasSubstr("no link is given: add --alpha and --bandwidth"),
                          Not(HasSubstr("POLICY"))));
}

TEST(PlanTextTest, HasEveryPart) {
  const std::string text = ToText(Report(WithEveryPart()).report);
  EXPECT_THAT(
      text,
      AllOf(HasSubstr("  link 50.0 us a message, 1.25 GB/s, given\n"), HasSubstr("\nLAYER "),
            HasSubstr(" per step without overlap, by policy auto; "),
            HasSubstr("waiting for communication"), HasSubstr("is minimal; communication overlaps"),
            HasSubstr("\nPOLICY "), HasSubstr("\ntraffic per step: ")));
  EXPECT_THAT(text, AllOf(HasSubstr("\nINPUT "), HasSubstr("\nbandwidth   0.3125 GB/s "),
                          HasSubstr(" layers split differently\n")));
  EXPECT_THAT(text, AllOf(HasSubstr("\nSTRATEGY "), HasSubstr("\ngroup-hybrid "),
                          HasSubstr("\nbest of the papers: "), HasSubstr("; no gain: the papers'"),
                          HasSubstr("times as fast as the best of them\n")));
  EXPECT_THAT(text, AllOf(HasSubstr("\nto accuracy 0.9 with 256 samples per epoch: 5 epochs, "),
                          HasSubstr("\nDATA WORKERS "), HasSubstr(" reaches the target soonest: "),
                          HasSubstr("(gain ")));
  EXPECT_THAT(text, AllOf(HasSubstr("\nGROUPS "), HasSubstr("\nrejected: 8 groups of 1 worker: ")));
}

TEST(PlanTextTest, HasThePapersFigures) {
  PlanRequest request = ZooRequest("alexnet", 512, 2048);
  request.strategy = Strategy::kGroupHybrid;
  EXPECT_THAT(
      ToText(Report(request).report),
      AllOf(HasSubstr(
                "group-hybrid by its paper's formulas: grid 32x16, 15353079.875 words per rank"),
            HasSubstr("; g* = 28.61\nLAYER "), HasSubstr("\nmemory per rank ")));
}

TEST(PlanTextTest, NamesPlacedLayers) {
  PlanRequest request = testing::BranchesRequest();
  request.epochs = testing::Epochs({{1, 4}, {2, 7.5}});
  const auto reported = Report(std::move(request));
  const std::string text = ToText(reported.report);
  EXPECT_THAT(text, AllOf(HasSubstr("a placement of the layers has the shortest predicted step"),
                          HasSubstr("whole model@0"), HasSubstr("whole model@1"),
                          HasSubstr("{data: 1, model: 2}, layers placed"),
                          HasSubstr("; splitting pays from 2 workers on")));
  const Json json = ToJson(reported.report);
  std::map<std::string, int> rank_of;
  for (const Json& layer : json["layers"]) rank_of[layer["layer"]] = layer["at"]["model"];
  EXPECT_NE(rank_of.at("left2"), rank_of.at("right2"));
  EXPECT_EQ(json["others"][0]["places_layers"], false);
  EXPECT_EQ(json["target"]["best"]["places_layers"], true);
  EXPECT_EQ(json["target"]["best"]["splits_model"], true);
}

TEST(PlanTextTest, NamesTheCostOfPins) {
  PlanRequest request = SmallRequest(4);
  testing::PinDataParallel(request);
  EXPECT_THAT(ToText(Report(request).report), HasSubstr("\npins cost "));
}

TEST(PlanTextTest, NamesPlacementsThatPinsExclude) {
  PlanRequest request = testing::BranchesRequest();
  testing::PinDataParallel(request);
  EXPECT_THAT(ToText(Report(request).report),
              HasSubstr(": without them mesh {data: 1, model: 2}, layers placed, step "));
}

TEST(PlanJsonTest, HasNullsWithoutALink) {
  const Json json = ToJson(Report(WithoutLink(Strategy::kAuto)).report);
  EXPECT_EQ(json["strategy"], "rules");
  EXPECT_EQ(json["mesh"]["model"], 4);
  for (const char* key : {"link", "communication_seconds", "step_seconds", "policies", "step"}) {
    EXPECT_TRUE(json[key].is_null()) << key;
  }
  EXPECT_TRUE(json["buckets"][0]["seconds"].is_null());
}

TEST(PlanJsonTest, HasThePapersFiguresBesideTheEngines) {
  PlanRequest request = ZooRequest("alexnet", 512, 2048);
  request.strategy = Strategy::kUniformGrid;
  const Json json = ToJson(Report(request).report);
  EXPECT_EQ(json["grid"], "4x128");
  EXPECT_EQ(json["mesh"]["data"], 128);
  double words = 0;
  for (const Json& layer : json["layers"]) words += layer["words"].get<double>();
  EXPECT_DOUBLE_EQ(words, json["words_per_rank"]);
  EXPECT_TRUE(json["engine"].contains("mesh"));
}

// --- docs/json.md ---

TEST(JsonDocumentTest, ListsEveryKeyOfPlan) {
  testing::JsonDocument document(CADRE_SOURCE_DIR "/docs/json.md");
  std::vector<PlanRequest> requests = {WithEveryPart(), WithoutLink(Strategy::kAuto),
                                       WithoutLink(Strategy::kUniformGrid)};
  for (const Strategy strategy : {Strategy::kGroupHybrid, Strategy::kUniformGrid}) {
    requests.push_back(ZooRequest("alexnet", 64, 512));
    requests.back().strategy = strategy;
    requests.push_back(ZooRequest("alexnet", 4, 32));
    requests.back().strategy = strategy;
    requests.back().profile = testing::TwoHosts();
    requests.back().link.reset();
  }
  requests.push_back(SmallRequest(4));
  requests.back().spec.mutable_cluster()->set_model_ranks(2);
  for (const PlanRequest& request : requests) {
    EXPECT_THAT(document.Compare(ToJson(Report(request).report), "plan"), IsEmpty());
  }
  EXPECT_THAT(document.Unseen({"plan",         "Link",
                               "PlannedGroup", "Layer",
                               "RunnerUp",     "Bucket",
                               "PaperPlan",    "NetworkSums",
                               "PaperLayer",   "Candidate",
                               "StepSeconds",  "Variation",
                               "Comparison",   "ComparedStrategy",
                               "ComparedPlan", "Forecast",
                               "BatchChoice",  "Groups",
                               "GroupChoice",  "RefusedGroups"}),
              IsEmpty());
}

TEST(JsonDocumentTest, ListsEveryKeyOfPlacementFormulaAndEpochs) {
  testing::JsonDocument document(CADRE_SOURCE_DIR "/docs/json.md");
  const auto problem = ReadOperatorGraph(CADRE_SOURCE_DIR "/deploy/diamond.textproto");
  ASSERT_TRUE(problem.ok()) << problem.status();
  const auto placement = PlaceGraph(*problem, {});
  ASSERT_TRUE(placement.ok()) << placement.status();
  EXPECT_THAT(document.Compare(ToJson(PlacementReport{*problem, *placement}), "plan --placement"),
              IsEmpty());
  EXPECT_THAT(document.Unseen({"plan --placement", "Transfer"}), IsEmpty());
  EXPECT_THAT(document.Compare(ToJson(v1::EpochsTable()), "measure-epochs"), IsEmpty());
}

TEST(JsonDocumentTest, ReportsDifferences) {
  testing::JsonDocument document(CADRE_SOURCE_DIR "/docs/json.md");
  const Json json = {{"alpha", "fast"}, {"beta", 1}, {"kind", "given"}, {"delta", 2}};
  EXPECT_THAT(
      document.Compare(json, "Link"),
      ::testing::ElementsAre("Link.gamma is missing", "Link.alpha is not a number: \"fast\"",
                             "Link.delta is not documented"));
}

}  // namespace
}  // namespace cadre
