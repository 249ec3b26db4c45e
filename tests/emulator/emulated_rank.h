// A rank's CUDA back end on an emulated device: the device runtime, own kernels and dense math.
//
// Owns all of it. Threads: see device/device.h; each rank has a machine of its own.
#pragma once

#include <cstddef>
#include <memory>

#include "device/cuda/cuda_device.h"
#include "kernels/backend.h"
#include "tests/emulator/emulated_cuda.h"

namespace cadre {

// Gone from the bottom up: kernels, device, machine.
struct EmulatedRank {
  std::unique_ptr<EmulatedCuda> machine;
  std::unique_ptr<CudaDevice> device;
  std::unique_ptr<Backend> kernels;
};

struct EmulatedRankOptions {
  EmulatedCuda::Mode mode = EmulatedCuda::Mode::kInline;
  Precision precision = Precision::kFp32;
  // The device's memory.
  size_t memory = size_t{2} << 30;
};

// What goes wrong is a bug, and ends the process.
EmulatedRank MakeEmulatedRank(const EmulatedRankOptions& options);
EmulatedRank MakeEmulatedRank(EmulatedCuda::Mode mode);

}  // namespace cadre
