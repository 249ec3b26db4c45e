// One channel between two ranks: a non-blocking byte stream in each direction, without message
// boundaries. Implemented over shared memory (shared_memory.h) and TCP (tcp_link.h); channel.h
// forms messages.
//
// Thread-compatible: one thread at a time, except that any thread may call Shutdown.
#pragma once

#include <poll.h>

#include <cstddef>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "comm/transport/transport.h"

namespace cadre {

class Link {
 public:
  virtual ~Link() = default;

  virtual LinkKind kind() const = 0;

  // Writes the concatenation of `first` and `second` (a message's header and payload) as far as
  // there is room. Returns the number of bytes written; 0 if there is no room. Written bytes may be
  // modified afterwards. Requires: not both are empty. Errors: Unavailable if the peer's end is
  // closed.
  virtual absl::StatusOr<size_t> Write(std::span<const std::byte> first,
                                       std::span<const std::byte> second) = 0;

  // Fills `into` from the front with received bytes. Returns their number; 0 if none are available.
  // Errors: Unavailable if the peer's end is closed and all that it sent has been read.
  virtual absl::StatusOr<size_t> Read(std::span<std::byte> into) = 0;

  // Received bytes in place, at most `limit`; empty if none are available. They remain valid until
  // Consume. May return fewer bytes than are available, but at least one; a caller that consumes
  // fewer bytes than it got (an incomplete element) gets the rest again together with later bytes.
  // Errors: as Read.
  virtual absl::StatusOr<std::span<const std::byte>> Peek(size_t limit) = 0;
  // Requires: `bytes` is at most what the last Peek returned.
  virtual void Consume(size_t bytes) = 0;

  // Prepares to wait until the link can be read or written. Returns false if it already can, so
  // that the caller must not sleep. Otherwise appends the descriptors to poll; shared memory has
  // none, its peer signals the rank's wakeup.
  virtual bool PrepareWait(bool to_read, bool to_write, std::vector<pollfd>& polled) = 0;
  // Must follow PrepareWait, whatever ended the wait.
  virtual void EndWait() = 0;

  // Makes every later call fail, on both ends.
  virtual void Shutdown() = 0;
};

}  // namespace cadre
