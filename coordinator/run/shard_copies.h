// The copies of the shards of one run on other aggregators (Averaging.copies): which versions they
// have, and which orders to copy are under way.
//
// A copy is known while the aggregator that holds it has opened its own shard on its present
// stream. copy_orders.h sends the orders.
//
// Pure and thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "model/shard_copies.h"
#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/records.pb.h"

namespace cadre {

class ShardCopies {
 public:
  // A version of a shard.
  struct Version {
    uint32_t version = 0;
    uint64_t digest = 0;
    bool operator==(const Version&) const = default;
  };

  // `run` holds the names of the aggregators, by shard. Borrowed.
  explicit ShardCopies(const v1::RunRecord& run) : run_(run) {}

  // Whether the shards have copies.
  bool enabled() const { return HasCopies(run_.spec().averaging(), run_.shards_size()); }
  const std::string& HolderOf(uint32_t shard) const {
    return run_.shards(static_cast<int>(CopyHolder(shard, run_.shards_size())));
  }
  // Whether it is known what the holder has.
  bool Knows(uint32_t shard) const { return copies_.contains(shard); }
  bool Has(uint32_t shard, const Version& version) const;
  // The newest version of the copy; nothing if there is none, or if it is not known.
  std::optional<uint32_t> NewestOf(uint32_t shard) const;

  // An aggregator has opened its shard, or lists again what it holds.
  void OnOpened(const v1::RunOpened& opened);
  // The copy is durable. Returns false for one that its holder does not hold.
  bool OnCopied(absl::string_view holder, const v1::ShardCopy& copied);
  // The aggregator of this name is disconnected.
  void Close(absl::string_view name);
  void Reset() { copies_.clear(); }

  // Whether the holder is to fetch the version: the order was not sent since holder and shard have
  // opened.
  bool MustOrder(uint32_t shard, const Version& version) const;
  void SetOrdered(uint32_t shard, const Version& version);
  // The shard was opened, or is closed: the order does not name its present address.
  void ForgetOrder(uint32_t shard);
  // Whether a commit waits for the copy of this version.
  bool Awaits(uint32_t shard, const Version& version) const;
  // The holder was too late: it is not awaited until it has carried out an order.
  void GiveUp(uint32_t shard);

 private:
  struct Copy {
    // Digests, by version.
    std::map<uint32_t, uint64_t> versions;
    std::optional<Version> ordered;
    bool late = false;
  };

  const v1::RunRecord& run_;
  // By shard.
  std::map<uint32_t, Copy> copies_;
};

}  // namespace cadre
