#include "coordinator/plan/prediction.h"

#include <gtest/gtest.h>

#include <string>

#include "coordinator/plan/planner.h"
#include "spec/memory.h"
#include "spec/plan_collectives.h"
#include "spec/text.h"

namespace cadre {
namespace {

// 16 inputs, 8 and 4 outputs: 136 and 36 parameters.
constexpr char kTwoLayers[] = R"pb(
  model {
    input { channels: 1 height: 4 width: 4 }
    layer {
      name: "fc1"
      fully_connected { out_features: 8 }
    }
    layer {
      name: "fc2"
      fully_connected { out_features: 4 }
    }
    layer {
      name: "loss"
      softmax_cross_entropy {}
    }
  }
  batch_per_group: 8
  optimizer { sgd { momentum: 0.9 } }
)pb";
constexpr double kParameters = 172;

class PredictionTest : public ::testing::Test {
 protected:
  PredictionTest() : spec_(ParseRunSpec("spec", kTwoLayers)->spec) {
    machine_ = UniformMachine({.alpha = 1e-3, .beta = 1e-3, .gamma = 1e-4}, 1e3);
    machine_.update_seconds = 1e-3;
  }

  // Every layer by samples, or with outputs split over `model`.
  Plan PlanFor(int ranks, int model_ranks) {
    v1::RunSpec spec = spec_;
    spec.mutable_cluster()->set_ranks_per_group(static_cast<uint32_t>(ranks));
    spec.mutable_cluster()->set_model_ranks(static_cast<uint32_t>(model_ranks));
    return WithBuckets(ProblemFor(ranks), *MakePlan(spec, ranks, graph_, index_, {}, ""));
  }
  PlanProblem ProblemFor(int ranks) {
    PlanProblem problem{.graph = &graph_, .index = &index_, .ranks = ranks, .batch = 8};
    problem.machine = machine_;
    return problem;
  }

  const v1::RunSpec spec_;
  const Graph graph_ = *Graph::FromModel(spec_.model());
  const ParameterIndex index_ = ParameterIndex::FromGraph(graph_);
  GroupMachine machine_;
};

// 2 (16 * 8 + 8 * 4) operations a sample forward, twice that backward; flattening and loss are free
// of arithmetic that counts.
TEST_F(PredictionTest, OneRankComputesAndUpdates) {
  const PlanProblem problem = ProblemFor(1);
  const Prediction prediction = Predict(problem, PlanFor(1, 1));
  double flops = 0;
  for (const GraphLayer& layer : graph_.layers()) flops += 8.0 * static_cast<double>(layer.flops);
  EXPECT_NEAR(prediction.times.compute(), 3 * flops / 1e3, 1e-9);
  EXPECT_NEAR(prediction.times.update(), kParameters * 1e-3, 1e-12);
  EXPECT_NEAR(prediction.times.step(), prediction.times.compute() + prediction.times.update(),
              1e-9);
  EXPECT_EQ(prediction.words_per_rank, 0);
  EXPECT_EQ(prediction.times.collectives(), 0);
}

TEST_F(PredictionTest, DataParallelMovesTheModelTwiceButOwnParts) {
  const PlanProblem problem = ProblemFor(4);
  const Plan plan = PlanFor(4, 1);
  const Prediction prediction = Predict(problem, plan);
  EXPECT_NEAR(prediction.words_per_rank, 2 * 3.0 / 4 * kParameters, 1e-9);
  EXPECT_NEAR(prediction.times.collectives(), CommunicationSeconds(plan, index_), 1e-12);
  EXPECT_EQ(prediction.times.moves(), 0);
  EXPECT_NEAR(prediction.times.update(), kParameters / 4 * 1e-3, 1e-12);
  EXPECT_LE(prediction.times.step(), prediction.serial_seconds + 1e-12);
  EXPECT_GE(prediction.times.step(), prediction.times.compute());
}

TEST_F(PredictionTest, WithoutOverlapEverythingIsInTurn) {
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

TEST_F(PredictionTest, CoresThatAreSharedSlowComputingByWhatHides) {
  machine_.flops = 20;  // computing takes much longer: all of the rest hides behind it
  machine_.link.processor = 5e-4;
  const Plan plan = PlanFor(2, 1);
  const Prediction apart = Predict(ProblemFor(2), plan);
  machine_.per_host = 2;
  machine_.cores = 2;
  const Prediction shared = Predict(ProblemFor(2), plan);
  machine_.cores = 4;
  const Prediction enough = Predict(ProblemFor(2), plan);
  EXPECT_GT(shared.times.step(), apart.times.step());
  EXPECT_GT(shared.times.compute(), apart.times.compute());
  EXPECT_DOUBLE_EQ(enough.times.step(), apart.times.step());
}

TEST_F(PredictionTest, MicroBatchesComputeInTurnAndReduceOnce) {
  PlanProblem problem = ProblemFor(2);
  const Plan plan = PlanFor(2, 1);
  const Prediction whole = Predict(problem, plan);
  problem.micro_batches = 2;
  const Prediction halves = Predict(problem, plan);
  EXPECT_NEAR(halves.times.compute(), whole.times.compute(), 1e-9);
  EXPECT_NEAR(halves.times.collectives(), whole.times.collectives(), 1e-12);
}

// Two ranks of one host along `model`, whose links are quick; hosts apart along `data`.
TEST_F(PredictionTest, BucketsArePricedByWhatTheyTravelOver) {
  machine_.per_host = 2;
  machine_.inside = {.alpha = 1e-6, .beta = 1e-6};
  const PlanProblem problem = ProblemFor(2);
  const Plan plan = PlanFor(2, 1);
  ASSERT_FALSE(plan.buckets.empty());
  double seconds = 0;
  for (const Bucket& bucket : plan.buckets) {
    seconds += BucketSeconds(problem, plan, bucket);
    EXPECT_EQ(BucketSeconds(problem, plan, bucket),
              CostOf(plan, index_, bucket, bucket.algorithm, machine_.inside).seconds());
    EXPECT_EQ(bucket.algorithm, CheapestFor(plan, index_, bucket, machine_.inside));
  }
  EXPECT_NEAR(seconds, Predict(problem, plan).times.collectives(), 1e-12);
  EXPECT_LT(seconds, CommunicationSeconds(plan, index_));
}

TEST_F(PredictionTest, TheBestBucketsAreNoSlowerThanThoseOfAnyPolicy) {
  PlanProblem problem = ProblemFor(4);
  const Plan best = WithBestBuckets(problem, PlanFor(4, 1));
  EXPECT_TRUE(CheckPlan(best, graph_, index_).ok());
  const double seconds = Predict(problem, best).times.step();
  for (const v1::CollectivePolicy policy : AllPolicies()) {
    problem.collectives = policy;
    EXPECT_LE(seconds, Predict(problem, WithBuckets(problem, best)).times.step())
        << PolicyName(policy);
  }
}

// fc1 on two ranks that split its outputs: 4 rows of 16 and 4 biases, as many gradients, their
// momentum; 8 samples of 16 inputs, which backward looks at, and once more for what passes.
TEST_F(PredictionTest, CountsTheBytesOfALayer) {
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

// Never less than what buffers that share memory take on the rank that has most.
TEST_F(PredictionTest, MemoryIsAnUpperBound) {
  const Plan plan = PlanFor(2, 1);
  const Prediction prediction = Predict(ProblemFor(2), plan);
  v1::RunSpec spec = spec_;
  spec.mutable_cluster()->set_ranks_per_group(2);
  const v1::MemoryUse use = PlannedMemory(spec, graph_, index_, plan, 1, v1::CPU);
  EXPECT_GE(prediction.memory_bytes,
            static_cast<int64_t>(use.weights() + use.gradients() + use.optimizer() +
                                 use.activations() + use.buffers()));
}

}  // namespace
}  // namespace cadre
