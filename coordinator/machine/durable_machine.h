// The coordinator's loop without its thread, its queue and its clock: passes the events of a turn
// to the state machine (coordinator/machine/machine.h), makes the records of all of them durable in
// one transaction, and only then returns the other actions. coordinator/service/loop.h drives it
// with a thread, tests/simulation in virtual time.
//
//   DurableMachine machine({.machine = options, .commit = commit}, now);
//   CarryOut(machine.Restore(store, now));
//   while (true) {
//     const std::vector<Event> events = WaitUntil(machine.BeginWait(now));
//     CarryOut(machine.Handle(events, now));
//   }
//
// After a BeginAgain, the driver replaces the object by a new one, as after a restart.
//
// Guarantees: no action is returned before the records that it depends on are durable. If they
// cannot be made durable, nothing is returned, and the object must be discarded: its state is ahead
// of the store. A time in which the driver did not read events is no silence of the members
// (stall_monitor.h): a Tick follows all events of a turn, and a stall extends the leases once.
//
// Thread-compatible. `now` never decreases.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/events/events.h"
#include "coordinator/machine/machine.h"
#include "coordinator/machine/stall_monitor.h"
#include "coordinator/store/store.h"

namespace cadre {

class DurableMachine {
 public:
  struct Options {
    Machine::Options machine;
    // As Store::Commit. Required.
    std::function<absl::Status(const std::vector<Store::Op>& ops)> commit;
    // Called for each event when the machine has handled it, and without an event when it has
    // settled all of them, before the actions are durable. Optional.
    std::function<void(const Event* event, const std::vector<Action>& actions)> on_handled;
    // Names a limit of the process that has been reached; empty: there is room. Called once a
    // second. Optional.
    std::function<std::string()> find_limit;
  };

  struct Turn {
    // What is to be carried out, in this order; no Store::Op.
    std::vector<Action> actions;
    // By how much the leases were extended.
    absl::Duration stall;
    // The limit of the process that this turn has reported.
    std::string limit;
  };

  DurableMachine(Options options, absl::Time now)
      : options_(std::move(options)), machine_(options_.machine), last_read_(now) {}

  // Restores the machine from the store, in an epoch above all that the store knows and `above`, as
  // in the BeginAgain of an earlier machine. Requires: called once, before the other functions.
  // Errors: those of the store; DataLoss for a record that cannot be read.
  absl::StatusOr<Turn> Restore(Store& store, absl::Time now, uint64_t above = 0);

  // The driver waits for events from now on. Returns until when at most: `until`, or earlier.
  absl::Time BeginWait(absl::Time now, absl::Time until = absl::InfiniteFuture());
  // Handles the events for which the driver has waited; there may be none. Errors: those of
  // `commit`.
  absl::StatusOr<Turn> Handle(const std::vector<Event>& events, absl::Time now);

  // What it shows is durable after a Handle without an error.
  const Machine& machine() const { return machine_; }

 private:
  // Returns the time for which the driver has not read events, which is not the time of its wait.
  absl::Duration TakeUnread(absl::Time now);
  // The event of a limit that has been reached, or of room again.
  std::optional<LimitReached> ProbeLimit(absl::Time now);
  // Makes the operations durable, and returns the other actions.
  absl::StatusOr<std::vector<Action>> Commit(std::vector<Action> actions);

  const Options options_;
  Machine machine_;
  StallMonitor stall_monitor_;
  // When Handle was called last, and the wait after it.
  absl::Time last_read_;
  absl::Time wait_begin_ = absl::InfiniteFuture();
  absl::Time wait_until_ = absl::InfiniteFuture();
  // The limit that was reached last, until there has been room for some time; when it was found
  // last, and when it is looked for next.
  std::string limit_;
  absl::Time limit_at_ = absl::InfinitePast();
  absl::Time next_probe_ = absl::InfinitePast();
};

}  // namespace cadre
