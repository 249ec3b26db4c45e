// A rank's traffic with the aggregator shards: stages the slice that it owns, pulls its part of a
// committed version.
//
// The unit is the range, not the rank: what this rank owns is cut at the shards' borders, so groups
// of any mesh average with one another through any number of shards. All shards are served at once,
// one thread each.
//
// Borrows the control (for addresses), the index and the cancellation.
// Thread-compatible.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/cadre/v1/membership.pb.h"
#include "server/client/rounds_client.h"
#include "spec/parameter_index.h"
#include "worker/train/cancellation.h"
#include "worker/train/group_control.h"

namespace cadre {

// Positions [begin, end) of the parameter order, whose values this rank owns and keeps at `values`.
struct OwnedSpan {
  int64_t begin = 0;
  int64_t end = 0;
  float* values = nullptr;
};

class ShardExchange {
 public:
  ShardExchange(const v1::Assignment& assignment, const ParameterIndex& index,
                GroupControl& control, Cancellation& cancellation, absl::Duration timeout);

  // False: the run never averages.
  bool has_shards() const { return !shards_.empty(); }

  // Stages the owned values as this rank's part of the group's contribution. OK: durable on every
  // shard. Errors: as RoundsClient::Stage, naming the shard.
  absl::Status Stage(uint32_t round, uint32_t base_version, uint64_t samples,
                     std::span<const OwnedSpan> owned, Traffic* traffic);

  // Overwrites the owned values with those of `version`. After an error they are unspecified.
  absl::Status Pull(uint32_t version, std::span<const OwnedSpan> owned, Traffic* traffic);

 private:
  struct Shard {
    uint32_t id = 0;
    // What it owns of the parameter order.
    int64_t begin = 0;
    int64_t end = 0;
    std::unique_ptr<RoundsClient> client;
    // Values on their way, in the order of the ranges.
    std::vector<float> staging;
    Traffic traffic;
  };
  // The part of `owned` that lies in the shard.
  static std::vector<OwnedSpan> Overlap(const Shard& shard, std::span<const OwnedSpan> owned);
  // Runs `work` for every shard at once; the first error in shard order.
  absl::Status ForEachShard(const std::function<absl::Status(Shard&)>& work, Traffic* traffic);
  template <typename Message>
  void FillRanges(const std::vector<OwnedSpan>& parts, Message& message) const;

  const v1::GroupPlace place_;
  const std::string lineage_;
  const ParameterIndex& index_;
  const absl::Duration timeout_;
  std::vector<Shard> shards_;
  // Last, so that nothing is cancelled that is gone.
  std::unique_ptr<Cancellation::Registration> on_cancel_;
};

}  // namespace cadre
