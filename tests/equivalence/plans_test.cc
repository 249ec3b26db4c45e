// Every plan computes what one worker computes on the same batch.
#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "coordinator/plan/planner.h"
#include "google/protobuf/text_format.h"
#include "tests/equivalence/ranks.h"

namespace cadre {
namespace {

constexpr int kSteps = 20;

// Features (7 outputs, 19 hidden) and, for 5 samples, the batch do not divide by the meshes.
v1::RunSpec Spec(uint32_t batch) {
  v1::RunSpec spec;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(
      R"pb(
        name: "equivalence"
        model {
          input { channels: 2 height: 9 width: 7 }
          layer {
            name: "conv1"
            convolution { out_channels: 5 kernel: 3 padding: 1 }
          }
          layer {
            name: "relu1"
            relu {}
          }
          layer {
            name: "pool1"
            max_pool { kernel: 2 }
          }
          layer {
            name: "conv2"
            convolution { out_channels: 4 kernel: 2 stride: 2 }
          }
          layer {
            name: "pool2"
            average_pool { kernel: 2 stride: 1 padding: 1 }
          }
          layer {
            name: "fc1"
            fully_connected { out_features: 19 }
          }
          layer {
            name: "relu2"
            relu {}
          }
          layer {
            name: "fc2"
            fully_connected { out_features: 11 }
          }
          layer {
            name: "relu3"
            relu {}
          }
          layer {
            name: "fc3"
            fully_connected { out_features: 7 }
          }
          layer {
            name: "loss"
            softmax_cross_entropy {}
          }
        }
        optimizer { sgd { momentum: 0.9 weight_decay: 0.001 } }
        seed: 17
      )pb",
      &spec));
  spec.set_batch_per_group(batch);
  return spec;
}

v1::Plan PlanOf(v1::RunSpec spec, int data, int model) {
  spec.mutable_cluster()->set_model_ranks(static_cast<uint32_t>(model));
  auto plan = MakePlan(spec, data * model);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *plan;
}

// Sums of fp32 gradients in another order differ by about eps * sqrt(terms) of their size each
// step; 20 steps of momentum 0.9 (gain up to 10) at rate 0.05 on weights of size about 1 keep that
// below 20 * 10 * 0.05 * 2^-24 * sqrt(12 * 30) * |g|, 1e-5 for |g| of 1. The smallest mistake that
// these tests are for, one sample counted twice or left out, moves weights by 1e-3 and more.
constexpr double kTolerance = 2e-5;

class EveryMesh : public testing::TestWithParam<std::tuple<int, int, int>> {};

TEST_P(EveryMesh, EqualsOneRank) {
  const auto [data, model, batch] = GetParam();
  const v1::RunSpec spec = Spec(static_cast<uint32_t>(batch));
  const auto kernels = [] { return MakeCpuKernels(1); };
  const GroupResult one = TrainGroup(spec, PlanOf(spec, 1, 1), kSteps, kernels);
  const GroupResult many = TrainGroup(spec, PlanOf(spec, data, model), kSteps, kernels);
  ASSERT_FALSE(HasFailure());
  EXPECT_LT(LargestDifference(one.weights, many.weights), kTolerance);
  for (int s = 0; s < kSteps; ++s) {
    const auto at = static_cast<size_t>(s);
    EXPECT_NEAR(one.losses[at], many.losses[at], 1e-4) << "step " << s;
  }
  EXPECT_EQ(many.evaluation.samples, batch) << "every sample is counted by one rank";
  EXPECT_EQ(one.evaluation.correct, many.evaluation.correct);
  EXPECT_NEAR(one.evaluation.loss, many.evaluation.loss, 1e-3);
}

INSTANTIATE_TEST_SUITE_P(Meshes, EveryMesh,
                         testing::Values(std::tuple(1, 1, 12), std::tuple(2, 1, 12),
                                         std::tuple(1, 2, 12), std::tuple(3, 1, 12),
                                         std::tuple(1, 3, 12), std::tuple(4, 1, 12),
                                         std::tuple(2, 2, 12), std::tuple(1, 4, 12),
                                         std::tuple(6, 1, 12), std::tuple(3, 2, 12),
                                         std::tuple(2, 3, 12), std::tuple(1, 6, 12),
                                         // Batches that do not divide, and more ranks than samples.
                                         std::tuple(2, 2, 5), std::tuple(3, 2, 7),
                                         std::tuple(1, 6, 5), std::tuple(6, 1, 5)),
                         [](const auto& info) {
                           return "data" + std::to_string(std::get<0>(info.param)) + "model" +
                                  std::to_string(std::get<1>(info.param)) + "batch" +
                                  std::to_string(std::get<2>(info.param));
                         });

// The plain loops see the same plans: a fault in both back ends alike would have to be the same.
TEST(ReferenceKernels, EqualOneRankToo) {
  const v1::RunSpec spec = Spec(6);
  const GroupResult one =
      TrainGroup(spec, PlanOf(spec, 1, 1), kSteps, [] { return MakeReferenceKernels(); });
  const GroupResult many =
      TrainGroup(spec, PlanOf(spec, 2, 3), kSteps, [] { return MakeReferenceKernels(); });
  const GroupResult fast =
      TrainGroup(spec, PlanOf(spec, 2, 3), kSteps, [] { return MakeCpuKernels(1); });
  ASSERT_FALSE(HasFailure());
  EXPECT_LT(LargestDifference(one.weights, many.weights), kTolerance);
  EXPECT_LT(LargestDifference(many.weights, fast.weights), kTolerance);
}

TEST(SamePlanTwice, GivesTheSameBits) {
  const v1::RunSpec spec = Spec(12);
  const auto kernels = [] { return MakeCpuKernels(1); };
  const GroupResult first = TrainGroup(spec, PlanOf(spec, 2, 3), kSteps, kernels);
  const GroupResult second = TrainGroup(spec, PlanOf(spec, 2, 3), kSteps, kernels);
  ASSERT_FALSE(HasFailure());
  EXPECT_EQ(first.digest, second.digest);
  EXPECT_EQ(first.weights, second.weights);
}

// The tolerance tells a real mistake: training on one sample less is far outside it.
TEST(Tolerance, IsFarBelowTheSmallestMistake) {
  const auto kernels = [] { return MakeCpuKernels(1); };
  const GroupResult twelve = TrainGroup(Spec(12), PlanOf(Spec(12), 1, 1), kSteps, kernels);
  const GroupResult eleven = TrainGroup(Spec(11), PlanOf(Spec(11), 1, 1), kSteps, kernels);
  ASSERT_FALSE(HasFailure());
  EXPECT_GT(LargestDifference(twelve.weights, eleven.weights), 100 * kTolerance);
}

}  // namespace
}  // namespace cadre
