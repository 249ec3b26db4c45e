// Compares predicted memory with the memory of the tapes of all ranks (plan/memory.h).
#include <gmock/gmock.h>
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
#include "plan/recomputation.h"
#include "plan/search/placed_plans.h"
#include "plan/search/plan_problem.h"
#include "plan/search/planner.h"
#include "plan/search/recomputing_search.h"
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

// --- Recomputation ---

class RecomputationMemoryTest : public ::testing::Test {
 protected:
  static constexpr int kLayers = 24;

  // A chain of layers with more activations than weights.
  static v1::RunSpec Chain() {
    std::string text =
        "optimizer { sgd {} } batch_per_group: 4096 model { "
        "input { channels: 1 height: 8 width: 8 } ";
    for (int l = 0; l < kLayers; ++l) {
      absl::StrAppend(&text, "layer { name: 'fc", l, "' fully_connected { out_features: 64 } } ",
                      "layer { name: 'tanh", l, "' tanh {} } ");
    }
    return testing::SpecOf(text + "layer { name: 'loss' softmax_cross_entropy {} } }");
  }

  absl::StatusOr<SearchResult> SearchWith(int64_t memory, v1::Recomputation::Choice choice,
                                          int ranks = 1) {
    owned_.spec.mutable_cluster()->set_recompute(choice);
    HardwareModel hardware = UniformHardware({.alpha = 2e-6, .beta = 1 / 6e9}, 1e12);
    hardware.memory_bytes = memory;
    return Search(*ProblemOf(owned_.spec, *owned_.graph, *owned_.index, ranks, hardware));
  }
  int64_t BytesWith(Plan plan, size_t blocks) const {
    plan.recomputed = blocks_;
    plan.recomputed.resize(blocks);
    return PlannedBytes(owned_, plan);
  }

  OwnedProblem owned_ = testing::ProblemOfSpec(Chain(), 1);
  const std::vector<Interval> blocks_ = RecomputationBlocks(*owned_.graph);
};

TEST_F(RecomputationMemoryTest, RecomputesAsFewBlocksAsFit) {
  ASSERT_GE(blocks_.size(), 3U);
  const auto roomy = SearchWith(0, v1::Recomputation::AUTO);
  ASSERT_TRUE(roomy.ok()) << roomy.status();
  EXPECT_TRUE(roomy->best.plan.recomputed.empty());
  const Plan& plan = roomy->best.plan;
  for (size_t n = 0; n <= blocks_.size(); ++n) {
    SCOPED_TRACE(n);
    const int64_t limit = BytesWith(plan, n);
    if (n > 0 && BytesWith(plan, n - 1) <= limit) continue;
    const auto found = SearchWith(limit, v1::Recomputation::AUTO);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(found->best.plan.recomputed.size(), n);
    EXPECT_EQ(PlannedBytes(owned_, found->best.plan), limit);
    EXPECT_EQ(found->best.prediction.memory_bytes, limit);
    const double seconds = found->best.prediction.times.step();
    EXPECT_GE(seconds, roomy->best.prediction.times.step());
    EXPECT_LE(seconds, 1.34 * roomy->best.prediction.times.step());
  }
}

TEST_F(RecomputationMemoryTest, RefusesWhatDoesNotFit) {
  const auto roomy = SearchWith(0, v1::Recomputation::OFF);
  ASSERT_TRUE(roomy.ok()) << roomy.status();
  const int64_t limit = BytesWith(roomy->best.plan, blocks_.size());
  const auto off = SearchWith(limit, v1::Recomputation::OFF);
  EXPECT_EQ(off.status().code(), absl::StatusCode::kResourceExhausted);
  const auto smaller = SearchWith(limit - 1, v1::Recomputation::AUTO);
  EXPECT_EQ(smaller.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(smaller.status().message()), ::testing::HasSubstr("no plan fits into"));
}

TEST_F(RecomputationMemoryTest, AllRecomputesWithoutNeed) {
  for (const int ranks : {1, 4}) {
    const auto all = SearchWith(0, v1::Recomputation::ALL, ranks);
    ASSERT_TRUE(all.ok()) << all.status();
    EXPECT_EQ(all->best.plan.recomputed, blocks_);
    for (const Candidate& other : all->others) EXPECT_EQ(other.plan.recomputed, blocks_);
  }
}

// On a slow link a pipeline is the fastest plan, with recomputation as well.
TEST_F(RecomputationMemoryTest, PipelinesRecompute) {
  owned_.spec.set_micro_batches(8);
  owned_.spec.mutable_cluster()->set_pipeline(v1::Cluster::ALL_FORWARD_FIRST);
  HardwareModel hardware = UniformHardware({.alpha = 1e-6, .beta = 1e-9}, 1e10);
  int64_t before = std::numeric_limits<int64_t>::max();
  for (const auto choice : {v1::Recomputation::OFF, v1::Recomputation::ALL}) {
    owned_.spec.mutable_cluster()->set_recompute(choice);
    const auto found =
        Search(*ProblemOf(owned_.spec, *owned_.graph, *owned_.index, /*ranks=*/2, hardware));
    ASSERT_TRUE(found.ok()) << found.status();
    std::vector<Candidate> all = found->others;
    all.push_back(found->best);
    const auto staged = std::find_if(all.begin(), all.end(), [](const Candidate& candidate) {
      return candidate.plan.mesh.Size(kStageAxis) == 2;
    });
    ASSERT_NE(staged, all.end());
    const int64_t planned = PlannedBytes(owned_, staged->plan);
    if (choice == v1::Recomputation::ALL) {
      EXPECT_EQ(staged->plan.recomputed, blocks_);
      hardware.memory_bytes = planned;
    }
    EXPECT_LT(planned, before);
    before = planned;
  }
  // Within that memory, AUTO finds a plan, too.
  owned_.spec.mutable_cluster()->set_recompute(v1::Recomputation::AUTO);
  const auto tight =
      Search(*ProblemOf(owned_.spec, *owned_.graph, *owned_.index, /*ranks=*/2, hardware));
  ASSERT_TRUE(tight.ok()) << tight.status();
  EXPECT_LE(PlannedBytes(owned_, tight->best.plan), hardware.memory_bytes);
}

// The batch of a problem may have been changed since it was made from a spec.
TEST_F(RecomputationMemoryTest, MemoryIsThatOfTheProblemsBatch) {
  PlanProblem problem = *ProblemOf(owned_.spec, *owned_.graph, *owned_.index, 1,
                                   UniformHardware({.alpha = 2e-6, .beta = 1 / 6e9}, 1e12));
  problem.batch *= 2;
  problem.hardware.memory_bytes = BytesWith(Search(problem)->best.plan, 0);
  const auto found = Search(problem);
  ASSERT_TRUE(found.ok()) << found.status();
  owned_.spec.set_batch_per_group(problem.batch);
  EXPECT_LE(PlannedBytes(owned_, found->best.plan), problem.hardware.memory_bytes);
  EXPECT_FALSE(found->best.plan.recomputed.empty());
}

// Ranks have different parts of six heads, and the plan must fit on those with the larger ones.
TEST_F(RecomputationMemoryTest, FitsOnRanksWithLargerParts) {
  for (const int ranks : {4, 6, 8}) {
    OwnedProblem owned = ZooProblem("gpt", ranks, 64);
    owned.spec.set_micro_batches(2);
    HardwareModel hardware = owned.problem.hardware;
    const auto roomy = Search(*ProblemOf(owned.spec, *owned.graph, *owned.index, ranks, hardware),
                              {.max_predicted = 4, .max_improvements = 0});
    ASSERT_TRUE(roomy.ok()) << roomy.status();
    hardware.memory_bytes = PlannedBytes(owned, roomy->best.plan) * 3 / 4;
    const auto tight = Search(*ProblemOf(owned.spec, *owned.graph, *owned.index, ranks, hardware),
                              {.max_predicted = 4, .max_improvements = 0});
    ASSERT_TRUE(tight.ok()) << tight.status();
    EXPECT_LE(PlannedBytes(owned, tight->best.plan), hardware.memory_bytes) << ranks;
    EXPECT_EQ(tight->best.plan.layers.size(), tight->runners_up.size());
  }
}

// The exact memory of a rank takes long with many ranks.
TEST_F(RecomputationMemoryTest, ManyRanksUseTheEstimate) {
  OwnedProblem owned = ZooProblem("gpt", 16'384, 1 << 20);
  HardwareModel hardware = owned.problem.hardware;
  const PlanProblem roomy = *ProblemOf(owned.spec, *owned.graph, *owned.index, 16'384, hardware);
  const auto without = Search(roomy, {.max_predicted = 1, .max_improvements = 0});
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_EQ(MemoryOf(roomy, without->best), without->best.prediction.memory_bytes);
  hardware.memory_bytes = without->best.prediction.memory_bytes - 1;
  const auto tight = Search(*ProblemOf(owned.spec, *owned.graph, *owned.index, 16'384, hardware),
                            {.max_predicted = 1, .max_improvements = 0});
  ASSERT_TRUE(tight.ok()) << tight.status();
  EXPECT_LE(tight->best.prediction.memory_bytes, hardware.memory_bytes);
}

// What the search adds up is near the exact memory if all layers are split in the same way.
TEST_F(RecomputationMemoryTest, SumIsNearTheExactMemory) {
  for (const int ranks : {1, 4}) {
    owned_.spec.mutable_cluster()->set_recompute(v1::Recomputation::ALL);
    const PlanProblem problem =
        *ProblemOf(owned_.spec, *owned_.graph, *owned_.index, ranks, HardwareModel());
    const Plan plan = *PlanFromProto(*MakePlan(owned_.spec, ranks), *owned_.graph, *owned_.index);
    ASSERT_EQ(plan.recomputed, blocks_);
    const int64_t sum = Predict(problem, plan).memory_bytes;
    const int64_t planned = PlannedBytes(owned_, plan);
    EXPECT_GE(sum, planned) << ranks;
    EXPECT_LE(sum, 2.5 * static_cast<double>(planned)) << ranks;
  }
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
