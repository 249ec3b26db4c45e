// What the training thread of a worker does, for its heartbeats: they have a thread of their own
// and continue while the training thread hangs.
//
// Thread-safe: the training thread writes, and the thread of the membership stream reads.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "proto/cadre/v1/membership.pb.h"

namespace cadre {

class TrainerProgress {
 public:
  void Enter(v1::Activity activity) {
    activity_.store(activity, std::memory_order_relaxed);
    Advance();
  }
  // To be called whenever some work is done: a step, a batch, a chunk.
  void Advance() { count_.fetch_add(1, std::memory_order_relaxed); }

  // A step took this time, of which the rank waited a part for others.
  void AddStep(double seconds, double waited) {
    steps_.fetch_add(1, std::memory_order_relaxed);
    step_ns_.fetch_add(static_cast<int64_t>(seconds * 1e9), std::memory_order_relaxed);
    wait_ns_.fetch_add(static_cast<int64_t>(waited * 1e9), std::memory_order_relaxed);
  }
  // Means of the steps since the last call; 0 if there were none. A step that ends during the call
  // may count in parts before and after it.
  struct StepTimes {
    float step_seconds = 0;
    float wait_seconds = 0;
  };
  StepTimes TakeSteps() {
    const auto steps = static_cast<double>(steps_.exchange(0, std::memory_order_relaxed));
    const auto step_ns = static_cast<double>(step_ns_.exchange(0, std::memory_order_relaxed));
    const auto wait_ns = static_cast<double>(wait_ns_.exchange(0, std::memory_order_relaxed));
    if (steps == 0) return {};
    return {static_cast<float>(step_ns / 1e9 / steps), static_cast<float>(wait_ns / 1e9 / steps)};
  }

  // What the rank computes more slowly than its device could (Replica::Fallbacks).
  void SetFallbacks(std::vector<v1::Fallback> fallbacks) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    fallbacks_ = std::move(fallbacks);
  }
  std::vector<v1::Fallback> fallbacks() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return fallbacks_;
  }

  // What has gone wrong with a run that goes on. The newest of different warnings are kept.
  void AddWarning(const std::string& run, const std::string& text) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    for (const v1::RunWarning& known : warnings_) {
      if (known.run() == run && known.text() == text) return;
    }
    if (warnings_.size() == kMaxWarnings) warnings_.erase(warnings_.begin());
    v1::RunWarning& warning = warnings_.emplace_back();
    warning.set_run(run);
    warning.set_text(text);
  }
  std::vector<v1::RunWarning> warnings() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return warnings_;
  }

  v1::Activity activity() const { return activity_.load(std::memory_order_relaxed); }
  // Changes with every call of Enter or Advance; never decreases.
  uint64_t count() const { return count_.load(std::memory_order_relaxed); }

 private:
  static constexpr size_t kMaxWarnings = 16;

  std::atomic<v1::Activity> activity_{v1::ACTIVITY_UNSPECIFIED};
  std::atomic<uint64_t> count_{0};
  std::atomic<int64_t> steps_{0};
  std::atomic<int64_t> step_ns_{0};
  std::atomic<int64_t> wait_ns_{0};
  mutable absl::Mutex mutex_;
  std::vector<v1::Fallback> fallbacks_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::RunWarning> warnings_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cadre
