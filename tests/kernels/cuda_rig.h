// A rig: a CUDA device with its back end, for tests of kernels. It is this machine's GPU in
// kernels_cuda_test (real_rig.cc), and an emulated one in kernels_cuda_emulated_test
// (emulated_rig.cc).
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/cuda/cuda_device.h"
#include "kernels/backend.h"
#include "tests/kernels/on_device.h"
#include "tests/kernels/testing.h"

namespace cadre {

// Members are destroyed in reverse order.
struct CudaRig {
  // Null for a GPU.
  std::shared_ptr<void> machine;
  std::unique_ptr<CudaDevice> device;
  std::unique_ptr<Backend> kernels;
};

// "Cuda" or "CudaEmulated".
std::string CudaRigName();
// Why this machine has no such device; empty if it has one.
std::string MissingCudaRig();
// Requires: MissingCudaRig() is empty.
CudaRig MakeCudaRig();

// The rig's back end for tests whose data is on the host. Every call copies its spans to the
// device, to `shift` elements after an aligned address, and copies outputs back. On the device,
// activations have the given type.
std::unique_ptr<Backend> MakeStagedBackend(CudaRig rig, int64_t shift,
                                           DType type = DType::kFloat32);

// Computes the same as SliceKernels::UpdateSlice by updating each segment on the host
// (cuda_optimizer_test.cc). The pointers of `update` are to host memory.
void UpdateSliceOnHost(Backend& host, float rate, int64_t updates, const SliceUpdate& update,
                       std::span<const SliceSegment> segments, ConstFloatSpan g, FloatSpan w,
                       FloatSpan m, FloatSpan v);

// Base of tests on the rig. They are skipped with a reason if there is no device.
class CudaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string missing = MissingCudaRig();
    if (!missing.empty()) GTEST_SKIP() << missing;
    rig_ = MakeCudaRig();
  }
  void TearDown() override {
    if (rig_.device == nullptr) return;
    const absl::Status status = rig_.device->Synchronize();
    EXPECT_TRUE(status.ok()) << status;
  }

  CudaDevice& device() { return *rig_.device; }
  Backend& kernels() { return *rig_.kernels; }
  // Makes activations bf16.
  void UseBf16() { ASSERT_TRUE(kernels().SetPrecision(Precision::kBf16).ok()); }

  const std::unique_ptr<Backend> reference_ = MakeReferenceBackend();
  CudaRig rig_;
};

}  // namespace cadre
