// Part of plan/search/search.h: PlansToProbe.

#include <set>
#include <string>
#include <utility>

#include "base/status.h"
#include "model/graph.h"
#include "model/parameter_index.h"
#include "plan/plan.h"
#include "plan/search/hardware_model.h"
#include "plan/search/plan_problem.h"
#include "plan/search/search.h"

namespace cadre {
namespace {

// Typical hardware. Both speeds are needed, so that the search weighs compute against
// communication.
constexpr LinkProfile kTypicalLink = {.alpha = 50e-6, .beta = 1e-9};
constexpr double kTypicalFlops = 2e10;

std::vector<int> GroupSizes(int max_ranks) {
  std::vector<int> sizes;
  for (int ranks = 1; ranks < max_ranks; ranks *= 2) sizes.push_back(ranks);
  sizes.push_back(max_ranks);
  return sizes;
}

// Appends the plans for groups of one size that are not in `seen`.
absl::Status AddPlans(const PlanProblem& whole, std::set<std::string>& seen,
                      std::vector<v1::Plan>& plans) {
  absl::Status refused = absl::OkStatus();
  bool any = false;
  for (const Strategy strategy : AllStrategies()) {
    PlanProblem problem = whole;
    problem.strategy = strategy;
    for (const Mesh& mesh : MeshesFor(problem)) {
      problem.pins.mesh = mesh.axes();
      const auto found = Search(problem);
      if (!found.ok()) refused.Update(found.status());
      if (!found.ok()) continue;
      any = true;
      v1::Plan plan = PlanToProto(found->best.plan, *problem.index);
      // The plan must not claim that the link was measured.
      plan.clear_link();
      if (seen.insert(plan.SerializeAsString()).second) plans.push_back(std::move(plan));
    }
  }
  return any ? absl::OkStatus() : refused;
}

}  // namespace

absl::StatusOr<std::vector<v1::Plan>> PlansToProbe(const v1::RunSpec& spec, int max_ranks) {
  CADRE_ASSIGN_OR_RETURN(const Graph graph, Graph::FromModel(spec.model()));
  const ParameterIndex index = ParameterIndex::FromGraph(graph);
  std::set<std::string> seen;
  std::vector<v1::Plan> plans;
  for (const int ranks : GroupSizes(max_ranks)) {
    CADRE_ASSIGN_OR_RETURN(
        const PlanProblem problem,
        ProblemOf(spec, graph, index, ranks, UniformHardware(kTypicalLink, kTypicalFlops)));
    CADRE_RETURN_IF_ERROR(AddPlans(problem, seen, plans));
  }
  return plans;
}

}  // namespace cadre
