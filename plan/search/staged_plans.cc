// With S stages, each of ranks / S ranks divides the samples of a stage, and no layer is split
// otherwise. The layers are divided into stages of about equal measured time (the time of forward
// and backward, for the samples of one rank), at borders that few elements cross. A pipeline sends
// activations instead of gradients, so it is faster where links are slow and parameters many, at
// the price of the bubble and of unequal stages; Predict weighs them.
//
// Limits. Groups of up to 8 ranks. The ranks of a stage divide the samples, and neighboring ranks
// are consecutive stages. Stages of unequal numbers of ranks, and layers that are split inside a
// stage, are not considered.
#include "plan/search/staged_plans.h"

#include <algorithm>
#include <utility>

#include "model/balanced_stages.h"
#include "plan/cost/collective_cost.h"
#include "plan/cost/group_hybrid.h"
#include "plan/layer_part.h"
#include "plan/pipeline.h"
#include "plan/search/layer_bytes.h"
#include "plan/search/placed_plans.h"
#include "plan/search/prediction.h"

namespace cadre {
namespace {

bool IsPipelined(const PlanProblem& problem) {
  return MayPlaceLayers(problem) && problem.micro_batches > 1 &&
         problem.pipeline != v1::Cluster::NO_PIPELINE;
}

std::vector<double> SecondsByLayer(const PlanProblem& problem, const Mesh& mesh) {
  std::vector<double> seconds;
  for (int l = 0; l < problem.graph->size(); ++l) {
    const GraphLayer& layer = (*problem.graph)[l];
    const LayerLayouts whole = LayOutAt(layer, mesh, {.axis = kStageAxis});
    const LayerPart part = PartOf(whole, mesh, LargestMicroBatch(problem));
    const LayerSeconds of_part = problem.hardware.SecondsOf(layer, l, part);
    seconds.push_back(of_part.forward + of_part.backward);
  }
  return seconds;
}

Candidate StagedPlan(const PlanProblem& problem, int stages) {
  Plan plan{.mesh = Mesh({{kDataAxis, problem.ranks / stages}, {kStageAxis, stages}}),
            .recomputed = problem.recomputed};
  const std::vector<int> stage_of =
      BalancedStages(*problem.graph, SecondsByLayer(problem, plan.mesh), stages);
  for (int l = 0; l < problem.graph->size(); ++l) {
    plan.layers.push_back(
        LayOutAt((*problem.graph)[l], plan.mesh, {.axis = kStageAxis, .coordinate = stage_of[l]}));
  }
  plan = WithBuckets(problem, std::move(plan));
  Prediction prediction = Predict(problem, plan);
  return {std::move(plan), std::move(prediction)};
}

}  // namespace

std::vector<Candidate> StagedPlans(const PlanProblem& problem) {
  std::vector<Candidate> plans;
  if (!IsPipelined(problem)) return plans;
  for (const int stages : DivisorsOf(problem.ranks)) {
    if (stages == 1 || stages > problem.graph->size()) continue;
    plans.push_back(StagedPlan(problem, stages));
  }
  return plans;
}

}  // namespace cadre
