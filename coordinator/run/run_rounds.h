// The rounds of a run: contributions, commits and decisions (run_rounds.cc describes the protocol).
// Changes the fields of RunRecord of the newest version (version, step, samples, loss, metrics,
// digest, division, discrepancy, outer, residual), of the open round, of scaling and of traffic.
//
// Owns the open round, the newest commits and the versions that are kept. In the slots it
// changes what groups report about rounds, and what is decided about them. Pure and
// thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "coordinator/cluster/cluster.h"
#include "coordinator/events/options.h"
#include "coordinator/run/commits.h"
#include "coordinator/run/history.h"
#include "coordinator/run/identical_batches.h"
#include "coordinator/run/round.h"
#include "coordinator/run/round_screening.h"
#include "coordinator/run/run_evaluation.h"
#include "coordinator/run/run_traffic.h"
#include "coordinator/run/run_versions.h"
#include "coordinator/run/slots.h"
#include "coordinator/run/stored_run.h"
#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/records.pb.h"

namespace cadre {

class RunView;

class RunRounds {
 public:
  // All are borrowed.
  RunRounds(const RunView& run, StoredRun& stored, Slots& slots, RunEvaluation& evaluation,
            History& history, Cluster& cluster, const CoordinatorOptions& options);

  const Round& round() const { return round_; }
  const Commits& commits() const { return commits_; }
  // Traffic that the record does not include yet.
  const RunTraffic& traffic() const { return traffic_; }
  const RunVersions& versions() const { return versions_; }
  RunVersions& versions() { return versions_; }
  RoundScreening& screening() { return screening_; }
  // The step at which the group contributes next, by its speed among the groups.
  uint32_t BoundaryOf(const Slot& slot) const;
  // Start.agree_steps.
  uint32_t AgreeStepsOf(const Slot& slot) const;
  // Groups that wait for a version that will not be restored: they are not awaited, and released
  // when the round closes.
  std::vector<uint32_t> LeftOut() const;

  // ---- Restoring
  // Loads the newest commits from the store. Errors: DataLoss.
  absl::Status Load(const std::map<std::string, std::string>& records);
  // Loads the contributions of groups that have left to the open round.
  void RestoreContributions();
  // Stores a commit that was rebuilt from the reports of aggregators.
  void Adopt(const v1::CommitRecord& commit);
  // Begins the open round again, without contributions.
  void Reopen();
  // The run has ended: nothing is applied any more.
  void Abandon() { commits_.Abandon(); }
  void RecordTraffic();

  // ---- Contributions. Require: the group is started.
  // In a run that averages, a contribution is then answered. Errors: InvalidArgument, with the
  // number that it claims and the bound, if it is not possible; its generation must end, because a
  // generation contributes to a round at most once.
  absl::Status OnContributed(const v1::Contributed& contributed);
  // In a run that never averages, the group has reached a boundary. Returns whether it is a new
  // one.
  bool RecordStep(const v1::Contributed& contributed);
  // Adds the present version to the history, and the traffic to the record.
  void Record(const v1::CommitRecord& commit);
  // Errors: DataLoss if the group has adopted other values than those committed.
  absl::Status OnAdopted(const v1::Adopted& adopted);
  // The answer to a contribution, or to a group that has finished its part of an evaluation.
  void SendDecision(Slot& slot, uint32_t round);
  // The answers to these groups, which adopt the newest version; stores the run's record once.
  void SendDecisions(const std::vector<uint32_t>& groups);
  // Requests contributions from groups that catch up, once only these are missing.
  void NudgeGroups(const Round::Away& away);
  // The group's generation has ended, or all have.
  void EndGroup(uint32_t group);
  void EndGroups() { versions_.EndLoading(); }
  // The shard has lost what was staged: forgets the contributions of groups that have left.
  void LoseContributions(uint32_t shard);

  // ---- Commits
  bool MayClose(const Round::Away& away) const;
  // Closes the round: its commit is to be applied.
  void Close(const Round::Away& away);
  // A shard has applied the closing commit. Returns whether all have. Requires:
  // commits().closing().
  bool OnApplied(const v1::Applied& applied);
  // What the shard has made of the closing commit is lost. Requires: commits().closing().
  void Revoke(uint32_t shard);
  // The closing commit becomes the newest. Requires: all shards have applied it.
  void Commit();
  // Version 0 has these digests.
  void SetInitial(v1::CommitRecord commit);
  // The run has so many groups from the next version on. Errors: FailedPrecondition,
  // InvalidArgument.
  absl::Status Scale(uint32_t groups);
  // The commit of the rollback that was ordered is to be applied. Requires: no round is closing,
  // and the version is kept.
  void RollBack();

 private:
  void OnAveraged(Slot& slot, const v1::Contributed& contributed);
  // Stores a contribution of a group that leaves.
  void Keep(const v1::Contributed& contributed, uint32_t ranks);
  void Refuse(Slot& slot, const v1::Contributed& contributed, v1::Refusal refusal);
  void RecordVersion(const v1::CommitRecord& finished);
  // Once for a run.
  void WarnOfIdenticalBatches(const v1::CommitRecord& commit);

  const RunView& run_;
  StoredRun& stored_;
  v1::RunRecord& record_;
  Slots& slots_;
  RunEvaluation& evaluation_;
  History& history_;
  Cluster& cluster_;
  const CoordinatorOptions& options_;
  Round round_;
  Commits commits_;
  RunVersions versions_;
  RoundScreening screening_;
  IdenticalBatches identical_batches_;
  RunTraffic traffic_;
  // Step time of the fastest group at the newest commit; 0: unknown.
  double fastest_step_seconds_ = 0;
};

}  // namespace cadre
