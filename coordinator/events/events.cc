#include "coordinator/events/events.h"

namespace cadre {

Event Answer(const Planning& planning, const PlanningWork& work) {
  if (const auto* search = std::get_if<SearchPlans>(&work)) {
    return PlansFound{search->run, search->key, planning.PlansFor(search->query)};
  }
  const auto& predict = std::get<PredictStep>(work);
  return StepPredicted{predict.run, predict.group, predict.generation, predict.measured,
                       planning.Predict(predict.query, predict.plan)};
}

}  // namespace cadre
