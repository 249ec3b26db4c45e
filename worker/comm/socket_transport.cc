#include "worker/comm/socket_transport.h"

#include <glog/logging.h>
#include <poll.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "base/status.h"

namespace cadre {
namespace {

static_assert(std::endian::native == std::endian::little, "headers travel in memory order");

using SteadyClock = std::chrono::steady_clock;

// How long the end of a transport may wait for room to say goodbye.
constexpr absl::Duration kGoodbyeTimeout = absl::Milliseconds(500);

struct Header {
  enum Kind : uint64_t { kData = 0x0123456789abcdef, kGoodbye = 0x0fedcba987654321 };
  uint64_t kind = kData;
  uint64_t tag = 0;
  uint64_t length = 0;
};
static_assert(sizeof(Header) == 24);

struct Peer {
  Socket socket;
  // The stream has ended in good order; `rest` is what was unread of it.
  bool ended = false;
  std::string rest;
  size_t rest_used = 0;
};

// A message on its way out: `done` of header and payload are sent.
struct Outgoing {
  int to = -1;
  Header header;
  std::span<const std::byte> payload;
  size_t done = 0;
  bool complete() const { return to < 0 || done == sizeof(Header) + payload.size(); }
};

// A message on its way in: `done` of header and payload are received.
struct Incoming {
  int from = -1;
  uint64_t tag = 0;
  Header header;
  std::span<std::byte> payload;
  size_t done = 0;
  bool checked = false;
  bool complete() const { return from < 0 || (checked && done == sizeof(Header) + payload.size()); }
};

// What is left, from `done` on, of a header and the payload behind it.
std::array<iovec, 2> Remaining(void* header, void* payload, size_t payload_size, size_t done) {
  const size_t in_header = std::min(done, sizeof(Header));
  const size_t in_payload = done - in_header;
  return {iovec{static_cast<char*>(header) + in_header, sizeof(Header) - in_header},
          iovec{static_cast<char*>(payload) + in_payload, payload_size - in_payload}};
}

msghdr MessageOf(std::array<iovec, 2>& parts) {
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  return message;
}

// recvmsg from what was read ahead.
size_t TakeRest(Peer& peer, const std::array<iovec, 2>& parts) {
  size_t taken = 0;
  for (const iovec& part : parts) {
    const size_t n = std::min(part.iov_len, peer.rest.size() - peer.rest_used);
    if (n > 0) std::memcpy(part.iov_base, peer.rest.data() + peer.rest_used, n);
    peer.rest_used += n;
    taken += n;
  }
  return taken;
}

// Whether `bytes` are whole messages of which the last is a goodbye.
bool EndsInGoodbye(absl::string_view bytes) {
  while (bytes.size() >= sizeof(Header)) {
    Header header;
    std::memcpy(&header, bytes.data(), sizeof header);
    bytes.remove_prefix(sizeof header);
    if (header.kind == Header::kGoodbye) return bytes.empty();
    if (header.kind != Header::kData || header.length > bytes.size()) return false;
    bytes.remove_prefix(header.length);
  }
  return false;
}

bool WouldBlock(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

absl::Status Lost(int rank, absl::string_view how) {
  return absl::UnavailableError(absl::StrCat("rank ", rank, " is lost: ", how));
}

absl::Status HasLeft(int rank) {
  return absl::UnavailableError(absl::StrCat("rank ", rank, " has left the group"));
}

class SocketTransport final : public Transport {
 public:
  SocketTransport(int rank, std::vector<Socket> sockets, Socket wake, absl::Duration timeout);
  ~SocketTransport() override;

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(peers_.size()); }

  absl::Status Send(int to, uint64_t tag, std::span<const std::byte> data) override;
  absl::Status Receive(int from, uint64_t tag, std::span<std::byte> data) override;
  absl::Status Exchange(int to, std::span<const std::byte> send, int from,
                        std::span<std::byte> receive, uint64_t tag) override;
  void Abort(absl::Status reason) override;
  absl::Status status() const override ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  Peer& At(int rank) { return peers_[static_cast<size_t>(rank)]; }
  bool IsPeer(int rank) const { return rank >= 0 && rank < size() && rank != rank_; }

  // Moves both messages to completion; either may be none.
  absl::Status Run(Outgoing out, Incoming in);
  absl::Status Move(Outgoing& out, Incoming& in);
  // These set `moved` when bytes moved.
  absl::Status MoveOut(Outgoing& out, bool* moved);
  absl::Status MoveIn(Incoming& in, bool* moved);
  absl::Status CheckHeader(const Incoming& in) const;
  // Waits until something can move, at most until `deadline`.
  absl::Status Wait(const Outgoing& out, const Incoming& in, SteadyClock::time_point deadline);
  absl::Status TimedOut(const Outgoing& out, const Incoming& in) const;
  // The stream of a peer that is not being received from has ended: reads what is left of it.
  absl::Status ReadToEnd(int rank);

  // Kills the group with `error` unless it is dead already; returns the first error.
  absl::Status Fail(const absl::Status& error) ABSL_LOCKS_EXCLUDED(mutex_);
  void SayGoodbye();

  const int rank_;
  // Descriptors stay open until the end, so that Abort may shut them down from any thread.
  std::vector<Peer> peers_;
  const Socket wake_;
  const absl::Duration timeout_;
  // One entry per peer, and the wake descriptor.
  std::vector<pollfd> polled_;

  std::atomic<bool> dead_{false};
  mutable absl::Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

SocketTransport::SocketTransport(int rank, std::vector<Socket> sockets, Socket wake,
                                 absl::Duration timeout)
    : rank_(rank), peers_(sockets.size()), wake_(std::move(wake)), timeout_(timeout) {
  for (size_t i = 0; i < sockets.size(); ++i) peers_[i].socket = std::move(sockets[i]);
  polled_.resize(peers_.size() + 1);
}

SocketTransport::~SocketTransport() {
  if (!dead_) SayGoodbye();
}

absl::Status SocketTransport::Send(int to, uint64_t tag, std::span<const std::byte> data) {
  CHECK(IsPeer(to)) << to;
  return Run({.to = to, .header = {.tag = tag, .length = data.size()}, .payload = data}, {});
}

absl::Status SocketTransport::Receive(int from, uint64_t tag, std::span<std::byte> data) {
  CHECK(IsPeer(from)) << from;
  return Run({}, {.from = from, .tag = tag, .payload = data});
}

absl::Status SocketTransport::Exchange(int to, std::span<const std::byte> send, int from,
                                       std::span<std::byte> receive, uint64_t tag) {
  CHECK(IsPeer(to)) << to;
  CHECK(IsPeer(from)) << from;
  return Run({.to = to, .header = {.tag = tag, .length = send.size()}, .payload = send},
             {.from = from, .tag = tag, .payload = receive});
}

void SocketTransport::Abort(absl::Status reason) {
  CHECK(!reason.ok());
  Fail(reason).IgnoreError();
}

absl::Status SocketTransport::status() const {
  absl::MutexLock lock(&mutex_);
  return status_;
}

absl::Status SocketTransport::Run(Outgoing out, Incoming in) {
  if (dead_) return status();
  absl::Status moved = Move(out, in);
  // A dead socket may be noticed before the abort that shut it: the first error wins.
  return moved.ok() ? moved : Fail(moved);
}

absl::Status SocketTransport::Move(Outgoing& out, Incoming& in) {
  const auto timeout = absl::ToChronoNanoseconds(timeout_);
  SteadyClock::time_point deadline = SteadyClock::now() + timeout;
  while (true) {
    bool moved = false;
    CADRE_RETURN_IF_ERROR(MoveOut(out, &moved));
    CADRE_RETURN_IF_ERROR(MoveIn(in, &moved));
    if (out.complete() && in.complete()) return absl::OkStatus();
    if (dead_) return status();
    if (moved) {
      deadline = SteadyClock::now() + timeout;
    } else {
      CADRE_RETURN_IF_ERROR(Wait(out, in, deadline));
    }
  }
}

absl::Status SocketTransport::MoveOut(Outgoing& out, bool* moved) {
  if (out.complete()) return absl::OkStatus();
  Peer& peer = At(out.to);
  if (peer.ended) return HasLeft(out.to);
  auto* payload = const_cast<std::byte*>(out.payload.data());
  auto parts = Remaining(&out.header, payload, out.payload.size(), out.done);
  const msghdr message = MessageOf(parts);
  const ssize_t sent = sendmsg(peer.socket.fd(), &message, MSG_NOSIGNAL);
  if (sent > 0) {
    out.done += static_cast<size_t>(sent);
    *moved = true;
  } else if (sent < 0 && !WouldBlock(errno)) {
    return Lost(out.to, std::strerror(errno));
  }
  return absl::OkStatus();
}

absl::Status SocketTransport::MoveIn(Incoming& in, bool* moved) {
  if (in.complete()) return absl::OkStatus();
  Peer& peer = At(in.from);
  auto parts = Remaining(&in.header, in.payload.data(), in.payload.size(), in.done);
  size_t received = 0;
  if (peer.ended) {
    received = TakeRest(peer, parts);
    if (received == 0) return HasLeft(in.from);
  } else {
    msghdr message = MessageOf(parts);
    const ssize_t got = recvmsg(peer.socket.fd(), &message, 0);
    if (got == 0) return Lost(in.from, "it closed the connection");
    if (got < 0 && WouldBlock(errno)) return absl::OkStatus();
    if (got < 0) return Lost(in.from, std::strerror(errno));
    received = static_cast<size_t>(got);
  }
  in.done += received;
  *moved = true;
  if (!in.checked && in.done >= sizeof(Header)) {
    CADRE_RETURN_IF_ERROR(CheckHeader(in));
    in.checked = true;
  }
  return absl::OkStatus();
}

absl::Status SocketTransport::CheckHeader(const Incoming& in) const {
  if (in.header.kind == Header::kGoodbye) return HasLeft(in.from);
  if (in.header.kind != Header::kData) {
    return absl::InternalError(absl::StrCat("rank ", in.from, " sent what is not a message"));
  }
  if (in.header.tag != in.tag) {
    return absl::InternalError(absl::StrFormat("rank %d sent tag %016x where rank %d expects %016x",
                                               in.from, in.header.tag, rank_, in.tag));
  }
  if (in.header.length != in.payload.size()) {
    return absl::InternalError(
        absl::StrFormat("rank %d sent %d bytes where rank %d expects %d (tag %016x)", in.from,
                        in.header.length, rank_, in.payload.size(), in.tag));
  }
  return absl::OkStatus();
}

absl::Status SocketTransport::Wait(const Outgoing& out, const Incoming& in,
                                   SteadyClock::time_point deadline) {
  for (int rank = 0; rank < size(); ++rank) {
    const Peer& peer = At(rank);
    pollfd& entry = polled_[static_cast<size_t>(rank)];
    // poll() passes over negative descriptors.
    entry = {.fd = peer.ended ? -1 : peer.socket.fd(), .events = POLLRDHUP};
    if (rank == out.to && !out.complete()) entry.events |= POLLOUT;
    if (rank == in.from && !in.complete()) entry.events |= POLLIN;
  }
  polled_.back() = {.fd = wake_.fd(), .events = POLLIN};
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - SteadyClock::now());
  if (left.count() <= 0) return TimedOut(out, in);
  const int wait = static_cast<int>(std::min<int64_t>(left.count(), 1 << 30));
  if (poll(polled_.data(), polled_.size(), wait) < 0 && errno != EINTR) {
    return absl::InternalError(absl::StrCat("poll: ", std::strerror(errno)));
  }
  if (dead_) return status();
  for (int rank = 0; rank < size(); ++rank) {
    const short seen = polled_[static_cast<size_t>(rank)].revents;
    // The stream that is being received is read in its own order.
    if (rank == in.from && !in.complete()) continue;
    if (seen & (POLLRDHUP | POLLHUP | POLLERR)) CADRE_RETURN_IF_ERROR(ReadToEnd(rank));
  }
  return absl::OkStatus();
}

absl::Status SocketTransport::TimedOut(const Outgoing& out, const Incoming& in) const {
  std::string what;
  if (!out.complete()) absl::StrAppend(&what, "sending to rank ", out.to);
  if (!in.complete()) {
    absl::StrAppend(&what, what.empty() ? "" : " and ", "receiving from rank ", in.from);
  }
  return absl::DeadlineExceededError(absl::StrCat("rank ", rank_, " made no progress ", what,
                                                  " for ", absl::FormatDuration(timeout_)));
}

absl::Status SocketTransport::ReadToEnd(int rank) {
  Peer& peer = At(rank);
  // The peer's end has arrived, so what is left fits the kernel's buffer and is there.
  std::string part(64 << 10, '\0');
  while (true) {
    const ssize_t got = recv(peer.socket.fd(), part.data(), part.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    peer.rest.append(part.data(), static_cast<size_t>(got));
  }
  if (!EndsInGoodbye(peer.rest)) return Lost(rank, "it closed the connection");
  peer.ended = true;
  return absl::OkStatus();
}

absl::Status SocketTransport::Fail(const absl::Status& error) {
  absl::Status first;
  {
    absl::MutexLock lock(&mutex_);
    if (status_.ok()) status_ = error;
    first = status_;
  }
  if (dead_.exchange(true)) return first;
  for (const Peer& peer : peers_) {
    if (!peer.socket.empty()) shutdown(peer.socket.fd(), SHUT_RDWR);
  }
  Wake(wake_);
  return first;
}

void SocketTransport::SayGoodbye() {
  const Header goodbye{.kind = Header::kGoodbye};
  const SteadyClock::time_point deadline =
      SteadyClock::now() + absl::ToChronoNanoseconds(std::min(kGoodbyeTimeout, timeout_));
  for (Peer& peer : peers_) {
    if (peer.socket.empty() || peer.ended) continue;
    pollfd room{.fd = peer.socket.fd(), .events = POLLOUT};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - SteadyClock::now());
    poll(&room, 1, static_cast<int>(std::max<int64_t>(left.count(), 0)));
    // Where there is no room even now, the peer sees a death instead of a departure.
    send(peer.socket.fd(), &goodbye, sizeof goodbye, MSG_NOSIGNAL);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> MakeSocketTransport(int rank,
                                                               std::vector<Socket> sockets,
                                                               absl::Duration timeout) {
  CADRE_ASSIGN_OR_RETURN(Socket wake, MakeWake());
  return std::make_unique<SocketTransport>(rank, std::move(sockets), std::move(wake), timeout);
}

}  // namespace cadre
