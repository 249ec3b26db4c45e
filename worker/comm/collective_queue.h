// A group's collectives in the background: one thread on each rank, which runs them on the
// transport's background channel while the rank's own thread computes.
//
// Ranks post the same pieces of work, in whatever order their own computing finishes them, each
// with a key and a priority. All ranks run them in one order: rank 0 takes, of what it has been
// posted, the work of the highest priority and tells the others its key; a rank that has not been
// posted it yet waits. So what is needed first goes first, and nobody deadlocks. One piece is
// announced ahead, so that announcing costs nothing while the queue is not empty.
//
// Work may post more work, which then is part of the same order.
//
// Owns its thread; borrows the transport, whose channels kBackground and kOrder nobody else may use
// meanwhile, except the work itself. Thread-safe.
//
// Guarantees: the first error ends the queue: work that was not run never is, every wait returns
// the error, and the transport is dead (an error that is not the transport's own aborts it).
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
#include "worker/transport/transport.h"

namespace cadre {

class CollectiveQueue {
 public:
  explicit CollectiveQueue(Transport& transport);
  // If work is left, running or not, the transport is aborted, since the other ranks count on it.
  ~CollectiveQueue();
  CollectiveQueue(const CollectiveQueue&) = delete;
  CollectiveQueue& operator=(const CollectiveQueue&) = delete;

  // Lower priorities go first; of equal ones, what was posted first.
  // Requires: every rank posts `key`, with equal collectives in it, and before it the same pieces
  // that it waited for; none with the same key is unfinished.
  void Post(uint64_t key, int64_t priority, std::function<absl::Status()> work)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // `key` will be posted, here or by work: waits wait for it from now on.
  void Expect(uint64_t key) ABSL_LOCKS_EXCLUDED(mutex_);
  // It will not, after all.
  void Forget(uint64_t key) ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns when the work of `key`, if it was posted or is expected, has been done.
  absl::Status Wait(uint64_t key) ABSL_LOCKS_EXCLUDED(mutex_);
  // What was expected will not be posted: waits end with `reason`, as after an error of the work,
  // and the transport is aborted. Requires: !reason.ok().
  void Fail(const absl::Status& reason) ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns when nothing is left, or, after an error, when nothing runs any more.
  absl::Status WaitAll() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Piece {
    int64_t priority = 0;
    // Number of its posting: of equal priorities the first goes first.
    uint64_t number = 0;
    std::function<absl::Status()> work;
  };
  // By what goes first.
  using Place = std::pair<int64_t, uint64_t>;

  void Serve() ABSL_LOCKS_EXCLUDED(mutex_);
  // The key that all ranks run next; nothing: the queue ends.
  absl::StatusOr<std::optional<uint64_t>> Next() ABSL_LOCKS_EXCLUDED(mutex_);
  // Rank 0: takes the best of what is waiting, if anything is, and tells the others.
  absl::Status Announce() ABSL_LOCKS_EXCLUDED(mutex_);
  // Other ranks: what rank 0 says.
  absl::StatusOr<uint64_t> Hear();
  // The work of `key`, once it is posted; empty: the queue ends.
  std::function<absl::Status()> Take(uint64_t key) ABSL_LOCKS_EXCLUDED(mutex_);
  void Done(uint64_t key, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);

  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || !status_.ok() || !pieces_.empty();
  }
  bool IsIdle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !running_ && (!status_.ok() || (pieces_.empty() && expected_.empty()));
  }

  Transport& transport_;
  // Of announcements.
  uint32_t sequence_ = 0;
  // Rank 0: told to the others but not run yet. Only the thread looks at it.
  std::optional<uint64_t> ahead_;

  absl::Mutex mutex_;
  // Unfinished work, running or not.
  std::map<uint64_t, Piece> pieces_ ABSL_GUARDED_BY(mutex_);
  // Keys that are not posted yet.
  std::set<uint64_t> expected_ ABSL_GUARDED_BY(mutex_);
  // Of unfinished work, what rank 0 has not announced.
  std::map<Place, uint64_t> waiting_ ABSL_GUARDED_BY(mutex_);
  uint64_t posted_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  // The thread is in some work.
  bool running_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace cadre
