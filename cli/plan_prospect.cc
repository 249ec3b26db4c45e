#include "cli/plan_prospect.h"

#include <algorithm>

#include "base/status.h"
#include "coordinator/cost/hierarchical_averaging.h"

namespace cadre {
namespace {

void CountBytes(const PlanQuestion& question, Prospect& prospect) {
  prospect.bytes_inside = prospect.words_per_rank() * static_cast<double>(kBytesPerWord) *
                          static_cast<double>(question.problem.ranks);
  const uint32_t every = question.spec.averaging().every_steps();
  if (every == 0) return;
  const int64_t groups = std::max(1U, question.spec.cluster().groups());
  const AggregationTraffic round =
      TrafficOfRound(question.index.size(), groups, question.problem.ranks);
  prospect.bytes_across = static_cast<double>(round.bytes_per_round) / every;
}

}  // namespace

double Prospect::words_per_rank() const {
  return answer.papers_figures ? answer.paper->communication.words
                               : answer.chosen->prediction.words_per_rank;
}

double Prospect::communication_seconds() const {
  return answer.papers_figures ? answer.paper->communication_seconds
                               : answer.chosen->prediction.communication_seconds();
}

double Prospect::step_seconds() const {
  return answer.papers_figures ? answer.paper->step_seconds()
                               : answer.chosen->prediction.times.step();
}

absl::StatusOr<Prospect> Foresee(const PlanQuestion& question) {
  Prospect prospect{.question = &question};
  CADRE_ASSIGN_OR_RETURN(prospect.answer, AnswerPlan(question));
  CountBytes(question, prospect);
  const PlanAnswer& answer = prospect.answer;
  const PlanOptions& options = question.options;
  if (answer.searched && options.sensitivity.value_or(VaryUnasked(question, *answer.searched))) {
    prospect.variations = Vary(question, *answer.searched);
  }
  if (!options.compare.empty()) prospect.comparison = Compare(question);
  if (options.epochs) {
    CADRE_ASSIGN_OR_RETURN(prospect.target, PlanTimeToTarget(question, prospect.step_seconds()));
  }
  if (AsksForGroups(options)) {
    CADRE_ASSIGN_OR_RETURN(prospect.groups, PlanGroups(question));
  }
  return prospect;
}

}  // namespace cadre
