#include "lab/plan_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "plan/plan_collectives.h"
#include "tests/lab/questions.h"

namespace cadre {
namespace {

using ::testing::Each;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using testing::SmallRequest;
using testing::ZooRequest;

absl::Status ErrorOf(PlanRequest request) {
  const auto question = MakePlanQuestion(std::move(request));
  return question.ok() ? BuildPlanReport(**question).status() : question.status();
}

class PlanReportTest : public ::testing::Test {
 protected:
  // Reports refer to their questions, which live as long as the test.
  PlanReport Report(PlanRequest request) {
    questions_.push_back(testing::QuestionOf(std::move(request)));
    auto report = BuildPlanReport(*questions_.back());
    EXPECT_TRUE(report.ok()) << report.status();
    return *std::move(report);
  }

 private:
  std::vector<std::unique_ptr<PlanQuestion>> questions_;
};

// --- Without a link ---

TEST_F(PlanReportTest, PlansByRulesWithoutLink) {
  PlanRequest request = SmallRequest(4);
  request.link.reset();
  const PlanReport report = Report(request);
  EXPECT_TRUE(report.by_rules());
  EXPECT_FALSE(report.searched.has_value());
  ASSERT_TRUE(report.chosen.has_value());
  EXPECT_EQ(report.chosen->plan.mesh.ToString(), "{data: 1, model: 4}");
  EXPECT_THAT(report.policies, IsEmpty());
  EXPECT_THAT(report.buckets, SizeIs(report.chosen->plan.buckets.size()));
  EXPECT_EQ(report.buckets[0].seconds(), 0);
  EXPECT_GT(report.buckets[0].bytes, 0);
}

TEST_F(PlanReportTest, PaperStrategyCountsWordsWithoutLink) {
  PlanRequest request = ZooRequest("alexnet", 512, 2048);
  request.link.reset();
  request.strategy = Strategy::kUniformGrid;
  const PlanReport report = Report(request);
  EXPECT_DOUBLE_EQ(report.elements_per_rank(), 45'102'279.875);
  EXPECT_FALSE(report.chosen.has_value());
  EXPECT_THAT(report.refusal.message(), HasSubstr("link is unknown"));
}

// --- Strategies of the papers ---

TEST_F(PlanReportTest, ReportsFormulasForGivenLink) {
  PlanRequest request = ZooRequest("alexnet", 512, 2048);
  request.strategy = Strategy::kGroupHybrid;
  const PlanReport report = Report(request);
  ASSERT_TRUE(report.paper.has_value());
  EXPECT_TRUE(report.uses_formulas);
  EXPECT_DOUBLE_EQ(report.elements_per_rank(), 15'353'079.875);
  EXPECT_NEAR(report.communication_seconds(), 10.533e-3, 5e-7);
  EXPECT_EQ(report.step_seconds(), report.communication_seconds());
  EXPECT_EQ(report.paper->grid.pr * report.paper->grid.pc, 512);
  EXPECT_TRUE(report.chosen.has_value());
}

TEST_F(PlanReportTest, ReportsPredictionsForProfile) {
  PlanRequest request = ZooRequest("alexnet", 4, 64);
  request.link.reset();
  request.profile = testing::TwoHosts();
  const PlanReport best = Report(request);
  request.strategy = Strategy::kBatch;
  const PlanReport report = Report(request);
  EXPECT_FALSE(report.uses_formulas);
  EXPECT_EQ(report.step_seconds(), report.chosen->prediction.times.step());
  EXPECT_GE(report.step_seconds() * (1 + 1e-9), best.step_seconds());
  EXPECT_GE(best.step_seconds(), best.chosen->prediction.times.compute());
  EXPECT_GT(best.chosen->prediction.times.compute(), 0);
  // A ring all-reduce on 4 ranks sends 2 (4 - 1) / 4 of the weights per rank.
  EXPECT_DOUBLE_EQ(report.paper->communication.words, 1.5 * 62'367'776);
}

TEST_F(PlanReportTest, PinnedMeshSetsGrid) {
  PlanRequest request = ZooRequest("alexnet", 512, 2048);
  request.strategy = Strategy::kUniformGrid;
  request.spec.mutable_cluster()->set_model_ranks(8);
  request.spec.mutable_cluster()->set_space_ranks(1);
  EXPECT_DOUBLE_EQ(Report(request).elements_per_rank(), 48'393'023.875);
}

TEST_F(PlanReportTest, PaperStrategyRefusesPinnedLayers) {
  PlanRequest request = ZooRequest("alexnet", 8, 64);
  testing::PinLayer("fc6", request);
  request.strategy = Strategy::kBatch;
  EXPECT_THAT(ErrorOf(request).message(), HasSubstr("do not model pinned layers such as fc6"));
  request.link.reset();
  request.profile = testing::TwoHosts();
  EXPECT_THAT(ErrorOf(request).message(), HasSubstr("hosts have 4 workers, 8 are required"));
}

// --- Searched plans ---

TEST_F(PlanReportTest, BucketsAddUpToCommunication) {
  PlanRequest request = SmallRequest(4);
  testing::PinDataParallel(request);
  const PlanReport report = Report(request);
  ASSERT_TRUE(report.searched.has_value());
  EXPECT_EQ(report.chosen->plan.mesh.Size("data"), 4);
  double seconds = 0;
  for (const BucketCost& bucket : report.buckets) seconds += bucket.seconds();
  EXPECT_NEAR(report.communication_seconds(), seconds, 1e-12);
  EXPECT_GT(report.step_seconds(), 0);
  EXPECT_LE(report.step_seconds(), report.chosen->prediction.serial_seconds);
}

TEST_F(PlanReportTest, PredictsAllPoliciesAndUsesRequestedOne) {
  PlanRequest request = SmallRequest(4);
  testing::PinDataParallel(request);
  request.spec.mutable_cluster()->set_collectives(v1::Cluster::BUTTERFLY);
  const PlanReport report = Report(request);
  EXPECT_THAT(report.policies, SizeIs(AllPolicies().size()));
  for (const PolicyCost& cost : report.policies) {
    if (cost.policy == v1::Cluster::BUTTERFLY) {
      EXPECT_EQ(cost.seconds, report.communication_seconds());
    }
  }
  EXPECT_THAT(report.chosen->plan.buckets, Each(Field(&Bucket::algorithm, Algorithm::kButterfly)));
}

TEST_F(PlanReportTest, CountsBytesInsideAndAcrossGroups) {
  const PlanReport report = Report(SmallRequest(4));
  EXPECT_DOUBLE_EQ(report.bytes_inside, report.elements_per_rank() * 4 * 4);
  // Each of two groups stages and pulls all parameters (4 bytes each) every four steps.
  const double parameters = 4 * 9 + 4 + 4 * 256 + 4;
  EXPECT_DOUBLE_EQ(report.bytes_across, 2 * 2 * parameters * 4 / 4);
  PlanRequest alone = SmallRequest(4);
  alone.spec.clear_averaging();
  EXPECT_EQ(Report(alone).bytes_across, 0);
}

TEST_F(PlanReportTest, RespectsPinsAndReportsTheirCost) {
  PlanRequest request = ZooRequest("alexnet", 8, 64);
  v1::Cluster& cluster = *request.spec.mutable_cluster();
  for (const auto& [name, size] : {std::pair("data", 4), std::pair("model", 2)}) {
    v1::MeshAxis& axis = *cluster.add_mesh();
    axis.set_name(name);
    axis.set_size(size);
  }
  const PlanReport report = Report(request);
  EXPECT_EQ(report.chosen->plan.mesh.ToString(), "{data: 4, model: 2}");
  ASSERT_TRUE(report.pins_cost().has_value());
  EXPECT_GE(*report.pins_cost(), 0);
  EXPECT_NEAR(report.step_seconds() - *report.pins_cost(),
              report.searched->unpinned->prediction.times.step(), 1e-12);
}

TEST_F(PlanReportTest, RespectsMemoryLimit) {
  PlanRequest request = ZooRequest("alexnet", 8, 64);
  const PlanReport fastest = Report(request);
  const int64_t needs = fastest.chosen->prediction.memory_bytes;
  request.memory_bytes = needs - 1;
  const PlanReport report = Report(request);
  EXPECT_LT(report.chosen->prediction.memory_bytes, needs);
  EXPECT_GE(report.step_seconds(), fastest.step_seconds());
  request.memory_bytes = 100'000'000;
  request.strategy = Strategy::kBatch;
  EXPECT_THAT(ErrorOf(request).message(), HasSubstr("batch needs"));
  request.strategy = Strategy::kAuto;
  EXPECT_TRUE(absl::IsResourceExhausted(ErrorOf(request)));
}

TEST_F(PlanReportTest, OneWorkerDoesNotCommunicate) {
  PlanRequest request = SmallRequest(1);
  request.flops = 0;
  const PlanReport report = Report(request);
  EXPECT_FALSE(report.question->problem.overlap);
  EXPECT_EQ(report.elements_per_rank(), 0);
  EXPECT_EQ(report.step_seconds(), 0);
}

// --- Optional parts ---

TEST_F(PlanReportTest, HasRequestedParts) {
  PlanRequest request = SmallRequest(4);
  PlanReport report = Report(request);
  EXPECT_THAT(report.variations, IsEmpty());
  EXPECT_FALSE(report.comparison || report.forecast || report.groups);

  request.sensitivity.reset();
  request.compare = {Strategy::kBatch};
  request.epochs = testing::Epochs({{1, 4}, {4, 5}});
  request.max_groups = 2;
  report = Report(request);
  EXPECT_THAT(report.variations, SizeIs(7)) << "sensitivity is included if searches are cheap";
  EXPECT_TRUE(report.comparison && report.forecast);
  ASSERT_TRUE(report.groups.has_value());
  EXPECT_FALSE(report.groups->choices.empty());
}

TEST_F(PlanReportTest, ChoosesGroupsForProfileWithEpochs) {
  PlanRequest request = SmallRequest(4);
  request.link.reset();
  request.profile = testing::TwoHosts();
  EXPECT_FALSE(Report(request).groups.has_value());
  request.epochs = testing::Epochs({{1, 4}, {8, 5}});
  EXPECT_TRUE(Report(request).groups.has_value());
}

}  // namespace
}  // namespace cadre
