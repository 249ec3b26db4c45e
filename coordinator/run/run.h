// One run: its record, its groups, its rounds, its shards and its evaluation, from Submit to its
// end. A Run handles the events that concern it and does, in Form and Advance, what they have made
// possible.
//
//   run.cc             life: creation, end, settling, deadlines
//   run_groups.cc      forming, starting and fencing of generations
//   run_attribution.cc who caused a failure, and what follows
//   run_planning.cc    measurements, changes of plans, growth
//   run_shards.cc      the aggregators
//   run_restore.cc     lost shards, parked and adopted runs
//   run_behind.cc      a record that is older than the values on the aggregators
//   run_round.cc       contributions, commits, decisions
//   run_scaling.cc     changes of the number of groups
//   run_evaluation.cc  parts of the test split, the last checkpoint
//   run_trace.cc       traces of a group's next steps
//   run_status.cc      the status
//
// Pure and thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/cluster/cluster.h"
#include "coordinator/cluster/failure_reports.h"
#include "coordinator/events/deadlines.h"
#include "coordinator/events/events.h"
#include "coordinator/events/options.h"
#include "coordinator/run/adoption.h"
#include "coordinator/run/checkpoints.h"
#include "coordinator/run/commits.h"
#include "coordinator/run/group_planner.h"
#include "coordinator/run/history.h"
#include "coordinator/run/identical_batches.h"
#include "coordinator/run/round.h"
#include "coordinator/run/run_failures.h"
#include "coordinator/run/run_rules.h"
#include "coordinator/run/shards.h"
#include "coordinator/run/slots.h"
#include "coordinator/store/keys.h"
#include "proto/cadre/v1/control.pb.h"
#include "proto/cadre/v1/records.pb.h"

namespace cadre {

// The cause of a planned release, which is not a failure.
inline constexpr v1::FailureCause kReleased = v1::FAILURE_CAUSE_UNSPECIFIED;

// What a run uses of the rest of the coordinator: members, messages, records, counters and the time
// of the call; plans; limits. Borrowed.
struct RunContext {
  Cluster& cluster;
  GroupPlanner& planner;
  const CoordinatorOptions& options;
};

class Run {
 public:
  // The context must outlive the run.
  Run(const v1::RunRecord& record, const RunContext& context);
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  const v1::RunRecord& record() const { return record_; }
  const std::string& id() const { return record_.run(); }
  const v1::RunSpec& spec() const { return record_.spec(); }
  uint32_t number() const { return RunNumber(id()); }
  bool live() const { return IsLive(record_.state()); }
  bool parked() const { return record_.state() == v1::RUN_STATE_PARKED; }
  // Whether it forms groups and uses its shards.
  bool active() const { return live() && !parked() && !behind(); }
  // Whether the reservation names this run, by its id or its name.
  bool IsReserved(const v1::Reservation& reservation) const;
  // Reports the end of the run to a worker with a reservation for it.
  void SendRunEnded(const Member& worker) const;
  // Reports to a worker with a reservation that it no longer takes part in the run.
  void SendEnded(const Member& worker, bool done, absl::string_view reason) const;
  // Whether its record is older than the values on its aggregators.
  bool behind() const { return live() && behind_.has_value(); }

  // ---- Restoring, after a restart
  // Loads the groups and the newest commits of the run. Errors: DataLoss.
  absl::Status Load(const std::map<std::string, std::string>& records);
  // Members keep their ranks: all of them have new leases, so they can return.
  void PlaceMembers();

  // ---- Events
  void Submit() {
    SaveSpec();
    Save();
  }
  void Stop(absl::string_view reason);
  // Errors: FailedPrecondition, InvalidArgument.
  absl::Status Scale(uint32_t groups);
  // Continues a parked run. Errors: FailedPrecondition if it is not parked.
  absl::Status Resume();
  // The run was rebuilt from the reports of its aggregators: stores it and opens its shards.
  void Adopt(const v1::CommitRecord& newest, const std::optional<v1::CommitRecord>& closing);
  // Requires: a message that names a rank of this run which the member holds.
  void OnWorkerMessage(Member& member, const v1::MemberMessage& message);
  // The generation may have ended already.
  void OnGroupFailed(const Member& member, const v1::GroupFailed& failed);
  // A message of a rank was refused. Requires: the member holds a rank of this run.
  void FailRefused(const Member& member, const std::string& reason);
  // The member holds a rank of this run. Returns whether the run must be settled.
  bool OnHeartbeat(const Member& member, const v1::Heartbeat& heartbeat);
  // The worker holds a rank. `agrees`: it claims that rank.
  void OnWorkerRejoined(const Member& member, bool agrees);
  // The stream of a worker that holds this rank has ended, or the worker was removed.
  void OnWorkerClosed(const Member& member);
  void OnWorkerLost(const v1::RankSlot& place, absl::string_view reason, v1::FailureCause cause);
  // A program with a training loop of its own has ended the loop, and its group has ended.
  void OnLoopEnded();
  void OnAggregatorMessage(const Member& member, const v1::MemberMessage& message);
  // Something has gone wrong although the run goes on. Returns false for a repetition.
  bool AddWarning(const std::string& text);
  // An aggregator has not carried out an order for this run.
  void OnDelayedOrder(const Member& member, const v1::DelayedOrder& delayed);
  void OnAggregatorJoined(const Member& member, bool address_changed);
  // The stream of the aggregator has ended, or its lease.
  void OnAggregatorLost(const std::string& name) {
    shards_.Close(name);
    if (behind()) behind_->reports.erase(name);
  }
  // Whether the state that an aggregator has shows that the record is older.
  bool IsLater(absl::string_view aggregator, const v1::ShardState& shard) const;
  // The record is older than the values, which have this version: ends the groups, and requests
  // reports.
  void FallBehind(uint32_t version);
  void RequestReport(const Member& aggregator) const;
  // Returns the run that is to replace this one, once the reports amount to one. Ends the run if it
  // had ended. Ignored unless the run is behind.
  std::optional<RebuiltRun> OnReport(const std::string& aggregator, const v1::RunReport& report);
  // Ends all generations.
  void FenceAll(absl::string_view reason);
  void SendCloseRun(const Member& aggregator) const;
  // Errors: InvalidArgument, NotFound, FailedPrecondition, ResourceExhausted.
  absl::Status StartTrace(const TraceGroup& request, uint64_t number);
  void CancelTrace(RequestId request);

  // ---- Settling. Runs are visited in order of submission.
  // Whether the run waits for workers or aggregators.
  bool waits() const { return active() && (!slots_.waiting().empty() || chooses_shards()); }
  // Forms groups from the idle workers, and takes those that it uses or reserves from `idle`.
  // Returns false if too few aggregators are connected: the run then takes nothing and cannot
  // advance.
  bool Form(std::vector<std::string>& idle);
  // Judges failures, starts prepared groups, closes the round, assigns parts of the evaluation.
  void Advance();
  // Sends the aggregators the generations that have changed. Called at the end of every event that
  // concerns the run.
  void SendFences();
  // The next time at which Form or Advance has work without an event; InfiniteFuture if none.
  absl::Time NextDeadline() const;

  // ---- Status
  v1::RunStatus Status(absl::Time now) const;
  // `details`: also the plan, and what every rank holds.
  v1::GroupStatus StatusOf(const Slot& slot, bool details) const;
  // What the run waits for besides workers, for a program that has joined; empty if that is nothing
  // that is known. Unlike the status, it takes no time that grows with the number of workers.
  std::string WaitReasonForPrograms() const;
  // Changes with every change of the status, except elapsed times.
  uint64_t revision() const { return revision_; }
  void Touch() { ++revision_; }
  const Slots& slots() const { return slots_; }
  const Shards& shards() const { return shards_; }
  const History& history() const { return history_; }
  // Adds the shards that the aggregator stores for this run.
  void FillShards(const Member& aggregator, v1::AggregatorStatus& status) const;

 private:
  bool averages() const { return Averages(spec()); }
  // Whether the shards are applying a closed round.
  bool committing() const { return commits_.closing().has_value(); }
  // Whether all shards are open on connected aggregators, or the run has none.
  bool shards_open() const {
    return !averages() || (shards_.AllOpen() && commits_.newest().has_value());
  }
  // Whether the group's current generation contributed to the newest commit.
  bool InNewest(const Slot& slot) const {
    return commits_.InNewest(slot.group(), slot.record().generation());
  }
  void Save();
  void SaveSpec();
  void Save(const Slot& slot);
  // Stores the slot after its state has changed.
  void Moved(const Slot& slot);
  // Reports to the cluster how many workers the run waits for.
  void UpdateDemand();
  // Refuses a report of rank 0, and the rank with it, whose loss or metrics are not valid.
  template <typename Report>
  bool RefuseReport(const Member& member, const Report& report);
  void OnProgress(const v1::Progress& progress);
  void End(v1::RunState state, absl::string_view reason);
  // Releases all members and clears all slots.
  void Disband(absl::string_view reason);

  // -- run_groups.cc
  bool NeedsGroup(const Slot& slot) const;
  void ReserveFor(std::vector<std::string>& idle) const;
  std::vector<std::vector<std::string>> GroupByDevice(const std::vector<std::string>& idle) const;
  // Groups of programs that have a training loop of their own (Reservation).
  std::vector<std::vector<std::string>> ProgramsIn(const std::vector<std::string>& idle) const;
  bool FormOfProgram(Slot& slot, std::vector<std::string>& idle);
  static bool HasOwnLoop(const Slot& slot) { return slot.record().plan().own_loop(); }
  // Whether the group can evaluate: its ranks know the model's layers, or the programs of the run
  // do it themselves.
  bool ProgramsEvaluate() const { return spec().model().opaque().test_samples() > 0; }
  bool Evaluates(const Slot& slot) const { return !HasOwnLoop(slot) || ProgramsEvaluate(); }
  // From when the slot may form a group of less than full size.
  absl::Time ShrinksAt(const Slot& slot) const;
  bool FormSlot(Slot& slot, std::vector<std::string>& idle);
  void FormGeneration(Slot& slot, const std::vector<std::string>& members, const v1::Plan& plan);
  void Rewind();
  void SendAssignment(const Slot& slot, uint32_t rank);
  void OnPrepared(const Member& member, const v1::Prepared& prepared);
  // Numbers of training and of test samples.
  using DataSizes = std::pair<uint64_t, uint64_t>;
  static DataSizes SizesOf(const v1::Prepared& prepared) {
    return {prepared.train_samples(), prepared.test_samples()};
  }
  // The run has the data that the rank sees.
  void RecordData(const v1::Prepared& prepared);
  // Whether the run has the data that the rank sees, also if it changes to it.
  bool AgreesOnData(const Member& member, const v1::Prepared& prepared);
  // Whether most hosts have the data of the run, or hosts that have not reported theirs may
  // have it. False after the first start.
  bool MayAgreeOnData() const;
  // Number of hosts that have seen data of these sizes.
  size_t CountHostsWith(const DataSizes& sizes) const;
  bool HasStarted() const { return record_.version() > 0 || !slots_.started().empty(); }
  // Fails the groups that are being prepared with ranks that see data of these sizes.
  void FailOutvoted(const DataSizes& sizes);
  // The rank sees other data than the run has.
  void FailForData(const Member& member, const v1::Prepared& prepared);
  // The rank is prepared, and its data is that of the run.
  void Prepare(const Member& member, const v1::Prepared& prepared);
  // Checks the plan that rank 0 reports, if any.
  absl::Status CheckReportedPlan(const Slot& slot, const v1::Prepared& prepared) const;
  // Whether prepared groups wait for one that has read the data: programs need not know it, but the
  // length of the run depends on it.
  bool AwaitsData() const;
  void MaybeStart();
  void StartGroup(Slot& slot, bool catches_up);
  // Whether the shards do not store the version any more that the group starts from, and the group
  // has not adopted another one.
  bool HasObsoleteStart(const Slot& slot) const;
  void SendStart(const Slot& slot, uint32_t rank);
  // Ends the generation: releases its ranks and discards its contribution and its evaluation part.
  void Fence(Slot& slot, absl::string_view reason, v1::FailureCause cause);
  void ReleaseMembers(Slot& slot, absl::string_view reason);

  // -- run_attribution.cc
  // The member has shown by a message that its group cannot continue.
  void FailGroup(const Member& member, const v1::RankSlot& place, v1::FailureCause cause,
                 const std::string& reason);
  // Records one of the reports of a generation.
  void Attribute(const Member& member, const v1::GroupFailed& failed,
                 const FailureReports& reports);
  // Records the suspects of generations about which all reports have arrived.
  void JudgeReports();
  // Number of hosts with connected workers that could serve the run.
  size_t CountHosts() const;
  // The group's generation is included in a commit.
  void RecordSuccess(Slot& slot);
  void FenceStalled(Slot& slot, const ProgressWatch::Stall& stall);
  // Whether a program's own loop has made no progress for longer than a round awaits it.
  bool HasPaused(const Slot& slot) const;

  // -- run_planning.cc
  void OnMeasured(const Member& member, const v1::Measured& measured);
  // Whether a faster plan could be worth the release of the group.
  bool MayGain(const Slot& slot) const;
  bool MaybeReplan(Slot& slot);
  // Whether the same members would form the group again after a release: all are connected, and no
  // earlier group waits for workers.
  bool CanReform(const Slot& slot) const;
  bool MaybeGrow(Slot& slot);
  // Device kind of the slot's group; unspecified once its first rank is removed.
  v1::Cluster::Device DeviceKindOf(const Slot& slot) const;

  // -- run_shards.cc
  bool chooses_shards() const { return averages() && record_.state() == v1::RUN_STATE_QUEUED; }
  bool ChooseShards(size_t idle_workers);
  bool LostShardBeforeStart() const;
  void OnRunOpened(const Member& member, const v1::RunOpened& opened);
  // Empty if the shard's version matches the run's; otherwise how it was lost.
  std::string CheckOpened(const Member& member, const v1::RunOpened& opened) const;
  void RecordInitialModel();
  // The lowest generation of the slot that aggregators accept.
  uint32_t LowestGeneration(const Slot& slot) const;
  // Requires: the slot has a generation.
  std::string KeyOf(const Slot& slot) const { return cluster_.KeyOf(slot.record().generation()); }
  // `hollow`: the shard discards what it holds and is hollow at this version.
  void SendOpenRun(uint32_t shard, std::optional<uint32_t> hollow = std::nullopt);
  // The lowest generation of the slot that aggregators accept has changed.
  void AddFence(const Slot& slot) { fences_[slot.group()] = LowestGeneration(slot); }
  void SendToShard(uint32_t shard, const v1::CoordinatorMessage& message);
  void SendShardAddresses(absl::string_view member_id);
  // The addresses of all shards, since the number of shards decides what each of them stores.
  std::vector<v1::ShardAddress> Addresses() const;

  // -- run_restore.cc
  void RestoreShards();
  ShardRestore::View RestoreView() const;
  // The shard has answered an OpenRun of RestoreShards.
  void OnHollow(uint32_t shard, ShardRestore& restore, const v1::RunOpened& opened);
  // Sends the order that makes the version of the attempt. Requires: restore.ready().
  void SendRestoringApply(uint32_t shard, ShardRestore& restore);
  // Handles what concerns lost shards. Returns whether the answer is complete and belongs to a
  // shard that is open.
  bool OnRestoringApplied(const v1::Applied& applied);
  // Whether the attempt uses values of the group.
  bool IsSource(const ShardRestore::Attempt& attempt, uint32_t group) const;
  void RequestValues(uint32_t shard, ShardRestore& restore, uint32_t group);
  void SendRestage(const Slot& slot, uint32_t rank, uint32_t shard, const ShardRestore& restore);
  void ResendRestages(const Slot& slot, uint32_t rank);
  // Groups that wait for a version that will not be restored: they are not awaited, and released
  // when the round closes.
  std::vector<uint32_t> LeftOut() const;
  // Live groups that the round awaits for a short time only, or not at all.
  Round::Away Away() const;
  void Park(uint32_t shard, absl::string_view reason);

  // -- run_round.cc
  void OnContributed(Member& member, const v1::Contributed& contributed);
  // `samples`: those that the metrics describe.
  void AddMetrics(const v1::TrainingMetrics& metrics, uint64_t samples);
  void OnAveraged(Slot& slot, const v1::Contributed& contributed);
  void OnBoundary(Slot& slot, const v1::Contributed& contributed);
  // Whether the contribution is well-formed for this run.
  bool IsValidContribution(const v1::Contributed& contributed) const;
  // Stores a contribution of a group that leaves, or loads those to the open round.
  void KeepContribution(const v1::Contributed& contributed, uint32_t ranks);
  void RestoreContributions();
  // The shard has lost what was staged: forgets the contributions of groups that have left.
  void LoseContributions(uint32_t shard);
  void RefuseContribution(Slot& slot, const v1::Contributed& contributed, v1::Refusal refusal);
  // Counts traffic of the groups, which is stored with the next commit.
  struct Traffic {
    uint64_t payload = 0;
    // Whole messages.
    uint64_t up = 0;
    uint64_t down = 0;
    // Seconds in which groups waited for it, and in which they sent and received it.
    double exposed_seconds = 0;
    double transfer_seconds = 0;
  };
  void Count(const Traffic& traffic);
  void RecordBytes();
  // The group has this version.
  void OnLoaded(uint32_t group, uint32_t version);
  // Whether a group loads the version before the newest, which the next commit would discard.
  bool LoadsOldVersion(const Round::Away& away) const;
  void MaybeClose();
  // Whether the round has the values of one group, with which the run begins.
  bool TakesFirstValues(uint32_t round) const;
  // How the aggregators make the version of the round that is closed.
  void SetRules(v1::CommitRecord& commit) const;
  // Requests contributions from groups that catch up, once only these are missing.
  void NudgeGroups();
  void SendApply(uint32_t shard);
  void OnApplied(const Member& member, const v1::Applied& applied);
  // The step at which the group contributes next, by its speed among the groups.
  uint32_t BoundaryOf(const Slot& slot) const;
  // Start.agree_steps.
  uint32_t AgreeStepsOf(const Slot& slot) const;
  void MeasureSpeeds();
  void FinishCommit();
  // Once for a run.
  void WarnOfIdenticalBatches(const v1::CommitRecord& commit);
  void RecordVersion(const v1::CommitRecord& finished);
  // Adds the present version to the history.
  void AddHistory(const v1::CommitRecord& commit);
  void SendDecision(Slot& slot, uint32_t round);
  void OnAdopted(const v1::Adopted& adopted);

  // -- run_scaling.cc
  // The division of the samples from the next version on, whose step is `step`.
  v1::SampleDivision NextDivision(uint32_t step) const;
  // Adds or removes slots as the division of the samples requires.
  void ResizeSlots();

  // -- run_evaluation.cc
  void BeginEvaluation(std::vector<uint32_t> groups);
  void OnEvaluated(const Member& member, const v1::Evaluated& evaluated);
  void FinishEvaluation();
  // Whether a program still loads the last version.
  bool AwaitsPrograms() const;
  void AssignFreeParts();
  // After a reconnect, sends its part again to a group that has finished training, since no message
  // of the group would request it.
  void ResendPart(Slot& slot);
  void OnCheckpointed(const Member& member, const v1::Checkpointed& report);
  // Whether group 0, or a group 0 of idle workers, may still write the last checkpoint.
  bool AwaitsCheckpoint() const;

  // -- run_trace.cc
  void OnTraced(const Member& member, const v1::Traced& traced);
  void SendTraceSteps(const Slot& slot, uint32_t rank);
  // The generation has ended: ends its trace, if any, with an error.
  void AbortTrace(Slot& slot, absl::string_view reason);

  // -- run_status.cc
  void FillTimes(absl::Time now, v1::RunStatus& status) const;
  v1::GroupState StateOf(const Slot& slot) const;
  // Empty: the run waits for nothing.
  std::string WaitReason() const;
  // nullopt: only workers are missing.
  std::optional<std::string> WaitReasonBesideWorkers() const;
  std::string MissingWorkers() const;
  // Programs for this run that lack ranks; empty if there are none.
  std::string IncompletePrograms() const;
  std::string MissingNativeWorkers() const;
  // The ranks of the group that have lost their streams; empty if there are none.
  std::string DisconnectedRanks(const Slot& slot) const;

  Cluster& cluster_;
  GroupPlanner& planner_;
  const CoordinatorOptions& options_;
  v1::RunRecord record_;
  Slots slots_;
  Round round_;
  Commits commits_;
  Shards shards_;
  Checkpoints checkpoints_;
  History history_;
  IdenticalBatches identical_batches_;
  // The state of the last event about it.
  v1::RunState reported_ = v1::RUN_STATE_UNSPECIFIED;
  // Traffic that the record does not include yet.
  Traffic traffic_;
  uint64_t revision_ = 0;
  // Generations that failed a moment ago, the failures that concern the run since the last commit,
  // what it has shown about its pauses, and the groups that the round awaits for a short time only.
  std::vector<FailureReports> failure_reports_;
  RunFailures failures_;
  Pauses pauses_;
  Round::Away away_;
  // Groups whose last heartbeats have shown that they pause (HasPaused).
  std::set<uint32_t> paused_;
  // Versions that groups have been ordered to load and have not reported. Aggregators keep the
  // newest version and the one before.
  std::map<uint32_t, uint32_t> loading_;
  // Groups whose lowest accepted generation has changed in this event. They may have been removed.
  std::map<uint32_t, uint32_t> fences_;
  // While the record is older than the values of the aggregators.
  struct Behind {
    // The newest version that an aggregator had.
    uint32_t version = 0;
    RunReports reports;
    // Why the reports do not amount to the run.
    std::string problem;
  };
  std::optional<Behind> behind_;
  // Parameters of the model, once a status was computed.
  mutable std::optional<uint64_t> parameters_;
  // Step time of the fastest group at the newest commit; 0: unknown.
  double fastest_step_seconds_ = 0;
  // The data that hosts have seen, by host.
  std::map<std::string, DataSizes> data_sizes_;
  // When the first group was prepared, while none has started.
  absl::Time barrier_since_ = absl::InfiniteFuture();
};

}  // namespace cadre
