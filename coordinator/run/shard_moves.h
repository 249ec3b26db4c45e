// The move of shards of one run from aggregators that are drained to others, one shard at a time
// (shard_moves.cc describes the protocol). Changes the fields of RunRecord of these (move, leaving,
// and `shards` when a move is complete).
//
// Pure and thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/cluster/cluster.h"
#include "coordinator/run/copy_orders.h"
#include "coordinator/run/run_versions.h"
#include "coordinator/run/shard_choice.h"
#include "coordinator/run/shard_copies.h"
#include "coordinator/run/shard_directory.h"
#include "coordinator/run/shard_orders.h"
#include "coordinator/run/shards.h"
#include "coordinator/run/stored_run.h"
#include "proto/cadre/v1/control.pb.h"
#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/records.pb.h"

namespace cadre {

class RunView;

class ShardMoves {
 public:
  // What a move uses and changes. Borrowed.
  struct Parts {
    Shards& shards;
    ShardChoice& choice;
    CopyOrders& copies;
    ShardOrders& orders;
    const ShardDirectory& directory;
    const RunVersions& versions;
  };
  // All are borrowed.
  ShardMoves(const RunView& run, StoredRun& stored, const Parts& parts, Cluster& cluster)
      : run_(run), stored_(stored), record_(stored.record()), parts_(parts), cluster_(cluster) {}

  // Begins a move if an aggregator is drained, continues it, or undoes it. Requires: the run is
  // active.
  void Advance();
  // Orders the target to fetch the closing version, once all shards have applied it, or, while no
  // group trains, the newest one.
  void Send();
  // Until when the commit of the closing version waits for the target; InfinitePast: it does not.
  absl::Time AwaitedUntil() const;
  // What the commit waits for; empty if it does not wait.
  std::string WaitReason() const;
  // If the target has the newest version, the shard is there from now on: the record names it.
  // Returns the shard. Requires: no group has begun to contribute to the open round.
  struct Moved {
    uint32_t shard = 0;
    std::string from;
  };
  std::optional<Moved> Complete();
  // The aggregators with these names are connected, but do not carry out their orders. A shard of
  // one of them that has a copy is lost there, and is to be restored on another aggregator, which
  // the record names from now on. Returns the shard.
  std::optional<Moved> Replace(const std::set<std::string>& hung);
  // Whether no group trains, so that the newest version remains the newest one.
  bool Idle() const;

  // The answers of the target. They return false if the member is not the target.
  bool OnOpened(const Member& member, const v1::RunOpened& opened);
  bool OnApplied(const Member& member, const v1::Applied& applied);
  // The aggregator of this name is disconnected.
  void Close(absl::string_view name);
  // What the target has is not known any more.
  void Reset() { at_target_ = AtTarget(); }
  // The run has ended, or its record is replaced: the move is undone.
  void End();

  // ---- Aggregators that a shard has left, or to which a move was undone
  bool IsLeaving(absl::string_view name) const;
  // The aggregator has removed them.
  void OnRemoved(absl::string_view name);

  // Whether a shard is to move, and no aggregator can take it.
  bool lacks_target() const { return !lacking_.empty(); }
  // The aggregator that is awaited by a commit; empty: none is.
  const std::string& target() const { return record_.move().to(); }
  bool IsAwaited() const { return AwaitedUntil() > cluster_.now(); }
  // Adds the shards of this run that move from the aggregator.
  void FillStatus(const Member& aggregator, v1::AggregatorStatus& status) const;

 private:
  using Version = ShardCopies::Version;
  // What the target has on its present stream.
  struct AtTarget {
    // The version at which it was ordered to be hollow, and at which it is.
    std::optional<uint32_t> ordered;
    std::optional<uint32_t> hollow;
    // The version that it was ordered to fetch, and that it has fetched.
    std::optional<Version> copying;
    std::optional<Version> copied;
  };

  const std::string& SourceOf(uint32_t shard) const {
    return record_.shards(static_cast<int>(shard));
  }
  bool IsTarget(const Member& member, uint32_t shard) const {
    return record_.has_move() && member.record.name() == target() &&
           record_.move().shard() == shard;
  }
  void Begin();
  // Why the move that has begun cannot go on; empty if it can.
  std::string WhyUndone() const;
  // The target removes what it has, and is not chosen again for some time.
  void Undo(absl::string_view why);
  void AddLeaving(const std::string& name);
  // The record names this aggregator for the shard, and its former one has to remove it. The groups
  // are told.
  Moved SetAggregator(uint32_t shard, const std::string& name);
  // The version at which the target is to be hollow; nothing while no version can be fetched.
  std::optional<uint32_t> HollowVersion() const;
  std::optional<Version> VersionToFetch() const;
  // Why the target cannot serve all groups after the next commit; empty if it can.
  std::string PostponeReason() const;
  std::string ReasonOf(uint32_t shard) const;

  const RunView& run_;
  StoredRun& stored_;
  v1::RunRecord& record_;
  const Parts parts_;
  Cluster& cluster_;
  AtTarget at_target_;
  // The closing version for which the target is awaited, and since when.
  uint32_t awaited_ = 0;
  absl::Time since_;
  // Commits that have not waited for the target, because of groups.
  uint32_t postponed_ = 0;
  // Why shards that are to move cannot, by shard.
  std::map<uint32_t, std::string> lacking_;
};

}  // namespace cadre
