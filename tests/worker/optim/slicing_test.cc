// The update of a model does not depend on its division into slices, so the optimizer can be
// sharded.
#include <gtest/gtest.h>

#include <vector>

#include "tests/worker/optim/testing.h"
#include "worker/optim/slice_optimizer.h"

namespace cadre {
namespace {

constexpr float kLearningRate = 0.1F;

std::vector<float> Train(Backend& kernels, const v1::Optimizer& optimizer, const SmallModel& model,
                         const std::vector<int64_t>& borders, int64_t longest) {
  SlicedModel sliced(kernels, optimizer, model, borders, longest);
  std::vector<float> weights = RandomValues(model.index.size(), 1);
  for (uint32_t step = 0; step < 5; ++step) {
    sliced.Step(kLearningRate, RandomValues(model.index.size(), 50 + step), weights);
  }
  return weights;
}

std::vector<std::vector<int64_t>> Partitions(int64_t size) {
  std::vector<std::vector<int64_t>> partitions;
  for (const int64_t parts : {2, 3, 7, 64}) {
    std::vector<int64_t> borders;
    for (int64_t i = 0; i <= parts; ++i) borders.push_back(PartBegin(size, i, parts));
    partitions.push_back(borders);
  }
  partitions.push_back({0, 0, 1, 1, 2, size, size});  // with empty slices
  return partitions;
}

class Slicing : public ::testing::TestWithParam<const char*> {
 protected:
  // Compares every partition with the whole model. 0: equal bits.
  void ExpectEqual(Backend& kernels, double tolerance) {
    const SmallModel model;
    const v1::Optimizer optimizer = OptimizerFrom(GetParam());
    const int64_t size = model.index.size();
    const std::vector<float> whole = Train(kernels, optimizer, model, {0, size}, size);
    for (const auto& borders : Partitions(size)) {
      for (const int64_t longest : {int64_t{1}, int64_t{5}, size}) {
        const std::vector<float> sliced = Train(kernels, optimizer, model, borders, longest);
        if (tolerance == 0) {
          ASSERT_EQ(sliced, whole) << borders.size() << " borders, intervals of " << longest;
        }
        for (size_t i = 0; i < sliced.size(); ++i) ASSERT_NEAR(sliced[i], whole[i], tolerance) << i;
      }
    }
  }
};

using ElementWise = Slicing;
TEST_P(ElementWise, EqualBitsOnTheReference) { ExpectEqual(*MakeReferenceBackend(), 0); }
TEST_P(ElementWise, EqualBitsOnTheCpu) { ExpectEqual(*MakeCpuBackend(1), 0); }
INSTANTIATE_TEST_SUITE_P(
    Optimizers, ElementWise,
    ::testing::Values("sgd { momentum: 0.9 weight_decay: 0.01 }",
                      "sgd { momentum: 0.9 weight_decay: 0.01 nesterov: true }",
                      "adamw { weight_decay: 0.01 }",
                      "adamw { weight_decay: 0.01 } decay_all: true"));

// Sums of squares over slices round differently in double, by about 1e-16, which may change the
// last bit of a factor in fp32 and thus of a weight.
using ByNorm = Slicing;
TEST_P(ByNorm, CloseOnTheReference) { ExpectEqual(*MakeReferenceBackend(), 1e-5); }
TEST_P(ByNorm, CloseOnTheCpu) { ExpectEqual(*MakeCpuBackend(1), 1e-5); }
INSTANTIATE_TEST_SUITE_P(Optimizers, ByNorm,
                         ::testing::Values("lars { momentum: 0.9 weight_decay: 0.01 trust: 0.1 }",
                                           "lars { momentum: 0.9 trust: 0.1 } clip_norm: 1",
                                           "sgd { momentum: 0.9 } clip_norm: 1",
                                           "adamw { weight_decay: 0.01 } clip_norm: 0.5"));

}  // namespace
}  // namespace cadre
