#include "kernels/cuda/library_workspace.h"

#include <algorithm>
#include <utility>

namespace cadre {

bool LibraryWorkspace::MayPrepare() {
  if (!device_.recording()) return true;
  // Refused, which the device notes.
  device_.Free(device_.Allocate(1, "library workspace"));
  return false;
}

std::byte* LibraryWorkspace::Get(size_t bytes) {
  if (device_.failed()) return nullptr;
  Piece& piece = pieces_[static_cast<size_t>(device_.lane())];
  // Never none, so that null says only that there was an error.
  bytes = std::max<size_t>(bytes, 256);
  if (bytes > piece.memory.size()) {
    if (!MayPrepare()) return nullptr;
    if (piece.recorded) piece.kept.push_back(std::move(piece.memory));
    piece.recorded = false;
    // The old piece goes first: both may be large.
    piece.memory = {};
    piece.memory = DeviceArray<std::byte>(device_, bytes, "library workspace");
  }
  if (device_.recording()) piece.recorded = true;
  return piece.memory.data();
}

}  // namespace cadre
