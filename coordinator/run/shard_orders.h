// The orders to the aggregators of one run about its shards: to open them, to
// accept no older generations, to apply the closing round, and to remove the
// files of the run.
//
// Pure and thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "coordinator/cluster/cluster.h"
#include "coordinator/run/slot.h"
#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/records.pb.h"

namespace cadre {

class RunView;

class ShardOrders {
 public:
  // All are borrowed.
  ShardOrders(const RunView& run, const v1::RunRecord& record, Cluster& cluster)
      : run_(run), record_(record), cluster_(cluster) {}

  // Opens the shard on its aggregator, or on another one. `hollow`: the shard
  // discards what it holds and is hollow at this version.
  void Open(uint32_t shard, std::optional<uint32_t> hollow = std::nullopt) {
    Open(record_.shards(static_cast<int>(shard)), shard, hollow);
  }
  void Open(const std::string& aggregator, uint32_t shard, std::optional<uint32_t> hollow);
  // Applies the closing commit, unless the shard has.
  void Apply(uint32_t shard) const;
  // The newest version is published. A shard that does not receive this learns
  // it from Open or the next order.
  void Publish() const;
  void RequestReport(const Member& aggregator) const;
  // The aggregator is to remove the files of the run.
  void Delete(const Member& aggregator) const;
  void Send(uint32_t shard, const v1::CoordinatorMessage& message) const {
    Send(record_.shards(static_cast<int>(shard)), message);
  }

  // Requires: the slot has a generation.
  std::string KeyOf(const Slot& slot) const { return cluster_.KeyOf(slot.record().generation()); }
  // The lowest generation of the slot that aggregators accept has changed.
  void AddFence(const Slot& slot) { fences_[slot.group()] = LowestGeneration(slot); }
  // Sends the aggregators the generations that have changed.
  void SendFences();

 private:
  // The lowest generation of the slot that aggregators accept.
  uint32_t LowestGeneration(const Slot& slot) const;
  void Send(const std::string& aggregator, const v1::CoordinatorMessage& message) const;

  const RunView& run_;
  const v1::RunRecord& record_;
  Cluster& cluster_;
  // Groups whose lowest accepted generation has changed in this event. They may
  // have been removed.
  std::map<uint32_t, uint32_t> fences_;
};

}  // namespace cadre
