// The coordinator as a pure state machine: membership, groups, rounds, evaluation and the life of
// runs, as (state, event, now) -> (state, actions). "Machine" always means this state machine, not
// a computer.
//
// It contains no threads, clocks, sockets, storage, randomness or logging: the service and the
// simulator drive the same object. Thread-compatible.
//
// Contract with the driver:
//   - The Store::Op actions of one Handle call are one transaction. It must be durable
//     before any other action of that call (or of a later call) is carried out. If it cannot be
//     made durable the machine must be discarded: its state is ahead of the store.
//   - Send and Disconnect actions of one connection are carried out in order.
//   - `now` never decreases. Handle(Tick{}) is called no later than NextDeadline().
//   - After a restart the driver creates a new Machine and calls Restore with all records of the
//     store (coordinator/store/keys.h names the keys); members open new streams.
// Guarantees: equal sequences of calls produce equal sequences of actions.
//
//   Machine machine(options);
//   Do(machine.Restore(records, now));
//   Do(machine.Handle(StreamOpened{1}, now));
//   Do(machine.Handle(MessageReceived{1, hello}, now));
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/cluster/cluster.h"
#include "coordinator/events/events.h"
#include "coordinator/events/options.h"
#include "coordinator/run/adoption.h"
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

  // Checks a spec by all rules that do not depend on the state. May take long for a large model, so
  // that callers of Submit check on their own thread, before they post SubmitRun.
  static absl::Status CheckSpec(const Options& options, const v1::RunSpec& spec);

  // Restores the state from the records of a store; a new store has none. Requires: called once,
  // before all other functions. Errors: DataLoss for a record that cannot be parsed.
  absl::StatusOr<std::vector<Action>> Restore(const std::map<std::string, std::string>& records,
                                              absl::Time now);

  std::vector<Action> Handle(const Event& event, absl::Time now);

  // The next time at which Handle(Tick) has work if no other event comes; InfiniteFuture if none.
  absl::Time NextDeadline() const;

  // Wherever a request names a run, its name may stand for its id: see Resolve.

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
  // Milliseconds since the Unix epoch at which the open round of the run began to accept
  // contributions; 0: there is none.
  int64_t RoundOpenedMs(const std::string& run) const;

  // The history of a run. Errors: NotFound for an unknown run.
  absl::StatusOr<v1::HistoryReply> History(const v1::HistoryRequest& request) const;
  // The newest version of a run and where its values are. Errors: NotFound for an unknown run;
  // FailedPrecondition for one without versions.
  absl::StatusOr<v1::LocateReply> Locate(const std::string& run) const;
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
  void OnMessage(const MessageReceived& received);
  void OnMemberMessage(Member& member, const v1::MemberMessage& message);
  void OnGoodbye(const Member& member, const v1::Goodbye& goodbye);
  // A message of a member was refused, and its stream has ended.
  void OnRefused(const Cluster::RefusedMessage& refused);
  // The ranks of this program will not form a group again: sends RunEnded to those that are
  // connected, and to the others when they join.
  void EndProgram(const std::string& program, const std::string& reason);
  // The live run that the reservation names; null if there is none.
  Run* LiveRunOf(const v1::Reservation& reservation);
  // Send to ranks of a program that are not in a group what they wait for, if that has changed: to
  // all, if ranks are missing (else `missing` is empty), or to one, what its run waits for.
  void SendMissingRanks(const std::string& program);
  void SendReasonOfRun(Member& rank);
  void SendWaiting(Member& rank, const std::string& missing);
  // Until when the other ranks of a program wait for one that is lost now.
  absl::Time ReturnLimit(const v1::Reservation& reservation);
  // The limits of all lost ranks begin again.
  void RenewReturnLimits();
  // The member, which was removed because its lease has expired, may be a rank of a program.
  void OnRankLost(const Member& member);
  void OnRankJoined(const v1::Reservation& reservation);
  // Ends the programs whose ranks have waited for a lost one until its limit.
  void EndIncompletePrograms();
  void OnWorkerMessage(Member& member, const v1::MemberMessage& message);
  void OnRunWarning(const Member& member, const v1::RunWarning& warning);
  // The member claims a rank of a generation that has ended.
  void ReleaseLate(const Member& member, const v1::RankSlot& place);
  void OnAggregatorMessage(const Member& member, const v1::MemberMessage& message);
  void OnHello(ConnectionId connection, const v1::Hello& hello);
  // Whether another process of this name is connected, and has values that this one lacks.
  bool IsImpostor(const v1::Hello& hello) const;
  // Whether the aggregator of this name stored a run, by its last Hello, that this Hello lacks,
  // although nothing has ordered its removal.
  bool LacksStoredRun(const v1::Hello& hello) const;
  const Member* OtherOfRank(const v1::Hello& hello) const;
  // Sends RunEnded to a rank whose run or program has ended: it waits in vain.
  void SendIfEnded(Member& worker);
  // Removes the member and ends its generation or closes its shards.
  void Drop(const std::string& member_id, absl::string_view reason, v1::FailureCause cause);
  void OnClosed(const Member& member);
  void OnAggregatorLost(const Member& member);
  void ExpireMembers();
  void OnSubmit(const SubmitRun& submit);
  // Errors: FailedPrecondition if a submission of this spec cannot be answered with the run, as it
  // has another spec, or has failed or was stopped.
  static absl::Status CheckJoin(const Run& run, const v1::RunSpec& submitted);
  static std::string FirstDifference(const v1::RunSpec& run, const v1::RunSpec& submitted);
  // Errors: ResourceExhausted if there are too many live runs.
  absl::Status CheckLiveRuns() const;
  // Answers the request with the result of `act`; NotFound if there is no such run.
  void ReplyFor(RequestId request, absl::string_view run,
                absl::FunctionRef<absl::Status(Run&)> act);
  // Errors: FailedPrecondition, listing the ids, if `run` is a name and an order that cannot be
  // undone concerns one of several runs: of the runs of that name or, if `only_live`, of those that
  // have not ended.
  absl::Status CheckOneOfName(absl::string_view run, bool only_live) const;
  void OnDelete(const DeleteRun& event);
  void OnAdopt(const AdoptRuns& adopt);
  // The live run of which the aggregator stores another lineage; null if there is none.
  const Run* RunOfOtherLineage(const v1::Hello& hello) const;
  // Whether the aggregator stores a run of this cluster.
  bool StoresKnownRun(const v1::Hello& hello) const;
  // The aggregator knows generations that this store has not assigned.
  void OnHigherGeneration(uint32_t generation);
  // For a run whose record is older than the values of its aggregators.
  void OnReportOf(Run& run, const Member& aggregator, const v1::RunReport& report);
  // Adopts the runs once all aggregators have reported, or the time for it is over.
  void FinishAdoption();
  v1::AdoptedRun AdoptRun(const std::string& id, const RebuiltRun& rebuilt);
  void OnTrace(const TraceGroup& trace);
  // Carries out everything that the event or the time has made possible.
  void Settle();
  // `form`: runs that wait may form groups, whatever the event is.
  bool SettleOnce(bool form);
  // Deletes the runs that ended first, if there are too many.
  void EvictEndedRuns();
  // Removes the records of the run, and orders its aggregators to remove its files. Requires: the
  // run has ended.
  void Delete(uint32_t number);
  // Forgets the deletion that matters least.
  void ForgetDeleted();
  // The aggregator has files of the run, whether it has confirmed their removal or not.
  void RequireDelete(const std::string& aggregator, v1::DeletedRunRecord& deleted);
  // Sends orders that the aggregator has not confirmed, unless many are on their way; it is called
  // again when one of these is confirmed.
  void SendDeletes(const Member& aggregator);
  void OnRunDeleted(const Member& aggregator, const v1::RunDeleted& message);
  // Whether files of this run and lineage are to be removed.
  bool IsDeleted(absl::string_view run, absl::string_view lineage) const;
  // The run that an event concerns, to be settled; null if there is none.
  Run* Visit(absl::string_view run_id);
  void VisitAll();
  const Run* FindRun(absl::string_view run_id) const;
  // The run that a user means by an id or by a name: the newest run of that name that has not ended
  // or, if all have ended, the newest one. Text that has the form of an id is no name. Null if no
  // run is meant.
  const Run* Resolve(absl::string_view run) const;
  static absl::Status NoSuchRun(absl::string_view run);

  const Options options_;
  Cluster cluster_;
  GroupPlanner planner_;
  // Number of the last trace since this process started.
  uint32_t last_trace_ = 0;
  // Runs and lineages that have not ended, by the aggregators whose last Hello named them.
  std::map<std::string, std::set<std::pair<std::string, std::string>>> stored_runs_;
  // Runs that the coordinator does not know, by the aggregators that store them, and the adoption
  // in progress.
  std::map<std::string, std::set<std::string>> unknown_runs_;
  std::optional<Adoption> adoption_;
  // By run number, which is the order of submission.
  std::map<uint32_t, Run> runs_;
  // Deleted runs that aggregators may still store, by id: they are not unknown runs, which could be
  // adopted. `aggregators` are those that have not confirmed the removal.
  std::map<std::string, v1::DeletedRunRecord, std::less<>> deleted_;
  // Runs that aggregators were told to delete since they joined, and have not confirmed.
  std::map<std::string, std::set<std::string>> ordered_deletes_;
  // Runs to settle in this call, and the deadlines of all others.
  std::set<uint32_t> unsettled_;
  std::set<std::pair<absl::Time, uint32_t>> deadlines_;
  std::map<uint32_t, absl::Time> deadline_of_;
  // Runs that wait for workers or aggregators, and Membership::idle_changes when they were visited.
  std::set<uint32_t> waiting_;
  uint64_t seen_idle_ = 0;
};

}  // namespace cadre
