// A FIFO queue between threads with a bounded number of items: a fast producer blocks until the
// consumer has made room.
//
// Thread-safe. After Close(), Push fails, and Pop returns the remaining items, then nullopt.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace cadre {

template <typename T>
class BoundedQueue {
 public:
  // Requires: capacity > 0.
  explicit BoundedQueue(size_t capacity) : capacity_(capacity) {}

  // Blocks while the queue is full. Returns false, and drops the item, if the queue is closed.
  bool Push(T item) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(this, &BoundedQueue::HasRoomOrClosed));
    if (closed_) return false;
    items_.push_back(std::move(item));
    return true;
  }

  // Does not block. Returns false, and drops the item, if the queue is full or closed.
  bool TryPush(T item) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (closed_ || items_.size() >= capacity_) return false;
    items_.push_back(std::move(item));
    return true;
  }

  // Blocks while the queue is empty and open. Returns nullopt when it is closed and empty.
  std::optional<T> Pop() ABSL_LOCKS_EXCLUDED(mutex_) { return PopBefore(absl::InfiniteFuture()); }

  // As Pop, but also returns nullopt if the queue is still empty at `deadline`.
  std::optional<T> PopBefore(absl::Time deadline) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithDeadline(absl::Condition(this, &BoundedQueue::HasItemOrClosed), deadline);
    if (items_.empty()) return std::nullopt;
    T item = std::move(items_.front());
    items_.pop_front();
    return item;
  }

  void Close() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
  }

  bool closed() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return closed_;
  }

 private:
  bool HasRoomOrClosed() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return closed_ || items_.size() < capacity_;
  }
  bool HasItemOrClosed() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return closed_ || !items_.empty();
  }

  const size_t capacity_;
  mutable absl::Mutex mutex_;
  std::deque<T> items_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace cadre
