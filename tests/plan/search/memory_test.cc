// Compares predicted memory with the memory of the tapes of all ranks (plan/memory.h).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/optimizer_state.h"
#include "plan/layer_memory.h"
#include "plan/memory.h"
#include "plan/pipeline.h"
#include "plan/search/placed_plans.h"
#include "plan/search/plan_problem.h"
#include "plan/search/planner.h"
#include "plan/search/search.h"
#include "plan/search/staged_plans.h"
#include "plan/tape.h"
#include "tests/plan/search/problems.h"

namespace cadre {
namespace {

using testing::OwnedProblem;
using testing::ZooProblem;

// Memory of the tape of the rank that needs the most.
int64_t PlannedBytes(const OwnedProblem& owned, const Plan& plan,
                     v1::Cluster::Device device = v1::Cluster::CPU) {
  int64_t max_bytes = 0;
  const PassOrder order =
      PassOrderOf(owned.spec.cluster().pipeline(), MicroBatches(owned.spec), *owned.graph, plan);
  for (int rank = 0; rank < plan.mesh.ranks(); ++rank) {
    const v1::MemoryUse use =
        PlannedMemory(owned.spec, *owned.graph, *owned.index, plan, rank, device,
                      order.InFlight(StageIn(order, plan.mesh, rank)));
    max_bytes = std::max(max_bytes, DeviceBytes(use, device));
  }
  return max_bytes;
}

void ExpectUpperBounds(const std::string& name,
                       v1::RunSpec::Precision precision = v1::RunSpec::FP32) {
  for (const int ranks : {1, 2, 4}) {
    OwnedProblem owned = ZooProblem(name, ranks, 32);
    owned.spec.mutable_optimizer()->mutable_sgd()->set_momentum(0.9F);
    owned.spec.set_precision(precision);
    // The exchange with the aggregators counts, too.
    owned.spec.mutable_averaging()->set_every_steps(4);
    if (ranks > 1) owned.spec.mutable_averaging()->mutable_up()->set_codec(v1::CODEC_E3M0);
    for (const int micro_batches : {1, 2}) {
      owned.spec.set_micro_batches(micro_batches);
      for (const Strategy strategy : AllStrategies()) {
        PlanProblem problem =
            *ProblemOf(owned.spec, *owned.graph, *owned.index, ranks, owned.problem.hardware);
        problem.strategy = strategy;
        const auto result = Search(problem, {.max_predicted = 4, .max_improvements = 0});
        ASSERT_TRUE(result.ok()) << result.status();
        const int64_t predicted = result->best.prediction.memory_bytes;
        const int64_t planned = PlannedBytes(owned, result->best.plan);
        SCOPED_TRACE(name + " on " + std::to_string(ranks) + ", " +
                     std::string(StrategyName(strategy)));
        EXPECT_GE(predicted, planned);
        EXPECT_LE(predicted, 3.2 * planned);
      }
    }
  }
}

// With what the spec says of devices, precision and so on.
OwnedProblem WithSettings(OwnedProblem owned) {
  owned.problem =
      *ProblemOf(owned.spec, *owned.graph, *owned.index, owned.problem.ranks, HardwareModel());
  return owned;
}

TEST(MemoryTest, BoundsLeNet) { ExpectUpperBounds("lenet"); }
TEST(MemoryTest, BoundsAlexNet) { ExpectUpperBounds("alexnet"); }
TEST(MemoryTest, BoundsResNet) { ExpectUpperBounds("resnet18"); }
TEST(MemoryTest, BoundsBigLstm) { ExpectUpperBounds("biglstm"); }
TEST(MemoryTest, BoundsBf16Copies) { ExpectUpperBounds("alexnet", v1::RunSpec::BF16); }
TEST(MemoryTest, BoundsBf16Sequences) {
  ExpectUpperBounds("biglstm", v1::RunSpec::BF16);
  ExpectUpperBounds("gpt", v1::RunSpec::BF16);
}

// Activations in bf16 need less than those in fp32, although weights have copies.
TEST(MemoryTest, Bf16BoundsAreSmaller) {
  int64_t bounds[2] = {};
  for (const v1::RunSpec::Precision precision : {v1::RunSpec::FP32, v1::RunSpec::BF16}) {
    OwnedProblem owned = ZooProblem("gpt", 1, 32);
    owned.spec.set_precision(precision);
    const OwnedProblem of_type = WithSettings(std::move(owned));
    const Plan plan = *PlanFromProto(*MakePlan(of_type.spec, 1), *of_type.graph, *of_type.index);
    const int64_t planned = PlannedBytes(of_type, plan);
    int64_t& bound = bounds[precision == v1::RunSpec::BF16 ? 1 : 0];
    bound = testing::PlanBytes(of_type.problem, plan);
    EXPECT_GE(bound, planned);
    EXPECT_LE(bound, 2.2 * static_cast<double>(planned));
  }
  EXPECT_LT(bounds[1], 0.7 * bounds[0]);
}

// On one rank the gradient of the loss overwrites the scores, which take most of the memory.
TEST(MemoryTest, GradientOfTheLossTakesNoMemory) {
  v1::RunSpec spec = testing::SpecOf(R"(
    optimizer { sgd {} }
    model {
      tokens { length: 4 }
      layer { name: "embed" embedding { vocabulary: 3001 features: 2 } }
      layer { name: "head" fully_connected { out_features: 3001 } }
      layer { name: "loss" softmax_cross_entropy {} }
    })");
  spec.set_batch_per_group(100);
  for (const v1::Cluster::Device device : {v1::Cluster::CPU, v1::Cluster::CUDA}) {
    spec.mutable_cluster()->set_device(device);
    const OwnedProblem owned = WithSettings(testing::ProblemOfSpec(spec, 1));
    const Plan plan = *PlanFromProto(*MakePlan(spec, 1), *owned.graph, *owned.index);
    const int64_t bound = testing::PlanBytes(owned.problem, plan);
    const int64_t planned = PlannedBytes(owned, plan, device);
    EXPECT_GE(bound, planned);
    const int64_t scores = int64_t{4} * 100 * 4 * ScoreRow(3001, DType::kFloat32);
    EXPECT_LT(bound, planned + scores / 20);
  }
}

// Ranks that divide the samples compute scores in chunks; others have them as a whole.
TEST(MemoryTest, BoundsScoresInChunks) {
  const v1::RunSpec spec = testing::SpecOf(R"(
    optimizer { sgd {} }
    batch_per_group: 8
    model {
      tokens { length: 500 }
      layer { name: "embed" embedding { vocabulary: 30000 features: 2 } }
      layer { name: "head" fully_connected { out_features: 30000 } }
      layer { name: "loss" softmax_cross_entropy {} }
    })");
  constexpr int64_t kScores = int64_t{4} * 8 * 500 * 30'000;
  for (const int ranks : {1, 2, 4}) {
    const OwnedProblem owned = WithSettings(testing::ProblemOfSpec(spec, ranks));
    for (const char* index : {"samples", "out"}) {
      if (ranks == 1 && std::string(index) == "out") continue;
      Plan plan{.mesh = ranks == 1 ? Mesh() : Mesh({{"axis", ranks}})};
      for (const GraphLayer& layer : owned.graph->layers()) {
        auto layouts = LayOut(layer, plan.mesh, {{index, {"axis"}}});
        if (ranks == 1 || !layouts.ok()) layouts = LayOut(layer, plan.mesh, {});
        plan.layers.push_back(*std::move(layouts));
      }
      plan.buckets = MakeBuckets(plan.layers, plan.mesh, *owned.index);
      const int64_t bound = testing::PlanBytes(owned.problem, plan);
      const int64_t planned = PlannedBytes(owned, plan);
      EXPECT_GE(bound, planned) << ranks << index;
      EXPECT_EQ(bound < kScores / ranks / 2, std::string(index) == "samples") << ranks << index;
    }
  }
}

// The bound counts what attention has on GPUs.
TEST(MemoryTest, BoundsScoresOfAttentionOnGpus) {
  v1::RunSpec spec = testing::SpecOf(R"(
    optimizer { sgd {} }
    cluster { device: CUDA }
    model {
      tokens { length: 300 }
      layer { name: "embed" embedding { vocabulary: 50 features: 8 } }
      layer { name: "attention" attention { heads: 1 } }
      layer { name: "head" fully_connected { out_features: 50 } }
      layer { name: "loss" softmax_cross_entropy {} }
    })");
  spec.set_batch_per_group(100);
  for (const v1::RunSpec::Precision precision : {v1::RunSpec::FP32, v1::RunSpec::BF16}) {
    spec.set_precision(precision);
    for (const int ranks : {1, 2}) {
      const OwnedProblem owned = WithSettings(testing::ProblemOfSpec(spec, ranks));
      const Plan plan = *PlanFromProto(*MakePlan(spec, ranks), *owned.graph, *owned.index);
      const int64_t bound = testing::PlanBytes(owned.problem, plan);
      const int64_t gpu = PlannedBytes(owned, plan, v1::Cluster::CUDA);
      EXPECT_GE(bound, gpu);
      // 46 heads in a block: scores and gradients of probabilities in fp32.
      EXPECT_GE(gpu, PlannedBytes(owned, plan) + int64_t{4} * 46 * 300 * 300);
    }
  }
}

// A training step has 10 scores per row, and evaluation 3000.
OwnedProblem SampledProblem(int batch) {
  v1::RunSpec spec = testing::SpecOf(R"(
    optimizer { sgd {} }
    model {
      tokens { length: 4 }
      layer { name: "embed" embedding { vocabulary: 3000 features: 2 } }
      layer { name: "head" fully_connected { out_features: 3000 } }
      layer { name: "loss" softmax_cross_entropy { sampling { classes: 9 } } }
    })");
  spec.set_batch_per_group(batch);
  return testing::ProblemOfSpec(spec, 2);
}

TEST(MemoryTest, EvaluationHasNoMoreScoresThanTraining) {
  const auto samples = [](int batch) {
    const OwnedProblem owned = SampledProblem(batch);
    const Plan plan = *PlanFromProto(*MakePlan(owned.spec, 2), *owned.graph, *owned.index);
    return EvaluationSamples(owned.spec, *owned.graph, plan);
  };
  EXPECT_EQ(samples(1800), 6) << "each rank has 3 samples of 3000 scores instead of 900 of 10";
  EXPECT_EQ(samples(1798), 4);
  EXPECT_EQ(samples(10), 2) << "at least one sample on each rank";
  EXPECT_EQ(samples(1), 1);
  const Graph full = SampledProblem(10).graph->ForEvaluation();
  EXPECT_EQ(EvaluationSamples(full, 10, 2), 10) << "without sampling";
}

// The scores of one sample take 48,000 bytes on each rank, and training needs less.
TEST(MemoryTest, EvaluationWithAllClassesCounts) {
  const OwnedProblem owned = SampledProblem(20);
  const Plan plan = *PlanFromProto(*MakePlan(owned.spec, 2), *owned.graph, *owned.index);
  const auto activations = [&](int in_flight) {
    return PlannedMemory(owned.spec, *owned.graph, *owned.index, plan, /*rank=*/1, v1::Cluster::CPU,
                         in_flight)
        .activations();
  };
  EXPECT_GE(activations(1), 48'000U);
  EXPECT_LT(activations(1), 2 * 48'000U);
  EXPECT_EQ(activations(2), activations(1)) << "a rank evaluates one batch at a time";
  EXPECT_GE(testing::PlanBytes(owned.problem, plan), PlannedBytes(owned, plan));
}

// Pipelines and placements, with one and two state tensors for each parameter.
void ExpectUpperBoundsOfPlacedPlans(OwnedProblem owned, bool has_branches) {
  v1::Optimizer momentum;
  momentum.mutable_sgd()->set_momentum(0.9F);
  v1::Optimizer adamw;
  adamw.mutable_adamw();
  for (const v1::Optimizer& optimizer : {momentum, adamw}) {
    *owned.spec.mutable_optimizer() = optimizer;
    for (const int ranks : {2, 4, 8}) {
      for (const int micro_batches : {1, 4}) {
        owned.spec.set_micro_batches(micro_batches);
        const PlanProblem problem =
            *ProblemOf(owned.spec, *owned.graph, *owned.index, ranks, owned.problem.hardware);
        std::vector<Candidate> plans = StagedPlans(problem);
        EXPECT_EQ(plans.empty(), micro_batches == 1);
        std::vector<Candidate> on_ranks =
            PlacedPlans(problem, std::numeric_limits<double>::infinity());
        EXPECT_EQ(on_ranks.empty(), !has_branches);
        std::move(on_ranks.begin(), on_ranks.end(), std::back_inserter(plans));
        for (const Candidate& each : plans) {
          SCOPED_TRACE(absl::StrCat(owned.spec.name(), ", ", each.plan.mesh.ToString(), ", ",
                                    OptimizerKind(optimizer), ", micro-batches: ", micro_batches));
          const int64_t planned = PlannedBytes(owned, each.plan);
          EXPECT_GE(each.prediction.memory_bytes, planned);
          EXPECT_LE(each.prediction.memory_bytes, 3.2 * planned);
        }
      }
    }
  }
}

TEST(MemoryTest, BoundsPlacedBranches) {
  ExpectUpperBoundsOfPlacedPlans(testing::BranchesProblem(2), /*has_branches=*/true);
}
TEST(MemoryTest, BoundsStagesOfAlexNet) {
  ExpectUpperBoundsOfPlacedPlans(ZooProblem("alexnet", 2, 32), /*has_branches=*/false);
}

// A convolution that is split by outputs gathers its whole input.
TEST(MemoryTest, GatheredInputsCount) {
  OwnedProblem owned = ZooProblem("alexnet", 32, 2048);
  PlanProblem& problem = owned.problem;
  problem.pins.mesh = {{kDataAxis, 1}, {kModelAxis, 32}};
  problem.pins.layers["conv1"] = "out";
  const auto result = Search(problem, {.max_predicted = 4, .max_improvements = 0});
  ASSERT_TRUE(result.ok()) << result.status();
  const int64_t input = problem.batch * problem.graph->input().elements() * 4;
  EXPECT_GT(result->best.prediction.memory_bytes, input);
}

}  // namespace
}  // namespace cadre
