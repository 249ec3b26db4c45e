// Liveness: while enough groups of a run are healthy, versions follow one another.
//
//   - While at least `quorum` groups of a running run are healthy, the next commit follows within
//     CommitLimit. If quorum is 0, all its groups must be healthy, because a round then waits for
//     all of them.
//   - A worker with which nothing is wrong does not lose its registration.
//   - A group with which nothing is wrong is not ended because it makes no progress.
//   - A group is not ended because a shard does not answer, if nothing has been wrong with it and
//     with the aggregators but that some of them are away.
//   - A group that has started while others trained makes them wait for one step: when they wait
//     for its contribution only, it does not train until its boundary. (Not judged with a quorum,
//     where a round does not wait, and after a restart of the coordinator.)
//   - An Apply that has failed for a transient reason is repeated in time, whatever other orders
//     arrive.
//
// While two coordinators run, nothing is judged.
//
// An order that takes time, or hangs, excuses its own run only: no run stops another.
//
// A group is healthy if it has a generation, all its workers and all aggregators are healthy and
// connected, and the coordinator runs. A worker or aggregator is healthy if its process runs and
// nothing is wrong with its host (HostConditions).
//
// Thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "proto/cadre/v1/records.pb.h"
#include "tests/simulation/coordinators.h"
#include "tests/simulation/fault_injector.h"
#include "tests/simulation/world.h"

namespace cadre::simulation {

class Liveness {
 public:
  Liveness(World& world, const Coordinators& coordinators, const Workers& workers,
           const Directory& aggregators, const Network& network)
      : world_(world),
        network_(network),
        coordinators_(coordinators),
        workers_(workers),
        aggregators_(aggregators) {}

  // Called once per second.
  void Check();

  // The longest time that the run may take from one commit to the next while it is healthy.
  // `step`: the time of the slowest worker's step. Faults that were active less than kSlack ago
  // count, because what they broke may still be repeated.
  absl::Duration CommitLimit(const v1::RunSpec& spec, absl::Duration step) const;

 private:
  struct Watched {
    uint32_t version = 0;
    // The run is healthy, and has had this version, since then.
    absl::Time since = absl::InfiniteFuture();
  };

  void CheckRun(const v1::RunRecord& run);
  void CheckJoiners(const v1::RunRecord& run);
  void CheckOrders();
  void CheckGroup(const v1::RunRecord& run, uint32_t slot);
  void CheckMembers();
  bool IsHealthy(const v1::RunRecord& run) const;
  // Whether no aggregator takes time for an order of the run, and nothing is wrong with any.
  bool AreShardsHealthy(const std::string& run) const;
  // The same, except that aggregators may be away.
  bool AreShardsHealthyOrAway(const std::string& run) const;
  bool IsHealthy(const v1::GroupRecord& group) const;
  bool IsHealthyHost(const std::string& host) const;

  World& world_;
  const Network& network_;
  const SimulatedCoordinator& coordinator() const { return coordinators_.current(); }

  const Coordinators& coordinators_;
  const Workers& workers_;
  const Directory& aggregators_;
  std::map<std::string, Watched> runs_;
  // The workers with which nothing is wrong, by their processes.
  struct Member {
    std::string id;
    absl::Time since;
  };
  std::map<std::string, Member> members_;
  int changes_ = 0;
  struct Healthy {
    uint32_t generation = 0;
    // Nothing has been wrong with it since then; at most that aggregators were away.
    absl::Time since;
    absl::Time since_but_away;
  };
  // By key of their record.
  std::map<std::string, Healthy> groups_;

  // A run whose started groups either wait for the decision of the open round, or have started
  // while others trained and not contributed yet.
  struct Joining {
    // The started groups and their generations.
    std::map<uint32_t, uint32_t> started;
    // Those that have started while others trained.
    std::set<uint32_t> joiners;
    // All that must not change while the groups wait; empty if they do not.
    std::string situation;
    // Steps that the joiners had begun when they knew it.
    std::map<uint32_t, uint64_t> steps;
  };
  // What the groups of the run are doing, as in `Joining`; empty if that is not all.
  std::string SituationOf(const v1::RunRecord& run, const Joining& joining) const;
  // The worker of the group's first rank, if it is in this generation and its stream is intact;
  // otherwise null.
  const SimulatedWorker* LeadOf(const v1::GroupRecord& group) const;
  std::vector<v1::GroupRecord> StartedGroupsOf(const v1::RunRecord& run) const;
  std::map<std::string, Joining> joining_;
  uint64_t coordinator_starts_ = 0;
  // When messages or streams could last break at random.
  absl::Time random_faults_at_ = absl::InfinitePast();
  // Since when nothing has been wrong with an aggregator, by its process.
  std::map<std::string, absl::Time> aggregators_since_;
};

}  // namespace cadre::simulation
