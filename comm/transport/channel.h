// One channel of one rank: executes lists of transfers over the links to its peers.
//
// Each peer and direction has a queue of transfers. Only the heads of the queues move, a bounded
// number of bytes at a time, as far as their links and dependencies permit. Without progress the
// thread spins briefly and then sleeps until a link, the wakeup, a control connection or Interrupt
// wakes it. channel.cc describes the algorithm.
//
// Owns the links, wakeup and scratch; borrows the control connections. Threads: one at a time calls
// Run; Interrupt and Shutdown are thread-safe.
#pragma once

#include <poll.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/transport/control_connections.h"
#include "comm/transport/link.h"
#include "comm/transport/socket.h"
#include "comm/transport/transport.h"
#include "comm/transport/wakeup.h"

namespace cadre {

class Channel {
 public:
  struct Options {
    int rank = 0;
    // Maximum time without progress.
    absl::Duration timeout;
    // The host has more ranks than processors, so spinning would delay the ranks waited for.
    bool oversubscribed = false;
  };
  // `links` by rank; the own entry is empty.
  Channel(const Options& options, std::vector<std::unique_ptr<Link>> links,
          std::unique_ptr<Wakeup> wakeup, Socket wake, ControlConnections& control);

  // See Transport::Run.
  absl::Status Run(const CallTag& tag, std::span<const Transfer> transfers, const Combine& combine);

  const Link* link(int peer) const { return links_[peer].get(); }

  // Wakes a sleeping thread.
  void Interrupt() const { Wake(wake_); }
  void Shutdown();

 private:
  using SteadyClock = std::chrono::steady_clock;
  static constexpr size_t kPayloadAlignment = 64;
  static constexpr size_t kHeaderBytes = 40;
  static constexpr size_t kMaxPrefixBytes = kHeaderBytes + kPayloadAlignment - 1;

  // State of a transfer.
  struct Progress {
    // Bytes moved.
    size_t done = 0;
    // Position of the next transfer of its queue.
    int next = Transfer::kNone;
    bool complete = false;
  };
  // The transfers to one peer or from it, in order.
  struct Queue {
    Link* link = nullptr;
    int peer = 0;
    bool sends = false;
    int head = Transfer::kNone;
    int last = Transfer::kNone;
    // Prefix of the message at the head: zeros and its header.
    std::array<std::byte, kMaxPrefixBytes> prefix;
    size_t prefix_bytes = 0;
    size_t prefix_done = 0;
    // Position in the link's stream.
    uint64_t position = 0;
    // A complete header that no call has checked yet.
    bool header_unchecked = false;
    // For sums: the received bytes of an incomplete element.
    std::array<std::byte, 16> partial;
    size_t partial_bytes = 0;
  };
  // Precedes every message.
  struct Header {
    CallTag tag;
    uint64_t length = 0;
  };
  // The current call.
  struct Call {
    CallTag tag;
    std::span<const Transfer> transfers;
    Combine combine;
  };

  // Size of the prefix of a message that begins at `position` of the link's stream.
  static size_t PrefixBytes(uint64_t position) {
    return kHeaderBytes + -(position + kHeaderBytes) % kPayloadAlignment;
  }
  void Prepare();
  void Append(Queue& queue, int position);
  absl::Status Execute();

  // Moves data of the queue; adds to moved_.
  absl::Status Move(Queue& queue);
  // Counts bytes that were moved over the queue's link.
  void Advance(Queue& queue, size_t bytes);
  absl::Status SendHead(Queue& queue, bool* blocked);
  absl::Status ReceiveHead(Queue& queue, bool* blocked);
  // Reads more of the header of the next message. `blocked`: it is incomplete.
  absl::Status ReadHeader(Queue& queue, bool* blocked);
  // Fails if a peer from which this call expects nothing has sent a message of this or an earlier
  // call.
  absl::Status CheckUnexpected();
  absl::StatusOr<size_t> Receive(Queue& queue, std::span<std::byte> into);
  absl::StatusOr<size_t> ReceiveSum(Queue& queue, std::span<std::byte> into);
  size_t AddThroughBuffer(Queue& queue, std::span<const std::byte> peeked,
                          std::span<std::byte> into);
  // Requires: the header is complete.
  absl::StatusOr<Header> HeaderOf(const Queue& queue) const;
  absl::Status CheckHeader(const Queue& queue) const;

  // Bytes of the transfer that its dependency permits to move.
  size_t Allowed(const Transfer& transfer) const;
  bool IsUnblocked(const Transfer& transfer) const;
  // Whether the head could move if its link were ready.
  bool WaitsForLink(const Queue& queue) const;
  void Complete(Queue& queue);

  // Returns immediately up to spin_limit_ times in a row, then sleeps.
  absl::Status SpinOrSleep();
  absl::Status Sleep();
  // Returns false if some link is ready.
  bool PrepareWaits();
  absl::Status PollPeers();
  absl::Status TimeoutError() const;
  absl::Status LinkError(int peer, const absl::Status& error);

  const Options options_;
  const std::vector<std::unique_ptr<Link>> links_;
  const std::unique_ptr<Wakeup> wakeup_;
  const Socket wake_;
  ControlConnections& control_;

  Call call_;
  std::vector<Progress> progress_;
  // By rank.
  std::vector<Queue> sends_;
  std::vector<Queue> receives_;
  // Non-empty queues.
  std::vector<Queue*> active_;

  // Bytes moved in this iteration.
  size_t moved_ = 0;
  // Iterations without progress; how many of them precede sleep (adaptive); its maximum.
  int spins_ = 0;
  int spin_limit_ = 0;
  int max_spins_ = 0;
  // Iterations with progress since the control connections were polled.
  int busy_iterations_ = 0;
  SteadyClock::time_point last_poll_;
  // Start of the time without progress; set by the first sleep after it.
  std::optional<SteadyClock::time_point> idle_since_;
  std::vector<pollfd> polled_;
  std::vector<int> waits_for_;
  std::vector<Link*> prepared_;
  std::vector<std::byte> buffer_;
};

}  // namespace cadre
