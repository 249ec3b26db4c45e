// The writing half of a stream of the coordinator's services, whose messages are those of the
// protocol as bytes.
//
// Messages wait in a queue and are written one at a time. Each stream is owned by gRPC and deletes
// itself after the call has ended and its owner was notified. A stream that has been ended, and
// whose peer does not read what is left, is cancelled. Thread-safe.
#pragma once

#include <google/protobuf/message_lite.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <cstddef>
#include <deque>
#include <functional>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "base/rpc/stream_limits.h"

namespace cadre {

using StreamReactor = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;

class StreamWriter : public StreamReactor {
 public:
  // Ends the stream with this status after all queued messages are written.
  void End(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);

  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnDone() override ABSL_LOCKS_EXCLUDED(mutex_);

  // False if there are too many streams; this one must then be ended.
  bool admitted() const { return stream_.admitted(); }
  // Whether a call of End, or an error, has decided the status.
  bool ended() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return ending();
  }

 protected:
  // `on_done` is called once, before the stream deletes itself.
  StreamWriter(OpenStreams& streams, grpc::CallbackServerContext* context,
               std::function<void()> on_done);

  // A message was written, and the stream is not ending.
  virtual void OnWritten() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {}

  bool ending() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return end_.has_value(); }
  // Messages that are not written yet.
  size_t queued() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return outgoing_.size(); }
  size_t queued_bytes() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return queued_bytes_; }

  void Queue(const google::protobuf::MessageLite& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Discards the queue, except for the message that is being written, because gRPC still reads it.
  void DropQueued() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { outgoing_.resize(writing_ ? 1 : 0); }
  void EndLocked(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The peer must act within the limit of `streams`, or has acted.
  void Await() { stream_.Await(); }
  void Continue() { stream_.Continue(); }

  absl::Mutex mutex_;

 private:
  void WriteOrFinish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::function<void()> on_done_;
  // The first message is being written while writing_ is set.
  std::deque<grpc::ByteBuffer> outgoing_ ABSL_GUARDED_BY(mutex_);
  // Without those that were dropped: the stream is ending then.
  size_t queued_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  OpenStreams::Stream stream_;
};

}  // namespace cadre
