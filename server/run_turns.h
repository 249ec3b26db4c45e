// Turns of the orders for one run: while one order changes the files of the run, others for this
// run wait, and those for other runs do not.
//
//   const RunTurns::Turn turn = turns.Begin(run);   // ends with the scope
//
// Thread-safe.
#pragma once

#include <set>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace cadre {

class RunTurns {
 public:
  // Must be destroyed before the RunTurns, by any thread.
  class Turn {
   public:
    Turn(RunTurns& turns, std::string run) : turns_(turns), run_(std::move(run)) {}
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    ~Turn() {
      absl::MutexLock lock(&turns_.mutex_);
      turns_.begun_.erase(run_);
    }

   private:
    RunTurns& turns_;
    const std::string run_;
  };

  // Waits until no other turn of the run exists.
  Turn Begin(const std::string& run) ABSL_LOCKS_EXCLUDED(mutex_) {
    const auto is_free = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return !begun_.contains(run); };
    absl::MutexLock lock(&mutex_, absl::Condition(&is_free));
    begun_.insert(run);
    return Turn(*this, run);
  }

 private:
  absl::Mutex mutex_;
  std::set<std::string> begun_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cadre
