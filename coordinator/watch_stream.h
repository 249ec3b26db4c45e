// One caller's Watch stream: at most ten updates per second, each only if something has changed.
//
// MaybeSend is called on the coordinator's loop after every change, and takes a snapshot only when
// an update may be sent. Owned by gRPC: deletes itself after the call has ended and the host was
// notified. Thread-safe.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <functional>
#include <map>
#include <string>

#include "absl/time/time.h"
#include "coordinator/machine.h"
#include "coordinator/stream_writer.h"
#include "proto/cadre/v1/control.pb.h"

namespace cadre {

class WatchStream final
    : public StreamWriter<grpc::ServerWriteReactor<v1::WatchUpdate>, v1::WatchUpdate> {
 public:
  // Called once, before the stream deletes itself.
  using Done = std::function<void()>;

  // If `run` is empty, watches all runs until the caller cancels.
  WatchStream(std::string run, Done done) : run_(std::move(run)), done_(std::move(done)) {}

  // Sends the changes since the last update if the interval has passed. Returns the time at which
  // it must be called again even without an event; InfiniteFuture: only after the next event.
  absl::Time MaybeSend(const Machine& machine, absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);

  void OnCancel() override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnDone() override;

 private:
  void SendChanges(const Machine& machine, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string run_;
  const Done done_;
  // The last update of each run, without fields that change with time.
  std::map<std::string, std::string> sent_ ABSL_GUARDED_BY(mutex_);
  absl::Time next_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
};

}  // namespace cadre
