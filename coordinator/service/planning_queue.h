// Searches of plans and predictions that wait for the planner, beside the coordinator's event loop.
//
// Searches for which workers wait go first, then predictions, which take milliseconds, then
// searches that may only improve a group. Each of these is FIFO. A newer prediction of a group
// replaces one that waits, so the number of predictions is bounded by that of groups; searches are
// bounded by the state machine (coordinator/cluster/plan_searches.h).
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/events/events.h"

namespace cadre {

class PlanningQueue {
 public:
  void Push(SearchPlans search) ABSL_LOCKS_EXCLUDED(mutex_);
  void Push(PredictStep predict) ABSL_LOCKS_EXCLUDED(mutex_);
  // Blocks while the queue is empty. Returns nullopt when it is closed, whatever waits.
  std::optional<PlanningWork> Pop() ABSL_LOCKS_EXCLUDED(mutex_);
  void Close() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // Run, group, and whether the group has measured its steps: what was predicted at the start is
  // kept beside that.
  using PredictionKey = std::tuple<std::string, uint32_t, bool>;

  absl::Mutex mutex_;
  std::deque<SearchPlans> urgent_ ABSL_GUARDED_BY(mutex_);
  std::list<std::pair<PredictionKey, PredictStep>> predictions_ ABSL_GUARDED_BY(mutex_);
  std::map<PredictionKey, decltype(predictions_)::iterator> by_key_ ABSL_GUARDED_BY(mutex_);
  std::deque<SearchPlans> searches_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace cadre
