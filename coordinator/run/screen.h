// Which contributions of a round are not published as they are (run.proto, Screen), from what all
// shards have measured of the groups' changes (v1::ChangeSums).
//
// Pure and thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "proto/cadre/v1/history.pb.h"
#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/records.pb.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre {

// The sums over all shards, by participant; nothing if a shard has not measured them. Requires: all
// shards have applied the commit.
std::optional<v1::ChangeSums> ChangesOf(const v1::CommitRecord& commit);

// The newest changes of the groups of a run that its versions include. Thread-compatible.
class PastChanges {
 public:
  struct Change {
    uint32_t round = 0;
    uint64_t samples = 0;
    // As in v1::ChangeSums.
    double squared = 0;
    double sampled_squared = 0;
  };
  // Number of changes of a group that are remembered.
  static constexpr uint32_t kRemembered = 8;

  // Adds the changes of a published version. Requires: in the order of rounds.
  void Add(const v1::CommitRecord& commit);
  // The newest last.
  const std::vector<Change>& Of(uint32_t group) const;

 private:
  std::map<uint32_t, std::vector<Change>> changes_;
};

// The contributions that the next attempt of the round leaves out (`scale` is 0) or clips. Empty:
// the version can be published. `screen`: with all defaults (ScreenOf). Requires: all shards have
// applied the commit.
std::vector<v1::ScreenedChange> ScreenRound(const v1::Screen& screen,
                                            const v1::CommitRecord& commit,
                                            const PastChanges& past);

// Text such as "its change is 3.1e+30 long, and the bound is 12".
std::string WhyScreened(const v1::ScreenedChange& change);

}  // namespace cadre
