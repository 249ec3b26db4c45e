// Memory that kernels need between two of their launches: one piece for each lane, because work on
// different lanes goes on at once, while that of one lane takes turns.
//
// Pieces grow while shapes are new and stay afterwards. One that a recording has seen is never
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

  // `bytes` at least, aligned to 256, for what is enqueued on the current lane until the next call.
  // Null, and an error of the device, where they are not to be had, or would have to be found while
  // recording.
  std::byte* Take(size_t bytes);
  template <typename T>
  std::span<T> Take(size_t count) {
    T* const memory = reinterpret_cast<T*>(Take(count * sizeof(T)));
    return {memory, memory == nullptr ? 0 : count};
  }

 private:
  struct Piece {
    DeviceArray<std::byte> memory;
    bool recorded = false;
  };

  bool Grow(Piece& piece, size_t bytes);

  CudaDevice& device_;
  std::array<Piece, kDeviceLanes> pieces_;
  // Too small now, but recordings use them.
  std::vector<DeviceArray<std::byte>> outgrown_;
};

}  // namespace cadre
