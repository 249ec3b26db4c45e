// The restoring of lost shards. Part of Aggregators.
//
// docs/design/failures.md, "A shard that has lost its values", has the rules, and shard_restore.h
// the sources and their order. What is sent and answered:
//
// clang-format off
//   OpenRun(hollow)  -> shard     answered by RunOpened(hollow)
//   Apply            -> shard     answered by Applied(missing groups), later by Applied(digest)
//   Restage          -> ranks     of the missing groups; answered by Restaged
// clang-format on
#include "coordinator/run/aggregators.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/run/run_rules.h"
#include "coordinator/run/run_view.h"
#include "model/coding.h"
#include "model/outer_optimizer.h"

namespace cadre {

ShardRestore::View Aggregators::RestoreView(uint32_t shard) const {
  const uint32_t version = record_.version();
  ShardRestore::View view{.version = version,
                          .closing = run_.committing(),
                          .at_end = record_.state() == v1::RUN_STATE_FINISHING,
                          .outer = NeedsVersions(run_.spec()),
                          .min_groups = run_.spec().averaging().min_groups()};
  if (const auto copy = copies_.VersionFor(shard)) view.copy = copy->version;
  const std::optional<v1::CommitRecord>& commit =
      run_.committing() ? run_.commits().closing() : run_.commits().newest();
  view.complete = commit.has_value() && !commit->participants().empty() &&
                  std::all_of(commit->participants().begin(), commit->participants().end(),
                              [this](const v1::Participant& participant) {
                                return run_.slots().started().contains(participant.group()) &&
                                       run_.slots()[participant.group()].record().generation() ==
                                           participant.generation();
                              });
  for (const uint32_t group : run_.slots().started()) {
    const Slot& slot = run_.slots()[group];
    view.groups.push_back({.group = group,
                           .generation = slot.record().generation(),
                           .adopted = slot.version == version,
                           .contributed = run_.round().Has(group)});
  }
  return view;
}

std::optional<Aggregators::LostShard> Aggregators::Restore() {
  for (auto& [shard, restore] : shards_.lost()) {
    rounds_.LoseContributions(shard);
    // The run cannot go on without the aggregator that holds the copy, because it has a shard, too.
    if (copies_.copies().enabled() && !copies_.copies().Knows(shard)) continue;
    const bool changed = restore.Choose(RestoreView(shard));
    if (!restore.attempt().has_value()) {
      return LostShard{shard, restore.reason()};
    }
    if (!changed) continue;
    // The closing version is made again from the version before, unless the copy has it.
    const bool closes = restore.attempt()->round() > record_.version();
    const bool has_closing = closes && restore.attempt()->source == ShardRestore::Source::kCopy;
    if (copies_.copies().enabled() && run_.committing() && !has_closing) rounds_.Revoke(shard);
    if (restore.ready()) {
      SendRestoringApply(shard, restore);
    } else {
      orders_.Open(shard, restore.attempt()->hollow);
    }
  }
  return std::nullopt;
}

void Aggregators::SendRestoringApply(uint32_t shard, ShardRestore& restore) {
  const ShardRestore::Attempt& attempt = *restore.attempt();
  if (attempt.source == ShardRestore::Source::kOpenRound) return;
  if (attempt.source == ShardRestore::Source::kCopy) return copies_.SendBack(shard);
  if (attempt.round() > record_.version()) return orders_.Apply(shard);
  v1::CoordinatorMessage message;
  v1::Apply& apply = *message.mutable_apply();
  apply.set_run(run_.id());
  apply.set_shard(shard);
  apply.set_round(attempt.round());
  apply.set_step(record_.step());
  apply.set_samples(record_.samples());
  if (record_.has_division()) *apply.mutable_division() = record_.division();
  *apply.mutable_included() = run_.commits().newest()->included();
  *apply.mutable_keep() = run_.commits().newest()->keep();
  if (const auto digest = run_.commits().ShardDigest(shard)) apply.set_digest(*digest);
  if (attempt.source == ShardRestore::Source::kSeed) {
    v1::Participant& participant = *apply.add_participants();
    participant.set_group(attempt.group);
    participant.set_generation(attempt.generation);
    participant.set_ranks(run_.slots()[attempt.group].ranks());
    participant.set_samples(1);
    apply.set_seed(true);
    RequestValues(shard, restore, attempt.group);
  } else {
    *apply.mutable_participants() = run_.commits().newest()->participants();
    apply.set_trim(run_.commits().newest()->trim());
  }
  orders_.Send(shard, message);
}

void Aggregators::RepeatCopyBack(uint32_t holder) {
  if (!copies_.copies().enabled()) return;
  const uint32_t shard = CopiedShard(holder, shards_.size());
  ShardRestore* const restore = shards_.Lost(shard);
  if (restore != nullptr && restore->ready() &&
      restore->attempt()->source == ShardRestore::Source::kCopy) {
    SendRestoringApply(shard, *restore);
  }
}

bool Aggregators::LoseContributions(const v1::Applied& applied) {
  const uint32_t shard = applied.shard();
  if (applied.missing().empty() || !shards_.IsOpen(shard) || !run_.committing() ||
      applied.round() != run_.commits().closing()->round()) {
    return false;
  }
  // The shard has its newest version, but has lost contributions.
  shards_.Lose(shard, ShardRestore(absl::StrCat("aggregator ", record_.shards(shard),
                                                " has lost contributions to shard ", shard),
                                   record_.version(), /*has_values=*/true));
  return true;
}

bool Aggregators::OnRestoringApplied(const v1::Applied& applied) {
  const uint32_t shard = applied.shard();
  ShardRestore* const restore = shards_.Lost(shard);
  // The source may have changed since the order was sent.
  const bool from_copy = restore != nullptr && restore->ready() &&
                         restore->attempt()->source == ShardRestore::Source::kCopy;
  if (applied.from_copy() != from_copy) return false;
  if (restore == nullptr) return applied.missing().empty();
  // In the open round no order is sent, so this is an answer to an earlier one.
  if (!restore->ready() || restore->attempt()->source == ShardRestore::Source::kOpenRound ||
      applied.round() != restore->attempt()->round()) {
    return false;
  }
  const bool of_closing = run_.committing() && applied.round() > record_.version();
  if (of_closing && !from_copy &&
      AttemptOf(applied, *run_.commits().closing()) != run_.commits().closing()->attempt()) {
    SendRestoringApply(shard, *restore);
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
  if (applied.round() > record_.version() && !run_.committing()) return false;
  if (!run_.commits().Agrees(applied)) {
    restore->Fail("restored values have another digest than those that were committed");
    return false;
  }
  // It has no other version, or may have left the newest one out (Source::kOpenRound).
  if (from_copy) {
    rounds_.versions().LoseOthers(applied.round());
  } else if (applied.round() > record_.version()) {
    rounds_.versions().Lose(record_.version());
  }
  v1::RunOpened opened;
  opened.set_shard(shard);
  opened.set_version(applied.round());
  opened.set_digest(applied.digest());
  if (restore->attempt()->source == ShardRestore::Source::kSeed) {
    WarnOfLostStates(shard, applied.round());
  }
  shards_.Open(opened);
  copies_.OnShardOpen(shard);
  cluster_.Count("shards_restored");
  if (run_.committing() && applied.round() == record_.version()) {
    // It may have made that version before, of which only a damaged copy was left.
    if (run_.commits().closing()->digests(static_cast<int>(shard)).applied()) {
      rounds_.Revoke(shard);
    }
    orders_.Apply(shard);
  }
  return true;
}

void Aggregators::WarnOfLostStates(uint32_t shard, uint32_t version) {
  const v1::Averaging& averaging = run_.spec().averaging();
  const bool outer = OuterOptimizerOf(averaging).has_value();
  const bool coded = CodingOf(averaging.down()).has_value();
  if (!outer && !coded) return;
  stored_.AddWarning(absl::StrCat(
      "shard ", shard, " on aggregator ", record_.shards(static_cast<int>(shard)),
      " was restored at version ", version,
      " without its states: ", outer ? "the momentum of the outer optimizer" : "",
      outer && coded ? " and " : "", coded ? "the residual of coded versions" : "",
      outer && coded ? " begin" : " begins", " with zeros; averaging.copies: 2 keeps a copy"));
}

// An aggregator may still answer the order of an earlier attempt for the same round.
bool Aggregators::IsSource(const ShardRestore::Attempt& attempt, uint32_t group) const {
  if (attempt.source == ShardRestore::Source::kCopy) return false;
  if (attempt.source == ShardRestore::Source::kSeed) return group == attempt.group;
  const std::optional<v1::CommitRecord>& commit =
      attempt.round() > record_.version() ? run_.commits().closing() : run_.commits().newest();
  return commit.has_value() &&
         std::any_of(commit->participants().begin(), commit->participants().end(),
                     [group](const v1::Participant& one) { return one.group() == group; });
}

// Ranks that have not answered yet are not asked again. A participant of a closing round may have
// ended or been formed again since it contributed.
void Aggregators::RequestValues(uint32_t shard, ShardRestore& restore, uint32_t group) {
  const bool seeds = restore.attempt()->source == ShardRestore::Source::kSeed;
  const bool lives = run_.slots().started().contains(group) &&
                     (seeds || !run_.committing() ||
                      run_.commits().InClosing(group, run_.slots()[group].record().generation()));
  if (!lives) return restore.Fail(absl::StrCat("group ", group, " has ended"));
  const Slot& slot = run_.slots()[group];
  const auto begin = restore.asked.lower_bound({group, 0});
  if (begin != restore.asked.end() && begin->first == group) return;
  for (uint32_t rank = 0; rank < slot.ranks(); ++rank) {
    restore.asked.insert({group, rank});
    SendRestage(slot, rank, shard, restore);
  }
}

void Aggregators::SendRestage(const Slot& slot, uint32_t rank, uint32_t shard,
                              const ShardRestore& restore) const {
  v1::CoordinatorMessage message;
  v1::Restage& restage = *message.mutable_restage();
  *restage.mutable_place() = slot.Place(rank);
  restage.set_shard(shard);
  restage.set_round(restore.attempt()->round());
  restage.set_seed(restore.attempt()->source == ShardRestore::Source::kSeed);
  cluster_.SendTo(slot.record().members(rank), message);
}

void Aggregators::ResendRestages(const Slot& slot, uint32_t rank) const {
  for (const auto& [shard, restore] : shards_.lost()) {
    if (restore.asked.contains({slot.group(), rank})) SendRestage(slot, rank, shard, restore);
  }
}

}  // namespace cadre
