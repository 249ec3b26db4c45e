// One run: its record, its groups, its rounds, its aggregators and its evaluation, from Submit to
// its end. A Run routes the events that concern it to its parts and does, in Form and Advance, what
// they have made possible. A part changes only its own state; it knows the others by the view of
// the run, and returns what else has to be done.
//
//   stored_run      the record, and its copy in the store
//   slots, traces   the state of the groups; traces of their next steps
//   run_evaluation  parts of the test split, the last checkpoint
//   run_versions    the versions that are kept, rollbacks
//   run_rounds      contributions, commits, decisions
//   aggregators     the shards, the restoring of lost ones, and their copies
//   run_groups      forming, starting and ending of generations, changes of plans, growth
//   attribution     who caused a failure, and what follows; stalls
//   data_agreement  the data, by the numbers of samples that hosts see
//   stale_record    a record that is older than the values on the aggregators
//   run_parking     parking, resuming and rolling back
//   obligations     what members owe the run, and for how long
//   run_view        what the parts see of one another
//   run_status      what the state machine sees
//
// Each part may use those above it. Pure and thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/cluster/cluster.h"
#include "coordinator/events/events.h"
#include "coordinator/run/adoption.h"
#include "coordinator/run/aggregators.h"
#include "coordinator/run/attribution.h"
#include "coordinator/run/data_agreement.h"
#include "coordinator/run/data_sizes.h"
#include "coordinator/run/history.h"
#include "coordinator/run/run_context.h"
#include "coordinator/run/run_evaluation.h"
#include "coordinator/run/run_groups.h"
#include "coordinator/run/run_obligations.h"
#include "coordinator/run/run_parking.h"
#include "coordinator/run/run_rounds.h"
#include "coordinator/run/run_status.h"
#include "coordinator/run/slots.h"
#include "coordinator/run/stale_record.h"
#include "coordinator/run/stored_run.h"
#include "coordinator/run/traces.h"
#include "proto/cadre/v1/control.pb.h"
#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/records.pb.h"

namespace cadre {

class Run final : public RunWithStatus {
 public:
  // The context must outlive the run.
  Run(const v1::RunRecord& record, const RunContext& context);

  // ---- Restoring, after a restart
  // Loads the groups and the newest commits of the run. Errors: DataLoss.
  absl::Status Load(const std::map<std::string, std::string>& records);

  // ---- Events
  void Submit() {
    stored_.SaveSpec();
    stored_.Save();
  }
  void Stop(absl::string_view reason);
  // Errors: FailedPrecondition, InvalidArgument.
  absl::Status Scale(uint32_t groups) { return rounds_.Scale(groups); }
  // Continues a parked run. Errors: FailedPrecondition if it is not parked.
  absl::Status Resume();
  // Continues with a copy of the version, without these groups. Errors: FailedPrecondition,
  // InvalidArgument.
  absl::Status RollBack(uint32_t version, const std::vector<uint32_t>& leave_out);
  // The run was rebuilt from the reports of its aggregators: stores it and opens its shards.
  void Adopt(const v1::CommitRecord& newest, const std::optional<v1::CommitRecord>& closing);
  // Requires: a message that names a rank of this run which the member holds.
  void OnWorkerMessage(Member& member, const v1::MemberMessage& message);
  // For events that concern its groups only.
  RunGroups& groups() { return groups_; }
  // The generation may have ended already.
  void OnGroupFailed(const Member& member, const v1::GroupFailed& failed);
  // A message of a rank was refused. Requires: the member holds a rank of this run.
  void FailRefused(const Member& member, const std::string& reason);
  // The member holds a rank of this run. Returns whether the run must be settled.
  bool OnHeartbeat(const Member& member, const v1::Heartbeat& heartbeat) {
    return attribution_.OnHeartbeat(member, heartbeat);
  }
  // The stream of a worker that holds this rank has ended, or the worker was removed.
  void OnWorkerClosed(const Member& member) { groups_.OnClosed(member); }
  void OnWorkerLost(const v1::RankSlot& place, absl::string_view reason, v1::FailureCause cause) {
    groups_.Fence(slots_[place.group()], reason, cause);
  }
  // A program with a training loop of its own has ended the loop, and its group has ended.
  void OnLoopEnded();
  void OnAggregatorMessage(const Member& member, const v1::MemberMessage& message);
  // For warnings, and the deletion of a run that has ended.
  StoredRun& stored() { return stored_; }
  // An aggregator has not carried out an order for this run.
  void OnDelayedOrder(const Member& member, const v1::DelayedOrder& delayed);
  void OnAggregatorJoined(const Member& member, const v1::Hello& hello);
  // The stream of the aggregator has ended, or its lease.
  void OnAggregatorLost(const std::string& name);
  // The record is older than the values, which have this version: ends the groups, and requests
  // reports.
  void FallBehind(uint32_t version);
  // Returns the run that is to replace this one, once the reports amount to one. Ends the run if it
  // had ended. Ignored unless the run is behind.
  std::optional<RebuiltRun> OnReport(const std::string& aggregator, const v1::RunReport& report);
  Traces& traces() { return traces_; }

  // ---- Settling. Runs are visited in the order of the queue (coordinator/cluster/run_queue.h).
  // Forms at most `formations` groups from the idle workers, which it reduces, and takes those that
  // it uses or reserves from `idle`. Returns false if too few aggregators can be used: the run then
  // takes nothing and cannot advance.
  bool Form(std::vector<std::string>& idle, int& formations);
  // Judges failures, starts prepared groups, closes the round, assigns parts of the evaluation.
  void Advance();
  // Sends the aggregators the generations that have changed, and reports what members owe the run
  // and is late. Called when the run is settled, and no groups are left to form.
  void EndEvent() {
    aggregators_.orders().SendFences();
    obligations_.Update();
  }
  // The next time at which Form or Advance has work without an event; InfiniteFuture if none.
  absl::Time NextDeadline() const;

  // Changes with every change of the status, except elapsed times.
  uint64_t revision() const { return revision_; }
  void Touch() { ++revision_; }

 private:
  void OnContributed(const Member& member, const v1::Contributed& contributed);
  // The group has reported of a version. `values`: DataLoss if they are not those committed.
  void OnValues(uint32_t group, const absl::Status& values);
  void OnRunOpened(const Member& member, const v1::RunOpened& opened);
  void OnApplied(const Member& member, const v1::Applied& applied);
  // Finishes the closing commit unless copies are awaited. Requires: all shards have applied it.
  void FinishCommit();
  // Ends the evaluation, and the run if the stop rule is met.
  void FinishEvaluation();
  // Ends the run if there is a reason why it fails.
  void Fail(const std::optional<std::string>& reason);
  void End(v1::RunState state, absl::string_view reason);

  Cluster& cluster_;
  StoredRun stored_;
  History history_;
  Slots slots_;
  Traces traces_;
  RunEvaluation evaluation_;
  RunRounds rounds_;
  Aggregators aggregators_;
  RunGroups groups_;
  DataSizes data_sizes_;
  Attribution attribution_;
  DataAgreement data_;
  RunParking parking_;
  StaleRecord stale_;
  RunObligations obligations_;
  uint64_t revision_ = 0;
};

}  // namespace cadre
