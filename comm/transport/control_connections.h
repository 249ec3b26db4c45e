// The control connections of a rank, one per peer. They report peers that have left, peers that are
// lost, and the first error of the group.
//
// A control connection carries a goodbye or the reason of an abort, and nothing else. If it ends
// without either, the peer is lost. A reason is forwarded together with the rank that it came from,
// so all ranks report the same reason.
//
// Owns the sockets. Thread-safe.
//
// Guarantees: the first error is kept. The callback runs, without any lock held, whenever a peer
// has left or the group has failed.
#pragma once

#include <poll.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "comm/transport/socket.h"

namespace cadre {

class ControlConnections {
 public:
  // `sockets`: connected, non-blocking, by rank; the own entry is empty.
  ControlConnections(int rank, std::vector<Socket> sockets);

  // Sets the callback. Requires: no other method was called.
  void OnChange(std::function<void()> changed) { changed_ = std::move(changed); }

  int size() const { return std::ssize(peers_); }
  // Whether the group has failed; lock-free.
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  // Whether the peer has sent a goodbye; lock-free.
  bool left(int peer) const { return At(peer).left.load(std::memory_order_acquire); }
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Adds the descriptors of the control connections.
  void AddPolled(std::vector<pollfd>& polled) const;
  // Reads what has arrived; a loss or an abort fails the group. Returns status().
  absl::Status Poll() ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits at most `timeout` for a goodbye or reason of `peer`. Returns status().
  absl::Status AwaitNotice(int peer, absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_);

  // Fails the group with `error` unless it has failed already; returns the first error. Never
  // blocks: a peer whose socket buffer is full detects a loss instead.
  absl::Status Fail(const absl::Status& error) ABSL_LOCKS_EXCLUDED(mutex_);
  // Sends a goodbye to all peers unless the group has failed.
  void SendGoodbye() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Peer {
    Socket socket;
    std::atomic<bool> left{false};
    // No further message will arrive.
    std::atomic<bool> ended{false};
  };
  // Why the group failed, and the rank that reported it first.
  struct Failure {
    absl::Status status;
    int origin = 0;
    std::string reason;
  };

  const Peer& At(int rank) const { return *peers_[rank]; }
  Peer& At(int rank) { return *peers_[rank]; }
  // Return an error if the peer is lost. Set `changed` if it left, `failure` if it sent a reason.
  absl::Status ReadFrom(int rank, bool* changed, Failure* failure)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status ParseNotice(int rank, bool* changed, Failure* failure)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns false if the group had failed before.
  bool Record(Failure failure) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int rank_;
  // By rank. Sockets stay open until destruction.
  std::vector<std::unique_ptr<Peer>> peers_;
  // Received bytes of each peer's notice.
  std::vector<std::string> received_ ABSL_GUARDED_BY(mutex_);
  std::function<void()> changed_;

  std::atomic<bool> failed_{false};
  mutable absl::Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cadre
