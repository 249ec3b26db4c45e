// The coordinator as a pure state machine: membership, groups, rounds, evaluation and the life of
// runs, as (state, event, now) -> (state, actions). "Machine" always means this state machine, not
// a computer.
//
// It contains no threads, clocks, sockets, storage, randomness or logging: the service and the
// simulator drive the same object. Thread-compatible.
//
// Contract with the driver:
//   - The Store::Op actions of one call of Handle or Settle belong to one transaction. It must be
//     durable before any other action of that call (or of a later call) is carried out. If it
//     cannot be made durable the machine must be discarded: its state is ahead of the store.
//   - Send and Disconnect actions of one connection are carried out in order.
//   - `now` never decreases. Handle(Tick{}) is called no later than NextDeadline(). Settle follows
//     one or more calls of Handle.
//   - After a BeginAgain, and after a restart, the driver creates a new Machine and calls Restore
//     with all records of the store (coordinator/store/keys.h names the keys); members open new
//     streams.
// Guarantees: equal sequences of calls produce equal sequences of actions.
//
//   Machine machine(options);
//   Do(machine.Restore(records, now, epoch));
//   Do(machine.Handle(StreamOpened{1}, now));
//   Do(machine.Handle(MessageReceived{1, hello}, now));
//   Do(machine.Settle(now));
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/cluster/cluster.h"
#include "coordinator/events/events.h"
#include "coordinator/events/options.h"
#include "coordinator/machine/deleted_runs.h"
#include "coordinator/machine/reserved_ranks.h"
#include "coordinator/machine/runs.h"
#include "coordinator/machine/stored_runs.h"
#include "coordinator/run/group_planner.h"
#include "coordinator/run/run.h"
#include "proto/cadre/v1/control.pb.h"
#include "proto/cadre/v1/records.pb.h"

namespace cadre {

// Numbers of members, for metrics.
struct MemberCounts {
  // Connected workers: without a rank, with one, and excluded from new work without one.
  int idle = 0;
  int busy = 0;
  int excluded = 0;
  // Without a stream, but with a lease.
  int workers_away = 0;
  int aggregators = 0;
  // Without a stream, but with a lease or with shards of a run that lives.
  int aggregators_away = 0;
};

class Machine {
 public:
  using Options = CoordinatorOptions;

  explicit Machine(Options options);

  // Restores the state from the records of a store; a new store has none. Starts an epoch that is
  // at least `epoch`. Requires: called once, before all other functions. Errors: DataLoss for a
  // record that cannot be parsed.
  absl::StatusOr<std::vector<Action>> Restore(const std::map<std::string, std::string>& records,
                                              absl::Time now, uint64_t epoch);

  // Changes the state as the event requires. Requires: after the last of the events that wait,
  // Settle follows with the same time.
  std::vector<Action> Handle(const Event& event, absl::Time now);
  // Does everything that the events or the time have made possible.
  std::vector<Action> Settle(absl::Time now);

  // The next time at which Handle(Tick) has work if no other event comes; InfiniteFuture if none.
  absl::Time NextDeadline() const;

  // Wherever a request names a run, its name may stand for its id: see Runs::Resolve.

  // One page of the status. Errors: NotFound for an unknown run; InvalidArgument for a page token
  // that no reply contained.
  absl::StatusOr<v1::StatusReply> Status(absl::Time now, const v1::StatusRequest& request) const;
  // All pages with details, of one run or, if `run_id` is empty, of the whole cluster. Empty for an
  // unknown run.
  v1::StatusReply Status(absl::Time now, absl::string_view run_id = "") const;
  // The status of every run.
  v1::ListReply List(absl::Time now) const;
  MemberCounts CountMembers() const;
  // Events by name since the creation of the store, as in v1::StatusReply, without those of
  // members.
  const google::protobuf::Map<std::string, uint64_t>& counters() const {
    return cluster_.meta().counters();
  }
  // What the metrics of a run have beside its status.
  struct RunGauges {
    // Milliseconds since the Unix epoch at which the open round began to accept contributions; 0:
    // there is none.
    int64_t round_opened_ms = 0;
    // Number of obligations that are late (coordinator/run/obligations.h).
    size_t late = 0;
  };
  RunGauges Gauges(const std::string& run) const;

  // The history of a run. Errors: NotFound for an unknown run.
  absl::StatusOr<v1::HistoryReply> History(const v1::HistoryRequest& request) const;
  // The newest version of a run and where its values are. Errors: NotFound for an unknown run;
  // FailedPrecondition for one without versions.
  absl::StatusOr<v1::LocateReply> Locate(const v1::LocateRequest& request) const;
  // The events of a run that was deleted are found by its id only.
  v1::EventsReply Events(v1::EventsRequest request) const;

  // Numbers that change with every visible change of a run, by run; of one run unless `run_id` is
  // empty.
  std::map<std::string, uint64_t> Revisions(absl::string_view run_id) const;
  // The id of the run that `run`, an id or a name, stands for; empty if there is none.
  std::string IdOf(absl::string_view run) const;
  // The status of a run and of its groups, without details. Requires: the run exists.
  v1::WatchUpdate Update(absl::string_view run_id, absl::Time now) const;

 private:
  // ---- Members
  void OnMessage(const MessageReceived& received);
  void OnMemberMessage(Member& member, const v1::MemberMessage& message);
  void OnWorkerMessage(Member& member, const v1::MemberMessage& message);
  void OnAggregatorMessage(const Member& member, const v1::MemberMessage& message);
  void OnRunWarning(const Member& member, const v1::RunWarning& warning);
  void OnHello(ConnectionId connection, const v1::Hello& hello);
  void OnAggregatorJoined(const Member& member, const v1::Hello& hello);
  // The same process was registered before.
  void OnWorkerRejoined(const Member& member, const v1::Hello& hello);
  void OnGoodbye(const Member& member, const v1::Goodbye& goodbye);
  // A message of a member was refused, and its stream has ended.
  void OnRefused(const Cluster::RefusedMessage& refused);
  // The member claims a rank of a generation that has ended.
  void ReleaseLate(const Member& member, const v1::RankSlot& place);
  // Removes the member and ends its generation or closes its shards.
  void Drop(const std::string& member_id, absl::string_view reason, v1::FailureCause cause);
  void OnClosed(const Member& member);
  void OnAggregatorLost(const Member& member);
  void OnCordon(const CordonMembers& cordon);
  void ExpireMembers();

  // ---- Runs
  void OnSubmit(const SubmitRun& submit);
  // Answers the request with the result of `act`; NotFound if there is no such run.
  void ReplyFor(RequestId request, absl::string_view run,
                absl::FunctionRef<absl::Status(Run&)> act);
  void OnRollBack(const RollBackRun& event);
  void OnDelete(const DeleteRun& event);
  // Removes the records of the run, and orders its aggregators to remove its files. `reason`: for
  // the event; empty: an operator has ordered it. Requires: the run has ended.
  void Delete(const Run& run, absl::string_view reason);
  void OnTrace(const TraceGroup& trace);
  // Deletes runs that have ended, and announces deletions, by the options.
  void ApplyRetention();

  const Options options_;
  Cluster cluster_;
  GroupPlanner planner_;
  Runs runs_;
  DeletedRuns deleted_;
  StoredRuns stored_;
  ReservedRanks reserved_ranks_;
  // When ApplyRetention has work without the end of a run.
  absl::Time retention_at_ = absl::InfinitePast();
  // Number of the last trace since this process started.
  uint32_t last_trace_ = 0;
};

// Handles a single event, and settles.
std::vector<Action> HandleOne(Machine& machine, const Event& event, absl::Time now);

}  // namespace cadre
