// The versions that the aggregators keep, those that groups load, and rollbacks to them. Changes
// the fields of RunRecord of these (kept, loading, rollback, branch, left_out).
//
// Pure and thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/cluster/cluster.h"
#include "coordinator/events/options.h"
#include "coordinator/run/round.h"
#include "coordinator/run/stored_run.h"
#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/records.pb.h"

namespace cadre {

class RunView;

// Longest pause of a group that loads a version, for which the version is kept.
inline constexpr absl::Duration kMaxLoadPause = absl::Seconds(10);

class RunVersions {
 public:
  // All are borrowed.
  RunVersions(const RunView& run, StoredRun& stored, Cluster& cluster,
              const CoordinatorOptions& options)
      : run_(run),
        stored_(stored),
        record_(stored.record()),
        cluster_(cluster),
        options_(options) {}

  // ---- Kept versions
  // Those that all shards keep, the newest first.
  std::vector<uint32_t> Kept() const;
  // Errors: FailedPrecondition, with the versions that are kept, if this one is not.
  absl::Status CheckKept(uint32_t version) const;
  // The record was rebuilt: only its version is known to be stored.
  void Reset();
  // The commit has made a version: what it does not keep is not kept any more.
  void OnCommit(const v1::CommitRecord& commit);
  // What the shard does not store is not kept.
  void OnOpened(const v1::RunOpened& opened);
  void Lose(uint32_t version);
  // A shard has this version and no other.
  void LoseOthers(uint32_t version);
  // Sets what a commit keeps (CommitRecord.keep).
  void SetKeep(const Round::Away& away, v1::CommitRecord& commit) const;

  // ---- Versions that groups have been ordered to load and have not reported
  // By group.
  std::map<uint32_t, uint32_t> loading() const {
    return {record_.loading().begin(), record_.loading().end()};
  }
  bool IsLoading(uint32_t group) const { return record_.loading().contains(group); }
  // Returns whether this is new; the caller then saves the record with the event that orders it.
  bool SetLoading(uint32_t group, uint32_t version);
  // The group has this version. Not stored: it repeats this after a restart of the coordinator.
  void OnLoaded(uint32_t group, uint32_t version);
  // The group has ended, or all have. Not stored either: a stored order of a group that is not
  // started has no effect.
  void EndLoading(uint32_t group) { record_.mutable_loading()->erase(group); }
  void EndLoading() { record_.clear_loading(); }
  // Those that the next commit would discard, by group.
  std::map<uint32_t, uint32_t> LoadsThatEnd(const Round::Away& away) const;
  // Until when a round that could close waits for such groups: for the grace window. InfinitePast:
  // there are none.
  absl::Time AwaitsLoadsUntil(const Round::Away& away) const;

  // ---- Rollbacks
  // Whether the run may be rolled back to the version, without these groups. Errors:
  // FailedPrecondition, InvalidArgument.
  absl::Status CheckRollback(uint32_t version, const std::vector<uint32_t>& leave_out) const;
  // The run is to be rolled back. The caller saves the record. Requires: CheckRollback.
  void OrderRollback(uint32_t version, const std::vector<uint32_t>& leave_out);
  // The commit of the rollback that was ordered, which is no longer pending. Requires: no round is
  // closing, no group is left, and the version is kept.
  v1::CommitRecord TakeRollback();

 private:
  // Without those of groups that are not awaited.
  std::map<uint32_t, uint32_t> Loads(const Round::Away& away) const;
  void EraseCommit(uint32_t version);
  absl::Status CheckLeftOut(const std::vector<uint32_t>& groups) const;

  const RunView& run_;
  StoredRun& stored_;
  v1::RunRecord& record_;
  Cluster& cluster_;
  const CoordinatorOptions& options_;
};

}  // namespace cadre
