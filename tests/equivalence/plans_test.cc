// Under the planner's plans a group computes the same as one worker over twenty steps, with every
// optimizer and with micro-batches; and the comparison detects the smallest error.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>

#include "plan/search/planner.h"
#include "plan/tape.h"
#include "tests/base/expect.h"
#include "tests/equivalence/test_plans.h"

namespace cadre {
namespace {

constexpr int kSteps = 20;

v1::RunSpec Spec(const std::string& model, uint32_t batch) {
  v1::RunSpec spec = ZooSpec(model);
  spec.set_batch_per_group(batch);
  return spec;
}

v1::Plan PlanOf(v1::RunSpec spec, int data, int space, int model) {
  spec.mutable_cluster()->set_model_ranks(model);
  spec.mutable_cluster()->set_space_ranks(space);
  auto plan = MakePlan(spec, data * space * model);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *plan : v1::Plan();
}

Ranks& TestRanks() {
  static auto* const ranks = new Ranks(KernelsFactory(OneThreadCpu));
  return *ranks;
}

GroupResult Train(const v1::RunSpec& spec, const v1::Plan& plan, int steps = kSteps) {
  const Graph graph = *Graph::FromModel(spec.model());
  auto result = TestRanks().Train(
      spec, plan,
      {.steps = steps, .batches = RandomBatches(graph, spec.batch_per_group(), spec.seed())});
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? *std::move(result) : GroupResult();
}

double Error(const v1::RunSpec& spec, const GroupResult& one, const GroupResult& many) {
  const ParameterIndex index = *ParameterIndex::FromModel(spec.model());
  return RelativeError(index, InitialWeights(index, spec.seed()), one.weights, many.weights);
}

using Case = std::tuple<std::string, int, int, int, int>;

std::string CaseName(const Case& tried) {
  const auto& [model, data, space, sharded, batch] = tried;
  return model + "Data" + std::to_string(data) + "Space" + std::to_string(space) + "Model" +
         std::to_string(sharded) + "Batch" + std::to_string(batch);
}

class PlannersPlans : public testing::TestWithParam<Case> {};

TEST_P(PlannersPlans, EqualOneRank) {
  const auto [model, data, space, sharded, batch] = GetParam();
  const v1::RunSpec spec = Spec(model, batch);
  const GroupResult one = Train(spec, PlanOf(spec, 1, 1, 1));
  const GroupResult many = Train(spec, PlanOf(spec, data, space, sharded));
  ASSERT_FALSE(HasFailure());
  EXPECT_LT(Error(spec, one, many), kTolerance);
  for (size_t s = 0; s < one.losses.size(); ++s) {
    EXPECT_NEAR(one.losses[s], many.losses[s], 1e-3) << "step " << s;
  }
  EXPECT_EQ(one.evaluation.samples, many.evaluation.samples);
  EXPECT_EQ(one.evaluation.correct, many.evaluation.correct);
}

INSTANTIATE_TEST_SUITE_P(Meshes, PlannersPlans,
                         testing::Values(Case("lenet", 2, 1, 1, 12), Case("lenet", 1, 1, 2, 12),
                                         Case("lenet", 3, 1, 2, 12), Case("lenet", 2, 1, 3, 12),
                                         Case("lenet", 1, 1, 6, 12), Case("lenet", 2, 2, 2, 12),
                                         // Batches that do not divide, and more ranks than samples.
                                         Case("lenet", 2, 1, 2, 5), Case("lenet", 1, 4, 2, 1),
                                         Case("lenet", 6, 1, 1, 5), Case("lenet", 1, 6, 1, 2),
                                         Case("alexnet", 2, 1, 2, 4), Case("alexnet", 1, 2, 2, 3),
                                         Case("vgg11", 1, 2, 2, 3), Case("mlp", 2, 1, 2, 7),
                                         Case("mlp", 1, 1, 3, 7), Case("gpt", 2, 1, 2, 5),
                                         Case("gpt", 1, 1, 3, 2), Case("gnmt", 2, 1, 2, 5),
                                         Case("biglstm", 1, 1, 3, 2), Case("biglstm", 2, 1, 2, 5)),
                         [](const testing::TestParamInfo<Case>& info) {
                           return CaseName(info.param);
                         });

// Images that are large enough for the halo to be exchanged while the interior is computed.
TEST(Halo, OverlapsWithInterior) {
  const auto spec = Parse<v1::RunSpec>(R"(
        model {
          input { channels: 3 height: 31 width: 20 }
          layer { name: "conv1" convolution { out_channels: 16 kernel: 3 padding: 1 } }
          layer { name: "conv2" convolution { out_channels: 64 kernel: 5 stride: 2 padding: 1 } }
          layer { name: "conv3" convolution { out_channels: 24 kernel_height: 3 kernel_width: 1 dilation: 2 } }
          layer { name: "pool" global_average_pool {} }
          layer { name: "fc" fully_connected { out_features: 4 } }
          layer { name: "loss" softmax_cross_entropy {} }
        }
        optimizer { sgd {} }
        batch_per_group: 8
        seed: 1
      )");
  const Graph graph = *Graph::FromModel(spec.model());
  const ParameterIndex index = ParameterIndex::FromGraph(graph);
  const GroupResult one = Train(spec, PlanOf(spec, 1, 1, 1));
  for (const int space : {2, 3}) {
    const v1::Plan proto = PlanOf(spec, 1, space, 1);
    const Plan plan = *PlanFromProto(proto, graph, index);
    const Tape tape = MakeTape(graph, plan, /*rank=*/1, 8, /*training=*/true);
    const auto together = [&](TapeOpKind kind) {
      return std::count_if(tape.ops.begin(), tape.ops.end(),
                           [&](const TapeOp& op) { return op.with_next && op.kind == kind; });
    };
    EXPECT_GE(together(TapeOpKind::kMove), 1) << "halos overlap with the interior";
    EXPECT_GE(together(TapeOpKind::kBackward), 2)
        << "halos of gradients overlap with gradients of weights";
    const GroupResult many = Train(spec, proto);
    ASSERT_FALSE(HasFailure());
    EXPECT_LT(Error(spec, one, many), kTolerance) << space;
  }
}

// Ranks whose scores are all of a row compute them in chunks, and others do not.
TEST(ManyScores, EqualOneRankInChunks) {
  const auto spec = Parse<v1::RunSpec>(R"(
        model {
          tokens { length: 256 }
          layer { name: "embed" embedding { vocabulary: 60000 features: 3 } }
          layer { name: "norm" layer_norm {} }
          layer { name: "fc" fully_connected { out_features: 60000 } }
          layer { name: "loss" softmax_cross_entropy {} }
        }
        optimizer { sgd {} }
        batch_per_group: 2
        seed: 1
      )");
  const Graph graph = *Graph::FromModel(spec.model());
  const ParameterIndex index = ParameterIndex::FromGraph(graph);
  const GroupResult one = Train(spec, PlanOf(spec, 1, 1, 1), 3);
  for (const bool sharded : {false, true}) {
    const v1::Plan proto = sharded ? PlanOf(spec, 1, 1, 2) : PlanOf(spec, 2, 1, 1);
    const Plan plan = *PlanFromProto(proto, graph, index);
    const Tape tape = MakeTape(graph, plan, /*rank=*/1, 2, /*training=*/true);
    const bool in_chunks = std::any_of(tape.ops.begin(), tape.ops.end(),
                                       [](const TapeOp& op) { return op.scorer != TapeOp::kNone; });
    EXPECT_EQ(in_chunks, !sharded);
    const GroupResult many = Train(spec, proto, 3);
    ASSERT_FALSE(HasFailure());
    EXPECT_LT(Error(spec, one, many), kTolerance) << sharded;
  }
}

class Optimizers : public testing::TestWithParam<std::string> {};

// Clipping and LARS need norms of a model of which every rank holds a part.
TEST_P(Optimizers, EqualOneRankOnShards) {
  v1::RunSpec spec = Spec("lenet", 6);
  v1::Optimizer& optimizer = *spec.mutable_optimizer();
  optimizer.Clear();
  if (GetParam() == "nesterov") {
    optimizer.mutable_sgd()->set_momentum(0.9F);
    optimizer.mutable_sgd()->set_nesterov(true);
    optimizer.set_clip_norm(0.1F);
  } else if (GetParam() == "adamw") {
    optimizer.mutable_adamw()->set_weight_decay(0.1F);
    // With a small epsilon, gradients that consist of rounding would move weights like any others.
    optimizer.mutable_adamw()->set_epsilon(1e-3F);
  } else {
    optimizer.mutable_lars()->set_momentum(0.9F);
    optimizer.mutable_lars()->set_weight_decay(0.01F);
    optimizer.mutable_lars()->set_trust(0.1F);
  }
  const GroupResult one = Train(spec, PlanOf(spec, 1, 1, 1));
  const GroupResult many = Train(spec, PlanOf(spec, 2, 1, 3));
  ASSERT_FALSE(HasFailure());
  EXPECT_LT(Error(spec, one, many), kTolerance);
}

INSTANTIATE_TEST_SUITE_P(Kinds, Optimizers, testing::Values("nesterov", "adamw", "lars"),
                         [](const auto& info) { return info.param; });

// With statistics per rank, each of two ranks is like a worker on half of the batch: after a step
// of SGD, the weights and running statistics are the means over two such workers.
TEST(BatchNormPerRank, UsesStatisticsOfEachRank) {
  v1::RunSpec spec = Spec("resnet18", 8);
  spec.mutable_optimizer()->mutable_sgd()->Clear();
  for (v1::Layer& layer : *spec.mutable_model()->mutable_layer()) {
    if (layer.has_batch_norm()) layer.mutable_batch_norm()->set_per_rank(true);
  }
  const Graph graph = *Graph::FromModel(spec.model());
  const BatchMaker whole = RandomBatches(graph, 8, spec.seed());
  const auto half = [&](int part) {
    v1::RunSpec of_half = spec;
    of_half.set_batch_per_group(4);
    auto result = TestRanks().Train(of_half, PlanOf(of_half, 1, 1, 1),
                                    {.steps = 1, .batches = [&](int64_t step) {
                                       WholeBatch batch = whole(step);
                                       const int64_t inputs = std::ssize(batch.inputs) / 2;
                                       const auto first_input =
                                           batch.inputs.begin() + part * inputs;
                                       const auto first_label = batch.labels.begin() + part * 4;
                                       batch.samples = 4;
                                       batch.inputs = {first_input, first_input + inputs};
                                       batch.labels = {first_label, first_label + 4};
                                       return batch;
                                     }});
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *std::move(result) : GroupResult();
  };
  GroupResult mean = half(0);
  const GroupResult other = half(1);
  const GroupResult both = Train(spec, PlanOf(spec, 2, 1, 1), 1);
  ASSERT_FALSE(HasFailure());
  for (size_t i = 0; i < mean.weights.size(); ++i) {
    mean.weights[i] = (mean.weights[i] + other.weights[i]) / 2;
  }
  EXPECT_LT(Error(spec, mean, both), kTolerance);
  EXPECT_GT(Error(spec, both, Train(Spec("resnet18", 8), PlanOf(spec, 2, 1, 1), 1)),
            10 * kTolerance)
      << "the statistics of the group give another result";
}

// Without batch norm, micro-batches change only the order of sums.
TEST(MicroBatches, EqualOneBatch) {
  v1::RunSpec spec = Spec("lenet", 7);
  const GroupResult whole = Train(spec, PlanOf(spec, 1, 1, 1));
  spec.set_micro_batches(3);
  const GroupResult cut = Train(spec, PlanOf(spec, 1, 1, 1));
  const GroupResult both = Train(spec, PlanOf(spec, 2, 1, 2));
  ASSERT_FALSE(HasFailure());
  EXPECT_LT(Error(spec, whole, cut), kTolerance);
  EXPECT_LT(Error(spec, whole, both), kTolerance);
  EXPECT_LT(cut.memory[0].activations(), whole.memory[0].activations());
  EXPECT_EQ(cut.memory[0].gradients(), 2 * whole.memory[0].gradients());
}

// Every division of the ranks, with and without micro-batches, whose shares batch norm needs.
TEST(Recomputation, GivesTheSameBits) {
  for (const char* model : {"lenet", "alexnet", "resnet18", "gpt", "gnmt", "biglstm"}) {
    v1::RunSpec spec = Spec(model, 5);
    const Graph graph = *Graph::FromModel(spec.model());
    for (const auto& [data, space, sharded] : {std::tuple(1, 1, 1), {2, 1, 3}, {1, 2, 2}}) {
      if (space > 1 && graph.takes_tokens()) continue;
      for (const int micro_batches : {1, 2}) {
        SCOPED_TRACE(testing::Message() << model << data << space << sharded << micro_batches);
        spec.set_micro_batches(micro_batches);
        spec.mutable_cluster()->set_recompute(v1::Recomputation::OFF);
        const GroupResult kept = Train(spec, PlanOf(spec, data, space, sharded), 5);
        spec.mutable_cluster()->set_recompute(v1::Recomputation::ALL);
        const v1::Plan plan = PlanOf(spec, data, space, sharded);
        EXPECT_GT(plan.recomputed_size(), 0);
        const GroupResult again = Train(spec, plan, 5);
        ASSERT_FALSE(HasFailure());
        EXPECT_EQ(again.digest, kept.digest);
        EXPECT_EQ(again.weights, kept.weights);
        EXPECT_EQ(again.losses, kept.losses);
        for (size_t rank = 0; rank < again.memory.size(); ++rank) {
          EXPECT_EQ(again.memory[rank].activations(), again.planned_memory[rank].activations());
          EXPECT_LE(again.memory[rank].activations(), kept.memory[rank].activations());
        }
      }
    }
  }
}

TEST(SamePlanTwice, GivesTheSameBits) {
  for (const char* model : {"lenet", "resnet18", "gpt", "gnmt", "biglstm"}) {
    const v1::RunSpec spec = Spec(model, 5);
    const GroupResult first = Train(spec, PlanOf(spec, 2, 1, 3), 5);
    const GroupResult second = Train(spec, PlanOf(spec, 2, 1, 3), 5);
    ASSERT_FALSE(HasFailure());
    EXPECT_EQ(first.digest, second.digest) << model;
    EXPECT_EQ(first.weights, second.weights) << model;
  }
}

// A missing sample is the smallest error that a plan could make.
TEST(Tolerance, IsFarBelowTheSmallestError) {
  for (const char* model : {"lenet", "resnet18", "gpt"}) {
    v1::RunSpec spec = Spec(model, 12);
    const Graph graph = *Graph::FromModel(spec.model());
    const BatchMaker twelve = RandomBatches(graph, 12, spec.seed());
    const GroupResult whole = Train(spec, PlanOf(spec, 1, 1, 1), 5);
    spec.set_batch_per_group(11);
    const auto less = TestRanks().Train(spec, PlanOf(spec, 1, 1, 1),
                                        {.steps = 5, .batches = [&](int64_t step) {
                                           WholeBatch batch = twelve(step);
                                           batch.samples = 11;
                                           batch.inputs.resize(batch.inputs.size() / 12 * 11);
                                           batch.labels.resize(batch.labels.size() / 12 * 11);
                                           return batch;
                                         }});
    ASSERT_TRUE(less.ok()) << less.status();
    EXPECT_GT(Error(spec, whole, *less), 10 * kTolerance) << model;
  }
}

}  // namespace
}  // namespace cadre
