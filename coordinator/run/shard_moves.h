// The move of shards of one run to other aggregators, one shard at a time: from aggregators that
// are drained, and, with the copies of shards, from those that do not carry out their orders
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

  // Begins a move, continues it, or undoes it. `hung`: names of aggregators that are connected, and
  // late to open their shard or to apply the closing round. Requires: the run is active.
  void Advance(const std::set<std::string>& hung);
  // Orders the target to fetch the version of the shard, if there is one that remains the newest
  // until the move is complete.
  void Send();
  // Whether the commit of the closing version waits for the target.
  bool IsAwaited() const;
  // What the commit waits for; empty if it does not wait.
  std::string WaitReason() const;
  // Where the shard continues whose aggregator does not carry out its orders, or why it cannot;
  // empty if there is none.
  std::string RescueText() const;
  // The time at which the target is given up if it has not carried out its order; InfiniteFuture:
  // it has none.
  absl::Time Deadline() const;
  // What the target was ordered to do and has not done.
  struct Order {
    std::string kind;
    uint32_t shard = 0;
    uint32_t version = 0;
    // It completes a sentence that begins with the name of the target and "has not".
    std::string Text() const;
  };
  std::optional<Order> OwedByTarget() const;
  // Whether a move may be complete now, apart from the time right after a commit.
  bool MayComplete() const { return record_.has_move() && (record_.move().from_copy() || Idle()); }
  // If the target has the version, the shard is there from now on: the record names it, and it is
  // open. Requires: MayComplete(), or no group has begun to contribute to the open round.
  struct Moved {
    uint32_t shard = 0;
    std::string from;
    // The version that it has.
    uint32_t version = 0;
    bool from_copy = false;
  };
  std::optional<Moved> Complete();

  // The target may have the version already, if the record is older than the end of the move.
  void OnJoined(const Member& member, const v1::Hello& hello);
  // The answers of the target. They return false if the member is not the target.
  bool OnOpened(const Member& member, const v1::RunOpened& opened);
  bool OnApplied(const Member& member, const v1::Applied& applied);
  // The aggregator of this name is disconnected.
  void Close(const std::string& name);
  // What the target has is not known any more.
  void Reset() { at_target_ = AtTarget(); }
  // The run has ended: the move is undone.
  void End();
  // Any of the aggregators may have the model: they remove their files with the run.
  void KeepFiles();

  // ---- Aggregators that a shard has left, or to which a move was undone
  bool IsLeaving(absl::string_view name) const;
  // Orders those that are connected to remove their files, when the shards are where the record
  // says.
  void SendRemovals();
  // The aggregator has removed them.
  void OnRemoved(absl::string_view name);

  // Whether a shard is to move, and no aggregator can take it.
  bool lacks_target() const { return !lacking_.empty(); }
  // The aggregator to which a shard moves; empty: none does.
  const std::string& target() const { return record_.move().to(); }
  // Adds the shards of this run that move from the aggregator.
  void FillStatus(const Member& aggregator, v1::AggregatorStatus& status) const;

 private:
  using Version = ShardCopies::Version;
  // What the target has on its present stream.
  struct AtTarget {
    // The version that it had when it joined.
    std::optional<Version> held;
    // The version at which it was ordered to be hollow, and at which it is.
    std::optional<uint32_t> ordered;
    std::optional<uint32_t> hollow;
    // Whether it has been hollow at any version: the next commits wait for it.
    bool opened = false;
    // The version that it was ordered to fetch, and that it has fetched.
    std::optional<Version> copying;
    std::optional<Version> copied;
    // When the last of these orders was sent.
    absl::Time since;
  };

  // Whether no group trains, so that the newest version remains the newest one.
  bool Idle() const;
  bool IsTarget(const Member& member, uint32_t shard) const {
    return record_.has_move() && member.record.name() == target() &&
           record_.move().shard() == shard;
  }
  // Whether the aggregator of the shard has not opened it, or not applied the closing round.
  bool IsBehind(uint32_t shard) const;
  // Which ranks can stage their values again: those that are connected, or that may return.
  enum class Ranks { kConnected, kLive };
  // Whether an aggregator that fetches the copy of the shard can continue with it.
  bool CopySuffices(uint32_t shard, Ranks ranks) const;
  // The shard whose aggregator does not carry out its orders, and which can continue from its copy.
  std::optional<uint32_t> FindToRescue(const std::set<std::string>& hung) const;
  void Begin(std::optional<uint32_t> rescued);
  // Returns whether an aggregator can take the shard.
  bool Begin(uint32_t shard, bool from_copy);
  std::string BeginText() const;
  // The aggregator that has the version to fetch.
  const std::string& Holder() const;
  // Why the move that has begun cannot go on; empty if it can.
  std::string WhyUndone() const;
  // The target removes what it has.
  void Undo(absl::string_view why);
  void AddLeaving(const std::string& name);
  void Remove(const std::string& name);
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
  // Aggregators that were ordered to remove their files on their present streams.
  std::set<std::string> removing_;
  // Commits that have not waited for the target, because of groups.
  uint32_t postponed_ = 0;
  // Why shards that are to move cannot, by shard.
  std::map<uint32_t, std::string> lacking_;
  // The shard that is to continue from its copy.
  std::optional<uint32_t> rescued_;
  // The version of the run at which shards have last continued from their copies, by shard: an
  // aggregator that is only slow would be left again and again in the same round.
  std::map<uint32_t, uint32_t> rescues_;
};

}  // namespace cadre
