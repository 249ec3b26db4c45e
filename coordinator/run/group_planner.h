// Plans of groups: queries to the planner from the resources of members and from measurements, and
// the measurements of this cluster.
//
// Searches and predictions take up to seconds, so they are actions (SearchPlans, PredictStep).
// Until the answer to a search arrives its plans are unavailable (plan_searches.h).
//
// Pure and thread-compatible.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/cluster/cluster.h"
#include "coordinator/cluster/measurements.h"
#include "coordinator/cluster/plan_searches.h"
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
  // The plan of the rules for this number of ranks, or why there is none.
  const absl::StatusOr<v1::Plan>& PlanOfRules(const v1::RunRecord& run, int ranks);
  // Keeps the answer of a search.
  void OnPlansFound(const PlansFound& found) { searches_.OnFound(found); }
  // Whether a group of the run waits for a search.
  bool IsSearching(absl::string_view run) const { return searches_.IsAwaited(run); }
  // Keeps the link that the group has measured.
  void RecordLink(const Slot& slot);
  // Requests a prediction of the group's plan, unless too little is measured. `measured`: the step
  // time that the group has measured; 0: it has just started. Returns whether there will be one.
  bool PredictGroup(const v1::RunRecord& run, const Slot& slot, double measured = 0);
  // Keeps the answer, unless it is that of another generation.
  void OnPredicted(const StepPredicted& found, Slot& slot);
  // Stores what the member's group has measured. Requires: CheckMeasured(measured).
  void OnMeasured(const v1::RunRecord& run, Slot& slot, const Member& member,
                  const v1::Measured& measured);
  // Looks for a better plan, once per measurement of the group; does nothing until the plans are
  // available.
  void ConsiderPlan(const v1::RunRecord& run, Slot& slot);

 private:
  // The key of a model in measurements, and its layers.
  struct MeasuredModel {
    std::string key;
    std::vector<std::string> layers;
  };
  PlanQuery QueryFor(const v1::RunRecord& run, const std::vector<std::string>& members) const;
  // The query for a formed group, with the link that the group has measured itself.
  PlanQuery QueryFor(const v1::RunRecord& run, const Slot& slot) const;
  // Requires: there is a planner.
  const MeasuredModel& ModelOf(const v1::RunRecord& run) const;
  // Stores the times of the run's layers; times of other layers are dropped.
  void RecordTimes(const v1::RunRecord& run, const Member& member, v1::Measured measured);

  const CoordinatorOptions& options_;
  Cluster& cluster_;
  Measurements measurements_;
  PlanSearches searches_;
  // What follows from the spec of a run, which does not change. Of a bounded number of runs.
  // By lineage and number of ranks: the plan of the rules.
  std::map<std::pair<std::string, int>, absl::StatusOr<v1::Plan>> rules_;
  // By lineage.
  mutable std::map<std::string, MeasuredModel> models_;
};

}  // namespace cadre
