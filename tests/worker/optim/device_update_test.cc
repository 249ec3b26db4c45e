// The optimizer of a slice on an emulated device: its updates equal the host's updates for every
// optimizer, and a non-finite loss prevents them.
#include <cmath>
#include <limits>

#include "tests/emulator/emulated_rank.h"
#include "tests/worker/optim/testing.h"

namespace cadre {
namespace {

constexpr int kSteps = 4;

// A slice of the small model on the host and on a device, with the same values in both.
class DeviceUpdateTest : public testing::TestWithParam<const char*> {
 protected:
  DeviceUpdateTest()
      : optimizer_(OptimizerFrom(GetParam())),
        slice_(SliceOf(model_.index, 11, 200)),
        size_(slice_.slice_end() - slice_.slice_begin()),
        rank_(MakeEmulatedRank(EmulatedCuda::Mode::kInline)),
        device_(*rank_.device),
        on_host_(*host_kernels_, optimizer_, model_.index, model_.momenta, slice_),
        on_device_(*rank_.kernels, optimizer_, model_.index, model_.momenta, slice_),
        norms_(optimizer_, std::ssize(model_.index.parameters())),
        weights_(RandomValues(size_, 1)),
        device_weights_(device_, size_, "weights"),
        device_gradients_(device_, size_, "gradients"),
        sums_(device_, norms_.sums().size(), "norms"),
        loss_(device_, 1, "loss") {
    device_.CopyIn(weights_.data(), device_weights_.data(), size_ * sizeof(float));
  }

  void Step(int number, double loss) {
    const std::vector<float> gradients = RandomValues(size_, 100 + number);
    norms_.Clear();
    on_host_.AddNorms(gradients, weights_, norms_);
    const auto host_sums = norms_.sums();
    const std::vector<double> wanted_sums(host_sums.begin(), host_sums.end());
    if (std::isfinite(loss)) on_host_.Update(kRate, norms_, gradients, weights_);

    device_.CopyIn(gradients.data(), device_gradients_.data(), size_ * sizeof(float));
    device_.CopyIn(&loss, loss_.data(), sizeof loss);
    if (sums_.size() > 0) device_.Zero(sums_.data(), sums_.span().size_bytes());
    on_device_.AddNormsAsync(device_gradients_.span(), device_weights_.span(), sums_.span());
    std::vector<double> sums(sums_.size());
    if (!sums.empty()) {
      ASSERT_TRUE(device_.CopyOut(sums_.data(), sums.data(), sums_.span().size_bytes()).ok());
    }
    for (size_t i = 0; i < sums.size(); ++i) EXPECT_NEAR(sums[i], wanted_sums[i], 1e-5 * sums[i]);

    rank_.kernels->slices()->SetUpdate(kRate, on_device_.updates() + 1);
    if (norms_.by_tensor()) {
      if (!std::isfinite(loss)) return;
      on_device_.Update(kRate, norms_, device_gradients_.span(), device_weights_.span());
      return;
    }
    on_device_.UpdateAsync(
        {.loss = loss_.data(), .squares = sums_.size() > 0 ? sums_.data() : nullptr},
        device_gradients_.span(), device_weights_.span());
    if (std::isfinite(loss)) on_device_.BeginUpdate();
  }

  void ExpectEqual(const std::vector<float>& expected, std::span<const float> on_device) {
    std::vector<float> found(expected.size());
    ASSERT_TRUE(device_.CopyOut(on_device.data(), found.data(), found.size() * sizeof(float)).ok());
    for (size_t i = 0; i < expected.size(); ++i) {
      // The same numbers in the same order; the compiler may fuse products and sums.
      ASSERT_NEAR(found[i], expected[i], 1e-5 * (1 + std::abs(expected[i]))) << "element " << i;
    }
  }

  void ExpectEqual() {
    ExpectEqual(weights_, device_weights_.span());
    ASSERT_EQ(on_device_.states(), on_host_.states());
    for (int i = 0; i < on_host_.states(); ++i) {
      const std::span<float> state = on_host_.state(i);
      ExpectEqual({state.begin(), state.end()}, on_device_.state(i));
    }
    EXPECT_EQ(on_device_.updates(), on_host_.updates());
  }

  static constexpr float kRate = 0.1F;

  const SmallModel model_;
  const v1::Optimizer optimizer_;
  const BucketOwnership slice_;
  const int64_t size_;
  const std::unique_ptr<Backend> host_kernels_ = MakeReferenceBackend();
  const EmulatedRank rank_;
  CudaDevice& device_;
  SliceOptimizer on_host_;
  SliceOptimizer on_device_;
  StepNorms norms_;
  std::vector<float> weights_;
  DeviceArray<float> device_weights_;
  DeviceArray<float> device_gradients_;
  DeviceArray<double> sums_;
  DeviceArray<double> loss_;
};

TEST_P(DeviceUpdateTest, EqualsTheHost) {
  for (int i = 0; i < kSteps; ++i) ASSERT_NO_FATAL_FAILURE(Step(i, 1.5));
  ExpectEqual();
  EXPECT_TRUE(device_.status().ok()) << device_.status();
}

TEST_P(DeviceUpdateTest, NonFiniteLossPreventsUpdate) {
  ASSERT_NO_FATAL_FAILURE(Step(0, 1.5));
  for (const double loss :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    ASSERT_NO_FATAL_FAILURE(Step(1, loss));
    ExpectEqual();
  }
  ASSERT_NO_FATAL_FAILURE(Step(2, 1.5));
  ExpectEqual();
}

TEST_P(DeviceUpdateTest, ElementsThatBeganLaterHaveTheirOwnCorrections) {
  for (int i = 0; i < kSteps; ++i) ASSERT_NO_FATAL_FAILURE(Step(i, 1.5));
  const std::vector<SliceOptimizer::Counted> fewer = {{{3, 5}, 1}, {{40, 90}, 0}};
  for (SliceOptimizer* optimizer : {&on_host_, &on_device_}) {
    optimizer->SetUpdates(kSteps, fewer);
  }
  for (int i = 0; i < kSteps; ++i) ASSERT_NO_FATAL_FAILURE(Step(kSteps + i, 1.5));
  ExpectEqual();
}

INSTANTIATE_TEST_SUITE_P(
    Rules, DeviceUpdateTest,
    testing::Values("sgd {}", "sgd { momentum: 0.9 weight_decay: 0.01 nesterov: true }",
                    "sgd { momentum: 0.9 weight_decay: 0.01 } decay_all: true clip_norm: 0.5",
                    "adamw { weight_decay: 0.1 }", "adamw { beta1: 0.5 } clip_norm: 2",
                    "lars { momentum: 0.9 weight_decay: 0.01 }"));

}  // namespace
}  // namespace cadre
