// A Run contains state from the store (`record`, `last`) and state that is rebuilt after a restart
// (`round`, `opened`), when aggregators open their shards again and groups send their contributions
// again.
#include "coordinator/run.h"

#include <algorithm>
#include <cmath>

#include "coordinator/run_rules.h"
#include "plan/cost/discrepancy.h"

namespace cadre {
namespace {

// The generation must match as well: a group that was formed again is not the group that
// contributed.
bool Holds(const v1::CommitRecord& commit, uint32_t group, uint32_t generation) {
  return std::any_of(commit.participants().begin(), commit.participants().end(),
                     [&](const v1::Participant& participant) {
                       return participant.group() == group &&
                              participant.generation() == generation;
                     });
}

}  // namespace

Run::Run(const v1::RunRecord& run, absl::Time now)
    : record(run), round(run.spec().averaging().quorum(), MinGrace(run.spec())) {
  for (uint32_t group = 0; group < GroupsOf(run.spec()); ++group) {
    slots.emplace_back(run.run(), group, now);
  }
  round.Open(run.version() + 1);
}

bool Run::shards_open() const {
  return !averages() || (record.shards_size() > 0 && std::ssize(opened) == record.shards_size() &&
                         last.has_value());
}

std::vector<uint32_t> Run::LiveGroups() const {
  std::vector<uint32_t> groups;
  for (const Slot& slot : slots) {
    if (slot.started()) groups.push_back(slot.group());
  }
  return groups;
}

bool Run::InLastCommit(uint32_t group) const {
  return last.has_value() && Holds(*last, group, slots[group].record().generation());
}

bool Run::InClosing(uint32_t group) const {
  return closing.has_value() && Holds(*closing, group, slots[group].record().generation());
}

std::optional<uint64_t> Run::ShardDigestOf(uint32_t shard) const {
  if (!last.has_value()) return std::nullopt;
  for (const v1::ShardDigest& digest : last->digests()) {
    if (digest.shard() == shard) return digest.digest();
  }
  return std::nullopt;
}

// Modulo 2^64, so the order in which the shards were committed is irrelevant.
uint64_t SumOfDigests(const v1::CommitRecord& commit) {
  uint64_t sum = 0;
  for (const v1::ShardDigest& digest : commit.digests()) sum += digest.digest();
  return sum;
}

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
  status.set_recommendation(AdviceFor({.gamma = status.smoothed(),
                                       .rounds = record.rounds(),
                                       .groups = record.groups(),
                                       .every_steps = run.spec().averaging().every_steps(),
                                       .total_steps = TotalSteps(run)}));
  return status;
}

}  // namespace cadre
