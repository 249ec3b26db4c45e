// The orders to aggregators of one run to copy versions of shards from one another, and the commits
// that wait for copies (copy_orders.cc describes the protocol).
//
// Owns what is known of the copies. Pure and thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/cluster/cluster.h"
#include "coordinator/run/shard_copies.h"
#include "proto/cadre/v1/control.pb.h"
#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/records.pb.h"

namespace cadre {

class RunView;

class CopyOrders {
 public:
  // All are borrowed.
  CopyOrders(const RunView& run, const v1::RunRecord& record, Cluster& cluster)
      : run_(run), record_(record), cluster_(cluster), copies_(record) {}

  const ShardCopies& copies() const { return copies_; }
  // The version of the shard's copy, if it is the newest, or one that the shard has applied of the
  // closing round.
  std::optional<ShardCopies::Version> VersionFor(uint32_t shard) const;
  // Until when the commit of the closing version waits for copies; InfinitePast: it does not.
  absl::Time AwaitedUntil() const;
  // The versions of copies for which the commit waits now, by shard.
  std::map<uint32_t, ShardCopies::Version> Awaited() const;
  // The first copy for which the commit waits; empty if it waits for none.
  std::string WaitReason() const;
  void FillStatus(v1::RunStatus& status) const;

  // An aggregator has opened its shard, or lists again what it holds.
  void OnOpened(const v1::RunOpened& opened) { copies_.OnOpened(opened); }
  // The shard is open.
  void OnShardOpen(uint32_t shard);
  void OnCopied(const Member& member, const v1::ShardCopy& copied);
  // The aggregator of this name is disconnected.
  void Close(absl::string_view name) { copies_.Close(name); }
  void Reset() { copies_.Reset(); }

  // Orders the copies that lack the newest version or, once all shards have applied it, the closing
  // one.
  void Send();
  // Orders the aggregator of a lost shard to fetch the version from the copy.
  void SendBack(uint32_t shard) const;
  // Orders the aggregator `target` to fetch the version from `source`. Returns false if one of them
  // is not registered.
  bool Order(const std::string& target, const std::string& source, uint32_t shard,
             const ShardCopies::Version& version) const;
  // Reports copies that are behind the newest version, which are not awaited, and those that are
  // not behind any more. Called when a version is committed, and when a copy arrives.
  void Report();

 private:
  // The version of which the shard should have a copy; nothing while a round is being applied.
  std::optional<ShardCopies::Version> VersionToCopy(uint32_t shard) const;

  const RunView& run_;
  const v1::RunRecord& record_;
  Cluster& cluster_;
  ShardCopies copies_;
  // Since when the copies of this version are awaited, by shard: since its order, or since the
  // shard has opened again.
  uint32_t version_ = 0;
  std::map<uint32_t, absl::Time> since_;
  // Shards whose copies were reported to be behind.
  std::set<uint32_t> behind_;
};

}  // namespace cadre
