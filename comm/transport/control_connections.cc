#include "comm/transport/control_connections.h"

#include <glog/logging.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "comm/transport/suspects.h"

namespace cadre {
namespace {

static_assert(std::endian::native == std::endian::little, "notices are sent in memory order");

// Longer reasons are truncated.
constexpr size_t kMaxReason = 1024;

struct Notice {
  // kReleased: as kAborted, of a rank that was released from the group.
  enum Kind : uint32_t { kGoodbye = 0x600dbe01, kAborted = 0xdeadbe02, kReleased = 0x1ea5be03 };
  uint32_t kind = 0;
  // The rank that reported the failure first, and the one that it suspects.
  uint32_t origin = 0;
  uint32_t suspect = 0;
  // Bytes of the reason that follow.
  uint32_t length = 0;
};

void SendNotice(const Socket& socket, const Notice& notice, absl::string_view text) {
  if (socket.empty()) return;
  std::string bytes(reinterpret_cast<const char*>(&notice), sizeof notice);
  absl::StrAppend(&bytes, text);
  // A peer that does not receive the notice detects a loss instead.
  std::ignore = send(socket.fd(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
}

absl::Status LostPeerError(int rank, absl::string_view how) {
  return WithSuspects(absl::UnavailableError(absl::StrCat("rank ", rank, " is lost: ", how)),
                      {rank});
}

}  // namespace

ControlConnections::ControlConnections(int rank, std::vector<Socket> sockets)
    : rank_(rank), received_(sockets.size()) {
  for (Socket& socket : sockets) {
    peers_.push_back(std::make_unique<Peer>());
    peers_.back()->ended = socket.empty();
    peers_.back()->socket = std::move(socket);
  }
}

absl::Status ControlConnections::status() const {
  absl::MutexLock lock(&mutex_);
  return status_;
}

void ControlConnections::AddPolled(std::vector<pollfd>& polled) const {
  for (const auto& peer : peers_) {
    if (!peer->ended.load(std::memory_order_relaxed)) {
      polled.push_back({.fd = peer->socket.fd(), .events = POLLIN | POLLRDHUP});
    }
  }
}

absl::Status ControlConnections::Poll() {
  bool changed = false;
  absl::Status status;
  {
    absl::MutexLock lock(&mutex_);
    // All connections are read first: a reason from one peer explains the loss of another.
    absl::Status loss;
    Failure reported;
    for (int rank = 0; rank < size(); ++rank) {
      absl::Status one = ReadFrom(rank, &changed, &reported);
      if (loss.ok()) loss = std::move(one);
    }
    if (reported.status.ok() && !loss.ok()) {
      reported = {.status = loss, .origin = rank_, .reason = std::string(loss.message())};
    }
    if (!reported.status.ok() && Record(std::move(reported))) changed = true;
    status = status_;
  }
  if (changed && changed_) changed_();
  return status;
}

absl::Status ControlConnections::AwaitNotice(int peer, absl::Duration timeout) {
  const absl::Time until = absl::Now() + timeout;
  while (true) {
    absl::Status status = Poll();
    if (!status.ok() || At(peer).ended) return status;
    const absl::Duration left = until - absl::Now();
    if (left <= absl::ZeroDuration()) return status;
    pollfd entry{.fd = At(peer).socket.fd(), .events = POLLIN | POLLRDHUP};
    poll(&entry, 1, absl::ToInt64Milliseconds(left) + 1);
  }
}

absl::Status ControlConnections::ReadFrom(int rank, bool* changed, Failure* failure) {
  Peer& peer = At(rank);
  while (!peer.ended) {
    char part[sizeof(Notice) + kMaxReason];
    const ssize_t got = recv(peer.socket.fd(), part, sizeof part, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return absl::OkStatus();
    if (got <= 0) {
      peer.ended = true;
      return LostPeerError(rank, got == 0 ? "it closed the connection" : std::strerror(errno));
    }
    received_[rank].append(part, got);
    CADRE_RETURN_IF_ERROR(ParseNotice(rank, changed, failure));
  }
  return absl::OkStatus();
}

absl::Status ControlConnections::ParseNotice(int rank, bool* changed, Failure* failure) {
  Peer& peer = At(rank);
  const std::string& received = received_[rank];
  Notice notice;
  if (received.size() < sizeof notice) return absl::OkStatus();
  std::memcpy(&notice, received.data(), sizeof notice);
  if (notice.kind == Notice::kGoodbye) {
    peer.left = true;
    peer.ended = true;
    *changed = true;
    return absl::OkStatus();
  }
  const bool released = notice.kind == Notice::kReleased;
  if ((notice.kind != Notice::kAborted && !released) || notice.length > kMaxReason) {
    peer.ended = true;
    return LostPeerError(rank, "it sent an invalid control message");
  }
  if (received.size() < sizeof notice + notice.length) return absl::OkStatus();
  peer.ended = true;
  if (!failure->status.ok()) return absl::OkStatus();
  failure->origin = notice.origin;
  failure->reason = received.substr(sizeof notice, notice.length);
  failure->status = WithSuspects(
      absl::UnavailableError(absl::StrCat("rank ", failure->origin, " aborted: ", failure->reason)),
      {static_cast<int>(notice.suspect)});
  if (released) failure->status = WithRelease(std::move(failure->status));
  return absl::OkStatus();
}

bool ControlConnections::Record(Failure failure) {
  if (!status_.ok()) return false;
  status_ = std::move(failure.status);
  const std::string reason = failure.reason.substr(0, kMaxReason);
  const bool released = absl::IsCancelled(status_) || IsOfRelease(status_);
  Notice notice{.kind = released ? Notice::kReleased : Notice::kAborted};
  notice.origin = failure.origin;
  // A failure without suspects is its origin's own.
  const std::vector<int> suspects = SuspectsOf(status_);
  notice.suspect = suspects.empty() ? failure.origin : suspects.front();
  notice.length = reason.size();
  for (const auto& peer : peers_) {
    if (peer->socket.empty()) continue;
    SendNotice(peer->socket, notice, reason);
    shutdown(peer->socket.fd(), SHUT_WR);
  }
  failed_.store(true, std::memory_order_release);
  return true;
}

absl::Status ControlConnections::Fail(const absl::Status& error) {
  CHECK(!error.ok());
  bool first = false;
  absl::Status status;
  {
    absl::MutexLock lock(&mutex_);
    first = Record({.status = error, .origin = rank_, .reason = std::string(error.message())});
    status = status_;
  }
  if (first && changed_) changed_();
  return status;
}

void ControlConnections::SendGoodbye() {
  absl::MutexLock lock(&mutex_);
  if (!status_.ok()) return;
  for (const auto& peer : peers_) SendNotice(peer->socket, {.kind = Notice::kGoodbye}, "");
}

}  // namespace cadre
