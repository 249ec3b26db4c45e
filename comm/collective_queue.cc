// Ranks must agree on an order, because collectives of different buckets become ready in different
// orders on different ranks, and two ranks that start two collectives in opposite orders deadlock.
// Horovod solves this with a coordinator, PyTorch DDP with a fixed bucket order; in this queue rank
// 0 decides for each collective.
//
// Protocol. Every rank posts work under a key that is equal on all ranks. Rank 0 takes the pending
// work with the lowest priority value, sends its key to all other ranks on channel kOrder, and
// executes it. Another rank receives the key and waits until its own computation has posted that
// work. The wait is finite because every rank posts every key and no rank waits for a collective
// that it posts later.
//
// Latency. Rank 0 announces one key ahead: while a collective runs, the other ranks already know
// the key of the next one. They wait for an announcement only if the queue was empty.
//
// Invariants:
// - Rank 0 executes keys in the order of its announcements, the others in the order of arrival. The
//   orders are equal since a channel is FIFO.
// - work_ contains everything that is posted and unfinished; waiting_ contains the part of work_
//   that is neither announced by rank 0 nor running; expected_ contains keys that will be posted.
//   Wait(key) returns when none of them contains the key.
// - An idle queue does not wait for a message, so the transport's timeout does not expire between
//   two steps.
//
// Failure: the first error aborts the transport, which fails the queues of all ranks.
#include "comm/collective_queue.h"

#include <span>
#include <vector>

#include "base/status.h"
#include "glog/logging.h"

namespace cadre {

CollectiveQueue::CollectiveQueue(Transport& transport)
    : transport_(transport), thread_([this] { Loop(); }) {}

CollectiveQueue::~CollectiveQueue() {
  bool unfinished = false;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    unfinished = !work_.empty() || !expected_.empty();
  }
  // The thread may be blocked in a collective, and the other ranks may wait for it.
  if (unfinished)
    transport_.Abort(absl::CancelledError("a rank left before its collectives finished"));
  thread_.join();
}

void CollectiveQueue::Post(uint64_t key, int64_t priority, std::function<absl::Status()> work) {
  absl::MutexLock lock(&mutex_);
  if (!status_.ok()) return;
  const uint64_t number = posted_++;
  const bool is_new = work_.try_emplace(key, Work{priority, number, std::move(work)}).second;
  CHECK(is_new) << "work " << key << " is posted twice";
  waiting_.emplace(Order(priority, number), key);
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
  // Outside the lock, as in Finish.
  transport_.Abort(reason);
  absl::MutexLock lock(&mutex_);
  if (status_.ok()) status_ = reason;
}

absl::Status CollectiveQueue::Wait(uint64_t key) {
  absl::MutexLock lock(&mutex_);
  const auto done = [this, key]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !status_.ok() || (work_.count(key) == 0 && expected_.count(key) == 0);
  };
  mutex_.Await(absl::Condition(&done));
  return status_;
}

absl::Status CollectiveQueue::WaitAll() {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(this, &CollectiveQueue::IsIdle));
  return status_;
}

void CollectiveQueue::Loop() {
  while (true) {
    const absl::StatusOr<std::optional<uint64_t>> next = Next();
    if (!next.ok()) return Finish(0, next.status());
    if (!next->has_value()) return;
    const uint64_t key = **next;
    const std::function<absl::Status()> work = TakeWork(key);
    if (work == nullptr) return;
    const absl::Status status = work();
    Finish(key, status);
    if (!status.ok()) return;
  }
}

absl::StatusOr<std::optional<uint64_t>> CollectiveQueue::Next() {
  {
    // An idle rank does not receive, so that the timeout does not expire in an idle group.
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(this, &CollectiveQueue::HasWork));
    if (stopping_ || !status_.ok()) return std::optional<uint64_t>();
  }
  if (transport_.rank() != 0) return ReceiveKey();
  if (!announced_) CADRE_RETURN_IF_ERROR(Announce());
  const std::optional<uint64_t> next = std::exchange(announced_, std::nullopt);
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
  announced_ = key;
  std::vector<Transfer> sends;
  for (int rank = 1; rank < transport_.size(); ++rank) {
    sends.push_back({.kind = Transfer::Kind::kSend,
                     .peer = rank,
                     .data = std::as_writable_bytes(std::span(&key, 1))});
  }
  if (sends.empty()) return absl::OkStatus();
  const CallTag tag{.collective = Collective::kAnnounceNext, .sequence = sequence_++};
  return transport_.Run(Transport::kOrder, tag, sends, {});
}

absl::StatusOr<uint64_t> CollectiveQueue::ReceiveKey() {
  uint64_t key = 0;
  const Transfer receive{.kind = Transfer::Kind::kReceive,
                         .peer = 0,
                         .data = std::as_writable_bytes(std::span(&key, 1))};
  const CallTag tag{.collective = Collective::kAnnounceNext, .sequence = sequence_++};
  CADRE_RETURN_IF_ERROR(transport_.Run(Transport::kOrder, tag, {&receive, 1}, {}));
  return key;
}

std::function<absl::Status()> CollectiveQueue::TakeWork(uint64_t key) {
  absl::MutexLock lock(&mutex_);
  const auto posted = [this, key]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || !status_.ok() || work_.count(key) > 0;
  };
  mutex_.Await(absl::Condition(&posted));
  if (stopping_ || !status_.ok()) return nullptr;
  Work& found = work_.at(key);
  waiting_.erase(Order(found.priority, found.number));
  running_ = true;
  return std::move(found.work);
}

void CollectiveQueue::Finish(uint64_t key, const absl::Status& status) {
  // Outside the lock, because Abort calls into the transport.
  if (!status.ok()) transport_.Abort(status);
  absl::MutexLock lock(&mutex_);
  work_.erase(key);
  running_ = false;
  if (status_.ok()) status_ = status;
}

}  // namespace cadre
