// A link over n >= 1 TCP connections.
//
// One connection carries at most its window per round trip. If bandwidth times delay exceeds the
// window that the kernel grants a socket, n = ceil(bandwidth * delay / window) connections are
// used. The byte stream is cut into stripes of kStripeBytes, which use the connections in turn.
// Both ends count bytes, so position / kStripeBytes modulo n gives the connection without any
// framing.
//
// Invariants:
// - Bytes are sent and received strictly in stream order; a full connection blocks the stream even
//   if the next one has room. Otherwise the receiver would have to reorder.
// - Staged bytes lie at addresses that equal their stream position modulo kAlignment. A payload
//   begins at a multiple of kPayloadAlignment in the stream (channel.cc), so sums can be
//   computed where bytes were staged.
// - An error of the socket is reported after everything that arrived before it was delivered.
//
// Cost: data for a plain receive goes from the socket to its destination, and a read of a header
// takes up to kReadAhead further bytes along, so a small message costs one recvmsg. Data for a sum
// passes through staging, which fits into the second-level cache. Send buffers are bounded on short
// links: with autotuning, megabytes queue in the kernel and the receiver reads them from memory,
// not cache.
//
// Limits: the number of connections is fixed at connection time from the round trip of the first
// one and an assumed 10 Gbit/s (dial.cc).
#include "comm/transport/tcp_link.h"

#include <glog/logging.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace cadre {
namespace {

// Bytes received for sums are staged here. Small enough that the addition finds them in the cache.
constexpr size_t kStagingBytes = size_t{256} << 10;
// Bytes read in addition to the requested ones, so that one system call reads a small message and
// its header.
constexpr size_t kReadAhead = size_t{8} << 10;
// Alignment that staged bytes keep (see the invariants).
constexpr size_t kAlignment = 64;
// Links with a shorter round trip (seconds) get a small send buffer, which the kernel doubles: it
// fills the link, and the receiver reads from the cache instead of memory. Longer links keep
// autotuning.
constexpr double kSmallSendBufferRoundTrip = 3e-4;
constexpr int kSmallSendBuffer = 192 << 10;
// An upper bound of the size of an element.
constexpr size_t kMaxElement = 64;

bool WouldBlock(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

// At most `limit` bytes of `data` after the first `skip`.
iovec ToSend(std::span<const std::byte> data, size_t skip, size_t limit) {
  skip = std::min(skip, data.size());
  // sendmsg does not modify the data.
  return {const_cast<std::byte*>(data.data()) + skip, std::min(data.size() - skip, limit)};
}

void LimitSendBuffer(const Socket& connection) {
  if (RoundTrip(connection) >= kSmallSendBufferRoundTrip) return;
  setsockopt(connection.fd(), SOL_SOCKET, SO_SNDBUF, &kSmallSendBuffer, sizeof kSmallSendBuffer);
}

msghdr MessageOf(std::array<iovec, 2>& parts) {
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  return message;
}

// Position in a stream of bytes, and the connection that carries the next byte.
class StripeCursor {
 public:
  explicit StripeCursor(size_t connections) : connections_(connections) {}

  size_t connection() const {
    return connections_ == 1 ? 0 : position_ / kStripeBytes % connections_;
  }
  // Bytes until the next connection is used.
  size_t room() const {
    return connections_ == 1 ? SIZE_MAX : kStripeBytes - position_ % kStripeBytes;
  }
  void Advance(size_t bytes) { position_ += bytes; }
  uint64_t position() const { return position_; }

 private:
  const size_t connections_;
  uint64_t position_ = 0;
};

class TcpLink final : public Link {
 public:
  explicit TcpLink(std::vector<Socket> connections)
      : connections_(std::move(connections)),
        written_(connections_.size()),
        read_(connections_.size()) {}

  LinkKind kind() const override { return LinkKind::kTcp; }
  absl::StatusOr<size_t> Write(std::span<const std::byte> first,
                               std::span<const std::byte> second) override;
  absl::StatusOr<size_t> Read(std::span<std::byte> into) override;
  absl::StatusOr<std::span<const std::byte>> Peek(size_t limit) override;
  void Consume(size_t bytes) override;
  bool PrepareWait(bool to_read, bool to_write, std::vector<pollfd>& polled) override;
  void EndWait() override {}
  void Shutdown() override;

 private:
  size_t staged() const { return end_ - begin_; }
  // Moves staged bytes to `into`.
  size_t TakeStaged(std::span<std::byte> into);
  // Receives from the current connection into `into`, and then up to `to_stage` bytes after the
  // staged ones. Returns the number of bytes; 0 if none are available. Requires: at least one byte
  // is requested; nothing is staged, or `into` is empty.
  absl::StatusOr<size_t> Receive(std::span<std::byte> into, size_t to_stage);
  // Moves the staged bytes to the front of the staging memory. `ahead`: number of bytes that will
  // be received before the next staged one.
  void MakeRoom(size_t ahead);

  // Not closed before destruction, so that any thread may shut them down.
  const std::vector<Socket> connections_;
  StripeCursor written_;
  // Bytes received from the sockets, including the staged ones.
  StripeCursor read_;

  // Received but not consumed: [begin_, end_). Allocated on first use, since a link that only sends
  // needs none.
  std::vector<std::byte> staging_;
  size_t begin_ = 0;
  size_t end_ = 0;
  // Number of staged bytes that the last Peek returned.
  size_t peeked_ = 0;
};

absl::StatusOr<size_t> TcpLink::Write(std::span<const std::byte> first,
                                      std::span<const std::byte> second) {
  size_t done = 0;
  const size_t all = first.size() + second.size();
  while (done < all) {
    const size_t part = std::min(all - done, written_.room());
    std::array<iovec, 2> parts = {ToSend(first, done, part), iovec{}};
    const size_t skip = std::max(done, first.size()) - first.size();
    parts[1] = ToSend(second, skip, part - parts[0].iov_len);
    const msghdr message = MessageOf(parts);
    const ssize_t sent = sendmsg(connections_[written_.connection()].fd(), &message, MSG_NOSIGNAL);
    if (sent < 0 && WouldBlock(errno)) break;
    if (sent < 0) return absl::UnavailableError(std::strerror(errno));
    done += sent;
    written_.Advance(sent);
    if (std::cmp_less(sent, part)) break;
  }
  return done;
}

absl::StatusOr<size_t> TcpLink::Read(std::span<std::byte> into) {
  size_t done = TakeStaged(into);
  while (done < into.size()) {
    const size_t part = std::min(into.size() - done, read_.room());
    // No read-ahead for a large part: the bytes after it are read with their own header.
    const absl::StatusOr<size_t> got =
        Receive(into.subspan(done, part), part < kReadAhead ? kReadAhead : 0);
    // Bytes received before the end are returned first; the next call returns the error again.
    if (!got.ok() && done > 0) break;
    if (!got.ok()) return got;
    done += std::min(part, *got);
    if (*got < part) break;
  }
  return done;
}

absl::StatusOr<std::span<const std::byte>> TcpLink::Peek(size_t limit) {
  if (staged() < std::min(limit, kMaxElement)) {
    const size_t target = std::min(limit + kReadAhead, kStagingBytes);
    const absl::StatusOr<size_t> got = Receive({}, target - staged());
    // Bytes that no Peek has returned precede the error, which the next call returns again.
    if (!got.ok() && staged() <= peeked_) return got.status();
  }
  peeked_ = std::min(limit, staged());
  return std::span<const std::byte>(staging_).subspan(begin_, peeked_);
}

void TcpLink::Consume(size_t bytes) {
  CHECK_LE(bytes, peeked_);
  begin_ += bytes;
  peeked_ -= bytes;
}

bool TcpLink::PrepareWait(bool to_read, bool to_write, std::vector<pollfd>& polled) {
  // An incomplete element that the caller has seen does not prevent sleep.
  if (to_read && (staged() > peeked_ || staged() >= kMaxElement)) return false;
  const int reading = connections_[read_.connection()].fd();
  const int writing = connections_[written_.connection()].fd();
  if (to_read) polled.push_back({.fd = reading, .events = POLLIN});
  if (to_write && to_read && reading == writing) {
    polled.back().events |= POLLOUT;
  } else if (to_write) {
    polled.push_back({.fd = writing, .events = POLLOUT});
  }
  return true;
}

void TcpLink::Shutdown() {
  for (const Socket& connection : connections_) shutdown(connection.fd(), SHUT_RDWR);
}

size_t TcpLink::TakeStaged(std::span<std::byte> into) {
  const size_t taken = std::min(into.size(), staged());
  if (taken > 0) std::memcpy(into.data(), &staging_[begin_], taken);
  begin_ += taken;
  peeked_ = 0;
  return taken;
}

absl::StatusOr<size_t> TcpLink::Receive(std::span<std::byte> into, size_t to_stage) {
  DCHECK(into.empty() || staged() == 0);
  to_stage = std::min(to_stage, read_.room() - into.size());
  std::array<iovec, 2> parts = {iovec{into.data(), into.size()}, iovec{}};
  if (to_stage > 0) {
    MakeRoom(into.size());
    parts[1] = {&staging_[end_], to_stage};
  }
  msghdr message = MessageOf(parts);
  const ssize_t got = recvmsg(connections_[read_.connection()].fd(), &message, 0);
  if (got == 0) return absl::UnavailableError("it closed the connection");
  if (got < 0 && WouldBlock(errno)) return 0;
  if (got < 0) return absl::UnavailableError(std::strerror(errno));
  const size_t received = got;
  read_.Advance(received);
  if (received > into.size()) end_ += received - into.size();
  return received;
}

void TcpLink::MakeRoom(size_t ahead) {
  if (staging_.empty()) staging_.resize(kStagingBytes + kAlignment);
  const size_t kept = staged();
  const size_t begin = (read_.position() + ahead - kept) % kAlignment;
  if (kept > 0 && begin != begin_) std::memmove(&staging_[begin], &staging_[begin_], kept);
  begin_ = begin;
  end_ = begin + kept;
}

}  // namespace

int ConnectionsFor(double round_trip_seconds, double bytes_per_second, double window_bytes) {
  const double in_flight = round_trip_seconds * bytes_per_second;
  // Also catches NaN and values beyond the range of int.
  if (!(in_flight < window_bytes * kMaxConnections)) return kMaxConnections;
  return std::max(1.0, std::ceil(in_flight / window_bytes));
}

std::unique_ptr<Link> MakeTcpLink(std::vector<Socket> connections) {
  CHECK(!connections.empty());
  for (const Socket& connection : connections) LimitSendBuffer(connection);
  return std::make_unique<TcpLink>(std::move(connections));
}

}  // namespace cadre
