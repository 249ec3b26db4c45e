// Scratch memory of kernels and libraries: one block per stream, because work of different streams
// runs concurrently while that of one stream runs in order.
//
// Blocks grow while extents are new and stay afterwards. A block that a captured graph uses is
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

  // At least `bytes`, aligned to 256, for what is enqueued on the current stream until the next
  // call. Null after an error, and if the block would have to grow during a capture (see
  // MayPrepare).
  std::byte* Take(size_t bytes);
  template <typename T>
  std::span<T> Take(size_t count) {
    T* const memory = reinterpret_cast<T*>(Take(count * sizeof(T)));
    return {memory, memory == nullptr ? 0 : count};
  }

  // Whether memory may be allocated and kernels may be loaded: not during a capture. The capture
  // then fails, as for any allocation; work that ran once before it is captured has everything that
  // it needs.
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
