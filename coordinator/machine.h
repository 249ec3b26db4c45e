// The coordinator as a pure state machine: membership, groups, rounds, evaluation and the life of
// runs, all as (state, event, now) -> (state, actions).
//
// No thread, clock, socket, store, randomness or logging inside: the service and the simulator
// drive the same object. Thread-compatible.
//
// Contract with the driver:
//   - The Persist and Erase actions of one Handle call are one transaction. It must be durable
//     before any other action of that call (or of a later call) is done. If it cannot be made
//     durable the machine must be thrown away: its memory is ahead of the store.
//   - Send and Disconnect of one connection are done in order.
//   - `now` never goes back. Handle(Tick{}) is called at NextDeadline() at the latest.
//   - A driver that starts again makes a new Machine and calls Restore with everything that is in
//     the store (coordinator/keys.h names the keys); streams are opened anew.
// Guarantees: equal sequences of calls give equal sequences of actions.
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
#include "coordinator/job.h"
#include "coordinator/measurements.h"
#include "coordinator/membership.h"
#include "coordinator/outbox.h"
#include "coordinator/planning.h"
#include "proto/cadre/v1/control.pb.h"
#include "proto/cadre/v1/records.pb.h"

namespace cadre {

class Machine {
 public:
  struct Options {
    // The plan of a group of `ranks` workers. Required.
    std::function<absl::StatusOr<v1::Plan>(const v1::RunSpec& spec, int ranks)> plan;
    // Chooses plans for groups whose workers are known, and predicts them. Borrowed; must outlive
    // the machine. Null: `plan` alone says, and nothing is predicted.
    const Planning* planning = nullptr;
    // Whether a plan is legal for the run. Empty: only mesh and layers are compared.
    std::function<absl::Status(const v1::RunSpec& spec, const v1::Plan& plan)> check_plan;
    // Whether a run may be submitted; names the field that is wrong. Empty: everything goes.
    std::function<absl::Status(const v1::RunSpec& spec)> validate;
    // Elements of all parameters together; for the status. Empty: unknown.
    std::function<uint64_t(const v1::RunSpec& spec)> parameter_count;
    // Every peer must have this schema.
    uint64_t schema_hash = 0;
    absl::Duration lease = absl::Seconds(10);
    absl::Duration heartbeat = absl::Seconds(2);
    // Groups of one run that may fail one after the other without a commit between them.
    uint32_t most_group_failures = 20;
    // Runs that may wait or run at a time, and ended runs that are remembered.
    size_t most_live_runs = 256;
    size_t most_ended_runs = 256;
    // The answer to a trace is no larger; below what one message may hold.
    size_t most_trace_bytes = 7 << 20;
    // For the status.
    std::string version;
  };

  explicit Machine(Options options);

  // Takes up what a store holds (nothing, when it is new). Requires: called once, first.
  // Errors: DataLoss for a record that cannot be read.
  absl::StatusOr<std::vector<Action>> Restore(const std::map<std::string, std::string>& records,
                                              absl::Time now);

  std::vector<Action> Handle(const Event& event, absl::Time now);

  // When something will be due if nothing else happens; InfiniteFuture when nothing will.
  absl::Time NextDeadline() const;

  // A snapshot for people; of one run or, when `run` is empty, of everything.
  v1::StatusReply Status(absl::Time now, absl::string_view run = "") const;

  // Status of one run. Errors: NotFound.
  absl::StatusOr<v1::RunStatus> RunStatus(absl::string_view run, absl::Time now) const;

  // Whether the run has ended (or is unknown: whoever waits for it need wait no longer).
  bool Ended(absl::string_view run) const;

 private:
  // How a generation ends: by a failure, which counts, or in good order.
  enum class Ending { kFailed, kOrderly };

  // -- machine.cc: events, the run's life
  void Dispatch(const Event& event);
  void OnSubmit(const SubmitRun& submit);
  void OnStop(const StopRun& stop);
  absl::Status CheckSubmit(const v1::RunSpec& spec) const;
  void ExpireMembers();
  // Does whatever has become possible: what an event changed, or time.
  void Settle();
  void EndRun(Job& job, v1::RunState state, absl::string_view reason);
  void ForgetOldRuns();
  Job* FindJob(absl::string_view run);
  const Job* FindJob(absl::string_view run) const;

  // -- machine_restore.cc
  absl::Status LoadRecords(const std::map<std::string, std::string>& records);
  absl::Status LoadCommits(const std::map<std::string, std::string>& records, Job& job);
  void PlaceMembers(Job& job);

  // -- machine_members.cc: streams, Hello, leases
  void OnStreamClosed(ConnectionId connection);
  void OnMessage(const MessageReceived& received);
  void OnMemberMessage(Member& member, const v1::MemberMessage& message);
  void OnWorkerMessage(Member& member, const v1::MemberMessage& message);
  void OnAggregatorMessage(Member& member, const v1::MemberMessage& message);
  void OnHello(ConnectionId connection, const v1::Hello& hello);
  void OnWorkerHello(ConnectionId connection, const v1::Hello& hello);
  void OnAggregatorHello(ConnectionId connection, const v1::Hello& hello);
  void OnWorkerBack(Member& member, const v1::Hello& hello);
  Member& AddMember(const v1::Hello& hello);
  // Takes what Hello says into the member's record.
  void UpdateMember(Member& member, const v1::Hello& hello);
  void Welcome(Member& member, ConnectionId connection);
  void OnHeartbeat(Member& member, const v1::Heartbeat& heartbeat);
  // Says why, counts it and ends the stream; the member, if there is one, keeps its lease.
  void Refuse(ConnectionId connection, v1::Refusal refusal, absl::string_view reason);
  void CountRefusal(v1::Refusal refusal);
  // Takes the member off the books.
  void Drop(const std::string& member_id, absl::string_view reason, Ending ending);
  // Keeps the refusals that a process counted when the process goes.
  void KeepCounters(Member& member);
  void SendTo(absl::string_view member_id, const v1::CoordinatorMessage& message);
  void SendRelease(absl::string_view member_id, const v1::GroupPlace& place,
                   absl::string_view reason);

  // -- machine_shards.cc: aggregators and what they hold
  bool ChooseShards(Job& job, size_t idle_workers);
  bool LostShardBeforeStart(const Job& job) const;
  void OnAggregatorBack(Member& member, const v1::Hello& hello, bool moved);
  void OnAggregatorGone(const Member& member);
  void OnRunOpened(Member& member, const v1::RunOpened& opened);
  // Empty: what the shard holds fits; otherwise why the run cannot go on with it.
  std::string CheckOpened(const Job& job, const Member& member, const v1::RunOpened& opened) const;
  void RecordInitialModel(Job& job);
  void SendOpenRun(const Job& job, uint32_t shard);
  void SendOpenRuns(const Job& job);
  void SendCloseRun(const Job& job, const Member& member);
  void SendShardAddresses(const Job& job, absl::string_view member_id);
  std::vector<v1::ShardAddress> Addresses(const Job& job) const;
  // Whether the member is the aggregator of this shard of the run.
  static bool Owns(const Member& member, const Job& job, uint32_t shard);

  // -- machine_groups.cc: forming, starting, fencing
  // Workers that are connected and have no place, oldest first.
  std::vector<std::string> IdleWorkers() const;
  // The same workers, those of one host side by side.
  std::vector<std::string> ByHost(const std::vector<std::string>& workers) const;
  void FormGroups(Job& job, std::vector<std::string>& idle);
  bool WantsGroup(const Job& job, const Slot& slot) const;
  void KeepFor(const Job& job, std::vector<std::string>& idle) const;
  std::vector<std::vector<std::string>> ByDevice(const Job& job,
                                                 const std::vector<std::string>& idle) const;
  // The kind of device that the slot's group computes on; none once its first rank is gone.
  v1::ComputeDevice KindOf(const Slot& slot) const;
  size_t IdleOf(v1::ComputeDevice kind) const;
  static void Take(const std::vector<std::string>& workers, std::vector<std::string>& idle);
  bool FormSlot(Job& job, Slot& slot, std::vector<std::string>& idle);
  void FormGeneration(Job& job, Slot& slot, const std::vector<std::string>& members,
                      const v1::Plan& plan);
  void Rewind(Job& job);
  void SendAssignment(const Job& job, const Slot& slot, uint32_t rank);
  void OnPrepared(Member& member, const v1::Prepared& prepared);
  // Of the plan that rank 0 tells of, if it does.
  absl::Status CheckObeyed(const Job& job, const Slot& slot, const v1::Prepared& prepared) const;
  void MaybeStart(Job& job);
  void StartGroup(Job& job, Slot& slot);
  void SendStart(const Job& job, const Slot& slot, uint32_t rank);
  void OnGroupFailed(Member& member, const v1::GroupFailed& failed);
  // Ends the generation: its ranks are released, what it had in hand is given up.
  void Fence(Job& job, Slot& slot, absl::string_view reason, Ending ending);
  void ReleaseMembers(Slot& slot, absl::string_view reason);
  // The run whose place `member` says it holds, if it does; otherwise it is refused.
  Job* Placed(Member& member, const v1::GroupPlace& place);
  // As Placed, for what only rank 0 may say.
  Job* PlacedLead(Member& member, const v1::GroupPlace& place);

  // -- machine_planning.cc: what is measured, predicted, and planned anew
  PlanningQuestion QuestionFor(const Job& job, const std::vector<std::string>& members) const;
  // Of a group that is formed: with the link that it has measured itself.
  PlanningQuestion QuestionFor(const Job& job, const Slot& slot) const;
  // Those of `members`, and whoever else has a place.
  std::map<std::string, int> WorkersByHost(const std::vector<std::string>& members) const;
  // Searched for once in a call, for all groups of the run on such machines. Valid until its end.
  const absl::StatusOr<std::vector<GroupPlan>>& PlansFor(const Job& job,
                                                         const PlanningQuestion& question);
  absl::StatusOr<v1::Plan> PlanGroup(const Job& job, const Slot& slot,
                                     const std::vector<std::string>& members);
  void LearnLink(const Slot& slot);
  // Of the plan that the group obeys, unless that is done already.
  void PredictGroup(const Job& job, Slot& slot);
  void OnMeasured(Member& member, const v1::Measured& measured);
  // Files the times of the run's layers, and nothing else that is told.
  void LearnTimes(const Job& job, const Member& member, v1::Measured measured);
  // Looks for a better plan than the group's, unless that is done since it measured last.
  void ConsiderPlan(const Job& job, Slot& slot);
  bool ReplanInstead(Job& job, Slot& slot);
  // Whether the members could make the same group again if they were released now: all are there,
  // and no earlier group waits for workers.
  bool ComesBack(const Job& job, const Slot& slot) const;

  // -- machine_round.cc: contributions and commits
  void OnProgress(Member& member, const v1::Progress& progress);
  void OnContributed(Member& member, const v1::Contributed& contributed);
  void OnAveraged(Job& job, Slot& slot, const v1::Contributed& contributed);
  void OnBoundary(Job& job, Slot& slot, const v1::Contributed& contributed);
  // Empty: fits. Otherwise why the contribution is malformed.
  static std::string CheckContributed(const Job& job, const v1::Contributed& contributed);
  void RefuseContribution(Job& job, Slot& slot, const v1::Contributed& contributed,
                          v1::Refusal refusal);
  void CountBytes(Job& job, const v1::Contributed& contributed);
  void MaybeClose(Job& job);
  void SendApply(const Job& job, uint32_t shard);
  void OnApplied(Member& member, const v1::Applied& applied);
  void FinishCommit(Job& job);
  void RecordVersion(Job& job, const v1::CommitRecord& commit);
  void SendDecision(Job& job, Slot& slot, uint32_t round);
  bool GrowInstead(Job& job, Slot& slot);
  void OnAdopted(Member& member, const v1::Adopted& adopted);

  // -- machine_evaluation.cc
  void BeginEvaluation(Job& job, const std::vector<uint32_t>& groups);
  void OnEvaluated(Member& member, const v1::Evaluated& evaluated);
  void FinishEvaluation(Job& job);
  void HandOutParts(Job& job);
  // A part given to a group that waits at the end answers nothing that the group would say again.
  void RepeatPart(Job& job, Slot& slot);

  // -- machine_trace.cc: traces of a group's next steps; nothing of it is durable
  void OnTraceGroup(const TraceGroup& request);
  absl::StatusOr<Slot*> FindTraced(const TraceGroup& request);
  void OnLeaveTrace(const LeaveTrace& leave);
  void OnTraced(Member& member, const v1::Traced& traced);
  void SendTraceSteps(const Slot& slot, uint32_t rank);
  // The group is over: so is the trace that it was at, if any.
  void AbortTrace(Slot& slot, absl::string_view reason);

  // -- machine_status.cc
  void FillCoordinator(absl::Time now, v1::StatusReply& reply) const;
  v1::RunStatus RunStatusOf(const Job& job, absl::Time now) const;
  void FillTimes(const Job& job, absl::Time now, v1::RunStatus& status) const;
  v1::GroupStatus GroupStatusOf(const Job& job, const Slot& slot) const;
  static void FillPrediction(const Slot& slot, v1::GroupStatus& status);
  static v1::GroupState StateOf(const Job& job, const Slot& slot);
  v1::MemberStatus MemberStatusOf(const Member& member, absl::Time now) const;
  v1::AggregatorStatus AggregatorStatusOf(const Member& member, absl::Time now) const;
  std::string WorkersWaitedFor(const Job& job) const;
  std::string WhyWaiting(const Job& job) const;

  void Count(absl::string_view name, uint64_t amount = 1);
  void Save(const Job& job);
  void Save(const Slot& slot);
  void Save(const Member& member);

  const Options options_;
  // Time of the call under way, and its actions so far.
  absl::Time now_ = absl::InfinitePast();
  Outbox out_;

  v1::MetaRecord meta_;
  bool meta_changed_ = false;
  // Traces since the start.
  uint32_t last_trace_ = 0;
  absl::Time started_ = absl::InfinitePast();
  Membership members_;
  Measurements measurements_;
  // Of the call under way: what was searched for, by run and machine, and whether a better plan for
  // a group was looked for.
  std::map<std::string, absl::StatusOr<std::vector<GroupPlan>>> searched_;
  bool considered_ = false;
  // By run number, that is, in the order of submission.
  std::map<uint32_t, Job> jobs_;
};

}  // namespace cadre
