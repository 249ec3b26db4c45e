// The mailbox between the two threads: start, decisions and trace requests are stored until the
// trainer takes them. Cancelling wakes all waits and runs the handlers of the cancellation, which
// abort the group's transports.
#include "member/group_session.h"

#include <algorithm>
#include <utility>

namespace cadre {

GroupSession::GroupSession(v1::Assignment assignment, SessionOwner& owner, Runtime& runtime)
    : assignment_(std::move(assignment)),
      owner_(owner),
      clock_(runtime.clock()),
      changed_(runtime.MakeCondition()) {
  absl::MutexLock lock(&mutex_);
  for (const v1::ShardAddress& shard : assignment_.shards()) SetShard(shard);
}

void GroupSession::Deliver(const v1::CoordinatorMessage& message) {
  absl::MutexLock lock(&mutex_);
  if (message.has_start()) start_ = message.start();
  if (message.has_decision()) decisions_.push_back(message.decision());
  if (message.has_start() || message.has_decision()) changed_->NotifyAll();
  if (message.has_nudge()) nudged_round_ = std::max(nudged_round_, message.nudge().round());
  // A request that is being traced is repeated after a reconnect; its trace will answer it.
  if (message.has_trace_steps() && message.trace_steps().request() != tracing_) {
    trace_ = message.trace_steps();
  }
  if (message.has_restage() && restage_) restage_(message.restage());
  for (const v1::ShardAddress& shard : message.shard_addresses().shards()) SetShard(shard);
}

// An aggregator that is away may still be reachable at its last address. That of an aggregator from
// which the shard has moved meanwhile is of no use: what is staged there is in no version.
void GroupSession::SetShard(const v1::ShardAddress& shard) {
  if (shard.address().empty()) {
    away_.insert(shard.shard());
    const std::string& name = shards_[shard.shard()].aggregator;
    if (!shard.name().empty() && name != shard.name()) shards_[shard.shard()] = {"", shard.name()};
    return;
  }
  away_.erase(shard.shard());
  shards_[shard.shard()] = {shard.address(), shard.name()};
}

bool GroupSession::nudged(uint32_t round) const {
  absl::MutexLock lock(&mutex_);
  return nudged_round_ >= round;
}

void GroupSession::HandleRestage(std::function<void(const v1::Restage&)> handler) {
  absl::MutexLock lock(&mutex_);
  restage_ = std::move(handler);
}

void GroupSession::Drain(absl::Duration within) {
  absl::MutexLock lock(&mutex_);
  leaves_at_ = std::min(leaves_at_.value_or(absl::InfiniteFuture()), clock_.Now() + within);
}

void GroupSession::Cancel(const std::string& reason) {
  {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
    changed_->NotifyAll();
  }
  cancellation_.Cancel(absl::CancelledError(reason));
}

absl::StatusOr<v1::Start> GroupSession::PreparedAndStart(const v1::Prepared& prepared) {
  owner_.Report(prepared);
  absl::MutexLock lock(&mutex_);
  // The coordinator bounds this wait: it releases a group whose ranks are not prepared in time.
  changed_->WaitFor(mutex_, absl::InfiniteDuration(),
                    [this]()
                        ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return start_ || cancelled_; });
  if (cancelled_) return absl::CancelledError("the group was released");
  return *start_;
}

absl::StatusOr<std::optional<v1::Decision>> GroupSession::AwaitDecision(absl::Duration patience) {
  absl::MutexLock lock(&mutex_);
  changed_->WaitFor(mutex_, patience, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !decisions_.empty() || cancelled_;
  });
  if (cancelled_) return absl::CancelledError("the group was released");
  if (decisions_.empty()) return std::optional<v1::Decision>();
  std::optional<v1::Decision> decision = std::move(decisions_.front());
  decisions_.pop_front();
  return decision;
}

std::optional<absl::Duration> GroupSession::leaves_within() const {
  absl::MutexLock lock(&mutex_);
  if (!leaves_at_.has_value()) return std::nullopt;
  return *leaves_at_ - clock_.Now();
}

absl::Status GroupSession::LeaveIfDraining() {
  if (!draining()) return absl::OkStatus();
  owner_.OnMayLeave();
  absl::MutexLock lock(&mutex_);
  changed_->WaitFor(mutex_, absl::InfiniteDuration(),
                    [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return cancelled_; });
  return absl::CancelledError("the worker leaves its group");
}

std::optional<v1::TraceSteps> GroupSession::TakeTraceRequest() {
  absl::MutexLock lock(&mutex_);
  if (!trace_.has_value()) return std::nullopt;
  tracing_ = trace_->request();
  return std::exchange(trace_, std::nullopt);
}

void GroupSession::Send(const TrainingReport& report) {
  if (std::holds_alternative<v1::Traced>(report)) {
    absl::MutexLock lock(&mutex_);
    tracing_ = 0;
  }
  owner_.Report(report);
}

ShardLocation GroupSession::LocationOf(uint32_t shard) const {
  absl::MutexLock lock(&mutex_);
  const auto it = shards_.find(shard);
  return it == shards_.end() ? ShardLocation() : it->second;
}

bool GroupSession::ShardIsAway(uint32_t shard) const {
  absl::MutexLock lock(&mutex_);
  return away_.contains(shard);
}

}  // namespace cadre
