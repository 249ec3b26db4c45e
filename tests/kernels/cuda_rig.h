// A CUDA device with its kernels, for tests of them: this machine's own in kernels_cuda_test, one
// that is played on the host in kernels_cuda_emulated_test. Each program has its own rig.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/cuda/cuda_device.h"
#include "kernels/backend.h"
#include "tests/kernels/testing.h"

namespace cadre {

class CudaRig {
 public:
  virtual ~CudaRig() = default;
  virtual CudaDevice& device() = 0;
  virtual Backend& kernels() = 0;
};

// "Cuda" or "CudaEmulated".
std::string CudaRigName();
// Why there is none on this machine; empty where there is.
std::string MissingCudaRig();
// Requires: nothing is missing.
std::unique_ptr<CudaRig> MakeCudaRig();

// The rig's kernels for tests that have their data on the host: every span is brought to the
// device, `shift` elements after an aligned place, and what was written is brought back.
std::unique_ptr<Backend> MakeStagedBackend(std::unique_ptr<CudaRig> rig, int64_t shift);

// What SliceKernels::UpdateSlice computes, made of the host's updates by segment. `update` reads
// the host's memory.
void UpdateSliceOnHost(Backend& host, float rate, int64_t updates, const SliceUpdate& update,
                       std::span<const SliceSegment> segments, std::span<const float> g,
                       std::span<float> w, std::span<float> m, std::span<float> v);

// As bf16 holds these.
Floats Bf16Rounded(Floats values);

// Floats in a device's memory, as fp32 or bf16, `shift` elements after an aligned place.
class OnDevice {
 public:
  OnDevice(Device& device, const Floats& values, DType type = DType::kFloat32, int64_t shift = 0);

  Values values() const;
  // Requires: fp32.
  std::span<float> span() const { return values().floats(); }
  Floats Get() const;

 private:
  Device& device_;
  const DType type_;
  const size_t size_;
  const size_t shift_;
  DeviceArray<std::byte> memory_;
};

template <typename T>
std::vector<T> FromDevice(Device& device, std::span<const T> values) {
  std::vector<T> found(values.size());
  if (!values.empty()) {
    EXPECT_TRUE(device.CopyOut(values.data(), found.data(), values.size_bytes()).ok());
  }
  return found;
}

// Skips, saying why, where there is no device.
class CudaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string missing = MissingCudaRig();
    if (!missing.empty()) GTEST_SKIP() << missing;
    rig_ = MakeCudaRig();
  }
  void TearDown() override {
    if (rig_ == nullptr) return;
    const absl::Status status = rig_->device().Synchronize();
    EXPECT_TRUE(status.ok()) << status;
  }

  CudaDevice& device() { return rig_->device(); }
  Backend& kernels() { return rig_->kernels(); }
  // bf16 activations from now on.
  void UseBf16() { ASSERT_TRUE(kernels().SetPrecision(Precision::kBf16).ok()); }

  const std::unique_ptr<Backend> reference_ = MakeReferenceBackend();
  std::unique_ptr<CudaRig> rig_;
};

}  // namespace cadre
