// Predicted memory against what the tapes of all ranks say (spec/memory.h).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "coordinator/plan/plan_problem.h"
#include "coordinator/plan/search.h"
#include "spec/memory.h"
#include "spec/text.h"
#include "tests/spec/testing.h"

namespace cadre {
namespace {

constexpr int kMicroBatches = 2;

class Model {
 public:
  explicit Model(const std::string& name)
      : spec_(ReadRunSpec(testing::ZooFolder() + "/" + name + ".textproto")->spec),
        graph_(*Graph::FromModel(spec_.model())),
        index_(ParameterIndex::FromGraph(graph_)) {
    spec_.mutable_optimizer()->mutable_sgd()->set_momentum(0.9F);
  }

  void set_precision(v1::Precision precision) { spec_.set_precision(precision); }

  PlanProblem Problem(int ranks, int micro_batches, Strategy strategy) {
    spec_.set_batch_per_group(32);
    spec_.set_micro_batches(static_cast<uint32_t>(micro_batches));
    const GroupMachine machine = UniformMachine({.alpha = 2e-6, .beta = 1 / 6e9}, 1e12);
    PlanProblem problem = *ProblemOf(spec_, graph_, index_, ranks, machine);
    problem.strategy = strategy;
    return problem;
  }

  // Of the rank that needs most.
  int64_t Planned(const Plan& plan) const {
    int64_t most = 0;
    for (int rank = 0; rank < plan.mesh.ranks(); ++rank) {
      const v1::MemoryUse use = PlannedMemory(spec_, graph_, index_, plan, rank, v1::CPU);
      most = std::max(most, static_cast<int64_t>(use.weights() + use.gradients() + use.optimizer() +
                                                 use.activations() + use.buffers()));
    }
    return most;
  }

 private:
  v1::RunSpec spec_;
  const Graph graph_;
  const ParameterIndex index_;
};

void ExpectUpperBounds(const std::string& name, v1::Precision precision = v1::FP32) {
  Model model(name);
  model.set_precision(precision);
  for (const int ranks : {1, 2, 4}) {
    for (const int micro_batches : {1, kMicroBatches}) {
      for (const Strategy strategy : AllStrategies()) {
        const PlanProblem problem = model.Problem(ranks, micro_batches, strategy);
        const auto result = Search(problem, {.most_predicted = 4, .most_improvements = 0});
        ASSERT_TRUE(result.ok()) << result.status();
        const int64_t predicted = result->best.prediction.memory_bytes;
        const int64_t planned = model.Planned(result->best.plan);
        SCOPED_TRACE(name + " on " + std::to_string(ranks) + ", " +
                     std::string(StrategyName(strategy)));
        EXPECT_GE(predicted, planned);
        // Activations count as fp32 here.
        const double most = precision == v1::BF16 ? 2 * 3.2 : 3.2;
        EXPECT_LE(predicted, most * static_cast<double>(planned));
      }
    }
  }
}

TEST(MemoryTest, LeNetNeedsNoMoreThanPredicted) { ExpectUpperBounds("lenet"); }
TEST(MemoryTest, AlexNetNeedsNoMoreThanPredicted) { ExpectUpperBounds("alexnet"); }
TEST(MemoryTest, ResNetNeedsNoMoreThanPredicted) { ExpectUpperBounds("resnet18"); }
TEST(MemoryTest, CopiesOfWeightsInBf16Count) { ExpectUpperBounds("alexnet", v1::BF16); }

// Whoever cuts a convolution's outputs gathers its input, however little it keeps itself.
TEST(MemoryTest, GatheredInputsCount) {
  Model model("alexnet");
  PlanProblem problem = model.Problem(32, 1, Strategy::kAuto);
  problem.batch = 2048;
  problem.pins.mesh = {{kDataAxis, 1}, {kModelAxis, 32}};
  problem.pins.layers["conv1"] = "out";
  const auto result = Search(problem, {.most_predicted = 4, .most_improvements = 0});
  ASSERT_TRUE(result.ok()) << result.status();
  const int64_t input = problem.batch * problem.graph->input().elements() * 4;
  EXPECT_GT(result->best.prediction.memory_bytes, input);
}

}  // namespace
}  // namespace cadre
