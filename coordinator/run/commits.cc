#include "coordinator/run/commits.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "absl/algorithm/container.h"
#include "coordinator/run/run_rules.h"
#include "coordinator/run/screen.h"
#include "model/outer_optimizer.h"
#include "plan/cost/discrepancy.h"

namespace cadre {
namespace {

using Included = v1::IncludedContribution;

// Null: none.
const Included* IncludedIn(const std::optional<v1::CommitRecord>& commit, uint32_t group) {
  if (!commit.has_value()) return nullptr;
  const auto found = std::find_if(commit->included().begin(), commit->included().end(),
                                  [group](const Included& each) { return each.group() == group; });
  return found == commit->included().end() ? nullptr : &*found;
}

// The generation must match as well: a group that was formed again is not the group that
// contributed.
bool Holds(const std::optional<v1::CommitRecord>& commit, uint32_t group, uint32_t generation,
           uint32_t round) {
  const Included* const newest = IncludedIn(commit, group);
  return newest != nullptr && newest->round() == round && newest->generation() == generation;
}

// Modulo 2^64, so the order in which the shards were committed is irrelevant.
uint64_t SumOfDigests(const v1::CommitRecord& commit) {
  uint64_t sum = 0;
  for (const v1::ShardDigest& digest : commit.digests()) sum += digest.digest();
  return sum;
}

}  // namespace

void Commits::Load(const v1::CommitRecord& commit, uint32_t version) {
  if (commit.round() == version) {
    newest_ = commit;
  } else if (commit.round() > version) {
    closing_ = commit;
  } else {
    older_[commit.round()] = commit;
  }
}

// Groups that do not take part keep what the version before includes of them, or that of which the
// version is a copy.
void Commits::Begin(v1::CommitRecord commit, int shards) {
  closing_ = std::move(commit);
  NameIncluded();
  if (newest_.has_value()) *closing_->mutable_screened() = newest_->screened();
  for (int shard = 0; shard < shards; ++shard) closing_->add_digests()->set_shard(shard);
}

void Commits::NameIncluded() {
  v1::CommitRecord& commit = *closing_;
  commit.clear_included();
  std::map<uint32_t, Included> included;
  const v1::CommitRecord* const base = commit.has_restores() ? Find(commit.restores())
                                       : newest_.has_value() ? &*newest_
                                                             : nullptr;
  if (base != nullptr) {
    for (const Included& before : base->included()) included[before.group()] = before;
  }
  for (const v1::Participant& participant : commit.participants()) {
    Included& newest = included[participant.group()];
    newest.set_group(participant.group());
    newest.set_round(commit.round());
    newest.set_generation(participant.generation());
  }
  for (const auto& [group, newest] : included) *commit.add_included() = newest;
}

void Commits::Screen(const std::vector<v1::ScreenedChange>& screened,
                     absl::FunctionRef<void(v1::CommitRecord&)> fill) {
  v1::CommitRecord& commit = *closing_;
  for (const v1::ScreenedChange& change : screened) {
    const auto of_group = [&](const auto& each) { return each.group() == change.group(); };
    auto& newest = *commit.mutable_screened();
    newest.erase(std::remove_if(newest.begin(), newest.end(), of_group), newest.end());
    *newest.Add() = change;
    auto& participants = *commit.mutable_participants();
    const auto found = absl::c_find_if(participants, of_group);
    if (change.scale() > 0) {
      found->set_scale(change.scale());
      continue;
    }
    commit.mutable_claims()->erase(commit.mutable_claims()->begin() +
                                   (found - participants.begin()));
    participants.erase(found);
    auto& times = *commit.mutable_times();
    times.erase(std::remove_if(times.begin(), times.end(), of_group), times.end());
  }
  commit.set_attempt(commit.attempt() + 1);
  fill(commit);
  NameIncluded();
  for (int shard = 0; shard < commit.digests_size(); ++shard) Revoke(shard);
}

bool Commits::Apply(const v1::Applied& applied) {
  v1::ShardDigest& digest = *closing_->mutable_digests(applied.shard());
  if (digest.applied()) return false;
  digest.set_applied(true);
  digest.set_digest(applied.digest());
  digest.set_variance_between_groups(applied.variance_between_groups());
  digest.set_displacement(applied.displacement());
  if (applied.has_outer()) *digest.mutable_outer() = applied.outer();
  if (applied.has_residual()) *digest.mutable_residual() = applied.residual();
  if (applied.has_changes()) *digest.mutable_changes() = applied.changes();
  return true;
}

void Commits::Revoke(uint32_t shard) {
  v1::ShardDigest& digest = *closing_->mutable_digests(static_cast<int>(shard));
  digest.Clear();
  digest.set_shard(shard);
}

bool Commits::applied() const {
  return std::all_of(closing_->digests().begin(), closing_->digests().end(),
                     [](const v1::ShardDigest& shard) { return shard.applied(); });
}

const v1::CommitRecord& Commits::Finish() {
  if (newest_.has_value()) older_[newest_->round()] = *std::move(newest_);
  newest_ = std::exchange(closing_, std::nullopt);
  std::erase_if(older_, [this](const auto& entry) { return !Keeps(*newest_, entry.first); });
  newest_->set_committed(true);
  newest_->set_digest(SumOfDigests(*newest_));
  newest_->clear_claims();
  if (const auto changes = ChangesOf(*newest_)) *newest_->mutable_changes() = *changes;
  for (v1::ShardDigest& digest : *newest_->mutable_digests()) digest.clear_changes();
  return *newest_;
}

const v1::CommitRecord& Commits::SetInitial(v1::CommitRecord commit) {
  commit.set_committed(true);
  commit.set_digest(SumOfDigests(commit));
  newest_ = std::move(commit);
  return *newest_;
}

const v1::IncludedContribution* Commits::IncludedOf(uint32_t group) const {
  return IncludedIn(newest_, group);
}

bool Commits::Includes(uint32_t group, uint32_t generation, uint32_t round) const {
  return Holds(newest_, group, generation, round);
}

const v1::ScreenedChange* Commits::ScreenedOf(uint32_t group) const {
  const std::optional<v1::CommitRecord>& commit = closing_.has_value() ? closing_ : newest_;
  if (!commit.has_value()) return nullptr;
  const auto found = absl::c_find_if(commit->screened(),
                                     [group](const auto& each) { return each.group() == group; });
  return found == commit->screened().end() ? nullptr : &*found;
}

bool Commits::LeavesOut(uint32_t group, uint32_t generation, uint32_t round) const {
  const v1::ScreenedChange* const newest = ScreenedOf(group);
  return newest != nullptr && newest->scale() == 0 && newest->generation() == generation &&
         newest->round() == round;
}

bool Commits::InClosing(uint32_t group, uint32_t generation) const {
  return closing_.has_value() && Holds(closing_, group, generation, closing_->round());
}

const v1::CommitRecord* Commits::Find(uint32_t version) const {
  if (newest_.has_value() && newest_->round() == version) return &*newest_;
  const auto found = older_.find(version);
  return found == older_.end() ? nullptr : &found->second;
}

std::optional<uint64_t> Commits::DigestOf(uint32_t version) const {
  const v1::CommitRecord* const commit = Find(version);
  return commit == nullptr ? std::nullopt : std::optional(commit->digest());
}

// From the newest to the oldest: a copy of version v shows that the versions between v and the copy
// are on a branch that the run has left. They are not kept, so the policy keeps versions to which
// the run may be rolled back.
std::vector<uint32_t> Commits::KeptBy(const v1::CommitRecord& next, const KeptVersions& policy,
                                      const std::set<uint32_t>& loaded) const {
  std::vector<uint32_t> keep;
  uint32_t left = policy.count;
  uint32_t branch = next.has_restores() ? next.restores() : next.round();
  if (newest_.has_value() && newest_->round() <= branch && newest_->has_restores()) {
    branch = newest_->restores();
  }
  for (auto it = older_.rbegin(); it != older_.rend(); ++it) {
    const auto& [version, commit] = *it;
    if (version > branch) continue;
    if (commit.has_restores()) branch = commit.restores();
    if (left == 0 || version % policy.every != 0) continue;
    --left;
    keep.push_back(version);
  }
  uint32_t pins = kMaxLoadedVersions;
  for (const uint32_t version : loaded) {
    const bool kept = version + 1 >= next.round() || absl::c_linear_search(keep, version);
    if (kept || !older_.contains(version) || pins == 0) continue;
    --pins;
    keep.push_back(version);
  }
  return keep;
}

bool Keeps(const v1::CommitRecord& commit, uint32_t version) {
  return version + 1 >= commit.round() || absl::c_linear_search(commit.keep(), version);
}

std::optional<uint64_t> Commits::ShardDigest(uint32_t shard) const {
  return newest_.has_value() ? cadre::DigestOf(*newest_, shard) : std::nullopt;
}

bool Commits::Agrees(const v1::Applied& applied) const {
  if (closing_.has_value() && closing_->round() == applied.round()) {
    const v1::ShardDigest& recorded = closing_->digests(static_cast<int>(applied.shard()));
    return !recorded.applied() || recorded.digest() == applied.digest();
  }
  return ShardDigest(applied.shard()).value_or(applied.digest()) == applied.digest();
}

bool Commits::Contradicts(const v1::RunOpened& opened) const {
  if (!closing_.has_value() || closing_->round() != opened.version() || opened.hollow()) {
    return false;
  }
  const v1::ShardDigest& recorded = closing_->digests(static_cast<int>(opened.shard()));
  return recorded.applied() && recorded.digest() != opened.digest();
}

uint32_t AttemptOf(const v1::Applied& applied, const v1::CommitRecord& closing) {
  return std::max(applied.attempt(), std::min(closing.attempt(), 1U));
}

std::optional<uint64_t> DigestOf(const v1::CommitRecord& commit, uint32_t shard) {
  for (const v1::ShardDigest& digest : commit.digests()) {
    if (digest.shard() == shard) return digest.digest();
  }
  return std::nullopt;
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

void RecordOuter(const v1::CommitRecord& commit, v1::RunRecord& run) {
  if (!commit.has_outer()) return;
  v1::OuterSums sums;
  for (const v1::ShardDigest& shard : commit.digests()) {
    sums.set_change_squared(sums.change_squared() + shard.outer().change_squared());
    sums.set_momentum_squared(sums.momentum_squared() + shard.outer().momentum_squared());
    sums.set_product(sums.product() + shard.outer().product());
  }
  *run.mutable_outer() = sums;
}

void RecordResidual(const v1::CommitRecord& commit, v1::RunRecord& run) {
  if (!commit.has_down()) return;
  v1::ResidualSums sums;
  for (const v1::ShardDigest& shard : commit.digests()) {
    sums.set_change_squared(sums.change_squared() + shard.residual().change_squared());
    sums.set_residual_squared(sums.residual_squared() + shard.residual().residual_squared());
  }
  *run.mutable_residual() = sums;
}

double ResidualRatioOf(const v1::RunRecord& run) {
  return std::sqrt(run.residual().residual_squared() / run.residual().change_squared());
}

v1::OuterStatus OuterStatusOf(const v1::RunRecord& run) {
  v1::OuterStatus status;
  if (const auto outer = OuterOptimizerOf(run.spec().averaging())) {
    status.set_optimizer(outer->ShortDebugString());
  }
  const v1::OuterSums& sums = run.outer();
  status.set_correlation(sums.product() /
                         std::sqrt(sums.change_squared() * sums.momentum_squared()));
  return status;
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
