// A rank's CUDA back end on an emulated machine: the device, our kernels, and dense math on the
// host.
//
// Owns everything but a machine that is passed to it. See device/device.h for threads.
#pragma once

#include <cstddef>
#include <memory>

#include "device/cuda/cuda_device.h"
#include "kernels/backend.h"
#include "tests/emulator/emulated_cuda.h"

namespace cadre {

// Members are destroyed in reverse order: kernels, device, machine.
struct EmulatedRank {
  std::unique_ptr<EmulatedCuda> machine;
  std::unique_ptr<CudaDevice> device;
  std::unique_ptr<Backend> kernels;
};

struct EmulatedRankOptions {
  EmulatedCuda::Mode mode = EmulatedCuda::Mode::kInline;
  Precision precision = Precision::kFp32;
  // Memory of the device in bytes.
  size_t memory = size_t{2} << 30;
  int processors = 2;
};

// The number of processors of an H100.
inline constexpr int kH100Processors = 132;

// Errors are bugs and end the process.
EmulatedRank MakeEmulatedRank(const EmulatedRankOptions& options);
EmulatedRank MakeEmulatedRank(EmulatedCuda::Mode mode);
// On the first device of a machine that several ranks share and that outlives them; `machine` is
// null.
EmulatedRank MakeEmulatedRank(EmulatedCuda& machine, Precision precision = Precision::kFp32);

}  // namespace cadre
