// If every sum is exact in fp32, every plan gives the same bits, so no tolerance can hide an error.
//
// Inputs and weights are small integers, and the biases of the last layer are far apart, so that
// forward is exact and the softmax is exactly 0 or 1. The gradient of the loss is then an integer
// divided by a power of two, and so are all gradients and the weights after a step of SGD.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>

#include "base/random.h"
#include "tests/base/expect.h"
#include "tests/equivalence/comparison.h"
#include "tests/equivalence/plan_space.h"

namespace cadre {
namespace {

constexpr char kSpec[] = R"(
  model {
    input { channels: 2 height: 9 width: 7 }
    layer { name: "conv1" convolution { out_channels: 6 kernel: 3 padding: 1 } }
    layer { name: "relu1" relu {} }
    layer { name: "pool1" max_pool { kernel: 3 stride: 2 padding: 1 } }
    layer { name: "conv2" convolution { out_channels: 4 kernel_height: 3 kernel_width: 1 groups: 2 dilation: 1 } }
    layer { name: "side" input: "pool1" convolution { out_channels: 4 kernel_height: 3 kernel_width: 1 no_bias: true } }
    layer { name: "sum" input: "conv2" input: "side" add {} }
    layer { name: "both" input: "sum" input: "side" concat {} }
    layer { name: "fc1" fully_connected { out_features: 7 } }
    layer { name: "relu2" relu {} }
    layer { name: "fc2" fully_connected { out_features: 5 } }
    layer { name: "loss" softmax_cross_entropy {} }
  }
  optimizer { sgd {} }
  batch_per_group: 4
  seed: 1
)";

// A random integer in [-max, max].
int Small(std::mt19937_64& random, int max) {
  const int value = random() % (2 * max + 1);
  return value - max;
}

// Two thirds of the weights are zero, so that sums stay small.
std::vector<float> ExactWeights(const ParameterIndex& index) {
  std::mt19937_64 random(3);
  std::vector<float> weights(index.size());
  for (const Parameter& parameter : index.parameters()) {
    for (int64_t i = parameter.offset; i < parameter.end(); ++i) {
      const int value = random() % 2 == 0 ? 0 : Small(random, 1);
      weights[i] = parameter.name == "fc2/bias" ? (i - parameter.offset) << 16 : value;
    }
  }
  return weights;
}

BatchMaker ExactBatches(const Graph& graph, int64_t samples) {
  const BatchMaker labels = RandomBatches(graph, samples, 5);
  return [labels](int64_t step) {
    WholeBatch batch = labels(step);
    std::mt19937_64 random(step + 11);
    for (float& value : batch.inputs) value = Small(random, 2);
    return batch;
  };
}

class ExactData : public testing::Test {
 protected:
  ExactData() {
    graph_ = *Graph::FromModel(spec_.model());
    index_ = ParameterIndex::FromGraph(graph_);
    training_.steps = 1;
    // The gradient of a sample is an integer divided by the batch of 4.
    training_.rate = 1.0F;
    training_.batches = ExactBatches(graph_, spec_.batch_per_group());
    training_.initial = ExactWeights(index_);
  }

  GroupResult One(Ranks& ranks) {
    std::mt19937_64 unused;
    auto result = ranks.Train(spec_, PlanToProto(PlanSpace(graph_, Mesh()).Random(unused), index_),
                              training_);
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *std::move(result) : GroupResult();
  }

  const v1::RunSpec spec_ = Parse<v1::RunSpec>(kSpec);
  Graph graph_;
  ParameterIndex index_;
  Training training_;
};

// Sums in double and in fp32 have the same bits, so nothing was rounded, and the step changed
// weights.
TEST_F(ExactData, IsExact) {
  Ranks reference([] { return MakeReferenceBackend(); });
  Ranks cpu([] { return MakeCpuBackend(1); });
  const GroupResult one = One(reference);
  const GroupResult fast = One(cpu);
  EXPECT_EQ(one.weights, fast.weights);
  int changed = 0;
  for (size_t i = 0; i < one.weights.size(); ++i) {
    changed += one.weights[i] != training_.initial[i] ? 1 : 0;
    EXPECT_EQ(one.weights[i] * 4, std::round(one.weights[i] * 4)) << "a multiple of a quarter";
  }
  EXPECT_GT(changed, std::ssize(one.weights) / 4);
}

TEST_F(ExactData, GivesTheSameBitsUnderManyPlans) {
  Ranks ranks([] { return MakeCpuBackend(1); });
  const GroupResult one = One(ranks);
  std::mt19937_64 random(9);
  int plans = 0;
  for (int count = 1; count <= 8; ++count) {
    for (const Mesh& mesh : MeshesOf(count)) {
      for (const Plan& plan : PlanSpace(graph_, mesh).CoverPairs(random, 12)) {
        const auto many = ranks.Train(spec_, PlanToProto(plan, index_), training_);
        ASSERT_TRUE(many.ok()) << many.status() << "\n" << PrintPlan(plan, graph_, index_);
        ASSERT_EQ(many->weights, one.weights) << PrintPlan(plan, graph_, index_);
        ASSERT_EQ(many->digest, one.digest);
        ++plans;
      }
    }
  }
  EXPECT_GT(plans, 100);
}

}  // namespace
}  // namespace cadre
