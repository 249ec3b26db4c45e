// The aggregators of a run: their shards, and whether the versions on their disks match. Changes
// the fields of RunRecord that name them (shards, former_shards).
//
//   aggregators.cc          opening of shards
//   shard_orders.cc         what is sent to aggregators: to open shards, fences, rounds to apply
//   shard_choice.cc         the choice of aggregators
//   aggregators_restore.cc  the restoring of lost shards
//   shard_moves.cc          moves from aggregators that are drained
//
// Pure and thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "coordinator/cluster/cluster.h"
#include "coordinator/run/copy_orders.h"
#include "coordinator/run/run_rounds.h"
#include "coordinator/run/shard_choice.h"
#include "coordinator/run/shard_directory.h"
#include "coordinator/run/shard_moves.h"
#include "coordinator/run/shard_orders.h"
#include "coordinator/run/shard_restore.h"
#include "coordinator/run/shards.h"
#include "coordinator/run/slot.h"
#include "coordinator/run/stored_run.h"
#include "proto/cadre/v1/control.pb.h"
#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/records.pb.h"

namespace cadre {

class RunView;

class Aggregators {
 public:
  // All are borrowed.
  Aggregators(const RunView& run, StoredRun& stored, RunRounds& rounds, const RunContext& context)
      : run_(run),
        stored_(stored),
        record_(stored.record()),
        rounds_(rounds),
        cluster_(context.cluster),
        shards_(stored.record()),
        orders_(run, stored.record(), cluster_),
        choice_(run, stored, shards_, cluster_),
        copies_(run, stored.record(), cluster_),
        moves_(run, stored,
               {.shards = shards_,
                .choice = choice_,
                .copies = copies_,
                .orders = orders_,
                .directory = directory_,
                .versions = rounds.versions()},
               cluster_),
        directory_(run, stored.record(), shards_, context) {}

  const Shards& shards() const { return shards_; }
  // The copies of the shards on other aggregators.
  const CopyOrders& copies() const { return copies_; }
  CopyOrders& copies() { return copies_; }
  // The moves of shards to other aggregators.
  const ShardMoves& moves() const { return moves_; }
  ShardMoves& moves() { return moves_; }
  // If the move of a shard is complete, the shard is open on the other aggregator. Requires: see
  // ShardMoves::Complete.
  std::optional<ShardMoves::Moved> CompleteMove();
  // Orders copies, and the fetching of a version by an aggregator to which a shard moves. Returns
  // whether the closing commit waits for one.
  bool AwaitsCopies();
  ShardOrders& orders() { return orders_; }
  // What the groups know of the aggregators.
  const ShardDirectory& directory() const { return directory_; }

  // The choice of the aggregators; OpenAll must follow.
  ShardChoice& choice() { return choice_; }
  const ShardChoice& choice() const { return choice_; }
  void OpenAll();
  // `active`: the run uses its shards.
  void OnJoined(const Member& member, bool active);
  // A stream of the aggregator has ended, or its lease.
  void OnLost(const std::string& name) {
    shards_.Close(name);
    copies_.Close(name);
    moves_.Close(name);
    directory_.OnLost(name);
  }
  // Whether the answer is that of a shard of this run.
  bool IsOfShard(const Member& member, const v1::RunOpened& opened) const;
  // Only the first answer on a stream shows the state that the aggregator had on its disk.
  bool IsFirst(const v1::RunOpened& opened) const {
    return !shards_.IsOpen(opened.shard()) && !shards_.lost().contains(opened.shard());
  }
  // A shard that holds another version than the run is lost. Requires: IsOfShard.
  void OnOpened(const Member& member, const v1::RunOpened& opened);
  // All shards are to be opened again.
  void Reset() {
    shards_.Reset();
    copies_.Reset();
    moves_.Reset();
  }

  // Orders the shards that accept contributions to apply the closing commit.
  void SendApplies();

  // ---- Lost shards
  struct LostShard {
    uint32_t shard = 0;
    std::string reason;
  };
  // Chooses a source for each, and sends orders. Returns one that cannot be restored.
  std::optional<LostShard> Restore();
  // The shard may have lost contributions to the closing round. Returns whether it is lost now.
  bool LoseContributions(const v1::Applied& applied);
  // Handles what concerns lost shards. Returns whether the answer is complete and belongs to a
  // shard that is open.
  bool OnRestoringApplied(const v1::Applied& applied);
  // A rank has staged its values again for a lost shard, or could not.
  void OnRestaged(const v1::Restaged& restaged) { shards_.OnRestaged(restaged); }
  void ResendRestages(const Slot& slot, uint32_t rank) const;

 private:
  // Empty if the shard's version matches the run's; otherwise how it was lost.
  std::string CheckOpened(const Member& member, const v1::RunOpened& opened) const;
  void Lose(const v1::RunOpened& opened, const std::string& reason);
  void RecordInitialModel();
  ShardRestore::View RestoreView(uint32_t shard) const;
  // States what a shard has lost that was restored without its states.
  void WarnOfLostStates(uint32_t shard, uint32_t version);
  // Sends the order that makes the version of the attempt. Requires: restore.ready().
  void SendRestoringApply(uint32_t shard, ShardRestore& restore);
  // The holder of a copy from which a shard is being restored may have moved.
  void RepeatCopyBack(uint32_t holder);
  // Whether the attempt uses values of the group.
  bool IsSource(const ShardRestore::Attempt& attempt, uint32_t group) const;
  void RequestValues(uint32_t shard, ShardRestore& restore, uint32_t group);
  void SendRestage(const Slot& slot, uint32_t rank, uint32_t shard,
                   const ShardRestore& restore) const;

  const RunView& run_;
  StoredRun& stored_;
  v1::RunRecord& record_;
  RunRounds& rounds_;
  Cluster& cluster_;
  Shards shards_;
  ShardOrders orders_;
  ShardChoice choice_;
  CopyOrders copies_;
  ShardMoves moves_;
  ShardDirectory directory_;
};

}  // namespace cadre
