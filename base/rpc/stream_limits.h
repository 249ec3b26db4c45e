// Limits of the streams of a service: how many each peer and all peers may have, and how long a
// stream may wait for its peer.
//
// Thread-safe.
#pragma once

#include <grpcpp/server_context.h>

#include <cstddef>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/steady_cond_var.h"

namespace cadre {

// Slots for streams of one kind. One peer may take three quarters of them, so that it cannot keep
// all others out. Must outlive the slots.
class StreamSlots {
 public:
  explicit StreamSlots(int max) : max_(max), max_of_peer_(max - max / 4) {}

  // The slot of one stream, if it has one. Its destructor returns it.
  class Slot {
   public:
    Slot() = default;
    Slot(Slot&& other) noexcept { *this = std::move(other); }
    Slot& operator=(Slot&& other) noexcept {
      std::swap(slots_, other.slots_);
      std::swap(peer_, other.peer_);
      return *this;
    }
    ~Slot() {
      if (slots_ != nullptr) slots_->Return(peer_);
    }
    bool taken() const { return slots_ != nullptr; }

   private:
    friend class StreamSlots;
    Slot(StreamSlots* slots, std::string peer) : slots_(slots), peer_(std::move(peer)) {}

    StreamSlots* slots_ = nullptr;
    std::string peer_;
  };

  // Returns a slot that is not taken if no slot is free for this peer.
  Slot Take(const std::string& peer) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Return(const std::string& peer) ABSL_LOCKS_EXCLUDED(mutex_);

  const int max_;
  const int max_of_peer_;
  absl::Mutex mutex_;
  int taken_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::string, int> by_peer_ ABSL_GUARDED_BY(mutex_);
};

// The open streams of a service, at most `max`, of which one peer may have three quarters. A thread
// cancels those that wait for their peer longer than `limit`.
class OpenStreams {
 public:
  OpenStreams(int max, absl::Duration limit);
  // Waits until all streams have ended. Requires: no new ones.
  ~OpenStreams();

  // A part of the reactor of one stream.
  class Stream {
   public:
    Stream(OpenStreams& streams, grpc::CallbackServerContext* context);
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;

    // False if there are too many streams, in total or of this peer; this one must then end
    // immediately.
    bool admitted() const { return slot_.taken(); }
    // The peer must act within the limit of time, or has acted.
    void Await();
    void Continue();
    // To be called by the reactor's OnDone, as the last use of the stream: calls `destroy`, which
    // deletes the reactor.
    void End(const std::function<void()>& destroy);

   private:
    friend class OpenStreams;

    OpenStreams& streams_;
    grpc::CallbackServerContext* const context_;
    const StreamSlots::Slot slot_;
    // Guarded by the mutex of `streams_`.
    absl::Time until_ = absl::InfiniteFuture();
  };

 private:
  void CancelSilent() ABSL_LOCKS_EXCLUDED(mutex_);
  Stream* FindSilent() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  StreamSlots slots_;
  const absl::Duration limit_;
  const SteadyClock clock_;
  absl::Mutex mutex_;
  SteadyCondVar changed_;
  std::set<Stream*> streams_ ABSL_GUARDED_BY(mutex_);
  // Streams whose reactor exists; it may have left `streams_`.
  size_t open_ ABSL_GUARDED_BY(mutex_) = 0;
  // The stream that the thread is cancelling.
  Stream* cancelled_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace cadre
