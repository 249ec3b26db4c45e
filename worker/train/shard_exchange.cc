// Averaging without a root rank: every rank exchanges exactly what it owns.
//
// Each element of the model is owned by one rank of a group and by one aggregator shard. A rank
// intersects its intervals with those of each shard and exchanges the overlaps. Neither side needs
// the other's partition, so groups with different meshes average with one another through any
// number of shards, and a rank sends n / p elements in each direction for a model of n elements and
// p ranks. No rank holds the whole model for this.
//
// Each shard has its own thread. The cores are free for these threads, because no step is computed
// meanwhile; the disks and the network bound the speed. The values of a call are copied into one
// staging buffer per shard, because owned intervals are scattered over buckets while the client
// sends contiguous chunks.
//
// Failures. RoundsClient retries while it makes progress; Stage and Pull are idempotent. If any
// shard refuses the contribution because the round is closed (server/client/refusal.h), that error
// is returned even if other shards failed otherwise: the coordinator's decision then determines how
// the group continues.
#include "worker/train/shard_exchange.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "server/client/refusal.h"
#include "server/client/shard_span.h"

namespace cadre {

ShardExchange::ShardExchange(const v1::Assignment& assignment, const ParameterIndex& index,
                             GroupControl& control, Cancellation& cancellation,
                             TrainerProgress& progress, absl::Duration silence)
    : rank_slot_(assignment.place()), lineage_(assignment.lineage()), index_(index) {
  const uint32_t shards = assignment.shards_size();
  for (uint32_t id = 0; id < shards; ++id) {
    Shard shard{.id = id, .positions = ShardSpan(index.size(), id, shards)};
    shard.client = std::make_unique<RoundsClient>(
        [&control, id] { return control.ShardAddress(id); },
        // Different seeds, so that ranks that failed together do not retry at the same times.
        RoundsClientOptions{
            .seed = (uint64_t{rank_slot_.group()} << 32) + rank_slot_.rank() * 64 + id,
            .silence = silence,
            .on_progress = [&progress] { progress.Advance(); }});
    shards_.push_back(std::move(shard));
  }
  on_cancel_ = cancellation.OnCancel([this](const absl::Status&) {
    for (Shard& shard : shards_) shard.client->Cancel();
  });
}

template <typename Message>
void ShardExchange::FillRanges(const std::vector<Owned>& parts, Message& message) const {
  for (const Owned& part : parts) {
    for (const v1::Range& range : index_.RangesOf(part.positions.begin, part.positions.end)) {
      *message.add_ranges() = range;
    }
  }
}

absl::Status ShardExchange::ForEachShard(const std::function<absl::Status(Shard&)>& work,
                                         Traffic* traffic) {
  std::vector<absl::Status> results(shards_.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < shards_.size(); ++i) {
    shards_[i].traffic = Traffic();
    threads.emplace_back([&, i] { results[i] = work(shards_[i]); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Shard& shard : shards_) *traffic += shard.traffic;
  for (const absl::Status& result : results) {
    if (RefusalOf(result) == v1::REFUSAL_CLOSED_ROUND) return result;
  }
  for (size_t i = 0; i < shards_.size(); ++i) {
    CADRE_RETURN_IF_ERROR(
        results[i].ok()
            ? results[i]
            : absl::Status(results[i].code(),
                           absl::StrCat(results[i].message(), " (shard ", shards_[i].id, ")")));
  }
  return absl::OkStatus();
}

absl::Status ShardExchange::Stage(uint32_t round, uint32_t base_version, uint64_t samples,
                                  std::span<const Owned> owned, Traffic* traffic) {
  return ForEachShard(
      [&](Shard& shard) -> absl::Status {
        const std::vector<Owned> parts = PartsIn(shard.positions, owned);
        // All ranks of the group together cover the shard; a single rank need not overlap with it.
        if (parts.empty()) return absl::OkStatus();
        shard.staging.clear();
        for (const Owned& part : parts) {
          shard.staging.insert(shard.staging.end(), part.values.begin(), part.values.end());
        }
        v1::ContributionHeader header;
        header.set_run(rank_slot_.run());
        header.set_lineage(lineage_);
        header.set_group(rank_slot_.group());
        header.set_generation(rank_slot_.generation());
        header.set_rank(rank_slot_.rank());
        header.set_round(round);
        header.set_base_version(base_version);
        header.set_samples(samples);
        FillRanges(parts, header);
        return shard.client->Stage(header, shard.staging, absl::InfiniteFuture(), &shard.traffic);
      },
      traffic);
}

absl::Status ShardExchange::Pull(uint32_t version, std::span<const Owned> owned, Traffic* traffic) {
  return ForEachShard(
      [&](Shard& shard) -> absl::Status {
        const std::vector<Owned> parts = PartsIn(shard.positions, owned);
        if (parts.empty()) return absl::OkStatus();
        int64_t elements = 0;
        for (const Owned& part : parts) elements += part.positions.size();
        shard.staging.resize(elements);
        v1::PullRequest request;
        request.set_run(rank_slot_.run());
        request.set_lineage(lineage_);
        request.set_version(version);
        FillRanges(parts, request);
        CADRE_RETURN_IF_ERROR(
            shard.client->Pull(request, shard.staging, absl::InfiniteFuture(), &shard.traffic));
        const float* from = shard.staging.data();
        for (const Owned& part : parts) {
          std::copy_n(from, part.values.size(), part.values.begin());
          from += part.values.size();
        }
        return absl::OkStatus();
      },
      traffic);
}

}  // namespace cadre
