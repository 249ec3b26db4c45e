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
#include "tests/simulation/coordinators.h"
#include "tests/simulation/fault_injector.h"
#include "tests/simulation/faults.h"
#include "tests/simulation/intruder.h"
#include "tests/simulation/invariants.h"
#include "tests/simulation/liveness.h"
#include "tests/simulation/loads.h"
#include "tests/simulation/network.h"
#include "tests/simulation/operators.h"
#include "tests/simulation/simulated_aggregator.h"
#include "tests/simulation/simulated_transport.h"
#include "tests/simulation/simulated_worker.h"
#include "tests/simulation/world.h"

namespace cadre::simulation {

struct SimulatorOptions {
  uint64_t seed = 1;
  // Virtual time with faults; zero: one to five minutes, chosen by the seed.
  absl::Duration faults_for = absl::ZeroDuration();
  Plant plant = Plant::kNone;
  // Injects only the faults with these numbers.
  std::optional<std::vector<size_t>> only_faults;
  // Receives every line of the event log.
  std::function<void(const std::string&)> on_line;
};

struct Outcome {
  // The broken invariant; empty if none.
  std::string violation;
  absl::Duration at;
  std::map<std::string, uint64_t> counters;
  uint64_t events = 0;
  // All faults that the seed determines, and their descriptions.
  std::vector<Fault> faults;
  std::vector<std::string> fault_texts;
};

// The newest lines of the event log, of which the last one is the violation. Runs the simulation
// again.
std::vector<std::string> LastLines(SimulatorOptions options);

class Simulator {
 public:
  explicit Simulator(const SimulatorOptions& options);
  Simulator(const Simulator&) = delete;
  Simulator& operator=(const Simulator&) = delete;

  // Either may be called, once. Draw only makes the cluster and returns the runs.
  Outcome Run();
  std::vector<v1::RunSpec> Draw();

 private:
  SimulatedCoordinator& coordinator() { return coordinators_.current(); }
  const SimulatedCoordinator& coordinator() const { return coordinators_.current(); }
  void MakeMembers();
  v1::RunSpec MakeSpec();
  v1::Averaging MakeAveraging(const v1::Cluster& cluster);
  void MakeOuter(v1::Averaging& averaging);
  void Submit(const v1::RunSpec& spec);
  // Draws the faults and schedules those that were requested.
  void ScheduleFaults();
  // Requests traces at random times.
  void ScheduleTraces();
  void TraceSomeGroup();
  void CheckLiveness();
  void EndFaults();
  size_t ConnectedWorkers() const;
  bool HasGroups(const std::string& run) const;
  bool AllEnded() const;
  void ReportStuck();

  const SimulatorOptions options_;
  World world_;
  // Decides about members, runs and the times of their submission.
  Dice dice_;
  const absl::Duration faults_for_;
  Network network_;
  Fabrics fabrics_;
  Directory aggregators_;
  Invariants invariants_;
  Coordinators coordinators_;
  Workers workers_;
  Operators operators_;
  FaultInjector injector_;
  Liveness liveness_;
  Loads loads_;
  std::optional<Intruder> intruder_;
  FaultRange range_;
  std::vector<Fault> faults_;
  bool faults_ended_ = false;
  size_t runs_wanted_ = 0;
  size_t runs_submitted_ = 0;
  uint32_t max_ranks_ = 1;
};

}  // namespace cadre::simulation
