// What members and the planner owe a run, and for how long: orders that an aggregator has not
// answered, versions that a group has not loaded, parts of an evaluation, plans.
//
// What is owed follows from the state of the run (run_obligations.h), so it needs no bookkeeping of
// messages: an order that was lost is owed like one that hangs. This class knows since when. By the
// coordinator's own clock, an obligation is late after the time that it may take without progress
// of its member.
//
// Pure and thread-compatible: time is the argument `now`.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/time/time.h"

namespace cadre {

// For what takes little time by itself.
inline constexpr absl::Duration kMaxObligationAge = absl::Seconds(30);

struct Obligation {
  // The field of CoordinatorMessage with the order; "pull", "evaluate" or "restage" of a group;
  // "plan".
  std::string kind;
  // Name of the aggregator, or of the worker with rank 0 of the group; empty: the planner.
  std::string member;
  std::optional<uint32_t> group = std::nullopt;
  // The round or version that it concerns; another one is another obligation.
  uint32_t number = 0;
  // "aggregator a1 has not applied round 7 to shard 0".
  std::string text;
  // When the member was last known to make progress; InfinitePast: that is not known.
  absl::Time progress = absl::InfinitePast();
  // What the member has reported of it last.
  std::string error = "";
  absl::Duration allowed = kMaxObligationAge;
};

struct LateObligation {
  Obligation what;
  absl::Duration age;

  // One sentence with member, obligation, age and error.
  std::string Text() const;
};

class Obligations {
 public:
  // All that is owed at this time. Returns what has become late since the last call.
  std::vector<LateObligation> Update(std::vector<Obligation> owed, absl::Time now);
  // What is late, the oldest first.
  std::vector<LateObligation> Late(absl::Time now) const;
  // When the next one becomes late; InfiniteFuture: none will without another Update.
  absl::Time NextLate(absl::Time now) const;

 private:
  // Kind, member, group and number.
  using Key = std::tuple<std::string, std::string, std::optional<uint32_t>, uint32_t>;
  struct Entry {
    Obligation what;
    absl::Time since;
    bool reported = false;

    absl::Duration AgeAt(absl::Time now) const { return now - std::max(since, what.progress); }
    bool IsLateAt(absl::Time now) const { return AgeAt(now) >= what.allowed; }
  };

  std::map<Key, Entry> owed_;
};

}  // namespace cadre
