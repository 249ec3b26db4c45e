// Compares predicted memory with the memory of the tapes of all ranks (plan/memory.h).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "model/run_file.h"
#include "plan/memory.h"
#include "plan/search/plan_problem.h"
#include "plan/search/search.h"
#include "tests/model/testing.h"

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

  void set_precision(v1::RunSpec::Precision precision) { spec_.set_precision(precision); }

  PlanProblem Problem(int ranks, int micro_batches, Strategy strategy) {
    spec_.set_batch_per_group(32);
    spec_.set_micro_batches(micro_batches);
    const HardwareModel hardware = UniformHardware({.alpha = 2e-6, .beta = 1 / 6e9}, 1e12);
    PlanProblem problem = *ProblemOf(spec_, graph_, index_, ranks, hardware);
    problem.strategy = strategy;
    return problem;
  }

  // Memory of the tape of the rank that needs the most.
  int64_t Planned(const Plan& plan) const {
    int64_t max_bytes = 0;
    for (int rank = 0; rank < plan.mesh.ranks(); ++rank) {
      const v1::MemoryUse use = PlannedMemory(spec_, graph_, index_, plan, rank, v1::Cluster::CPU);
      const int64_t bytes =
          use.weights() + use.gradients() + use.optimizer() + use.activations() + use.buffers();
      max_bytes = std::max(max_bytes, bytes);
    }
    return max_bytes;
  }

 private:
  v1::RunSpec spec_;
  const Graph graph_;
  const ParameterIndex index_;
};

void ExpectUpperBounds(const std::string& name,
                       v1::RunSpec::Precision precision = v1::RunSpec::FP32) {
  Model model(name);
  model.set_precision(precision);
  for (const int ranks : {1, 2, 4}) {
    for (const int micro_batches : {1, kMicroBatches}) {
      for (const Strategy strategy : AllStrategies()) {
        const PlanProblem problem = model.Problem(ranks, micro_batches, strategy);
        const auto result = Search(problem, {.max_predicted = 4, .max_improvements = 0});
        ASSERT_TRUE(result.ok()) << result.status();
        const int64_t predicted = result->best.prediction.memory_bytes;
        const int64_t planned = model.Planned(result->best.plan);
        SCOPED_TRACE(name + " on " + std::to_string(ranks) + ", " +
                     std::string(StrategyName(strategy)));
        EXPECT_GE(predicted, planned);
        // The bound counts activations as fp32.
        const double max_ratio = precision == v1::RunSpec::BF16 ? 2 * 3.2 : 3.2;
        EXPECT_LE(predicted, max_ratio * planned);
      }
    }
  }
}

TEST(MemoryTest, BoundsLeNet) { ExpectUpperBounds("lenet"); }
TEST(MemoryTest, BoundsAlexNet) { ExpectUpperBounds("alexnet"); }
TEST(MemoryTest, BoundsResNet) { ExpectUpperBounds("resnet18"); }
TEST(MemoryTest, BoundsBf16Copies) { ExpectUpperBounds("alexnet", v1::RunSpec::BF16); }

// A convolution that is split by outputs gathers its whole input.
TEST(MemoryTest, GatheredInputsCount) {
  Model model("alexnet");
  PlanProblem problem = model.Problem(32, 1, Strategy::kAuto);
  problem.batch = 2048;
  problem.pins.mesh = {{kDataAxis, 1}, {kModelAxis, 32}};
  problem.pins.layers["conv1"] = "out";
  const auto result = Search(problem, {.max_predicted = 4, .max_improvements = 0});
  ASSERT_TRUE(result.ok()) << result.status();
  const int64_t input = problem.batch * problem.graph->input().elements() * 4;
  EXPECT_GT(result->best.prediction.memory_bytes, input);
}

}  // namespace
}  // namespace cadre
