// The aggregators of one run, by shard, and what they have on their disks.
//
// Pure and thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/strings/string_view.h"
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
  bool IsOpen(uint32_t shard) const { return opened_.contains(shard); }
  bool AllOpen() const { return size() > 0 && std::ssize(opened_) == size(); }
  // Each shard's answer to OpenRun on the current stream of its aggregator.
  const std::map<uint32_t, v1::RunOpened>& opened() const { return opened_; }

  void Open(const v1::RunOpened& opened) { opened_[opened.shard()] = opened; }
  // The aggregator of this name is disconnected.
  void Close(absl::string_view name) {
    std::erase_if(opened_, [&](const auto& entry) { return Owns(name, entry.first); });
  }
  // The run chooses its aggregators anew.
  void Reset() { opened_.clear(); }

 private:
  const v1::RunRecord& run_;
  std::map<uint32_t, v1::RunOpened> opened_;
};

}  // namespace cadre
