// Lost shards, parked runs and adopted runs. Part of Run.
//
// docs/design/failures.md, "A shard that has lost its values", has the rules, and shard_restore.h
// the sources and their order. What is sent and answered:
//
// clang-format off
//   OpenRun(hollow)  -> shard     answered by RunOpened(hollow)
//   Apply            -> shard     answered by Applied(missing groups), later by Applied(digest)
//   Restage          -> ranks     of the missing groups; answered by Restaged
// clang-format on
#include "coordinator/run/run.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/run/evaluation.h"
#include "coordinator/store/keys.h"

namespace cadre {

ShardRestore::View Run::RestoreView() const {
  const uint32_t version = record_.version();
  ShardRestore::View view{.version = version,
                          .closing = committing(),
                          .at_end = record_.state() == v1::RUN_STATE_FINISHING,
                          .outer = NeedsVersions(spec()),
                          .min_groups = spec().averaging().min_groups()};
  const std::optional<v1::CommitRecord>& commit =
      committing() ? commits_.closing() : commits_.newest();
  view.complete = commit.has_value() && !commit->participants().empty() &&
                  std::all_of(commit->participants().begin(), commit->participants().end(),
                              [this](const v1::Participant& participant) {
                                return slots_.started().contains(participant.group()) &&
                                       slots_[participant.group()].record().generation() ==
                                           participant.generation();
                              });
  for (const uint32_t group : slots_.started()) {
    const Slot& slot = slots_[group];
    view.groups.push_back({.group = group,
                           .generation = slot.record().generation(),
                           .adopted = slot.version == version,
                           .contributed = round_.Has(group)});
  }
  return view;
}

void Run::RestoreShards() {
  for (auto& [shard, restore] : shards_.lost()) {
    LoseContributions(shard);
    const bool changed = restore.Choose(RestoreView());
    if (!restore.attempt().has_value()) return Park(shard, restore.reason());
    if (!changed) continue;
    if (restore.ready()) {
      SendRestoringApply(shard, restore);
    } else {
      SendOpenRun(shard, restore.attempt()->hollow);
    }
  }
}

void Run::OnHollow(uint32_t shard, ShardRestore& restore, const v1::RunOpened& opened) {
  if (!opened.hollow()) return;
  restore.SetHollow(opened.version());
  if (restore.ready()) SendRestoringApply(shard, restore);
}

void Run::SendRestoringApply(uint32_t shard, ShardRestore& restore) {
  const ShardRestore::Attempt& attempt = *restore.attempt();
  if (attempt.source == ShardRestore::Source::kOpenRound) return;
  if (attempt.round() > record_.version()) return SendApply(shard);
  v1::CoordinatorMessage message;
  v1::Apply& apply = *message.mutable_apply();
  apply.set_run(id());
  apply.set_shard(shard);
  apply.set_round(attempt.round());
  apply.set_step(record_.step());
  apply.set_samples(record_.samples());
  if (record_.has_division()) *apply.mutable_division() = record_.division();
  if (attempt.source == ShardRestore::Source::kSeed) {
    v1::Participant& participant = *apply.add_participants();
    participant.set_group(attempt.group);
    participant.set_generation(attempt.generation);
    participant.set_ranks(slots_[attempt.group].ranks());
    participant.set_samples(1);
    apply.set_seed(true);
    RequestValues(shard, restore, attempt.group);
  } else {
    *apply.mutable_participants() = commits_.newest()->participants();
  }
  SendToShard(shard, message);
}

bool Run::OnRestoringApplied(const v1::Applied& applied) {
  const uint32_t shard = applied.shard();
  if (!applied.missing().empty() && shards_.IsOpen(shard) && committing() &&
      applied.round() == commits_.closing()->round()) {
    // The shard has its newest version, but has lost contributions.
    shards_.Lose(shard, ShardRestore(absl::StrCat("aggregator ", record_.shards(shard),
                                                  " has lost contributions to shard ", shard),
                                     record_.version(), /*has_values=*/true));
    RestoreShards();
  }
  ShardRestore* const restore = shards_.Lost(shard);
  if (restore == nullptr) return applied.missing().empty();
  // In the open round no order is sent, so this is an answer to an earlier one.
  if (!restore->ready() || restore->attempt()->source == ShardRestore::Source::kOpenRound ||
      applied.round() != restore->attempt()->round()) {
    return false;
  }
  if (!applied.missing().empty()) {
    for (const uint32_t group : applied.missing()) {
      if (!restore->attempt().has_value()) break;
      if (IsSource(*restore->attempt(), group)) RequestValues(shard, *restore, group);
    }
    return false;
  }
  if (!applied.error().empty()) {
    restore->Fail(applied.error());
    return false;
  }
  std::optional<uint64_t> committed = commits_.ShardDigest(shard);
  if (applied.round() > record_.version()) {
    if (!committing()) return false;
    const v1::ShardDigest& recorded = commits_.closing()->digests(static_cast<int>(shard));
    committed = recorded.applied() ? std::optional(recorded.digest()) : std::nullopt;
  }
  if (committed.has_value() && *committed != applied.digest()) {
    restore->Fail("restored values have another digest than those that were committed");
    return false;
  }
  v1::RunOpened opened;
  opened.set_shard(shard);
  opened.set_version(applied.round());
  opened.set_digest(applied.digest());
  shards_.Open(opened);
  cluster_.Count("shards_restored");
  if (committing() && applied.round() == record_.version()) SendApply(shard);
  return true;
}

// An aggregator may still answer the order of an earlier attempt for the same round.
bool Run::IsSource(const ShardRestore::Attempt& attempt, uint32_t group) const {
  if (attempt.source == ShardRestore::Source::kSeed) return group == attempt.group;
  const std::optional<v1::CommitRecord>& commit =
      attempt.round() > record_.version() ? commits_.closing() : commits_.newest();
  return commit.has_value() &&
         std::any_of(commit->participants().begin(), commit->participants().end(),
                     [group](const v1::Participant& one) { return one.group() == group; });
}

// Ranks that have not answered yet are not asked again. A participant of a closing round may have
// ended or been formed again since it contributed.
void Run::RequestValues(uint32_t shard, ShardRestore& restore, uint32_t group) {
  const bool seeds = restore.attempt()->source == ShardRestore::Source::kSeed;
  const bool lives =
      slots_.started().contains(group) &&
      (seeds || !committing() || commits_.InClosing(group, slots_[group].record().generation()));
  if (!lives) return restore.Fail(absl::StrCat("group ", group, " has ended"));
  const Slot& slot = slots_[group];
  const auto begin = restore.asked.lower_bound({group, 0});
  if (begin != restore.asked.end() && begin->first == group) return;
  for (uint32_t rank = 0; rank < slot.ranks(); ++rank) {
    restore.asked.insert({group, rank});
    SendRestage(slot, rank, shard, restore);
  }
}

void Run::SendRestage(const Slot& slot, uint32_t rank, uint32_t shard,
                      const ShardRestore& restore) {
  v1::CoordinatorMessage message;
  v1::Restage& restage = *message.mutable_restage();
  *restage.mutable_place() = slot.Place(rank);
  restage.set_shard(shard);
  restage.set_round(restore.attempt()->round());
  restage.set_seed(restore.attempt()->source == ShardRestore::Source::kSeed);
  cluster_.SendTo(slot.record().members(rank), message);
}

void Run::ResendRestages(const Slot& slot, uint32_t rank) {
  for (const auto& [shard, restore] : shards_.lost()) {
    if (restore.asked.contains({slot.group(), rank})) SendRestage(slot, rank, shard, restore);
  }
}

// A group without a stream may have adopted the version without the coordinator's knowledge. It
// reports that when it has connected again.
std::vector<uint32_t> Run::LeftOut() const {
  std::vector<uint32_t> groups;
  if (shards_.lost().empty() || !shards_.MayClose()) return groups;
  for (const uint32_t group : slots_.started()) {
    const Slot& slot = slots_[group];
    const Member* const lead = cluster_.members().Find(slot.record().members(0));
    const bool connected = lead != nullptr && lead->connected();
    const bool known = connected && slot.reported;
    if (known && slot.version < record_.version() && !round_.Has(group)) groups.push_back(group);
  }
  return groups;
}

Round::Away Run::Away() const {
  Round::Away away = away_;
  for (const uint32_t group : LeftOut()) away[group] = absl::InfinitePast();
  for (const uint32_t group : paused_) {
    if (group < slots_.size() && HasPaused(slots_[group])) away[group] = absl::InfinitePast();
  }
  return away;
}

// A closing round is kept: with the disk restored, it can be finished.
void Run::Park(uint32_t shard, absl::string_view reason) {
  const std::string& name = record_.shards(static_cast<int>(shard));
  record_.set_state(v1::RUN_STATE_PARKED);
  record_.set_reason(absl::StrCat(reason, "; no live group can restore it; restore the disk of ",
                                  "aggregator ", name, ", or start it again; then: cadre resume ",
                                  id()));
  for (const Slot& slot : slots_) {
    if (record_.has_evaluating()) FreePart(*record_.mutable_evaluating(), slot.group());
  }
  Disband(absl::StrCat("the run is parked: ", reason));
  shards_.Reset();
  round_.Open(record_.version() + 1);
  record_.clear_left();
  RecordBytes();
  Save();
  cluster_.Count("runs_parked");
}

absl::Status Run::Resume() {
  if (behind()) {
    return absl::FailedPreconditionError(absl::StrCat("run ", id(), ": ", WaitReason()));
  }
  if (!parked()) {
    return absl::FailedPreconditionError(absl::StrCat("run ", id(), " is not parked"));
  }
  record_.clear_reason();
  record_.set_state(record_.started_ms() == 0        ? v1::RUN_STATE_QUEUED
                    : AtEnd(record_, record_.step()) ? v1::RUN_STATE_FINISHING
                                                     : v1::RUN_STATE_RUNNING);
  UpdateDemand();
  Save();
  for (int shard = 0; shard < shards_.size(); ++shard) SendOpenRun(shard);
  return absl::OkStatus();
}

void Run::Adopt(const v1::CommitRecord& newest, const std::optional<v1::CommitRecord>& closing) {
  commits_.Load(newest, record_.version());
  cluster_.out().Put(CommitKey(id(), newest.round()), newest);
  if (closing.has_value()) {
    commits_.Load(*closing, record_.version());
    cluster_.out().Put(CommitKey(id(), closing->round()), *closing);
  }
  SaveSpec();
  Save();
  for (int shard = 0; shard < shards_.size(); ++shard) SendOpenRun(shard);
}

}  // namespace cadre
