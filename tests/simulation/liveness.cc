#include "tests/simulation/liveness.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/run/run_rules.h"
#include "coordinator/store/keys.h"

namespace cadre::simulation {
namespace {

constexpr absl::Duration kSample = absl::Seconds(1);
// Two leases: time for a lease to end, and for messages that were delayed before.
constexpr absl::Duration kMaxSilence = absl::Seconds(20);
// The grace window beyond min_grace, which a round learns from late groups
// (coordinator/run/round.h).
constexpr absl::Duration kMaxLearnedGrace = absl::Minutes(2);
// Preparation, retries of calls and orders, the wait for a group whose stream has ended. Each is
// at most a few seconds without faults.
constexpr absl::Duration kSlack = absl::Minutes(1);
// While calls and streams break at random, an exchange and a reconnection are repeated: the
// simulation repeats a call after up to 3 s, and 8 % of all messages of calls break.
constexpr absl::Duration kSlackWithFaults = absl::Minutes(3);
// An order is repeated two seconds after its failure, and after a few others of 120 ms each.
constexpr absl::Duration kMaxRetryWait = absl::Seconds(4);

}  // namespace

// A group needs H steps for a round, at most 1.5 times its usual step time each; one that joined
// late, or contributed too late, needs H more.
absl::Duration Liveness::CommitLimit(const v1::RunSpec& spec, absl::Duration step) const {
  const bool faults = world_.timeline.now() < random_faults_at_ + kSlack;
  absl::Duration limit =
      3 * step * spec.averaging().every_steps() + (faults ? kSlackWithFaults : kSlack);
  if (spec.averaging().quorum() > 0) limit += MinGrace(spec) + kMaxLearnedGrace;
  return limit;
}

void Liveness::Check() {
  const auto& rates = world_.faults;
  if (rates.break_call + rates.break_stream + rates.slow_message + rates.full_disk > 0) {
    random_faults_at_ = world_.timeline.now();
  }
  if (coordinators_.two()) return;
  // An older store does not have the workers that have joined since, and its groups have ended.
  if (std::exchange(changes_, coordinators_.changes()) != changes_) {
    members_.clear();
    groups_.clear();
    runs_.clear();
    joining_.clear();
  }
  // The groups that catch up are not durable.
  const uint64_t starts = world_.counters["coordinator_starts"];
  if (std::exchange(coordinator_starts_, starts) != starts) joining_.clear();
  CheckMembers();
  CheckOrders();
  const auto& store = coordinator().store();
  for (auto it = store.lower_bound(kRunPrefix);
       it != store.end() && absl::StartsWith(it->first, kRunPrefix); ++it) {
    v1::RunRecord run;
    ParseRun(store, it->first, run).IgnoreError();
    if (Averages(run.spec())) {
      CheckRun(run);
      CheckJoiners(run);
    }
    for (uint32_t slot = 0; slot < DivisionOf(run).groups(); ++slot) CheckGroup(run, slot);
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

// ---- Groups that join while others train

std::vector<v1::GroupRecord> Liveness::StartedGroupsOf(const v1::RunRecord& run) const {
  std::vector<v1::GroupRecord> groups;
  const std::string prefix = GroupsPrefix(run.run());
  const auto& store = coordinator().store();
  for (auto it = store.lower_bound(prefix);
       it != store.end() && absl::StartsWith(it->first, prefix); ++it) {
    v1::GroupRecord group;
    if (group.ParseFromString(it->second) && group.started()) groups.push_back(std::move(group));
  }
  return groups;
}

const SimulatedWorker* Liveness::LeadOf(const v1::GroupRecord& group) const {
  for (const auto& worker : workers_) {
    if (worker->intact_stream() == 0 || worker->member_id() != group.members(0)) continue;
    const SimulatedSession* const session = worker->session();
    const bool current = session != nullptr && session->running() &&
                         session->place().run() == group.run() &&
                         session->place().generation() == group.generation();
    return current ? worker.get() : nullptr;
  }
  return nullptr;
}

std::string Liveness::SituationOf(const v1::RunRecord& run, const Joining& joining) const {
  const bool open = run.state() == v1::RUN_STATE_RUNNING && run.spec().averaging().quorum() == 0 &&
                    !coordinator().store().contains(CommitKey(run.run(), run.version() + 1));
  if (!open || !AreShardsHealthy(run.run())) return "";
  std::string situation =
      absl::StrCat("version ", run.version(), ", stalls ", world_.counters["coordinator_stalls"]);
  bool waiting = false;
  for (const v1::GroupRecord& group : StartedGroupsOf(run)) {
    const SimulatedWorker* const lead = IsHealthy(group) ? LeadOf(group) : nullptr;
    if (lead == nullptr) return "";
    const SimulatedSession& session = *lead->session();
    const bool waits = session.awaits_decision() && session.staged_round() == run.version() + 1;
    const bool joins = joining.joiners.contains(group.group()) && session.staged_round() == 0 &&
                       session.steps_begun() > 0 && session.version() == run.version();
    if (!waits && !joins) return "";
    waiting = waiting || waits;
    absl::StrAppend(&situation, ", #", group.generation(), waits ? " waits" : " joins",
                    " on stream ", lead->intact_stream());
  }
  return waiting ? situation : "";
}

// The coordinator requests the contribution of a joiner (Nudge) when all others have contributed.
// If no message is on its way, the joiner has received the request; it may begin one step more, if
// its ranks had agreed on that step before.
void Liveness::CheckJoiners(const v1::RunRecord& run) {
  Joining& joining = joining_[run.run()];
  std::map<uint32_t, uint32_t> started;
  for (const v1::GroupRecord& group : StartedGroupsOf(run)) {
    started[group.group()] = group.generation();
  }
  // A group has trained since the last time.
  const bool trained = std::any_of(started.begin(), started.end(), [&](const auto& group) {
    const auto before = joining.started.find(group.first);
    return before != joining.started.end() && before->second == group.second;
  });
  for (const auto& [group, generation] : started) {
    const auto before = joining.started.find(group);
    if (before != joining.started.end() && before->second == generation) continue;
    joining.joiners.erase(group);
    if (trained) joining.joiners.insert(group);
  }
  joining.started = std::move(started);
  const std::string situation = SituationOf(run, joining);
  if (std::exchange(joining.situation, situation) != situation) joining.steps.clear();
  if (situation.empty()) return;
  world_.Count("joiners_awaited");
  const std::vector<v1::GroupRecord> groups = StartedGroupsOf(run);
  const bool quiet =
      coordinator().idle() && std::all_of(groups.begin(), groups.end(), [this](const auto& group) {
        return network_.IsQuiet(LeadOf(group)->intact_stream());
      });
  for (const v1::GroupRecord& group : groups) {
    const SimulatedSession& session = *LeadOf(group)->session();
    if (session.staged_round() != 0) continue;
    if (quiet) joining.steps.try_emplace(group.group(), session.steps_begun());
    const auto known = joining.steps.find(group.group());
    if (known == joining.steps.end()) continue;
    if (session.steps_begun() <= known->second + 1) continue;
    world_.Violate("group ", group.group(), " of ", run.run(),
                   " has started late and trains on, although all others wait for it");
  }
}

// ---- Orders

void Liveness::CheckOrders() {
  const absl::Time now = world_.timeline.now();
  std::map<std::string, absl::Time> healthy;
  for (const auto& aggregator : aggregators_) {
    if (!aggregator->up() || !IsHealthyHost(aggregator->name())) continue;
    const std::string process = absl::StrCat(aggregator->name(), ".", aggregator->process());
    const auto before = aggregators_since_.find(process);
    const absl::Time since = before == aggregators_since_.end() ? now : before->second;
    healthy[process] = since;
    const absl::Time failed = aggregator->oldest_failure();
    if (now - std::max(since, failed) <= kMaxRetryWait) continue;
    world_.Violate(aggregator->name(), " has not repeated an Apply that failed ",
                   absl::FormatDuration(now - failed), " ago, although nothing was wrong with it");
  }
  aggregators_since_ = std::move(healthy);
}

// ---- Runs, members and groups

bool Liveness::IsHealthy(const v1::RunRecord& run) const {
  if (run.state() != v1::RUN_STATE_RUNNING || !AreShardsHealthy(run.run())) return false;
  uint32_t healthy = 0;
  uint32_t ill = 0;
  const auto& store = coordinator().store();
  // A run that was scaled keeps the groups of its open round.
  for (uint32_t slot = 0; slot < std::max(GroupsOf(run.spec()), DivisionOf(run).groups()); ++slot) {
    const auto found = store.find(GroupKey(run.run(), slot));
    v1::GroupRecord group;
    if (found == store.end() || !group.ParseFromString(found->second)) continue;
    if (group.generation() != 0) ++(IsHealthy(group) ? healthy : ill);
  }
  const v1::Averaging& averaging = run.spec().averaging();
  if (averaging.quorum() == 0 && ill > 0) return false;
  return healthy >= std::max({1U, averaging.quorum(), averaging.min_groups()});
}

bool Liveness::AreShardsHealthy(const std::string& run) const {
  return AreShardsHealthyOrAway(run) &&
         std::all_of(aggregators_.begin(), aggregators_.end(),
                     [](const auto& aggregator) { return aggregator->joined(); });
}

bool Liveness::AreShardsHealthyOrAway(const std::string& run) const {
  if (!coordinator().up() || coordinator().stalled()) return false;
  return std::all_of(aggregators_.begin(), aggregators_.end(), [&](const auto& aggregator) {
    return !aggregator->joined() ||
           (IsHealthyHost(aggregator->name()) &&
            world_.hosts[aggregator->name()].SlowUntil(run) <= world_.timeline.now());
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

// The time in which the coordinator does not run does not count, because the loss may be an earlier
// one.
void Liveness::CheckMembers() {
  const absl::Time now = world_.timeline.now();
  const bool runs = coordinator().up() && !coordinator().stalled();
  std::map<std::string, Member> members;
  for (const auto& worker : workers_) {
    if (!worker->up() || !IsHealthyHost(worker->name())) continue;
    const auto before = members_.find(worker->incarnation());
    const bool known = before != members_.end();
    const absl::Time since =
        known ? before->second.since + (runs ? absl::ZeroDuration() : kSample) : now;
    if (known && !coordinator().store().contains(MemberKey(before->second.id))) {
      if (now - since < kMaxSilence) continue;
      world_.Violate(worker->name(), " has lost its registration as ", before->second.id,
                     ", although nothing was wrong with it");
    } else if (worker->joined()) {
      members[worker->incarnation()] = {.id = worker->member_id(), .since = since};
    }
  }
  members_ = std::move(members);
}

// The group's record says why its last generation has ended.
void Liveness::CheckGroup(const v1::RunRecord& run, uint32_t slot) {
  v1::GroupRecord group;
  const auto found = coordinator().store().find(GroupKey(run.run(), slot));
  if (found == coordinator().store().end() || !group.ParseFromString(found->second)) return;
  const absl::Time now = world_.timeline.now();
  Healthy& healthy = groups_[found->first];
  const bool stalled = absl::StartsWith(group.reason(), "no progress");
  if (healthy.generation != 0 && healthy.generation != group.generation() && stalled &&
      now - healthy.since > kMaxSilence) {
    world_.Violate("generation ", healthy.generation, " of ", run.run(), " was ended (",
                   group.reason(), "), although nothing was wrong with it");
  }
  const bool silent = absl::StrContains(group.reason(), "did not answer in time");
  if (healthy.generation != 0 && healthy.generation != group.generation() && silent &&
      now - healthy.since_but_away > kMaxSilence + world_.exchange_silence) {
    world_.Violate("generation ", healthy.generation, " of ", run.run(), " was ended (",
                   group.reason(), "), although nothing was wrong but aggregators that were away");
  }
  const bool well = healthy.generation == group.generation() && IsHealthy(group);
  if (!well || !AreShardsHealthyOrAway(run.run())) healthy.since_but_away = now;
  if (!well || !AreShardsHealthy(run.run())) healthy.since = now;
  healthy.generation = group.generation();
}

}  // namespace cadre::simulation
