// Everything that `cadre plan` prints.
//
// Values; thread-compatible. Borrows the question.
#pragma once

#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/plan_answer.h"
#include "cli/plan_compare.h"
#include "cli/plan_epochs.h"
#include "cli/plan_groups.h"
#include "cli/plan_question.h"
#include "cli/plan_sensitivity.h"

namespace cadre {

struct Prospect {
  const PlanQuestion* question = nullptr;
  PlanAnswer answer;
  std::vector<Variation> variations;
  std::optional<Comparison> comparison;
  std::optional<TimeToTarget> target;
  std::optional<GroupsAnswer> groups;
  // Payload of a step that stays inside the group (all ranks), and that goes between all groups
  // and their aggregators, on average.
  double bytes_inside = 0;
  double bytes_across = 0;

  // The figures that count (PlanAnswer::papers_figures).
  double words_per_rank() const;
  double communication_seconds() const;
  double step_seconds() const;
};

// Errors: AnswerPlan's and PlanTimeToTarget's and PlanGroups's.
absl::StatusOr<Prospect> Foresee(const PlanQuestion& question);

}  // namespace cadre
