#include "worker/transport/tcp_link.h"

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

// What is added from lies here in between. Small enough that the sum finds it in the cache.
constexpr size_t kStagingBytes = size_t{256} << 10;
// Read along with what is asked for, so that a small message costs one system call with its header.
constexpr size_t kReadAhead = size_t{8} << 10;
// Staged bytes lie at addresses that agree with their place in the stream in this many, so that
// what is aligned there is aligned here.
constexpr size_t kAlignment = 64;
// On a link whose round trip is shorter than this, a connection keeps no more than the second
// number on its way (the kernel doubles it): it fills the link all the same, and what the receiver
// reads is still in a cache. Left alone the kernel lets megabytes pile up, which then come from
// memory. Longer links need what the kernel finds out.
constexpr double kShortRoundTrip = 3e-4;
constexpr int kShortSendBuffer = 192 << 10;
// More than any element: so many bytes hold a whole one.
constexpr size_t kWholeElement = 64;

bool WouldBlock(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

absl::Status Gone(absl::string_view how) { return absl::UnavailableError(how); }

// At most `most` bytes of `data` behind the first `skip`.
iovec ToSend(std::span<const std::byte> data, size_t skip, size_t most) {
  skip = std::min(skip, data.size());
  // The kernel only reads what is sent.
  return {const_cast<std::byte*>(data.data()) + skip, std::min(data.size() - skip, most)};
}

void BoundWhatIsOnItsWay(const Socket& lane) {
  if (RoundTrip(lane) >= kShortRoundTrip) return;
  setsockopt(lane.fd(), SOL_SOCKET, SO_SNDBUF, &kShortSendBuffer, sizeof kShortSendBuffer);
}

msghdr MessageOf(std::array<iovec, 2>& parts) {
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  return message;
}

// Where a stream of bytes is on its way over the lanes in turn.
class StripeCursor {
 public:
  explicit StripeCursor(size_t lanes) : lanes_(lanes) {}

  size_t lane() const { return lanes_ == 1 ? 0 : position_ / kStripeBytes % lanes_; }
  // Bytes that the lane still takes before the next has its turn.
  size_t room() const { return lanes_ == 1 ? SIZE_MAX : kStripeBytes - position_ % kStripeBytes; }
  void Advance(size_t bytes) { position_ += bytes; }
  uint64_t position() const { return position_; }

 private:
  const size_t lanes_;
  uint64_t position_ = 0;
};

class TcpLink final : public Link {
 public:
  explicit TcpLink(std::vector<Socket> lanes)
      : lanes_(std::move(lanes)), written_(lanes_.size()), read_(lanes_.size()) {}

  LinkKind kind() const override { return LinkKind::kTcp; }
  absl::StatusOr<size_t> Write(std::span<const std::byte> first,
                               std::span<const std::byte> second) override;
  absl::StatusOr<size_t> Read(std::span<std::byte> into) override;
  absl::StatusOr<std::span<const std::byte>> Peek(size_t most) override;
  void Consume(size_t bytes) override;
  bool PrepareWait(bool to_read, bool to_write, std::vector<pollfd>& polled) override;
  void EndWait() override {}
  void Shutdown() override;

 private:
  size_t staged() const { return end_ - begin_; }
  // Moves staged bytes to `into`.
  size_t TakeStaged(std::span<std::byte> into);
  // Receives from the lane whose turn it is: into `into`, then behind what is staged. Returns the
  // bytes that came; 0: none now. Requires: at least one byte to receive; nothing staged, or
  // nothing in `into`.
  absl::StatusOr<size_t> Receive(std::span<std::byte> into, size_t to_stage);
  // Moves what is staged to the front of the staging memory; `ahead` bytes will be received before
  // more is staged.
  void MakeRoom(size_t ahead);

  // Open until the end, so that any thread may shut them down.
  const std::vector<Socket> lanes_;
  StripeCursor written_;
  // Of what was taken from the sockets; what is staged is its end.
  StripeCursor read_;

  // Received but not taken: [begin_, end_). Made when first used: a link that only sends needs
  // none.
  std::vector<std::byte> staging_;
  size_t begin_ = 0;
  size_t end_ = 0;
  // Of the staged bytes, those that the last Peek showed.
  size_t shown_ = 0;
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
    const ssize_t sent = sendmsg(lanes_[written_.lane()].fd(), &message, MSG_NOSIGNAL);
    if (sent < 0 && WouldBlock(errno)) break;
    if (sent < 0) return Gone(std::strerror(errno));
    done += static_cast<size_t>(sent);
    written_.Advance(static_cast<size_t>(sent));
    if (static_cast<size_t>(sent) < part) break;
  }
  return done;
}

absl::StatusOr<size_t> TcpLink::Read(std::span<std::byte> into) {
  size_t done = TakeStaged(into);
  while (done < into.size()) {
    const size_t part = std::min(into.size() - done, read_.room());
    // A large part needs no company: what follows it is read with its own header.
    const absl::StatusOr<size_t> got =
        Receive(into.subspan(done, part), part < kReadAhead ? kReadAhead : 0);
    // What came before the end goes first; the error comes again.
    if (!got.ok() && done > 0) break;
    if (!got.ok()) return got;
    done += std::min(part, *got);
    if (*got < part) break;
  }
  return done;
}

absl::StatusOr<std::span<const std::byte>> TcpLink::Peek(size_t most) {
  if (staged() < std::min(most, kWholeElement)) {
    const size_t wanted = std::min(most + kReadAhead, kStagingBytes);
    const absl::StatusOr<size_t> got = Receive({}, wanted - staged());
    // Bytes that were not shown yet go before the error, which comes again.
    if (!got.ok() && staged() <= shown_) return got.status();
  }
  shown_ = std::min(most, staged());
  return std::span<const std::byte>(staging_).subspan(begin_, shown_);
}

void TcpLink::Consume(size_t bytes) {
  CHECK_LE(bytes, shown_);
  begin_ += bytes;
  shown_ -= bytes;
}

bool TcpLink::PrepareWait(bool to_read, bool to_write, std::vector<pollfd>& polled) {
  // Less than an element that was shown and left is no reason to stay awake.
  if (to_read && (staged() > shown_ || staged() >= kWholeElement)) return false;
  const int reading = lanes_[read_.lane()].fd();
  const int writing = lanes_[written_.lane()].fd();
  if (to_read) polled.push_back({.fd = reading, .events = POLLIN});
  if (to_write && to_read && reading == writing) {
    polled.back().events |= POLLOUT;
  } else if (to_write) {
    polled.push_back({.fd = writing, .events = POLLOUT});
  }
  return true;
}

void TcpLink::Shutdown() {
  for (const Socket& lane : lanes_) shutdown(lane.fd(), SHUT_RDWR);
}

size_t TcpLink::TakeStaged(std::span<std::byte> into) {
  const size_t taken = std::min(into.size(), staged());
  if (taken > 0) std::memcpy(into.data(), &staging_[begin_], taken);
  begin_ += taken;
  shown_ = 0;
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
  const ssize_t got = recvmsg(lanes_[read_.lane()].fd(), &message, 0);
  if (got == 0) return Gone("it closed the connection");
  if (got < 0 && WouldBlock(errno)) return 0;
  if (got < 0) return Gone(std::strerror(errno));
  const auto received = static_cast<size_t>(got);
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

int LanesFor(double round_trip_seconds, double bytes_per_second, double window_bytes) {
  const double under_way = round_trip_seconds * bytes_per_second;
  // Compared before it becomes a whole number, which it may be too large for.
  if (!(under_way < window_bytes * kMostLanes)) return kMostLanes;
  return std::max(1, static_cast<int>(std::ceil(under_way / window_bytes)));
}

std::unique_ptr<Link> MakeTcpLink(std::vector<Socket> lanes) {
  CHECK(!lanes.empty());
  for (const Socket& lane : lanes) BoundWhatIsOnItsWay(lane);
  return std::make_unique<TcpLink>(std::move(lanes));
}

}  // namespace cadre
