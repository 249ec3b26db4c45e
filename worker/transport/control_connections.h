// What a rank knows of the end of its group: who left, who is lost, and the first error; and the
// control connections over which the ranks tell one another.
//
// On a control connection travel a goodbye or the reason of an abort, and nothing else. Its end
// without either is a death. A reason travels with the rank that gave it, so that everybody hears
// the same words, whoever passes them on.
//
// Owns the sockets. Thread-safe.
//
// Guarantees: the first error stays. The listener is called, without any lock held, whenever
// something changed that a waiting thread must know: somebody left, or the group is dead.
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
#include "worker/transport/socket.h"

namespace cadre {

class ControlConnections {
 public:
  // `sockets`: connected, non-blocking, by rank; the own entry is empty.
  ControlConnections(int rank, std::vector<Socket> sockets);

  // Before anything else is called.
  void Listen(std::function<void()> changed) { changed_ = std::move(changed); }

  int size() const { return static_cast<int>(peers_.size()); }
  // Cheap.
  bool dead() const { return dead_.load(std::memory_order_acquire); }
  bool left(int peer) const { return At(peer).left.load(std::memory_order_acquire); }
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Adds what is to be polled to learn of news.
  void AddPolled(std::vector<pollfd>& polled) const;
  // Reads the news; a death or an abort kills the group. Returns status().
  absl::Status Look() ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits at most `most` for what `peer` says of its own end. Returns status().
  absl::Status AwaitWord(int peer, absl::Duration most) ABSL_LOCKS_EXCLUDED(mutex_);

  // Kills the group with `error` unless it is dead already; returns the first error. Never waits:
  // a peer without room for the reason sees a death instead.
  absl::Status Fail(const absl::Status& error) ABSL_LOCKS_EXCLUDED(mutex_);
  // Tells the peers, if the group is not dead, that this rank goes in good order.
  void SayGoodbye() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Peer {
    Socket socket;
    std::atomic<bool> left{false};
    // Nothing more will come.
    std::atomic<bool> ended{false};
  };
  // Why the group is dead, in the words of the rank that said so first.
  struct Failure {
    absl::Status status;
    int origin = 0;
    std::string words;
  };

  const Peer& At(int rank) const { return *peers_[static_cast<size_t>(rank)]; }
  Peer& At(int rank) { return *peers_[static_cast<size_t>(rank)]; }
  // Both say what is the matter, or OK. `changed`: somebody left.
  absl::Status ReadFrom(int rank, bool* changed, Failure* failure)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Understand(int rank, bool* changed, Failure* failure)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // True if this was the first.
  bool Record(Failure failure) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int rank_;
  // By rank. The sockets stay open until the end.
  std::vector<std::unique_ptr<Peer>> peers_;
  // What has arrived of each peer's word.
  std::vector<std::string> received_ ABSL_GUARDED_BY(mutex_);
  std::function<void()> changed_;

  std::atomic<bool> dead_{false};
  mutable absl::Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cadre
