#include "coordinator/cluster/run_queue.h"

#include <algorithm>

#include "absl/algorithm/container.h"

namespace cadre {

RunQueue::Key RunQueue::KeyOf(uint32_t number) const {
  const auto found = runs_.find(number);
  return {found == runs_.end() ? 0 : -int64_t{found->second.priority}, number};
}

void RunQueue::Set(uint32_t number, Run run) {
  waiting_.erase(KeyOf(number));
  const bool waits = run.slots > 0;
  if (run.lacks == 0) blocked_.erase(KeyOf(number));
  runs_[number] = std::move(run);
  const Run& set = runs_[number];
  if (waits) waiting_.insert(KeyOf(number));
  if (set.lacks > 0) blocked_.try_emplace(KeyOf(number), set.blocked_since);
}

void RunQueue::Erase(uint32_t number) {
  waiting_.erase(KeyOf(number));
  blocked_.erase(KeyOf(number));
  runs_.erase(number);
  arriving_.erase(number);
}

std::vector<uint32_t> RunQueue::InOrder(const std::set<uint32_t>& numbers) const {
  std::vector<uint32_t> sorted(numbers.begin(), numbers.end());
  absl::c_sort(sorted, [this](uint32_t a, uint32_t b) { return KeyOf(a) < KeyOf(b); });
  return sorted;
}

template <typename Visit>
void RunQueue::ForEachWaiting(Key last, v1::Cluster::Device kind, const Visit& visit) const {
  for (auto it = waiting_.begin(); it != waiting_.end() && *it <= last; ++it) {
    const Run& run = runs_.at(it->second);
    // Slots with another device kind need none of these workers.
    if (run.device != v1::Cluster::DEVICE_UNSPECIFIED && run.device != kind) continue;
    visit(it->second, run);
  }
}

size_t RunQueue::DemandUpTo(uint32_t run, v1::Cluster::Device kind) const {
  size_t workers = 0;
  ForEachWaiting(KeyOf(run), kind,
                 [&](uint32_t, const Run& one) { workers += one.slots * one.ranks; });
  return workers;
}

size_t RunQueue::DemandBefore(uint32_t run, v1::Cluster::Device kind) const {
  size_t workers = 0;
  ForEachWaiting(KeyOf(run), kind, [&](uint32_t number, const Run& one) {
    workers += number == run ? 0 : one.slots * one.ranks;
  });
  return workers;
}

std::string RunQueue::FirstBefore(uint32_t run, v1::Cluster::Device kind) const {
  std::string first;
  ForEachWaiting(KeyOf(run), kind, [&](uint32_t number, const Run& one) {
    if (number != run && first.empty()) first = one.id;
  });
  return first;
}

RunQueue::Blocked RunQueue::HeldByBlocked(uint32_t run, v1::Cluster::Device kind) const {
  Blocked blocked;
  for (const auto& [key, since] : blocked_) {
    const Run& one = runs_.at(key.second);
    if (key.second == run) continue;
    const size_t held = members_.counts().PlacedIn(one.id, kind);
    if (held > 0 && blocked.workers == 0) blocked.first = one.id;
    blocked.workers += held;
  }
  return blocked;
}

bool RunQueue::LetsContinue(Key giver, Key taker) const {
  const Run& needs = runs_.at(taker.second);
  const auto has_usable = [&needs](const Run& one) {
    return !one.of_programs && one.precision == needs.precision;
  };
  if (needs.of_programs || !has_usable(runs_.at(giver.second))) return false;
  for (const v1::Cluster::Device kind : {v1::Cluster::CPU, v1::Cluster::CUDA}) {
    if (needs.device != v1::Cluster::DEVICE_UNSPECIFIED && needs.device != kind) continue;
    size_t workers = members_.counts().Idle(kind);
    for (auto it = blocked_.upper_bound(giver); it != blocked_.end(); ++it) {
      const Run& later = runs_.at(it->first.second);
      if (has_usable(later)) workers += members_.counts().PlacedIn(later.id, kind);
    }
    const size_t given = members_.counts().PlacedIn(runs_.at(giver.second).id, kind);
    if (workers < needs.lacks && needs.lacks <= workers + given) return true;
  }
  return false;
}

std::optional<std::string> RunQueue::TakerFrom(uint32_t run, absl::Time now) const {
  const auto giver = blocked_.find(KeyOf(run));
  if (giver == blocked_.end() || now < giver->second + kMaxBlocked) return std::nullopt;
  for (auto taker = blocked_.begin(); taker != giver; ++taker) {
    if (now < taker->second + kMaxBlocked || !LetsContinue(giver->first, taker->first)) continue;
    return runs_.at(taker->first.second).id;
  }
  return std::nullopt;
}

std::vector<uint32_t> RunQueue::Givers(absl::Time now) const {
  std::vector<uint32_t> givers;
  for (const auto& [key, since] : blocked_) {
    if (TakerFrom(key.second, now).has_value()) givers.push_back(key.second);
  }
  return givers;
}

absl::Time RunQueue::BlockedUntil(uint32_t run) const {
  const auto found = blocked_.find(KeyOf(run));
  return found == blocked_.end() ? absl::InfiniteFuture() : found->second + kMaxBlocked;
}

bool RunQueue::AnyDemandUpTo(uint32_t run) const {
  return !waiting_.empty() && *waiting_.begin() <= KeyOf(run);
}

std::optional<RunQueue::Start> RunQueue::ExpectedStart(uint32_t run,
                                                       v1::Cluster::Device kind) const {
  const auto found = runs_.find(run);
  if (found == runs_.end()) return std::nullopt;
  std::vector<const Run*> ends;
  for (const auto& [number, one] : runs_) {
    if (number != run && one.end < absl::InfiniteFuture()) ends.push_back(&one);
  }
  absl::c_sort(ends, [](const Run* a, const Run* b) { return a->end < b->end; });
  const size_t needed = DemandBefore(run, kind) + found->second.ranks;
  size_t idle = members_.counts().Idle(kind);
  for (const Run* one : ends) {
    idle += members_.counts().PlacedIn(one->id, kind);
    if (idle >= needed) return Start{one->end, one->id};
  }
  return std::nullopt;
}

void RunQueue::SetArriving(uint32_t number, const std::string& aggregator, int64_t bytes) {
  if (aggregator.empty()) {
    arriving_.erase(number);
  } else {
    arriving_[number] = {aggregator, bytes};
  }
}

int RunQueue::CountShards(absl::string_view aggregator) const {
  int shards = 0;
  for (const auto& [number, run] : runs_) {
    shards += static_cast<int>(absl::c_count(run.shards, aggregator));
  }
  for (const auto& [number, arrival] : arriving_) shards += arrival.aggregator == aggregator;
  return shards;
}

int64_t RunQueue::UnreportedBytes(absl::string_view aggregator, uint32_t except) const {
  int64_t bytes = 0;
  for (const auto& [number, run] : runs_) {
    if (number == except) continue;
    if (absl::c_linear_search(run.shards, aggregator)) bytes += run.unreported_bytes;
  }
  for (const auto& [number, arrival] : arriving_) {
    if (number != except && arrival.aggregator == aggregator) bytes += arrival.bytes;
  }
  return bytes;
}

}  // namespace cadre
