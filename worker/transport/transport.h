// Messages between the ranks of one group, at one generation.
//
// A transport belongs to one rank; the ranks' transports together are the group's. It has a few
// channels, which do not wait for one another: what travels on one is never behind what travels on
// another. Between a pair of ranks, on one channel, messages arrive in the order in which they were
// sent. Every message carries the tag of its call, and the receiver says which tag and length it
// expects: a difference means that the ranks have lost step with one another, and is an error that
// names both sides, not a search.
//
// One call, Run, carries out a list of sends and receives at the same time. A collective is one
// such list, so the transport sees the whole of it and keeps bytes flowing: a message may be passed
// on while it still arrives.
//
// On every channel a pair of ranks may have some kilobytes under way in each direction that nobody
// receives yet: a small send ends whether or not its peer has come as far. (An NCCL back end fits
// here: it runs, in turn, one group of ncclSend and ncclRecv of all transfers that nothing stands
// in the way of, receives sums beside the data, and adds.)
//
// Threads: one thread at a time calls Run on a channel, different threads on different channels;
// Abort and status() are thread-safe.
//
// Guarantees: the first error is the transport's last word. It tells all peers why, and every other
// rank fails, within a millisecond, at its next or present call, on every channel, instead of
// waiting for its timeout; every later call here returns the error again. After an error the group
// is dead; a new generation makes a new one. Codes:
//   Unavailable       a peer is lost (named), or told why it gave up (its words)
//   DeadlineExceeded  no byte moved for the whole timeout
//   Internal          wrong tag or length: a bug, or ranks that obey different plans
//   (any)             what Abort was called with
// A transport that is destroyed without an error says goodbye: peers that still need something from
// it fail, peers that have all they need do not.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>

#include "absl/status/status.h"
#include "worker/transport/call_tag.h"

namespace cadre {

// Adds what arrives to what is there.
struct Combine {
  // `bytes` is a multiple of `element`; both are aligned to `element`, nothing more.
  void (*add)(std::byte* sum, const std::byte* values, size_t bytes) = nullptr;
  size_t element = 1;
};

// One message of a call.
struct Transfer {
  enum class Kind : uint8_t {
    kSend,        // data is read
    kReceive,     // data is overwritten
    kReceiveSum,  // data becomes data + message, by the call's Combine
  };
  Kind kind = Kind::kSend;
  int peer = 0;
  std::span<std::byte> data;
  // Position in the list of an earlier or later transfer that stands in the way, or none. A byte of
  // this transfer may move once that one has passed the byte's address: to pass on what still
  // arrives, and to overwrite what is still being sent. A byte outside of that one's data, and an
  // empty message, wait until it is complete.
  static constexpr int kNone = -1;
  int after = kNone;
};

enum class LinkKind : uint8_t { kSelf, kThreads, kSharedMemory, kTcp };

class Transport {
 public:
  // On the first a rank's own thread moves activations; on the second its communication thread
  // reduces gradients and gathers weights, in the order that the ranks agree on over the third.
  static constexpr int kMoves = 0;
  static constexpr int kBackground = 1;
  static constexpr int kOrder = 2;
  static constexpr int kChannels = 3;

  virtual ~Transport() = default;

  virtual int rank() const = 0;
  // Ranks of the group.
  virtual int size() const = 0;
  // What lies between this rank and `peer`.
  virtual LinkKind link(int peer) const = 0;
  // A number for the machine that `peer` is on: ranks that share one have equal numbers, and all
  // ranks see the same numbers.
  virtual uint64_t host(int peer) const = 0;

  // Carries out all transfers and returns when all are done. Between a pair of ranks, sends go in
  // the list's order, and so do receives. Empty messages are sent, too.
  // Calls with equal tag.group come in the order of their sequence, and what a rank is sent in one
  // of them it receives in the same: a message that nobody expects is taken for a disagreement.
  // Requires: that; sums are of whole elements; peers are other ranks of the group; what `after`
  // says has no circle, and data of transfers overlap only where it orders them (or the peers' own
  // order does).
  virtual absl::Status Run(int channel, const CallTag& tag, std::span<const Transfer> transfers,
                           const Combine& combine) = 0;

  // The number of the next call among the members that `group` stands for, on a channel: calls are
  // counted here, so that they have numbers of their own whoever makes them. For the thread that
  // uses the channel.
  uint32_t NextSequence(int channel, uint32_t group) {
    return sequences_[static_cast<size_t>(channel)][group]++;
  }

  // Kills the group: a call that waits returns `reason` at once. Requires: !reason.ok().
  virtual void Abort(absl::Status reason) = 0;
  // The first error, or OK.
  virtual absl::Status status() const = 0;

 private:
  std::array<std::unordered_map<uint32_t, uint32_t>, kChannels> sequences_;
};

}  // namespace cadre
