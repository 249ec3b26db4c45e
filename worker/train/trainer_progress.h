// What the training thread of a worker does, for its heartbeats: they have a thread of their own
// and continue while the training thread hangs.
//
// Thread-safe: the training thread writes, and the thread of the membership stream reads.
#pragma once

#include <atomic>
#include <cstdint>

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

  v1::Activity activity() const { return activity_.load(std::memory_order_relaxed); }
  // Changes with every call of Enter or Advance; never decreases.
  uint64_t count() const { return count_.load(std::memory_order_relaxed); }

 private:
  std::atomic<v1::Activity> activity_{v1::ACTIVITY_UNSPECIFIED};
  std::atomic<uint64_t> count_{0};
};

}  // namespace cadre
