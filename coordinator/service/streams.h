// The coordinator's side of members' Join streams and of callers' Watch streams. Thread-safe.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/rpc/identity.h"
#include "base/rpc/stream_limits.h"
#include "base/stream_slots.h"
#include "coordinator/events/events.h"
#include "coordinator/machine/machine.h"
#include "coordinator/service/request_stream.h"
#include "coordinator/service/stream_writer.h"
#include "proto/cadre/v1/control.pb.h"
#include "proto/cadre/v1/membership.pb.h"

namespace cadre {

// One member's Join stream, whose messages are those of the protocol as bytes. Its queue is
// bounded: a full queue means that the member does not read, so the stream is ended. The messages
// that the loop has not handled are bounded as well: the next one is read when one of them is
// handled.
class JoinStream final : public StreamWriter {
 public:
  // Receives the events of the stream, on gRPC's threads. Returns false when it has stopped.
  using Post = std::function<bool(Event)>;

  // Begin starts the stream. `certificate`: the identity of the member; nothing without TLS.
  JoinStream(ConnectionId connection, std::optional<Identity> certificate, Post post,
             OpenStreams& streams, grpc::CallbackServerContext* context,
             std::function<void()> on_done)
      : StreamWriter(streams, context, std::move(on_done)),
        connection_(connection),
        certificate_(std::move(certificate)),
        post_(std::move(post)) {}
  void Begin() ABSL_LOCKS_EXCLUDED(mutex_);

  void Send(const v1::CoordinatorMessage& message) ABSL_LOCKS_EXCLUDED(mutex_);
  // The oldest message that was posted is handled.
  void OnHandled() ABSL_LOCKS_EXCLUDED(mutex_);

  void OnReadDone(bool ok) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnDone() override;

 private:
  // Parses the message that was read. Returns why it is refused, if it is.
  std::optional<MessageRefused> TakeMessage(v1::MemberMessage* message) const;
  // Reads the next message, unless too many wait for the loop.
  void ReadNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const ConnectionId connection_;
  const std::optional<Identity> certificate_;
  const Post post_;
  // Written by gRPC between StartRead and OnReadDone.
  grpc::ByteBuffer incoming_;
  // From StartRead until the message is posted.
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;
  // Sizes of the messages that the loop has not handled, and their sum.
  std::deque<size_t> unhandled_ ABSL_GUARDED_BY(mutex_);
  size_t unhandled_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

// The newest updates of runs, computed at most ten times per second for each run, however many
// Watch streams there are. Thread-compatible.
class RunUpdates {
 public:
  struct Entry {
    v1::WatchUpdate update;
    // The update without fields that change with time, and the revision of the run.
    std::string text;
    uint64_t revision = 0;
    absl::Time computed;
  };
  // The update may be older than `revision`. Valid until the next call.
  const Entry& Find(const Machine& machine, const std::string& run, uint64_t revision,
                    absl::Time now);

 private:
  std::map<std::string, Entry> entries_;
};

// One caller's Watch stream: at most ten updates per second, each only if something has changed.
class WatchStream final : public RequestStream {
 public:
  // Calls `begin` when it knows which runs it watches: all, until the caller cancels, if the
  // request names none.
  WatchStream(const Shared& shared, grpc::CallbackServerContext* context,
              std::function<void(WatchStream& stream)> begin, std::function<void()> on_done)
      : RequestStream(shared, Limits(), context, std::move(on_done)), begin_(std::move(begin)) {}

  // The stream has the slot as long as it exists.
  void Keep(StreamSlots::Slot slot) { slot_ = std::move(slot); }
  // Called on the coordinator's loop after every change. Sends the changes since the last update if
  // the interval has passed; only then does it take a snapshot. Returns the time at which it must
  // be called again even without an event; InfiniteFuture: only after the next event.
  absl::Time MaybeSend(const Machine& machine, RunUpdates& updates, absl::Time now)
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  google::protobuf::Message& request() override { return request_; }
  void OnRequest() override {
    run_ = request_.run();
    begin_(*this);
  }
  // Returns whether there are changes that `updates` do not contain yet.
  bool SendChanges(const Machine& machine, RunUpdates& updates, absl::Time now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // An id or, before the first update, a name; empty: all runs.
  std::string run_;
  const std::function<void(WatchStream& stream)> begin_;
  v1::WatchRequest request_;
  StreamSlots::Slot slot_;
  // The last update of a run, without fields that change with time, and the run's revision then.
  struct Sent {
    std::optional<uint64_t> revision;
    std::string text;
  };
  std::map<std::string, Sent> sent_ ABSL_GUARDED_BY(mutex_);
  absl::Time next_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
};

}  // namespace cadre
