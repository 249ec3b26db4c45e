// The report of `cadre plan`: the plan, its predicted cost, and why it was chosen over others.
//
// Values; thread-compatible.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plan/report/epochs_forecast.h"
#include "plan/report/plan_question.h"
#include "plan/report/sensitivity.h"
#include "plan/report/strategy_comparison.h"
#include "plan/search/group_choice.h"
#include "plan/search/search.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre {

// Communication of a step under a policy of collectives, in seconds: as Cadre executes it, and with
// every bucket all-reduced instead of sharded.
struct PolicyCost {
  v1::Cluster::CollectivePolicy policy = v1::Cluster::AUTO;
  double seconds = 0;
  double all_reduced = 0;
};

// Payload of a bucket and the seconds of its collectives; 0 seconds if the link is unknown.
struct BucketReport {
  int64_t bytes = 0;
  double seconds = 0;
};

// Borrows the question.
struct PlanReport {
  const PlanQuestion* question = nullptr;

  // The plan that Cadre's engine would execute. Nothing: there is none, for the reason in
  // `refusal`, and `paper` holds the answer.
  std::optional<Candidate> chosen;
  absl::Status refusal;
  // One per bucket of the chosen plan.
  std::vector<BucketReport> buckets;
  // How it was found; nothing if by rules, as a group does before it has measured a link.
  std::optional<SearchResult> searched;
  bool by_rules = false;
  // Cost by the paper's formulas, for a strategy of the papers.
  std::optional<PaperCost> paper;
  // Whether the report's figures are the paper's (a strategy of the papers on a given link) or the
  // engine's (all other cases).
  bool paper_figures = false;
  // Empty if the link is unknown.
  std::vector<PolicyCost> policies;
  // Payload per step inside the group, over all ranks, and between all groups and their
  // aggregators, on average.
  double bytes_inside = 0;
  double bytes_across = 0;

  // The optional parts.
  std::vector<Variation> variations;
  std::optional<StrategyComparison> comparison;
  std::optional<EpochsForecast> forecast;
  std::optional<GroupsResult> groups;

  // By paper_figures.
  double words_per_rank() const;
  double communication_seconds() const;
  double step_seconds() const;
  // Seconds that the pins add to a step; nothing: nothing is pinned.
  std::optional<double> pins_cost() const;
};

// Errors: Search's, CostOf's (plan/cost/paper_strategies.h), ForecastEpochs's, ChooseGroups's;
// InvalidArgument for pinned layers with a strategy of the papers on a given link.
absl::StatusOr<PlanReport> BuildPlanReport(const PlanQuestion& question);

}  // namespace cadre
