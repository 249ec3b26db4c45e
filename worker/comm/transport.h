// Messages between the ranks of one group, at one generation.
//
// A transport belongs to one rank; the ranks' transports together are the group's. Messages between
// a pair of ranks arrive in the order in which they were sent. Every message carries a tag, and the
// receiver says which tag and length it expects: a difference means that the ranks have lost step
// with one another, and is an error, not a search.
//
// Threads: one thread at a time calls Send, Receive and Exchange; Abort and status() are
// thread-safe.
//
// Guarantees: the first error is the transport's last word. It closes the connections, so that
// every other rank fails at its next or present call instead of waiting for its timeout, and every
// later call here returns it again. After an error the group is dead; a new generation makes a new
// one. Codes:
//   Unavailable       a peer is lost (named)
//   DeadlineExceeded  no byte moved for the whole timeout
//   Internal          wrong tag or length: a bug, or ranks that obey different plans
//   (any)             what Abort was called with
// A transport that is destroyed without an error says goodbye: peers that still need something from
// it fail, peers that have all they need do not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"

namespace cadre {

class Transport {
 public:
  virtual ~Transport() = default;

  virtual int rank() const = 0;
  // Ranks of the group.
  virtual int size() const = 0;

  // Returns when `data` may be changed; the peer need not have received it.
  // Requires: `to` is another rank of the group.
  virtual absl::Status Send(int to, uint64_t tag, std::span<const std::byte> data) = 0;
  // Fills `data`. Requires: `from` is another rank of the group.
  virtual absl::Status Receive(int from, uint64_t tag, std::span<std::byte> data) = 0;
  // Sends and receives at once: never deadlocks, whatever the sizes. `to` and `from` may be equal.
  // Requires: `send` and `receive` do not overlap.
  virtual absl::Status Exchange(int to, std::span<const std::byte> send, int from,
                                std::span<std::byte> receive, uint64_t tag) = 0;

  // Kills the group: a call that waits returns `reason` at once. Requires: !reason.ok().
  virtual void Abort(absl::Status reason) = 0;
  // The first error, or OK.
  virtual absl::Status status() const = 0;
};

}  // namespace cadre
