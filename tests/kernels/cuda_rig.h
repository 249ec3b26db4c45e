// Base of tests of what only the CUDA back end has, on a rig with a CUDA device (rig.h).
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <span>

#include "device/cuda/cuda_device.h"
#include "kernels/backend.h"
#include "kernels/optimizer_step.h"
#include "tests/kernels/on_device.h"
#include "tests/kernels/rig.h"
#include "tests/kernels/testing.h"

namespace cadre {

// Computes the same as SliceKernels::UpdateSlice by updating each segment on the host
// (cuda_optimizer_test.cc). The pointers of `guard` are to host memory.
void UpdateSliceOnHost(Backend& host, float rate, int64_t updates, const OptimizerStep& step,
                       const UpdateGuard& guard, std::span<const SliceSegment> segments,
                       ConstFloatSpan g, FloatSpan w, std::span<const FloatSpan> states);

class CudaTest : public RigTest {
 protected:
  CudaDevice& device() { return static_cast<CudaDevice&>(RigTest::device()); }
};

}  // namespace cadre
