// A quorum without a window would exclude a group that is always slightly slower than the others; a
// window of fixed length would either wait too long or exclude it when the delay grows. The window
// therefore follows the observed delay, like the retransmission timeout of TCP (RFC 6298): an
// exponential average with weight 1/4, times a margin of 4. The delays of groups that miss the
// window count as well (NoteLate), so the window grows until these groups are included again.
#include "coordinator/run/round.h"

#include <algorithm>
#include <utility>

#include "base/median.h"
#include "coordinator/run/run_rules.h"
#include "model/training_metrics.h"

namespace cadre {
namespace {

// Weight of the newest round in the exponential average.
constexpr double kNewest = 0.25;
// The window is this multiple of the average delay.
constexpr double kMargin = 4;
constexpr absl::Duration kMaxBeyond = absl::Minutes(2);

}  // namespace

void Round::Open(uint32_t round) {
  round_ = round;
  arrivals_.clear();
}

bool Round::Add(const v1::Contributed& contributed, uint32_t ranks, absl::Time now) {
  return arrivals_.try_emplace(contributed.place().group(), Arrival{contributed, ranks, now})
      .second;
}

void Round::End(uint32_t group) {
  const auto found = arrivals_.find(group);
  if (found == arrivals_.end()) return;
  if (found->second.contributed.leaves()) {
    found->second.left = true;
  } else {
    arrivals_.erase(found);
  }
}

size_t Round::RemoveLeft() {
  return std::erase_if(arrivals_, [](const auto& entry) { return entry.second.left; });
}

bool Round::HasLeft(uint32_t group) const {
  const auto found = arrivals_.find(group);
  return found != arrivals_.end() && found->second.left;
}

size_t Round::left() const {
  return std::count_if(arrivals_.begin(), arrivals_.end(),
                       [](const auto& entry) { return entry.second.left; });
}

void Round::NoteLate(absl::Time now) {
  if (last_quorum_ == absl::InfiniteFuture()) return;
  AddDelay(now - last_quorum_);
}

bool Round::MayClose(size_t live, const Away& away, absl::Time now) const {
  return now >= ClosesAt(live, away);
}

absl::Time Round::ClosesAt(size_t live, const Away& away) const {
  if (arrivals_.size() < std::max(1U, options_.min_groups)) return absl::InfiniteFuture();
  size_t arrived = arrivals_.size();
  absl::Time awaited = absl::InfinitePast();
  for (const auto& [group, until] : away) {
    if (Has(group)) continue;
    awaited = std::max(awaited, until);
    ++arrived;
  }
  if (arrived < live + left()) awaited = absl::InfiniteFuture();
  return options_.quorum == 0 ? awaited : std::min(awaited, QuorumAt() + Grace());
}

absl::Duration Round::Grace() const {
  return std::clamp(kMargin * smoothed_delay_, options_.min_grace, options_.min_grace + kMaxBeyond);
}

v1::CommitRecord Round::Close(const std::string& run, absl::Time now) {
  v1::CommitRecord commit;
  commit.set_run(run);
  commit.set_round(round_);
  absl::Time last = absl::InfinitePast();
  for (const auto& [group, arrival] : arrivals_) {
    const v1::Contributed& contributed = arrival.contributed;
    v1::Participant& participant = *commit.add_participants();
    participant.set_group(group);
    participant.set_generation(contributed.place().generation());
    participant.set_ranks(arrival.ranks);
    participant.set_samples(contributed.samples());
    *commit.add_claims() = contributed;
    last = std::max(last, arrival.when);
  }
  SumUp(commit);
  last_quorum_ = std::min(QuorumAt(), now);
  if (arrivals_.size() > 1) AddDelay(last - last_quorum_);
  return commit;
}

void SumUp(v1::CommitRecord& commit) {
  commit.clear_step();
  commit.clear_samples();
  commit.clear_loss();
  commit.clear_metrics();
  double loss = 0;
  // Samples of the groups that know their loss.
  double samples = 0;
  MetricMeans metrics;
  // Those of the largest step.
  std::vector<double> rates;
  for (const v1::Contributed& contributed : commit.claims()) {
    if (contributed.step() > commit.step()) rates.clear();
    commit.set_step(std::max(commit.step(), contributed.step()));
    if (contributed.step() == commit.step()) rates.push_back(contributed.rate());
    commit.set_samples(commit.samples() + contributed.samples());
    if (contributed.has_loss()) {
      loss += static_cast<double>(contributed.loss()) * static_cast<double>(contributed.samples());
      samples += static_cast<double>(contributed.samples());
    }
    metrics.Add(contributed.metrics(), static_cast<double>(contributed.samples()));
  }
  if (v1::TrainingMetrics means = metrics.Result(); HasMetrics(means)) {
    *commit.mutable_metrics() = std::move(means);
  }
  commit.set_rate(static_cast<float>(Median(std::move(rates))));
  commit.mutable_outer()->set_rate(commit.rate());
  if (samples > 0) commit.set_loss(static_cast<float>(loss / samples));
}

void Round::FillTimes(absl::Time opened, v1::CommitRecord& commit) const {
  for (const auto& [group, arrival] : arrivals_) {
    const v1::Contributed& contributed = arrival.contributed;
    v1::ParticipantTimes& times = *commit.add_times();
    times.set_group(group);
    times.set_generation(contributed.place().generation());
    times.set_samples(contributed.samples());
    if (contributed.has_loss()) times.set_loss(contributed.loss());
    times.set_arrival_seconds(
        SecondsOrZero(static_cast<float>(absl::ToDoubleSeconds(arrival.when - opened))));
    times.set_train_seconds(SecondsOrZero(contributed.train_seconds()));
    times.set_stage_seconds(SecondsOrZero(contributed.stage_seconds()));
  }
}

absl::Time Round::QuorumAt() const {
  const size_t needed = std::max(1u, options_.quorum);
  std::vector<absl::Time> times;
  for (const auto& [group, arrival] : arrivals_) times.push_back(arrival.when);
  if (times.size() < needed) return absl::InfiniteFuture();
  std::sort(times.begin(), times.end());
  return times[needed - 1];
}

void Round::AddDelay(absl::Duration delay) {
  delay = std::max(delay, absl::ZeroDuration());
  smoothed_delay_ = smoothed_delay_ * (1 - kNewest) + delay * kNewest;
}

}  // namespace cadre
