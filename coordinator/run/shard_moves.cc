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
// A commit waits for a target that has opened the shard, and does not wait while the former
// aggregator is away. A target that does not carry out an order in time is given up. A commit does
// not wait while a group loads an older version, which the target does not have, unless that group
// has delayed the move for many rounds: it is then formed again.
//
// A shard whose aggregator hangs, or is drained and away, moves in the same way, except that the
// target fetches the newest version from the copy of the shard (copy_orders.h), and the move is
// complete when it has it. The target then applies the closing round; the ranks stage again what it
// lacks, as after a loss of contributions (aggregators_restore.cc). Until then the former
// aggregator may carry out its orders after all, and the move is undone. Afterwards its answers
// have no effect, because the record does not name it.
#include "coordinator/run/shard_moves.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "coordinator/run/run_rules.h"
#include "coordinator/run/run_view.h"
#include "model/shard_space.h"

namespace cadre {
namespace {

// A target is given up if an order takes this time, and what its bytes take on a slow disk.
constexpr absl::Duration kMaxOrderTime = absl::Minutes(2);
constexpr double kMinBytesPerSecond = 50e6;
// So many commits leave a move for later because a group loads an older version.
constexpr uint32_t kMaxPostponed = 8;

const std::string& SourceOf(const v1::RunRecord& record, uint32_t shard) {
  return record.shards(static_cast<int>(shard));
}

// What a shard takes on disk.
int64_t BytesOfShard(const RunView& run) {
  return SpaceOfLargestShard(run.spec(), run.Parameters(), run.shards().size());
}

// Whether all ranks of the group are connected.
bool AreConnected(const RunView& run, const Membership& members, uint32_t group) {
  return absl::c_all_of(run.slots()[group].record().members(), [&](const std::string& id) {
    const Member* const member = members.Find(id);
    return member != nullptr && member->connected();
  });
}

// Whether ranks of these groups can stage again what an aggregator lacks that has the newest
// version and nothing else: their contributions to the open round or, in the generations in which
// they have contributed, to the closing one.
bool CanStageAgain(const RunView& run, absl::FunctionRef<bool(uint32_t group)> can) {
  const auto& started = run.slots().started();
  if (!run.committing()) {
    return absl::c_all_of(started,
                          [&](uint32_t group) { return !run.round().Has(group) || can(group); });
  }
  const v1::CommitRecord& closing = *run.commits().closing();
  return !closing.has_restores() &&
         absl::c_all_of(closing.participants(), [&](const v1::Participant& one) {
           return started.contains(one.group()) && can(one.group()) &&
                  run.slots()[one.group()].record().generation() == one.generation();
         });
}

}  // namespace

// ---- The move

void ShardMoves::Advance(const std::set<std::string>& hung) {
  lacking_.clear();
  rescued_.reset();
  if (!run_.averages() || !run_.commits().newest().has_value()) return;
  SendRemovals();
  const std::optional<uint32_t> rescued = FindToRescue(hung);
  if (record_.has_move()) {
    if (const std::string why = WhyUndone(); !why.empty()) {
      Undo(why);
    } else if (Deadline() <= cluster_.now()) {
      parts_.choice.ExcludeFailed(target());
      Undo(absl::StrCat("it is too slow: it has not ", OwedByTarget()->Text()));
    } else if (rescued == record_.move().shard() && !record_.move().from_copy()) {
      record_.mutable_move()->set_from_copy(true);
      at_target_ = {.held = at_target_.held};
      stored_.Save();
      cluster_.ReportRun(v1::EVENT_KIND_SHARD_MOVE, run_.id(), BeginText());
    } else if (rescued.has_value() && !record_.move().from_copy()) {
      Undo(absl::StrCat("shard ", *rescued, " is to continue from its copy first"));
    }
  }
  if (!record_.has_move()) Begin(rescued);
  cluster_.queue().SetArriving(run_.number(), target(),
                               record_.has_move() ? BytesOfShard(run_) : 0);
  if (!record_.has_move()) return;
  const std::optional<uint32_t> hollow = HollowVersion();
  if (!hollow.has_value() || cluster_.members().ConnectedAggregator(target()) == nullptr) return;
  // A shard that is ordered to be hollow discards what it has. If the move is complete in a newer
  // record, or the answer of the target was lost, that may be contributions, too.
  if (record_.move().from_copy() && at_target_.held.has_value() &&
      at_target_.held == VersionToFetch()) {
    at_target_.copying = at_target_.copied = at_target_.held;
  } else if (at_target_.ordered != hollow) {
    at_target_ = {.ordered = hollow, .opened = at_target_.opened, .since = cluster_.now()};
    parts_.orders.Open(target(), record_.move().shard(), *hollow);
  }
  Send();
}

bool ShardMoves::IsBehind(uint32_t shard) const {
  return !parts_.shards.IsOpen(shard) ||
         (run_.committing() &&
          !run_.commits().closing()->digests(static_cast<int>(shard)).applied());
}

// The copy has the newest version, and none to which the run could be rolled back.
bool ShardMoves::CopySuffices(uint32_t shard, Ranks ranks) const {
  const std::optional<Version> version = parts_.copies.VersionFor(shard);
  if (!version.has_value() || record_.has_rollback()) return false;
  return version->version > record_.version() || CanStageAgain(run_, [&](uint32_t group) {
           return ranks == Ranks::kLive || AreConnected(run_, cluster_.members(), group);
         });
}

// An aggregator that is away may return, so only an operator who drains it gives it up.
std::optional<uint32_t> ShardMoves::FindToRescue(const std::set<std::string>& hung) const {
  for (int shard = 0; shard < record_.shards_size(); ++shard) {
    const std::string& source = SourceOf(record_, shard);
    const bool connected = cluster_.members().ConnectedAggregator(source) != nullptr;
    const bool given_up = connected ? hung.contains(source) : cluster_.queue().IsDraining(source);
    // It may have answered in this event.
    if (!given_up || !IsBehind(shard)) continue;
    if (!CopySuffices(shard, Ranks::kConnected)) continue;
    // Another one that is late as well may only be slow.
    const auto rescue = rescues_.find(shard);
    const bool again = rescue != rescues_.end() && rescue->second == record_.version();
    if (!connected || !again) return shard;
  }
  return std::nullopt;
}

void ShardMoves::Begin(std::optional<uint32_t> rescued) {
  rescued_ = rescued;
  if (rescued.has_value() && Begin(*rescued, /*from_copy=*/true)) return;
  for (int shard = 0; shard < record_.shards_size(); ++shard) {
    const bool moves =
        cluster_.queue().IsDraining(SourceOf(record_, shard)) && parts_.shards.IsOpen(shard);
    if (moves && rescued != shard && Begin(shard, /*from_copy=*/false)) return;
  }
}

bool ShardMoves::Begin(uint32_t shard, bool from_copy) {
  const ShardPlacement placement = parts_.choice.FindReplacement();
  if (placement.chosen.empty()) {
    lacking_[shard] = placement.reason;
    return false;
  }
  at_target_ = AtTarget();
  postponed_ = 0;
  v1::ShardMoveRecord& move = *record_.mutable_move();
  move.set_shard(shard);
  move.set_to(placement.chosen.front());
  move.set_from_copy(from_copy);
  stored_.Save();
  cluster_.ReportRun(v1::EVENT_KIND_SHARD_MOVE, run_.id(), BeginText());
  return true;
}

std::string ShardMoves::BeginText() const {
  const uint32_t shard = record_.move().shard();
  const std::string& source = SourceOf(record_, shard);
  if (!record_.move().from_copy()) {
    return absl::StrCat("shard ", shard, " moves from aggregator ", source, " to ", target(),
                        ", with the next version");
  }
  const bool connected = cluster_.members().ConnectedAggregator(source) != nullptr;
  return absl::StrCat("shard ", shard, " moves from aggregator ", source, ", which ",
                      connected ? "does not carry out its orders" : "is drained and away", ", to ",
                      target(), ", from the copy on ", Holder());
}

const std::string& ShardMoves::Holder() const {
  const uint32_t shard = record_.move().shard();
  return record_.move().from_copy() ? parts_.copies.copies().HolderOf(shard)
                                    : SourceOf(record_, shard);
}

std::string ShardMoves::WhyUndone() const {
  const uint32_t shard = record_.move().shard();
  if (record_.move().from_copy()) {
    if (!IsBehind(shard)) return "the aggregator has carried out its orders";
    // While the holder is away, or since the coordinator has started, it is not known what it has.
    if (parts_.copies.copies().Knows(shard) && !CopySuffices(shard, Ranks::kLive)) {
      return absl::StrCat("its copy on ", Holder(), " does not have what the run needs now");
    }
  } else if (!cluster_.queue().IsDraining(SourceOf(record_, shard))) {
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
  cluster_.ReportRun(
      v1::EVENT_KIND_SHARD_MOVE, run_.id(),
      absl::StrCat("the move of shard ", move.shard(), " from aggregator ",
                   SourceOf(record_, move.shard()), " to ", move.to(), " is undone: ", why));
  cluster_.Count("moves_undone");
  const bool has_files = at_target_.ordered.has_value() || at_target_.held.has_value();
  record_.clear_move();
  at_target_ = AtTarget();
  AddLeaving(move.to());
  if (has_files) Remove(move.to());
  stored_.Save();
}

void ShardMoves::End() {
  // The record may be older than the end of the move, or than a move back.
  if (!parts_.shards.AllOpen()) return KeepFiles();
  if (!record_.has_move()) return;
  const std::string to = target();
  record_.clear_move();
  at_target_ = AtTarget();
  AddLeaving(to);
  Remove(to);
}

void ShardMoves::KeepFiles() {
  if (record_.has_move()) record_.add_former_shards(target());
  record_.mutable_former_shards()->MergeFrom(record_.leaving());
  record_.clear_move();
  record_.clear_leaving();
}

bool ShardMoves::Idle() const {
  return !run_.committing() && run_.slots().started().empty() && run_.round().arrived() == 0;
}

std::optional<uint32_t> ShardMoves::HollowVersion() const {
  if (record_.move().from_copy()) {
    const std::optional<Version> version = VersionToFetch();
    return version.has_value() ? std::optional(version->version - 1) : std::nullopt;
  }
  // The target discards what it has. If the record is older than the end of the move, that is the
  // shard, and the former aggregator has none.
  if (!parts_.shards.IsOpen(record_.move().shard())) return std::nullopt;
  if (!Idle()) return record_.version();
  if (record_.version() == 0) return std::nullopt;
  return record_.version() - 1;
}

std::optional<ShardMoves::Version> ShardMoves::VersionToFetch() const {
  const uint32_t shard = record_.move().shard();
  if (record_.move().from_copy()) return parts_.copies.VersionFor(shard);
  const bool closing = run_.committing() && run_.commits().applied();
  if ((!closing && !Idle()) || !parts_.shards.IsOpen(shard)) return std::nullopt;
  const v1::CommitRecord& commit = closing ? *run_.commits().closing() : *run_.commits().newest();
  const std::optional<uint64_t> digest = DigestOf(commit, shard);
  if (!digest.has_value()) return std::nullopt;
  return Version{commit.round(), *digest};
}

std::string ShardMoves::PostponeReason() const {
  if (record_.move().from_copy()) return "";
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
  if (!record_.has_move()) return;
  const std::optional<Version> version = VersionToFetch();
  if (!version.has_value() || !PostponeReason().empty()) return;
  if (at_target_.hollow != version->version - 1 || at_target_.copying == version) return;
  if (!parts_.copies.Order(target(), Holder(), record_.move().shard(), *version)) return;
  at_target_.copying = version;
  at_target_.since = cluster_.now();
}

std::optional<ShardMoves::Order> ShardMoves::OwedByTarget() const {
  if (!record_.has_move()) return std::nullopt;
  const AtTarget& at = at_target_;
  if (at.copying.has_value()) {
    if (at.copied == at.copying) return std::nullopt;
    return Order{"copy_shard", record_.move().shard(), at.copying->version};
  }
  if (!at.ordered.has_value() || at.hollow == at.ordered) return std::nullopt;
  return Order{"open_run", record_.move().shard(), *at.ordered};
}

std::string ShardMoves::Order::Text() const {
  const std::string what =
      kind == "open_run" ? "opened" : absl::StrCat("copied version ", version, " of");
  return absl::StrCat(what, " shard ", shard, ", which moves to it");
}

absl::Time ShardMoves::Deadline() const {
  if (!OwedByTarget().has_value()) return absl::InfiniteFuture();
  const auto bytes = static_cast<double>(BytesOfShard(run_));
  return at_target_.since + kMaxOrderTime + absl::Seconds(bytes / kMinBytesPerSecond);
}

// The target may still be opening the shard at the version before, since rounds may be short.
bool ShardMoves::IsAwaited() const {
  if (!record_.has_move() || record_.move().from_copy() || !run_.committing()) return false;
  if (!at_target_.opened || Deadline() <= cluster_.now() || !PostponeReason().empty()) return false;
  const std::optional<Version> version = VersionToFetch();
  return version.has_value() && at_target_.copied != version;
}

std::string ShardMoves::WaitReason() const {
  if (!IsAwaited()) return "";
  return absl::StrCat("version ", record_.version() + 1, " waits for the move of shard ",
                      record_.move().shard(), " to aggregator ", target());
}

std::string ShardMoves::RescueText() const {
  if (record_.move().from_copy()) {
    return absl::StrCat("shard ", record_.move().shard(), " moves to aggregator ", target(),
                        " from its copy");
  }
  const auto lacking = rescued_.has_value() ? lacking_.find(*rescued_) : lacking_.end();
  if (lacking == lacking_.end()) return "";
  return absl::StrCat("shard ", *rescued_, " cannot continue from its copy: ", lacking->second);
}

std::optional<ShardMoves::Moved> ShardMoves::Complete() {
  if (!record_.has_move()) return std::nullopt;
  const uint32_t shard = record_.move().shard();
  const bool from_copy = record_.move().from_copy();
  if (!PostponeReason().empty()) {
    if (!Idle()) ++postponed_;
    return std::nullopt;
  }
  const std::optional<uint64_t> digest = run_.commits().ShardDigest(shard);
  std::optional<Version> version;
  if (from_copy) {
    // Advance undoes it, or a rank may return.
    if (!IsBehind(shard) || !CopySuffices(shard, Ranks::kConnected)) return std::nullopt;
    version = parts_.copies.VersionFor(shard);
  } else if (digest.has_value()) {
    version = Version{record_.version(), *digest};
  }
  if (!version.has_value() || at_target_.copied != version) return std::nullopt;
  if (from_copy) rescues_[shard] = record_.version();
  const Moved moved{shard, SourceOf(record_, shard), version->version, from_copy};
  const std::string to = target();
  record_.clear_move();
  at_target_ = AtTarget();
  cluster_.queue().SetArriving(run_.number(), "", 0);
  parts_.copies.Close(moved.from);
  record_.set_shards(static_cast<int>(shard), to);
  AddLeaving(moved.from);
  Remove(moved.from);
  stored_.Save();
  parts_.directory.SendToGroups();
  v1::RunOpened opened;
  opened.set_shard(shard);
  opened.set_version(version->version);
  opened.set_digest(version->digest);
  parts_.shards.Open(opened);
  // With the keys of the groups.
  parts_.orders.Open(shard);
  cluster_.Count("shards_moved");
  if (from_copy) cluster_.Count("shards_moved_from_copies");
  cluster_.ReportRun(
      v1::EVENT_KIND_SHARD_MOVE, run_.id(),
      absl::StrCat("shard ", shard, " has moved from aggregator ", moved.from, " to ", to,
                   ", with version ", moved.version, from_copy ? " of its copy" : ""));
  return moved;
}

// ---- The target

void ShardMoves::OnJoined(const Member& member, const v1::Hello& hello) {
  for (const v1::ShardState& state : hello.shards()) {
    const bool has_shard =
        state.lineage() == record_.lineage() && int64_t{state.shards()} == record_.shards_size();
    if (!has_shard || !IsTarget(member, state.shard())) continue;
    at_target_.held = Version{state.version(), state.digest()};
  }
}

bool ShardMoves::OnOpened(const Member& member, const v1::RunOpened& opened) {
  if (!IsTarget(member, opened.shard())) return false;
  if (!opened.error().empty()) {
    parts_.choice.ExcludeFull(target());
    Undo(opened.error());
  } else if (opened.hollow() && opened.version() == at_target_.ordered) {
    at_target_.hollow = opened.version();
    at_target_.opened = true;
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
    parts_.choice.ExcludeFailed(target());
    Undo(applied.error());
  } else if (applied.digest() == copying->digest) {
    at_target_.copied = copying;
  }
  return true;
}

void ShardMoves::Close(const std::string& name) {
  removing_.erase(name);
  if (record_.has_move() && name == target()) at_target_ = AtTarget();
  // The order names the address of this aggregator.
  if (record_.has_move() && name == Holder() && at_target_.copied != at_target_.copying) {
    at_target_.copying.reset();
  }
}

// ---- Aggregators that are left

bool ShardMoves::IsLeaving(absl::string_view name) const {
  return absl::c_linear_search(record_.leaving(), name);
}

void ShardMoves::AddLeaving(const std::string& name) {
  if (!IsLeaving(name)) record_.add_leaving(name);
}

void ShardMoves::Remove(const std::string& name) {
  const Member* const member = cluster_.members().ConnectedAggregator(name);
  if (member != nullptr && removing_.insert(name).second) parts_.orders.Delete(*member);
}

// The record may be older than a move back to one of them. If that is so, the shard is not on the
// aggregator that the record names.
void ShardMoves::SendRemovals() {
  if (run_.behind() || (run_.live() && !parts_.shards.AllOpen())) return;
  for (const std::string& name : record_.leaving()) Remove(name);
}

void ShardMoves::OnRemoved(absl::string_view name) {
  removing_.erase(std::string(name));
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
  if (!at_target_.opened || record_.move().from_copy()) return "its new aggregator opens it";
  return absl::StrCat("it moves with version ", record_.version() + 1);
}

void ShardMoves::FillStatus(const Member& aggregator, v1::AggregatorStatus& status) const {
  const std::string& name = aggregator.record.name();
  if (!run_.live() || !cluster_.queue().IsDraining(name)) return;
  for (int shard = 0; shard < record_.shards_size(); ++shard) {
    if (SourceOf(record_, shard) != name) continue;
    v1::ShardMove& move = *status.add_moves();
    move.set_run(run_.id());
    move.set_shard(shard);
    const bool has_begun = record_.has_move() && int64_t{record_.move().shard()} == shard;
    if (has_begun) move.set_to(target());
    move.set_reason(ReasonOf(shard));
  }
}

}  // namespace cadre
