#include "tests/simulation/loads.h"

#include <algorithm>
#include <set>

#include "absl/strings/match.h"
#include "coordinator/run/commits.h"
#include "coordinator/run/run_rules.h"
#include "coordinator/store/keys.h"
#include "model/kept_versions.h"
#include "tests/simulation/describe.h"
#include "tests/simulation/stored_records.h"

namespace cadre::simulation {
namespace {

// A group that has made progress within this time is not paused for the coordinator, which learns
// of progress with heartbeats and tolerates kMaxLoadPause.
constexpr absl::Duration kProgressPause = absl::Seconds(4);
// A group without progress for this time is paused for the coordinator, too.
constexpr absl::Duration kLongPause = absl::Seconds(18);
// Reports of groups arrive within this time.
constexpr absl::Duration kMaxReport = absl::Seconds(10);
// A round that closes for longer waits for a shard, which is not open for the coordinator.
constexpr absl::Duration kMaxClosing = absl::Seconds(2);

}  // namespace

void Loads::Check() {
  // The commits of an adopted run are those of another coordinator.
  const uint64_t adopted = world_.counters["runs_adopted"];
  const bool foreign = std::exchange(adopted_, adopted) != adopted;
  if (std::exchange(changes_, coordinators_.changes()) != changes_ || coordinators_.two() ||
      foreign) {
    runs_.clear();
    judged_.clear();
    closing_.clear();
    NoteForeign();
  }
  const SimulatedCoordinator& coordinator = coordinators_.current();
  if (coordinators_.two() || !coordinator.up() || coordinator.stalled()) {
    stalled_ = true;
    return;
  }
  const uint64_t ended = world_.counters["streams_broken"] + world_.counters["queues_full"];
  // A coordinator that has started learns of pauses anew, and one that goes on learns of them late.
  const uint64_t starts = world_.counters["coordinator_starts"];
  const bool stalled = std::exchange(stalled_, false);
  const bool restarted = std::exchange(starts_, starts) != starts || stalled;
  shards_away_ =
      std::exchange(streams_ended_, ended) != ended || restarted ||
      std::any_of(aggregators_.begin(), aggregators_.end(), [this](const auto& one) {
        // A shard is away from the end of a lease until its aggregator has opened it.
        const HostConditions& host = world_.hosts[one->name()];
        return !one->joined() || std::max({host.busy, host.cut_up, host.cut_down, host.congested,
                                           host.process.OpensAt()}) > world_.timeline.now();
      });
  const auto& store = coordinator.store();
  for (auto it = store.lower_bound(kRunPrefix);
       it != store.end() && absl::StartsWith(it->first, kRunPrefix); ++it) {
    v1::RunRecord run;
    ParseRun(store, it->first, run).IgnoreError();
    if (IsLive(run.state()) && Averages(run.spec())) CheckRun(run);
  }
}

void Loads::NoteForeign() {
  for (const auto& worker : workers_) {
    const SimulatedSession* const session = worker->session();
    if (session == nullptr || !session->loads().has_value()) continue;
    foreign_.emplace(session->place().generation(), *session->loads());
  }
}

void Loads::CheckRun(const v1::RunRecord& run) {
  const auto& store = coordinators_.current().store();
  Groups& before = runs_[run.run()];
  const bool away = shards_away_ || AwaitsShard(run);
  Groups now;
  const std::string prefix = GroupsPrefix(run.run());
  for (auto it = store.lower_bound(prefix);
       it != store.end() && absl::StartsWith(it->first, prefix); ++it) {
    const auto record = Parse<v1::GroupRecord>(it->second);
    if (record.started()) now[record.group()] = Sample(record, before[record.group()], away);
  }
  const auto [judged, is_new] = judged_.try_emplace(run.run(), run.version() + 1);
  for (uint32_t round = judged->second + 1; round <= run.version() + 1; ++round) {
    const auto commit = Read<v1::CommitRecord>(store, CommitKey(run.run(), round));
    if (!commit.has_value()) continue;
    // What groups did when an earlier round was closed is not known any more.
    const absl::Time closed = absl::FromUnixMillis(commit->closed_ms());
    const bool is_recent = world_.timeline.now() - closed <= kMaxReport;
    if (!is_new && is_recent) CheckCommit(run, *commit, before, now);
    judged->second = round;
  }
  before = std::move(now);
}

bool Loads::AwaitsShard(const v1::RunRecord& run) {
  const absl::Time now = world_.timeline.now();
  const uint32_t round = run.version() + 1;
  if (!coordinators_.current().store().contains(CommitKey(run.run(), round))) return false;
  auto& [closing, since] = closing_[run.run()];
  if (std::exchange(closing, round) != round) since = now;
  return now - since > kMaxClosing;
}

Loads::Group Loads::Sample(const v1::GroupRecord& record, Group before, bool away) const {
  const absl::Time now = world_.timeline.now();
  Group group = std::move(before);
  if (group.generation != record.generation()) group = {.progressed = now, .watched = now};
  group.generation = record.generation();
  while (!group.had.empty() && now - group.had.front().first > kMaxReport) group.had.pop_front();
  uint64_t progress = 0;
  int ranks = 0;
  const SimulatedSession* lead = nullptr;
  group.streams.clear();
  for (const auto& worker : workers_) {
    const SimulatedSession* const session = worker->session();
    if (session == nullptr || session->place().run() != record.run() ||
        session->place().generation() != record.generation()) {
      continue;
    }
    const HostConditions& host = world_.hosts.at(worker->name());
    const bool reports = worker->intact_stream() != 0 && host.cut_up <= now &&
                         host.cut_down <= now && host.congested <= now;
    ranks += reports ? 1 : 0;
    progress += worker->progress();
    group.streams.push_back(worker->intact_stream());
    if (session->place().rank() == 0) lead = session;
  }
  group.connected = ranks == record.members_size();
  if (std::exchange(group.progress, progress) < progress) {
    if (now - group.progressed > kProgressPause) group.resumed = now;
    group.progressed = now;
  }
  group.watched = away ? now : std::max(group.watched, group.progressed);
  group.loads = lead == nullptr ? std::nullopt : lead->loads();
  const bool waits = !group.connected || lead == nullptr || lead->awaits_decision();
  if (waits || now - group.watched <= kLongPause) {
    group.had.emplace_back(now, lead == nullptr ? 0 : lead->version());
  }
  return group;
}

void Loads::CheckCommit(const v1::RunRecord& run, const v1::CommitRecord& commit,
                        const Groups& before, const Groups& now) {
  std::set<uint32_t> loaded;
  for (const auto& [slot, group] : now) {
    const auto was = before.find(slot);
    const bool same = was != before.end() && was->second.generation == group.generation &&
                      was->second.streams == group.streams && was->second.loads == group.loads;
    const bool goes_on = same && group.connected && group.loads.has_value() &&
                         world_.timeline.now() - group.progressed <= kProgressPause &&
                         world_.timeline.now() - group.resumed > kMaxReport;
    if (!goes_on || foreign_.contains({group.generation, *group.loads})) continue;
    if (*group.loads + 1 < commit.round()) loaded.insert(*group.loads);
  }
  const auto previous = Read<v1::CommitRecord>(coordinators_.current().store(),
                                               CommitKey(run.run(), commit.round() - 1));
  for (const uint32_t version : loaded) {
    // It was given up when the group was paused.
    if (previous.has_value() && !Keeps(*previous, version)) continue;
    world_.Count("loaded_versions");
    if (Keeps(commit, version) || loaded.size() > kMaxLoadedVersions) continue;
    world_.Violate(Describe(commit), " does not keep version ", version, ", which a group loads");
  }
  const uint32_t every = KeptVersionsOf(run.spec().averaging()).every;
  const auto next = Read<v1::CommitRecord>(coordinators_.current().store(),
                                           CommitKey(run.run(), commit.round() + 1));
  for (const uint32_t version : commit.keep()) {
    // The run is being rolled back to it.
    if (run.has_rollback() && run.rollback() == version) continue;
    if (next.has_value() && next->has_restores() && next->restores() == version) continue;
    const auto may_load = [version](const auto& entry) {
      return std::any_of(entry.second.had.begin(), entry.second.had.end(),
                         [version](const auto& had) { return had.second <= version; });
    };
    if (version % every == 0 || std::any_of(now.begin(), now.end(), may_load) ||
        std::any_of(before.begin(), before.end(), may_load)) {
      continue;
    }
    world_.Violate(Describe(commit), " keeps version ", version, ", which no group loads");
  }
}

}  // namespace cadre::simulation
