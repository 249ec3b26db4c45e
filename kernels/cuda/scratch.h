// Scratch memory of kernels and libraries: one block per stream, because work on different streams
// runs concurrently, whereas work on one stream runs in order.
//
// Blocks grow when new extents need more, and never shrink. A block that a captured graph uses is
// never freed, because every launch of the graph uses it again. Borrows the device.
// Thread-compatible. Errors are the device's (device.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "device/cuda/cuda_device.h"

namespace cadre {

class CudaScratch {
 public:
  explicit CudaScratch(CudaDevice& device) : device_(device) {}

  // Returns at least `bytes`, aligned to 256, for the work that is enqueued on the current stream
  // until the next call. Null after an error, or if the block would have to grow during a capture
  // (see MayPrepare).
  std::byte* Take(size_t bytes);
  template <typename T>
  std::span<T> Take(size_t count) {
    T* const memory = reinterpret_cast<T*>(Take(count * sizeof(T)));
    return {memory, memory == nullptr ? 0 : count};
  }

  // Whether memory may be allocated and kernels may be loaded. During a capture they may not: this
  // call then returns false and makes the capture fail, as any allocation does. Work that ran once
  // before its capture has everything that it needs.
  bool MayPrepare();

 private:
  struct Block {
    DeviceArray<std::byte> memory;
    bool captured = false;
  };

  CudaDevice& device_;
  std::array<Block, kDeviceStreams> blocks_;
  // Blocks that were replaced by larger ones but are used by captured graphs.
  std::vector<DeviceArray<std::byte>> outgrown_;
};

}  // namespace cadre
