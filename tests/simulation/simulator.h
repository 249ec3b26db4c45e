// One simulation: a cluster made from a seed, faults made from the same seed until the world heals,
// and then time enough for every run to end.
//
//   Simulator simulator({.seed = 7});
//   const Outcome outcome = simulator.Run();
//
// Equal options give equal event logs. Thread-compatible.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "proto/cadre/v1/run.pb.h"
#include "tests/simulation/group_fabric.h"
#include "tests/simulation/invariants.h"
#include "tests/simulation/network.h"
#include "tests/simulation/simulated_aggregator.h"
#include "tests/simulation/simulated_coordinator.h"
#include "tests/simulation/simulated_worker.h"
#include "tests/simulation/world.h"

namespace cadre::simulation {

struct SimulatorOptions {
  uint64_t seed = 1;
  // Virtual time until everything heals; zero: chosen by the seed, some minutes.
  absl::Duration faults_for = absl::ZeroDuration();
  Plant plant = Plant::kNone;
  // Gets every line of the event log.
  std::function<void(const std::string&)> on_line;
};

struct Outcome {
  // Empty: all is well.
  std::string violation;
  absl::Duration at;
  std::vector<std::string> last_lines;
  std::map<std::string, uint64_t> counters;
  uint64_t events = 0;
  uint64_t log_hash = 0;
};

class Simulator {
 public:
  explicit Simulator(const SimulatorOptions& options);
  Simulator(const Simulator&) = delete;
  Simulator& operator=(const Simulator&) = delete;

  Outcome Run();

 private:
  void ChooseFaults();
  void MakeMembers();
  v1::RunSpec MakeSpec();
  void Submit(const v1::RunSpec& spec);
  // The next thing that somebody does to the cluster.
  void ScheduleMischief();
  // Somebody looks at some group's steps, now and then.
  void ScheduleTraces();
  void TraceSomething();
  void DoMischief();
  void KillWorker();
  void KillAggregator();
  void BreakOneStream();
  void Heal();
  bool AllEnded() const;
  void ReportStuck();

  World world_;
  const absl::Duration faults_for_;
  Network network_;
  Fabrics fabrics_;
  Directory aggregators_;
  Invariants invariants_;
  SimulatedCoordinator coordinator_;
  std::vector<std::unique_ptr<SimulatedWorker>> workers_;
  // Mean time between two acts of mischief.
  absl::Duration between_ = absl::Seconds(10);
  bool healed_ = false;
  size_t runs_wanted_ = 0;
  size_t runs_submitted_ = 0;
  uint32_t max_ranks_ = 1;
};

}  // namespace cadre::simulation
