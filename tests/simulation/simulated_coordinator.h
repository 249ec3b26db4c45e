// A simulated coordinator process: the real loop (coordinator/machine/durable_machine) in virtual
// time, with a store in memory that outlives the process. The process may be stopped for seconds,
// in which messages wait on the network, or its store may be slow, in which they are received.
//
// Thread-compatible.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "coordinator/events/events.h"
#include "coordinator/machine/durable_machine.h"
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
  // Its host's wall clock jumps. Requires: !up().
  void JumpClock(absl::Duration by);
  // Ends the process permanently, unless Start is called.
  void Stop();
  // Replaces the store. Requires: !up().
  void SetStore(Records store) { store_ = std::move(store); }
  // The record of the last start.
  v1::MetaRecord meta() const;
  bool up() const { return machine_ != nullptr; }
  bool stalled() const { return busy_until_ > world_.timeline.now(); }
  // Whether all events have been handled.
  bool idle() const { return inbox_.empty() && on_network_.empty() && !stalled(); }

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

  const Machine* machine() const { return up() ? &machine_->machine() : nullptr; }
  const Records& store() const { return store_; }

 private:
  // ---- The loop
  // The time that the process reads.
  absl::Time Now() const;
  // The process does nothing for some time, which is returned.
  absl::Duration BeginStall();
  void Take(Event event);
  // What has waited on the connection while the process was stopped is received.
  void Receive(ConnectionId connection);
  // The loop's wait for events ends then, but not during a stall.
  void ScheduleTurn(absl::Time when);
  void RunTurn();
  // The turn is over, unless it has failed: its actions are carried out.
  void EndTurn(const absl::StatusOr<DurableMachine::Turn>& turn);
  // A transaction of the store. An error: the process crashes before it or after it.
  absl::Status Commit(const std::vector<Store::Op>& ops);
  // The checker receives the transaction event by event, and what each event sends.
  void Check(std::span<const Store::Op> ops);
  void CarryOut(const std::vector<Action>& actions);
  void Reply(const Replied& replied);
  void Answer(const Replied& answered);
  // All streams end, and a new state machine is restored from the store.
  void BeginAgain(uint64_t above);
  // Ends what the process does.
  void End();
  // The answer of the planner arrives later.
  void Plan(Event answer, absl::Duration time);

  World& world_;
  Network& network_;
  Invariants& invariants_;
  const Machine::Options options_;
  const Network::Endpoint endpoint_;
  Records store_;
  // By how much the wall clock is ahead.
  absl::Duration ahead_;
  // The epoch above which the next start begins again.
  uint64_t above_ = 0;

  // State of the process.
  Lifetime life_;
  // Lifetime of the next turn of the loop.
  Lifetime turn_life_;
  absl::Time started_;
  std::unique_ptr<DurableMachine> machine_;
  std::vector<Event> inbox_;
  // The process is stopped until then. What arrives meanwhile on a connection (0: users) is
  // received together, some time afterwards.
  absl::Time stopped_until_ = absl::InfinitePast();
  std::map<ConnectionId, std::vector<Event>> on_network_;
  // The process is stopped, or writes to its store, until then.
  absl::Time busy_until_ = absl::InfinitePast();
  // The present turn: the actions of its events that the checker does not have yet, whether its
  // actions are still to be carried out, and whether the process then crashes.
  std::vector<std::vector<Action>> handled_;
  bool in_turn_ = false;
  bool crashes_ = false;
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
