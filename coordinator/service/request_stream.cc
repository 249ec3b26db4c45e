// A turn is given while the RequestTurns are locked, and OnTurn locks the stream, so a stream does
// not call them while it is locked. OnDone leaves the turns before the stream is deleted.
#include "coordinator/service/request_stream.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "base/rpc/bounded_parse.h"
#include "base/rpc/grpc_channel.h"
#include "base/rpc/identity.h"
#include "base/status.h"

namespace cadre {

// ---- RequestTurns

bool RequestTurns::Join(Reader& reader, const std::string& peer) {
  absl::MutexLock lock(&mutex_);
  // Those that wait cannot use a turn that is free for this peer.
  if (Give(reader, peer)) return true;
  StreamSlots::Slot place = places_.Take(peer);
  if (!place.taken()) return false;
  waiting_.push_back({&reader, peer, std::move(place)});
  return true;
}

void RequestTurns::Leave(Reader& reader) {
  absl::MutexLock lock(&mutex_);
  std::erase_if(waiting_, [&](const Waiting& waiting) { return waiting.reader == &reader; });
  if (turns_.erase(&reader) > 0) GiveTurns();
}

bool RequestTurns::Give(Reader& reader, const std::string& peer) {
  StreamSlots::Slot slot = slots_.Take(peer);
  if (!slot.taken()) return false;
  turns_[&reader] = std::move(slot);
  reader.OnTurn();
  return true;
}

void RequestTurns::GiveTurns() {
  for (auto next = waiting_.begin(); next != waiting_.end();) {
    next = Give(*next->reader, next->peer) ? waiting_.erase(next) : std::next(next);
  }
}

// ---- RequestStream

RequestStream::RequestStream(const Shared& shared, const Limits& limits,
                             grpc::CallbackServerContext* context, std::function<void()> on_done)
    : StreamWriter(shared.streams, context, std::move(on_done)),
      turns_(shared.turns),
      limits_(limits),
      peer_(PeerName(*context)) {}

void RequestStream::Begin() {
  if (!admitted()) return End(BusyError("too many streams"));
  if (!turns_.Join(*this, peer_)) End(BusyError("too many calls are waiting"));
}

void RequestStream::OnTurn() {
  absl::MutexLock lock(&mutex_);
  if (ending()) return;
  if (!limits_.is_large) Await();
  StartRead(&incoming_);
}

absl::Status RequestStream::Parse() {
  if (const size_t bytes = incoming_.Length(); bytes > size_t{kMaxMessageBytes}) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a request of ", bytes, " bytes exceeds the limit of ", kMaxMessageBytes));
  }
  return ParseWithin(limits_.max_memory, incoming_, &request());
}

void RequestStream::OnReadDone(bool ok) {
  const absl::Status parsed =
      ok ? Parse()
         : absl::InvalidArgumentError("the call has no request, or one that is too large");
  {
    absl::MutexLock lock(&mutex_);
    // It was cancelled; the limit of time is that of its end.
    if (ending()) return;
    Continue();
  }
  incoming_.Clear();
  if (!limits_.is_large || !parsed.ok()) EndTurn();
  if (!parsed.ok()) return End(parsed);
  OnRequest();
}

void RequestStream::OnDone() {
  turns_.Leave(*this);
  StreamWriter::OnDone();
}

// ---- UnaryCall

bool UnaryCall::Keep(std::function<void()> on_cancel) {
  absl::MutexLock lock(&mutex_);
  if (ending()) return false;
  on_cancel_ = std::move(on_cancel);
  return true;
}

void UnaryCall::OnCancel() {
  std::function<void()> on_cancel;
  {
    absl::MutexLock lock(&mutex_);
    on_cancel = on_cancel_;
    if (!on_cancel) EndLocked(absl::CancelledError("cancelled by the caller"));
  }
  if (on_cancel) on_cancel();
}

void UnaryCall::Reply(const absl::Status& status) {
  EndTurn();
  absl::MutexLock lock(&mutex_);
  if (status.ok()) Queue(reply());
  EndLocked(status);
}

}  // namespace cadre
