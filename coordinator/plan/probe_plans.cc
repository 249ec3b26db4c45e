#include "coordinator/plan/probe_plans.h"

#include <set>
#include <string>
#include <utility>

#include "base/status.h"
#include "coordinator/plan/machine.h"
#include "coordinator/plan/plan_problem.h"
#include "coordinator/plan/search.h"
#include "spec/graph.h"
#include "spec/parameter_index.h"
#include "spec/plan.h"

namespace cadre {
namespace {

// Something usual, so that work and words are weighed against one another at all.
constexpr LinkProfile kUsualLink = {.alpha = 50e-6, .beta = 1e-9};
constexpr double kUsualFlops = 2e10;

std::vector<int> GroupSizes(int most_ranks) {
  std::vector<int> sizes;
  for (int ranks = 1; ranks < most_ranks; ranks *= 2) sizes.push_back(ranks);
  sizes.push_back(most_ranks);
  return sizes;
}

// Appends the plans for groups of one size.
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
      // The link is made up: it is nobody's business.
      plan.clear_link();
      if (seen.insert(plan.SerializeAsString()).second) plans.push_back(std::move(plan));
    }
  }
  return any ? absl::OkStatus() : refused;
}

}  // namespace

absl::StatusOr<std::vector<v1::Plan>> PlansToProbe(const v1::RunSpec& spec, int most_ranks) {
  CADRE_ASSIGN_OR_RETURN(const Graph graph, Graph::FromModel(spec.model()));
  const ParameterIndex index = ParameterIndex::FromGraph(graph);
  std::set<std::string> seen;
  std::vector<v1::Plan> plans;
  for (const int ranks : GroupSizes(most_ranks)) {
    CADRE_ASSIGN_OR_RETURN(
        const PlanProblem problem,
        ProblemOf(spec, graph, index, ranks, UniformMachine(kUsualLink, kUsualFlops)));
    CADRE_RETURN_IF_ERROR(AddPlans(problem, seen, plans));
  }
  return plans;
}

}  // namespace cadre
