// The writing half of a server's stream: messages wait in a queue and are written one at a time.
//
// `Reactor` is a gRPC reactor with StartWrite. The object is owned by gRPC; a derived class deletes
// itself in OnDone. Thread-safe.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "base/rpc/grpc_status.h"

namespace cadre {

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
    outgoing_.pop_front();
    if (ok) return WriteOrFinish();
    outgoing_.clear();
    if (!end_.has_value()) end_ = absl::CancelledError("the stream is broken");
    WriteOrFinish();
  }

 protected:
  bool ending() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return end_.has_value(); }
  // Messages that are not written yet.
  size_t queued() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return outgoing_.size(); }

  void Queue(Message message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    outgoing_.push_back(std::move(message));
    WriteOrFinish();
  }
  // Discards the queue, except for the message that is being written, because gRPC still reads it.
  void DropQueued() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { outgoing_.resize(writing_ ? 1 : 0); }
  void EndLocked(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (end_.has_value()) return;
    end_ = status;
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

  // The first message is being written while writing_ is set.
  std::deque<Message> outgoing_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace cadre
