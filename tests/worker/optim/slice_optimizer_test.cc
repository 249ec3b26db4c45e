#include "worker/optim/slice_optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/worker/optim/testing.h"

namespace cadre {
namespace {

constexpr int kSteps = 6;
constexpr float kRate = 0.1F;

// The optimizers in double, from the formulas of run.proto and the papers.
class ReferenceOptimizer {
 public:
  ReferenceOptimizer(const SmallModel& model, const v1::Optimizer& optimizer,
                     const std::vector<float>& weights)
      : model_(model),
        optimizer_(optimizer),
        w_(weights.begin(), weights.end()),
        a_(w_.size(), 0.0),
        b_(w_.size(), 0.0) {}

  void Step(double rate, const std::vector<float>& gradients) {
    ++t_;
    g_.assign(gradients.begin(), gradients.end());
    Clip();
    for (const Parameter& p : model_.index.parameters()) {
      if (IsStatistic(p.role)) {
        for (int64_t i = p.offset; i < p.end(); ++i) w_[i] += 0.25 * (g_[i] - w_[i]);
        continue;
      }
      const bool decays = p.role == ParameterRole::kWeight || optimizer_.decay_all();
      const double ratio = decays && optimizer_.has_lars() ? Ratio(p) : 1;
      for (int64_t i = p.offset; i < p.end(); ++i) StepOne(i, rate, decays, ratio);
    }
  }
  const std::vector<double>& weights() const { return w_; }
  const std::vector<double>& first_state() const { return a_; }

 private:
  static double Norm(const std::vector<double>& v, const Parameter& p) {
    double sum = 0;
    for (int64_t i = p.offset; i < p.end(); ++i) sum += v[i] * v[i];
    return std::sqrt(sum);
  }
  void Clip() {
    if (optimizer_.clip_norm() == 0) return;
    double sum = 0;
    for (const Parameter& p : model_.index.parameters()) {
      if (!IsStatistic(p.role)) sum += std::pow(Norm(g_, p), 2);
    }
    const double scale = std::min(1.0, optimizer_.clip_norm() / (std::sqrt(sum) + 1e-6));
    for (const Parameter& p : model_.index.parameters()) {
      if (IsStatistic(p.role)) continue;
      for (int64_t i = p.offset; i < p.end(); ++i) g_[i] *= scale;
    }
  }
  double Ratio(const Parameter& p) const {
    const double w = Norm(w_, p);
    const double g = Norm(g_, p);
    return w > 0 && g > 0
               ? optimizer_.lars().trust() * w / (g + optimizer_.lars().weight_decay() * w)
               : 1;
  }
  void StepOne(size_t i, double rate, bool decays, double ratio) {
    if (optimizer_.has_adamw()) {
      const v1::AdamW& o = optimizer_.adamw();
      const double beta1 = o.beta1() == 0 ? 0.9 : o.beta1();
      const double beta2 = o.beta2() == 0 ? 0.999 : o.beta2();
      const double epsilon = o.epsilon() == 0 ? 1e-8 : o.epsilon();
      a_[i] = beta1 * a_[i] + (1 - beta1) * g_[i];
      b_[i] = beta2 * b_[i] + (1 - beta2) * g_[i] * g_[i];
      const double m = a_[i] / (1 - std::pow(beta1, t_));
      const double v = b_[i] / (1 - std::pow(beta2, t_));
      if (decays) w_[i] -= rate * o.weight_decay() * w_[i];
      w_[i] -= rate * m / (std::sqrt(v) + epsilon);
      return;
    }
    const bool lars = optimizer_.has_lars();
    const double decay = lars ? optimizer_.lars().weight_decay() : optimizer_.sgd().weight_decay();
    const double momentum = lars ? optimizer_.lars().momentum() : optimizer_.sgd().momentum();
    const double g = ratio * (g_[i] + (decays ? decay * w_[i] : 0));
    a_[i] = momentum * a_[i] + g;
    w_[i] -= rate * (!lars && optimizer_.sgd().nesterov() ? g + momentum * a_[i] : a_[i]);
  }

  const SmallModel& model_;
  const v1::Optimizer optimizer_;
  std::vector<double> w_, g_, a_, b_;
  int t_ = 0;
};

class AgainstReference : public ::testing::TestWithParam<const char*> {};

TEST_P(AgainstReference, OverSeveralSteps) {
  const SmallModel model;
  const v1::Optimizer optimizer = OptimizerFrom(GetParam());
  auto kernels = MakeReferenceBackend();
  std::vector<float> weights = RandomValues(model.index.size(), 1);
  ReferenceOptimizer reference(model, optimizer, weights);
  SlicedModel sliced(*kernels, optimizer, model, {0, model.index.size()});
  for (int step = 0; step < kSteps; ++step) {
    const std::vector<float> gradients = RandomValues(model.index.size(), 100 + step);
    sliced.Step(kRate, gradients, weights);
    reference.Step(kRate, gradients);
  }
  // A few roundings of 6e-8 per step on values from 1 to 10; AdamW's first steps divide by sqrt(v),
  // whose relative error is equally small.
  for (size_t i = 0; i < weights.size(); ++i) {
    ASSERT_NEAR(weights[i], reference.weights()[i], 2e-5) << i;
    ASSERT_NEAR(sliced.slice(0).state(0)[i], reference.first_state()[i], 2e-5) << i;
  }
  EXPECT_EQ(sliced.slice(0).updates(), kSteps);
}

INSTANTIATE_TEST_SUITE_P(
    Optimizers, AgainstReference,
    ::testing::Values("", "sgd {}", "sgd { momentum: 0.9 }",
                      "sgd { momentum: 0.9 weight_decay: 0.1 }",
                      "sgd { momentum: 0.9 weight_decay: 0.1 nesterov: true }",
                      "sgd { momentum: 0.9 weight_decay: 0.1 } decay_all: true",
                      "sgd { momentum: 0.9 } clip_norm: 2", "sgd { momentum: 0.9 } clip_norm: 1e6",
                      "adamw {}", "adamw { weight_decay: 0.1 }",
                      "adamw { beta1: 0.8 beta2: 0.95 epsilon: 1e-3 weight_decay: 0.1 }",
                      "adamw { weight_decay: 0.1 } decay_all: true clip_norm: 0.5",
                      "lars { momentum: 0.9 weight_decay: 0.1 trust: 0.5 }",
                      "lars { momentum: 0.9 weight_decay: 0.1 trust: 0.5 } clip_norm: 1",
                      "lars { momentum: 0.5 trust: 0.25 } decay_all: true"));

TEST(SliceOptimizer, MomentumAndDecayByHand) {
  const SmallModel model;
  auto kernels = MakeReferenceBackend();
  // The last element of the convolution's weight, and the first of its bias, which does not decay.
  // Powers of two: exact.
  SliceOptimizer optimizer(*kernels, OptimizerFrom("sgd { momentum: 0.5 weight_decay: 0.25 }"),
                           model.index, model.momenta, SliceOf(model.index, 26, 28));
  const StepNorms norms(v1::Optimizer(), 0);
  std::vector<float> weights = {4, 4};
  const std::vector<float> gradients = {1, 1};
  optimizer.Update(0.5F, norms, gradients, weights);
  // v = g + 0.25 w = {2, 1};  w -= 0.5 v
  EXPECT_EQ(weights, (std::vector<float>{3, 3.5F}));
  optimizer.Update(0.5F, norms, gradients, weights);
  // v = 0.5 v + g + 0.25 w = {2.75, 1.5}
  EXPECT_EQ(weights, (std::vector<float>{1.625F, 2.75F}));
  EXPECT_EQ(optimizer.state_bytes(), 8);
  EXPECT_EQ(optimizer.states(), 1);
}

// With zero gradients, only decay changes weights.
TEST(SliceOptimizer, OnlyWeightsDecay) {
  const SmallModel model;
  auto kernels = MakeReferenceBackend();
  for (const char* kind : {"sgd { weight_decay: 0.5 }", "adamw { weight_decay: 0.5 }",
                           "lars { weight_decay: 0.5 trust: 1 }"}) {
    for (const bool all : {false, true}) {
      v1::Optimizer optimizer = OptimizerFrom(kind);
      optimizer.set_decay_all(all);
      SlicedModel sliced(*kernels, optimizer, model, {0, model.index.size()});
      std::vector<float> weights(model.index.size(), 2.0F);
      std::vector<float> gradients(weights.size(), 0.0F);
      for (const Parameter& p : model.index.parameters()) {
        // The statistic of the batch equals the running one.
        if (IsStatistic(p.role)) {
          std::fill(gradients.begin() + p.offset, gradients.begin() + p.end(), 2.0F);
        }
      }
      sliced.Step(kRate, gradients, weights);
      for (const Parameter& p : model.index.parameters()) {
        const bool decays = p.role == ParameterRole::kWeight || (all && !IsStatistic(p.role));
        EXPECT_EQ(weights[p.offset] != 2.0F, decays) << kind << p.name << all;
      }
    }
  }
}

TEST(SliceOptimizer, RunningStatisticsFollowTheBatch) {
  const SmallModel model;
  auto kernels = MakeReferenceBackend();
  // Rate, clipping and decay do not affect them.
  const v1::Optimizer optimizer =
      OptimizerFrom("adamw { weight_decay: 0.5 } clip_norm: 0.001 decay_all: true");
  for (const ParameterRole role : {ParameterRole::kRunningMean, ParameterRole::kRunningVariance}) {
    const Parameter& p = model.Of(role);
    SliceOptimizer slice(*kernels, optimizer, model.index, model.momenta,
                         SliceOf(model.index, p.offset, p.end()));
    StepNorms norms(optimizer, std::ssize(model.index.parameters()));
    std::vector<float> weights = {0, 1, -4};
    const std::vector<float> batch = {1, 1, 4};
    slice.AddNorms(batch, weights, norms);
    EXPECT_EQ(norms.GradientNorm(), 0);
    slice.Update(kRate, norms, batch, weights);
    EXPECT_EQ(weights, (std::vector<float>{0.25F, 1, -2}));
    slice.Update(kRate, norms, batch, weights);
    EXPECT_EQ(weights, (std::vector<float>{0.4375F, 1, -0.5F}));
    for (int s = 0; s < slice.states(); ++s) {
      for (const float value : slice.state(s)) EXPECT_EQ(value, 0);
    }
  }
}

TEST(SliceOptimizer, StatisticMomentumIsThatOfTheLayer) {
  const SmallModel model;
  for (size_t i = 0; i < model.momenta.size(); ++i) {
    EXPECT_EQ(model.momenta[i], IsStatistic(model.index[i].role) ? 0.25F : 0.0F);
  }
  EXPECT_EQ(std::count(model.momenta.begin(), model.momenta.end(), 0.25F), 2);
}

TEST(SliceOptimizer, EmptySliceIsLegal) {
  const SmallModel model;
  auto kernels = MakeReferenceBackend();
  for (const char* kind : {"sgd { momentum: 0.9 }", "adamw {}", "lars {}"}) {
    SliceOptimizer optimizer(*kernels, OptimizerFrom(kind), model.index, model.momenta,
                             SliceOf(model.index, 5, 5));
    StepNorms norms(OptimizerFrom(kind), std::ssize(model.index.parameters()));
    optimizer.AddNorms({}, {}, norms);
    optimizer.Update(0.1F, norms, {}, {});
    EXPECT_EQ(optimizer.state_bytes(), 0);
  }
}

// Another object continues from a copy of the state, as it does after loading a checkpoint.
TEST(SliceOptimizer, ContinuesFromCopiedState) {
  const SmallModel model;
  auto kernels = MakeReferenceBackend();
  const int64_t size = model.index.size();
  const v1::Optimizer optimizer = OptimizerFrom("adamw { weight_decay: 0.01 }");
  SlicedModel first(*kernels, optimizer, model, {0, size});
  std::vector<float> weights = RandomValues(size, 1);
  for (uint32_t step = 0; step < 3; ++step) first.Step(kRate, RandomValues(size, step), weights);

  SlicedModel second(*kernels, optimizer, model, {0, size});
  for (int s = 0; s < first.slice(0).states(); ++s) {
    std::copy_n(first.slice(0).state(s).begin(), size, second.slice(0).state(s).begin());
  }
  second.slice(0).SetUpdates(first.slice(0).updates(), {});
  std::vector<float> copy = weights;
  for (uint32_t step = 3; step < 6; ++step) {
    first.Step(kRate, RandomValues(size, step), weights);
    second.Step(kRate, RandomValues(size, step), copy);
  }
  EXPECT_EQ(weights, copy);
}

// The state of elements 20 to 40 is lost after three updates: it goes on as that of an optimizer
// that begins there, and the others as if nothing had happened.
TEST(SliceOptimizer, LostStateBeginsWithCorrectionsOfItsOwn) {
  const SmallModel model;
  auto kernels = MakeReferenceBackend();
  const int64_t size = model.index.size();
  const v1::Optimizer optimizer = OptimizerFrom("adamw { weight_decay: 0.01 }");
  SlicedModel undisturbed(*kernels, optimizer, model, {0, size});
  std::vector<float> expected = RandomValues(size, 1);
  for (uint32_t step = 0; step < 3; ++step) {
    undisturbed.Step(kRate, RandomValues(size, step), expected);
  }
  std::vector<float> weights = expected;
  std::vector<float> begun = expected;
  SlicedModel lossy(*kernels, optimizer, model, {0, size});
  SlicedModel fresh(*kernels, optimizer, model, {0, size});
  for (int s = 0; s < 2; ++s) {
    std::copy_n(undisturbed.slice(0).state(s).begin(), size, lossy.slice(0).state(s).begin());
    std::fill_n(lossy.slice(0).state(s).begin() + 20, 20, 0.0F);
  }
  lossy.slice(0).SetUpdates(3, std::vector<SliceOptimizer::Counted>{{{20, 40}, 0}});
  for (uint32_t step = 3; step < 6; ++step) {
    undisturbed.Step(kRate, RandomValues(size, step), expected);
    lossy.Step(kRate, RandomValues(size, step), weights);
    fresh.Step(kRate, RandomValues(size, step), begun);
  }
  std::copy_n(begun.begin() + 20, 20, expected.begin() + 20);
  EXPECT_EQ(weights, expected);
  const auto counted = lossy.slice(0).CountedUpdates();
  ASSERT_EQ(counted.size(), 3U);
  EXPECT_EQ(counted[1].elements, (Interval{20, 40}));
  EXPECT_EQ(counted[1].updates, 3);
  EXPECT_EQ(counted[2].updates, 6);
}

}  // namespace
}  // namespace cadre
