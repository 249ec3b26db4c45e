#include "tests/simulation/liveness.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "coordinator/keys.h"
#include "coordinator/run_rules.h"

namespace cadre::simulation {
namespace {

constexpr absl::Duration kSample = absl::Seconds(1);
// Two leases: time for a lease to end, and for messages that were delayed before.
constexpr absl::Duration kMaxSilence = absl::Seconds(20);
// The grace window beyond min_grace, which a round learns from late groups (coordinator/round.h).
constexpr absl::Duration kMaxLearnedGrace = absl::Minutes(2);
// Preparation, retries of calls and orders, the wait for a group whose stream has ended. Each is
// at most a few seconds without faults.
constexpr absl::Duration kSlack = absl::Minutes(1);
// While calls and streams break at random, an exchange and a reconnection are repeated: the
// simulation repeats a call after up to 3 s, and 8 % of all messages of calls break.
constexpr absl::Duration kSlackWithFaults = absl::Minutes(3);

}  // namespace

// A group needs H steps for a round, at most 1.5 times its usual step time each; one that joined
// late, or contributed too late, needs H more.
absl::Duration Liveness::CommitLimit(const v1::RunSpec& spec, absl::Duration step) const {
  const bool faults = world_.faults.break_call + world_.faults.break_stream +
                          world_.faults.slow_message + world_.faults.full_disk >
                      0;
  absl::Duration limit =
      3 * step * spec.averaging().every_steps() + (faults ? kSlackWithFaults : kSlack);
  if (spec.averaging().quorum() > 0) limit += MinGrace(spec) + kMaxLearnedGrace;
  return limit;
}

void Liveness::Check() {
  // An older store does not have the workers that have joined since, and its groups have ended.
  if (std::exchange(stores_restored_, coordinator_.stores_restored()) != stores_restored_) {
    members_.clear();
    groups_.clear();
  }
  CheckMembers();
  const auto& store = coordinator_.store();
  for (auto it = store.lower_bound(kRunPrefix);
       it != store.end() && absl::StartsWith(it->first, kRunPrefix); ++it) {
    v1::RunRecord run;
    ParseRun(store, it->first, run).IgnoreError();
    if (Averages(run.spec())) CheckRun(run);
    for (uint32_t slot = 0; slot < GroupsOf(run.spec()); ++slot) CheckGroup(run, slot);
  }
}

void Liveness::CheckRun(const v1::RunRecord& run) {
  const absl::Time now = world_.timeline.now();
  Watched& watched = runs_[run.run()];
  if (!IsHealthy(run) || watched.version != run.version()) {
    watched = {.version = run.version(), .since = now};
    return;
  }
  absl::Duration step;
  for (const auto& worker : workers_) step = std::max(step, worker->step_time());
  const absl::Duration limit = CommitLimit(run.spec(), step);
  if (now - watched.since <= limit) return;
  world_.Violate(run.run(), " has made no version after ", run.version(), " for ",
                 absl::FormatDuration(now - watched.since),
                 ", although nothing was wrong with its groups");
}

bool Liveness::IsHealthy(const v1::RunRecord& run) const {
  if (run.state() != v1::RUN_STATE_RUNNING || !AreShardsHealthy()) return false;
  uint32_t healthy = 0;
  uint32_t ill = 0;
  const auto& store = coordinator_.store();
  for (uint32_t slot = 0; slot < GroupsOf(run.spec()); ++slot) {
    const auto found = store.find(GroupKey(run.run(), slot));
    v1::GroupRecord group;
    if (found == store.end() || !group.ParseFromString(found->second)) continue;
    if (group.generation() != 0) ++(IsHealthy(group) ? healthy : ill);
  }
  const v1::Averaging& averaging = run.spec().averaging();
  if (averaging.quorum() == 0 && ill > 0) return false;
  return healthy >= std::max({1U, averaging.quorum(), averaging.min_groups()});
}

bool Liveness::AreShardsHealthy() const {
  if (!coordinator_.up() || coordinator_.stalled()) return false;
  return std::all_of(aggregators_.begin(), aggregators_.end(), [this](const auto& aggregator) {
    return aggregator->joined() && IsHealthyHost(aggregator->name());
  });
}

bool Liveness::IsHealthy(const v1::GroupRecord& group) const {
  return std::all_of(group.members().begin(), group.members().end(), [this](const auto& id) {
    return std::any_of(workers_.begin(), workers_.end(), [&](const auto& worker) {
      return worker->joined() && worker->member_id() == id && IsHealthyHost(worker->name());
    });
  });
}

bool Liveness::IsHealthyHost(const std::string& host) const {
  return world_.hosts[host].IsHealthy(world_.timeline.now());
}

// While the coordinator does not run, a worker cannot learn of an earlier loss, so this time does
// not count. A worker without a stream may need several attempts to join again.
void Liveness::CheckMembers() {
  const absl::Time now = world_.timeline.now();
  const bool runs = coordinator_.up() && !coordinator_.stalled();
  std::map<std::string, absl::Time> members;
  for (const auto& worker : workers_) {
    if (!worker->up() || !IsHealthyHost(worker->name())) continue;
    const bool unregistered = worker->unregistered_at() >= now - kSample;
    if (!worker->joined() && !unregistered) continue;
    const auto before = members_.find(worker->incarnation());
    const absl::Time since =
        before == members_.end() ? now : before->second + (runs ? absl::ZeroDuration() : kSample);
    members[worker->incarnation()] = since;
    if (!unregistered || now - since < kMaxSilence) continue;
    world_.Violate(worker->name(),
                   " has lost its registration, although nothing was wrong with it");
  }
  members_ = std::move(members);
}

// The group's record says why its last generation has ended.
void Liveness::CheckGroup(const v1::RunRecord& run, uint32_t slot) {
  v1::GroupRecord group;
  const auto found = coordinator_.store().find(GroupKey(run.run(), slot));
  if (found == coordinator_.store().end() || !group.ParseFromString(found->second)) return;
  const absl::Time now = world_.timeline.now();
  Healthy& healthy = groups_[found->first];
  const bool stalled = absl::StartsWith(group.reason(), "no progress");
  if (healthy.generation != 0 && healthy.generation != group.generation() && stalled &&
      now - healthy.since > kMaxSilence) {
    world_.Violate("generation ", healthy.generation, " of ", run.run(), " was ended (",
                   group.reason(), "), although nothing was wrong with it");
  }
  const bool same = healthy.generation == group.generation();
  if (!same || !AreShardsHealthy() || !IsHealthy(group)) healthy = {group.generation(), now};
}

}  // namespace cadre::simulation
