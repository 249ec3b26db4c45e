#include "worker/comm/collective_queue.h"

#include <span>
#include <vector>

#include "base/status.h"
#include "glog/logging.h"

namespace cadre {

CollectiveQueue::CollectiveQueue(Transport& transport)
    : transport_(transport), thread_([this] { Serve(); }) {}

CollectiveQueue::~CollectiveQueue() {
  bool left = false;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    left = !pieces_.empty() || !expected_.empty();
  }
  // The thread may be waiting for the others, and they for it.
  if (left) transport_.Abort(absl::CancelledError("a rank left with collectives unfinished"));
  thread_.join();
}

void CollectiveQueue::Post(uint64_t key, int64_t priority, std::function<absl::Status()> work) {
  absl::MutexLock lock(&mutex_);
  if (!status_.ok()) return;
  const uint64_t number = posted_++;
  const bool is_new = pieces_.try_emplace(key, Piece{priority, number, std::move(work)}).second;
  CHECK(is_new) << "work " << key << " is posted twice";
  waiting_.emplace(Place(priority, number), key);
  expected_.erase(key);
}

void CollectiveQueue::Expect(uint64_t key) {
  absl::MutexLock lock(&mutex_);
  expected_.insert(key);
}

void CollectiveQueue::Forget(uint64_t key) {
  absl::MutexLock lock(&mutex_);
  expected_.erase(key);
}

void CollectiveQueue::Fail(const absl::Status& reason) {
  // Outside of the lock, as in Done.
  transport_.Abort(reason);
  absl::MutexLock lock(&mutex_);
  if (status_.ok()) status_ = reason;
}

absl::Status CollectiveQueue::Wait(uint64_t key) {
  absl::MutexLock lock(&mutex_);
  const auto done = [this, key]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !status_.ok() || (pieces_.count(key) == 0 && expected_.count(key) == 0);
  };
  mutex_.Await(absl::Condition(&done));
  return status_;
}

absl::Status CollectiveQueue::WaitAll() {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(this, &CollectiveQueue::IsIdle));
  return status_;
}

void CollectiveQueue::Serve() {
  while (true) {
    const absl::StatusOr<std::optional<uint64_t>> next = Next();
    if (!next.ok()) return Done(0, next.status());
    if (!next->has_value()) return;
    const uint64_t key = **next;
    const std::function<absl::Status()> work = Take(key);
    if (work == nullptr) return;
    const absl::Status status = work();
    Done(key, status);
    if (!status.ok()) return;
  }
}

absl::StatusOr<std::optional<uint64_t>> CollectiveQueue::Next() {
  {
    // Without work nobody listens, so that a group that rests is not taken for dead.
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(this, &CollectiveQueue::HasWork));
    if (stopping_ || !status_.ok()) return std::optional<uint64_t>();
  }
  if (transport_.rank() != 0) return Hear();
  if (!ahead_) CADRE_RETURN_IF_ERROR(Announce());
  const std::optional<uint64_t> next = std::exchange(ahead_, std::nullopt);
  CADRE_RETURN_IF_ERROR(Announce());
  return next;
}

absl::Status CollectiveQueue::Announce() {
  uint64_t key = 0;
  {
    absl::MutexLock lock(&mutex_);
    if (waiting_.empty()) return absl::OkStatus();
    key = waiting_.begin()->second;
    waiting_.erase(waiting_.begin());
  }
  ahead_ = key;
  std::vector<Transfer> sends;
  for (int rank = 1; rank < transport_.size(); ++rank) {
    sends.push_back({.kind = Transfer::Kind::kSend,
                     .peer = rank,
                     .data = std::as_writable_bytes(std::span(&key, 1))});
  }
  if (sends.empty()) return absl::OkStatus();
  const CallTag tag{.collective = Collective::kOrder, .sequence = sequence_++};
  return transport_.Run(Transport::kOrder, tag, sends, {});
}

absl::StatusOr<uint64_t> CollectiveQueue::Hear() {
  uint64_t key = 0;
  const Transfer receive{.kind = Transfer::Kind::kReceive,
                         .peer = 0,
                         .data = std::as_writable_bytes(std::span(&key, 1))};
  const CallTag tag{.collective = Collective::kOrder, .sequence = sequence_++};
  CADRE_RETURN_IF_ERROR(transport_.Run(Transport::kOrder, tag, {&receive, 1}, {}));
  return key;
}

std::function<absl::Status()> CollectiveQueue::Take(uint64_t key) {
  absl::MutexLock lock(&mutex_);
  const auto posted = [this, key]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || !status_.ok() || pieces_.count(key) > 0;
  };
  mutex_.Await(absl::Condition(&posted));
  if (stopping_ || !status_.ok()) return nullptr;
  Piece& piece = pieces_.at(key);
  waiting_.erase(Place(piece.priority, piece.number));
  running_ = true;
  return std::move(piece.work);
}

void CollectiveQueue::Done(uint64_t key, const absl::Status& status) {
  // Outside of the lock: whoever waits for the transport may hold on to it.
  if (!status.ok()) transport_.Abort(status);
  absl::MutexLock lock(&mutex_);
  pieces_.erase(key);
  running_ = false;
  if (status_.ok()) status_ = status;
}

}  // namespace cadre
