// Executes a group's collectives in the background: one thread on each rank runs them on the
// transport's background channel while the rank's own thread computes.
//
// Ranks post the same work items, each with a key and a priority, in the order in which their own
// computation finishes. All ranks execute them in one order: rank 0 selects the pending item with
// the lowest priority value and sends its key to the other ranks; a rank that has not posted that
// item yet waits for it. So the most urgent collective runs first and ranks cannot deadlock. Rank 0
// announces one item ahead, so announcements cost no time while the queue is not empty.
//
// A work item may post more items, which take part in the same order.
//
// Owns its thread; borrows the transport, whose channels kBackground and kOrder are reserved for
// the queue and its work. Thread-safe.
//
// Guarantees: the first error ends the queue: pending work is dropped, every wait returns the
// error, and the transport is aborted.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "comm/transport/transport.h"

namespace cadre {

class CollectiveQueue {
 public:
  explicit CollectiveQueue(Transport& transport);
  // Aborts the transport if any work is unfinished, because the other ranks depend on it.
  ~CollectiveQueue();
  CollectiveQueue(const CollectiveQueue&) = delete;
  CollectiveQueue& operator=(const CollectiveQueue&) = delete;

  // Lower values of `priority` run first; equal ones in the order of Post.
  // Requires: every rank posts `key`, with equal collectives; what a rank waits for before it posts
  // `key` is the same on all ranks; no work with the same key is unfinished.
  void Post(uint64_t key, int64_t priority, std::function<absl::Status()> work)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Declares that `key` will be posted, by the caller or by work: Wait blocks for it from now on.
  void Expect(uint64_t key) ABSL_LOCKS_EXCLUDED(mutex_);
  // Withdraws Expect.
  void Forget(uint64_t key) ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns when the work of `key` is done, if it is posted or expected; otherwise immediately.
  absl::Status Wait(uint64_t key) ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends the queue with `reason`, as an error of the work would, because expected work will not be
  // posted. Requires: !reason.ok().
  void Fail(const absl::Status& reason) ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns when no work is left or, after an error, when no work is running.
  absl::Status WaitAll() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Work {
    int64_t priority = 0;
    // Position in the order of Post; breaks ties between priorities.
    uint64_t number = 0;
    std::function<absl::Status()> work;
  };
  // Priority and number.
  using Order = std::pair<int64_t, uint64_t>;

  void Loop() ABSL_LOCKS_EXCLUDED(mutex_);
  // The key that all ranks run next; nullopt if the queue ends.
  absl::StatusOr<std::optional<uint64_t>> Next() ABSL_LOCKS_EXCLUDED(mutex_);
  // Rank 0: sends the key of the first waiting work, if any, to the other ranks.
  absl::Status Announce() ABSL_LOCKS_EXCLUDED(mutex_);
  // Other ranks: receives the next key from rank 0.
  absl::StatusOr<uint64_t> ReceiveKey();
  // Returns the work of `key` when it is posted; empty if the queue ends.
  std::function<absl::Status()> TakeWork(uint64_t key) ABSL_LOCKS_EXCLUDED(mutex_);
  void Finish(uint64_t key, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);

  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || !status_.ok() || !work_.empty();
  }
  bool IsIdle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !running_ && (!status_.ok() || (work_.empty() && expected_.empty()));
  }

  Transport& transport_;
  // Sequence number of announcements.
  uint32_t sequence_ = 0;
  // Rank 0: the key that is announced but not run yet. Accessed by the queue's thread only.
  std::optional<uint64_t> announced_;

  absl::Mutex mutex_;
  // Unfinished work, running or not.
  std::map<uint64_t, Work> work_ ABSL_GUARDED_BY(mutex_);
  // Keys that will be posted.
  std::set<uint64_t> expected_ ABSL_GUARDED_BY(mutex_);
  // Posted work that is neither announced (rank 0) nor running.
  std::map<Order, uint64_t> waiting_ ABSL_GUARDED_BY(mutex_);
  uint64_t posted_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  // The thread is executing work.
  bool running_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace cadre
