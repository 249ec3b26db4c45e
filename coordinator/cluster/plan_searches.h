// Searches of plans: those that are not answered yet, and the newest answers.
//
// Groups of a run share a search if their ranks have equal resources, and similar links and layer
// times: the links of equal machines differ by some percent, and so do the times that each group
// measures anew. A plan does not depend on so little.
//
// Pure and thread-compatible.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/events/events.h"
#include "coordinator/events/outbox.h"
#include "coordinator/events/planning.h"
#include "proto/cadre/v1/records.pb.h"

namespace cadre {

class PlanSearches {
 public:
  // The answer to this query, or to a similar one of the run; Unavailable until it arrives. Adds
  // the search to `out` if there is none, and again if the first group waits for it (`urgent`); too
  // many others are not begun. `epoch` is that of the coordinator, since answers may be those of an
  // earlier state machine. The reference is valid until the next call.
  const absl::StatusOr<std::vector<GroupPlan>>& PlansFor(const v1::RunRecord& run, uint64_t epoch,
                                                         PlanQuery query, bool urgent, Outbox& out);
  // Keeps the answer.
  void OnFound(const PlansFound& found);
  // Whether a group of the run waits for a search.
  bool IsAwaited(absl::string_view run) const;

 private:
  struct Search {
    PlanQuery query;
    bool urgent = false;
    absl::StatusOr<std::vector<GroupPlan>> plans;
  };

  // By run, lineage, epoch and number.
  std::map<std::string, Search> searches_;
  uint64_t last_ = 0;
  // Searches without an answer for which no group waits.
  size_t improvements_ = 0;
  // The result while no further one is begun.
  const absl::StatusOr<std::vector<GroupPlan>> postponed_ =
      absl::UnavailableError("searching other plans");
  // The answered ones, oldest first.
  std::deque<std::string> answered_;
};

}  // namespace cadre
