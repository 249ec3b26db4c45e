// A rank's exchange with the shards of the aggregators: stages (uploads durably) the values that
// the rank owns, and pulls its part of a committed version.
//
// Borrows `control` (for addresses), `index`, `cancellation` and `progress`, which advances with
// every chunk. Thread-compatible.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "model/parameter_index.h"
#include "proto/cadre/v1/membership.pb.h"
#include "server/client/rounds_client.h"
#include "worker/train/cancellation.h"
#include "worker/train/group_control.h"
#include "worker/train/owned.h"
#include "worker/train/trainer_progress.h"

namespace cadre {

class ShardExchange {
 public:
  ShardExchange(const v1::Assignment& assignment, const ParameterIndex& index,
                GroupControl& control, Cancellation& cancellation, TrainerProgress& progress,
                absl::Duration silence);

  // False: the run does not average.
  bool has_shards() const { return !shards_.empty(); }

  // Stages the owned values as this rank's part of the group's contribution. OK: they are durable
  // on every shard. Errors: as RoundsClient::Stage, naming the shard.
  absl::Status Stage(uint32_t round, uint32_t base_version, uint64_t samples,
                     std::span<const Owned> owned, Traffic* traffic);

  // Overwrites the owned values with those of `version`. After an error values are unspecified.
  absl::Status Pull(uint32_t version, std::span<const Owned> owned, Traffic* traffic);

 private:
  struct Shard {
    uint32_t id = 0;
    // The flat positions (model/parameter_index.h) that the shard owns.
    Interval positions;
    std::unique_ptr<RoundsClient> client;
    // Values that one call transfers, in the order of its ranges.
    std::vector<float> staging;
    Traffic traffic;
  };
  // Runs `work` for all shards concurrently; returns the first error in shard order.
  absl::Status ForEachShard(const std::function<absl::Status(Shard&)>& work, Traffic* traffic);
  template <typename Message>
  void FillRanges(const std::vector<Owned>& parts, Message& message) const;

  const v1::RankSlot rank_slot_;
  const std::string lineage_;
  const ParameterIndex& index_;
  std::vector<Shard> shards_;
  // Last: it must be unregistered before the clients are destroyed.
  std::unique_ptr<Cancellation::Registration> on_cancel_;
};

}  // namespace cadre
