#include "plan/search/search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "plan/norm_statistics.h"
#include "plan/plan.h"
#include "plan/plan_collectives.h"
#include "plan/search/layer_options.h"
#include "plan/search/placed_plans.h"
#include "plan/search/planner.h"
#include "plan/search/prediction.h"
#include "tests/base/expect.h"
#include "tests/plan/search/problems.h"

namespace cadre {
namespace {

using testing::BranchesProblem;
using ::testing::HasSubstr;
using testing::LayerOf;
using ::testing::Not;
using testing::OwnedProblem;
using testing::PlanCost;
using ::testing::SizeIs;
using testing::ZooProblem;

const std::vector<std::string>& Zoo() {
  static const auto& zoo =
      *new std::vector<std::string>({"alexnet", "biglstm", "gnmt", "gpt", "inception-v3", "lenet",
                                     "mlp", "resnet18", "resnet50", "vgg11", "vgg16"});
  return zoo;
}

// AlexNet on 512 ranks without compute times, as in the papers.
OwnedProblem AlexNetOf512() {
  OwnedProblem owned = ZooProblem("alexnet", 512, 2048);
  owned.problem.hardware.flops = 0;
  return owned;
}

// --- Results ---

TEST(SearchTest, BeatsPapersOnAlexNet) {
  const OwnedProblem owned = AlexNetOf512();
  const auto result = Search(owned.problem);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->exact);
  const Prediction& best = result->best.prediction;
  // Compared with the words of group-hybrid, and with the seconds of conv-batch-fc-grid on 32 x 16.
  EXPECT_LT(best.elements_per_rank, 0.64 * 15'353'079.875);
  EXPECT_LT(best.communication_seconds(), 0.61 * 11.231e-3);
}

// With communication only, and with overlap.
TEST(SearchTest, AutoBeatsFixedPolicies) {
  for (const double flops : {0.0, 1e12}) {
    OwnedProblem owned = AlexNetOf512();
    owned.problem.hardware.flops = flops;
    const auto seconds = [&](v1::Cluster::CollectivePolicy policy) {
      owned.problem.collectives = policy;
      const auto result = Search(owned.problem);
      EXPECT_TRUE(result.ok()) << result.status();
      return ObjectiveOf(owned.problem, result->best.prediction);
    };
    const double automatic = seconds(v1::Cluster::AUTO);
    for (const v1::Cluster::CollectivePolicy policy : AllPolicies()) {
      EXPECT_LE(automatic, seconds(policy) * (1 + 1e-9)) << PolicyName(policy);
    }
  }
}

// --- Statistics of a rank (plan/norm_statistics.h) ---

OwnedProblem NormProblem(int batch, int side, int ranks, int micro_batches = 1) {
  OwnedProblem owned = testing::ProblemOfSpec(
      testing::SpecOf(
          absl::StrCat("model { input { channels: 4 height: ", side, " width: ", side,
                       " } layer { name: 'conv' convolution { out_channels: 8 kernel: 1 } }"
                       " layer { name: 'norm' batch_norm { per_rank: true } }"
                       " layer { name: 'gap' global_average_pool {} }"
                       " layer { name: 'fc' fully_connected { out_features: 10 } }"
                       " layer { name: 'loss' softmax_cross_entropy {} } } batch_per_group: ",
                       batch, " micro_batches: ", micro_batches)),
      ranks);
  owned.problem.micro_batches = micro_batches;
  return owned;
}

TEST(SearchTest, NoPlanHasStatisticsOfOneValue) {
  // Four samples of one position: with four ranks along data, each rank has one.
  OwnedProblem owned = NormProblem(4, 1, 4);
  const auto result = Search(owned.problem);
  ASSERT_TRUE(result.ok()) << result.status();
  std::vector<Candidate> all = result->others;
  all.push_back(result->best);
  for (const Candidate& candidate : all) {
    EXPECT_EQ(CheckNormStatistics(owned.spec, *owned.graph, candidate.plan), absl::OkStatus())
        << candidate.plan.mesh.ToString();
  }
  // Micro-batches of one and two samples.
  owned = NormProblem(3, 1, 1, 2);
  EXPECT_THAT(
      Search(owned.problem),
      IsError(kInvalidArgument, "layer 'norm': batch_norm.per_rank gives a rank one value"));
}

TEST(SearchTest, StrategyAndPinsRespectStatistics) {
  OwnedProblem owned = NormProblem(4, 1, 4);
  owned.problem.strategy = Strategy::kBatch;
  owned.problem.pins.mesh = {{kDataAxis, 4}};
  EXPECT_THAT(Search(owned.problem), IsError(kInvalidArgument, "layer 'norm': batch_norm"));
  owned.problem.strategy = Strategy::kAuto;
  owned.problem.pins = {.layers = {{"norm", "samples"}}};
  EXPECT_THAT(Search(owned.problem),
              IsError(kInvalidArgument, "with more than one value per channel"));
}

TEST(SearchTest, NoProbedPlanHasStatisticsOfOneValue) {
  const OwnedProblem owned = NormProblem(4, 1, 4);
  const auto plans = PlansToProbe(owned.spec, 4);
  ASSERT_TRUE(plans.ok()) << plans.status();
  for (const v1::Plan& proto : *plans) {
    const auto plan = PlanFromProto(proto, *owned.graph, *owned.index);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(CheckNormStatistics(owned.spec, *owned.graph, *plan), absl::OkStatus())
        << plan->mesh.ToString();
  }
}

TEST(SearchTest, PinsAreNeverFaster) {
  OwnedProblem owned = ZooProblem("alexnet", 16, 256);
  owned.problem.hardware.link.alpha = 20e-6;
  for (const char* layer : {"conv1", "conv3", "fc6"}) {
    for (const char* index : {"samples", "out", "in"}) {
      owned.problem.pins.layers = {{layer, index}};
      const auto result = Search(owned.problem);
      if (absl::IsInvalidArgument(result.status())) continue;  // conv1 has fewer inputs
      ASSERT_TRUE(result.ok()) << result.status();
      ASSERT_TRUE(result->unpinned.has_value());
      EXPECT_LE(result->unpinned->prediction.times.step(), result->best.prediction.times.step())
          << layer << " " << index;
    }
  }
}

// On a slow link, gradients and the activations of split layers take longer than the bubble.
TEST(SearchTest, FindsPipelines) {
  const testing::SmallModel model(16, {1024, 1024, 1024, 1024}, 256);
  PlanProblem problem{.graph = &model.graph, .index = &model.index, .ranks = 4};
  problem.batch = 256;
  problem.micro_batches = 8;
  problem.hardware = UniformHardware({.alpha = 50e-6, .beta = 1e-6}, 1e10);
  const auto found = Search(problem);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_GT(found->best.plan.mesh.Size(kStageAxis), 1);
  EXPECT_TRUE(CheckPlan(found->best.plan, model.graph, model.index).ok());
  EXPECT_LT(found->best.prediction.times.step(), found->others.front().prediction.times.step());
  EXPECT_THAT(found->runners_up, SizeIs(model.graph.size()));

  const auto stages_after = [&](const std::function<void(PlanProblem&)>& change) {
    PlanProblem changed = problem;
    change(changed);
    return Search(changed)->best.plan.mesh.Size(kStageAxis);
  };
  EXPECT_EQ(stages_after([](PlanProblem& p) { p.micro_batches = 1; }), 1)
      << "stages would wait for one another";
  EXPECT_EQ(stages_after([](PlanProblem& p) { p.hardware.link = {}; }), 1) << "a free link";
  EXPECT_EQ(stages_after([](PlanProblem& p) { p.pipeline = v1::Cluster::NO_PIPELINE; }), 1);
  EXPECT_EQ(stages_after([](PlanProblem& p) { p.device = v1::Cluster::CUDA; }), 1);
  EXPECT_EQ(stages_after([](PlanProblem& p) { p.strategy = Strategy::kBatch; }), 1);
}

TEST(SearchTest, FindsPlacementsOfBranches) {
  const OwnedProblem owned = BranchesProblem(2);
  const auto found = Search(owned.problem);
  ASSERT_TRUE(found.ok()) << found.status();
  const Plan& plan = found->best.plan;
  ASSERT_TRUE(PlacesLayers(plan)) << plan.mesh.ToString();
  EXPECT_TRUE(CheckPlan(plan, *owned.graph, *owned.index).ok());
  EXPECT_EQ(plan.mesh.Size(kModelAxis), 2);
  EXPECT_NE(LayerOf(plan, "left0").at, LayerOf(plan, "right0").at);
  EXPECT_EQ(LayerOf(plan, "left0").at, LayerOf(plan, "left5").at);
  EXPECT_EQ(LayerOf(plan, "right0").at, LayerOf(plan, "right5").at);
  EXPECT_LT(found->best.prediction.times.step(), found->others.front().prediction.times.step());
  EXPECT_FALSE(found->exact);
  EXPECT_THAT(found->runners_up, SizeIs(owned.graph->size()));
  const auto again = Search(owned.problem);
  EXPECT_EQ(PlanToProto(again->best.plan, *owned.index).SerializeAsString(),
            PlanToProto(plan, *owned.index).SerializeAsString());
}

TEST(SearchTest, PlacementsDivideSamplesToo) {
  const OwnedProblem owned = BranchesProblem(4);
  const std::vector<Candidate> plans =
      PlacedPlans(owned.problem, std::numeric_limits<double>::infinity());
  ASSERT_THAT(plans, Not(SizeIs(0)));
  const Plan& plan = plans.front().plan;
  EXPECT_TRUE(CheckPlan(plan, *owned.graph, *owned.index).ok());
  EXPECT_EQ(plan.mesh.Size(kDataAxis), 2);
  EXPECT_EQ(plan.mesh.Size(kModelAxis), 2);
  EXPECT_NE(LayerOf(plan, "left0").at, LayerOf(plan, "right0").at);
  EXPECT_EQ(LayerOf(plan, "left0").axes("samples"), std::vector<std::string>{kDataAxis});
}

TEST(SearchTest, PlacesLayersOnlyWhereThatIsPossibleAndFaster) {
  const auto places = [](int ranks, const std::function<void(PlanProblem&)>& change) {
    OwnedProblem owned = BranchesProblem(ranks);
    change(owned.problem);
    const auto found = Search(owned.problem);
    EXPECT_TRUE(found.ok()) << found.status();
    return PlacesLayers(found->best.plan);
  };
  EXPECT_TRUE(places(2, [](PlanProblem&) {}));
  EXPECT_FALSE(places(2, [](PlanProblem& p) { p.hardware.link = {}; })) << "a free link";
  EXPECT_FALSE(places(2, [](PlanProblem& p) { p.hardware.link.beta = 1e-5; })) << "a slow link";
  EXPECT_FALSE(places(2, [](PlanProblem& p) { p.device = v1::Cluster::CUDA; }));
  EXPECT_FALSE(places(2, [](PlanProblem& p) { p.strategy = Strategy::kBatch; }));
  EXPECT_FALSE(places(2, [](PlanProblem& p) { p.pins.mesh = {{kDataAxis, 2}}; }));
  EXPECT_FALSE(places(2, [](PlanProblem& p) { p.pins.layers = {{"left0", "samples"}}; }));
  EXPECT_FALSE(places(16, [](PlanProblem&) {})) << "too many ranks to simulate";
}

// A chain has nothing to compute concurrently, so no rank would be given a part of it.
TEST(SearchTest, PlacesNoChains) {
  const testing::SmallModel model(32, {1024, 1024, 1024, 1024}, 256);
  PlanProblem problem{.graph = &model.graph, .index = &model.index, .ranks = 2};
  problem.batch = 256;
  for (const double beta : {1e-8, 1e-7, 1e-5}) {
    problem.hardware = UniformHardware({.alpha = 50e-6, .beta = beta}, 1e10);
    EXPECT_THAT(PlacedPlans(problem, std::numeric_limits<double>::infinity()), SizeIs(0));
  }
}

TEST(SearchTest, PlacementsFitIntoMemory) {
  OwnedProblem owned = BranchesProblem(2);
  constexpr double kAny = std::numeric_limits<double>::infinity();
  std::vector<Candidate> plans = PlacedPlans(owned.problem, kAny);
  ASSERT_THAT(plans, SizeIs(1));
  const int64_t needed = plans.front().prediction.memory_bytes;
  owned.problem.hardware.memory_bytes = needed;
  plans = PlacedPlans(owned.problem, kAny);
  ASSERT_THAT(plans, SizeIs(1));
  EXPECT_LE(plans.front().prediction.memory_bytes, needed);
  owned.problem.hardware.memory_bytes = needed / 2;
  EXPECT_THAT(PlacedPlans(owned.problem, kAny), SizeIs(0));
}

TEST(SearchTest, SlowPlacementsAreNotComputed) {
  const OwnedProblem owned = BranchesProblem(2);
  const double step = PlacedPlans(owned.problem, 1e9).front().prediction.times.step();
  EXPECT_THAT(PlacedPlans(owned.problem, step), SizeIs(1)) << "the bound is below the step";
  EXPECT_THAT(PlacedPlans(owned.problem, step / 4), SizeIs(0));
}

// A micro-batch takes an eighth of the step.
TEST(SearchTest, BoundsOfPlacementsCountAllMicroBatches) {
  OwnedProblem owned = BranchesProblem(2);
  owned.problem.micro_batches = 8;
  const double step = PlacedPlans(owned.problem, 1e9).front().prediction.times.step();
  EXPECT_THAT(PlacedPlans(owned.problem, step), SizeIs(1)) << "the bound is below the step";
  EXPECT_THAT(PlacedPlans(owned.problem, step / 4), SizeIs(0));
}

// Recurrent layers can only be divided by samples or placed. Gradients take long here, so all three
// pipelines and all three placements are faster than data parallelism.
TEST(SearchTest, KeepsTheFastestPlanThatPlacesNothing) {
  std::string text =
      "batch_per_group: 16 micro_batches: 2 model { tokens { length: 4 } "
      "layer { name: 'in' embedding { vocabulary: 8 features: 64 } } ";
  std::string inputs;
  for (int b = 0; b < 8; ++b) {
    absl::StrAppend(&text, "layer { name: 'b", b, "' input: 'in' lstm { hidden: 64 } } ");
    absl::StrAppend(&inputs, " input: 'b", b, "'");
  }
  absl::StrAppend(&text, "layer { name: 'join'", inputs,
                  " add {} } layer { name: 'loss' softmax_cross_entropy {} } }");
  OwnedProblem owned = testing::ProblemOfSpec(testing::SpecOf(text), 8);
  owned.problem.micro_batches = 2;
  owned.problem.hardware = UniformHardware({.alpha = 50e-6, .beta = 1e-7}, 3e8);
  const auto found = Search(owned.problem);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_TRUE(PlacesLayers(found->best.plan));
  ASSERT_THAT(found->others, SizeIs(5));
  for (const Candidate& other : found->others) {
    EXPECT_EQ(PlacesLayers(other.plan), &other != &found->others.back())
        << other.plan.mesh.ToString();
    EXPECT_LE(other.prediction.times.step(), found->others.back().prediction.times.step());
  }
  EXPECT_EQ(found->others.back().plan.mesh.Size(kDataAxis), 8);
}

TEST(SearchTest, NamesLayersThatTheStrategyCannotSplit) {
  OwnedProblem owned = ZooProblem("alexnet", 512, 2048);
  owned.problem.strategy = Strategy::kModel;
  const auto wide = Search(owned.problem);
  ASSERT_TRUE(wide.ok()) << wide.status();
  EXPECT_THAT(wide->strategy_exceptions, ::testing::Contains("conv1"));
  EXPECT_THAT(wide->strategy_exceptions, Not(::testing::Contains("fc6")));
  owned.problem.ranks = 8;
  EXPECT_THAT(Search(owned.problem)->strategy_exceptions, SizeIs(0));
}

TEST(SearchTest, AutoBeatsStrategies) {
  for (const char* name : {"alexnet", "lenet", "mlp", "resnet18", "gpt"}) {
    for (const double flops : {0.0, 1e12}) {
      OwnedProblem owned = ZooProblem(name, 16, 256);
      owned.problem.hardware.flops = flops;
      owned.problem.overlap = false;
      const SearchOptions sums{.max_predicted = 1, .max_improvements = 0};
      const auto free = Search(owned.problem, sums);
      ASSERT_TRUE(free.ok()) << free.status();
      const double min_cost = PlanCost(owned.problem, free->best.plan);
      for (const Strategy strategy : AllStrategies()) {
        owned.problem.strategy = strategy;
        const auto bound = Search(owned.problem, sums);
        ASSERT_TRUE(bound.ok()) << bound.status();
        EXPECT_LE(min_cost, PlanCost(owned.problem, bound->best.plan) * (1 + 1e-9))
            << name << " " << StrategyName(strategy);
      }
    }
  }
}

TEST(SearchTest, StrategiesGiveLegalPlans) {
  for (const std::string& name : Zoo()) {
    for (const int ranks : {1, 2, 6, 16}) {
      for (const Strategy strategy : AllStrategies()) {
        OwnedProblem owned = ZooProblem(name, ranks, 64);
        owned.problem.strategy = strategy;
        const auto result = Search(owned.problem, {.max_predicted = 4});
        ASSERT_TRUE(result.ok()) << name << " " << StrategyName(strategy) << result.status();
        EXPECT_EQ(result->best.plan.mesh.ranks(), ranks);
        EXPECT_TRUE(CheckPlan(result->best.plan, *owned.graph, *owned.index).ok())
            << name << " " << StrategyName(strategy);
        EXPECT_THAT(result->runners_up, SizeIs(owned.graph->size()));
      }
    }
  }
}

TEST(SearchTest, StrategiesSplitAsDefined) {
  OwnedProblem owned = ZooProblem("alexnet", 8, 64);
  const auto parts = [&](Strategy strategy, const std::string& layer, const std::string& index) {
    owned.problem.strategy = strategy;
    const Plan plan = Search(owned.problem)->best.plan;
    return plan.mesh.Size(LayerOf(plan, layer).axes(index));
  };
  EXPECT_EQ(parts(Strategy::kBatch, "fc6", "samples"), 8);
  EXPECT_EQ(parts(Strategy::kModel, "fc6", "out"), 8);
  EXPECT_EQ(parts(Strategy::kModel, "conv2", "out"), 8);
  EXPECT_EQ(parts(Strategy::kConvBatchFcGrid, "conv2", "samples"), 8);
  EXPECT_GT(parts(Strategy::kConvBatchFcGrid, "fc7", "out"), 1);
  EXPECT_EQ(parts(Strategy::kUniformGrid, "conv2", "out"),
            parts(Strategy::kUniformGrid, "fc6", "out"));
  EXPECT_EQ(parts(Strategy::kGroupHybrid, "conv5", "samples"), 8);
}

TEST(SearchTest, BestHasFastestPrediction) {
  OwnedProblem owned = ZooProblem("alexnet", 16, 256);
  const auto result = Search(owned.problem);
  ASSERT_TRUE(result.ok()) << result.status();
  const double step = result->best.prediction.times.step();
  ASSERT_FALSE(result->others.empty());
  for (const Candidate& other : result->others) {
    EXPECT_GE(other.prediction.times.step(), step);
    EXPECT_NE(other.plan.mesh, result->best.plan.mesh);
  }
  EXPECT_NEAR(Predict(owned.problem, result->best.plan).times.step(), step, 1e-12);
}

TEST(SearchTest, RunnerUpCosts) {
  OwnedProblem owned = AlexNetOf512();
  const auto result = Search(owned.problem);
  ASSERT_TRUE(result.ok()) << result.status();
  const double cost = PlanCost(owned.problem, result->best.plan);
  for (int l = 0; l < owned.graph->size(); ++l) {
    const LayerRunnerUp& runner_up = result->runners_up[l];
    ASSERT_TRUE(std::isfinite(runner_up.more_seconds));
    Plan other = result->best.plan;
    other.layers[l] = *LayOut((*owned.graph)[l], other.mesh, runner_up.splits);
    EXPECT_NEAR(PlanCost(owned.problem, other) - cost, runner_up.more_seconds, 1e-9 * cost)
        << (*owned.graph)[l].name;
  }
}

TEST(SearchTest, OneRank) {
  const OwnedProblem owned = ZooProblem("lenet", 1, 64);
  const auto result = Search(owned.problem);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->best.prediction.elements_per_rank, 0);
  for (const LayerLayouts& layer : result->best.plan.layers) EXPECT_TRUE(layer.splits.empty());
  EXPECT_TRUE(std::isinf(result->runners_up[0].more_seconds));
}

// --- Many ranks ---

void ExpectExact(int ranks, int64_t meshes) {
  const OwnedProblem owned = ZooProblem("resnet50", ranks, 4 * int64_t{ranks});
  const auto result = Search(owned.problem);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->exact);
  EXPECT_EQ(result->meshes, meshes);
  EXPECT_LE(result->states, 200'000 * meshes);
  EXPECT_EQ(result->best.plan.mesh.ranks(), ranks);
  EXPECT_TRUE(CheckPlan(result->best.plan, *owned.graph, *owned.index).ok());
}

TEST(SearchTest, TenThousandRanks) { ExpectExact(10'000, 225); }

// Only 277 of 441 meshes have no axis longer than the rows and outputs that it splits.
TEST(SearchTest, HundredThousandRanks) { ExpectExact(100'000, 277); }

TEST(SearchTest, ReportsInexactSearch) {
  const OwnedProblem owned = ZooProblem("resnet18", 12, 48);
  const auto exact = Search(owned.problem, {.max_predicted = 1});
  const auto cut = Search(owned.problem, {.max_states = 8, .max_predicted = 1});
  ASSERT_TRUE(exact.ok() && cut.ok());
  EXPECT_TRUE(exact->exact);
  EXPECT_FALSE(cut->exact);
  EXPECT_LT(cut->states, exact->states);
  EXPECT_TRUE(CheckPlan(cut->best.plan, *owned.graph, *owned.index).ok());
}

// --- Memory ---

TEST(SearchTest, PlansFitIntoMemory) {
  OwnedProblem owned = ZooProblem("alexnet", 16, 64);
  const auto roomy = Search(owned.problem);
  ASSERT_TRUE(roomy.ok());
  owned.problem.hardware.memory_bytes = roomy->best.prediction.memory_bytes * 3 / 5;
  const auto tight = Search(owned.problem);
  ASSERT_TRUE(tight.ok()) << tight.status();
  EXPECT_LE(tight->best.prediction.memory_bytes, owned.problem.hardware.memory_bytes);
  for (const Candidate& other : tight->others) {
    EXPECT_LE(other.prediction.memory_bytes, owned.problem.hardware.memory_bytes);
  }
}

int NumberBefore(const std::string& text, const std::string& what) {
  const size_t end = text.find(what);
  const size_t begin = text.rfind(' ', end - 1) + 1;
  return std::stoi(text.substr(begin, end - begin));
}

TEST(SearchTest, ReportsMissingMemory) {
  OwnedProblem owned = ZooProblem("alexnet", 4, 64);
  owned.problem.hardware.memory_bytes = 40'000'000;
  const absl::Status status = Search(owned.problem).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  const std::string text(status.message());
  EXPECT_THAT(text, HasSubstr("40000000 bytes (40.0 MB) of each of 4 ranks"));
  EXPECT_THAT(text, HasSubstr("for layer 'fc6'"));
  EXPECT_THAT(text, HasSubstr(" more; most of that, "));
  // That number of ranks suffices, and no smaller one does.
  const int ranks = NumberBefore(text, " ranks would suffice");
  for (int fewer = 5; fewer < ranks; ++fewer) {
    owned.problem.ranks = fewer;
    EXPECT_FALSE(Search(owned.problem, {.max_predicted = 1}).ok()) << fewer;
  }
  owned.problem.ranks = ranks;
  const auto fits = Search(owned.problem, {.max_predicted = 1});
  ASSERT_TRUE(fits.ok()) << fits.status();
  EXPECT_LE(fits->best.prediction.memory_bytes, owned.problem.hardware.memory_bytes);
}

TEST(SearchTest, ReportsThatNoRanksSuffice) {
  OwnedProblem owned = ZooProblem("lenet", 2, 64);
  owned.problem.hardware.memory_bytes = 16;
  const absl::Status status = Search(owned.problem).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no number of ranks up to 65536"));
}

// --- Pins ---

TEST(SearchTest, KeepsPinsAndReportsUnpinned) {
  OwnedProblem owned = AlexNetOf512();
  owned.problem.pins.mesh = {{"data", 256}, {"model", 2}};
  owned.problem.pins.layers = {{"fc6", "in"}, {"conv3", "out"}};
  const auto result = Search(owned.problem);
  ASSERT_TRUE(result.ok()) << result.status();
  const Plan& plan = result->best.plan;
  EXPECT_EQ(plan.mesh, Mesh({{"data", 256}, {"model", 2}}));
  EXPECT_EQ(LayerOf(plan, "fc6").axes("in"), std::vector<std::string>{"model"});
  EXPECT_EQ(LayerOf(plan, "fc6").axes("samples"), std::vector<std::string>{"data"});
  EXPECT_EQ(LayerOf(plan, "conv3").axes("out"), std::vector<std::string>{"model"});
  ASSERT_TRUE(result->unpinned.has_value());
  EXPECT_LT(result->unpinned->prediction.communication_seconds(),
            result->best.prediction.communication_seconds());
}

TEST(SearchTest, UnpinnedPlansMayPlaceLayers) {
  OwnedProblem owned = BranchesProblem(2);
  const auto free = Search(owned.problem);
  ASSERT_TRUE(free.ok()) << free.status();
  ASSERT_TRUE(PlacesLayers(free->best.plan));
  owned.problem.pins.mesh = {{kDataAxis, 2}};
  const auto pinned = Search(owned.problem);
  ASSERT_TRUE(pinned.ok()) << pinned.status();
  ASSERT_TRUE(pinned->unpinned.has_value());
  EXPECT_TRUE(PlacesLayers(pinned->unpinned->plan));
  EXPECT_EQ(pinned->unpinned->prediction.times.step(), free->best.prediction.times.step());
}

TEST(SearchTest, PinnedLayerHasAxis) {
  OwnedProblem owned = ZooProblem("resnet18", 4, 64);
  owned.problem.pins.layers = {{"fc", "out"}};
  const auto result = Search(owned.problem);
  ASSERT_TRUE(result.ok()) << result.status();
  const Plan& plan = result->best.plan;
  EXPECT_GT(plan.mesh.Size(LayerOf(plan, "fc").axes("out")), 1);
}

TEST(SearchTest, RejectsUnsatisfiablePins) {
  OwnedProblem owned = ZooProblem("lenet", 4, 64);
  owned.problem.pins.mesh = {{"model", 3}};
  const absl::Status status = Search(owned.problem).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("no mesh of 4 ranks matches the pinned mesh"));
}

TEST(SearchTest, OtherAxesStayFree) {
  OwnedProblem owned = ZooProblem("alexnet", 12, 48);
  owned.problem.pins.mesh = {{"model", 3}};
  const std::vector<Mesh> meshes = MeshesFor(owned.problem);
  EXPECT_THAT(meshes, SizeIs(3)) << "space 1, 2 and 4";
  for (const Mesh& mesh : meshes) {
    EXPECT_EQ(mesh.Size("model"), 3);
    EXPECT_EQ(mesh.ranks(), 12);
  }
}

TEST(SearchTest, OnlyImagesHaveSpace) {
  EXPECT_THAT(MeshesFor(ZooProblem("alexnet", 8, 8).problem), SizeIs(10));
  EXPECT_THAT(MeshesFor(ZooProblem("gpt", 8, 8).problem), SizeIs(4));
}

// --- Options ---

TEST(SearchTest, OptionsAreLegalAndFew) {
  for (const std::string& name : Zoo()) {
    const OwnedProblem owned = ZooProblem(name, 8, 64);
    for (const Mesh& mesh : MeshesFor(owned.problem)) {
      const CompactMesh compact(mesh);
      for (int l = 0; l < owned.graph->size(); ++l) {
        const LayerClass layer_class = ClassOf(owned.problem, l);
        const std::vector<LayerOption> options = OptionsOf(layer_class, compact);
        ASSERT_FALSE(options.empty()) << (*owned.graph)[l].name;
        EXPECT_LE(options.size(), 20U) << (*owned.graph)[l].name;
        for (const LayerOption& option : options) {
          const auto layouts =
              LayOut((*owned.graph)[l], mesh, SplitsOf(layer_class, compact, option));
          ASSERT_TRUE(layouts.ok()) << layouts.status();
          // Compact layouts equal those of the table of operations.
          EXPECT_EQ(compact.Compact(layouts->output), option.output);
          EXPECT_EQ(compact.Compact(layouts->inputs[0]), option.input);
          EXPECT_EQ(compact.Compact(layouts->input_gradients[0]).partial, option.gradient_partial);
        }
      }
    }
  }
}

// The sampled layer has the extents of the other one, but no index of outputs.
TEST(SearchTest, SampledLayersHaveOptionsOfTheirOwn) {
  const OwnedProblem owned = testing::ProblemOfSpec(testing::SpecOf(R"(
    batch_per_group: 4
    model {
      input { channels: 10 height: 1 width: 1 }
      layer { name: "flat" flatten {} }
      layer { name: "hidden" fully_connected { out_features: 10 } }
      layer { name: "head" fully_connected { out_features: 10 } }
      layer { name: "loss" softmax_cross_entropy { sampling { classes: 9 } } }
    })"),
                                                    4);
  PlanProblem problem = owned.problem;
  problem.pins.mesh = {{kModelAxis, 4}};
  for (const Strategy strategy : {Strategy::kAuto, Strategy::kModel}) {
    problem.strategy = strategy;
    const auto result = Search(problem);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_TRUE(LayerOf(result->best.plan, "head").axes("out").empty());
    if (strategy == Strategy::kAuto) continue;
    EXPECT_EQ(LayerOf(result->best.plan, "hidden").axes("out"),
              std::vector<std::string>{kModelAxis});
  }
}

}  // namespace
}  // namespace cadre
