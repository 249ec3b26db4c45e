#include "tests/simulation/coordinators.h"

#include <utility>

#include "absl/strings/match.h"
#include "coordinator/run/run_rules.h"
#include "coordinator/store/keys.h"

namespace cadre::simulation {
namespace {

// A store may return within this time after a shard was restored.
constexpr absl::Duration kMaxAfterSeed = absl::Seconds(1);

// As in coordinator/service/backup.
void MarkAsBackup(SimulatedCoordinator::Records& store) {
  const auto meta = store.find(kMetaKey);
  if (meta == store.end()) return;
  v1::MetaRecord record;
  record.ParseFromString(meta->second);
  record.set_backup(true);
  meta->second = record.SerializeAsString();
}

// A run that has no version in the copy begins anew if the aggregators that have its versions are
// away, and a user must decide when they return.
bool AllRunsHaveVersions(const SimulatedCoordinator::Records& store) {
  for (auto it = store.lower_bound(kRunPrefix);
       it != store.end() && absl::StartsWith(it->first, kRunPrefix); ++it) {
    v1::RunRecord run;
    ParseRun(store, it->first, run).IgnoreError();
    const bool needs_version = IsLive(run.state()) && Averages(run.spec());
    if (needs_version && !store.contains(CommitKey(run.run(), run.version()))) return false;
  }
  return true;
}

}  // namespace

std::optional<SimulatedCoordinator::Records> Coordinators::CopyOfStore() const {
  if (two_ || !AllRunsHaveVersions(current().store())) return std::nullopt;
  return current().store();
}

void Coordinators::Crash(absl::Duration downtime, absl::Duration jump) {
  SimulatedCoordinator& one = two_ && world_.dice.Chance(0.5) ? both_[1 - current_] : current();
  one.Crash(downtime);
  one.JumpClock(jump);
}

void Coordinators::RestoreStoreAfter(absl::Duration time) {
  std::optional<SimulatedCoordinator::Records> backup = CopyOfStore();
  if (!backup.has_value()) return;
  MarkAsBackup(*backup);
  pending_.End();
  const auto restore = [this, backup = *std::move(backup)] {
    world_.Count("stores_restored");
    ++changes_;
    current().Crash();
    world_.Log("c     has an older store");
    current().SetStore(backup);
    invariants_.OnStoreRestored(current_, backup);
  };
  if (world_.dice.Chance(0.3)) return world_.timeline.After(time, pending_, restore);
  world_.on_seed_applied = [this, restore] {
    world_.timeline.After(world_.dice.Between(absl::ZeroDuration(), kMaxAfterSeed), pending_,
                          restore);
  };
}

void Coordinators::StartSecond(absl::Duration age, absl::Duration length, double partitioned) {
  std::optional<SimulatedCoordinator::Records> copy = CopyOfStore();
  if (!copy.has_value()) return;
  pending_.End();
  world_.timeline.After(age, pending_, [this, length, partitioned, copy = *std::move(copy)] {
    world_.on_seed_applied = nullptr;
    BeginTwo(copy, partitioned);
    world_.timeline.After(length, pending_, [this] { EndTwo(); });
  });
}

// A plain copy would give out the numbers of the runs that were submitted since.
void Coordinators::BeginTwo(SimulatedCoordinator::Records copy, double partitioned) {
  SimulatedCoordinator& second = both_[1 - current_];
  second.SetStore(copy);
  const bool same_runs = second.meta().run() == current().meta().run();
  if (!same_runs || world_.dice.Chance(0.5)) MarkAsBackup(copy);
  world_.Count("second_coordinators");
  two_ = true;
  invariants_.OnSecondCoordinator(1 - current_, copy);
  second.SetStore(std::move(copy));
  for (auto& [name, host] : world_.hosts) {
    if (world_.dice.Chance(partitioned)) host.reaches[world_.dice.Between(0, 1)] = false;
  }
  second.Start();
  network_.BreakUnreachable();
}

void Coordinators::EndTwo() {
  const size_t ended = world_.dice.Between(0, 1);
  const size_t left = 1 - ended;
  world_.Log("c", ended, "    ends permanently");
  const bool replaced = both_[left].meta().epoch() < both_[ended].meta().epoch();
  both_[ended].Stop();
  two_ = false;
  current_ = left;
  ++changes_;
  for (auto& [name, host] : world_.hosts) host.reaches = {true, true};
  invariants_.OnCoordinatorEnded(ended, both_[left].store());
  if (replaced) both_[left].Crash();
}

void Coordinators::EndFaults() {
  world_.on_seed_applied = nullptr;
  pending_.End();
  if (two_) EndTwo();
}

}  // namespace cadre::simulation
