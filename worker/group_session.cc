#include "worker/group_session.h"

#include <utility>

namespace cadre {

GroupSession::GroupSession(v1::Assignment assignment, Outlet outlet)
    : assignment_(std::move(assignment)), outlet_(std::move(outlet)) {
  for (const v1::ShardAddress& shard : assignment_.shards()) {
    shards_[shard.shard()] = shard.address();
  }
}

void GroupSession::Deliver(const v1::Start& start) {
  absl::MutexLock lock(&mutex_);
  start_ = start;
}

void GroupSession::Deliver(const v1::Decision& decision) {
  absl::MutexLock lock(&mutex_);
  decisions_.push_back(decision);
}

void GroupSession::Deliver(const v1::TraceSteps& trace) {
  absl::MutexLock lock(&mutex_);
  // Said again because the stream broke: the answer is under way already.
  if (trace.request() != tracing_) trace_ = trace;
}

void GroupSession::MoveShards(const v1::ShardAddresses& shards) {
  absl::MutexLock lock(&mutex_);
  for (const v1::ShardAddress& shard : shards.shards()) shards_[shard.shard()] = shard.address();
}

void GroupSession::Cancel(const std::string& reason) {
  {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
  }
  cancellation_.Cancel(absl::CancelledError(reason));
}

absl::StatusOr<v1::Start> GroupSession::PreparedAndStart(const v1::Prepared& prepared) {
  outlet_.prepared(prepared);
  absl::MutexLock lock(&mutex_);
  // The coordinator bounds this wait: it releases a group whose ranks do not get ready.
  mutex_.Await(absl::Condition(this, &GroupSession::StartedOrCancelled));
  if (cancelled_) return absl::CancelledError("the group was released");
  return *start_;
}

void GroupSession::Report(const v1::Progress& progress) { outlet_.progress(progress); }

void GroupSession::Measured(const v1::Measured& measured) { outlet_.measured(measured); }

void GroupSession::Contribute(const v1::Contributed& contributed) {
  outlet_.contributed(contributed);
}

absl::StatusOr<std::optional<v1::Decision>> GroupSession::AwaitDecision(absl::Duration patience) {
  absl::MutexLock lock(&mutex_);
  mutex_.AwaitWithTimeout(absl::Condition(this, &GroupSession::DecidedOrCancelled), patience);
  if (cancelled_) return absl::CancelledError("the group was released");
  if (decisions_.empty()) return std::optional<v1::Decision>();
  std::optional<v1::Decision> decision = std::move(decisions_.front());
  decisions_.pop_front();
  return decision;
}

void GroupSession::Adopted(const v1::Adopted& adopted) { outlet_.adopted(adopted); }

void GroupSession::Evaluated(const v1::Evaluated& evaluated) { outlet_.evaluated(evaluated); }

std::optional<v1::TraceSteps> GroupSession::TakeTraceRequest() {
  absl::MutexLock lock(&mutex_);
  if (!trace_.has_value()) return std::nullopt;
  tracing_ = trace_->request();
  return std::exchange(trace_, std::nullopt);
}

void GroupSession::Traced(const v1::Traced& traced) {
  {
    absl::MutexLock lock(&mutex_);
    tracing_ = 0;
  }
  outlet_.traced(traced);
}

std::string GroupSession::ShardAddress(uint32_t shard) const {
  absl::MutexLock lock(&mutex_);
  const auto it = shards_.find(shard);
  return it == shards_.end() ? "" : it->second;
}

}  // namespace cadre
