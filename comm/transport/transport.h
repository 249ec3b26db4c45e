// Messages between the ranks of one group in one generation.
//
// Every rank has one transport; together they connect the group. A transport has a few independent
// channels: a message on one channel never waits for a message on another. A message is received on
// the channel on which it was sent, except that one from kSends is received on kReceives
// (PeerChannel). Between a pair of ranks, messages on one channel arrive in the order in which they
// were sent. Every message carries the tag of its call, and the receiver states the tag and length
// that it expects. A mismatch means that the ranks execute different calls; it is an error that
// names both.
//
// Run executes a list of sends and receives concurrently. A collective is one such list, so the
// transport sees all of its dependencies and can forward a message while it still arrives.
//
// On each channel, some kilobytes may be in flight between a pair of ranks in each direction
// without a matching receive: a small send completes even if its peer has not called Run yet.
//
// Threads: one thread at a time calls Run on a channel, different threads on different channels;
// Abort, Poll and status() are thread-safe.
//
// Guarantees: the first error is final and fails the group. All peers receive its reason, and the
// current or next call of every other rank, on every channel, fails within about a millisecond
// instead of at its timeout. Later calls return the same error. A failed group cannot be repaired;
// the next generation creates new transports. Codes:
//   Unavailable       a peer is lost, or has reported why it failed; the message names it
//   DeadlineExceeded  no byte moved during the whole timeout
//   Internal          wrong tag or length: a bug, or ranks that execute different plans
//   (any)             the code passed to Abort
// A transport that is destroyed without an error sends a goodbye: only peers that still need data
// from this rank fail.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "tensor/collective.h"
#include "tensor/dtype.h"
#include "tensor/interval.h"
#include "tensor/reduce.h"

namespace cadre {

// Identifies one call of one collective. Every message carries the tag of its call, and the
// receiver compares it with the tag of its own call. If they differ, the error names both.
struct CallTag {
  Collective collective = Collective::kNone;
  Algorithm algorithm = Algorithm::kNone;
  DType dtype = DType::kBytes;
  // Number of members, and a hash of the list of their ranks.
  uint16_t members = 0;
  uint32_t group = 0;
  // Number of earlier calls of these members.
  uint32_t sequence = 0;
  // Elements of the whole call; 0 if ranks may differ (all-to-all).
  uint64_t elements = 0;

  friend bool operator==(const CallTag&, const CallTag&) = default;
  // "all-reduce by ring, number 12, of 400 float32 among 4 (group 9f3a21)".
  std::string ToString() const;
};

// One message of a call.
struct Transfer {
  enum class Kind : uint8_t {
    kSend,        // reads data
    kReceive,     // overwrites data
    kReceiveSum,  // adds the message to data by the call's Combine
  };
  Kind kind = Kind::kSend;
  int peer = 0;
  std::span<std::byte> data;
  // Position in the list of the transfer that this one depends on, or kNone. A byte may move once
  // that transfer has passed the same address; this permits forwarding data that still arrives, and
  // overwriting data that a send has read. A byte outside that transfer's data, and an empty
  // message, wait until that transfer is complete.
  static constexpr int kNone = -1;
  int after = kNone;
  // For transports on devices, which move whole messages (comm/rounds.h); ignored by others.
  // The messages of a round are concurrent and follow all earlier rounds, whose sums have been
  // added. The round is equal at both ends of a message. It is greater than the round of `after`,
  // except that a sum may share the round of the send that it depends on.
  int round = 0;
};

enum class LinkKind : uint8_t { kSelf, kThreads, kSharedMemory, kTcp, kNccl };

// A collective that the transport's library executes itself (Algorithm::kNative).
struct NativeCall {
  Collective collective = Collective::kNone;  // all-reduce, reduce-scatter or all-gather
  DType type = DType::kFloat32;
  // Ranks in index order, and this rank's index.
  std::span<const int> members;
  int index = 0;
  std::span<std::byte> data;
  // Elements of each member; reduce-scatter and all-gather only.
  std::span<const Interval> intervals;
};

class Transport {
 public:
  // Activations, moved by the rank's own thread.
  static constexpr int kMoves = 0;
  // Gradients and weights, moved by the rank's communication thread.
  static constexpr int kBackground = 1;
  // The order of the collectives on kBackground (comm/collective_queue.h).
  static constexpr int kOrder = 2;
  // Activations that are sent to ranks with other layers, moved by a thread of its own
  // (comm/send_queue.h), and those that are received from them, moved by another thread.
  // What a rank sends on kSends, its peer receives on kReceives; nothing is received on kSends or
  // sent on kReceives. On a device, ranks send and receive in calls on kSends.
  static constexpr int kSends = 3;
  static constexpr int kReceives = 4;
  static constexpr int kChannels = 5;
  // The channel on which a peer receives what this rank sends on `channel`.
  static constexpr int PeerChannel(int channel) {
    return channel == kSends ? kReceives : channel == kReceives ? kSends : channel;
  }

  virtual ~Transport() = default;

  virtual int rank() const = 0;
  // Number of ranks in the group.
  virtual int size() const = 0;
  // The kind of link between this rank and `peer`.
  virtual LinkKind link(int peer) const = 0;

  // Executes all transfers and returns when they are complete. Between a pair of ranks, sends are
  // executed in the order of the list, and so are receives. Empty messages are sent, too.
  // Requires: calls with equal tag.group are made in the order of tag.sequence, and all that is
  // sent to a rank in a call is received in the same call; sums consist of whole elements; peers
  // are other ranks of the group; `after` is acyclic; the data of transfers overlaps only where
  // `after` (or the order of the peers) orders them.
  virtual absl::Status Run(int channel, const CallTag& tag, std::span<const Transfer> transfers,
                           const Combine& combine) = 0;

  // True if data is in device memory and calls enqueue (nccl/nccl_transport.h): results are
  // available to later work on the device's current stream.
  virtual bool on_device() const { return false; }
  // Whether RunNative is supported at all, and for these members.
  virtual bool has_native() const { return false; }
  virtual bool HasNativeFor(std::span<const int> /*members*/) const { return false; }
  // As Communicator's collectives of the same names. Requires: HasNativeFor(call.members).
  virtual absl::Status RunNative(int channel, const CallTag& tag, const NativeCall& call);
  // Prepares RunNative for members that are not all ranks (all ranks together are always prepared).
  // A collective of all ranks with equal `parts`, in the same order, while no other call is in
  // progress. Has no effect unless has_native(). Requires: each rank is in exactly one part.
  virtual absl::Status PrepareMembers(std::span<const std::vector<int>> /*parts*/) {
    return absl::OkStatus();
  }

  // Prepares calls on kSends and kReceives. A collective of all ranks, while no other call is in
  // progress.
  virtual absl::Status PrepareMessages() { return absl::OkStatus(); }

  // Declares that messages will often use this memory, so that the transport may map it once.
  // A mapping that fails costs speed only and is not an error. ForgetMemory must be called before
  // the memory is freed.
  virtual void RegisterMemory(std::span<std::byte> /*memory*/) {}
  virtual void ForgetMemory(std::span<std::byte> /*memory*/) {}
  // Copies within this rank's memory: synchronously, or on the device's current stream.
  // Requires: equal sizes, no overlap.
  virtual absl::Status CopyWithin(std::span<const std::byte> from, std::span<std::byte> to);

  // The sequence number of the next call of `group` (a hash of its members) on a channel. Counted
  // here because several communicators may have the same members. Thread: the channel's.
  uint32_t NextSequence(int channel, uint32_t group) { return sequences_[channel][group]++; }

  // Fails the group; calls in progress return `reason`. Requires: !reason.ok().
  virtual void Abort(absl::Status reason) = 0;
  // The first error, or OK.
  virtual absl::Status status() const = 0;
  // As status(), after reading the notices of peers; for callers that wait outside of a call.
  virtual absl::Status Poll() { return status(); }

 private:
  std::array<std::unordered_map<uint32_t, uint32_t>, kChannels> sequences_;
};

}  // namespace cadre
