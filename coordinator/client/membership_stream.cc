#include "coordinator/client/membership_stream.h"

#include <algorithm>
#include <utility>

#include "base/protocol.h"

namespace cadre {
namespace {

// Time limit from connecting to Welcome, also if another coordinator may be the one that leads.
constexpr absl::Duration kHandshake = absl::Seconds(10);
constexpr absl::Duration kFailoverHandshake = absl::Seconds(3);
// Members wait for a restarted coordinator, and so do their runs.
constexpr absl::Duration kFirstRetry = absl::Milliseconds(100);
constexpr absl::Duration kMaxRetry = absl::Milliseconds(400);
// A coordinator that rejects members does so until it is started again. Less than a lease, so that
// groups survive this.
constexpr absl::Duration kMaxRetryOfRejected = absl::Seconds(5);

}  // namespace

MembershipStream::MembershipStream(uint64_t seed, uint64_t epoch, size_t max_queued, size_t servers)
    : max_queued_(max_queued),
      servers_(servers),
      backoff_(kFirstRetry, kMaxRetry, seed),
      rejection_backoff_(kFirstRetry, kMaxRetryOfRejected, seed),
      epoch_(epoch) {}

void MembershipStream::Open(absl::Time now) {
  handshake_until_ = now + (servers_ > 1 ? kFailoverHandshake : kHandshake);
}

v1::MemberMessage MembershipStream::First(v1::Hello hello) const {
  v1::MemberMessage message;
  *message.mutable_hello() = std::move(hello);
  message.mutable_hello()->set_protocol(kProtocol);
  message.mutable_hello()->set_member_id(member_id_);
  message.mutable_hello()->set_highest_epoch(epoch_);
  return message;
}

bool MembershipStream::AcceptEpoch(uint64_t epoch) {
  if (epoch < epoch_) {
    ++stale_epochs_;
    rejected_ = !welcomed_;
    return false;
  }
  epoch_ = epoch;
  return true;
}

void MembershipStream::Welcome(const v1::Welcome& welcome, absl::Time now) {
  member_id_ = welcome.member_id();
  heartbeat_ = absl::Milliseconds(std::max(1u, welcome.heartbeat_ms()));
  heartbeat_at_ = now + heartbeat_;
  handshake_until_ = absl::InfiniteFuture();
  welcomed_ = ever_welcomed_ = true;
  reason_.clear();
}

// A refusal of the first join is final. A later one ends the stream, and the member joins again,
// unless the coordinator would refuse it again.
bool MembershipStream::Refuse(const v1::Refused& refused) {
  if (refused.refusal() == v1::REFUSAL_UNKNOWN_MEMBER) {
    member_id_.clear();
    return false;
  }
  rejected_ = !welcomed_;
  const bool final =
      refused.refusal() == v1::REFUSAL_PROTOCOL || refused.refusal() == v1::REFUSAL_WRONG_IDENTITY;
  if (ever_welcomed_ && !final) return false;
  refused_ = true;
  return true;
}

bool MembershipStream::IsNewReason(std::string reason) {
  if (reason == reason_) return false;
  reason_ = std::move(reason);
  return true;
}

bool MembershipStream::Queue(v1::MemberMessage message) {
  if (!welcomed_ || full()) return false;
  queue_.push_back(std::move(message));
  return true;
}

absl::Time MembershipStream::deadline() const { return std::min(handshake_until_, heartbeat_at_); }

bool MembershipStream::TakeHandshakeTimeout(absl::Time now) {
  if (now < handshake_until_) return false;
  handshake_until_ = absl::InfiniteFuture();
  return true;
}

bool MembershipStream::TakeHeartbeat(absl::Time now) {
  if (now < heartbeat_at_) return false;
  heartbeat_at_ = now + heartbeat_;
  return true;
}

std::optional<v1::MemberMessage> MembershipStream::TakeMessage() {
  if (queue_.empty()) return std::nullopt;
  v1::MemberMessage message = std::move(queue_.front());
  queue_.pop_front();
  return message;
}

v1::MemberMessage MembershipStream::HeartbeatOf(v1::Heartbeat heartbeat) const {
  v1::MemberMessage message;
  *message.mutable_heartbeat() = std::move(heartbeat);
  (*message.mutable_heartbeat()->mutable_counters())["stale_epochs"] = stale_epochs_;
  return message;
}

absl::Duration MembershipStream::Close() {
  if (std::exchange(welcomed_, false)) {
    backoff_.Reset();
    rejection_backoff_.Reset();
  }
  server_ = (server_ + 1) % servers_;
  queue_.clear();
  handshake_until_ = heartbeat_at_ = absl::InfiniteFuture();
  if (refused_) return absl::InfiniteDuration();
  return std::exchange(rejected_, false) && server_ == 0 ? rejection_backoff_.Next()
                                                         : backoff_.Next();
}

}  // namespace cadre
