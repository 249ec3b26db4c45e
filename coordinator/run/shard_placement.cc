#include "coordinator/run/shard_placement.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <tuple>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/run/run_rules.h"
#include "model/shard_space.h"

namespace cadre {
namespace {

using Candidates = std::vector<ShardCandidate>;

int64_t FreeOf(const ShardCandidate& candidate) {
  return candidate.free.value_or(std::numeric_limits<int64_t>::max());
}

std::string SpaceText(const ShardCandidate& candidate, int64_t needed) {
  return absl::StrCat("aggregator ", candidate.name, " has ", FreeOf(candidate),
                      " bytes free, and a shard needs ", needed);
}

std::vector<std::string> NamesOf(const Candidates& candidates) {
  std::vector<std::string> names;
  for (const ShardCandidate& candidate : candidates) names.push_back(candidate.name);
  absl::c_sort(names);
  return names;
}

// Too few are connected and neither cordoned nor full.
std::string CountReason(const Candidates& all, size_t required) {
  int connected = 0;
  int cordoned = 0;
  int full = 0;
  for (const ShardCandidate& one : all) {
    if (!one.connected) continue;
    ++connected;
    cordoned += one.cordoned ? 1 : 0;
    full += !one.cordoned && one.full ? 1 : 0;
  }
  if (cordoned + full == 0) {
    return absl::StrCat("waiting for aggregators: ", connected, " of ", required, " connected");
  }
  std::vector<std::string> unusable;
  if (cordoned > 0) unusable.push_back(absl::StrCat(cordoned, " cordoned"));
  if (full > 0) unusable.push_back(absl::StrCat(full, " without space for a shard"));
  return absl::StrCat("waiting for aggregators: ", required, " needed, ", connected,
                      " connected, of which ", absl::StrJoin(unusable, " and "));
}

}  // namespace

ShardPlacement PlaceShards(const v1::RunSpec& spec, uint64_t parameters, Candidates candidates) {
  const size_t required = MinAggregators(spec);
  const size_t requested = spec.cluster().aggregators();
  Candidates usable;
  absl::c_copy_if(candidates, std::back_inserter(usable), [](const ShardCandidate& candidate) {
    return candidate.connected && !candidate.cordoned && !candidate.full;
  });
  ShardPlacement placement;
  if (usable.size() < required) {
    placement.reason = CountReason(candidates, required);
    return placement;
  }
  // The most free space first, so that the shards of a smaller number are on the first ones.
  absl::c_sort(usable, [](const ShardCandidate& a, const ShardCandidate& b) {
    return std::tuple(-FreeOf(a), a.name) < std::tuple(-FreeOf(b), b.name);
  });
  size_t shards = requested > 0 ? requested : usable.size();
  const auto needed = [&] { return SpaceOfLargestShard(spec, parameters, shards); };
  const auto fits = [&](const ShardCandidate& candidate) { return FreeOf(candidate) >= needed(); };
  while (shards > required && !fits(usable[shards - 1])) --shards;
  const auto full = std::find_if_not(usable.begin(), usable.end(), fits);
  std::vector<std::string> too_small;
  for (auto it = full; it != usable.end(); ++it) too_small.push_back(SpaceText(*it, needed()));
  const size_t fitting = full - usable.begin();
  if (fitting < shards) {
    placement.reason =
        absl::StrCat("waiting for aggregators with free space: ", absl::StrJoin(too_small, "; "));
    return placement;
  }
  if (requested == 0) placement.left_out = std::move(too_small);
  usable.erase(full, usable.end());
  std::stable_sort(
      usable.begin(), usable.end(),
      [](const ShardCandidate& a, const ShardCandidate& b) { return a.shards < b.shards; });
  usable.resize(shards);
  placement.chosen = NamesOf(usable);
  return placement;
}

ShardPlacement PlaceOneShard(const v1::RunSpec& spec, uint64_t parameters, size_t shards,
                             const Candidates& candidates) {
  const int64_t needed = SpaceOfLargestShard(spec, parameters, shards);
  const auto order = [](const ShardCandidate& one) {
    return std::tuple(one.shards, -FreeOf(one), one.name);
  };
  const ShardCandidate* best = nullptr;
  std::vector<std::string> unusable;
  for (const ShardCandidate& one : candidates) {
    if (!one.connected) {
      unusable.push_back(absl::StrCat("aggregator ", one.name, " is away"));
    } else if (one.cordoned) {
      unusable.push_back(absl::StrCat("aggregator ", one.name, " is cordoned"));
    } else if (one.leaving) {
      unusable.push_back(
          absl::StrCat("aggregator ", one.name, " has not removed what it had of the run before"));
    } else if (one.full) {
      unusable.push_back(absl::StrCat("aggregator ", one.name, " has recently failed to take it"));
    } else if (FreeOf(one) < needed) {
      unusable.push_back(SpaceText(one, needed));
    } else if (best == nullptr || order(one) < order(*best)) {
      best = &one;
    }
  }
  ShardPlacement placement;
  if (best != nullptr) {
    placement.chosen.push_back(best->name);
  } else {
    placement.reason = absl::StrCat(
        "no other aggregator can take it: ",
        unusable.empty() ? "each has a shard of the run" : absl::StrJoin(unusable, "; "));
  }
  return placement;
}

}  // namespace cadre
