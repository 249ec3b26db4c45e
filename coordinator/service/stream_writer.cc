#include "coordinator/service/stream_writer.h"

#include <utility>

#include "base/rpc/bounded_parse.h"
#include "base/rpc/grpc_status.h"

namespace cadre {

StreamWriter::StreamWriter(OpenStreams& streams, grpc::CallbackServerContext* context,
                           std::function<void()> on_done)
    : on_done_(std::move(on_done)), stream_(streams, context) {}

void StreamWriter::End(const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  EndLocked(status);
}

void StreamWriter::EndLocked(const absl::Status& status) {
  if (end_.has_value()) return;
  end_ = status;
  stream_.Await();
  WriteOrFinish();
}

void StreamWriter::Queue(const google::protobuf::MessageLite& message) {
  outgoing_.push_back(Serialize(message));
  queued_bytes_ += outgoing_.back().Length();
  WriteOrFinish();
}

void StreamWriter::OnWriteDone(bool ok) {
  absl::MutexLock lock(&mutex_);
  writing_ = false;
  queued_bytes_ -= outgoing_.front().Length();
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

void StreamWriter::WriteOrFinish() {
  if (writing_ || finished_) return;
  if (!outgoing_.empty()) {
    writing_ = true;
    StartWrite(&outgoing_.front());
  } else if (end_.has_value()) {
    finished_ = true;
    Finish(ToGrpc(*end_));
  }
}

void StreamWriter::OnDone() {
  on_done_();
  // The thread that has finished the stream may still hold the lock.
  { absl::MutexLock lock(&mutex_); }
  stream_.End([this] { delete this; });
}

}  // namespace cadre
