// A listener that keeps the loss of the latest pass of a network.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "base/status.h"
#include "device/device.h"
#include "worker/nn/network.h"

namespace cadre {

class LossOfPass final : public PassListener {
 public:
  explicit LossOfPass(Device& device) : device_(device) {}
  absl::Status BeforeForward(int /*layer*/) override { return absl::OkStatus(); }
  absl::Status AfterLoss(std::span<const double> sums, int64_t counted) override {
    sums_ = sums;
    counted_ = counted;
    return absl::OkStatus();
  }
  absl::Status AfterBackward(int /*layer*/) override {
    ++backward_;
    return absl::OkStatus();
  }

  // Blocks. Returns zeros if another rank counts the labels.
  LossPart Get() const {
    if (counted_ == 0) return {};
    double sums[2] = {};
    EXPECT_TRUE(device_.CopyOut(sums_.data(), sums, sizeof(sums)).ok());
    LossPart part{.loss = sums[0], .samples = counted_};
    part.correct = sums[1];
    return part;
  }
  // Number of calls of AfterBackward.
  int backward() const { return backward_; }

 private:
  Device& device_;
  std::span<const double> sums_;
  int64_t counted_ = 0;
  int backward_ = 0;
};

// Forward and backward of the loaded batch.
inline absl::Status PlayLoaded(Network& network, int64_t samples, float loss_scale) {
  CADRE_RETURN_IF_ERROR(network.PlayForward(samples, loss_scale, /*share=*/1));
  return network.PlayBackward(samples);
}

}  // namespace cadre
