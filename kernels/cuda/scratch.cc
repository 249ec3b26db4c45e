#include "kernels/cuda/scratch.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace cadre {
namespace {

constexpr size_t kUnit = size_t{1} << 20;

}  // namespace

std::byte* CudaScratch::Take(size_t bytes) {
  Piece& piece = pieces_[static_cast<size_t>(device_.lane())];
  if (bytes > piece.memory.size() && !Grow(piece, bytes)) return nullptr;
  piece.recorded = piece.recorded || device_.recording();
  return piece.memory.data();
}

bool CudaScratch::Grow(Piece& piece, size_t bytes) {
  if (device_.failed()) return false;
  if (device_.recording()) {
    device_.Fail(absl::InternalError(absl::StrCat(
        "recorded work needs ", bytes, " bytes of scratch, of which ", piece.memory.size(),
        " are there: it did not happen once before it was recorded")));
    return false;
  }
  // A quarter more than before, so that shapes which grow little by little do not grow it each
  // time.
  const size_t wanted = std::max(bytes, piece.memory.size() + piece.memory.size() / 4);
  if (piece.recorded) {
    outgrown_.push_back(std::move(piece.memory));
  } else if (piece.memory.data() != nullptr) {
    // What was enqueued may still use it.
    if (!device_.Synchronize().ok()) return false;
  }
  piece = {};
  piece.memory = DeviceArray<std::byte>(device_, (wanted + kUnit - 1) / kUnit * kUnit, "scratch");
  if (piece.memory.data() != nullptr) return true;
  piece = {};
  return false;
}

}  // namespace cadre
