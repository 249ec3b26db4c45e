// The coordinator's side of one member's Join stream.
//
// Outgoing messages wait in a bounded queue. A full queue means that the member does not read, so
// the stream is ended. Owned by gRPC: deletes itself after the call has ended and the host (the
// owner of all streams) was notified.
//
// Thread-safe.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <cstddef>

#include "coordinator/events.h"
#include "coordinator/stream_writer.h"
#include "proto/cadre/v1/membership.pb.h"

namespace cadre {

class JoinStream final
    : public StreamWriter<grpc::ServerBidiReactor<v1::MemberMessage, v1::CoordinatorMessage>,
                          v1::CoordinatorMessage> {
 public:
  // Receives the events of the stream. Called from gRPC's threads.
  class Host {
   public:
    virtual ~Host() = default;
    // Returns false when the host has stopped.
    virtual bool OnStreamEvent(Event event) = 0;
    // The last call for this stream, which is deleted afterwards.
    virtual void OnStreamDone(ConnectionId connection) = 0;
  };

  // `host` must outlive the stream. Begin starts it.
  JoinStream(ConnectionId connection, Host* host, size_t queue_capacity)
      : connection_(connection), host_(host), queue_capacity_(queue_capacity) {}
  void Begin() ABSL_LOCKS_EXCLUDED(mutex_);

  void Send(const v1::CoordinatorMessage& message) ABSL_LOCKS_EXCLUDED(mutex_);

  void OnReadDone(bool ok) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnDone() override;

 private:
  const ConnectionId connection_;
  Host* const host_;
  const size_t queue_capacity_;
  // Written by gRPC between StartRead and OnReadDone.
  v1::MemberMessage incoming_;
};

}  // namespace cadre
