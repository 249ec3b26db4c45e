#include "plan/report/plan_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "plan/plan_collectives.h"
#include "tests/plan/report/questions.h"

namespace cadre {
namespace {

using testing::Ask;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using testing::SmallRequest;
using testing::ZooRequest;

PlanReport Report(const PlanQuestion& question) {
  auto report = BuildPlanReport(question);
  EXPECT_TRUE(report.ok()) << report.status();
  return *std::move(report);
}

absl::Status Refusal(PlanRequest request) {
  const auto question = MakePlanQuestion(std::move(request));
  return question.ok() ? BuildPlanReport(**question).status() : question.status();
}

// --- without a link ---

TEST(PlanReportTest, PlansByRulesWithoutALink) {
  PlanRequest request = SmallRequest(4);
  request.link.reset();
  const auto question = Ask(request);
  const PlanReport report = Report(*question);
  EXPECT_TRUE(report.by_rules);
  EXPECT_FALSE(report.searched.has_value());
  ASSERT_TRUE(report.chosen.has_value());
  EXPECT_EQ(report.chosen->plan.mesh.ToString(), "{data: 1, model: 4}");
  EXPECT_THAT(report.policies, IsEmpty());
  EXPECT_THAT(report.buckets, SizeIs(report.chosen->plan.buckets.size()));
  EXPECT_EQ(report.buckets[0].seconds, 0);
  EXPECT_GT(report.buckets[0].bytes, 0);
}

TEST(PlanReportTest, PaperStrategyWithoutALinkCountsWords) {
  PlanRequest request = ZooRequest("alexnet", 512, 2048);
  request.link.reset();
  request.strategy = Strategy::kUniformGrid;
  const auto question = Ask(request);
  const PlanReport report = Report(*question);
  EXPECT_DOUBLE_EQ(report.words_per_rank(), 45'102'279.875);
  EXPECT_FALSE(report.chosen.has_value());
  EXPECT_THAT(report.refusal.message(), HasSubstr("link is unknown"));
}

// --- strategies of the papers ---

TEST(PlanReportTest, PaperStrategyOnAGivenLinkHasThePapersFigures) {
  PlanRequest request = ZooRequest("alexnet", 512, 2048);
  request.strategy = Strategy::kGroupHybrid;
  const auto question = Ask(request);
  const PlanReport report = Report(*question);
  ASSERT_TRUE(report.paper.has_value());
  EXPECT_TRUE(report.paper_figures);
  EXPECT_DOUBLE_EQ(report.words_per_rank(), 15'353'079.875);
  EXPECT_NEAR(report.communication_seconds(), 10.533e-3, 5e-7);
  EXPECT_EQ(report.step_seconds(), report.communication_seconds());
  EXPECT_EQ(report.paper->grid.pr * report.paper->grid.pc, 512);
  EXPECT_TRUE(report.chosen.has_value());
}

TEST(PlanReportTest, PaperStrategyOnAProfileHasTheEnginesFigures) {
  PlanRequest request = ZooRequest("alexnet", 4, 64);
  request.link.reset();
  request.profile = testing::TwoHosts();
  const auto free = Ask(request);
  const PlanReport best = Report(*free);
  request.strategy = Strategy::kBatch;
  const auto question = Ask(request);
  const PlanReport report = Report(*question);
  EXPECT_FALSE(report.paper_figures);
  EXPECT_EQ(report.step_seconds(), report.chosen->prediction.times.step());
  EXPECT_GE(report.step_seconds() * (1 + 1e-9), best.step_seconds());
  EXPECT_GE(best.step_seconds(), best.chosen->prediction.times.compute());
  EXPECT_GT(best.chosen->prediction.times.compute(), 0);
  // 2 (4 - 1) / 4 of the weights.
  EXPECT_DOUBLE_EQ(report.paper->communication.words, 1.5 * 62'367'776);
}

TEST(PlanReportTest, PinnedMeshIsThePapersGrid) {
  PlanRequest request = ZooRequest("alexnet", 512, 2048);
  request.strategy = Strategy::kUniformGrid;
  request.spec.mutable_cluster()->set_model_ranks(8);
  request.spec.mutable_cluster()->set_space_ranks(1);
  const auto question = Ask(request);
  EXPECT_DOUBLE_EQ(Report(*question).words_per_rank(), 48'393'023.875);
}

TEST(PlanReportTest, PaperStrategyRefusesPinnedLayersOnAGivenLink) {
  PlanRequest request = ZooRequest("alexnet", 8, 64);
  testing::PinLayer("fc6", request);
  request.strategy = Strategy::kBatch;
  EXPECT_THAT(Refusal(request).message(), HasSubstr("do not model pinned layers such as fc6"));
  request.link.reset();
  request.profile = testing::TwoHosts();
  EXPECT_THAT(Refusal(request).message(), HasSubstr("hosts have 4 workers, 8 are required"));
}

// --- searched ---

TEST(PlanReportTest, BucketsAddUpToTheCommunication) {
  PlanRequest request = SmallRequest(4);
  testing::PinDataParallel(request);
  const auto question = Ask(request);
  const PlanReport report = Report(*question);
  ASSERT_TRUE(report.searched.has_value());
  EXPECT_EQ(report.chosen->plan.mesh.Size("data"), 4);
  double seconds = 0;
  for (const BucketReport& bucket : report.buckets) seconds += bucket.seconds;
  EXPECT_NEAR(report.communication_seconds(), seconds, 1e-12);
  EXPECT_GT(report.step_seconds(), 0);
  EXPECT_LE(report.step_seconds(), report.chosen->prediction.serial_seconds);
}

TEST(PlanReportTest, EveryPolicyIsCostedAndTheRequestedOneIsObeyed) {
  const auto algorithms = [](v1::Cluster::CollectivePolicy policy) {
    PlanRequest request = SmallRequest(4);
    testing::PinDataParallel(request);
    request.spec.mutable_cluster()->set_collectives(policy);
    const auto question = Ask(request);
    const PlanReport report = Report(*question);
    EXPECT_THAT(report.policies, SizeIs(AllPolicies().size()));
    for (const PolicyCost& cost : report.policies) {
      if (cost.policy != policy) continue;
      EXPECT_EQ(cost.seconds, report.communication_seconds());
    }
    std::vector<Algorithm> used;
    for (const Bucket& bucket : report.chosen->plan.buckets) used.push_back(bucket.algorithm);
    return used;
  };
  EXPECT_THAT(algorithms(v1::Cluster::RING), Each(Algorithm::kRing));
  EXPECT_THAT(algorithms(v1::Cluster::BUTTERFLY), Each(Algorithm::kButterfly));
  EXPECT_THAT(algorithms(v1::Cluster::HALVING_DOUBLING), Each(Algorithm::kHalvingDoubling));
  EXPECT_THAT(algorithms(v1::Cluster::PAPER), ElementsAre(Algorithm::kRing, Algorithm::kButterfly));
}

// Layer by layer, by data parallelism alone, on the link of Kim, Yeo, Oh 2021.
TEST(PlanReportTest, OnAlexNetChoosingBySizeBeatsChoosingByKind) {
  PlanRequest request = ZooRequest("alexnet", 8, 128);
  request.link = {.alpha = 50e-6, .bandwidth = 1.25e9};
  testing::PinDataParallel(request);
  request.bucket_elements = 1;
  const auto question = Ask(request);
  const PlanReport report = Report(*question);
  EXPECT_THAT(report.buckets, SizeIs(8));
  PolicyCost own;
  PolicyCost paper;
  for (const PolicyCost& cost : report.policies) {
    if (cost.policy == v1::Cluster::AUTO) own = cost;
    if (cost.policy == v1::Cluster::PAPER) paper = cost;
  }
  EXPECT_LT(own.seconds, paper.seconds);
  EXPECT_LT(own.all_reduced, paper.all_reduced);
  for (const PolicyCost& cost : report.policies) {
    EXPECT_LE(own.seconds, cost.seconds) << PolicyName(cost.policy);
    EXPECT_LE(own.all_reduced, cost.all_reduced) << PolicyName(cost.policy);
  }
}

TEST(PlanReportTest, CountsBytesInsideAndAcrossGroups) {
  const auto question = Ask(SmallRequest(4));
  const PlanReport report = Report(*question);
  EXPECT_DOUBLE_EQ(report.bytes_inside, report.words_per_rank() * 4 * 4);
  // Two groups, up and down, every four steps.
  const double parameters = 4 * 9 + 4 + 4 * 256 + 4;
  EXPECT_DOUBLE_EQ(report.bytes_across, 2 * 2 * parameters * 4 / 4);
  PlanRequest alone = SmallRequest(4);
  alone.spec.clear_averaging();
  const auto other = Ask(alone);
  EXPECT_EQ(Report(*other).bytes_across, 0);
}

TEST(PlanReportTest, PinsAreKeptAndTheirCostIsReported) {
  PlanRequest request = ZooRequest("alexnet", 8, 64);
  v1::Cluster& cluster = *request.spec.mutable_cluster();
  for (const auto& [name, size] : {std::pair("data", 4), std::pair("model", 2)}) {
    v1::MeshAxis& axis = *cluster.add_mesh();
    axis.set_name(name);
    axis.set_size(size);
  }
  const auto question = Ask(request);
  const PlanReport report = Report(*question);
  EXPECT_EQ(report.chosen->plan.mesh.ToString(), "{data: 4, model: 2}");
  ASSERT_TRUE(report.pins_cost().has_value());
  EXPECT_GE(*report.pins_cost(), 0);
  EXPECT_NEAR(report.step_seconds() - *report.pins_cost(),
              report.searched->unpinned->prediction.times.step(), 1e-12);
}

TEST(PlanReportTest, MemoryLimitIsKept) {
  PlanRequest request = ZooRequest("alexnet", 8, 64);
  const auto free = Ask(request);
  const PlanReport fastest = Report(*free);
  const int64_t needs = fastest.chosen->prediction.memory_bytes;
  request.memory_bytes = needs - 1;
  const auto limited = Ask(request);
  const PlanReport report = Report(*limited);
  EXPECT_LT(report.chosen->prediction.memory_bytes, needs);
  EXPECT_GE(report.step_seconds(), fastest.step_seconds());
  request.memory_bytes = 100'000'000;
  request.strategy = Strategy::kBatch;
  EXPECT_THAT(Refusal(request).message(), HasSubstr("batch needs"));
  request.strategy = Strategy::kAuto;
  EXPECT_TRUE(absl::IsResourceExhausted(Refusal(request)));
}

TEST(PlanReportTest, OneWorkerDoesNotCommunicate) {
  PlanRequest request = SmallRequest(1);
  request.flops = 0;
  const auto question = Ask(request);
  EXPECT_FALSE(question->problem.overlap);
  const PlanReport report = Report(*question);
  EXPECT_EQ(report.words_per_rank(), 0);
  EXPECT_EQ(report.step_seconds(), 0);
}

// --- optional parts ---

TEST(PlanReportTest, HasTheRequestedParts) {
  PlanRequest request = SmallRequest(4);
  auto question = Ask(request);
  PlanReport report = Report(*question);
  EXPECT_THAT(report.variations, IsEmpty());
  EXPECT_FALSE(report.comparison || report.forecast || report.groups);

  request.sensitivity.reset();
  request.compare = {Strategy::kBatch};
  request.epochs = testing::Epochs({{1, 4}, {4, 5}});
  request.max_groups = 2;
  question = Ask(request);
  report = Report(*question);
  EXPECT_THAT(report.variations, SizeIs(7)) << "by default where it is cheap";
  EXPECT_TRUE(report.comparison && report.forecast);
  ASSERT_TRUE(report.groups.has_value());
  EXPECT_FALSE(report.groups->choices.empty());
}

TEST(PlanReportTest, ChoosesGroupsForAProfileWithEpochs) {
  PlanRequest request = SmallRequest(4);
  request.link.reset();
  request.profile = testing::TwoHosts();
  auto question = Ask(request);
  EXPECT_FALSE(Report(*question).groups.has_value());
  request.epochs = testing::Epochs({{1, 4}, {8, 5}});
  question = Ask(request);
  EXPECT_TRUE(Report(*question).groups.has_value());
}

}  // namespace
}  // namespace cadre
