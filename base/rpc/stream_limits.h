// The open streams of a service: how many each peer and all peers may have (base/stream_slots.h),
// and how long a stream may wait for its peer (base/silent_peers.h).
//
// Thread-safe.
#pragma once

#include <grpcpp/server_context.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <set>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/silent_peers.h"
#include "base/steady_cond_var.h"
#include "base/stream_slots.h"

namespace cadre {

// The open streams of a service, at most `max`, of which one peer may have three quarters. A thread
// cancels those that wait for their peer longer than `limit`, and those that Cancel names.
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
    // The stream is to end now, whatever it waits for. Requires: the stream exists. Does not block;
    // the thread cancels it soon.
    void Cancel();
    // To be called by the reactor's OnDone, as the last use of the stream: calls `destroy`, which
    // deletes the reactor.
    void End(const std::function<void()>& destroy);

   private:
    friend class OpenStreams;

    OpenStreams& streams_;
    grpc::CallbackServerContext* const context_;
    const StreamSlots::Slot slot_;
    // Whether its reactor's OnDone was called. Guarded by the mutex of streams_.
    bool done_ = false;
  };

 private:
  // The thread.
  void CancelStreams() ABSL_LOCKS_EXCLUDED(mutex_);
  // A stream that is to be cancelled; nothing if there is none.
  std::optional<Stream*> TakeCancelled() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  StreamSlots slots_;
  const absl::Duration examine_every_;
  const SteadyClock clock_;
  absl::Mutex mutex_;
  SteadyCondVar changed_;
  SilentPeers<Stream*> silent_ ABSL_GUARDED_BY(mutex_);
  // Those of which Cancel was called.
  std::set<Stream*> cancels_ ABSL_GUARDED_BY(mutex_);
  // Streams whose reactor exists.
  size_t open_ ABSL_GUARDED_BY(mutex_) = 0;
  // The stream that the thread is cancelling.
  Stream* cancelled_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace cadre
