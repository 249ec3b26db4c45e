// gRPC calls the On... functions on its own threads. They only pass an event to the host, whose
// queue orders the events of all streams for the state machine. At most one read is pending, so a
// fast sender is slowed down to the pace of that queue.
#include "coordinator/join_stream.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/rpc/grpc_channel.h"

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
  if (ending()) return;
  if (queued() < queue_capacity_) return Queue(message);
  DropQueued();
  EndLocked(absl::ResourceExhaustedError("the member does not read its messages"));
}

void JoinStream::OnReadDone(bool ok) {
  if (!ok) {
    End(absl::OkStatus());
    return;
  }
  const size_t bytes = incoming_.ByteSizeLong();
  if (bytes > size_t{kMaxMessageBytes}) {
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
