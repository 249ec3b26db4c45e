#include "kernels/cuda/scratch.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace cadre {
namespace {

constexpr size_t kUnit = size_t{1} << 20;

}  // namespace

std::byte* CudaScratch::Take(size_t bytes) {
  Block& block = blocks_[static_cast<size_t>(device_.current_stream())];
  if (bytes > block.memory.size() && !Grow(block, bytes)) return nullptr;
  block.recorded = block.recorded || device_.capturing();
  return block.memory.data();
}

bool CudaScratch::Grow(Block& block, size_t bytes) {
  if (device_.failed()) return false;
  if (device_.capturing()) {
    device_.Fail(absl::InternalError(absl::StrCat(
        "recorded work needs ", bytes, " bytes of scratch, of which ", block.memory.size(),
        " are there: it did not happen once before it was recorded")));
    return false;
  }
  // A quarter more than before, so that shapes which grow little by little do not grow it each
  // time.
  const size_t wanted = std::max(bytes, block.memory.size() + block.memory.size() / 4);
  if (block.recorded) {
    outgrown_.push_back(std::move(block.memory));
  } else if (block.memory.data() != nullptr) {
    // What was enqueued may still use it.
    if (!device_.Synchronize().ok()) return false;
  }
  block = {};
  block.memory = DeviceArray<std::byte>(device_, (wanted + kUnit - 1) / kUnit * kUnit, "scratch");
  if (block.memory.data() != nullptr) return true;
  block = {};
  return false;
}

}  // namespace cadre
