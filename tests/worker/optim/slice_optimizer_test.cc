#include "worker/optim/slice_optimizer.h"

#include <gtest/gtest.h>

#include <vector>

namespace cadre {
namespace {

v1::Optimizer Sgd(float momentum, float weight_decay) {
  v1::Optimizer optimizer;
  optimizer.mutable_sgd()->set_momentum(momentum);
  optimizer.mutable_sgd()->set_weight_decay(weight_decay);
  return optimizer;
}

TEST(SliceOptimizer, MomentumAndDecayByHand) {
  auto kernels = MakeReferenceKernels();
  // Two elements of a weight, one of a bias, which does not decay. Powers of two: exact.
  SliceOptimizer optimizer(*kernels, Sgd(0.5F, 0.25F), {{0, 2, true}, {2, 3, false}});
  std::vector<float> weights = {4, -4, 4};
  const std::vector<float> gradient = {1, 1, 1};
  optimizer.Update(0.5F, gradient, weights);
  // v = g + 0.25 w = {2, 0, 1};  w -= 0.5 v
  EXPECT_EQ(weights, (std::vector<float>{3, -4, 3.5F}));
  optimizer.Update(0.5F, gradient, weights);
  // v = 0.5 v + g + 0.25 w = {2.75, 0, 1.5}
  EXPECT_EQ(weights, (std::vector<float>{1.625F, -4, 2.75F}));
  EXPECT_EQ(optimizer.state_bytes(), 12);
}

TEST(SliceOptimizer, EmptySliceIsLegal) {
  auto kernels = MakeReferenceKernels();
  SliceOptimizer optimizer(*kernels, Sgd(0.9F, 0), {});
  optimizer.Update(0.1F, {}, {});
  EXPECT_EQ(optimizer.state_bytes(), 0);
}

// A slice cut in two is updated as the whole is: what makes sharding the optimiser legal.
TEST(SliceOptimizer, CutsDoNotMatter) {
  auto kernels = MakeReferenceKernels();
  std::vector<float> whole = {0.3F, -0.7F, 1.1F, 2.3F};
  std::vector<float> cut = whole;
  const std::vector<float> gradient = {0.1F, 0.2F, -0.3F, 0.4F};
  SliceOptimizer one(*kernels, Sgd(0.9F, 0.01F), {{0, 4, true}});
  SliceOptimizer left(*kernels, Sgd(0.9F, 0.01F), {{0, 1, true}});
  SliceOptimizer right(*kernels, Sgd(0.9F, 0.01F), {{0, 3, true}});
  for (int step = 0; step < 5; ++step) {
    one.Update(0.1F, gradient, whole);
    left.Update(0.1F, std::span(gradient).first(1), std::span(cut).first(1));
    right.Update(0.1F, std::span(gradient).subspan(1), std::span(cut).subspan(1));
  }
  EXPECT_EQ(whole, cut);
}

}  // namespace
}  // namespace cadre
