// Liveness: while enough groups of a run are healthy, versions follow one another.
//
//   - While at least `quorum` groups of a running run are healthy, the next commit follows within
//     CommitLimit. If quorum is 0, all its groups must be healthy, because a round then waits for
//     all of them.
//   - A worker with which nothing is wrong does not lose its registration.
//   - A group with which nothing is wrong is not ended because it makes no progress.
//
// A group is healthy if it has a generation, all its workers and all aggregators are healthy and
// connected, and the coordinator runs. A worker or aggregator is healthy if its process runs and
// nothing is wrong with its host (HostConditions).
//
// Thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/time/time.h"
#include "proto/cadre/v1/records.pb.h"
#include "tests/simulation/fault_injector.h"
#include "tests/simulation/simulated_coordinator.h"
#include "tests/simulation/world.h"

namespace cadre::simulation {

class Liveness {
 public:
  Liveness(World& world, const SimulatedCoordinator& coordinator, const Workers& workers,
           const Directory& aggregators)
      : world_(world), coordinator_(coordinator), workers_(workers), aggregators_(aggregators) {}

  // Called once per second.
  void Check();

  // The longest time that the run may take from one commit to the next while it is healthy.
  // `step`: the time of the slowest worker's step.
  absl::Duration CommitLimit(const v1::RunSpec& spec, absl::Duration step) const;

 private:
  struct Watched {
    uint32_t version = 0;
    // The run is healthy, and has had this version, since then.
    absl::Time since = absl::InfiniteFuture();
  };

  void CheckRun(const v1::RunRecord& run);
  void CheckGroup(const v1::RunRecord& run, uint32_t slot);
  void CheckMembers();
  bool IsHealthy(const v1::RunRecord& run) const;
  bool AreShardsHealthy() const;
  bool IsHealthy(const v1::GroupRecord& group) const;
  bool IsHealthyHost(const std::string& host) const;

  World& world_;
  const SimulatedCoordinator& coordinator_;
  const Workers& workers_;
  const Directory& aggregators_;
  std::map<std::string, Watched> runs_;
  // Since when nothing has been wrong with a worker, by its process.
  std::map<std::string, absl::Time> members_;
  int stores_restored_ = 0;
  struct Healthy {
    uint32_t generation = 0;
    // Nothing has been wrong with it since then.
    absl::Time since;
  };
  // By key of their record.
  std::map<std::string, Healthy> groups_;
};

}  // namespace cadre::simulation
