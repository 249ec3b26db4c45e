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
// receives yet: a small send ends whether or not its peer has come as far.
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
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "tensor/collective.h"
#include "tensor/dtype.h"
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
  // For transports on devices, which move whole messages: those of one round go at the same time,
  // after all of the rounds before, whose sums have been added by then (worker/comm/rounds.h).
  // Equal at both ends of a message, and above that of `after`; but a sum may share a round with
  // the send that it waits for. Others ignore it.
  int round = 0;
};

enum class LinkKind : uint8_t { kSelf, kThreads, kSharedMemory, kTcp, kNccl };

// A collective that a transport's library carries out by itself (Algorithm::kNative).
struct NativeCall {
  Collective collective = Collective::kNone;  // all-reduce, reduce-scatter or all-gather
  DType type = DType::kFloat32;
  // Ranks in index order, and this rank's place among them.
  std::span<const int> members;
  int index = 0;
  std::span<std::byte> data;
  // [begin, end) in elements, one per member; reduce-scatter and all-gather only.
  std::span<const std::pair<int64_t, int64_t>> intervals;
};

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

  // True where data lies in a device's memory and calls enqueue (see nccl/nccl_transport.h): spans
  // are device memory, and data is there when later work on the device's current stream runs.
  virtual bool on_device() const { return false; }
  // Whether RunNative is there at all, and whether for these members.
  virtual bool has_native() const { return false; }
  virtual bool HasNativeFor(std::span<const int> /*members*/) const { return false; }
  // As Communicator's collectives of those names. Requires: HasNativeFor(call.members).
  virtual absl::Status RunNative(int channel, const CallTag& tag, const NativeCall& call);
  // Makes RunNative ready for members that are not all ranks; all ranks together always are.
  // A collective of all ranks, which call it with equal `parts`, in the same order, while nothing
  // is under way on any channel. Requires: each rank is in one part. Nothing where !has_native().
  virtual absl::Status PrepareMembers(std::span<const std::vector<int>> /*parts*/) {
    return absl::OkStatus();
  }

  // Says that messages will often come from and go to this memory, until ForgetMemory: a transport
  // may map it once instead of each time. It keeps nothing of it after ForgetMemory, which comes
  // before the memory goes. A refusal costs speed, not the memory's use, and is no error.
  virtual void RegisterMemory(std::span<std::byte> /*memory*/) {}
  virtual void ForgetMemory(std::span<std::byte> /*memory*/) {}
  // Copies within this rank's memory, as Run moves: at once, or on the device's current stream.
  // Requires: equal sizes, no overlap.
  virtual absl::Status CopyWithin(std::span<const std::byte> from, std::span<std::byte> to);

  // The number of the next call among the members that `group` stands for, on a channel: calls are
  // counted here, so that they have numbers of their own whoever makes them. For the thread that
  // uses the channel.
  uint32_t NextSequence(int channel, uint32_t group) { return sequences_[channel][group]++; }

  // Kills the group: a call that waits returns `reason` at once. Requires: !reason.ok().
  virtual void Abort(absl::Status reason) = 0;
  // The first error, or OK.
  virtual absl::Status status() const = 0;
  // The same, after hearing what peers have said of their end: for whoever waits for them outside
  // of a call. Thread-safe.
  virtual absl::Status Poll() { return status(); }

 private:
  std::array<std::unordered_map<uint32_t, uint32_t>, kChannels> sequences_;
};

}  // namespace cadre
