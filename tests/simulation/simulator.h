// One simulation: it derives a cluster and its faults from a seed and, after the last fault, leaves
// enough time for every run to end.
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
  // Virtual time with faults; zero: one to five minutes, chosen by the seed.
  absl::Duration faults_for = absl::ZeroDuration();
  Plant plant = Plant::kNone;
  // Receives every line of the event log.
  std::function<void(const std::string&)> on_line;
};

struct Outcome {
  // The broken invariant; empty if none.
  std::string violation;
  absl::Duration at;
  std::vector<std::string> last_lines;
  std::map<std::string, uint64_t> counters;
  uint64_t events = 0;
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
  // Injects faults at random times.
  void ScheduleFaults();
  // Requests traces at random times.
  void ScheduleTraces();
  void TraceSomeGroup();
  void InjectFault();
  void KillWorker();
  void KillAggregator();
  void CutSomeHost();
  void EndFaults();
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
  // Mean time between two injected faults.
  absl::Duration between_ = absl::Seconds(10);
  bool faults_ended_ = false;
  size_t runs_wanted_ = 0;
  size_t runs_submitted_ = 0;
  uint32_t max_ranks_ = 1;
};

}  // namespace cadre::simulation
