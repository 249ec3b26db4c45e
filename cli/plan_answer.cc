#include "cli/plan_answer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "coordinator/plan/planner.h"
#include "coordinator/plan/prediction.h"
#include "spec/plan_collectives.h"

namespace cadre {
namespace {

absl::StatusOr<Candidate> ByRules(const PlanQuestion& question) {
  const PlanProblem& problem = question.problem;
  Candidate candidate;
  CADRE_ASSIGN_OR_RETURN(
      candidate.plan,
      MakePlan(question.spec, problem.ranks, question.graph, question.index, problem.machine.link,
               problem.machine.link_kind, problem.bucket_elements));
  candidate.prediction = Predict(problem, candidate.plan);
  return candidate;
}

std::vector<PolicyCost> PoliciesOf(const PlanQuestion& question, const Plan& plan) {
  std::vector<PolicyCost> costs;
  for (const v1::CollectivePolicy policy : AllPolicies()) {
    PlanProblem problem = question.problem;
    problem.collectives = policy;
    const Plan by_policy = WithBuckets(problem, plan);
    const Prediction prediction = Predict(problem, by_policy);
    costs.push_back(
        {.policy = policy,
         .seconds = prediction.communication_seconds(),
         .all_reduced = AllReduceSeconds(by_policy, question.graph, question.index, policy)});
  }
  return costs;
}

// Ranks of the axes that do not cut the samples, where the user pins the mesh.
std::optional<int64_t> PinnedRows(const PlanProblem& problem) {
  if (problem.pins.mesh.empty()) return std::nullopt;
  int64_t rows = 1;
  for (const Mesh::Axis& axis : problem.pins.mesh) rows *= axis.name == kDataAxis ? 1 : axis.size;
  return rows;
}

absl::Status Search(const PlanQuestion& question, PlanAnswer& answer) {
  absl::StatusOr<SearchResult> searched = cadre::Search(question.problem);
  if (!searched.ok()) return searched.status();
  answer.chosen = searched->best;
  answer.searched = *std::move(searched);
  return absl::OkStatus();
}

}  // namespace

std::optional<PaperStrategy> PaperStrategyOf(Strategy strategy) {
  return PaperStrategyFromName(StrategyName(strategy));
}

absl::StatusOr<PaperCost> PaperCostOf(const PlanQuestion& question, PaperStrategy strategy) {
  return CostOf(strategy, question.paper_problem(), PinnedRows(question.problem));
}

absl::StatusOr<PlanAnswer> AnswerPlan(const PlanQuestion& question) {
  PlanAnswer answer{.strategy = question.strategy()};
  if (const auto strategy = PaperStrategyOf(answer.strategy)) {
    answer.papers_figures = !question.options.profile;
    if (answer.papers_figures && !question.problem.pins.layers.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "strategy ", StrategyName(answer.strategy),
          " is a paper's, whose formulas know no pinned ", "layers such as ",
          question.problem.pins.layers.begin()->first, "; --strategy auto keeps pins"));
    }
    absl::StatusOr<PaperCost> paper = PaperCostOf(question, *strategy);
    if (!paper.ok() && answer.papers_figures) return paper.status();
    if (paper.ok()) answer.paper = *std::move(paper);
  }
  if (question.link_known()) {
    answer.refusal = Search(question, answer);
    if (!answer.refusal.ok() && !answer.papers_figures) return answer.refusal;
  } else if (answer.strategy == Strategy::kAuto) {
    answer.by_rules = true;
    CADRE_ASSIGN_OR_RETURN(answer.chosen, ByRules(question));
  } else {
    answer.refusal = absl::FailedPreconditionError("no link is known");
  }
  if (answer.chosen && question.link_known()) {
    answer.policies = PoliciesOf(question, answer.chosen->plan);
  }
  return answer;
}

}  // namespace cadre
