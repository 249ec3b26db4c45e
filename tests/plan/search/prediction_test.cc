#include "plan/search/prediction.h"

#include <gtest/gtest.h>

#include "plan/plan_collectives.h"
#include "plan/search/planner.h"
#include "tests/plan/search/problems.h"

namespace cadre {
namespace {

// Layers with 16 inputs, 8 and 4 outputs have 136 and 36 parameters.
constexpr double kParameters = 172;

class PredictionTest : public ::testing::Test {
 protected:
  PredictionTest() {
    hardware_ = UniformHardware({.alpha = 1e-3, .beta = 1e-3, .gamma = 1e-4}, 1e3);
    hardware_.update_seconds = 1e-3;
  }

  // A data-parallel plan, with outputs split over `model` if model_ranks > 1.
  Plan PlanFor(int ranks, int model_ranks) {
    v1::RunSpec spec = spec_;
    spec.mutable_cluster()->set_ranks_per_group(ranks);
    spec.mutable_cluster()->set_model_ranks(model_ranks);
    return WithBuckets(ProblemFor(ranks), *MakePlan(spec, ranks, graph_, index_, {},
                                                    v1::LinkProfile::KIND_UNSPECIFIED));
  }
  // Seconds of all buckets over the plan's link, without overlap.
  double BucketSum(const Plan& plan) {
    double seconds = 0;
    for (const Bucket& bucket : plan.buckets) {
      seconds += CostOf(plan, index_, bucket, bucket.algorithm, plan.link).seconds();
    }
    return seconds;
  }
  PlanProblem ProblemFor(int ranks) {
    PlanProblem problem{.graph = &graph_, .index = &index_, .ranks = ranks, .batch = 8};
    problem.hardware = hardware_;
    return problem;
  }

  const testing::SmallModel model_{4, {8, 4}, 8};
  const v1::RunSpec& spec_ = model_.spec;
  const Graph& graph_ = model_.graph;
  const ParameterIndex& index_ = model_.index;
  HardwareModel hardware_;
};

// 2 (16 * 8 + 8 * 4) operations per sample forward, twice as many backward; flatten and loss count
// as 0.
TEST_F(PredictionTest, OneRankComputesAndUpdates) {
  const PlanProblem problem = ProblemFor(1);
  const Prediction prediction = Predict(problem, PlanFor(1, 1));
  double flops = 0;
  for (const GraphLayer& layer : graph_.layers()) flops += 8.0 * layer.flops;
  EXPECT_NEAR(prediction.times.compute(), 3 * flops / 1e3, 1e-9);
  EXPECT_NEAR(prediction.times.update(), kParameters * 1e-3, 1e-12);
  EXPECT_NEAR(prediction.times.step(), prediction.times.compute() + prediction.times.update(),
              1e-9);
  EXPECT_EQ(prediction.elements_per_rank, 0);
  EXPECT_EQ(prediction.times.collectives(), 0);
}

TEST_F(PredictionTest, DataParallelCommunication) {
  const PlanProblem problem = ProblemFor(4);
  const Plan plan = PlanFor(4, 1);
  const Prediction prediction = Predict(problem, plan);
  EXPECT_NEAR(prediction.elements_per_rank, 2 * 3.0 / 4 * kParameters, 1e-9);
  EXPECT_NEAR(prediction.times.collectives(), BucketSum(plan), 1e-12);
  EXPECT_EQ(prediction.times.moves(), 0);
  EXPECT_NEAR(prediction.times.update(), kParameters / 4 * 1e-3, 1e-12);
  EXPECT_LE(prediction.times.step(), prediction.serial_seconds + 1e-12);
  EXPECT_GE(prediction.times.step(), prediction.times.compute());
}

TEST_F(PredictionTest, WithoutOverlapIsSerial) {
  PlanProblem problem = ProblemFor(4);
  problem.overlap = false;
  const Prediction prediction = Predict(problem, PlanFor(4, 1));
  EXPECT_NEAR(prediction.times.step(), prediction.serial_seconds, 1e-12);
  EXPECT_NEAR(prediction.times.exposed(),
              prediction.times.collectives() + prediction.times.update(), 1e-12);
}

TEST_F(PredictionTest, ModelParallelMovesActivations) {
  const Prediction prediction = Predict(ProblemFor(2), PlanFor(2, 2));
  EXPECT_GT(prediction.times.moves(), 0);
  EXPECT_LT(prediction.times.collectives(),
            Predict(ProblemFor(2), PlanFor(2, 1)).times.collectives());
}

TEST_F(PredictionTest, SharedCoresSlowCompute) {
  hardware_.flops = 20;  // compute dominates and hides all communication
  hardware_.link.processor = 5e-4;
  const Plan plan = PlanFor(2, 1);
  const Prediction apart = Predict(ProblemFor(2), plan);
  hardware_.per_host = 2;
  hardware_.cores = 2;
  const Prediction shared = Predict(ProblemFor(2), plan);
  hardware_.cores = 4;
  const Prediction enough = Predict(ProblemFor(2), plan);
  EXPECT_GT(shared.times.step(), apart.times.step());
  EXPECT_GT(shared.times.compute(), apart.times.compute());
  EXPECT_DOUBLE_EQ(enough.times.step(), apart.times.step());
}

TEST_F(PredictionTest, MicroBatchesReduceOnce) {
  PlanProblem problem = ProblemFor(2);
  const Plan plan = PlanFor(2, 1);
  const Prediction whole = Predict(problem, plan);
  problem.micro_batches = 2;
  const Prediction halves = Predict(problem, plan);
  EXPECT_NEAR(halves.times.compute(), whole.times.compute(), 1e-9);
  EXPECT_NEAR(halves.times.collectives(), whole.times.collectives(), 1e-12);
}

// Both ranks are on one host, whose inner link is faster.
TEST_F(PredictionTest, BucketsUseTheirOwnLinks) {
  hardware_.per_host = 2;
  hardware_.inside = {.alpha = 1e-6, .beta = 1e-6};
  const PlanProblem problem = ProblemFor(2);
  const Plan plan = PlanFor(2, 1);
  ASSERT_FALSE(plan.buckets.empty());
  double seconds = 0;
  for (const Bucket& bucket : plan.buckets) {
    const double bucket_seconds = CostOf(problem, plan, bucket).seconds();
    seconds += bucket_seconds;
    EXPECT_EQ(bucket_seconds,
              CostOf(plan, index_, bucket, bucket.algorithm, hardware_.inside).seconds());
    EXPECT_EQ(bucket.algorithm,
              CheapestFor(plan, index_, bucket, hardware_.inside, hardware_.inside));
  }
  EXPECT_NEAR(seconds, Predict(problem, plan).times.collectives(), 1e-12);
  EXPECT_LT(seconds, BucketSum(plan));
}

TEST_F(PredictionTest, BestBucketsBeatEveryPolicy) {
  PlanProblem problem = ProblemFor(4);
  const Plan best = WithBestBuckets(problem, PlanFor(4, 1));
  EXPECT_TRUE(CheckPlan(best, graph_, index_).ok());
  const double seconds = Predict(problem, best).times.step();
  for (const v1::Cluster::CollectivePolicy policy : AllPolicies()) {
    problem.collectives = policy;
    EXPECT_LE(seconds, Predict(problem, WithBuckets(problem, best)).times.step())
        << PolicyName(policy);
  }
}

// fc1 on two ranks that split its outputs: 4 rows of 16 weights and 4 biases, as many gradients and
// momenta; 8 samples of 16 inputs, saved for backward, and the same size as transient memory.
TEST_F(PredictionTest, LayerBytes) {
  const Plan plan = PlanFor(2, 2);
  PlanProblem problem = ProblemFor(2);
  const int64_t parameters = 4 * 16 + 4;
  EXPECT_EQ(LayerBytes(problem, plan.mesh, 1, plan.layers[1]),
            4 * (2 * parameters + parameters + 2 * 8 * 16));
  problem.optimizer_states = 2;
  problem.micro_batches = 4;
  EXPECT_EQ(LayerBytes(problem, plan.mesh, 1, plan.layers[1]),
            4 * (3 * parameters + 2 * parameters + 2 * 2 * 16));
}

}  // namespace
}  // namespace cadre
