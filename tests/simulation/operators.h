// The people who operate the cluster: they scale, resume, roll back, adopt and delete runs, cordon,
// drain and readmit workers, and read what the coordinator shows, at random times while there are
// faults. Afterwards all workers are readmitted every few minutes. Runs that have diverged are
// continued at any time.
//
// Thread-compatible.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "proto/cadre/v1/records.pb.h"
#include "tests/simulation/coordinators.h"
#include "tests/simulation/invariants.h"
#include "tests/simulation/simulated_aggregator.h"
#include "tests/simulation/simulated_worker.h"
#include "tests/simulation/world.h"

namespace cadre::simulation {

class Operators {
 public:
  Operators(World& world, Coordinators& coordinators, Invariants& invariants,
            const std::vector<std::unique_ptr<SimulatedWorker>>& workers,
            const std::vector<std::unique_ptr<SimulatedAggregator>>& aggregators)
      : world_(world),
        coordinators_(coordinators),
        invariants_(invariants),
        workers_(workers),
        aggregators_(aggregators),
        verbs_{&Operators::Scale,  &Operators::Resume, &Operators::Delete,  &Operators::Adopt,
               &Operators::Cordon, &Operators::Read,   &Operators::RollBack} {}

  void Start();
  void End();

 private:
  void ScheduleNext();
  // A random run in the store; empty: there is none.
  std::string AnyRun() const;
  const std::string& AnyWorker() const;
  void Scale();
  void Resume();
  void RollBack();
  void RollBack(const v1::RunRecord& run);
  // Continues runs that are parked because they have diverged.
  void AttendDiverged();
  void Delete();
  void Adopt();
  // Cordons, drains or readmits a worker or an aggregator.
  void Cordon();
  // Drains an aggregator that stores a shard, and readmits it later.
  void ScheduleDrain();
  void Drain();
  // Calls the methods that only read.
  void Read();
  // Whether the worker is marked because its training thread hangs, and not cordoned.
  bool HasStalled(const std::string& worker) const;
  void Readmit(const std::string& member);
  void ReadmitAll();

  World& world_;
  Coordinators& coordinators_;
  Invariants& invariants_;
  const std::vector<std::unique_ptr<SimulatedWorker>>& workers_;
  const std::vector<std::unique_ptr<SimulatedAggregator>>& aggregators_;
  const std::vector<void (Operators::*)()> verbs_;
  bool ended_ = false;
};

}  // namespace cadre::simulation
