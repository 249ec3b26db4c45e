// Plans of groups: queries to the planner from the resources of members and from measurements, and
// the measurements of this cluster.
//
// Pure and thread-compatible.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/cluster.h"
#include "coordinator/measurements.h"
#include "coordinator/options.h"
#include "coordinator/planning.h"
#include "coordinator/slot.h"
#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/plan.pb.h"
#include "proto/cadre/v1/records.pb.h"

namespace cadre {

class GroupPlanner {
 public:
  // Both are borrowed and must outlive the object.
  GroupPlanner(const CoordinatorOptions& options, Cluster& cluster)
      : options_(options), cluster_(cluster) {}

  // Starts a call of the state machine, during which resources and measurements are constant.
  void Begin();
  // Restores layer times from the store.
  void Load(const std::string& key, const v1::LayerTimesRecord& record) {
    measurements_.Load(key, record);
  }

  // The plan by the rules alone. Errors: this number of ranks cannot train the run.
  absl::StatusOr<v1::Plan> PlanByRules(const v1::RunSpec& spec, int ranks) const {
    return options_.plan(spec, ranks);
  }
  // Whether the plan is legal for the run.
  absl::Status Check(const v1::RunSpec& spec, const v1::Plan& plan) const {
    return options_.check_plan ? options_.check_plan(spec, plan) : absl::OkStatus();
  }
  // Whether plans are searched and step times predicted.
  bool searches() const { return options_.planning != nullptr; }

  // The fastest plan for a generation of these members.
  absl::StatusOr<v1::Plan> PlanGroup(const v1::RunRecord& run, const Slot& slot,
                                     const std::vector<std::string>& members);
  // Keeps the link that the group has measured.
  void RecordLink(const Slot& slot);
  // Predicts the group's plan, unless it is predicted already.
  void PredictGroup(const v1::RunRecord& run, Slot& slot);
  // Stores what the member's group has measured. Requires: CheckMeasured(measured).
  void OnMeasured(const v1::RunRecord& run, Slot& slot, const Member& member,
                  const v1::Measured& measured);
  // Searches for a better plan, at most once per measurement of the group.
  void ConsiderPlan(const v1::RunRecord& run, Slot& slot);

 private:
  PlanQuery QueryFor(const v1::RunRecord& run, const std::vector<std::string>& members) const;
  // The query for a formed group, with the link that the group has measured itself.
  PlanQuery QueryFor(const v1::RunRecord& run, const Slot& slot) const;
  // Searches at most once per call for all groups of the run on equal resources. The result is
  // valid until the end of the call.
  const absl::StatusOr<std::vector<GroupPlan>>& PlansFor(const v1::RunRecord& run,
                                                         const PlanQuery& query);
  // Stores the times of the run's layers; times of other layers are dropped.
  void RecordTimes(const v1::RunRecord& run, const Member& member, v1::Measured measured);

  const CoordinatorOptions& options_;
  Cluster& cluster_;
  Measurements measurements_;
  // State of the current call: search results by run and resources, and whether a better plan was
  // searched.
  std::map<std::string, absl::StatusOr<std::vector<GroupPlan>>> searched_;
  bool searched_for_better_ = false;
};

}  // namespace cadre
