// gRPC calls the On... functions on its own threads. Those of a Join stream only post an event to
// the loop, whose queue orders the events of all streams for the state machine. At most one read is
// pending, and none while messages of the stream wait in that queue beyond a limit, so a fast
// sender is slowed down to the pace of the loop and cannot fill the queue that all streams share.
//
// A Watch stream sends an update when a run has changed, at most once per kInterval. Runs
// with the same revision are skipped; `sent_` holds the last update of each run without fields such
// as elapsed times, which always change.
#include "coordinator/service/streams.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/rpc/bounded_parse.h"
#include "base/rpc/grpc_channel.h"
#include "coordinator/run/run_rules.h"
#include "coordinator/service/member_identity.h"
#include "coordinator/service/member_text.h"

namespace cadre {
namespace {

// Limits of what waits to be written to one member.
constexpr size_t kMaxQueuedMessages = 1024;
constexpr size_t kMaxQueuedBytes = 64 << 20;
// Limits of what waits for the loop. A message is read while the bytes before it are below the
// second limit.
constexpr size_t kMaxUnhandledMessages = 16;
constexpr size_t kMaxUnhandledBytes = 1 << 20;
// Memory of a parsed message: several times that of the largest one that a member sends.
constexpr int64_t kMaxMessageMemory = 64 << 20;
constexpr absl::Duration kInterval = absl::Milliseconds(100);

// The result is equal for two updates that differ only in elapsed times.
std::string WithoutTimes(v1::WatchUpdate update) {
  update.clear_time_ms();
  update.mutable_run()->clear_seconds();
  update.mutable_run()->clear_eta_seconds();
  update.mutable_run()->clear_samples_per_second();
  update.mutable_run()->clear_tokens_per_second();
  return update.SerializeAsString();
}

}  // namespace

// ---- JoinStream

void JoinStream::Begin() {
  if (!post_(StreamOpened{connection_})) {
    return End(absl::UnavailableError("the coordinator is stopping"));
  }
  absl::MutexLock lock(&mutex_);
  ReadNext();
}

void JoinStream::ReadNext() {
  if (reading_ || ending() || unhandled_.size() >= kMaxUnhandledMessages ||
      unhandled_bytes_ >= kMaxUnhandledBytes) {
    return;
  }
  reading_ = true;
  incoming_.Clear();
  StartRead(&incoming_);
}

void JoinStream::OnHandled() {
  absl::MutexLock lock(&mutex_);
  unhandled_bytes_ -= unhandled_.front();
  unhandled_.pop_front();
  ReadNext();
}

void JoinStream::Send(const v1::CoordinatorMessage& message) {
  absl::MutexLock lock(&mutex_);
  if (ending()) return;
  if (queued() < kMaxQueuedMessages && queued_bytes() < kMaxQueuedBytes) {
    return Queue(message);
  }
  DropQueued();
  EndLocked(absl::ResourceExhaustedError("the member does not read its messages"));
}

std::optional<MessageRefused> JoinStream::TakeMessage(v1::MemberMessage* message) const {
  const auto refused = [this](v1::Refusal refusal, absl::string_view reason) {
    return MessageRefused{connection_, refusal, std::string(reason)};
  };
  if (const size_t bytes = incoming_.Length(); bytes > size_t{kMaxMessageBytes}) {
    return refused(
        v1::REFUSAL_OVERSIZED,
        absl::StrCat("a message of ", bytes, " bytes exceeds the limit of ", kMaxMessageBytes));
  }
  if (const absl::Status parsed = ParseWithin(kMaxMessageMemory, incoming_, message);
      !parsed.ok()) {
    return refused(
        absl::IsResourceExhausted(parsed) ? v1::REFUSAL_OVERSIZED : v1::REFUSAL_MALFORMED,
        parsed.message());
  }
  if (const absl::Status text = LimitText(*message); !text.ok()) {
    return refused(v1::REFUSAL_MALFORMED, text.message());
  }
  if (certificate_.has_value() && message->has_hello()) {
    const std::string error = IdentityError(*certificate_, message->hello());
    if (!error.empty()) return refused(v1::REFUSAL_WRONG_IDENTITY, error);
  }
  return std::nullopt;
}

void JoinStream::OnReadDone(bool ok) {
  if (!ok) {
    End(absl::OkStatus());
    return;
  }
  v1::MemberMessage message;
  if (const std::optional<MessageRefused> refused = TakeMessage(&message)) {
    // The machine refuses the message by name and ends the stream, so no further read starts.
    post_(*refused);
    return;
  }
  {
    absl::MutexLock lock(&mutex_);
    unhandled_.push_back(incoming_.Length());
    unhandled_bytes_ += incoming_.Length();
  }
  if (!post_(MessageReceived{connection_, std::move(message)})) {
    End(absl::UnavailableError("the coordinator is stopping"));
    return;
  }
  absl::MutexLock lock(&mutex_);
  reading_ = false;
  ReadNext();
}

void JoinStream::OnDone() {
  post_(StreamClosed{connection_});
  StreamWriter::OnDone();
}

// ---- WatchStream

const RunUpdates::Entry& RunUpdates::Find(const Machine& machine, const std::string& run,
                                          uint64_t revision, absl::Time now) {
  const auto found = entries_.find(run);
  if (found != entries_.end() &&
      (found->second.revision == revision || now < found->second.computed + kInterval)) {
    return found->second;
  }
  // Runs that nobody watches any more, or that no longer exist.
  std::erase_if(entries_, [&](const auto& entry) {
    return entry.first != run && now > entry.second.computed + absl::Minutes(1);
  });
  Entry& entry = entries_[run];
  entry = {.update = machine.Update(run, now), .revision = revision, .computed = now};
  entry.text = WithoutTimes(entry.update);
  return entry;
}

absl::Time WatchStream::MaybeSend(const Machine& machine, RunUpdates& updates, absl::Time now) {
  absl::MutexLock lock(&mutex_);
  // A slow caller receives fewer updates: none is queued while one is being written.
  if (ending()) return absl::InfiniteFuture();
  if (queued() > 0) return now + kInterval;
  if (now < next_) return next_;
  const bool behind = SendChanges(machine, updates, now);
  next_ = now + kInterval;
  return behind ? next_ : absl::InfiniteFuture();
}

bool WatchStream::SendChanges(const Machine& machine, RunUpdates& updates, absl::Time now) {
  // A name may stand for a newer run later.
  if (std::string id = machine.IdOf(run_); !id.empty()) run_ = std::move(id);
  const std::map<std::string, uint64_t> revisions = machine.Revisions(run_);
  if (!run_.empty() && revisions.empty()) {
    EndLocked(absl::NotFoundError(absl::StrCat("no such run: ", run_)));
    return false;
  }
  std::erase_if(sent_, [&](const auto& entry) { return !revisions.contains(entry.first); });
  bool behind = false;
  for (const auto& [id, revision] : revisions) {
    Sent& sent = sent_[id];
    if (sent.revision == revision) continue;
    const RunUpdates::Entry& entry = updates.Find(machine, id, revision, now);
    behind |= entry.revision != revision;
    if (std::exchange(sent.revision, entry.revision) == entry.revision) continue;
    if (std::exchange(sent.text, entry.text) != entry.text) Queue(entry.update);
    if (!IsLive(entry.update.run().state()) && !run_.empty()) EndLocked(absl::OkStatus());
  }
  return behind;
}

}  // namespace cadre
