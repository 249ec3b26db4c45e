// A report contains two kinds of numbers that must not be mixed.
//
//   formulas     the cost of a strategy by its paper: messages and words of a grid,
//                without overlap, buckets or moves between layouts
//   predictions  the cost of a plan as the planner predicts it (plan/search): with buckets, sharded
//                updates and overlap
//
// If flags describe the link, a published strategy is reported with its paper's numbers, so that
// the papers' tables can be reproduced digit by digit; the predicted plan for the same strategy is
// reported next to them. A cluster profile has measured times of layers, which the formulas do not
// use, so predictions are reported then. No formulas exist for strategy `auto`.
//
// Cost: one search for the plan, seven for the sensitivity, seven for the comparison; one per
// divisor of the workers for the forecast, and several times as many for the crossover.
#include "lab/plan_report.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "lab/round_traffic.h"
#include "plan/cost/communication_cost.h"
#include "plan/memory_fit.h"
#include "plan/placed_memory.h"
#include "plan/plan_collectives.h"
#include "plan/recomputation.h"
#include "plan/search/planner.h"
#include "plan/search/prediction.h"

namespace cadre {
namespace {

absl::StatusOr<Candidate> PlanByRules(const PlanQuestion& question) {
  const PlanProblem& problem = question.problem;
  Candidate candidate;
  CADRE_ASSIGN_OR_RETURN(
      candidate.plan,
      MakePlan(question.request.spec, problem.ranks, question.graph, question.index,
               problem.hardware.link, problem.hardware.link_kind, problem.bucket_elements));
  candidate.prediction = Predict(problem, candidate.plan);
  return candidate;
}

absl::Status AddPaper(const PlanQuestion& question, PlanReport& report) {
  const Strategy strategy = question.request.strategy;
  if (strategy == Strategy::kAuto) return absl::OkStatus();
  report.uses_formulas = !question.request.profile;
  const auto& pinned = question.problem.pins.layers;
  if (report.uses_formulas && !pinned.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the formulas of strategy ", StrategyName(strategy), " do not model pinned layers such as ",
        pinned.begin()->first, "; strategy auto supports pins"));
  }
  absl::StatusOr<PaperCost> cost = PaperCostOf(question, strategy);
  if (!cost.ok() && report.uses_formulas) return cost.status();
  if (cost.ok()) report.paper = *std::move(cost);
  return absl::OkStatus();
}

absl::Status ChoosePlan(const PlanQuestion& question, PlanReport& report) {
  // Pins place layers.
  if (!question.problem.pins.at.empty()) {
    if (question.request.strategy != Strategy::kAuto) {
      return absl::InvalidArgumentError(
          "the strategies of papers place no layers; strategy auto supports pins that do");
    }
    CADRE_ASSIGN_OR_RETURN(report.chosen, PlanByRules(question));
    const std::vector<int64_t> limits(question.problem.ranks,
                                      question.problem.hardware.memory_bytes);
    const v1::Cluster& cluster = question.request.spec.cluster();
    if (cluster.recompute() != v1::Recomputation::OFF &&
        cluster.recompute() != v1::Recomputation::ALL) {
      RecomputeAsNeeded(question.request.spec, question.graph, question.index, cluster.device(),
                        limits, RecomputationBlocks(question.graph), report.chosen->plan);
      report.chosen->prediction = Predict(question.problem, report.chosen->plan);
    }
    return CheckPlacedMemory(question.request.spec, question.graph, question.index,
                             report.chosen->plan, question.request.spec.cluster().device(), limits);
  }
  if (!question.link_known()) {
    if (question.request.strategy != Strategy::kAuto) {
      report.refusal = absl::FailedPreconditionError("the link is unknown");
      return absl::OkStatus();
    }
    CADRE_ASSIGN_OR_RETURN(report.chosen, PlanByRules(question));
    return absl::OkStatus();
  }
  absl::StatusOr<SearchResult> searched = Search(question.problem);
  if (!searched.ok()) {
    report.refusal = searched.status();
    return report.uses_formulas ? absl::OkStatus() : report.refusal;
  }
  report.chosen = searched->best;
  report.searched = *std::move(searched);
  return absl::OkStatus();
}

void CostBuckets(const PlanQuestion& question, PlanReport& report) {
  const Plan& plan = report.chosen->plan;
  for (const Bucket& bucket : plan.buckets) {
    report.buckets.push_back(CostOf(question.problem, plan, bucket));
  }
  if (!question.link_known()) return;
  for (const v1::Cluster::CollectivePolicy policy : AllPolicies()) {
    PlanProblem problem = question.problem;
    problem.collectives = policy;
    const Plan by_policy = WithBuckets(problem, plan);
    report.policies.push_back(
        {.policy = policy,
         .seconds = Predict(problem, by_policy).communication_seconds(),
         .all_reduced = AllReduceSeconds(by_policy, question.graph, question.index, policy)});
  }
}

void CountBytes(const PlanQuestion& question, PlanReport& report) {
  report.bytes_inside = report.elements_per_rank() * kBytesPerWord * question.problem.ranks;
  const v1::RunSpec& spec = question.request.spec;
  if (spec.averaging().every_steps() == 0) return;
  const int64_t groups = std::max(1U, spec.cluster().groups());
  const RoundTraffic round = RoundTrafficOf(spec.averaging(), question.index);
  report.bytes_across = 1.0 * groups * round.bytes() / spec.averaging().every_steps();
}

}  // namespace

double PlanReport::elements_per_rank() const {
  return uses_formulas ? paper->communication.words : chosen->prediction.elements_per_rank;
}

double PlanReport::communication_seconds() const {
  return uses_formulas ? paper->communication_seconds : chosen->prediction.communication_seconds();
}

double PlanReport::step_seconds() const {
  return uses_formulas ? paper->step_seconds() : chosen->prediction.times.step();
}

std::optional<double> PlanReport::pins_cost() const {
  if (!searched || !searched->unpinned) return std::nullopt;
  return searched->best.prediction.times.step() - searched->unpinned->prediction.times.step();
}

absl::StatusOr<PlanReport> BuildPlanReport(const PlanQuestion& question) {
  const PlanRequest& request = question.request;
  PlanReport report{.question = &question};
  CADRE_RETURN_IF_ERROR(AddPaper(question, report));
  CADRE_RETURN_IF_ERROR(ChoosePlan(question, report));
  if (report.chosen) CostBuckets(question, report);
  CountBytes(question, report);
  if (report.searched && request.sensitivity.value_or(VaryingIsCheap(question, *report.searched))) {
    report.variations = VaryInputs(question, *report.searched);
  }
  if (!request.compare.empty()) report.comparison = CompareStrategies(question);
  if (request.epochs) {
    CADRE_ASSIGN_OR_RETURN(report.forecast, ForecastEpochs(question, report.step_seconds()));
  }
  if (request.max_groups || (request.profile && request.epochs)) {
    CADRE_ASSIGN_OR_RETURN(report.groups, ChooseGroups(question));
  }
  return report;
}

}  // namespace cadre
