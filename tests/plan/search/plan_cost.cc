#include "tests/plan/search/plan_cost.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "plan/layer_part.h"
#include "plan/plan_collectives.h"
#include "plan/search/layer_bytes.h"
#include "plan/search/move_model.h"

namespace cadre::testing {

const LayerLayouts& LayerOf(const Plan& plan, const std::string& name) {
  return *std::find_if(plan.layers.begin(), plan.layers.end(),
                       [&](const LayerLayouts& layer) { return layer.name == name; });
}

double LayerCost(const PlanProblem& problem, const Mesh& mesh, int layer,
                 const LayerLayouts& layouts) {
  const GraphLayer& of = (*problem.graph)[layer];
  const HardwareModel& hardware = problem.hardware;
  const LayerSeconds compute =
      hardware.SecondsOf(of, layer, PartOf(layouts, mesh, LargestMicroBatch(problem)));
  double seconds = (compute.forward + compute.backward) * problem.micro_batches;
  // Elements by the axes that sum and the axes that own them.
  using Axes = std::vector<std::string>;
  std::map<std::pair<Axes, Axes>, int64_t> elements;
  for (size_t p = 0; p < of.parameters.size(); ++p) {
    const Bucket bucket{.axes = layouts.gradient_sums[p],
                        .replica_axes = ReplicaAxes(layouts, p, mesh)};
    elements[{bucket.axes, bucket.owner_axes()}] +=
        LocalElements(of.parameters[p].shape, layouts.parameters[p], mesh);
  }
  for (const auto& [axes, count] : elements) {
    const auto& [sums, owners] = axes;
    const int own = mesh.Size(owners);
    seconds += MinCollectiveSeconds(problem.collectives, of, count, mesh.Size(sums), own,
                                    hardware.LinkOf(mesh, sums), hardware.LinkOf(mesh, owners));
    seconds += hardware.update_seconds * LargestPart(count, own);
  }
  return seconds;
}

double PlanCost(const PlanProblem& problem, const Plan& plan) {
  double sum = 0;
  for (size_t l = 0; l < plan.layers.size(); ++l) {
    sum += LayerCost(problem, plan.mesh, l, plan.layers[l]);
  }
  for (const LayerMoves& moves : MovesOf(problem, plan)) {
    sum += problem.micro_batches * (moves.forward.seconds + moves.backward.seconds);
  }
  return sum;
}

int64_t PlanBytes(const PlanProblem& problem, const Plan& plan) {
  int64_t bytes = 0;
  for (size_t l = 0; l < plan.layers.size(); ++l) {
    bytes += LayerBytes(problem, plan.mesh, l, plan.layers[l]);
  }
  return bytes;
}

}  // namespace cadre::testing
