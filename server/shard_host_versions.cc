// The orders that make and publish versions. Part of ShardHost.
#include <glog/logging.h>

#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "server/shard_host.h"

namespace cadre {
namespace {

v1::Applied Answer(const v1::Apply& apply) {
  v1::Applied applied;
  applied.set_run(apply.run());
  applied.set_shard(apply.shard());
  applied.set_round(apply.round());
  applied.set_attempt(apply.attempt());
  return applied;
}

void SetStats(const VersionStats& stats, v1::Applied& answer) {
  answer.set_digest(stats.digest);
  answer.set_variance_between_groups(stats.discrepancy.variance_between_groups);
  answer.set_displacement(stats.discrepancy.displacement);
  if (stats.outer) *answer.mutable_outer() = *stats.outer;
  if (stats.residual) *answer.mutable_residual() = *stats.residual;
  if (stats.changes.squared_size() > 0) *answer.mutable_changes() = stats.changes;
}

std::set<ContributionKey> ContributionKeysOf(const ApplyPlan& plan) {
  std::set<ContributionKey> keys;
  for (const GroupSource& group : plan.groups) {
    for (const SourceSegment& segment : group.segments) keys.insert(segment.key);
  }
  return keys;
}

}  // namespace

// The round reads and checks its inputs in one pass, and an error may be the consequence of damage
// that it has not found yet. So a second pass names what is damaged.
absl::StatusOr<VersionStats> ShardHost::MakeVersion(const ApplyPlan& plan) {
  const absl::StatusOr<VersionStats> made = store_->WriteMean(plan);
  if (made.ok() || IsTransient(made.status())) return made;
  absl::Status lost;
  for (const ContributionKey& key : ContributionKeysOf(plan)) {
    const absl::Status status = store_->VerifyContribution(key);
    if (!IsLoss(status)) continue;
    lost.Update(status);
    const RunTurns::Turn names = names_.Begin(key.run);
    {
      absl::MutexLock lock(&mutex_);
      ledger_.ContributionLost(key);
    }
    store_->RemoveContribution(key);
  }
  CADRE_RETURN_IF_ERROR(lost);
  const absl::Status before = store_->VerifyBefore(plan);
  return IsLoss(before) ? OnReadError(plan.run, before) : made.status();
}

void ShardHost::Publish(const v1::Publish& publish) {
  const RunTurns::Turn turn = turns_.Begin(publish.run());
  PublishUntil(publish.run(), publish.round());
}

void ShardHost::PublishUntil(const std::string& run, uint32_t version) {
  std::optional<StoredVersion> newest;
  std::vector<ContributionKey> fenced;
  {
    absl::MutexLock lock(&mutex_);
    newest = ledger_.Unpublished(run);
    if (const auto found = fenced_.extract(run); !found.empty()) fenced = found.mapped();
  }
  // No rank may stage these contributions again, so no new file has their names.
  Remove(fenced);
  if (!newest || newest->version > version) return;
  store_->Archive(run, newest->order, newest->stats.digest);
  std::vector<ContributionKey> dropped;
  {
    absl::MutexLock lock(&mutex_);
    dropped = ledger_.Publish(run, version);
  }
  Remove(dropped);
}

absl::StatusOr<v1::Applied> ShardHost::Apply(const v1::Apply& apply) {
  const RunTurns::Turn turn = turns_.Begin(apply.run());
  // The order of a round shows that the version before is published.
  if (apply.round() > 0) PublishUntil(apply.run(), apply.round() - 1);
  v1::Applied answer = Answer(apply);
  ApplyDecision decision;
  {
    absl::MutexLock lock(&mutex_);
    CADRE_RETURN_IF_ERROR(unverified_.Check(apply.run()));
    decision = ledger_.BeginApply(apply);
  }
  if (const auto* already = std::get_if<AlreadyApplied>(&decision)) {
    SetStats(already->stats, answer);
    return answer;
  }
  if (const auto* refused = std::get_if<Refused>(&decision)) {
    answer.set_error(std::string(Refuse(*refused).message()));
    answer.set_refusal(refused->refusal);
    return answer;
  }
  if (const auto* incomplete = std::get_if<Incomplete>(&decision)) {
    answer.mutable_missing()->Add(incomplete->groups.begin(), incomplete->groups.end());
    LOG(WARNING) << "round " << apply.round() << " of " << apply.run()
                 << " waits for contributions: " << incomplete->reason;
    return answer;
  }
  if (const auto* lacks = std::get_if<LacksVersion>(&decision)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "round ", apply.round(), " of ", apply.run(), " requires the values of version ",
        lacks->version, ", which this shard does not have"));
  }
  // The turn excludes a concurrent Apply.
  CHECK(std::holds_alternative<ApplyPlan>(decision));
  const ApplyPlan& plan = std::get<ApplyPlan>(decision);
  const absl::StatusOr<VersionStats> stats = MakeVersion(plan);
  if (!stats.ok()) {
    {
      absl::MutexLock lock(&mutex_);
      ledger_.ApplyFailed(plan.run, plan.round);
    }
    const absl::Status failed = CountError(stats.status());
    // Only the values can make every attempt fail. After a loss, the next attempt finds the
    // contribution missing.
    if (!absl::IsInvalidArgument(failed)) return failed;
    answer.set_error(std::string(failed.message()));
    return answer;
  }
  std::vector<ContributionKey> dropped;
  std::vector<uint32_t> obsolete;
  {
    absl::MutexLock lock(&mutex_);
    dropped = ledger_.VersionDurable(plan.run, plan.round, *stats);
    obsolete = ledger_.ForgetObsolete(plan.run);
  }
  Remove(dropped);
  for (const uint32_t version : obsolete) store_->RemoveVersion(plan.run, version);
  counters_->Add("versions_written");
  SetStats(*stats, answer);
  return answer;
}

}  // namespace cadre
