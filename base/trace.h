// Timed intervals on tracks, recorded in memory and written in the format of Chrome's trace viewer
// (chrome://tracing, Perfetto).
//
// An inactive trace costs one atomic load per interval. An active one stores up to kMaxIntervals
// and counts the others. Thread-safe.
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
  // Such as "conv1 forward" or "reduce-scatter bucket 2".
  std::string name;
  // "compute", "move", "collective", "update", "wait" or "step".
  std::string category;
  // Track of the rank: 0 is its main thread, 1 its communication thread.
  int track = 0;
  // Microseconds since the Unix epoch by the host's clock, and duration.
  int64_t begin_us = 0;
  int64_t duration_us = 0;
  // Size of the transfer; -1: not a transfer.
  int64_t bytes = -1;
  // Step of the run.
  int64_t step = 0;
};

class Trace {
 public:
  static constexpr size_t kMaxIntervals = 1 << 16;

  bool on() const { return on_.load(std::memory_order_relaxed); }
  // Discards recorded intervals and starts recording.
  void Start() ABSL_LOCKS_EXCLUDED(mutex_);
  // Stops recording and returns the intervals.
  std::vector<TraceInterval> Stop() ABSL_LOCKS_EXCLUDED(mutex_);
  // Records an interval. It is ignored if the trace is inactive, and counted as dropped if it is
  // full.
  void Add(TraceInterval interval) ABSL_LOCKS_EXCLUDED(mutex_);
  uint64_t dropped() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Microseconds since the Unix epoch.
  static int64_t Now();

 private:
  std::atomic<bool> on_{false};
  mutable absl::Mutex mutex_;
  std::vector<TraceInterval> intervals_ ABSL_GUARDED_BY(mutex_);
  uint64_t dropped_ ABSL_GUARDED_BY(mutex_) = 0;
};

// One process of the trace viewer: a rank with its tracks.
struct TraceProcess {
  // Such as "group 0 rank 1 (worker-3)".
  std::string name;
  std::vector<TraceInterval> intervals;
};
// A JSON document, with the processes in this order.
std::string ChromeTraceJson(const std::vector<TraceProcess>& processes);

}  // namespace cadre
