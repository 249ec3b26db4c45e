// Plans of groups: queries to the planner from the resources of members and from measurements, and
// the measurements of this cluster.
//
// A search may take seconds, so it is an action (SearchPlans). Until its answer arrives the plans
// are unavailable; answers are kept, and equal queries are searched once.
//
// Pure and thread-compatible.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/cluster/cluster.h"
#include "coordinator/cluster/measurements.h"
#include "coordinator/events/events.h"
#include "coordinator/events/options.h"
#include "coordinator/events/planning.h"
#include "coordinator/run/slot.h"
#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/plan.pb.h"
#include "proto/cadre/v1/records.pb.h"

namespace cadre {

class GroupPlanner {
 public:
  // Both are borrowed and must outlive the object.
  GroupPlanner(const CoordinatorOptions& options, Cluster& cluster)
      : options_(options), cluster_(cluster) {}

  // Restores layer times from the store.
  void Load(const std::string& key, const v1::LayerTimesRecord& record) {
    measurements_.Load(key, record);
  }

  // The fastest plan for a generation of these members. Errors: Unavailable until OnPlansFound;
  // others if these members cannot train the run.
  absl::StatusOr<v1::Plan> PlanGroup(const v1::RunRecord& run, const Slot& slot,
                                     const std::vector<std::string>& members);
  // Keeps the answer of a search.
  void OnPlansFound(const PlansFound& found);
  // Whether plans for the run are being searched.
  bool IsSearching(absl::string_view run) const;
  // Keeps the link that the group has measured.
  void RecordLink(const Slot& slot);
  // Predicts the group's plan, unless it is predicted already.
  void PredictGroup(const v1::RunRecord& run, Slot& slot);
  // Stores what the member's group has measured. Requires: CheckMeasured(measured).
  void OnMeasured(const v1::RunRecord& run, Slot& slot, const Member& member,
                  const v1::Measured& measured);
  // Looks for a better plan, once per measurement of the group; does nothing until the plans are
  // available.
  void ConsiderPlan(const v1::RunRecord& run, Slot& slot);

 private:
  PlanQuery QueryFor(const v1::RunRecord& run, const std::vector<std::string>& members) const;
  // The query for a formed group, with the link that the group has measured itself.
  PlanQuery QueryFor(const v1::RunRecord& run, const Slot& slot) const;
  // Errors: Unavailable until the search has ended, which this call starts if necessary.
  absl::StatusOr<std::vector<GroupPlan>> PlansFor(const v1::RunRecord& run, PlanQuery query);
  // Stores the times of the run's layers; times of other layers are dropped.
  void RecordTimes(const v1::RunRecord& run, const Member& member, v1::Measured measured);

  const CoordinatorOptions& options_;
  Cluster& cluster_;
  Measurements measurements_;
  // By run and resources: searches that are not answered yet (Unavailable) and the newest answers,
  // whose keys are in `answered_`, oldest first.
  std::map<std::string, absl::StatusOr<std::vector<GroupPlan>>> searches_;
  std::deque<std::string> answered_;
};

}  // namespace cadre
