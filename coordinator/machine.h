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
//     store (coordinator/keys.h names the keys); members open new streams.
// Guarantees: equal sequences of calls produce equal sequences of actions.
//
//   Machine machine(options);
//   Do(machine.Restore(records, now));
//   Do(machine.Handle(StreamOpened{1}, now));
//   Do(machine.Handle(MessageReceived{1, hello}, now));
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/events.h"
#include "coordinator/measurements.h"
#include "coordinator/membership.h"
#include "coordinator/outbox.h"
#include "coordinator/planning.h"
#include "coordinator/run.h"
#include "proto/cadre/v1/control.pb.h"
#include "proto/cadre/v1/records.pb.h"

namespace cadre {

class Machine {
 public:
  struct Options {
    // The plan of a group of `ranks` workers. Required.
    std::function<absl::StatusOr<v1::Plan>(const v1::RunSpec& spec, int ranks)> plan;
    // Chooses plans for groups of known workers and predicts step times. Borrowed; must outlive the
    // machine. Null: only `plan` is used, without predictions.
    const Planning* planning = nullptr;
    // Checks that a plan is legal for the run. Empty: only mesh and layouts are compared.
    std::function<absl::Status(const v1::RunSpec& spec, const v1::Plan& plan)> check_plan;
    // Checks a submitted run; errors name the field. Empty: every run is accepted.
    std::function<absl::Status(const v1::RunSpec& spec)> validate;
    // Number of parameter elements, for the status. Empty: unknown.
    std::function<uint64_t(const v1::RunSpec& spec)> parameter_count;
    // Schema that every member must have.
    uint64_t schema_hash = 0;
    absl::Duration lease = absl::Seconds(10);
    absl::Duration heartbeat = absl::Seconds(2);
    // Consecutive group failures without a commit after which a run fails.
    uint32_t max_group_failures = 20;
    // Maximum number of live runs, and of ended runs whose records are kept.
    int max_live_runs = 256;
    int max_ended_runs = 256;
    // Size limit of the answer to a trace; below the limit of one message.
    size_t max_trace_bytes = 7 << 20;
    // Program version, for the status and refusals.
    std::string version;
  };

  explicit Machine(Options options);

  // Restores the state from the records of a store; a new store has none. Requires: called once,
  // before all other functions. Errors: DataLoss for a record that cannot be parsed.
  absl::StatusOr<std::vector<Action>> Restore(const std::map<std::string, std::string>& records,
                                              absl::Time now);

  std::vector<Action> Handle(const Event& event, absl::Time now);

  // The next time at which Handle(Tick) has work if no other event comes; InfiniteFuture if none.
  absl::Time NextDeadline() const;

  // Status of one run or, if `run_id` is empty, of the whole cluster.
  v1::StatusReply Status(absl::Time now, absl::string_view run_id = "") const;

  // Status of one run. Errors: NotFound.
  absl::StatusOr<v1::RunStatus> RunStatus(absl::string_view run_id, absl::Time now) const;

  // Whether the run has ended; true for unknown runs, so that no call waits for them.
  bool Ended(absl::string_view run_id) const;

 private:
  // How a generation ends: by a failure, which is counted, or by a planned release.
  enum class Ending { kFailed, kReleased };

  // -- machine.cc: events, the run's life
  void OnSubmit(const SubmitRun& submit);
  void OnStop(const StopRun& stop);
  absl::Status CheckSubmit(const v1::RunSpec& spec) const;
  void ExpireMembers();
  // Carries out everything that the event or the time has made possible.
  void Settle();
  void EndRun(Run& run, v1::RunState state, absl::string_view reason);
  void EvictEndedRuns();
  Run* FindRun(absl::string_view run_id);
  const Run* FindRun(absl::string_view run_id) const;

  // -- machine_restore.cc
  absl::Status LoadRecords(const std::map<std::string, std::string>& records);
  absl::Status LoadCommits(const std::map<std::string, std::string>& records, Run& run);
  void PlaceMembers(Run& run);

  // -- machine_members.cc: streams, Hello, leases
  void OnStreamClosed(ConnectionId connection);
  void OnMessage(const MessageReceived& received);
  void OnMemberMessage(Member& member, const v1::MemberMessage& message);
  void OnWorkerMessage(Member& member, const v1::MemberMessage& message);
  void OnAggregatorMessage(Member& member, const v1::MemberMessage& message);
  void OnHello(ConnectionId connection, const v1::Hello& hello);
  void OnWorkerHello(ConnectionId connection, const v1::Hello& hello);
  void OnAggregatorHello(ConnectionId connection, const v1::Hello& hello);
  void OnWorkerRejoined(Member& member, const v1::Hello& hello);
  Member& AddMember(const v1::Hello& hello);
  // Updates the member's record from Hello.
  void UpdateMember(Member& member, const v1::Hello& hello);
  void Welcome(Member& member, ConnectionId connection);
  void OnHeartbeat(Member& member, const v1::Heartbeat& heartbeat);
  // Sends the reason, counts the refusal and ends the stream; the member, if any, keeps its lease.
  void Refuse(ConnectionId connection, v1::Refusal refusal, absl::string_view reason);
  void CountRefusal(v1::Refusal refusal);
  // Removes the member and ends its generation or closes its shards.
  void Drop(const std::string& member_id, absl::string_view reason, Ending ending);
  // Adds the refusals counted by a process that ends to the coordinator's counters.
  void KeepCounters(Member& member);
  void SendTo(absl::string_view member_id, const v1::CoordinatorMessage& message);
  void SendRelease(absl::string_view member_id, const v1::RankSlot& place,
                   absl::string_view reason);

  // -- machine_shards.cc: aggregators and their shards
  bool ChooseShards(Run& run, size_t idle_workers);
  bool LostShardBeforeStart(const Run& run) const;
  void OnAggregatorJoined(Member& member, const v1::Hello& hello, bool address_changed);
  void OnAggregatorLost(const Member& member);
  void OnRunOpened(Member& member, const v1::RunOpened& opened);
  // Empty if the shard's version matches the run's; otherwise why the run must fail.
  std::string CheckOpened(const Run& run, const Member& member, const v1::RunOpened& opened) const;
  void RecordInitialModel(Run& run);
  void SendOpenRun(const Run& run, uint32_t shard);
  void SendOpenRuns(const Run& run);
  void SendCloseRun(const Run& run, const Member& member);
  void SendShardAddresses(const Run& run, absl::string_view member_id);
  std::vector<v1::ShardAddress> Addresses(const Run& run) const;
  // Whether the member is the aggregator of this shard of the run.
  static bool Owns(const Member& member, const Run& run, uint32_t shard);

  // -- machine_groups.cc: forming, starting, fencing
  // Connected workers without a rank, oldest first.
  std::vector<std::string> IdleWorkers() const;
  // The same workers, ordered so that workers of one host are adjacent.
  std::vector<std::string> SortByHost(const std::vector<std::string>& workers) const;
  void FormGroups(Run& run, std::vector<std::string>& idle);
  bool NeedsGroup(const Run& run, const Slot& slot) const;
  void ReserveFor(const Run& run, std::vector<std::string>& idle) const;
  std::vector<std::vector<std::string>> GroupByDevice(const Run& run,
                                                      const std::vector<std::string>& idle) const;
  // Device kind of the slot's group; unspecified once its first rank is removed.
  v1::Cluster::Device DeviceKindOf(const Slot& slot) const;
  size_t IdleWorkersOf(v1::Cluster::Device kind) const;
  static void Take(const std::vector<std::string>& workers, std::vector<std::string>& idle);
  bool FormSlot(Run& run, Slot& slot, std::vector<std::string>& idle);
  void FormGeneration(Run& run, Slot& slot, const std::vector<std::string>& members,
                      const v1::Plan& plan);
  void Rewind(Run& run);
  void SendAssignment(const Run& run, const Slot& slot, uint32_t rank);
  void OnPrepared(Member& member, const v1::Prepared& prepared);
  // Checks the plan that rank 0 reports, if any.
  absl::Status CheckReportedPlan(const Run& run, const Slot& slot,
                                 const v1::Prepared& prepared) const;
  void MaybeStart(Run& run);
  void StartGroup(Run& run, Slot& slot);
  void SendStart(const Run& run, const Slot& slot, uint32_t rank);
  void OnGroupFailed(Member& member, const v1::GroupFailed& failed);
  // Ends the generation: releases its ranks and discards its contribution and its evaluation part.
  void Fence(Run& run, Slot& slot, absl::string_view reason, Ending ending);
  void ReleaseMembers(Slot& slot, absl::string_view reason);
  // The run of `place` if the member holds that rank; otherwise releases the member and returns
  // null.
  Run* RunAtPlace(Member& member, const v1::RankSlot& place);
  // The same for messages that only rank 0 may send.
  Run* RunAtLead(Member& member, const v1::RankSlot& place);

  // -- machine_planning.cc: measurements, predictions, changes of plans
  PlanQuery QueryFor(const Run& run, const std::vector<std::string>& members) const;
  // The query for a formed group, with the link that the group has measured itself.
  PlanQuery QueryFor(const Run& run, const Slot& slot) const;
  // Number of workers per host: `members`, and all workers that hold a rank.
  std::map<std::string, int> CountWorkersByHost(const std::vector<std::string>& members) const;
  // Searches at most once per Handle call for all groups of the run on equal resources. The result
  // is valid until the end of that call.
  const absl::StatusOr<std::vector<GroupPlan>>& PlansFor(const Run& run, const PlanQuery& query);
  absl::StatusOr<v1::Plan> PlanGroup(const Run& run, const Slot& slot,
                                     const std::vector<std::string>& members);
  void RecordLink(const Slot& slot);
  // Predicts the group's plan, unless it is predicted already.
  void PredictGroup(const Run& run, Slot& slot);
  void OnMeasured(Member& member, const v1::Measured& measured);
  // Stores the times of the run's layers; times of other layers are dropped.
  void RecordTimes(const Run& run, const Member& member, v1::Measured measured);
  // Searches for a better plan, at most once per measurement of the group.
  void ConsiderPlan(const Run& run, Slot& slot);
  bool MaybeReplan(Run& run, Slot& slot);
  // Whether the same members would form the group again after a release: all are connected, and no
  // earlier group waits for workers.
  bool CanReform(const Run& run, const Slot& slot) const;

  // -- machine_round.cc: contributions and commits
  void OnProgress(Member& member, const v1::Progress& progress);
  void OnContributed(Member& member, const v1::Contributed& contributed);
  void OnAveraged(Run& run, Slot& slot, const v1::Contributed& contributed);
  void OnBoundary(Run& run, Slot& slot, const v1::Contributed& contributed);
  // Whether the contribution is well-formed for this run.
  static bool IsValidContribution(const Run& run, const v1::Contributed& contributed);
  void RefuseContribution(Run& run, Slot& slot, const v1::Contributed& contributed,
                          v1::Refusal refusal);
  void CountBytes(Run& run, const v1::Contributed& contributed);
  void MaybeClose(Run& run);
  void SendApply(const Run& run, uint32_t shard);
  void OnApplied(Member& member, const v1::Applied& applied);
  void FinishCommit(Run& run);
  void RecordVersion(Run& run, const v1::CommitRecord& commit);
  void SendDecision(Run& run, Slot& slot, uint32_t round);
  bool MaybeGrow(Run& run, Slot& slot);
  void OnAdopted(Member& member, const v1::Adopted& adopted);

  // -- machine_evaluation.cc
  void BeginEvaluation(Run& run, const std::vector<uint32_t>& groups);
  void OnEvaluated(Member& member, const v1::Evaluated& evaluated);
  void FinishEvaluation(Run& run);
  void AssignFreeParts(Run& run);
  // After a reconnect, sends its part again to a group that has finished training, since no message
  // of the group would request it.
  void ResendPart(Run& run, Slot& slot);

  // -- machine_trace.cc: traces of a group's next steps; not durable
  void OnTraceGroup(const TraceGroup& request);
  absl::StatusOr<Slot*> FindTraced(const TraceGroup& request);
  void OnCancelTrace(const CancelTrace& leave);
  void OnTraced(Member& member, const v1::Traced& traced);
  void SendTraceSteps(const Slot& slot, uint32_t rank);
  // The generation has ended: ends its trace, if any, with an error.
  void AbortTrace(Slot& slot, absl::string_view reason);

  // -- machine_status.cc
  void FillCoordinator(absl::Time now, v1::StatusReply& reply) const;
  v1::RunStatus RunStatusOf(const Run& run, absl::Time now) const;
  void FillTimes(const Run& run, absl::Time now, v1::RunStatus& status) const;
  v1::GroupStatus GroupStatusOf(const Run& run, const Slot& slot) const;
  static void FillPrediction(const Slot& slot, v1::GroupStatus& status);
  static v1::GroupState StateOf(const Run& run, const Slot& slot);
  v1::MemberStatus MemberStatusOf(const Member& member, absl::Time now) const;
  v1::AggregatorStatus AggregatorStatusOf(const Member& member, absl::Time now) const;
  std::string MissingWorkers(const Run& run) const;
  std::string WaitReason(const Run& run) const;

  void Count(absl::string_view name, uint64_t amount = 1);
  void Save(const Run& run);
  void Save(const Slot& slot);
  void Save(const Member& member);

  const Options options_;
  // Time and actions of the current call.
  absl::Time now_ = absl::InfinitePast();
  Outbox out_;

  v1::MetaRecord meta_;
  bool meta_changed_ = false;
  // Number of the last trace since this process started.
  uint32_t last_trace_ = 0;
  absl::Time started_ = absl::InfinitePast();
  Membership members_;
  Measurements measurements_;
  // State of the current call: search results by run and resources, and whether a better plan was
  // searched.
  std::map<std::string, absl::StatusOr<std::vector<GroupPlan>>> searched_;
  bool looked_for_better_plan_ = false;
  // By run number, which is the order of submission.
  std::map<uint32_t, Run> runs_;
};

}  // namespace cadre
