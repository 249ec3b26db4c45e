// The coordinator's event loop: one thread that drives coordinator/machine/durable_machine.h, which
// makes the records of all waiting events durable before it returns what they cause. Another thread
// searches plans and predicts steps.
//
// All waiting events are handled together and share one transaction. When the store fails, the loop
// stops permanently: no decision is acted on before it is durable.
//
// Thread-safe. Callbacks run on the loop's thread only.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/bounded_queue.h"
#include "base/clock.h"
#include "base/http/histogram.h"
#include "coordinator/events/events.h"
#include "coordinator/machine/durable_machine.h"
#include "coordinator/machine/machine.h"
#include "coordinator/service/begin_limit.h"
#include "coordinator/service/planning_queue.h"

namespace cadre {

class Loop {
 public:
  // Carries out actions and observes the machine.
  class Callbacks {
   public:
    virtual ~Callbacks() = default;
    virtual void OnSend(ConnectionId connection, const v1::CoordinatorMessage& message) = 0;
    virtual void OnDisconnect(ConnectionId connection, const absl::Status& status) = 0;
    virtual void OnReplied(const Replied& replied) = 0;
    // The machine has handled a message of this stream. Called once for each, in their order.
    virtual void OnHandled(ConnectionId connection) = 0;
    // The machine has begun again: all streams must end, and all calls that wait.
    virtual void OnBegunAgain() = 0;
    // Called when the state of the machine is durable. Returns the time of the next call if no
    // event comes earlier; InfiniteFuture: only after the next event.
    virtual absl::Time OnSettled(const Machine& machine, absl::Time now) = 0;
  };

  using Query = std::function<void(const Machine& machine, absl::Time now)>;

  struct Options {
    Machine::Options machine;
    // As in DurableMachine::Options; called on the loop's thread.
    std::function<std::string()> find_limit;
    // Called once, on the loop's thread, when the store fails.
    std::function<void(const absl::Status&)> on_failure;
  };

  // Restores the machine from the store and starts the thread. `store` and `callbacks` are borrowed
  // and must outlive the loop. Errors: those of the store; DataLoss for a record that cannot be
  // read.
  static absl::StatusOr<std::unique_ptr<Loop>> Start(Options options, Store* store,
                                                     Callbacks* callbacks);
  ~Loop();

  // Blocks while the queue is full. Returns false when the loop has stopped.
  bool Post(Event event);
  // Runs `query` on the loop's thread once all earlier events are durable. Does not block. Errors,
  // for which the query does not run: a BusyError if too many queries wait, Unavailable when the
  // loop has stopped. A query that waits when the loop stops does not run either.
  absl::Status RunQuery(Query query);

  // Durations since the start: of turns, without the wait for events, and of transactions of the
  // store.
  const Histogram& turns() const { return turns_; }
  const Histogram& commits() const { return commits_; }

  // Refuses further items. Does not block.
  void Close();
  // Handles all posted items, then ends. No callback runs after it returns. The destructor awaits a
  // search of plans that is in progress.
  void Stop();

 private:
  // A Wake ends the wait for events, because a query waits.
  struct Wake {};
  using Item = std::variant<Event, Wake>;

  Loop(Options options, Store* store, Callbacks* callbacks);
  DurableMachine::Options MachineOptions();
  // A transaction of the store.
  absl::Status Commit(const std::vector<Store::Op>& ops);
  void Run();
  // Waits for an item, at most until `wake`, then returns the events of all waiting items.
  std::vector<Event> Take(absl::Time wake);
  // Restores a new machine from the store, above this epoch, and carries out its actions.
  absl::Status Begin(uint64_t above);
  // The same because a member knows this epoch, unless that happens too often.
  absl::Status BeginAbove(uint64_t above);
  // Returns the epoch above which the machine is to begin again, if any.
  std::optional<uint64_t> Deliver(const std::vector<Action>& actions);
  // Stops permanently.
  void Fail(const absl::Status& status);
  // Runs waiting queries for a limited time. Returns whether others wait.
  bool RunQueries();
  // The thread that searches plans and predicts steps, one after the other.
  void Plan();

  const Options options_;
  Store* const store_;
  // A change of the system's clock neither expires nor extends leases.
  const SteadyClock clock_;
  Callbacks* const callbacks_;
  std::optional<DurableMachine> machine_;
  BeginLimit begin_limit_;
  BoundedQueue<Item> queue_;
  BoundedQueue<Query> queries_;
  Histogram turns_;
  Histogram commits_;
  std::thread thread_;
  PlanningQueue planning_;
  std::thread planning_thread_;
};

}  // namespace cadre
