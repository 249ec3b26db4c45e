// The coordinator's machine with a store in memory that survives its process, driven as
// coordinator/loop drives it: events in batches, one transaction for each, then what is said.
//
// Thread-compatible.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/events.h"
#include "coordinator/machine.h"
#include "tests/simulation/invariants.h"
#include "tests/simulation/network.h"
#include "tests/simulation/world.h"

namespace cadre::simulation {

class SimulatedCoordinator {
 public:
  SimulatedCoordinator(World& world, Network& network, Invariants& invariants,
                       Machine::Options options)
      : world_(world), network_(network), invariants_(invariants), options_(std::move(options)) {}

  void Start();
  // It comes back by itself.
  void Crash();
  bool up() const { return machine_ != nullptr; }

  // The answer may never come: the process may die. `done` is called with the run's id if it does.
  void Submit(const v1::RunSpec& spec, std::function<void(const std::string&)> done);
  void StopRun(const std::string& run);
  // Somebody wants a trace, and leaves after `patience` if there is no answer.
  void TraceGroup(const std::string& run, uint32_t group, uint32_t steps, absl::Duration patience);
  // Calls for a trace that the machine has heard of and that are neither answered nor left.
  size_t traces_waiting() const;

  const Machine* machine() const { return machine_.get(); }
  const std::map<std::string, std::string>& store() const { return store_; }

 private:
  void Take(Event event);
  void HandleInbox();
  // What came of a batch of events, by event. False: the process has died of it.
  using Batch = std::vector<std::vector<Action>>;
  bool Perform(const Batch& batch);
  // One transaction for the whole batch; the checker looks at it event by event.
  bool Commit(const Batch& batch);
  void SendBatch(const Batch& batch);
  void Reply(const Replied& replied);
  void Answer(const TraceAnswered& answered);
  void ArmTick();

  World& world_;
  Network& network_;
  Invariants& invariants_;
  const Machine::Options options_;
  std::map<std::string, std::string> store_;

  // Of the process.
  Lifetime life_;
  Lifetime tick_life_;
  std::unique_ptr<Machine> machine_;
  std::vector<Event> inbox_;
  absl::Time busy_until_ = absl::InfinitePast();
  // After a delay of its own members get time to be heard, as in coordinator/loop.
  absl::Time judge_from_ = absl::InfinitePast();
  std::map<RequestId, std::function<void(const std::string&)>> waiting_;
  struct WaitingTrace {
    uint32_t steps = 0;
    bool left = false;
  };
  // An answer that was on its way may still reach one who has left.
  std::map<RequestId, WaitingTrace> traces_;
  RequestId last_request_ = 0;
};

}  // namespace cadre::simulation
