// The aggregators of one run, by shard, and what they have on their disks: a shard of a connected
// aggregator is not opened yet, open, or lost and being restored.
//
// Pure and thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "coordinator/run/shard_restore.h"
#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/records.pb.h"

namespace cadre {

class Shards {
 public:
  // `run` holds the names of the aggregators, by shard. Borrowed.
  explicit Shards(const v1::RunRecord& run) : run_(run) {}

  int size() const { return run_.shards_size(); }
  // Whether the aggregator of this name stores the shard.
  bool Owns(absl::string_view name, uint32_t shard) const {
    return int64_t{shard} < size() && run_.shards(static_cast<int>(shard)) == name;
  }
  // Whether the aggregator may have a state of the shard that the record does not know.
  bool MayStore(absl::string_view name, uint32_t shard) const;
  // Whether the aggregator stores values of this run that its Hello does not list.
  bool Lacks(const v1::Hello& hello) const;
  bool IsOpen(uint32_t shard) const { return opened_.contains(shard); }
  bool AllOpen() const { return size() > 0 && std::ssize(opened_) == size(); }
  // Whether the state of each shard was known at some time since the start of the coordinator.
  bool AllKnown() const { return std::ssize(known_) == size(); }
  // Each shard's answer to OpenRun on the current stream of its aggregator.
  const std::map<uint32_t, v1::RunOpened>& opened() const { return opened_; }

  std::map<uint32_t, ShardRestore>& lost() { return lost_; }
  const std::map<uint32_t, ShardRestore>& lost() const { return lost_; }
  // Null if the shard is not lost.
  const ShardRestore* Lost(uint32_t shard) const {
    const auto found = lost_.find(shard);
    return found == lost_.end() ? nullptr : &found->second;
  }
  ShardRestore* Lost(uint32_t shard) {
    return const_cast<ShardRestore*>(std::as_const(*this).Lost(shard));
  }

  // Whether the shard, or every shard, accepts contributions to the open round.
  bool Accepts(uint32_t shard) const;
  bool AllAccept() const;
  // Whether no lost shard prevents the round from closing.
  bool MayClose() const;
  // Empty if no shard is lost.
  std::string RestoreReason() const;
  // A rank has staged its values again for a lost shard, or could not.
  void OnRestaged(const v1::Restaged& restaged);

  void Open(const v1::RunOpened& opened) {
    known_.insert(opened.shard());
    lost_.erase(opened.shard());
    opened_[opened.shard()] = opened;
  }
  void Lose(uint32_t shard, const ShardRestore& restore) {
    known_.insert(shard);
    opened_.erase(shard);
    lost_.insert_or_assign(shard, restore);
  }
  // The aggregator of this name is disconnected.
  void Close(absl::string_view name) {
    const auto owns = [&](const auto& entry) { return Owns(name, entry.first); };
    std::erase_if(opened_, owns);
    std::erase_if(lost_, owns);
  }
  // All shards are to be opened again.
  void Reset() {
    known_.clear();
    opened_.clear();
    lost_.clear();
  }

 private:
  const v1::RunRecord& run_;
  std::set<uint32_t> known_;
  std::map<uint32_t, v1::RunOpened> opened_;
  std::map<uint32_t, ShardRestore> lost_;
};

}  // namespace cadre
