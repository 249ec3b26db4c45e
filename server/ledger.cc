// The ledger is separate from files and streams because every rule in its header is a decision on a
// small in-memory state, and each must hold for every interleaving of streams, orders, crashes and
// restarts. As a pure state machine it is tested exhaustively without a disk, and the simulator
// runs this code, not a model of it.
//
// The protocol with the disk is the reverse of write-ahead logging: the ledger grants, the caller
// writes and syncs, then reports, and only then does the ledger's state change
// (ContributionDurable, VersionDurable). A crash between the write and the report therefore leaves
// more on disk than was acknowledged, never less; Restore accepts complete files and returns the
// others for deletion.
//
// `attempt` orders concurrent streams for one contribution: after a reconnect the old stream may
// still deliver chunks. Stage gives the new stream a larger attempt and CheckChunk refuses the old
// one, so chunks are counted once and in order.
//
// At the end of a round, Apply and staging run concurrently. BeginApply first records the
// participants (closing): from then on other contributions are refused, while
// participants may still finish. Then it requires that durable contributions cover the shard
// exactly. If one is missing, the participants stay fixed and the next Apply is checked again, so a
// commit is only applied with the participants that it names.
//
// A shard that has lost its files is restored by the same path. OpenRun with `hollow` sets the
// version that the next round follows, although its values are not stored; the ranks stage their
// contributions to that round again, or the values of the version that it made (a seed), and Apply
// makes the version. A mean of one group has weight 1, so a seed keeps its bits. Until then pulls
// and contributions to later rounds are refused with REFUSAL_UNSPECIFIED: the caller tries again.
//
// Cost: BeginApply is O(s log s) in the s segments of the round, all else O(log n) in the stored
// contributions.
#include "server/ledger.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "model/change_sums.h"
#include "model/frame.h"
#include "server/client/shard_span.h"

namespace cadre {
namespace {

// Far above the maximum in a run file; ShardSpan is exact up to 2^31.
constexpr uint32_t kMaxShards = 1 << 20;
constexpr int64_t kValueBytes = sizeof(float);

Refused UnknownRun(const std::string& run) {
  return {v1::REFUSAL_UNKNOWN_RUN, absl::StrCat("run '", run, "' is not open here")};
}

// What CheckRound reads of the header of a contribution.
v1::ContributionHeader PlaceOf(const ContributionKey& key) {
  v1::ContributionHeader place;
  place.set_group(key.group);
  place.set_generation(key.generation);
  place.set_round(key.round);
  place.set_base_version(key.round - 1);
  place.set_seed(key.seed);
  return place;
}

std::optional<Refused> CheckTerms(const RunTerms& terms) {
  const bool sorted = std::is_sorted(terms.tensor_begin.begin(), terms.tensor_begin.end());
  if (terms.run.empty() || terms.lineage.empty()) return Malformed("run or lineage is missing");
  if (terms.shard >= terms.shards) {
    return Malformed(absl::StrCat("shard ", terms.shard, " of ", terms.shards));
  }
  if (terms.shards > kMaxShards) {
    return Malformed(absl::StrCat(terms.shards, " shards exceed the limit of ", kMaxShards));
  }
  if (terms.tensor_begin.size() < 2 || terms.tensor_begin.front() != 0 || !sorted) {
    return Malformed("the model has no parameters");
  }
  return std::nullopt;
}

bool SameTerms(const RunTerms& a, const RunTerms& b) {
  return a.lineage == b.lineage && a.shard == b.shard && a.shards == b.shards &&
         a.ranks == b.ranks && a.tensor_begin == b.tensor_begin;
}

// Participants must be in group order, each group once, because the order of a sum determines its
// bits. Their weights must not all be 0.
std::optional<Refused> CheckParticipants(const v1::Apply& apply) {
  bool any_samples = false;
  for (int i = 0; i < apply.participants_size(); ++i) {
    any_samples |= apply.participants(i).samples() > 0;
    if (i > 0 && apply.participants(i).group() <= apply.participants(i - 1).group()) {
      return Malformed(absl::StrCat("the participants of round ", apply.round(),
                                    " are not in group order, each once"));
    }
  }
  if (!any_samples) return Malformed(absl::StrCat("round ", apply.round(), " has no samples"));
  if (uint64_t{2} * apply.trim() >= static_cast<uint64_t>(apply.participants_size())) {
    return Malformed(absl::StrCat("round ", apply.round(), " leaves all values out: trim ",
                                  apply.trim(), " of ", apply.participants_size(), " groups"));
  }
  if (!apply.seed() || apply.participants_size() == 1) return std::nullopt;
  return Malformed(absl::StrCat("version ", apply.round(), " has ", apply.participants_size(),
                                " seeds instead of one"));
}

std::string ParticipantsOf(const v1::Apply& apply) {
  if (apply.has_restores()) return absl::StrCat("a copy of version ", apply.restores());
  return absl::StrJoin(apply.participants(), ", ",
                       [](std::string* out, const v1::Participant& participant) {
                         absl::StrAppend(out, "group ", participant.group(), " generation ",
                                         participant.generation(), " (ranks: ", participant.ranks(),
                                         ", samples: ", participant.samples());
                         if (participant.scale() > 0) {
                           absl::StrAppend(out, ", scale: ", participant.scale());
                         }
                         absl::StrAppend(out, ")");
                       });
}

// Whether the version of `stored` has the participants of `apply`. An order without participants is
// unknown and fits any other; a seed is the version itself, whatever its participants were.
bool SameParticipants(const v1::Apply& stored, const v1::Apply& apply) {
  const bool unknown = stored.participants().empty() && !stored.has_restores();
  return unknown || stored.seed() || apply.seed() ||
         ParticipantsOf(stored) == ParticipantsOf(apply);
}

// The values and the states are copied, so the order has what the order of that version says of
// states. Requires: the version is stored.
ApplyPlan PlanOfCopy(const LedgerRun& run, const v1::Apply& apply) {
  const StoredVersion& from = *run.Find(apply.restores());
  ApplyPlan plan{.run = run.terms.run, .round = apply.round(), .span = run.span};
  plan.units = run.terms.units;
  plan.fragments = run.terms.fragments;
  plan.order = apply;
  if (from.order.has_outer()) *plan.order.mutable_outer() = from.order.outer();
  if (from.order.has_down()) *plan.order.mutable_down() = from.order.down();
  plan.restored = from.stats;
  plan.restored.changes = UnknownChanges(0);
  return plan;
}

// Whether two headers announce the same contribution.
bool SameContribution(const v1::ContributionHeader& a, const v1::ContributionHeader& b) {
  v1::ContributionHeader left = a;
  v1::ContributionHeader right = b;
  left.clear_protocol();
  right.clear_protocol();
  return left.SerializeAsString() == right.SerializeAsString();
}

}  // namespace

Interval Ledger::SpanOf(const RunTerms& terms) {
  if (terms.units != nullptr) return terms.units->PartOf(terms.shard, terms.shards);
  return ShardSpan(terms.tensor_begin.back(), terms.shard, terms.shards);
}

LedgerRun* Ledger::Find(const std::string& run) {
  const auto found = runs_.find(run);
  return found == runs_.end() ? nullptr : &found->second;
}

const LedgerRun* Ledger::Find(const std::string& run) const {
  const auto found = runs_.find(run);
  return found == runs_.end() ? nullptr : &found->second;
}

// --- Runs

Decision<Opened> Ledger::OpenRun(const RunTerms& terms) {
  if (auto refused = CheckTerms(terms)) return *refused;
  Opened opened;
  opened.span = SpanOf(terms);
  if (const auto found = runs_.find(terms.run); found != runs_.end()) {
    LedgerRun& known = found->second;
    // Until the first round, the shards of a run may be reassigned.
    const bool untouched = !known.hollow && (!known.current || known.current->version == 0);
    if (known.terms.lineage != terms.lineage) {
      opened.replaces_lineage = known.terms.lineage;
      runs_.erase(found);
    } else if (!SameTerms(known.terms, terms) && untouched) {
      opened.dropped = known.contributions.DropAll();
      opened.reassigned = true;
      runs_.erase(found);
    } else if (!SameTerms(known.terms, terms)) {
      return Malformed(absl::StrCat("run ", terms.run,
                                    " is open with another model, cluster or shard (",
                                    known.terms.shard, " of ", known.terms.shards, ")"));
    }
  }
  LedgerRun& run = runs_[terms.run];
  if (run.terms.run.empty()) {
    run.terms = terms;
    run.span = opened.span;
  }
  for (const auto& [group, generation] : terms.generations) {
    const std::vector<ContributionKey> dropped = run.Fence(group, generation);
    opened.dropped.insert(opened.dropped.end(), dropped.begin(), dropped.end());
  }
  run.closed = false;
  run.leaving = false;
  // The order follows again. One of a coordinator whose store has become older is obsolete.
  if (!run.applying) run.closing.Clear();
  if (terms.hollow && run.hollow != terms.hollow) {
    for (const auto& [version, stored] : run.older) opened.discarded.push_back(version);
    if (run.current) opened.discarded.push_back(run.current->version);
    const std::vector<ContributionKey> dropped = run.contributions.DropAll();
    opened.dropped.insert(opened.dropped.end(), dropped.begin(), dropped.end());
    LedgerRun hollow;
    hollow.terms = std::move(run.terms);
    hollow.span = run.span;
    hollow.hollow = terms.hollow;
    run = std::move(hollow);
  }
  opened.hollow = run.hollow;
  opened.make_version_zero = !run.newest() && terms.version == 0;
  return opened;
}

std::vector<ContributionKey> Ledger::Fence(const std::string& run, uint32_t group,
                                           const GroupGeneration& generation) {
  LedgerRun* const found = Find(run);
  if (found == nullptr) return {};
  return found->Fence(group, generation);
}

std::vector<ContributionKey> Ledger::CloseRun(const std::string& name) {
  const auto found = runs_.find(name);
  if (found == runs_.end()) return {};
  LedgerRun& run = found->second;
  run.closed = true;
  run.applying = false;
  return run.contributions.DropAll();
}

std::vector<ContributionKey> Ledger::Restore(const RunTerms& terms, bool closed,
                                             const std::vector<StoredVersion>& versions,
                                             const std::vector<FoundContribution>& contributions) {
  LedgerRun& run = runs_[terms.run];
  run.terms = terms;
  run.span = SpanOf(terms);
  run.closed = closed;
  for (const StoredVersion& found : versions) run.older[found.version] = found;
  if (!run.older.empty()) run.current = run.older.extract(std::prev(run.older.end())).mapped();
  if (!run.current) run.hollow = terms.hollow;
  run.published = !run.current || run.current->order.attempt() == 0;
  std::vector<ContributionKey> useless;
  for (const FoundContribution& found : contributions) {
    const ContributionKey key = ContributionKey::Of(found.header);
    Decision<Contribution> mapped = ContributionOf(run.terms, run.span, found.header);
    const uint32_t next = run.newest().value_or(0) + 1;
    const bool may_count = key.round == next || (!run.published && key.round + 1 == next);
    if (closed || !may_count || std::holds_alternative<Refused>(mapped)) {
      useless.push_back(key);
      continue;
    }
    Contribution contribution = std::get<Contribution>(std::move(mapped));
    contribution.stored_chunks = std::min(found.whole_chunks, contribution.chunks);
    contribution.durable = contribution.stored_chunks == contribution.chunks;
    run.contributions.Put(key, std::move(contribution));
  }
  return useless;
}

void Ledger::Leave(const std::string& name, const std::string& lineage) {
  LedgerRun* const run = Find(name);
  if (run != nullptr && run->terms.lineage == lineage) run->leaving = true;
}

bool Ledger::IsClosed(const std::string& run) const {
  const LedgerRun* const found = Find(run);
  return found == nullptr || found->closed;
}

int64_t Ledger::StoredElements(const std::string& name) const {
  const LedgerRun* const run = Find(name);
  if (run == nullptr) return 0;
  const int64_t of_version = run->span.size() * (1 + run->terms.outer_states);
  return of_version * ((run->current ? 1 : 0) + std::ssize(run->older)) +
         run->contributions.StoredElements();
}

uint32_t Ledger::HighestGeneration() const {
  uint32_t highest = 0;
  for (const auto& [name, run] : runs_) {
    for (const auto& [group, generation] : run.terms.generations) {
      highest = std::max(highest, generation.number);
    }
  }
  return highest;
}

std::vector<v1::ShardState> Ledger::States() const {
  std::vector<v1::ShardState> states;
  for (const auto& [name, run] : runs_) {
    if (!run.current) continue;
    v1::ShardState state;
    state.set_run(name);
    state.set_lineage(run.terms.lineage);
    state.set_shard(run.terms.shard);
    state.set_version(run.current->version);
    state.set_digest(run.current->stats.digest);
    state.set_shards(run.terms.shards);
    state.set_step(run.current->order.step());
    state.set_samples(run.current->order.samples());
    state.set_closed(run.closed);
    states.push_back(std::move(state));
  }
  return states;
}

google::protobuf::RepeatedPtrField<v1::KeptVersion> Ledger::OlderVersions(
    const std::string& name) const {
  google::protobuf::RepeatedPtrField<v1::KeptVersion> versions;
  const LedgerRun* const run = Find(name);
  if (run == nullptr) return versions;
  for (const auto& [version, stored] : run->older) {
    v1::KeptVersion& kept = *versions.Add();
    kept.set_version(version);
    kept.set_digest(stored.stats.digest);
  }
  return versions;
}

std::vector<uint32_t> Ledger::ForgetObsolete(const std::string& name) {
  std::vector<uint32_t> obsolete;
  LedgerRun* const run = Find(name);
  if (run == nullptr || !run->current) return obsolete;
  std::erase_if(run->older, [&](const auto& entry) {
    if (run->Keeps(entry.first)) return false;
    obsolete.push_back(entry.first);
    return true;
  });
  return obsolete;
}

void Ledger::Report(const std::string& name, v1::RunReport& report) const {
  const LedgerRun* const run = Find(name);
  if (run == nullptr || !run->current) return;
  if (run->current->order.round() > 0) *report.mutable_newest() = run->current->order;
  if (run->published || run->older.empty()) return;
  const auto& [version, before] = *run->older.rbegin();
  if (version + 1 != run->current->version) return;
  *report.mutable_before() = before.order;
  report.set_before_digest(before.stats.digest);
}

// --- Contributions
//
// The order of the checks determines which refusal a rank receives, and ranks react to it. The
// identity is checked first: if it is wrong, the cause is a bug or another cluster. Ranges are
// checked next because they do not depend on the round. Generation and round, which change with
// time, come last. A stale generation is reported rather than a closed round: the rank then gives
// up its place in the group, whereas after a closed round it adopts the new version.

Decision<SecretKey> Ledger::KeyOf(const std::string& name, uint32_t group,
                                  uint32_t generation) const {
  const LedgerRun* const run = Find(name);
  if (run == nullptr || !run->newest()) return UnknownRun(name);
  if (auto refused = run->CheckGeneration(group, generation)) return *std::move(refused);
  return *run->terms.generations.at(group).key;
}

Contribution* Ledger::Find(const ContributionKey& key, uint64_t attempt) {
  LedgerRun* const run = Find(key.run);
  Contribution* const found = run == nullptr ? nullptr : run->contributions.Find(key);
  return found != nullptr && found->attempt == attempt ? found : nullptr;
}

Decision<StageGrant> Ledger::Stage(const v1::ContributionHeader& header) {
  LedgerRun* const found = Find(header.run());
  if (found == nullptr || !found->newest()) return UnknownRun(header.run());
  LedgerRun& run = *found;
  if (auto refused = run.CheckIdentity(header)) return *refused;
  Decision<Contribution> mapped = ContributionOf(run.terms, run.span, header);
  if (auto* refused = std::get_if<Refused>(&mapped)) return *refused;
  if (auto refused = run.CheckRound(header)) return *refused;

  const ContributionKey key = ContributionKey::Of(header);
  Contribution* staged = run.contributions.Find(key);
  const bool same = staged != nullptr && SameContribution(staged->header, header);
  if (staged != nullptr && !same && staged->durable) {
    return Malformed(
        absl::StrCat(key.ToString(), " is already staged with other ranges or samples"));
  }
  if (!same) {
    auto& contribution = std::get<Contribution>(mapped);
    if (auto refused = run.contributions.CheckRoom(run.span, key, contribution)) return *refused;
    staged = &run.contributions.Put(key, std::move(contribution));
  }
  StageGrant grant;
  grant.key = key;
  grant.fresh = !same;
  staged->attempt = grant.attempt = ++attempts_;
  grant.next_chunk = staged->stored_chunks;
  grant.chunks = staged->chunks;
  grant.elements = staged->elements;
  if (header.codec() != v1::CODEC_FP32) {
    grant.coding = run.terms.up;
    grant.units = run.terms.units;
    grant.fragments = run.terms.fragments;
    grant.spans = staged->spans;
    grant.shard = run.span;
  }
  return grant;
}

std::optional<Refused> Ledger::CheckChunk(const ContributionKey& key, uint64_t attempt,
                                          uint32_t index, int64_t bytes, bool crc_fits) const {
  const LedgerRun* run = Find(key.run);
  if (run == nullptr) return UnknownRun(key.run);
  if (auto refused = run->CheckRound(PlaceOf(key))) return refused;
  const Contribution* const found = run->contributions.Find(key);
  if (found == nullptr || found->attempt != attempt) {
    return Refused{v1::REFUSAL_OUT_OF_ORDER,
                   absl::StrCat(key.ToString(), ": superseded by a newer stream")};
  }
  const Contribution& staged = *found;
  const int64_t chunk_elements = staged.header.chunk_elements();
  const int64_t full = chunk_elements * kValueBytes;
  const std::string chunk = absl::StrCat("chunk ", index, " of ", key.ToString());
  if (bytes > full) {
    return Refused{v1::REFUSAL_OVERSIZED,
                   absl::StrCat(chunk, " has ", bytes, " bytes, more than the announced ", full)};
  }
  if (staged.stored_chunks == staged.chunks || index != staged.stored_chunks) {
    return Malformed(absl::StrCat(chunk, " is not the next one: ", staged.stored_chunks, " of ",
                                  staged.chunks, " are stored"));
  }
  const int64_t left = (staged.elements - index * chunk_elements) * kValueBytes;
  if (bytes != std::min(full, left)) {
    return Malformed(
        absl::StrCat(chunk, " has ", bytes, " bytes instead of ", std::min(full, left)));
  }
  if (!crc_fits) return Refused{v1::REFUSAL_WRONG_CRC, absl::StrCat(chunk, " was damaged")};
  return std::nullopt;
}

bool Ledger::ChunkStored(const ContributionKey& key, uint64_t attempt) {
  Contribution* const found = Find(key, attempt);
  return found != nullptr && ++found->stored_chunks == found->chunks;
}

bool Ledger::ContributionDurable(const ContributionKey& key, uint64_t attempt,
                                 std::shared_ptr<const FrameIndex> frame) {
  Contribution* const found = Find(key, attempt);
  if (found == nullptr || found->stored_chunks != found->chunks) return false;
  if (Find(key.run)->leaving) return false;
  found->durable = true;
  found->frame = std::move(frame);
  return true;
}

Refused Ledger::WhyDropped(const ContributionKey& key) const {
  const LedgerRun* const run = Find(key.run);
  if (run == nullptr) return UnknownRun(key.run);
  if (auto refused = run->CheckRound(PlaceOf(key))) return *std::move(refused);
  return {v1::REFUSAL_OUT_OF_ORDER, absl::StrCat(key.ToString(), ": dropped while it was staged")};
}

std::vector<ContributionKey> Ledger::SyncFailed(const ContributionKey& key) {
  LedgerRun* const run = Find(key.run);
  if (run == nullptr) return {};
  return run->contributions.DropIf(
      [&](const ContributionKey& other, const Contribution& contribution) {
        return other == key && !contribution.durable;
      });
}

void Ledger::ContributionLost(const ContributionKey& key) {
  if (LedgerRun* const run = Find(key.run)) run->contributions.Erase(key);
}

// --- Rounds

ApplyDecision Ledger::BeginApply(const v1::Apply& apply) {
  LedgerRun* const found = Find(apply.run());
  if (found == nullptr || !found->newest()) return UnknownRun(apply.run());
  LedgerRun& run = *found;
  if (apply.shard() != run.terms.shard) {
    return Malformed(absl::StrCat("shard ", apply.shard(), " of ", apply.run(),
                                  " is not open here; shard ", run.terms.shard, " is"));
  }
  if (run.Remakes(apply)) run.Retract();
  if (const StoredVersion* const stored = run.Find(apply.round())) {
    if (SameParticipants(stored->order, apply)) return AlreadyApplied{stored->stats};
    return Refused{
        v1::REFUSAL_CLOSED_ROUND,
        absl::StrCat("version ", apply.round(), " was made of ", ParticipantsOf(stored->order),
                     "; the order names ", ParticipantsOf(apply))};
  }
  if (auto refused = run.CheckOrder(apply)) return *std::move(refused);
  if (run.applying) return ApplyUnderWay{};
  if (run.hollow && !apply.has_restores() && RequiresBefore(apply)) {
    return LacksVersion{*run.hollow};
  }
  if (apply.has_restores()) {
    ApplyPlan copy = PlanOfCopy(run, apply);
    run.closing = copy.order;
    run.applying = true;
    return copy;
  }

  if (auto refused = CheckParticipants(apply)) return *refused;
  run.closing = apply;
  ApplyPlan plan{run.terms.run,
                 apply.round(),
                 run.span,
                 ExchangedOf(run.terms, run.span, apply.fragment()),
                 {},
                 run.terms.statistics,
                 run.terms.units,
                 run.terms.fragments,
                 apply};
  if (auto incomplete = run.AddSources(plan)) return *std::move(incomplete);
  run.applying = true;
  return plan;
}

void Ledger::ApplyFailed(const std::string& name, uint32_t round) {
  LedgerRun* const run = Find(name);
  if (run != nullptr && run->closing.round() == round) run->applying = false;
}

std::vector<ContributionKey> Ledger::VersionDurable(const std::string& name, uint32_t version,
                                                    const VersionStats& stats) {
  LedgerRun* const found = Find(name);
  if (found == nullptr) return {};
  LedgerRun& run = *found;
  const bool first = !run.newest() && version == 0;
  if (!first && !(run.applying && version == run.closing.round())) return {};
  if (run.current) run.older[run.current->version] = *std::move(run.current);
  run.current = StoredVersion{version, stats, first ? v1::Apply() : run.closing};
  run.hollow.reset();
  run.applying = false;
  run.published = run.current->order.attempt() == 0;
  return run.published ? run.DropUntil(version) : run.DropUntil(version - 1);
}

std::vector<ContributionKey> Ledger::Publish(const std::string& name, uint32_t version) {
  LedgerRun* const run = Find(name);
  if (run == nullptr || !run->current || run->current->version > version) return {};
  run->published = true;
  return run->DropUntil(run->current->version);
}

bool Ledger::AwaitsVersion(const std::string& name, uint32_t version) const {
  const LedgerRun* const run = Find(name);
  return run != nullptr && !run->closed && !run->applying && !run->current &&
         run->hollow == version - 1;
}

std::vector<ContributionKey> Ledger::AddCopied(const std::string& name,
                                               const StoredVersion& version) {
  LedgerRun& run = *Find(name);
  run.current = version;
  run.published = version.order.attempt() == 0;
  run.hollow.reset();
  return run.contributions.DropIf([&](const ContributionKey& key, const Contribution&) {
    return key.round <= version.version;
  });
}

PullDecision Ledger::Pull(const v1::PullRequest& request) const {
  const LedgerRun* run = Find(request.run());
  if (run == nullptr || !run->newest()) return UnknownRun(request.run());
  if (request.lineage() != run->terms.lineage) {
    return Refused{v1::REFUSAL_WRONG_LINEAGE,
                   absl::StrCat("run ", request.run(), " has lineage ", run->terms.lineage,
                                ", not ", request.lineage())};
  }
  Decision<std::vector<Interval>> spans =
      Flatten(run->terms.tensor_begin, run->span, request.ranges());
  if (auto* refused = std::get_if<Refused>(&spans)) return *refused;
  if (run->hollow || request.version() > run->current->version) {
    return BeingRestored(request.run());
  }
  PullGrant grant{request.run(), request.version(), {}, 0, run->terms.units, run->terms.fragments};
  grant.spans = std::get<std::vector<Interval>>(std::move(spans));
  grant.elements = Elements(grant.spans);
  if (request.has_state() && request.has_frame_from()) {
    return Malformed("a state and a frame are requested together");
  }
  if (request.has_state() && request.state() >= static_cast<uint32_t>(run->terms.outer_states)) {
    return Malformed(absl::StrCat("state ", request.state(), " is requested; the run has ",
                                  run->terms.outer_states));
  }
  // Frames are kept longer than versions.
  if (request.has_frame_from()) return grant;
  const uint32_t version = request.version();
  if (run->Find(version) != nullptr && run->Keeps(version)) return grant;
  return NoSuchVersion{request.version(), run->current->version};
}

}  // namespace cadre
