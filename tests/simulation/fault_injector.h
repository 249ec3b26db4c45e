// Carries out faults on the members of a simulation.
//
// Thread-compatible.
#pragma once

#include <memory>
#include <vector>

#include "tests/simulation/coordinators.h"
#include "tests/simulation/faults.h"
#include "tests/simulation/network.h"
#include "tests/simulation/simulated_aggregator.h"
#include "tests/simulation/simulated_worker.h"
#include "tests/simulation/world.h"

namespace cadre::simulation {

using Workers = std::vector<std::unique_ptr<SimulatedWorker>>;

class FaultInjector {
 public:
  FaultInjector(World& world, Network& network, Coordinators& coordinators, Workers& workers,
                Directory& aggregators)
      : world_(world),
        network_(network),
        coordinators_(coordinators),
        workers_(workers),
        aggregators_(aggregators) {}

  // Schedules the fault. Requires: the members exist.
  void Schedule(const Fault& fault, const FaultRange& range);
  // Ends all faults but those of permanently bad hosts, and starts all processes.
  void End();

 private:
  void Inject(const Fault& fault, const std::string& host);
  // Changes the conditions of a host for some time.
  // Injects the fault when the worker loads a version, or after `patience`.
  void InjectAtLoad(const Fault& fault, const std::string& host, absl::Duration patience);
  void ChangeConditions(const Fault& fault, const std::string& host);
  void EndWorker(const Fault& fault);
  void EndAggregator(const Fault& fault);
  void SwapDisks(const Fault& fault);
  void JumpClock(const Fault& fault);

  World& world_;
  Network& network_;
  Coordinators& coordinators_;
  Workers& workers_;
  Directory& aggregators_;
  bool ended_ = false;
};

}  // namespace cadre::simulation
