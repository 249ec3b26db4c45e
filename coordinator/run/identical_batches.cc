#include "coordinator/run/identical_batches.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace cadre {
namespace {

constexpr char kWhat[] = " have trained on identical batches";

// Contributions with unknown sums (NaN) do not count as equal.
bool AreContributionsEqual(const v1::CommitRecord& commit) {
  double variance = 0;
  double displacement = 0;
  for (const v1::ShardDigest& shard : commit.digests()) {
    variance += shard.variance_between_groups();
    displacement += shard.displacement();
  }
  return variance == 0 && displacement > 0;
}

// A mean of one step may be equal by chance; a loss of 0 is that of any batch that is learned.
bool HasTellingLoss(const v1::ParticipantTimes& times, uint64_t batch) {
  return times.loss() != 0 && times.samples() >= 2 * batch;
}

}  // namespace

std::vector<uint32_t> IdenticalBatches::OnCommit(
    const v1::CommitRecord& commit, uint64_t batch,
    const std::function<bool(uint32_t group)>& is_program) {
  std::vector<uint32_t> groups;
  for (const v1::Participant& participant : commit.participants()) {
    if (is_program(participant.group())) groups.push_back(participant.group());
  }
  const bool all = std::ssize(groups) == commit.participants_size();
  // The first values of a run have no samples.
  if (groups.size() < 2 || commit.samples() == 0) return {};
  if (all && AreContributionsEqual(commit)) return groups;
  const std::map<std::pair<uint32_t, uint32_t>, Equal> before = std::exchange(equal_, {});
  for (const v1::ParticipantTimes& one : commit.times()) {
    if (!HasTellingLoss(one, batch) || !is_program(one.group())) continue;
    for (const v1::ParticipantTimes& other : commit.times()) {
      if (other.group() <= one.group() || !is_program(other.group())) continue;
      if (other.loss() != one.loss() || other.samples() != one.samples()) continue;
      const std::pair pair(one.group(), other.group());
      Equal equal{.rounds = 1, .loss = one.loss()};
      if (const auto found = before.find(pair); found != before.end()) {
        equal.rounds += found->second.rounds;
        equal.changed = found->second.changed || found->second.loss != one.loss();
      }
      if (equal.rounds >= kEqualRounds && equal.changed) return {pair.first, pair.second};
      equal_[pair] = equal;
    }
  }
  return {};
}

std::string IdenticalBatchesText(const std::vector<uint32_t>& groups) {
  return absl::StrCat("groups ", absl::StrJoin(groups, " and "), kWhat,
                      ", so that together they learn no more than one of them: each program must "
                      "train on the samples from its group.sample_position on, as group.sampler "
                      "does");
}

bool IsOfIdenticalBatches(const std::string& warning) { return absl::StrContains(warning, kWhat); }

}  // namespace cadre
