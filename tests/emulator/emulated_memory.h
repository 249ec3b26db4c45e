// Memory of an emulated device, and host memory that is pinned.
//
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace cadre::emulated {

// Address space that is reserved at once, of which pieces are given out.
class DeviceMemory {
 public:
  // closed: nobody may touch it but between Open and Close.
  DeviceMemory(size_t bytes, bool closed);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  // Null: there is no more. Aligned to 512, not zero. Requires: bytes > 0.
  void* Allocate(size_t bytes);
  // False: it is not what Allocate gave.
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
    size_t bytes = 0;   // asked for
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
  // Of the reserved space, how much was ever given out.
  size_t reached_ ABSL_GUARDED_BY(mutex_) = 0;
  int open_ ABSL_GUARDED_BY(mutex_) = 0;
};

class PinnedMemory {
 public:
  ~PinnedMemory();
  // Null: the host has no more. Requires: bytes > 0.
  void* Allocate(size_t bytes);
  bool Free(void* memory);
  bool Holds(const void* memory, size_t bytes) const;
  int64_t allocations() const;

 private:
  mutable absl::Mutex mutex_;
  std::map<const char*, size_t> pieces_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cadre::emulated
