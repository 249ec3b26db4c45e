// One channel of one rank: carries out lists of transfers over the links to its peers.
//
// Each peer and direction has a queue of transfers; only the heads of the queues move, a bite at a
// time, each as far as its link and the transfer that it waits for let it. When nothing moves the
// thread looks again for a short while and then sleeps until a link, the bell, a control connection
// or an interruption wakes it.
//
// Owns the links, bell and scratch; borrows the control connections. Threads: one at a time calls
// Run; Interrupt and Shutdown are thread-safe.
#pragma once

#include <poll.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "worker/transport/bell.h"
#include "worker/transport/control_connections.h"
#include "worker/transport/link.h"
#include "worker/transport/message_header.h"
#include "worker/transport/socket.h"
#include "worker/transport/transport.h"

namespace cadre {

class Channel {
 public:
  struct Options {
    int rank = 0;
    // Longest wait during which no byte moves.
    absl::Duration timeout;
    // Ranks of this host take turns on its processors: to look again and again would keep the
    // others from what is waited for.
    bool crowded = false;
  };
  // `links` by rank; the own entry is empty.
  Channel(const Options& options, std::vector<std::unique_ptr<Link>> links,
          std::unique_ptr<Bell> bell, Socket wake, ControlConnections& control);

  // See Transport::Run.
  absl::Status Run(const CallTag& tag, std::span<const Transfer> transfers, const Combine& combine);

  const Link* link(int peer) const { return links_[static_cast<size_t>(peer)].get(); }

  // A thread that sleeps looks again.
  void Interrupt() const { Wake(wake_); }
  void Shutdown();

 private:
  using SteadyClock = std::chrono::steady_clock;

  // How far a transfer is.
  struct Progress {
    // Bytes of its data that have moved.
    size_t done = 0;
    // Position of the next one of its queue.
    int next = Transfer::kNone;
    bool complete = false;
  };
  // What goes to one peer, or comes from it, in order.
  struct Queue {
    Link* link = nullptr;
    int peer = 0;
    bool sends = false;
    int head = Transfer::kNone;
    int last = Transfer::kNone;
    // Of the message at the head.
    std::array<std::byte, kMostPrefixBytes> prefix;
    size_t prefix_bytes = 0;
    size_t prefix_done = 0;
    // Where the link's stream is.
    uint64_t position = 0;
    // The header came before anything was expected, and nobody has looked at it.
    bool early = false;
    // Of a receive-sum: the first bytes of an element whose others have not arrived.
    std::array<std::byte, 16> part;
    size_t part_bytes = 0;
  };
  // The call that runs.
  struct Call {
    CallTag tag;
    std::span<const Transfer> transfers;
    Combine combine;
  };

  void Prepare();
  void Append(Queue& queue, int position);
  absl::Status Execute();

  // Moves the heads of the queue; adds to moved_.
  absl::Status Move(Queue& queue);
  absl::Status MoveOut(Queue& queue, bool* stuck);
  absl::Status MoveIn(Queue& queue, bool* stuck);
  // Reads on in the header of the next message. `stuck`: it is not all there.
  absl::Status ReadHeader(Queue& queue, bool* stuck);
  // A message of this call, or of one before, from a peer of which nothing is expected.
  absl::Status LookForStrays();
  absl::StatusOr<size_t> Receive(Queue& queue, std::span<std::byte> into);
  absl::StatusOr<size_t> ReceiveSum(Queue& queue, std::span<std::byte> into);
  size_t AddThroughBuffer(Queue& queue, std::span<const std::byte> shown,
                          std::span<std::byte> into);
  // Requires: it is all there.
  absl::StatusOr<MessageHeader> HeaderOf(const Queue& queue) const;
  absl::Status CheckHeader(const Queue& queue) const;

  // How many bytes of the transfer may have moved by now.
  size_t Allowed(const Transfer& transfer) const;
  bool IsFree(const Transfer& transfer) const;
  // Something of the head could move if the link let it.
  bool WaitsForLink(const Queue& queue) const;
  void Complete(Queue& queue);

  // Looks again until something may have moved; then sleeps.
  absl::Status Idle();
  absl::Status Sleep();
  bool PrepareLinks();
  absl::Status LookAtPeers();
  absl::Status TimedOut() const;
  absl::Status LinkFailed(int peer, const absl::Status& error);

  const Options options_;
  const std::vector<std::unique_ptr<Link>> links_;
  const std::unique_ptr<Bell> bell_;
  const Socket wake_;
  ControlConnections& control_;

  Call call_;
  std::vector<Progress> progress_;
  // By rank, sends and receives.
  std::vector<Queue> sends_;
  std::vector<Queue> receives_;
  // Queues that are not empty.
  std::vector<Queue*> active_;

  // Bytes that moved in this turn.
  size_t moved_ = 0;
  // Turns without movement; how many of them are worth a try before sleeping, which is learnt.
  int idle_turns_ = 0;
  int worth_turns_ = 0;
  int most_turns_ = 0;
  // Turns until the control connections are looked at although bytes move.
  int busy_turns_ = 0;
  SteadyClock::time_point looked_;
  // When bytes ceased to move; set at the first sleep after that.
  bool idle_since_known_ = false;
  SteadyClock::time_point idle_since_;
  std::vector<pollfd> polled_;
  std::vector<int> wanted_;
  std::vector<Link*> prepared_;
  std::vector<std::byte> buffer_;
};

}  // namespace cadre
