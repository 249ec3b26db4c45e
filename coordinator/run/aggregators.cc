// Aggregators: their shards, and whether the versions on their disks match.
//
// A run chooses its aggregators once (shard_placement.h), when the workers of its first group are
// idle; until its first version is recorded, the choice may still change. An aggregator answers
// OpenRun with the version and digest on its disk. The coordinator compares them with its own
// commits:
//
//   equal version and digest          the shard is open
//   one version ahead, while closing  the shard has applied the round, but its answer was lost; or,
//                                     with another digest, it has the first of several attempts
//   hollow, or older                  acknowledged data is lost
//   newer                             the record is older than a commit (stale_record.h)
//   other digest                      the data is corrupt
//
// If acknowledged data is lost or corrupt, the shard is lost, and is restored from the workers
// (aggregators_restore.cc). A disconnected aggregator only delays the run: the ranks of its groups
// are told, and wait for CoordinatorOptions::aggregator_patience without ending their generations.
#include "coordinator/run/aggregators.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "coordinator/run/run_rules.h"
#include "coordinator/run/run_view.h"

namespace cadre {

void Aggregators::OpenAll() {
  for (int shard = 0; shard < shards_.size(); ++shard) orders_.Open(shard);
}

bool Aggregators::AwaitsCopies() {
  copies_.Send();
  moves_.Send();
  return copies_.AwaitedUntil() > cluster_.now() || moves_.IsAwaited();
}

// An aggregator that has a version of the copy lacks what was staged for the next one.
std::optional<ShardMoves::Moved> Aggregators::CompleteMove() {
  const std::optional<ShardMoves::Moved> moved = moves_.Complete();
  if (!moved.has_value()) return std::nullopt;
  // The new aggregator has no older versions.
  rounds_.versions().OnOpened(shards_.opened().at(moved->shard));
  copies_.OnShardOpen(moved->shard);
  if (!moved->from_copy) return moved;
  rounds_.LoseContributions(moved->shard);
  if (!run_.committing()) return moved;
  const bool applied = run_.commits().closing()->digests(static_cast<int>(moved->shard)).applied();
  if (applied && moved->version == record_.version()) rounds_.Revoke(moved->shard);
  orders_.Apply(moved->shard);
  return moved;
}

void Aggregators::OnJoined(const Member& member, bool active) {
  directory_.OnJoined(member.record.name());
  if (!run_.live()) moves_.SendRemovals();
  if (!active) return;
  for (int shard = 0; shard < shards_.size(); ++shard) {
    if (shards_.Owns(member.record.name(), shard)) orders_.Open(shard);
  }
}

bool Aggregators::IsOfShard(const Member& member, const v1::RunOpened& opened) const {
  return int64_t{opened.shards()} == shards_.size() &&
         shards_.Owns(member.record.name(), opened.shard());
}

void Aggregators::OnOpened(const Member& member, const v1::RunOpened& opened) {
  rounds_.versions().OnOpened(opened);
  copies_.OnOpened(opened);
  RepeatCopyBack(opened.shard());
  if (ShardRestore* const restore = shards_.Lost(opened.shard())) {
    if (!opened.hollow()) return;
    restore->SetHollow(opened.version());
    if (restore->ready()) SendRestoringApply(opened.shard(), *restore);
    return;
  }
  // An open shard can turn out to be hollow when a round requires a version that was damaged.
  if (shards_.IsOpen(opened.shard()) && !opened.hollow()) return;
  if (const std::string wrong = CheckOpened(member, opened); !wrong.empty()) {
    return Lose(opened, wrong);
  }
  shards_.Open(opened);
  copies_.OnShardOpen(opened.shard());
  if (run_.commits().Contradicts(opened)) rounds_.Revoke(opened.shard());
  if (run_.committing()) orders_.Apply(opened.shard());
  if (!run_.commits().newest().has_value() && shards_.AllOpen()) RecordInitialModel();
}

void Aggregators::Lose(const v1::RunOpened& opened, const std::string& reason) {
  cluster_.Count("shards_lost");
  cluster_.ReportRun(v1::EVENT_KIND_SHARD_LOST, run_.id(),
                     absl::StrCat("shard ", opened.shard(), " is lost: ", reason));
  // A hollow shard without a version accepts nothing yet; it also reports version 0.
  const bool accepts = opened.hollow() && opened.version() > 0;
  // With copies, Restore decides this when it knows what the holder of the copy has.
  if (run_.committing() && !copies_.copies().enabled() && NeedsVersions(run_.spec())) {
    // What the shard has made of the round cannot be made again, because the states of the outer
    // optimizer are lost with it.
    rounds_.Revoke(opened.shard());
  }
  const bool has_values = !opened.hollow() && opened.version() == record_.version() &&
                          run_.commits().ShardDigest(opened.shard()) == opened.digest();
  shards_.Lose(opened.shard(), ShardRestore(reason,
                                            accepts || (has_values && NeedsVersions(run_.spec()))
                                                ? std::optional(opened.version())
                                                : std::nullopt,
                                            has_values));
}

std::string Aggregators::CheckOpened(const Member& member, const v1::RunOpened& opened) const {
  const uint32_t version = record_.version();
  const std::string who = absl::StrCat("aggregator ", member.record.name(), " holds version ",
                                       opened.version(), " of shard ", opened.shard());
  if (opened.hollow()) {
    return absl::StrCat("aggregator ", member.record.name(), " has lost the values of shard ",
                        opened.shard());
  }
  // The closing one: a run whose record is older opens no shards.
  if (opened.version() > version) return "";
  if (opened.version() < version) {
    return absl::StrCat(who, ", but version ", version,
                        " was committed: acknowledged data is missing from its disk");
  }
  if (run_.committing() && run_.commits().closing()->digests(opened.shard()).applied()) {
    return absl::StrCat(who, ", but it had applied round ", version + 1,
                        ": acknowledged data is missing from its disk");
  }
  const std::optional<uint64_t> digest = run_.commits().ShardDigest(opened.shard());
  if (digest.has_value() && *digest != opened.digest()) {
    return absl::StrCat(who, " with digest ", DigestHex(opened.digest()), ", but ",
                        DigestHex(*digest), " was committed: its data is corrupt");
  }
  return "";
}

// The digests of version 0 are stored as the commit of round 0.
void Aggregators::RecordInitialModel() {
  v1::CommitRecord commit;
  for (const auto& [shard, opened] : shards_.opened()) {
    v1::ShardDigest& digest = *commit.add_digests();
    digest.set_shard(shard);
    digest.set_applied(true);
    digest.set_digest(opened.digest());
  }
  rounds_.SetInitial(std::move(commit));
}

void Aggregators::SendApplies() {
  for (int shard = 0; shard < shards_.size(); ++shard) {
    if (shards_.Accepts(shard)) orders_.Apply(shard);
  }
  // A shard that is made from contributions to this round must know of a further attempt. The
  // others receive the order when they are open.
  for (auto& [shard, restore] : shards_.lost()) {
    if (restore.ready() && restore.attempt()->round() > record_.version()) {
      SendRestoringApply(shard, restore);
    }
  }
}

}  // namespace cadre
