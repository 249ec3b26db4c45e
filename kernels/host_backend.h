// Base classes of the back ends on the host: memory is the host's, activations are fp32, and work
// is complete when the call returns. Thread-compatible.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "kernels/backend.h"

namespace cadre {

class HostMemory : public MemoryKernels {
 public:
  void Copy(ConstValues x, Values y) final;
  void Zero(Values y) final;
  void CopyRuns(int64_t rows, int64_t run, ConstValues x, int64_t x_step, Values y,
                int64_t y_step) final;
  void CopyBox(ConstValues from, const Box& from_box, Values to, const Box& to_box,
               const Box& region) final;
  void AddBox(ConstValues from, const Box& from_box, Values to, const Box& to_box,
              const Box& region) final;
  void AccumulateReceived(DType type, std::span<std::byte> sum,
                          std::span<const std::byte> values) final;
  bool AllFinite(ConstValues x) final;
};

class HostNorm : public NormKernels {
 public:
  void BatchNormStatistics(int64_t rows, float epsilon, double share, std::span<const double> sums,
                           std::span<float> mean, std::span<float> inverse,
                           std::span<float> running_mean, std::span<float> running_variance) final;
  void BatchNormInverse(float epsilon, std::span<const float> variance,
                        std::span<float> inverse) final;
  void DivideToFloat(double divisor, std::span<const double> sums, std::span<float> y) final;
};

class HostPointwise : public PointwiseKernels {
 public:
  void SetPosition(int64_t first_position) final { position_ = first_position; }
  void DropoutBox(const DropoutKey& key, const Shape& whole, const Box& box, ConstValues x,
                  Values y) final;
  void SoftmaxCrossEntropyAsync(int64_t rows, int64_t classes, float smoothing, ConstValues x,
                                std::span<const int32_t> labels, float scale, Values dx,
                                std::span<double> sums) final;

 private:
  int64_t position_ = 0;
};

class HostOptimizer : public OptimizerKernels {
 public:
  void DrawTowards(float momentum, std::span<const float> batch, std::span<float> w) final;
};

class HostBackend : public Backend {
 public:
  Device& device() final { return *device_; }
  DType activation_type() const final { return DType::kFloat32; }
  absl::Status SetPrecision(Precision precision) final;
  void WeightsChanged(std::span<const float> /*weights*/) final {}

 private:
  const std::unique_ptr<Device> device_ = MakeHostDevice();
};

}  // namespace cadre
