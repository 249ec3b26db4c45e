#include "coordinator/join_stream.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/rpc/grpc_channel.h"
#include "base/rpc/grpc_status.h"

namespace cadre {

void JoinStream::Begin() {
  if (host_->OnStreamEvent(StreamOpened{connection_})) {
    StartRead(&incoming_);
  } else {
    End(absl::UnavailableError("the coordinator is stopping"));
  }
}

void JoinStream::Send(const v1::CoordinatorMessage& message) {
  absl::MutexLock lock(&mutex_);
  if (end_.has_value()) return;
  if (outgoing_.size() >= queue_capacity_) {
    // The message being written must stay alive; the others would not be read.
    outgoing_.resize(writing_ ? 1 : 0);
    EndLocked(absl::ResourceExhaustedError("the member does not read its messages"));
    return;
  }
  outgoing_.push_back(message);
  WriteOrFinish();
}

void JoinStream::End(const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  EndLocked(status);
}

void JoinStream::EndLocked(const absl::Status& status) {
  if (end_.has_value()) return;
  end_ = status;
  WriteOrFinish();
}

void JoinStream::WriteOrFinish() {
  if (writing_ || finished_) return;
  if (!outgoing_.empty()) {
    writing_ = true;
    StartWrite(&outgoing_.front());
  } else if (end_.has_value()) {
    finished_ = true;
    Finish(ToGrpc(*end_));
  }
}

void JoinStream::OnWriteDone(bool ok) {
  absl::MutexLock lock(&mutex_);
  writing_ = false;
  outgoing_.pop_front();
  if (!ok) {
    outgoing_.clear();
    EndLocked(absl::UnavailableError("the stream is broken"));
  }
  WriteOrFinish();
}

void JoinStream::OnReadDone(bool ok) {
  if (!ok) {
    End(absl::OkStatus());
    return;
  }
  const size_t bytes = incoming_.ByteSizeLong();
  if (bytes > static_cast<size_t>(kMaxMessageBytes)) {
    // The machine refuses the message by name and ends the stream, so no further read starts.
    host_->OnStreamEvent(MessageRefused{
        connection_, v1::REFUSAL_OVERSIZED,
        absl::StrCat("a message of ", bytes, " bytes exceeds the limit of ", kMaxMessageBytes)});
    return;
  }
  if (!host_->OnStreamEvent(MessageReceived{connection_, std::move(incoming_)})) {
    End(absl::UnavailableError("the coordinator is stopping"));
    return;
  }
  incoming_ = v1::MemberMessage();
  StartRead(&incoming_);
}

void JoinStream::OnDone() {
  host_->OnStreamEvent(StreamClosed{connection_});
  host_->OnStreamDone(connection_);
  delete this;
}

}  // namespace cadre
