// A simulated coordinator process: the real state machine (coordinator/machine/machine) with a
// store in memory that outlives the process. As in coordinator/service/loop, events are handled in
// batches with one transaction each, and messages are sent after the transaction.
//
// Thread-compatible.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/events/events.h"
#include "coordinator/machine/machine.h"
#include "tests/simulation/invariants.h"
#include "tests/simulation/network.h"
#include "tests/simulation/world.h"

namespace cadre::simulation {

class SimulatedCoordinator {
 public:
  using Records = std::map<std::string, std::string>;

  // `endpoint`: different for coordinators that run at the same time.
  SimulatedCoordinator(World& world, Network& network, Invariants& invariants,
                       const Machine::Options& options, Network::Endpoint endpoint)
      : world_(world),
        network_(network),
        invariants_(invariants),
        options_(options),
        endpoint_(endpoint) {}

  void Start();
  // Ends the process; it starts again after `downtime`, or a random time.
  void Crash(std::optional<absl::Duration> downtime = std::nullopt);
  // Ends the process permanently, unless Start is called.
  void Stop();
  // Replaces the store. Requires: !up().
  void SetStore(Records store) { store_ = std::move(store); }
  // The record of the last start.
  v1::MetaRecord meta() const;
  bool up() const { return machine_ != nullptr; }
  bool stalled() const { return busy_until_ > world_.timeline.now(); }
  // Whether all events have been handled.
  bool idle() const { return inbox_.empty() && !stalled(); }

  // `done` is called with the id of the run; never if the process crashes before it answers.
  void Submit(const v1::RunSpec& spec, std::function<void(const std::string&)> done);
  void StopRun(const std::string& run);
  // An operator's request; `answered` is not called if the process crashes before it answers.
  template <typename Request>
  void Order(Request request, std::function<void(const Replied&)> answered) {
    if (!up()) return;
    request.request = ++last_request_;
    orders_[request.request] = std::move(answered);
    Take(std::move(request));
  }
  // Requests a trace and cancels the request after `patience`.
  void TraceGroup(const std::string& run, uint32_t group, uint32_t steps, absl::Duration patience);
  // Number of trace requests that the machine has received and that are neither answered nor
  // cancelled.
  int64_t traces_waiting() const;

  const Machine* machine() const { return machine_.get(); }
  const Records& store() const { return store_; }

 private:
  void Take(Event event);
  void HandleInbox();
  // The actions of a batch of events, by event. The functions return false if the process crashed.
  using Batch = std::vector<std::vector<Action>>;
  bool Perform(const Batch& batch);
  // One transaction for the whole batch; the checker receives it event by event.
  bool Commit(const Batch& batch);
  void SendBatch(const Batch& batch);
  void Reply(const Replied& replied);
  void Answer(const Replied& answered);
  void Search(const SearchPlans& search);
  void ArmTick();

  World& world_;
  Network& network_;
  Invariants& invariants_;
  const Machine::Options options_;
  const Network::Endpoint endpoint_;
  Records store_;

  // State of the process.
  Lifetime life_;
  Lifetime tick_life_;
  std::unique_ptr<Machine> machine_;
  std::vector<Event> inbox_;
  absl::Time busy_until_ = absl::InfinitePast();
  // After a stall of the coordinator, leases do not expire before this time, as in
  // coordinator/service/loop.
  absl::Time expire_from_ = absl::InfinitePast();
  std::map<RequestId, std::function<void(const std::string&)>> waiting_;
  std::map<RequestId, std::function<void(const Replied&)>> orders_;
  struct WaitingTrace {
    uint32_t steps = 0;
    bool cancelled = false;
    bool answered = false;
  };
  // Traces of this process. Cancelled requests may still be answered.
  std::map<RequestId, WaitingTrace> traces_;
  RequestId last_request_ = 0;
};

}  // namespace cadre::simulation
