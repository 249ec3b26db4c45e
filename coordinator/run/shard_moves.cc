// A shard moves between two rounds: when all shards have applied a round, and before any group
// learns of its version. Groups contribute to the next round only after that, so none of them has
// staged anything on the former aggregator that would be missing on the new one.
//
// clang-format off
//   OpenRun(hollow v)  -> target        answered by RunOpened(hollow); the shard has its space there
//                                       ... round v + 1 closes; all shards apply it
//   CopyShard(v + 1)   -> target        fetches the version with its states from the former
//                                       aggregator; answered by Applied(from_copy, digest)
//                                       the commit of version v + 1 and RunRecord.shards are stored
//   OpenRun            -> target        keys of the groups; it serves them from now on
//   ShardAddresses     -> groups        before the Decision of the round
//   DeleteRun          -> former one    answered by RunDeleted; repeated when it joins
// clang-format on
//
// Until the commit, the former aggregator is the only one that the record names, so whatever fails
// before it leaves the run as it was: the move is undone, and another target is chosen. The target
// becomes an aggregator of the run in the transaction of the commit. A coordinator that starts
// again knows from the record which move it had begun, and has the target opened again.
//
// A commit waits for the target for a limited time, and not at all while either aggregator has no
// stream. It does not wait while a group loads an older version, which the target does not have,
// unless that group has delayed the move for many rounds: it is then formed again.
#include "coordinator/run/shard_moves.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "coordinator/run/run_rules.h"
#include "coordinator/run/run_view.h"

namespace cadre {
namespace {

// A commit waits for the target of a move for at most this time.
constexpr absl::Duration kMaxMoveTime = absl::Minutes(2);
// So many commits leave a move for later because a group loads an older version.
constexpr uint32_t kMaxPostponed = 8;

}  // namespace

// ---- The move

void ShardMoves::Advance() {
  lacking_.clear();
  if (!run_.averages() || !run_.commits().newest().has_value()) return;
  if (record_.has_move()) {
    if (const std::string why = WhyUndone(); !why.empty()) Undo(why);
  }
  if (!record_.has_move()) Begin();
  if (!record_.has_move()) return;
  const std::optional<uint32_t> hollow = HollowVersion();
  if (!hollow.has_value() || cluster_.members().ConnectedAggregator(target()) == nullptr) return;
  if (at_target_.ordered != hollow) {
    at_target_ = {.ordered = hollow};
    parts_.orders.Open(target(), record_.move().shard(), *hollow);
  }
  Send();
}

void ShardMoves::Begin() {
  for (int shard = 0; shard < record_.shards_size(); ++shard) {
    const std::string& source = SourceOf(shard);
    if (!cluster_.queue().IsDraining(source) || !parts_.shards.IsOpen(shard)) continue;
    const ShardPlacement placement = parts_.choice.FindReplacement();
    if (placement.chosen.empty()) {
      lacking_[shard] = placement.reason;
      continue;
    }
    at_target_ = AtTarget();
    postponed_ = 0;
    record_.mutable_move()->set_shard(shard);
    record_.mutable_move()->set_to(placement.chosen.front());
    stored_.Save();
    cluster_.ReportRun(v1::EVENT_KIND_OPERATOR, run_.id(),
                       absl::StrCat("shard ", shard, " moves from aggregator ", source, " to ",
                                    target(), ", with the next version"));
    return;
  }
}

std::string ShardMoves::WhyUndone() const {
  if (!cluster_.queue().IsDraining(SourceOf(record_.move().shard()))) {
    return "the aggregator is not drained any more";
  }
  if (cluster_.queue().IsCordoned(target())) return absl::StrCat(target(), " is cordoned");
  if (cluster_.members().Aggregator(target()) == nullptr) {
    return absl::StrCat(target(), " is lost");
  }
  return "";
}

void ShardMoves::Undo(absl::string_view why) {
  const v1::ShardMoveRecord move = record_.move();
  cluster_.ReportRun(v1::EVENT_KIND_OPERATOR, run_.id(),
                     absl::StrCat("the move of shard ", move.shard(), " from aggregator ",
                                  SourceOf(move.shard()), " to ", move.to(), " is undone: ", why));
  cluster_.Count("moves_undone");
  parts_.choice.Exclude(move.to());
  record_.clear_move();
  at_target_ = AtTarget();
  AddLeaving(move.to());
  stored_.Save();
}

void ShardMoves::End() {
  if (!record_.has_move()) return;
  const std::string to = target();
  record_.clear_move();
  at_target_ = AtTarget();
  AddLeaving(to);
}

bool ShardMoves::Idle() const {
  return !run_.committing() && run_.slots().started().empty() && run_.round().arrived() == 0;
}

std::optional<uint32_t> ShardMoves::HollowVersion() const {
  if (!Idle()) return record_.version();
  if (record_.version() == 0) return std::nullopt;
  return record_.version() - 1;
}

std::optional<ShardMoves::Version> ShardMoves::VersionToFetch() const {
  const bool closing = run_.committing() && run_.commits().applied();
  if (!closing && !Idle()) return std::nullopt;
  const v1::CommitRecord& commit = closing ? *run_.commits().closing() : *run_.commits().newest();
  const std::optional<uint64_t> digest = DigestOf(commit, record_.move().shard());
  if (!digest.has_value()) return std::nullopt;
  return Version{commit.round(), *digest};
}

std::string ShardMoves::PostponeReason() const {
  // The target has no older versions.
  if (record_.has_rollback()) return "the run is being rolled back";
  if (postponed_ >= kMaxPostponed) return "";
  for (const uint32_t group : run_.slots().started()) {
    if (parts_.versions.IsLoading(group) || run_.slots()[group].early.has_value()) {
      return absl::StrCat("group ", group, " loads an older version");
    }
  }
  return "";
}

void ShardMoves::Send() {
  if (!record_.has_move() || !at_target_.ordered.has_value()) return;
  const std::optional<Version> version = VersionToFetch();
  if (!version.has_value() || !PostponeReason().empty()) return;
  if (run_.committing() && std::exchange(awaited_, version->version) != version->version) {
    since_ = cluster_.now();
  }
  if (at_target_.hollow != version->version - 1 || at_target_.copying == version) return;
  if (!parts_.copies.Order(target(), SourceOf(record_.move().shard()), record_.move().shard(),
                           *version)) {
    return;
  }
  at_target_.copying = version;
}

absl::Time ShardMoves::AwaitedUntil() const {
  if (!record_.has_move() || !run_.committing() || !at_target_.ordered.has_value()) {
    return absl::InfinitePast();
  }
  const std::optional<Version> version = VersionToFetch();
  const bool waits = version.has_value() && awaited_ == version->version &&
                     at_target_.copied != version && PostponeReason().empty();
  const std::string& source = SourceOf(record_.move().shard());
  for (const std::string& name : {source, target()}) {
    if (cluster_.members().ConnectedAggregator(name) == nullptr) return absl::InfinitePast();
  }
  return waits ? since_ + kMaxMoveTime : absl::InfinitePast();
}

std::string ShardMoves::WaitReason() const {
  if (!IsAwaited()) return "";
  return absl::StrCat("version ", awaited_, " waits for the move of shard ", record_.move().shard(),
                      " to aggregator ", target());
}

std::optional<ShardMoves::Moved> ShardMoves::Complete() {
  if (!record_.has_move()) return std::nullopt;
  const uint32_t shard = record_.move().shard();
  const std::optional<uint64_t> digest = run_.commits().ShardDigest(shard);
  if (const std::string why = PostponeReason(); !why.empty()) {
    if (!Idle()) ++postponed_;
    return std::nullopt;
  }
  if (!digest.has_value() || at_target_.copied != Version{record_.version(), *digest}) {
    const bool late = awaited_ == record_.version() && since_ + kMaxMoveTime <= cluster_.now();
    if (late) Undo("the version was not copied in time");
    return std::nullopt;
  }
  const std::string to = target();
  record_.clear_move();
  at_target_ = AtTarget();
  const Moved moved = SetAggregator(shard, to);
  v1::RunOpened opened;
  opened.set_shard(shard);
  opened.set_version(record_.version());
  opened.set_digest(*digest);
  parts_.shards.Open(opened);
  // With the keys of the groups.
  parts_.orders.Open(shard);
  cluster_.Count("shards_moved");
  cluster_.ReportRun(v1::EVENT_KIND_OPERATOR, run_.id(),
                     absl::StrCat("shard ", shard, " has moved from aggregator ", moved.from,
                                  " to ", SourceOf(shard), ", with version ", record_.version()));
  return moved;
}

ShardMoves::Moved ShardMoves::SetAggregator(uint32_t shard, const std::string& name) {
  Moved moved{shard, SourceOf(shard)};
  parts_.copies.Close(moved.from);
  record_.set_shards(static_cast<int>(shard), name);
  AddLeaving(moved.from);
  stored_.Save();
  parts_.directory.SendToGroups();
  return moved;
}

// The late answers of the former aggregator have no effect, because the record does not name it.
std::optional<ShardMoves::Moved> ShardMoves::Replace(const std::set<std::string>& hung) {
  if (hung.empty()) return std::nullopt;
  for (int shard = 0; shard < record_.shards_size(); ++shard) {
    const std::string& source = SourceOf(shard);
    const bool connected = cluster_.members().ConnectedAggregator(source) != nullptr;
    // It may have answered in this event.
    const bool owes = !parts_.shards.IsOpen(shard) ||
                      (run_.committing() && !run_.commits().closing()->digests(shard).applied());
    if (!hung.contains(source) || !connected || !owes) continue;
    if (!parts_.copies.VersionFor(shard).has_value()) continue;
    const ShardPlacement placement = parts_.choice.FindReplacement();
    if (placement.chosen.empty()) return std::nullopt;
    if (record_.has_move()) Undo("another shard of the run is restored");
    const Moved moved = SetAggregator(shard, placement.chosen.front());
    const std::string reason =
        absl::StrCat("aggregator ", moved.from, " does not carry out its orders");
    parts_.shards.Lose(shard, ShardRestore(reason));
    cluster_.Count("shards_lost");
    cluster_.ReportRun(v1::EVENT_KIND_SHARD_LOST, run_.id(),
                       absl::StrCat("shard ", shard, " is lost: ", reason, "; aggregator ",
                                    SourceOf(shard), " restores it from its copy"));
    return moved;
  }
  return std::nullopt;
}

// ---- The target

bool ShardMoves::OnOpened(const Member& member, const v1::RunOpened& opened) {
  if (!IsTarget(member, opened.shard())) return false;
  if (!opened.error().empty()) {
    Undo(opened.error());
  } else if (opened.hollow() && opened.version() == at_target_.ordered) {
    at_target_.hollow = opened.version();
  }
  return true;
}

bool ShardMoves::OnApplied(const Member& member, const v1::Applied& applied) {
  if (!IsTarget(member, applied.shard())) return false;
  const std::optional<Version>& copying = at_target_.copying;
  if (!applied.from_copy() || !copying.has_value() || copying->version != applied.round()) {
    return true;
  }
  if (!applied.error().empty()) {
    Undo(applied.error());
  } else if (applied.digest() == copying->digest) {
    at_target_.copied = copying;
  }
  return true;
}

void ShardMoves::Close(absl::string_view name) {
  if (record_.has_move() && name == target()) at_target_ = AtTarget();
  // It names an address of the source.
  if (record_.has_move() && name == SourceOf(record_.move().shard())) at_target_.copying.reset();
}

// ---- Aggregators that are left

bool ShardMoves::IsLeaving(absl::string_view name) const {
  return absl::c_linear_search(record_.leaving(), name);
}

void ShardMoves::AddLeaving(const std::string& name) {
  if (!IsLeaving(name)) record_.add_leaving(name);
  if (const Member* const member = cluster_.members().Aggregator(name))
    parts_.orders.Delete(*member);
}

void ShardMoves::OnRemoved(absl::string_view name) {
  auto& leaving = *record_.mutable_leaving();
  const auto removed = std::remove(leaving.begin(), leaving.end(), name);
  if (removed == leaving.end()) return;
  leaving.erase(removed, leaving.end());
  stored_.Save();
}

// ---- Status

std::string ShardMoves::ReasonOf(uint32_t shard) const {
  if (run_.parked()) return absl::StrCat("the run is parked; cadre resume ", run_.id());
  if (run_.behind()) return "the record of the run is rebuilt";
  if (!run_.commits().newest().has_value()) return "the run has no version yet";
  if (!record_.has_move()) {
    const auto lacking = lacking_.find(shard);
    return lacking == lacking_.end() ? "its aggregator has not opened it" : lacking->second;
  }
  if (record_.move().shard() != shard) return "another shard of the run moves first";
  if (cluster_.members().ConnectedAggregator(target()) == nullptr) {
    return absl::StrCat("aggregator ", target(), " is away");
  }
  if (const std::string why = PostponeReason(); !why.empty()) return why;
  if (at_target_.copying.has_value()) {
    return absl::StrCat("it fetches version ", at_target_.copying->version);
  }
  return absl::StrCat("it moves with version ", record_.version() + 1);
}

void ShardMoves::FillStatus(const Member& aggregator, v1::AggregatorStatus& status) const {
  const std::string& name = aggregator.record.name();
  if (!run_.live() || !cluster_.queue().IsDraining(name)) return;
  for (int shard = 0; shard < record_.shards_size(); ++shard) {
    if (SourceOf(shard) != name) continue;
    v1::ShardMove& move = *status.add_moves();
    move.set_run(run_.id());
    move.set_shard(shard);
    const bool has_begun = record_.has_move() && int64_t{record_.move().shard()} == shard;
    if (has_begun) move.set_to(target());
    move.set_reason(ReasonOf(shard));
  }
}

}  // namespace cadre
