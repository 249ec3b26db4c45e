// The runs of the state machine, by number, which is the order of submission: look-up by id and by
// name, and which of them an event concerns.
//
// Pure and thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/events/options.h"
#include "coordinator/run/run.h"
#include "coordinator/run/run_context.h"
#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/records.pb.h"

namespace cadre {

// Checks a spec by all rules that do not depend on the state. May take long for a large model, so
// that callers of Submit check on their own thread, before they post SubmitRun.
absl::Status CheckSpec(const CoordinatorOptions& options, const v1::RunSpec& spec);

absl::Status NoSuchRun(absl::string_view run);

class Runs {
 public:
  // What the context names must outlive the object.
  explicit Runs(const RunContext& context) : context_(context) {}

  // ---- The runs. Each is settled in the call in which it was added.
  // Requires: there is no run of this number.
  Run& Add(const v1::RunRecord& record);
  void Erase(uint32_t number);
  using Map = std::map<uint32_t, Run>;
  Map& all() { return runs_; }
  const Map& all() const { return runs_; }
  // Errors: ResourceExhausted if there are too many live runs.
  absl::Status CheckLive() const;

  // ---- Look-up; null if there is no such run
  const Run* Find(absl::string_view id) const;
  Run* Find(absl::string_view id) { return const_cast<Run*>(std::as_const(*this).Find(id)); }
  // The run that a user means by an id or by a name: the newest run of that name that has not ended
  // or, if all have ended, the newest one. Text that has the form of an id is no name.
  const Run* Resolve(absl::string_view run) const;
  // Errors: FailedPrecondition, listing the ids, if `run` is a name and an order that cannot be
  // undone concerns one of several runs: of the runs of that name or, if `only_live`, of those that
  // have not ended.
  absl::Status CheckOneOfName(absl::string_view run, bool only_live) const;
  // The live run that the reservation names.
  Run* LiveRunOf(const v1::Reservation& reservation);

  // The run may have ended already.
  void OnPredicted(const StepPredicted& found) {
    if (Run* const run = Find(found.run)) run->groups().OnPredicted(found);
  }

  // ---- Settling
  // The run that an event concerns, to be settled; null if there is none.
  Run* Visit(absl::string_view id);
  void Visit(const Run& run) { unsettled_.insert(run.number()); }
  void VisitAll();
  // Those that no aggregators could be chosen for: one of these has changed. `draining`: there may
  // be runs whose shards are to move to others.
  void VisitWaitingForAggregators(bool draining);
  struct Settled {
    // A run that has ended was visited.
    bool ended = false;
    // A run has released workers, so that others may form groups now.
    bool released = false;
  };
  // Maximum number of groups that one Settle forms, so that it takes a few dozen milliseconds.
  static constexpr int kMaxFormations = 16;
  // Settles the visited runs and those whose deadlines have passed. `form`: runs that wait may form
  // groups, whatever the event is. If it has formed as many groups as it may, the rest is due
  // immediately.
  Settled Settle(bool form);
  absl::Time NextDeadline() const {
    if (!unsettled_.empty()) return context_.cluster.now();
    return deadlines_.empty() ? absl::InfiniteFuture() : deadlines_.begin()->first;
  }

 private:
  void SetDeadline(uint32_t number, absl::Time deadline);

  const RunContext context_;
  Map runs_;
  // Runs to settle, and the deadlines of all others.
  std::set<uint32_t> unsettled_;
  std::set<std::pair<absl::Time, uint32_t>> deadlines_;
  std::map<uint32_t, absl::Time> deadline_of_;
  // Runs that wait for workers or aggregators, and Membership::idle_changes when they were visited.
  std::set<uint32_t> waiting_;
  uint64_t seen_idle_ = 0;
};

}  // namespace cadre
