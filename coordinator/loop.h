// The coordinator's one thread: hands events to the machine, makes what it wants kept durable, and
// only then lets the rest of what it wants happen.
//
// Events that wait are handled together and share one transaction. When the store fails the loop
// stops at once and for good: nothing that is not durable is ever acted on.
//
// Thread-safe. The Outlet is called on the loop's thread only.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/bounded_queue.h"
#include "base/clock.h"
#include "coordinator/events.h"
#include "coordinator/machine.h"
#include "coordinator/store.h"

namespace cadre {

// The time of day at the start, carried on by the steady clock: setting the machine's clock neither
// ends leases nor extends them. Thread-safe.
class AnchoredClock final : public Clock {
 public:
  AnchoredClock();
  absl::Time Now() const override;

 private:
  const absl::Time wall_;
  const std::chrono::steady_clock::time_point steady_;
};

class Loop {
 public:
  // Where actions go, and who looks at the machine.
  class Outlet {
   public:
    virtual ~Outlet() = default;
    virtual void OnSend(ConnectionId connection, const v1::CoordinatorMessage& message) = 0;
    virtual void OnDisconnect(ConnectionId connection, const absl::Status& status) = 0;
    virtual void OnReplied(const Replied& replied) = 0;
    virtual void OnTraceAnswered(const TraceAnswered& answered) = 0;
    // Everything that the machine knows is durable now. Returns when it shall be called again at
    // the latest; InfiniteFuture: after the next event.
    virtual absl::Time OnSettled(const Machine& machine, absl::Time now) = 0;
  };

  using Question = std::function<void(const Machine& machine, absl::Time now)>;

  struct Options {
    Machine::Options machine;
    // Events and questions that may wait.
    size_t queue_capacity = 4096;
    // Called once, on the loop's thread, when the store fails.
    std::function<void(const absl::Status&)> on_failure;
  };

  // Takes up what the store holds and starts the thread. `store`, `clock` and `outlet` are borrowed
  // and must outlive the loop.
  // Errors: those of the store; DataLoss for a record that cannot be read.
  static absl::StatusOr<std::unique_ptr<Loop>> Start(Options options, Store* store,
                                                     const Clock* clock, Outlet* outlet);
  ~Loop();

  // Waits for room. False: the loop has stopped.
  bool Post(Event event);
  // Asks on the loop's thread, once all events before it are durable. False: the loop has stopped,
  // the question will not be asked.
  bool Ask(Question question);

  // Handles what was posted, then ends the thread. Nothing is called after it returns.
  void Stop();

 private:
  using Item = std::variant<Event, Question>;

  Loop(Options options, Store* store, const Clock* clock, Outlet* outlet);
  absl::Status Restore();
  void Run();
  absl::Time NextWake(absl::Time called_again) const;
  // Waits for an item until `wake`, then takes all that are there.
  std::vector<Item> Take(absl::Time wake);
  // The actions of the items' events and, if something is due, of a Tick.
  std::vector<Action> Handle(const std::vector<Item>& items);
  void NoticeDelay(absl::Time expected);
  absl::Status Keep(const std::vector<Action>& actions);
  void Deliver(const std::vector<Action>& actions);

  const Options options_;
  Store* const store_;
  const Clock* const clock_;
  Outlet* const outlet_;
  Machine machine_;
  BoundedQueue<Item> queue_;
  // The loop itself was held up: until then it does not judge the members' silence.
  absl::Time judge_from_ = absl::InfinitePast();
  absl::Time last_turn_;
  std::thread thread_;
};

}  // namespace cadre
