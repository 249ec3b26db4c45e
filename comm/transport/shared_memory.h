// Links through memory that two ranks share: two ring buffers for each channel, one per direction.
//
// One side creates the memory, which has no name, and describes it to the other side, which maps
// it. The memory is freed with the last process that maps it, however the processes end. Threads of
// one process use the same links over private memory.
//
// A side that sleeps is woken through its rank's wakeup. Flags in the rings state whether a side
// sleeps, so a pair that is awake makes no system calls.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "comm/transport/link.h"
#include "comm/transport/wakeup.h"

namespace cadre {

// The memory of all channels between two ranks. Pages are allocated when they are first used.
//
// Thread-safe; the links over it are not.
class SharedSegment {
 public:
  // Size of a ring, a power of two. Each channel has two rings.
  static constexpr size_t kRingBytes = size_t{1} << 20;

  // Memory that other processes of this user can map. Errors: ResourceExhausted.
  static absl::StatusOr<std::shared_ptr<SharedSegment>> Make();
  // Private memory for threads of this process; needs no descriptor. Errors: ResourceExhausted.
  static absl::StatusOr<std::shared_ptr<SharedSegment>> MakeForThreads();
  // Maps memory that another process made. Errors: NotFound, PermissionDenied or FailedPrecondition
  // if that is not possible (another host, container or user); the caller must use another link.
  static absl::StatusOr<std::shared_ptr<SharedSegment>> Open(absl::string_view description);
  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  // The argument of Open, at most 200 bytes: process, descriptor and a nonce stored in the memory.
  const std::string& description() const { return description_; }
  std::byte* data() { return data_; }

 private:
  SharedSegment(std::byte* data, Socket memory, std::string description)
      : data_(data), memory_(std::move(memory)), description_(std::move(description)) {}

  std::byte* const data_;
  // The creator's descriptor, through which the other side opens the memory.
  const Socket memory_;
  const std::string description_;
};

// One end of a channel's link. `side`: 0 for one rank and 1 for the other. `handle`: the peer's
// wakeup for this channel. `kind`: kThreads or kSharedMemory.
std::unique_ptr<Link> MakeSharedMemoryLink(std::shared_ptr<SharedSegment> segment, int channel,
                                           int side, WakeupHandle handle, LinkKind kind);

}  // namespace cadre
