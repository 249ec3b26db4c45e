// Memory of an emulated device, and pinned host memory.
//
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace cadre::emulated {

// Address space that is reserved in advance, and from which allocations are taken.
class DeviceMemory {
 public:
  // `closed`: the memory may only be accessed between Open and Close.
  DeviceMemory(size_t bytes, bool closed);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  // Null if the memory is used up. Aligned to 512, not zero. Requires: bytes > 0.
  void* Allocate(size_t bytes);
  // False if `memory` did not come from Allocate.
  bool Free(void* memory);
  // Whether the bytes lie within one allocation.
  bool Holds(const void* memory, size_t bytes) const;
  // Whether the address is in the reserved space at all.
  bool Covers(const void* memory) const;
  size_t total() const { return bytes_; }
  size_t used() const;
  int64_t allocations() const;

  void Open();
  void Close();

 private:
  struct Piece {
    size_t bytes = 0;   // requested
    size_t length = 0;  // whole pages
  };
  void Protect(int protection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  char* FindGap(size_t length) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static size_t Pages(size_t bytes);

  const size_t bytes_;
  const bool closed_;
  size_t reserved_ = 0;
  char* base_ = nullptr;
  mutable absl::Mutex mutex_;
  std::map<const char*, Piece> pieces_ ABSL_GUARDED_BY(mutex_);
  size_t used_ ABSL_GUARDED_BY(mutex_) = 0;
  // Bytes from the beginning of the reserved space to the end of all allocations so far.
  size_t reached_ ABSL_GUARDED_BY(mutex_) = 0;
  int open_ ABSL_GUARDED_BY(mutex_) = 0;
};

class PinnedMemory {
 public:
  ~PinnedMemory();
  // Null if the host has no memory left. Requires: bytes > 0.
  void* Allocate(size_t bytes);
  bool Free(void* memory);
  bool Holds(const void* memory, size_t bytes) const;
  int64_t allocations() const;

 private:
  mutable absl::Mutex mutex_;
  std::map<const char*, size_t> pieces_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cadre::emulated
