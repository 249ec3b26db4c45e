#include "coordinator/run_discrepancy.h"

#include <cmath>

#include "coordinator/run_rules.h"
#include "plan/cost/discrepancy.h"

namespace cadre {

void CountDiscrepancy(const v1::CommitRecord& commit, v1::RunRecord& run) {
  if (commit.participants_size() < 2) return;
  double variance = 0;
  double displacement = 0;
  for (const v1::ShardDigest& shard : commit.digests()) {
    variance += shard.variance_between_groups();
    displacement += shard.displacement();
  }
  const double newest = DiscrepancyOf(variance, displacement);
  if (!std::isfinite(newest)) return;
  v1::DiscrepancyRecord& record = *run.mutable_discrepancy();
  SmoothedDiscrepancy smoothed{record.share(), record.rounds()};
  smoothed.Add(variance, displacement);
  record.set_share(smoothed.share);
  record.set_rounds(smoothed.rounds);
  record.set_newest(newest);
  record.set_groups(commit.participants_size());
}

v1::Discrepancy DiscrepancyStatus(const v1::RunRecord& run) {
  const v1::DiscrepancyRecord& record = run.discrepancy();
  v1::Discrepancy status;
  status.set_newest(record.newest());
  status.set_smoothed(SmoothedDiscrepancy{record.share(), record.rounds()}.Value());
  status.set_rounds(record.rounds());
  status.set_recommendation(OutlookOf({.gamma = status.smoothed(),
                                       .rounds = record.rounds(),
                                       .groups = record.groups(),
                                       .every_steps = run.spec().averaging().every_steps(),
                                       .total_steps = TotalSteps(run)})
                                .text);
  return status;
}

}  // namespace cadre
