// Memory that kernels need between two of their launches: one block for each stream, because work
// on different streams goes on at once, while that of one stream takes turns.
//
// Blocks grow while shapes are new and stay afterwards. One that a recording has seen is never
// given back, because playing it uses the memory again. Borrows the device. Thread-compatible.
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

  // `bytes` at least, aligned to 256, for what is enqueued on the current stream until the next
  // call. Null, and an error of the device, where they are not to be had, or would have to be found
  // while recording.
  std::byte* Take(size_t bytes);
  template <typename T>
  std::span<T> Take(size_t count) {
    T* const memory = reinterpret_cast<T*>(Take(count * sizeof(T)));
    return {memory, memory == nullptr ? 0 : count};
  }

 private:
  struct Block {
    DeviceArray<std::byte> memory;
    bool recorded = false;
  };

  bool Grow(Block& block, size_t bytes);

  CudaDevice& device_;
  std::array<Block, kDeviceStreams> blocks_;
  // Too small now, but recordings use them.
  std::vector<DeviceArray<std::byte>> outgrown_;
};

}  // namespace cadre
