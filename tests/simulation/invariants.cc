#include "tests/simulation/invariants.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "coordinator/run/run_rules.h"
#include "coordinator/store/keys.h"
#include "model/coding.h"
#include "model/shard_copies.h"
#include "proto/enum_text.h"
#include "tests/simulation/describe.h"
#include "tests/simulation/stored_records.h"

namespace cadre::simulation {
namespace {

uint32_t NewestGeneration(const Invariants::Store& store) {
  return Read<v1::MetaRecord>(store, kMetaKey).value_or(v1::MetaRecord()).generation();
}

void CheckMeta(World& world, const v1::MetaRecord& before, const v1::MetaRecord& after) {
  if (after.generation() < before.generation() || after.run() < before.run() ||
      after.member() < before.member() || after.starts() < before.starts()) {
    world.Violate("a counter decreased, so numbers will be reused: ", before.ShortDebugString(),
                  " became ", after.ShortDebugString());
  }
  for (const auto& [name, value] : before.counters()) {
    const auto now = after.counters().find(name);
    if (now == after.counters().end() || now->second < value) {
      world.Violate("the counter ", name, " decreased");
    }
  }
}

}  // namespace

// ---- The coordinator's store

void Invariants::OnTransaction(size_t coordinator, const Store& before, const Store& after) {
  record_checks_.OnTransaction(before, after);
  View& view = views_[coordinator];
  view.newest_before = view.newest;
  bool groups_changed = false;
  const auto meta = [](const Store& store) {
    return Read<v1::MetaRecord>(store, kMetaKey).value_or(v1::MetaRecord());
  };
  CheckMeta(world_, meta(before), meta(after));
  for (const auto& [key, bytes] : before) {
    if (after.count(key) == 0) OnErased(view, key, bytes, after);
    groups_changed |= after.count(key) == 0 && absl::StartsWith(key, kGroupPrefix);
  }
  // Groups and commits precede runs, whose records are compared with them.
  for (const auto& [key, bytes] : after) {
    auto old = before.find(key);
    if (old != before.end() && old->second == bytes) continue;
    if (absl::StartsWith(key, kGroupPrefix)) {
      groups_changed = true;
      CheckGroup(view, Parse<v1::GroupRecord>(bytes));
    } else if (absl::StartsWith(key, kCommitPrefix)) {
      const auto commit = Parse<v1::CommitRecord>(bytes);
      const auto was = Parse<v1::CommitRecord>(old == before.end() ? std::string() : old->second);
      // Another coordinator has closed the round differently, and its version was made.
      const bool replaced = restored_.contains(commit.run()) && !was.committed() &&
                            !SameMaking(was, commit) && commit.attempt() <= was.attempt();
      if (old == before.end() || replaced) {
        CheckNewCommit(view, before, after, commit);
      } else {
        CheckChangedCommit(was, commit);
      }
      CheckDigests(commit);
    }
  }
  for (const auto& [key, bytes] : after) {
    auto old = before.find(key);
    if (!absl::StartsWith(key, kRunPrefix)) continue;
    if (old != before.end() && old->second == bytes) continue;
    const v1::RunRecord run = RunIn(after, key);
    if (!run.has_spec()) {
      world_.Violate(key, " has no spec in the store");
      return;
    }
    CheckRun(after, old == before.end() ? v1::RunRecord() : RunIn(before, key), run);
  }
  if (groups_changed) CheckMembersOnce(after);
}

void Invariants::OnStoreRestored(size_t coordinator, const Store& store) {
  std::erase_if(submitted_, [&](const auto& run) { return !store.contains(RunKey(run)); });
  for (const auto& [run, spec] : specs_) restored_.insert(run);
  View& view = views_[coordinator];
  // A run that this store does not know may have had higher generations. Another run of the same id
  // has another lineage. No generation is assigned twice (CheckGroup).
  view.newest = NewestGeneration(store);
  for (auto& [slot, generation] : view.current) {
    view.ended.insert(generation);
    const auto group = Read<v1::GroupRecord>(store, cadre::GroupKey(slot.first, slot.second));
    generation = group.has_value() ? group->generation() : 0;
    view.ended.erase(generation);
  }
}

void Invariants::OnSecondCoordinator(size_t coordinator, const Store& store) {
  for (const auto& [run, spec] : specs_) restored_.insert(run);
  View view;
  view.newest = NewestGeneration(store);
  for (auto it = store.lower_bound(kGroupPrefix);
       it != store.end() && absl::StartsWith(it->first, kGroupPrefix); ++it) {
    const auto group = Parse<v1::GroupRecord>(it->second);
    view.current[{group.run(), group.group()}] = group.generation();
    view.known.insert(group.generation());
  }
  views_[coordinator] = std::move(view);
}

void Invariants::OnCoordinatorEnded(size_t coordinator, const Store& left) {
  std::erase_if(submitted_, [&](const auto& run) { return !left.contains(RunKey(run)); });
  for (const auto& [run, spec] : specs_) restored_.insert(run);
  views_.erase(coordinator);
}

// Old commits are removed; the newest two of a run, those of versions that are kept, and the one
// that is being applied, are not.
void Invariants::OnErased(View& view, const std::string& key, const std::string& bytes,
                          const Store& after) {
  if (absl::StartsWith(key, kCommitPrefix)) {
    const auto commit = Parse<v1::CommitRecord>(bytes);
    const auto run = Read<v1::RunRecord>(after, RunKey(commit.run()));
    const bool rebuilt =
        run.has_value() && commit.round() < run->version() && restored_.contains(commit.run());
    const bool kept = run.has_value() && absl::c_linear_search(run->kept(), commit.round());
    if (kept || (run.has_value() && commit.round() + 2 > run->version() && !rebuilt)) {
      world_.Violate("the store has lost the record ", key);
    }
    return;
  }
  if (absl::StartsWith(key, kRunPrefix)) {
    const auto run = Parse<v1::RunRecord>(bytes);
    if (IsLive(run.state()) || !to_delete_.contains(run.run())) {
      world_.Violate("the store has lost the record ", key);
    }
    submitted_.erase(run.run());
    // A coordinator with an older store may make other versions.
    std::erase_if(written_.by,
                  [&](const auto& written) { return written.first.first == run.run(); });
  } else if (key == kMetaKey) {
    world_.Violate("the store has lost the record ", key);
  } else if (absl::StartsWith(key, kGroupPrefix)) {
    for (const auto& [group, generation] : view.current) {
      if (cadre::GroupKey(group.first, group.second) == key) view.ended.insert(generation);
    }
  }
}

void Invariants::CheckGroup(View& view, const v1::GroupRecord& record) {
  const GroupKey slot{record.run(), record.group()};
  const uint32_t generation = record.generation();
  if (const uint32_t before = view.current[slot]; before != 0 && before != generation) {
    view.ended.insert(before);
  }
  view.current[slot] = generation;
  if (generation == 0) return;
  const std::vector<std::string> members(record.members().begin(), record.members().end());
  const auto [it, is_new] = generations_.try_emplace(generation, Generation{slot, members});
  if (view.known.insert(generation).second) {
    if (generation <= view.newest_before) {
      world_.Violate("generation ", generation, " is new, but ", view.newest_before,
                     " was used before");
    }
    if (!is_new) world_.Violate("generation ", generation, " is assigned by two coordinators");
    view.newest = std::max(view.newest, generation);
    world_.Count("generations");
  }
  if (it->second.group != slot || it->second.members != members ||
      view.ended.contains(generation)) {
    world_.Violate("generation ", generation, " is reused for group ", record.group(), " of ",
                   record.run());
  }
  it->second.started |= record.started();
}

bool Invariants::IsForgotten(uint32_t generation) const {
  return std::none_of(views_.begin(), views_.end(), [&](const auto& view) {
    return view.second.known.contains(generation) && !view.second.ended.contains(generation);
  });
}

void Invariants::CheckMembersOnce(const Store& store) {
  std::set<std::string> members;
  for (auto it = store.lower_bound(kGroupPrefix);
       it != store.end() && absl::StartsWith(it->first, kGroupPrefix); ++it) {
    const auto group = Parse<v1::GroupRecord>(it->second);
    for (const std::string& member : group.members()) {
      if (!members.insert(member).second) world_.Violate("worker ", member, " is in two groups");
    }
  }
}

// ---- Runs

void Invariants::CheckRun(const Store& after, const v1::RunRecord& before,
                          const v1::RunRecord& record) {
  const std::string& run = record.run();
  const bool is_new = before.run().empty();
  specs_[run] = record.spec();
  shards_[run] = record.shards_size();
  if (Averages(record.spec())) {
    const bool rebuilt = restored_.contains(run) && committed_.contains({run, record.version()});
    if (record.version() != before.version() && record.version() != before.version() + 1 &&
        !rebuilt) {
      world_.Violate(run, " changes from version ", before.version(), " to ", record.version());
    }
    const auto rolled_back = [&](const auto& closed) {
      return closed.first.first == run && closed.first.second > before.version() &&
             closed.second.has_restores();
    };
    if (record.step() < before.step() && absl::c_none_of(closed_, rolled_back)) {
      world_.Violate(run, " decreases its step");
    }
    const auto commit = Read<v1::CommitRecord>(after, CommitKey(run, record.version()));
    const bool recorded = commit.has_value() && commit->committed() &&
                          commit->digest() == record.digest() && commit->step() == record.step();
    if ((record.version() > 0 || record.digest() != 0) && !recorded) {
      world_.Violate(run, " is at version ", record.version(), ", which has no commit record");
    }
  }
  if (is_new) return;
  CountReassignedParts(before.evaluating(), record.evaluating());
  if (before.lineage() != record.lineage()) world_.Violate(run, " changes its lineage");
  if (!IsLive(before.state()) && before.state() != record.state()) {
    world_.Violate(run, " had ended and continues");
  }
  if (IsLive(before.state()) && !IsLive(record.state())) CheckRunEnd(record);
  // An older store may still have a run whose files were deleted since.
  const bool deleted = restored_.contains(record.run()) && to_delete_.contains(record.run());
  // Nor does a store that is older than the move of a shard name its aggregator, until that of
  // another shard shows that the record is older.
  for (int i = 0; i < std::min(before.shards_size(), record.shards_size()); ++i) {
    const bool moves = before.has_move() && before.move().to() == record.shards(i);
    if ((record.version() == 0 && !moves) || before.shards(i) == record.shards(i)) continue;
    moved_.at[{run, i}] = record.version();
    moved_.left.emplace(run, before.shards(i));
    moved_.reached.emplace(run, record.shards(i));
    if (before.move().from_copy() && before.move().to() == record.shards(i)) {
      moved_.from_copies.insert(run);
    }
  }
  const bool moved = restored_.contains(run) && moved_.Any(run);
  // A shard that continues from its copy has neither older versions nor contributions. A rank may
  // be lost before it has staged its values again.
  if (record.state() == v1::RUN_STATE_PARKED && record.diverged() && !before.diverged()) {
    world_.Count("runs_parked_diverged");
    if (!MayFail(record)) world_.Violate(run, " is parked: ", record.reason());
  } else if (record.state() == v1::RUN_STATE_PARKED && !record.diverged() && !HasLostDisk(record) &&
             !deleted && !moved && !moved_.from_copies.contains(run)) {
    world_.Violate(run, " is parked, although no disk was lost: ", record.reason());
  }
}

void Invariants::CountReassignedParts(const v1::EvaluationRecord& before,
                                      const v1::EvaluationRecord& after) {
  if (before.version() != after.version() || before.parts_size() != after.parts_size()) return;
  for (int i = 0; i < before.parts_size(); ++i) {
    const v1::EvaluationPart& was = before.parts(i);
    const v1::EvaluationPart& is = after.parts(i);
    if (was.done() && !is.done())
      world_.Violate("a finished part of an evaluation is no longer finished");
    const bool taken = was.given() && !was.done() && (!is.given() || is.group() != was.group());
    if (taken) world_.Count("evaluation_parts_reassigned");
  }
}

void Invariants::CheckRunEnd(const v1::RunRecord& record) {
  world_.Log("run   ", record.run(), " is ", EnumText(record.state()), " ", record.reason());
  world_.Count(absl::StrCat("runs_", EnumText(record.state())));
  if (record.state() == v1::RUN_STATE_FAILED) {
    if (!MayFail(record)) world_.Violate(record.run(), " failed: ", record.reason());
    return;
  }
  if (record.state() != v1::RUN_STATE_DONE) return;
  if (record.step() < TotalSteps(record) || TotalSteps(record) == 0) {
    world_.Violate(record.run(), " is done at step ", record.step(), " of ", TotalSteps(record));
  }
  if (record.test().samples() != record.test_samples() ||
      record.test().version() != record.version() || record.test().step() != record.step()) {
    world_.Violate(record.run(), " is done, but its last version is not completely evaluated: ",
                   record.test().ShortDebugString());
  }
  // Groups report one label per sample, of which at most half are correct.
  if (record.test().accuracy() > 0.5) {
    world_.Violate(record.run(), " counts parts of its evaluation twice");
  }
}

// One host cannot end a run that another host could train; the run cannot know better if there is
// only one.
bool Invariants::MayFail(const v1::RunRecord& record) const {
  if (record.version() == 0 && world_.not_created.contains(record.run())) return true;
  std::map<v1::FailureCause, std::set<std::string>> hosts;
  std::set<uint32_t> diverged;
  for (const auto* failures : {&failures_, &earlier_failures_}) {
    const auto found = failures->find(record.run());
    if (found == failures->end()) continue;
    diverged.insert(found->second.diverged.begin(), found->second.diverged.end());
    for (const auto& [cause, of_cause] : found->second.hosts) {
      hosts[cause].insert(of_cause.begin(), of_cause.end());
    }
  }
  // A run that was scaled has other groups.
  if (diverged.size() >= std::min({2U, GroupsOf(record.spec()), DivisionOf(record).groups()})) {
    return true;
  }
  return std::any_of(hosts.begin(), hosts.end(), [this](const auto& entry) {
    return entry.second.size() >= 2 || connected_workers_() <= 1;
  });
}

// ---- Commits

void Invariants::OnSeed(const Store& store, const v1::Apply& apply) {
  // With copies, no shard begins with states of zero before two disks are lost.
  const v1::RunRecord run = RunIn(store, RunKey(apply.run()));
  const bool copied = HasCopies(run.spec().averaging(), run.shards_size());
  const auto lost =
      absl::c_count_if(run.shards(), [this](const std::string& name) { return HasLostDisk(name); });
  // The copy was on the aggregator from which the next shard has just moved.
  const auto holder = static_cast<int>(CopyHolder(apply.shard(), run.shards_size()));
  const auto move = moved_.at.find({run.run(), holder});
  const bool moved = move != moved_.at.end() && move->second + 1 >= apply.round();
  if (moved) world_.Count("seeds_after_moves");
  if (copied && lost < 2 && !moved && !IsRestored(run.run())) {
    world_.Violate("shard ", apply.shard(), " of ", run.run(),
                   " is restored from a seed at version ", apply.round(),
                   ", although it has a copy");
  }
  const auto states = outer_states_[apply.run()].find(apply.round());
  if (states == outer_states_[apply.run()].end()) return;
  const Interval span = SpanOfShard(specs_[apply.run()], apply.shard(), shards_[apply.run()]);
  for (Values& state : states->second) {
    std::fill(state.begin() + span.begin, state.begin() + span.end, 0.0F);
  }
  const auto closing = closed_.find({apply.run(), apply.round() + 1});
  if (closing != closed_.end()) {
    versions_[apply.run()][apply.round() + 1] =
        ValuesOf(RunIn(store, RunKey(apply.run())), closing->second);
  }
}

void Invariants::OnSubmitted(const Store& store, const std::string& run) {
  if (store.count(RunKey(run)) == 0) world_.Violate(run, " is acknowledged, but not in the store");
  submitted_.insert(run);
}

void Invariants::OnSent(const Store& store, const v1::CoordinatorMessage& message) {
  record_checks_.OnSent(store, message);
  if (message.has_apply() && message.apply().seed()) {
    OnSeed(store, message.apply());
  } else if (message.has_apply()) {
    const v1::Apply& apply = message.apply();
    const auto commit = Read<v1::CommitRecord>(store, CommitKey(apply.run(), apply.round()));
    if (!commit || !SameParticipants(commit->participants(), apply.participants()) ||
        commit->has_restores() != apply.has_restores() || commit->restores() != apply.restores() ||
        !absl::c_equal(commit->keep(), apply.keep())) {
      world_.Violate("Apply for round ", apply.round(), " of ", apply.run(),
                     " differs from the store");
    }
  } else if (message.has_decision() && message.decision().adopt()) {
    const v1::Decision& decision = message.decision();
    conservation_.OnDecision(decision);
    const v1::RankSlot& place = decision.place();
    const auto commit = Read<v1::CommitRecord>(store, CommitKey(place.run(), decision.version()));
    if (!commit || !commit->committed() || commit->digest() != decision.digest() ||
        commit->step() != decision.step()) {
      world_.Violate("Decision ", Describe(place), " names version ", decision.version(),
                     ", which differs from the store");
    }
    if (!commit || !decision.included() || decision.round() != decision.version()) return;
    const bool included =
        std::any_of(commit->participants().begin(), commit->participants().end(),
                    [&](const v1::Participant& in) {
                      return in.group() == place.group() && in.generation() == place.generation();
                    });
    if (!included)
      world_.Violate("Decision ", Describe(place), " has included = true for another generation");
  } else if (message.has_assignment()) {
    const v1::Assignment& assignment = message.assignment();
    const v1::RankSlot& place = assignment.place();
    const auto group = Read<v1::GroupRecord>(store, cadre::GroupKey(place.run(), place.group()));
    if (!group || group->generation() != place.generation() ||
        group->members_size() != assignment.peers_size()) {
      const v1::GroupRecord stored = group.value_or(v1::GroupRecord());
      world_.Violate("Assignment ", Describe(place), " to one of ", assignment.peers_size(),
                     " differs from the store, which has generation ", stored.generation(), " of ",
                     stored.members_size());
    }
  } else if (message.has_start()) {
    const v1::RankSlot& place = message.start().place();
    const auto group = Read<v1::GroupRecord>(store, cadre::GroupKey(place.run(), place.group()));
    if (!group || group->generation() != place.generation() || !group->started() ||
        group->version() != message.start().version()) {
      world_.Violate("Start ", Describe(place), " differs from the store");
    }
  }
}

// ---- The end

void Invariants::CheckEnd(
    const Store& store,
    const std::function<std::optional<uint32_t>(const std::string&, const std::string&)>&
        version_on_disk) {
  for (const std::string& run : submitted_) {
    const auto record = Read<v1::RunRecord>(store, RunKey(run));
    if (!record) {
      world_.Violate(run, " was acknowledged and is lost");
      return;
    }
    uint32_t rounds_apart = 0;
    uint32_t groups = 0;
    for (uint32_t version = 1; version <= record->version(); ++version) {
      const auto participants = committed_.find({run, version});
      if (participants == committed_.end()) {
        world_.Violate(run, " has no commit ", version);
      } else if (participants->second > 1) {
        ++rounds_apart;
        groups = participants->second;
      }
    }
    // Each round counts once, even if Apply is repeated. A shard whose version before is lost, or
    // that continues from a copy, does not know the discrepancy; nor has a round one whose groups
    // have discarded all that they trained (blend 0).
    const v1::DiscrepancyRecord& discrepancy = record->discrepancy();
    const bool counts = discrepancy.rounds() == rounds_apart && discrepancy.groups() == groups;
    const v1::Overlap& overlap = specs_[run].averaging().overlap();
    const bool discards = overlap.has_blend() && overlap.blend() == 0;
    const bool has_lost = HasLostDisk(*record) || moved_.from_copies.contains(run);
    if (!counts && !discards && !has_lost && !restored_.contains(run)) {
      world_.Violate(run, " counts ", discrepancy.rounds(), " rounds of discrepancy; there were ",
                     rounds_apart, ", the last of ", groups, " groups");
    }
    // An older store does not name the aggregators to which shards have moved. The run waits, or is
    // parked, until one of them shows a later version.
    const bool names_former = moved_.Any(run) && restored_.contains(run);
    const bool waits = IsLive(record->state()) || record->has_unknown_versions();
    for (const std::string& aggregator : record->shards()) {
      if (names_former && waits) continue;
      const auto on_disk = version_on_disk(aggregator, run);
      const bool has = on_disk.has_value() && *on_disk >= record->version();
      // A run that was stopped before its shards were open has no version, and a disk that was lost
      // after the end is not restored.
      if (!has && record->version() > 0 && lost_disks_.count(aggregator) == 0) {
        world_.Violate(aggregator, " does not hold version ", record->version(), " of ", run);
      }
    }
  }
}

}  // namespace cadre::simulation
