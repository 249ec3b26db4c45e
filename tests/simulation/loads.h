// Versions that groups load (coordinator/run/run_versions): the commits of a run keep a version
// while a group that makes progress loads it, and do not keep it for a group that has stopped.
//
// What a group loads, and whether it makes progress, is known from the sessions of its ranks, which
// the coordinator cannot see; so only what has lasted for a while is judged. While two coordinators
// run, nothing is, and neither is what groups loaded by order of one that has been replaced.
//
// Thread-compatible.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "proto/cadre/v1/records.pb.h"
#include "tests/simulation/coordinators.h"
#include "tests/simulation/fault_injector.h"
#include "tests/simulation/world.h"

namespace cadre::simulation {

class Loads {
 public:
  Loads(World& world, const Coordinators& coordinators, const Workers& workers,
        const Directory& aggregators)
      : world_(world), coordinators_(coordinators), workers_(workers), aggregators_(aggregators) {}

  // Called once per second.
  void Check();

 private:
  struct Group {
    uint32_t generation = 0;
    // The streams of its ranks, and whether all are connected.
    std::vector<ConnectionId> streams;
    bool connected = false;
    // The version that it was ordered to load and does not have yet.
    std::optional<uint32_t> loads;
    uint64_t progress = 0;
    absl::Time progressed;
    // When it last made progress after a pause, of which the coordinator learns later.
    absl::Time resumed = absl::InfinitePast();
    // Since when it may be paused for the coordinator, which does not take it for paused while a
    // shard is away.
    absl::Time watched;
    // The version that it had at times at which it was not paused.
    std::deque<std::pair<absl::Time, uint32_t>> had;
  };
  using Groups = std::map<uint32_t, Group>;

  // What groups load now was ordered by a coordinator with another store.
  void NoteForeign();
  void CheckRun(const v1::RunRecord& run);
  // What the group is doing now, after `before`.
  Group Sample(const v1::GroupRecord& record, Group before, bool away) const;
  // Whether the coordinator waits for a shard with which it closes a round.
  bool AwaitsShard(const v1::RunRecord& run);
  void CheckCommit(const v1::RunRecord& run, const v1::CommitRecord& commit, const Groups& before,
                   const Groups& now);

  World& world_;
  const Coordinators& coordinators_;
  const Workers& workers_;
  const Directory& aggregators_;
  std::map<std::string, Groups> runs_;
  // Generations, and the versions that another coordinator has ordered them to load.
  std::set<std::pair<uint32_t, uint32_t>> foreign_;
  // The newest round of each run whose commit was judged.
  std::map<std::string, uint32_t> judged_;
  // The round that each run closes, and since when.
  std::map<std::string, std::pair<uint32_t, absl::Time>> closing_;
  uint64_t adopted_ = 0;
  uint64_t starts_ = 0;
  uint64_t streams_ended_ = 0;
  bool shards_away_ = false;
  // The coordinator did not run at the last check.
  bool stalled_ = false;
  int changes_ = 0;
};

}  // namespace cadre::simulation
