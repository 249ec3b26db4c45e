// One channel between two ranks: a pipe of bytes in each direction, without messages, that never
// blocks. Shared memory and TCP each have a file; link_transport.h makes messages of the bytes.
//
// Thread-compatible: one thread at a time, but for Shutdown, which any thread may call.
#pragma once

#include <poll.h>

#include <cstddef>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/transport/transport.h"

namespace cadre {

class Link {
 public:
  virtual ~Link() = default;

  virtual LinkKind kind() const = 0;

  // Takes as much as there is room for of `first` and then `second`, as if they were one (a
  // message's header and payload go together), and says how many bytes; 0: no room now. What is
  // taken may be changed. Either may be empty, not both. Errors: Unavailable, the other end is
  // gone.
  virtual absl::StatusOr<size_t> Write(std::span<const std::byte> first,
                                       std::span<const std::byte> second) = 0;

  // Fills `into` from the front with what has arrived, and says how much; 0: nothing now.
  // Errors: Unavailable, the other end is gone and everything that it sent was read.
  virtual absl::StatusOr<size_t> Read(std::span<std::byte> into) = 0;

  // What has arrived, where it lies, at most `most` bytes; empty: nothing now. It stays there until
  // Consume. Fewer bytes than have arrived may be shown, but never none when some have, and
  // never the same part of an element for ever: a caller that consumes less than it was shown sees
  // the rest again, together with more. Errors: as Read.
  virtual absl::StatusOr<std::span<const std::byte>> Peek(size_t most) = 0;
  // Requires: bytes <= what Peek showed last.
  virtual void Consume(size_t bytes) = 0;

  // Before a wait: says what is waited for. Returns false if it is there already, so that nobody
  // sleeps. Otherwise adds what is to be polled, if anything (shared memory rings the rank's
  // wakeup).
  virtual bool PrepareWait(bool to_read, bool to_write, std::vector<pollfd>& polled) = 0;
  // After a wait that was prepared, whatever ended it.
  virtual void EndWait() = 0;

  // Every later call fails, on both ends.
  virtual void Shutdown() = 0;
};

}  // namespace cadre
