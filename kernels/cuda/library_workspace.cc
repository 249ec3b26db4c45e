#include "kernels/cuda/library_workspace.h"

#include <algorithm>
#include <utility>

namespace cadre {

bool LibraryWorkspace::MayPrepare() {
  if (!device_.capturing()) return true;
  // Refused, which the device notes.
  device_.Free(device_.Allocate(1, "library workspace"));
  return false;
}

std::byte* LibraryWorkspace::Get(size_t bytes) {
  if (device_.failed()) return nullptr;
  Block& block = blocks_[static_cast<size_t>(device_.current_stream())];
  // Never none, so that null says only that there was an error.
  bytes = std::max<size_t>(bytes, 256);
  if (bytes > block.memory.size()) {
    if (!MayPrepare()) return nullptr;
    if (block.recorded) block.kept.push_back(std::move(block.memory));
    block.recorded = false;
    // The old block goes first: both may be large.
    block.memory = {};
    block.memory = DeviceArray<std::byte>(device_, bytes, "library workspace");
  }
  if (device_.capturing()) block.recorded = true;
  return block.memory.data();
}

}  // namespace cadre
