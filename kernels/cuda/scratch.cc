// Replacing a block needs no host synchronisation: Allocate and Free are ordered with all streams
// (cuda_device.h), so that the old block is not reused before the work that was enqueued on it has
// run. Only captured graphs need care, because their launches come later; their blocks are kept.
#include "kernels/cuda/scratch.h"

#include <algorithm>
#include <utility>

namespace cadre {

bool CudaScratch::MayPrepare() {
  if (!device_.capturing()) return true;
  // The device refuses the allocation and notes that the capture failed.
  device_.Free(device_.Allocate(1, "scratch"));
  return false;
}

std::byte* CudaScratch::Take(size_t bytes) {
  if (device_.failed()) return nullptr;
  Block& block = blocks_[static_cast<size_t>(device_.current_stream())];
  // Never 0 bytes, so that null always means an error.
  bytes = std::max<size_t>(bytes, 256);
  if (bytes > block.memory.size()) {
    if (!MayPrepare()) return nullptr;
    // A quarter more than before, so that slowly growing extents do not grow the block each time.
    const size_t grown = std::max(bytes, block.memory.size() + block.memory.size() / 4);
    if (block.captured) outgrown_.push_back(std::move(block.memory));
    // The old block is freed first, because both may be large. Allocation orders the streams, so
    // work that is enqueued may still use it.
    block = {};
    block.memory = DeviceArray<std::byte>(device_, grown, "scratch");
    if (block.memory.data() == nullptr) {
      block = {};
      return nullptr;
    }
  }
  block.captured = block.captured || device_.capturing();
  return block.memory.data();
}

}  // namespace cadre
