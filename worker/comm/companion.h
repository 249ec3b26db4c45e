// One thread beside a rank's own, which does one piece of communication at a time while the rank
// computes.
//
// Owns its thread, which waits between pieces. Thread-compatible: one thread calls Start and Wait.
#pragma once

#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace cadre {

class Companion {
 public:
  Companion();
  // Waits for a piece that is under way.
  ~Companion();
  Companion(const Companion&) = delete;
  Companion& operator=(const Companion&) = delete;

  // Runs `work` beside the caller. Requires: Wait was called for the piece before.
  void Start(std::function<absl::Status()> work) ABSL_LOCKS_EXCLUDED(mutex_);
  // What the work came to. Requires: Start was called.
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
