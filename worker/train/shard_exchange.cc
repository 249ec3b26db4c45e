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
                             absl::Duration timeout)
    : place_(assignment.place()), lineage_(assignment.lineage()), index_(index), timeout_(timeout) {
  const auto shards = static_cast<uint32_t>(assignment.shards_size());
  for (uint32_t id = 0; id < shards; ++id) {
    const FlatSpan span = ShardSpan(static_cast<uint64_t>(index.size()), id, shards);
    Shard shard{
        .id = id, .begin = static_cast<int64_t>(span.begin), .end = static_cast<int64_t>(span.end)};
    shard.client = std::make_unique<RoundsClient>(
        [&control, id] { return control.ShardAddress(id); },
        // Ranks and shards that fail together should not come back together.
        RoundsClientOptions{.seed = (uint64_t{place_.group()} << 32) + place_.rank() * 64 + id});
    shards_.push_back(std::move(shard));
  }
  on_cancel_ = std::make_unique<Cancellation::Registration>(
      cancellation.OnCancel([this](const absl::Status&) {
        for (Shard& shard : shards_) shard.client->Cancel();
      }));
}

std::vector<OwnedSpan> ShardExchange::Overlap(const Shard& shard,
                                              std::span<const OwnedSpan> owned) {
  std::vector<OwnedSpan> parts;
  for (const OwnedSpan& span : owned) {
    const int64_t begin = std::max(span.begin, shard.begin);
    const int64_t end = std::min(span.end, shard.end);
    if (begin < end) parts.push_back({begin, end, span.values + (begin - span.begin)});
  }
  return parts;
}

template <typename Message>
void ShardExchange::FillRanges(const std::vector<OwnedSpan>& parts, Message& message) const {
  for (const OwnedSpan& part : parts) {
    for (const v1::Range& range : index_.RangesOf(part.begin, part.end)) {
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
  // A round that is closed decides the outcome, whatever else went wrong at other shards.
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
                                  std::span<const OwnedSpan> owned, Traffic* traffic) {
  return ForEachShard(
      [&](Shard& shard) -> absl::Status {
        const std::vector<OwnedSpan> parts = Overlap(shard, owned);
        // A shard asks that a group's slices cover it, not that every rank has one there.
        if (parts.empty()) return absl::OkStatus();
        shard.staging.clear();
        for (const OwnedSpan& part : parts) {
          shard.staging.insert(shard.staging.end(), part.values,
                               part.values + (part.end - part.begin));
        }
        v1::ContributionHeader header;
        header.set_run(place_.run());
        header.set_lineage(lineage_);
        header.set_group(place_.group());
        header.set_generation(place_.generation());
        header.set_rank(place_.rank());
        header.set_round(round);
        header.set_base_version(base_version);
        header.set_samples(samples);
        FillRanges(parts, header);
        return shard.client->Stage(header, shard.staging, absl::Now() + timeout_, &shard.traffic);
      },
      traffic);
}

absl::Status ShardExchange::Pull(uint32_t version, std::span<const OwnedSpan> owned,
                                 Traffic* traffic) {
  return ForEachShard(
      [&](Shard& shard) -> absl::Status {
        const std::vector<OwnedSpan> parts = Overlap(shard, owned);
        if (parts.empty()) return absl::OkStatus();
        int64_t elements = 0;
        for (const OwnedSpan& part : parts) elements += part.end - part.begin;
        shard.staging.resize(static_cast<size_t>(elements));
        v1::PullRequest request;
        request.set_run(place_.run());
        request.set_lineage(lineage_);
        request.set_version(version);
        FillRanges(parts, request);
        CADRE_RETURN_IF_ERROR(
            shard.client->Pull(request, shard.staging, absl::Now() + timeout_, &shard.traffic));
        const float* from = shard.staging.data();
        for (const OwnedSpan& part : parts) {
          std::copy(from, from + (part.end - part.begin), part.values);
          from += part.end - part.begin;
        }
        return absl::OkStatus();
      },
      traffic);
}

}  // namespace cadre
