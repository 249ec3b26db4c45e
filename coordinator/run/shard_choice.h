// The choice of the aggregators of one run (shard_placement.h), from what the members report.
// Changes the fields of RunRecord that name them.
//
// Pure and thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/cluster/cluster.h"
#include "coordinator/run/shard_placement.h"
#include "coordinator/run/shards.h"
#include "coordinator/run/stored_run.h"
#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/records.pb.h"

namespace cadre {

class RunView;

class ShardChoice {
 public:
  // All are borrowed.
  ShardChoice(const RunView& run, StoredRun& stored, Shards& shards, Cluster& cluster)
      : run_(run), stored_(stored), record_(stored.record()), shards_(shards), cluster_(cluster) {}

  // Chooses aggregators for a queued run, once the workers of a group are idle. Returns false if
  // too few aggregators can be used.
  bool Choose(size_t idle_workers);
  // Whether the last call has returned false.
  bool lacking() const { return lacking_; }
  // The aggregators that can be used for the shards, if these are not chosen yet.
  ShardPlacement FindPlacement() const;
  // The aggregator that can take a shard from one that stores it, among those that store nothing of
  // the run.
  ShardPlacement FindReplacement() const;
  // The aggregator had no space for a shard: it is not chosen for some time, unless it reports
  // more.
  void ExcludeFull(const std::string& aggregator);
  // The aggregator has failed to take a shard, and is not chosen for some time.
  void ExcludeFailed(const std::string& aggregator);
  // The aggregator has no space for its shard, although it seemed to have, and the run has no
  // version yet: others are to be chosen. Returns false if the error has another cause.
  bool OnTooLittleSpace(const Member& member, const v1::RunOpened& opened);

 private:
  std::vector<ShardCandidate> Candidates() const;
  bool LostShardBeforeStart() const;
  // The shards are to be chosen again.
  void Unassign();
  int64_t OwnReservation(const Member& member) const;

  const RunView& run_;
  StoredRun& stored_;
  v1::RunRecord& record_;
  Shards& shards_;
  Cluster& cluster_;
  bool lacking_ = false;
  // Aggregators that have refused a shard of this run, or failed to take it: they are not chosen
  // before this time, unless they report more free space than they had reported then.
  struct Refusal {
    int64_t free = 0;
    absl::Time until;
  };
  std::map<std::string, Refusal> refused_;
};

}  // namespace cadre
