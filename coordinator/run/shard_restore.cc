#include "coordinator/run/shard_restore.h"

#include <algorithm>

namespace cadre {

bool ShardRestore::HasContributions(const View& view) const {
  return hollow_ == view.version && std::all_of(asked.begin(), asked.end(), [&](const auto& rank) {
           return std::any_of(view.groups.begin(), view.groups.end(),
                              [&](const Group& group) { return group.group == rank.first; });
         });
}

// A group that is not known to have adopted the version may have done so meanwhile. Without an
// outer optimizer, a group that has contributed does not hold the version any more.
std::vector<ShardRestore::Attempt> ShardRestore::Seeds(const View& view) {
  std::vector<Attempt> seeds;
  if (view.version == 0) return seeds;
  for (const bool adopted : {true, false}) {
    for (const Group& group : view.groups) {
      if (group.adopted != adopted || (group.contributed && !view.outer)) continue;
      seeds.push_back({.source = Source::kSeed,
                       .hollow = view.version - 1,
                       .group = group.group,
                       .generation = group.generation});
    }
  }
  return seeds;
}

std::vector<ShardRestore::Attempt> ShardRestore::Options(const View& view) const {
  std::vector<Attempt> options = OptionsWithGroups(view);
  // A shard that has only lost contributions has the newest version.
  if (view.copy.has_value() && (!has_values_ || *view.copy > view.version)) {
    options.insert(options.begin(), {.source = Source::kCopy, .hollow = *view.copy - 1});
  }
  return options;
}

std::vector<ShardRestore::Attempt> ShardRestore::OptionsWithGroups(const View& view) const {
  const uint32_t version = view.version;
  if (view.outer && !has_values_) return Seeds(view);
  if (view.closing) {
    if (view.complete || HasContributions(view)) return {{.hollow = version}};
    return {};
  }
  std::vector<Attempt> options = Seeds(view);
  if (version > 0 && view.complete) options.push_back({.hollow = version - 1});
  // Groups that wait for the version itself cannot contribute to the next one.
  const auto able = std::count_if(view.groups.begin(), view.groups.end(), [](const Group& group) {
    return group.adopted || group.contributed;
  });
  if (!view.at_end && able >= std::max<int64_t>(1, view.min_groups)) {
    options.push_back({.source = Source::kOpenRound, .hollow = version});
  }
  return options;
}

bool ShardRestore::Choose(const View& view) {
  const auto among = [](const std::vector<Attempt>& attempts, const Attempt& attempt) {
    return std::find(attempts.begin(), attempts.end(), attempt) != attempts.end();
  };
  const std::vector<Attempt> options = Options(view);
  if (attempt_.has_value() && among(options, *attempt_)) return false;
  attempt_.reset();
  asked.clear();
  for (const Attempt& option : options) {
    if (among(failed_, option)) continue;
    attempt_ = option;
    // A shard discards the values that it has before it takes those of a copy.
    const bool discards = has_values_ && option.source == Source::kCopy;
    if (discards) has_values_ = false;
    // The shard is opened again, and may have been opened before an earlier answer is received.
    if (!ready() || discards) hollow_.reset();
    return true;
  }
  return false;
}

void ShardRestore::Fail(const std::string& reason) {
  reason_ += "; " + reason;
  failed_.push_back(*attempt_);
  attempt_.reset();
  hollow_.reset();
}

}  // namespace cadre
