// Links through memory that two ranks share: two rings of bytes for each channel, one each way.
//
// The memory has no name: one side makes it and tells how to find it, the other maps it; it goes
// with the last process that has it mapped, whatever way processes end. Threads of one process use
// the same links on memory of their own.
//
// A sleeper is woken by its wakeup; the flag in the ring says whether anybody sleeps, so that a
// peer that is awake costs no system call.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/transport/link.h"
#include "worker/transport/wakeup.h"

namespace cadre {

// A block of memory for all channels between two ranks. Pages that no byte went through cost
// nothing.
class SharedSegment {
 public:
  // Bytes of one ring, a power of two. Each channel has two.
  static constexpr size_t kRingBytes = size_t{1} << 20;

  // Memory that other processes of this user can map, by what description() says.
  // Errors: ResourceExhausted.
  static absl::StatusOr<std::shared_ptr<SharedSegment>> Make();
  // Memory for threads of this process, which needs no descriptor. Errors: ResourceExhausted.
  static absl::StatusOr<std::shared_ptr<SharedSegment>> MakeForThreads();
  // Maps what another process made. Errors: NotFound, PermissionDenied or FailedPrecondition where
  // that is not possible (another machine, container or user): use something else.
  static absl::StatusOr<std::shared_ptr<SharedSegment>> Open(absl::string_view description);
  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  // Text for Open, at most 200 bytes: process, descriptor, and a number that only the memory knows.
  const std::string& description() const { return description_; }
  std::byte* data() { return data_; }

 private:
  SharedSegment(std::byte* data, Socket memory, std::string description)
      : data_(data), memory_(std::move(memory)), description_(std::move(description)) {}

  std::byte* const data_;
  // The maker's descriptor, by which the other side finds the memory.
  const Socket memory_;
  const std::string description_;
};

// The end of a channel's link for one of the two sides (0: the maker). `handle`: the peer's wakeup
// for this channel. `kind`: kThreads or kSharedMemory.
std::unique_ptr<Link> MakeSharedMemoryLink(std::shared_ptr<SharedSegment> segment, int channel,
                                           int side, WakeupHandle handle, LinkKind kind);

}  // namespace cadre
