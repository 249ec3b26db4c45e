// A rig: a back end with what it needs, for tests of kernels. It is the CPU's in kernels_bf16_test
// (cpu_rig.cc), that of this machine's GPU in kernels_cuda_test (real_rig.cc), and that of an
// emulated GPU in kernels_cuda_emulated_test (emulated_rig.cc).
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "kernels/backend.h"
#include "tests/kernels/testing.h"

namespace cadre {

// Members are destroyed in reverse order.
struct Rig {
  // The device and the machine that it belongs to; null if `kernels` own them.
  std::shared_ptr<void> hardware;
  std::unique_ptr<Backend> kernels;
};

// "Cpu", "Cuda" or "CudaEmulated".
std::string RigName();
// Why this machine has no such rig; empty if it has one.
std::string MissingRig();
// Requires: MissingRig() is empty.
Rig MakeRig();
// A rig whose emulated device has as many processors as an H100; none if the device is real.
std::optional<Rig> MakeLargeRig();

// The rig's back end for tests whose data is on the host and fp32. Every call copies its spans to
// the device, to `shift` elements after an aligned address, and copies outputs back. On the device,
// activations have the given type.
std::unique_ptr<Backend> MakeStagedBackend(Rig rig, int64_t shift, DType type = DType::kFloat32);

// Base of tests on the rig. They are skipped with a reason if there is none.
class RigTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string missing = MissingRig();
    if (!missing.empty()) GTEST_SKIP() << missing;
    rig_ = MakeRig();
  }
  void TearDown() override {
    if (rig_.kernels == nullptr) return;
    const absl::Status status = rig_.kernels->device().Synchronize();
    EXPECT_TRUE(status.ok()) << status;
  }

  Device& device() { return rig_.kernels->device(); }
  Backend& kernels() { return *rig_.kernels; }
  // Makes activations bf16.
  void UseBf16() { ASSERT_TRUE(kernels().SetPrecision(Precision::kBf16).ok()); }

  const std::unique_ptr<Backend> reference_ = MakeReferenceBackend();
  Rig rig_;
};

}  // namespace cadre
