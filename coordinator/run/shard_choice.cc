#include "coordinator/run/shard_choice.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/run/run_rules.h"
#include "coordinator/run/run_view.h"
#include "model/shard_space.h"

namespace cadre {
namespace {

// For so long an aggregator that has refused a shard for lack of space is not chosen, unless it
// reports more space. What it reported before may be out of date, so it is asked again.
constexpr absl::Duration kRefusalCounts = absl::Minutes(1);
// For so long an aggregator that has failed to take a shard is not chosen: each attempt may delay a
// commit.
constexpr absl::Duration kFailureCounts = absl::Minutes(10);

int64_t ReservedBytes(const Member& member) {
  const auto reserved = member.counters.find("disk_reserved_bytes");
  return reserved == member.counters.end() ? 0 : static_cast<int64_t>(reserved->second);
}

// What the aggregator has reported as free, less what it has reserved; nullopt: nothing yet.
std::optional<int64_t> ReportedFree(const Member& member) {
  const auto free = member.counters.find("disk_free_bytes");
  if (free == member.counters.end()) return std::nullopt;
  return std::max<int64_t>(0, static_cast<int64_t>(free->second) - ReservedBytes(member));
}

}  // namespace

bool ShardChoice::LostShardBeforeStart() const {
  return !run_.commits().newest().has_value() &&
         std::any_of(
             record_.shards().begin(), record_.shards().end(),
             [this](const std::string& name) { return !cluster_.members().Aggregator(name); });
}

void ShardChoice::Unassign() {
  for (const std::string& name : record_.shards()) {
    if (!absl::c_linear_search(record_.former_shards(), name)) record_.add_former_shards(name);
  }
  record_.clear_shards();
  shards_.Reset();
  stored_.Save();
}

// What the aggregator reserves for a shard of this run that it has opened, before the shards were
// to be chosen again: it serves the next one. An estimate, because the number of shards may have
// differed; an aggregator with less space refuses the shard.
int64_t ShardChoice::OwnReservation(const Member& member) const {
  if (!absl::c_linear_search(record_.former_shards(), member.record.name())) return 0;
  const size_t requested = run_.spec().cluster().aggregators();
  const size_t shards = requested > 0 ? requested : record_.former_shards_size();
  return std::min(ReservedBytes(member),
                  SpaceOfLargestShard(run_.spec(), run_.Parameters(), shards));
}

std::vector<ShardCandidate> ShardChoice::Candidates() const {
  std::vector<ShardCandidate> candidates;
  for (const std::string& id : cluster_.members().aggregators()) {
    const Member& member = *cluster_.members().Find(id);
    const std::string& name = member.record.name();
    ShardCandidate candidate{.name = name,
                             .connected = member.connected(),
                             .cordoned = cluster_.queue().IsCordoned(name),
                             .shards = cluster_.queue().CountShards(name)};
    const std::optional<int64_t> free = ReportedFree(member);
    if (free.has_value()) {
      candidate.free =
          *free + OwnReservation(member) - cluster_.queue().UnreportedBytes(name, run_.number());
    }
    const auto refused = refused_.find(name);
    candidate.full = refused != refused_.end() && free.value_or(0) <= refused->second.free &&
                     cluster_.now() < refused->second.until;
    candidates.push_back(std::move(candidate));
  }
  return candidates;
}

ShardPlacement ShardChoice::FindPlacement() const {
  return PlaceShards(run_.spec(), run_.Parameters(), Candidates());
}

ShardPlacement ShardChoice::FindReplacement() const {
  std::vector<ShardCandidate> candidates = Candidates();
  std::erase_if(candidates, [this](const ShardCandidate& candidate) {
    return absl::c_linear_search(record_.shards(), candidate.name);
  });
  for (ShardCandidate& candidate : candidates) {
    candidate.leaving = absl::c_linear_search(record_.leaving(), candidate.name);
  }
  return PlaceOneShard(run_.spec(), run_.Parameters(), record_.shards_size(), candidates);
}

void ShardChoice::ExcludeFull(const std::string& aggregator) {
  const Member* const member = cluster_.members().Aggregator(aggregator);
  const int64_t free = member == nullptr ? 0 : ReportedFree(*member).value_or(0);
  refused_[aggregator] = {free, cluster_.now() + kRefusalCounts};
}

void ShardChoice::ExcludeFailed(const std::string& aggregator) {
  refused_[aggregator] = {std::numeric_limits<int64_t>::max(), cluster_.now() + kFailureCounts};
}

bool ShardChoice::Choose(size_t idle_workers) {
  if (LostShardBeforeStart()) Unassign();
  if (record_.shards_size() > 0) return true;
  const ShardPlacement placement = FindPlacement();
  lacking_ = placement.chosen.empty();
  if (lacking_) return false;
  // There are too few workers, but they are reserved for this run, which is first in the queue.
  if (idle_workers < RanksPerGroup(run_.spec())) return true;
  for (const std::string& text : placement.left_out) {
    stored_.AddWarning(absl::StrCat(text, ": it stores no shard of this run"));
  }
  for (const std::string& name : placement.chosen) record_.add_shards(name);
  stored_.Save();
  return true;
}

bool ShardChoice::OnTooLittleSpace(const Member& member, const v1::RunOpened& opened) {
  if (!absl::StartsWith(opened.error(), kTooLittleSpace)) return false;
  ExcludeFull(member.record.name());
  stored_.AddWarning(absl::StrCat("aggregator ", member.record.name(),
                                  " has refused a shard of this run: ", opened.error()));
  Unassign();
  return true;
}

}  // namespace cadre
