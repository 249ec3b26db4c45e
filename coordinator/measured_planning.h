// The planner (coordinator/plan) behind the machine's interface: what was measured of the ranks'
// machines becomes a GroupMachine, on which plans are searched for and predicted.
//
// Stateless; thread-safe.
#pragma once

#include <string>
#include <vector>

#include "coordinator/planning.h"

namespace cadre {

class MeasuredPlanning final : public Planning {
 public:
  // Also where the search finds nothing (nothing that fits into memory, say, by its reckoning; the
  // log says so): then the rules' plan, without a prediction. Plans have no link in them: their
  // ranks measure it.
  absl::StatusOr<std::vector<GroupPlan>> PlansFor(const PlanningQuestion& question) const override;
  absl::StatusOr<v1::StepTimes> Predict(const PlanningQuestion& question,
                                        const v1::Plan& plan) const override;
  std::string KeyOf(const v1::Model& model) const override;
  std::vector<std::string> LayersOf(const v1::Model& model) const override;
};

}  // namespace cadre
