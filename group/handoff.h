// The handoff between the thread of a member's loop, which decides what a program does next, and
// the program's own thread, which does it: fetch and store values, and train.
//
// Thread-safe: one thread of the loop calls Assign, AwaitDone, Do and AwaitProgram; one thread of
// the program calls Next and Step; any thread calls the others.
//
// Guarantees: when AwaitDone has returned true, or Do or AwaitProgram without an error, the
// program's thread is in Next until the next task is assigned. So the loop may touch the program's
// memory meanwhile.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/steady_cond_var.h"

namespace cadre {

class Handoff {
 public:
  enum class Task { kWait, kFetch, kStore, kTrain, kEvaluate, kEnded };

  // `finishes`: a program that trains when its generation ends goes on to the step that it was
  // told, because it has several ranks, which must stop at the same step.
  explicit Handoff(bool finishes) : finishes_(finishes) {}

  // ---- The loop. A generation begins with Begin; after Cancel its calls return Cancelled.
  void Begin() ABSL_LOCKS_EXCLUDED(mutex_);
  void Cancel() ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits until the program is in Next and has nothing to do.
  absl::Status AwaitProgram() ABSL_LOCKS_EXCLUDED(mutex_);
  // Has the program do the task, as soon as it has nothing else to do. kTrain: until step `until`,
  // from `step`.
  absl::Status Assign(Task task, uint32_t step = 0, uint32_t until = 0) ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits until the task is done, at most this long and until Wake. Returns whether it is.
  absl::StatusOr<bool> AwaitDone(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_);
  // Assigns the task and waits until it is done.
  absl::Status Do(Task task) ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends kTrain after the step that the program is in. Does not wait.
  void Shorten() { until_.store(0, std::memory_order_relaxed); }
  // Lets the program find out that the run has ended. Does not wait.
  void End() ABSL_LOCKS_EXCLUDED(mutex_);

  // ---- The program.
  // The last task is done, if there is one. Returns the next one, or kWait after the timeout.
  Task Next(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_);
  // One step of kTrain is done. Returns whether Next must follow.
  bool Step() {
    const uint32_t step = step_.fetch_add(1, std::memory_order_relaxed) + 1;
    return step >= until_.load(std::memory_order_relaxed);
  }
  uint32_t step() const { return step_.load(std::memory_order_relaxed); }
  // Number of calls of Step. Exact while the program is in Next.
  uint64_t trained() const {
    return before_.load(std::memory_order_relaxed) + step_.load(std::memory_order_relaxed);
  }
  uint32_t until() const { return until_.load(std::memory_order_relaxed); }

  // No more steps follow, also in kTrain. Next must follow.
  void EndLoop() ABSL_LOCKS_EXCLUDED(mutex_);
  bool loop_ended() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Ends a waiting Next, or AwaitDone.
  void Interrupt() ABSL_LOCKS_EXCLUDED(mutex_);
  void Wake() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  bool idle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !due_ && !doing_ && waiting_; }
  absl::StatusOr<bool> AwaitIdle(absl::Duration timeout) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const bool finishes_;
  mutable absl::Mutex mutex_;
  SteadyCondVar changed_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = true;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool interrupted_ ABSL_GUARDED_BY(mutex_) = false;
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;
  bool loop_ended_ ABSL_GUARDED_BY(mutex_) = false;
  // The program is in Next.
  bool waiting_ ABSL_GUARDED_BY(mutex_) = false;
  // What the program is to do next; what it does.
  std::optional<Task> due_ ABSL_GUARDED_BY(mutex_);
  std::optional<Task> doing_ ABSL_GUARDED_BY(mutex_);
  std::atomic<uint32_t> step_ = 0;
  // What must be added to step_ to count all steps; wraps around.
  std::atomic<uint64_t> before_ = 0;
  // 0: Step returns true immediately.
  std::atomic<uint32_t> until_ = 0;
};

}  // namespace cadre
