// The report of `cadre plan`: the plan, its predicted cost, and why it was chosen over others.
//
// Values; thread-compatible.
#pragma once

#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lab/epochs_forecast.h"
#include "lab/group_choice.h"
#include "lab/plan_question.h"
#include "lab/sensitivity.h"
#include "lab/strategy_comparison.h"
#include "plan/plan_collectives.h"
#include "plan/search/search.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre {

// Communication of a step under a policy of collectives, in seconds.
struct PolicyCost {
  v1::Cluster::CollectivePolicy policy = v1::Cluster::AUTO;
  // As Cadre executes it: gradients are reduce-scattered to their owners, weights gathered.
  double seconds = 0;
  // If every bucket were all-reduced instead.
  double all_reduced = 0;
};

// The report; borrows the question.
struct PlanReport {
  const PlanQuestion* question = nullptr;

  // The plan that a group would execute. nullopt: there is none, for the reason in `refusal`; the
  // report then consists of `paper`.
  std::optional<Candidate> chosen;
  absl::Status refusal;
  // One per bucket of the chosen plan.
  std::vector<BucketCost> buckets;
  // The search that found the plan; nullopt if fixed rules made it (plan/search/planner.h), as for
  // a group that has not measured its link yet.
  std::optional<SearchResult> searched;
  bool by_rules() const { return chosen && !searched; }
  // Cost by the formulas of the strategy's paper; nullopt for strategy `auto`.
  std::optional<PaperCost> paper;
  // Whether the functions below return values of the paper's formulas (a published strategy on a
  // link that flags describe) or the planner's predictions (all other cases).
  bool uses_formulas = false;
  // Empty if the link is unknown.
  std::vector<PolicyCost> policies;
  // Average payload of a step: inside the group, summed over its ranks; and between all groups and
  // their aggregators.
  double bytes_inside = 0;
  double bytes_across = 0;

  // The optional parts.
  std::vector<Variation> variations;
  std::optional<StrategyComparison> comparison;
  std::optional<EpochsForecast> forecast;
  std::optional<GroupsResult> groups;

  // Elements that a rank sends in a step, and times, from the source that uses_formulas selects.
  double elements_per_rank() const;
  double communication_seconds() const;
  double step_seconds() const;
  // Seconds that the pins add to a step; nullopt: there are no pins.
  std::optional<double> pins_cost() const;
};

// Errors: those of Search, CostOf (lab/paper_strategies.h), ForecastEpochs and ChooseGroups;
// InvalidArgument for pinned layers with a published strategy on a link that flags describe.
absl::StatusOr<PlanReport> BuildPlanReport(const PlanQuestion& question);

}  // namespace cadre
