// The coordinator's side of members' Join streams and of callers' Watch streams.
//
// Messages wait in a queue and are written one at a time. Each stream is owned by gRPC and deletes
// itself after the call has ended and its owner was notified. A stream that has been ended, and
// whose peer does not read what is left, is cancelled. Thread-safe.
#pragma once

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

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
#include "base/rpc/grpc_status.h"
#include "base/rpc/identity.h"
#include "base/rpc/stream_limits.h"
#include "base/stream_slots.h"
#include "coordinator/events/events.h"
#include "coordinator/machine/machine.h"
#include "proto/cadre/v1/control.pb.h"
#include "proto/cadre/v1/membership.pb.h"

namespace cadre {

inline size_t BytesOf(const google::protobuf::MessageLite& message) {
  return message.ByteSizeLong();
}
inline size_t BytesOf(const grpc::ByteBuffer& message) { return message.Length(); }

// The writing half of a stream. `Reactor` is a gRPC reactor with StartWrite.
template <typename Reactor, typename Message>
class StreamWriter : public Reactor {
 public:
  // Ends the stream with this status after all queued messages are written.
  void End(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    EndLocked(status);
  }

  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    queued_bytes_ -= BytesOf(outgoing_.front());
    outgoing_.pop_front();
    if (ok) {
      if (!ending()) OnWritten();
    } else {
      outgoing_.clear();
      if (!end_.has_value()) end_ = absl::CancelledError("the stream is broken");
    }
    // It may delete the stream as soon as the lock is released.
    WriteOrFinish();
  }

  // False if there are too many streams; this one must then be ended.
  bool admitted() const { return stream_.admitted(); }
  // Whether a call of End, or an error, has decided the status.
  bool ended() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return ending();
  }

  void OnDone() override {
    on_done_();
    // The thread that has finished the stream may still hold the lock.
    { absl::MutexLock lock(&mutex_); }
    stream_.End([this] { delete this; });
  }

 protected:
  // `on_done` is called once, before the stream deletes itself.
  StreamWriter(OpenStreams& streams, grpc::CallbackServerContext* context,
               std::function<void()> on_done)
      : on_done_(std::move(on_done)), stream_(streams, context) {}

  // A message was written, and the stream is not ending.
  virtual void OnWritten() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {}

  bool ending() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return end_.has_value(); }
  // Messages that are not written yet.
  size_t queued() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return outgoing_.size(); }
  size_t queued_bytes() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return queued_bytes_; }

  void Queue(Message message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    queued_bytes_ += BytesOf(message);
    outgoing_.push_back(std::move(message));
    WriteOrFinish();
  }
  // Discards the queue, except for the message that is being written, because gRPC still reads it.
  void DropQueued() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { outgoing_.resize(writing_ ? 1 : 0); }
  void EndLocked(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (end_.has_value()) return;
    end_ = status;
    stream_.Await();
    WriteOrFinish();
  }

  absl::Mutex mutex_;

 private:
  void WriteOrFinish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writing_ || finished_) return;
    if (!outgoing_.empty()) {
      writing_ = true;
      this->StartWrite(&outgoing_.front());
    } else if (end_.has_value()) {
      finished_ = true;
      this->Finish(ToGrpc(*end_));
    }
  }

  const std::function<void()> on_done_;
  // The first message is being written while writing_ is set.
  std::deque<Message> outgoing_ ABSL_GUARDED_BY(mutex_);
  // Without those that were dropped: the stream is ending then.
  size_t queued_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  OpenStreams::Stream stream_;
};

// One member's Join stream, whose messages are those of the protocol as bytes. Its queue is
// bounded: a full queue means that the member does not read, so the stream is ended. The messages
// that the loop has not handled are bounded as well: the next one is read when one of them is
// handled.
class JoinStream final
    : public StreamWriter<grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                          grpc::ByteBuffer> {
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
class WatchStream final
    : public StreamWriter<grpc::ServerWriteReactor<v1::WatchUpdate>, v1::WatchUpdate> {
 public:
  // If `run` is empty, watches all runs until the caller cancels.
  WatchStream(std::string run, StreamSlots::Slot slot, OpenStreams& streams,
              grpc::CallbackServerContext* context, std::function<void()> on_done)
      : StreamWriter(streams, context, std::move(on_done)),
        run_(std::move(run)),
        slot_(std::move(slot)) {}

  // Called on the coordinator's loop after every change. Sends the changes since the last update if
  // the interval has passed; only then does it take a snapshot. Returns the time at which it must
  // be called again even without an event; InfiniteFuture: only after the next event.
  absl::Time MaybeSend(const Machine& machine, RunUpdates& updates, absl::Time now)
      ABSL_LOCKS_EXCLUDED(mutex_);

  void OnCancel() override ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // Returns whether there are changes that `updates` do not contain yet.
  bool SendChanges(const Machine& machine, RunUpdates& updates, absl::Time now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // An id or, before the first update, a name; empty: all runs.
  std::string run_;
  const StreamSlots::Slot slot_;
  // The last update of a run, without fields that change with time, and the run's revision then.
  struct Sent {
    std::optional<uint64_t> revision;
    std::string text;
  };
  std::map<std::string, Sent> sent_ ABSL_GUARDED_BY(mutex_);
  absl::Time next_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
};

}  // namespace cadre
