// Implements Planning with plan/search: it makes a hardware model from the measurements of the
// ranks' hosts and searches and predicts plans for that model.
//
// Stateless; thread-safe.
#pragma once

#include <string>
#include <vector>

#include "coordinator/events/planning.h"

namespace cadre {

class MeasuredPlanning final : public Planning {
 public:
  // If the search finds no plan (for example none that fits into memory), logs that and returns the
  // plan of the rules, without a prediction. Plans contain no link: the ranks measure it.
  absl::StatusOr<std::vector<GroupPlan>> PlansFor(const PlanQuery& query) const override;
  absl::StatusOr<v1::StepTimes> Predict(const PlanQuery& query,
                                        const v1::Plan& plan) const override;
  std::string KeyOf(const v1::Model& model) const override;
  std::vector<std::string> LayersOf(const v1::Model& model) const override;
};

}  // namespace cadre
