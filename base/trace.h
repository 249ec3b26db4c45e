// What happened when, on which lane: intervals that are kept in memory and written in the format of
// Chrome's trace viewer (chrome://tracing, Perfetto).
//
// A trace that is off costs one atomic load per interval. It holds a bounded number of intervals
// and counts what it had to drop. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

namespace cadre {

struct TraceInterval {
  // "conv1 forward", "reduce-scatter bucket 2".
  std::string name;
  // "compute", "move", "collective", "update", "wait" or "step".
  std::string category;
  // Of the lanes of a rank: 0 its own thread, 1 its communication thread.
  int lane = 0;
  // Microseconds since the epoch, by the machine's clock; and how long.
  int64_t begin_us = 0;
  int64_t duration_us = 0;
  // Of what travelled; -1: nothing.
  int64_t bytes = -1;
  // Step of the run.
  int64_t step = 0;
};

class Trace {
 public:
  static constexpr size_t kMostIntervals = 1 << 16;

  bool on() const { return on_.load(std::memory_order_relaxed); }
  // Forgets what was kept, and keeps from now on.
  void Start() ABSL_LOCKS_EXCLUDED(mutex_);
  // Hands out what was kept.
  std::vector<TraceInterval> Stop() ABSL_LOCKS_EXCLUDED(mutex_);
  // Dropped when off; counted when there is no room.
  void Add(TraceInterval interval) ABSL_LOCKS_EXCLUDED(mutex_);
  uint64_t dropped() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Microseconds since the epoch.
  static int64_t Now();

 private:
  std::atomic<bool> on_{false};
  mutable absl::Mutex mutex_;
  std::vector<TraceInterval> intervals_ ABSL_GUARDED_BY(mutex_);
  uint64_t dropped_ ABSL_GUARDED_BY(mutex_) = 0;
};

// One process of the trace viewer: a rank with its lanes.
struct TraceProcess {
  // "group 0 rank 1 (worker-3)".
  std::string name;
  std::vector<TraceInterval> intervals;
};
// A JSON document; processes in the order given.
std::string ChromeTraceJson(const std::vector<TraceProcess>& processes);

}  // namespace cadre
