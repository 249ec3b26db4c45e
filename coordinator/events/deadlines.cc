// Which rank of a stalled group hangs is not visible in general: its peers stop within the same
// step, and heartbeats are seconds apart. Only a rank that stopped clearly earlier is a suspect.
// The others show that they are alive after the fence, when they leave the generation.
#include "coordinator/events/deadlines.h"

#include <algorithm>

namespace cadre {
namespace {

constexpr int kMargin = 10;
// The limit is doubled at most this often.
constexpr int kMaxDoublings = 4;

absl::Duration Floor(v1::Activity activity) {
  switch (activity) {
    case v1::ACTIVITY_PREPARING:
    case v1::ACTIVITY_TRAINING:
      return absl::Minutes(1);
    case v1::ACTIVITY_EXCHANGING:
      // Longer than the worker's own limit, which reports the cause.
      return absl::Seconds(110);
    case v1::ACTIVITY_EVALUATING:
    case v1::ACTIVITY_SAVING:
      return absl::Minutes(2);
    default:
      return absl::InfiniteDuration();
  }
}

}  // namespace

void Pauses::Observe(v1::Activity activity, absl::Duration pause) {
  Seen& seen = seen_[activity];
  seen.longest = std::max(seen.longest, pause);
  // From here on the longest pause determines the limit.
  if (pause >= Floor(activity)) seen.stalls = 0;
}

void Pauses::ObserveStall(v1::Activity activity) {
  Seen& seen = seen_[activity];
  seen.stalls = std::min(seen.stalls + 1, kMaxDoublings);
}

absl::Duration Pauses::Limit(v1::Activity activity, absl::Duration step) const {
  const Seen& seen = seen_[activity];
  if (activity == v1::ACTIVITY_EXCHANGING) return Floor(activity);
  const absl::Duration floor = Floor(activity) * (1 << seen.stalls);
  const absl::Duration usual =
      std::max(seen.longest, activity == v1::ACTIVITY_TRAINING ? step : absl::ZeroDuration());
  return std::max(floor, kMargin * usual);
}

void ProgressWatch::OnHeartbeat(uint32_t number, v1::Activity activity, uint64_t progress,
                                absl::Time now, Pauses& pauses) {
  // An activity of a newer protocol.
  if (!v1::Activity_IsValid(activity)) return;
  const auto [found, first] = ranks_.try_emplace(number);
  Rank& rank = found->second;
  const bool moved = first || rank.activity != activity || rank.progress != progress;
  if (moved) {
    if (!first && !max_pause_.has_value()) pauses.Observe(rank.activity, rank.pause);
    rank.pause = absl::ZeroDuration();
  } else {
    rank.pause += std::min(now - rank.last_heartbeat, 2 * heartbeat_);
  }
  rank.activity = activity;
  rank.progress = progress;
  rank.last_heartbeat = now;
}

absl::Duration ProgressWatch::pause() const {
  if (ranks_.empty()) return absl::ZeroDuration();
  return std::min_element(
             ranks_.begin(), ranks_.end(),
             [](const auto& a, const auto& b) { return a.second.pause < b.second.pause; })
      ->second.pause;
}

absl::Duration ProgressWatch::program_pause() const {
  const bool works = std::none_of(ranks_.begin(), ranks_.end(), [](const auto& entry) {
    const v1::Activity activity = entry.second.activity;
    return activity == v1::ACTIVITY_EXCHANGING || activity == v1::ACTIVITY_WAITING ||
           activity == v1::ACTIVITY_UNSPECIFIED;
  });
  return max_pause_.has_value() && works ? pause() : absl::ZeroDuration();
}

absl::Duration ProgressWatch::Limit(v1::Activity activity, absl::Duration step,
                                    const Pauses& pauses) const {
  if (!max_pause_.has_value() || activity == v1::ACTIVITY_EXCHANGING) {
    return pauses.Limit(activity, step);
  }
  return stepped_ ? *max_pause_ : absl::InfiniteDuration();
}

std::optional<ProgressWatch::Stall> ProgressWatch::Check(uint32_t ranks, absl::Duration step,
                                                         const Pauses& pauses) const {
  if (ranks_.size() < ranks) return std::nullopt;
  Stall stall;
  absl::Duration shortest = absl::InfiniteDuration();
  absl::Duration limit = absl::ZeroDuration();
  for (const auto& [number, rank] : ranks_) {
    if (rank.activity == v1::ACTIVITY_UNSPECIFIED) return std::nullopt;
    if (rank.activity == v1::ACTIVITY_WAITING) continue;
    shortest = std::min(shortest, rank.pause);
    limit = std::max(limit, Limit(rank.activity, step, pauses));
    if (rank.pause < stall.pause) continue;
    stall.pause = rank.pause;
    stall.activity = rank.activity;
  }
  if (shortest < limit || shortest == absl::InfiniteDuration()) return std::nullopt;
  for (const auto& [number, rank] : ranks_) {
    const bool first = rank.pause + 2 * heartbeat_ >= stall.pause;
    if (rank.activity != v1::ACTIVITY_WAITING && first) stall.suspects.push_back(number);
  }
  if (ranks > 1 && stall.suspects.size() == ranks) stall.suspects.clear();
  return stall;
}

}  // namespace cadre
