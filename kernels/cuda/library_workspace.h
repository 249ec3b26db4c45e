// Memory that library calls work in: for each stream one block, which grows to the largest that was
// asked for. Calls of one stream follow one another, so they share it.
//
// Borrows the device. Thread-compatible. Errors are the device's (device.h).
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "device/cuda/cuda_device.h"

namespace cadre {

class LibraryWorkspace {
 public:
  explicit LibraryWorkspace(CudaDevice& device) : device_(device) {}

  // At least `bytes` for the current stream, aligned to 256, until the stream's next call. Null
  // after an error, and where it would have to grow while the device records (see MayPrepare).
  std::byte* Get(size_t bytes);

  // Whether memory may be had and kernels be loaded: not while the device records. Work is done
  // once before it is recorded; where it is not, the device drops the recording, as for any
  // allocation.
  bool MayPrepare();

 private:
  struct Block {
    DeviceArray<std::byte> memory;
    // What was given to a recording stays, since that goes on using it.
    bool recorded = false;
    std::vector<DeviceArray<std::byte>> kept;
  };

  CudaDevice& device_;
  std::array<Block, kDeviceStreams> blocks_;
};

}  // namespace cadre
