#include "tests/emulator/emulated_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "glog/logging.h"

namespace cadre::emulated {
namespace {

// The part of an allocation that is filled with NaN; the rest is zeros, like new pages, so that
// large segments cost nothing until they are used.
constexpr size_t kFilled = 1 << 20;
// The reserved address space is this multiple of the memory, so that fragmentation does not matter;
// address space costs nothing.
constexpr size_t kRoomForHoles = 4;

// Whether one of `pieces`, which do not overlap, contains the bytes.
template <typename Map, typename BytesOf>
bool Within(const Map& pieces, const void* memory, size_t bytes, const BytesOf& bytes_of) {
  const auto* begin = static_cast<const char*>(memory);
  auto after = pieces.upper_bound(begin);
  if (after == pieces.begin()) return false;
  const auto& [start, piece] = *--after;
  return begin + bytes <= start + bytes_of(piece);
}

}  // namespace

DeviceMemory::DeviceMemory(size_t bytes, bool closed) : bytes_(bytes), closed_(closed) {
  reserved_ = Pages(bytes) * kRoomForHoles;
  void* memory = mmap(nullptr, reserved_, closed ? PROT_NONE : PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  PCHECK(memory != MAP_FAILED) << "an emulated device's memory";
  base_ = static_cast<char*>(memory);
  // Larger pages make opening and closing cheaper. This is only a hint, so errors are ignored.
  if (closed) madvise(base_, reserved_, MADV_HUGEPAGE);
}

DeviceMemory::~DeviceMemory() { munmap(base_, reserved_); }

size_t DeviceMemory::Pages(size_t bytes) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

char* DeviceMemory::FindGap(size_t length) {
  char* gap = base_;
  for (const auto& [start, piece] : pieces_) {
    if (start - gap >= static_cast<ptrdiff_t>(length)) return gap;
    gap = const_cast<char*>(start) + piece.length;
  }
  return base_ + reserved_ - gap >= static_cast<ptrdiff_t>(length) ? gap : nullptr;
}

void* DeviceMemory::Allocate(size_t bytes) {
  char* memory = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    const size_t length = Pages(bytes);
    if (length > bytes_ - used_) return nullptr;
    memory = FindGap(length);
    if (memory == nullptr) return nullptr;
    pieces_[memory] = {bytes, length};
    used_ += length;
    reached_ = std::max(reached_, static_cast<size_t>(memory - base_) + length);
    // Other threads may have opened the memory; then the new allocation must be accessible, too.
    if (open_ > 0) Protect(PROT_READ | PROT_WRITE);
  }
  Open();
  std::memset(memory, 0xFF, std::min(bytes, kFilled));
  Close();
  return memory;
}

bool DeviceMemory::Free(void* memory) {
  absl::MutexLock lock(&mutex_);
  const auto piece = pieces_.find(static_cast<const char*>(memory));
  if (piece == pieces_.end()) return false;
  madvise(memory, piece->second.length, MADV_DONTNEED);
  used_ -= piece->second.length;
  pieces_.erase(piece);
  return true;
}

bool DeviceMemory::Holds(const void* memory, size_t bytes) const {
  absl::MutexLock lock(&mutex_);
  return Within(pieces_, memory, bytes, [](const Piece& piece) { return piece.bytes; });
}

bool DeviceMemory::Covers(const void* memory) const {
  const auto* address = static_cast<const char*>(memory);
  return address >= base_ && address < base_ + reserved_;
}

size_t DeviceMemory::used() const {
  absl::MutexLock lock(&mutex_);
  return used_;
}

int64_t DeviceMemory::allocations() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int64_t>(pieces_.size());
}

void DeviceMemory::Protect(int protection) {
  if (reached_ > 0) PCHECK(mprotect(base_, reached_, protection) == 0);
}

void DeviceMemory::Open() {
  if (!closed_) return;
  absl::MutexLock lock(&mutex_);
  if (open_++ == 0) Protect(PROT_READ | PROT_WRITE);
}

void DeviceMemory::Close() {
  if (!closed_) return;
  absl::MutexLock lock(&mutex_);
  if (--open_ == 0) Protect(PROT_NONE);
}

PinnedMemory::~PinnedMemory() {
  for (const auto& [memory, bytes] : pieces_) std::free(const_cast<char*>(memory));
}

void* PinnedMemory::Allocate(size_t bytes) {
  constexpr size_t kPage = 4096;
  void* memory = std::aligned_alloc(kPage, (bytes + kPage - 1) / kPage * kPage);
  if (memory == nullptr) return nullptr;
  std::memset(memory, 0xFF, std::min(bytes, kFilled));
  absl::MutexLock lock(&mutex_);
  pieces_[static_cast<const char*>(memory)] = bytes;
  return memory;
}

bool PinnedMemory::Free(void* memory) {
  absl::MutexLock lock(&mutex_);
  if (pieces_.erase(static_cast<const char*>(memory)) == 0) return false;
  std::free(memory);
  return true;
}

bool PinnedMemory::Holds(const void* memory, size_t bytes) const {
  absl::MutexLock lock(&mutex_);
  return Within(pieces_, memory, bytes, [](size_t size) { return size; });
}

int64_t PinnedMemory::allocations() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int64_t>(pieces_.size());
}

}  // namespace cadre::emulated
