// A thread that executes one task at a time, so that a rank communicates while it computes.
//
// Owns its thread, which sleeps between tasks. Thread-compatible: one thread calls Start and Wait.
#pragma once

#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace cadre {

class BackgroundTask {
 public:
  BackgroundTask();
  // Waits for a task in progress.
  ~BackgroundTask();
  BackgroundTask(const BackgroundTask&) = delete;
  BackgroundTask& operator=(const BackgroundTask&) = delete;

  // Runs `work` concurrently with the caller. Requires: Wait has returned for the previous task.
  void Start(std::function<absl::Status()> work) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the status of the task when it is done. Requires: Start was called.
  absl::Status Wait() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || !IsIdle(); }
  bool IsIdle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return work_ == nullptr; }

  absl::Mutex mutex_;
  std::function<absl::Status()> work_ ABSL_GUARDED_BY(mutex_);
  absl::Status outcome_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace cadre
