// The coordinator of a simulation. At times there are two: a second one is started with an older
// copy of the store while the first one still runs, and later one of them ends. Each host may reach
// one of them, or both.
//
// Thread-compatible.
#pragma once

#include <array>
#include <cstddef>
#include <optional>

#include "absl/time/time.h"
#include "coordinator/machine/machine.h"
#include "tests/simulation/invariants.h"
#include "tests/simulation/network.h"
#include "tests/simulation/simulated_coordinator.h"
#include "tests/simulation/world.h"

namespace cadre::simulation {

class Coordinators {
 public:
  Coordinators(World& world, Network& network, Invariants& invariants,
               const Machine::Options& options)
      : world_(world),
        network_(network),
        invariants_(invariants),
        both_{SimulatedCoordinator(world, network, invariants, options, 0),
              SimulatedCoordinator(world, network, invariants, options, 1)} {}

  // The one that users know: while two run, the first one.
  SimulatedCoordinator& current() { return both_[current_]; }
  const SimulatedCoordinator& current() const { return both_[current_]; }
  bool two() const { return two_; }
  // How often members had to follow a coordinator with another store.
  int changes() const { return changes_; }

  // Ends one of those that run; it starts again after `downtime`, and its wall clock has jumped.
  void Crash(absl::Duration downtime, absl::Duration jump = absl::ZeroDuration());
  // After the time, the process ends and starts again with a backup of now.
  void RestoreStoreAfter(absl::Duration time);
  // After `age`, a second coordinator starts with a copy of the store of now. After another
  // `length`, one of the two ends; if members refuse the other, because it was started earlier, it
  // is started again. `partitioned`: the share of hosts that reach only one of them.
  void StartSecond(absl::Duration age, absl::Duration length, double partitioned);
  // One of two coordinators ends now, and none begins.
  void EndFaults();

 private:
  // A copy of the store; empty if it must not be used (AllRunsHaveVersions).
  std::optional<SimulatedCoordinator::Records> CopyOfStore() const;
  void BeginTwo(SimulatedCoordinator::Records copy, double partitioned);
  void EndTwo();

  World& world_;
  Network& network_;
  Invariants& invariants_;
  std::array<SimulatedCoordinator, 2> both_;
  size_t current_ = 0;
  bool two_ = false;
  int changes_ = 0;
  // Lifetime of a store to be restored, of a second coordinator to be started, or of two that run.
  Lifetime pending_;
};

}  // namespace cadre::simulation
