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
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "model/validate.h"
#include "server/client/frame.h"
#include "server/client/shard_span.h"
#include "server/mean.h"

namespace cadre {
namespace {

// Far above the maximum in a run file; ShardSpan is exact up to 2^31.
constexpr uint32_t kMaxShards = 1 << 20;
// A rank's slice of a shard has a few ranges per tensor.
constexpr int kMaxRanges = 1 << 16;
// Those of all ranks of a generation: their headers stay in memory for the round.
constexpr int64_t kMaxRangesOfGroup = 1 << 22;
// A chunk of 4 MiB of values fits, with its header, into the largest message.
constexpr uint32_t kMaxChunkElements = 1 << 20;
constexpr int64_t kValueBytes = sizeof(float);
// A contribution with more chunks has an unreasonable chunk size.
constexpr int64_t kMaxChunks = 1 << 24;

Refused Malformed(std::string reason) { return {v1::REFUSAL_MALFORMED, std::move(reason)}; }

Refused UnknownRun(const std::string& run) {
  return {v1::REFUSAL_UNKNOWN_RUN, absl::StrCat("run '", run, "' is not open here")};
}

Refused BeingRestored(const std::string& run) {
  return {v1::REFUSAL_UNSPECIFIED, absl::StrCat("the shard of ", run, " is being restored")};
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

// Converts ranges of tensors, as they arrive in messages, to intervals of the parameter order, and
// drops empty ones. `tensor_begin` is that of RunTerms. Refuses ranges outside their tensor or
// outside `owned`, and too many ranges.
//
// The ends of a range are unsigned numbers from the network. They are compared with the size of
// their tensor as unsigned numbers; only ends within the tensor become positions, which are signed.
// Values from 2^63 on are therefore refused instead of becoming negative positions.
Decision<std::vector<Interval>> Flatten(
    const std::vector<int64_t>& tensor_begin, Interval owned,
    const google::protobuf::RepeatedPtrField<v1::Range>& ranges) {
  if (ranges.size() > kMaxRanges) {
    return Refused{v1::REFUSAL_OVERSIZED,
                   absl::StrCat(ranges.size(), " ranges exceed the limit of ", kMaxRanges)};
  }
  std::vector<Interval> spans;
  for (const v1::Range& range : ranges) {
    const std::string where =
        absl::StrCat("range [", range.begin(), ", ", range.end(), ") of tensor ", range.tensor());
    // tensor_begin has one entry more than there are tensors: the number of all elements.
    if (range.tensor() + uint64_t{1} >= tensor_begin.size()) {
      return Malformed(absl::StrCat(where, ": no such tensor"));
    }
    const int64_t first = tensor_begin[range.tensor()];
    const uint64_t size = tensor_begin[range.tensor() + 1] - first;
    if (range.begin() > range.end() || range.end() > size) {
      return Malformed(absl::StrCat(where, " exceeds the tensor's ", size, " elements"));
    }
    if (range.begin() == range.end()) continue;
    const int64_t begin = range.begin();
    const int64_t end = range.end();
    const Interval span{first + begin, first + end};
    if (!owned.contains(span)) {
      return Malformed(absl::StrCat(where, " is outside this shard's positions [", owned.begin,
                                    ", ", owned.end, ")"));
    }
    spans.push_back(span);
  }
  return spans;
}

// Number of elements in all spans.
int64_t Elements(const std::vector<Interval>& spans) {
  return std::accumulate(spans.begin(), spans.end(), int64_t{0},
                         [](int64_t sum, const Interval& span) { return sum + span.size(); });
}

// Returns a position that lies in two spans, if there is one. The spans are sorted by their
// beginnings: if any two overlap, two adjacent ones do.
std::optional<int64_t> Overlap(std::vector<Interval> spans) {
  std::sort(spans.begin(), spans.end(),
            [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
  const auto overlap =
      std::adjacent_find(spans.begin(), spans.end(),
                         [](const Interval& a, const Interval& b) { return b.begin < a.end; });
  if (overlap == spans.end()) return std::nullopt;
  return std::next(overlap)->begin;
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

// Whether the order has the run's coding in both directions.
bool HasCoding(const RunTerms& terms, const v1::Apply& apply) {
  const auto same = [](const std::optional<v1::Coding>& coding, bool has, const v1::Coding& other) {
    return coding.has_value() == has &&
           (!has || coding->SerializeAsString() == other.SerializeAsString());
  };
  return same(terms.up, apply.has_up(), apply.up()) &&
         same(terms.down, apply.has_down(), apply.down());
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
  if (!apply.seed() || apply.participants_size() == 1) return std::nullopt;
  return Malformed(absl::StrCat("version ", apply.round(), " has ", apply.participants_size(),
                                " seeds instead of one"));
}

template <typename Contributions>
std::vector<ContributionKey> KeysOf(const Contributions& contributions) {
  std::vector<ContributionKey> keys;
  for (const auto& [key, contribution] : contributions) keys.push_back(key);
  return keys;
}

// Whether the order names the group and generation of the contribution.
bool Names(const v1::Apply& apply, const v1::ContributionHeader& header) {
  return std::any_of(apply.participants().begin(), apply.participants().end(),
                     [&](const v1::Participant& participant) {
                       return participant.group() == header.group() &&
                              participant.generation() == header.generation();
                     });
}

std::string ParticipantsOf(const v1::Apply& apply) {
  return absl::StrJoin(apply.participants(), ", ",
                       [](std::string* out, const v1::Participant& participant) {
                         absl::StrAppend(out, "group ", participant.group(), " generation ",
                                         participant.generation(), " (ranks: ", participant.ranks(),
                                         ", samples: ", participant.samples(), ")");
                       });
}

// Whether the version of `stored` has the participants of `apply`. An order without participants is
// unknown and fits any other; a seed is the version itself, whatever its participants were.
bool SameParticipants(const v1::Apply& stored, const v1::Apply& apply) {
  return stored.participants().empty() || stored.seed() || apply.seed() ||
         ParticipantsOf(stored) == ParticipantsOf(apply);
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

std::optional<uint32_t> Ledger::NewestOf(const Run& run) {
  return run.current ? run.current->version : run.hollow;
}

Interval Ledger::SpanOf(const RunTerms& terms) {
  if (terms.units != nullptr) return terms.units->PartOf(terms.shard, terms.shards);
  return ShardSpan(terms.tensor_begin.back(), terms.shard, terms.shards);
}

Ledger::Run* Ledger::Find(const std::string& run) {
  const auto found = runs_.find(run);
  return found == runs_.end() ? nullptr : &found->second;
}

// --- Runs

Decision<Opened> Ledger::OpenRun(const RunTerms& terms) {
  if (auto refused = CheckTerms(terms)) return *refused;
  Opened opened;
  opened.span = SpanOf(terms);
  if (const auto found = runs_.find(terms.run); found != runs_.end()) {
    Run& known = found->second;
    // Until the first round, the shards of a run may be reassigned.
    const bool untouched = !known.hollow && (!known.current || known.current->version == 0);
    if (known.terms.lineage != terms.lineage) {
      opened.replaces_lineage = known.terms.lineage;
      runs_.erase(found);
    } else if (!SameTerms(known.terms, terms) && untouched) {
      opened.dropped = KeysOf(known.contributions);
      opened.reassigned = true;
      runs_.erase(found);
    } else if (!SameTerms(known.terms, terms)) {
      return Malformed(absl::StrCat("run ", terms.run,
                                    " is open with another model, cluster or shard (",
                                    known.terms.shard, " of ", known.terms.shards, ")"));
    }
  }
  Run& run = runs_[terms.run];
  if (run.terms.run.empty()) {
    run.terms = terms;
    run.span = opened.span;
  }
  for (const auto& [group, generation] : terms.generations) {
    const std::vector<ContributionKey> dropped = Fence(run, group, generation);
    opened.dropped.insert(opened.dropped.end(), dropped.begin(), dropped.end());
  }
  run.closed = false;
  // The order follows again. One of a coordinator whose store has become older is obsolete.
  if (!run.applying) run.closing.Clear();
  if (terms.hollow && run.hollow != terms.hollow) {
    for (const auto& version : {run.previous, run.current}) {
      if (version) opened.discarded.push_back(version->version);
    }
    const std::vector<ContributionKey> dropped = KeysOf(run.contributions);
    opened.dropped.insert(opened.dropped.end(), dropped.begin(), dropped.end());
    Run hollow;
    hollow.terms = std::move(run.terms);
    hollow.span = run.span;
    hollow.hollow = terms.hollow;
    run = std::move(hollow);
  }
  opened.hollow = run.hollow;
  opened.make_version_zero = !NewestOf(run) && terms.version == 0;
  return opened;
}

std::vector<ContributionKey> Ledger::Fence(const std::string& run, uint32_t group,
                                           const GroupGeneration& generation) {
  Run* const found = Find(run);
  if (found == nullptr) return {};
  return Fence(*found, group, generation);
}

std::vector<ContributionKey> Ledger::CloseRun(const std::string& name) {
  const auto found = runs_.find(name);
  if (found == runs_.end()) return {};
  Run& run = found->second;
  run.closed = true;
  run.applying = false;
  const std::vector<ContributionKey> dropped = KeysOf(run.contributions);
  run.contributions.clear();
  return dropped;
}

std::vector<ContributionKey> Ledger::Restore(const RunTerms& terms, bool closed,
                                             const std::vector<StoredVersion>& versions,
                                             const std::vector<FoundContribution>& contributions) {
  Run& run = runs_[terms.run];
  run.terms = terms;
  run.span = SpanOf(terms);
  run.closed = closed;
  for (const StoredVersion& found : versions) {
    if (!run.current || found.version > run.current->version) {
      run.previous = std::exchange(run.current, found);
    } else if (!run.previous || found.version > run.previous->version) {
      run.previous = found;
    }
  }
  if (!run.current) run.hollow = terms.hollow;
  std::vector<ContributionKey> useless;
  for (const FoundContribution& found : contributions) {
    const ContributionKey key = ContributionKey::Of(found.header);
    Decision<Contribution> mapped = MapRanges(run, found.header);
    const uint32_t next = NewestOf(run).value_or(0) + 1;
    if (closed || key.round != next || std::holds_alternative<Refused>(mapped)) {
      useless.push_back(key);
      continue;
    }
    Contribution contribution = std::get<Contribution>(std::move(mapped));
    contribution.stored_chunks = std::min(found.whole_chunks, contribution.chunks);
    contribution.durable = contribution.stored_chunks == contribution.chunks;
    run.contributions.emplace(key, std::move(contribution));
  }
  return useless;
}

bool Ledger::IsClosed(const std::string& run) const {
  const Run* const found = Find(run);
  return found == nullptr || found->closed;
}

int64_t Ledger::StoredElements(const std::string& name) const {
  const Run* const run = Find(name);
  if (run == nullptr) return 0;
  const int64_t of_version = run->span.size() * (1 + run->terms.outer_states);
  int64_t elements = of_version * ((run->current ? 1 : 0) + (run->previous ? 1 : 0));
  for (const auto& [key, contribution] : run->contributions) {
    // A contribution without elements has no chunks.
    const int64_t chunks = std::max(1U, contribution.chunks);
    elements += contribution.elements * contribution.stored_chunks / chunks;
  }
  return elements;
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

v1::Apply Ledger::NewestOrder(const std::string& run) const {
  const Run* const found = Find(run);
  return found == nullptr || !found->current ? v1::Apply() : found->current->order;
}

// --- Contributions
//
// The order of the checks determines which refusal a rank receives, and ranks react to it. The
// identity is checked first: if it is wrong, the cause is a bug or another cluster. Ranges are
// checked next because they do not depend on the round. Generation and round, which change with
// time, come last. A stale generation is reported rather than a closed round: the rank then gives
// up its place in the group, whereas after a closed round it adopts the new version.

ContributionKey ContributionKey::Of(const v1::ContributionHeader& header) {
  return {header.run(),        header.round(), header.group(),
          header.generation(), header.rank(),  header.seed()};
}

std::string ContributionKey::ToString() const {
  return absl::StrCat("round ", round, " of ", run, ", group ", group, ", generation ", generation,
                      ", rank ", rank, seed ? ", seed" : "");
}

std::optional<Refused> Ledger::CheckIdentity(const Run& run, const v1::ContributionHeader& header) {
  const RunTerms& terms = run.terms;
  if (header.lineage() != terms.lineage) {
    return Refused{v1::REFUSAL_WRONG_LINEAGE,
                   absl::StrCat("run ", terms.run, " has lineage ", terms.lineage,
                                ", the contribution has ", header.lineage())};
  }
  if (header.group() >= kMaxGroups || header.rank() >= terms.ranks) {
    return Malformed(absl::StrCat("group ", header.group(), ", rank ", header.rank(),
                                  ": runs have groups 0 to ", kMaxGroups - 1,
                                  ", this one ranks 0 to ", terms.ranks - 1));
  }
  // A seed is a version, not a difference.
  const v1::Codec codec = header.seed() || !terms.up ? v1::CODEC_FP32 : terms.up->codec();
  if (header.codec() != codec) {
    return Malformed(absl::StrCat("the contribution has codec ", static_cast<int>(header.codec()),
                                  ", the run has codec ", static_cast<int>(codec)));
  }
  return std::nullopt;
}

std::optional<Refused> Ledger::CheckRound(const Run& run, const v1::ContributionHeader& header) {
  if (auto refused = CheckGeneration(run, header.group(), header.generation())) return refused;
  if (run.closed) {
    return Refused{v1::REFUSAL_CLOSED_ROUND, absl::StrCat("run ", run.terms.run, " has ended")};
  }
  const uint32_t version = NewestOf(run).value_or(0);
  // The shard is behind the run: its newest version is lost. The coordinator will have it restored.
  const bool ahead = header.round() > version + 1 && header.base_version() + 1 == header.round();
  if (ahead) return BeingRestored(run.terms.run);
  // A seed may arrive before the order that names it: it is the version itself, and other orders do
  // not use it.
  const bool left_out =
      header.round() == run.closing.round() && !header.seed() && !Names(run.closing, header);
  if (header.round() <= version || left_out) {
    return Refused{v1::REFUSAL_CLOSED_ROUND,
                   absl::StrCat("round ", header.round(), " is closed: ",
                                left_out ? "its participants are decided"
                                         : absl::StrCat("version ", version, " exists"))};
  }
  if (header.round() != version + 1 || header.base_version() != version) {
    return Refused{
        v1::REFUSAL_WRONG_BASE,
        absl::StrCat("round ", version + 1, " accepts contributions computed from version ",
                     version, ", not round ", header.round(), " from version ",
                     header.base_version())};
  }
  return std::nullopt;
}

Decision<Ledger::Contribution> Ledger::MapRanges(const Run& run,
                                                 const v1::ContributionHeader& header) {
  if (header.chunk_elements() == 0) return Malformed("chunk_elements is 0");
  if (header.chunk_elements() > kMaxChunkElements) {
    return Refused{v1::REFUSAL_OVERSIZED,
                   absl::StrCat("chunks of ", header.chunk_elements(),
                                " elements exceed the limit of ", kMaxChunkElements)};
  }
  Decision<std::vector<Interval>> spans =
      Flatten(run.terms.tensor_begin, run.span, header.ranges());
  if (auto* refused = std::get_if<Refused>(&spans)) return *refused;
  Contribution contribution;
  contribution.header = header;
  contribution.spans = std::get<std::vector<Interval>>(std::move(spans));
  if (const auto position = Overlap(contribution.spans)) {
    return Malformed(absl::StrCat("position ", *position, " is in two ranges"));
  }
  if (auto refused = CheckFragment(run, contribution)) return *refused;
  contribution.positions = Elements(contribution.spans);
  contribution.elements = contribution.positions;
  if (header.codec() != v1::CODEC_FP32) {
    if (auto refused = CheckFrame(run, contribution)) return *refused;
    contribution.elements = static_cast<int64_t>(header.frame_elements());
  }
  const int64_t chunks =
      (contribution.elements + header.chunk_elements() - 1) / header.chunk_elements();
  if (chunks > kMaxChunks) {
    return Malformed(absl::StrCat(chunks, " chunks exceed the limit of ", kMaxChunks));
  }
  contribution.chunks = chunks;
  return contribution;
}

std::vector<Interval> Ledger::ExchangedOf(const Run& run, uint32_t fragment) {
  if (fragment == 0) return {run.span};
  return run.terms.units->FragmentIn(run.span, fragment, run.terms.fragments);
}

// Which fragment a round exchanges follows from its number, except for the last round of a run.
std::optional<Refused> Ledger::CheckFragment(const Run& run, const Contribution& contribution) {
  const v1::ContributionHeader& header = contribution.header;
  if (header.fragment() == 0) return std::nullopt;
  const uint32_t due = 1 + (header.round() - 1) % run.terms.fragments;
  if (run.terms.fragments == 1 || header.fragment() != due || header.seed()) {
    return Malformed(absl::StrCat("the contribution to round ", header.round(), " has fragment ",
                                  header.fragment(), "; the run has ", run.terms.fragments));
  }
  const std::vector<Interval> exchanged = ExchangedOf(run, header.fragment());
  for (const Interval& span : contribution.spans) {
    const auto after =
        std::upper_bound(exchanged.begin(), exchanged.end(), span.begin,
                         [](int64_t begin, const Interval& each) { return begin < each.begin; });
    if (after != exchanged.begin() && std::prev(after)->contains(span)) continue;
    return Malformed(absl::StrCat("positions ", span.begin, " to ", span.end,
                                  " are not in fragment ", header.fragment()));
  }
  return std::nullopt;
}

std::optional<Refused> Ledger::CheckFrame(const Run& run, const Contribution& contribution) {
  if (run.terms.units == nullptr) return Malformed("the run has no frames");
  int64_t next = 0;
  int64_t max_elements = 0;
  for (const Interval& span : contribution.spans) {
    if (span.begin < next || !run.terms.units->IsBorder(span.begin) ||
        !run.terms.units->IsBorder(span.end)) {
      return Malformed(absl::StrCat("the frame of positions ", span.begin, " to ", span.end,
                                    " does not consist of whole units in order"));
    }
    next = span.end;
    max_elements += MaxFrameWords(run.terms.units->In(span), CodecOf(*run.terms.up));
  }
  const uint64_t elements = contribution.header.frame_elements();
  if (elements > 0 && elements <= static_cast<uint64_t>(max_elements)) return std::nullopt;
  return Malformed(absl::StrCat("a frame of ", contribution.positions, " positions has 1 to ",
                                max_elements, " elements, not ", elements));
}

// The ranks of a generation share a shard, so together they stage no more than its size: one rank
// cannot fill the disk, or the memory, in the names of all.
std::optional<Refused> Ledger::CheckRoom(const Run& run, const ContributionKey& key,
                                         const Contribution& contribution) {
  int64_t positions = contribution.positions;
  int64_t ranges = contribution.header.ranges_size();
  ContributionKey first = key;
  first.rank = 0;
  first.seed = false;
  for (auto it = run.contributions.lower_bound(first); it != run.contributions.end(); ++it) {
    const ContributionKey& other = it->first;
    if (std::tie(other.round, other.group, other.generation) !=
        std::tie(key.round, key.group, key.generation)) {
      break;
    }
    if (other.seed != key.seed || other.rank == key.rank) continue;
    positions += it->second.positions;
    ranges += it->second.header.ranges_size();
  }
  if (ranges > kMaxRangesOfGroup) {
    return Refused{v1::REFUSAL_OVERSIZED,
                   absl::StrCat(key.ToString(), ": with the other ranks, ", ranges,
                                " ranges exceed the limit of ", kMaxRangesOfGroup)};
  }
  if (positions <= run.span.size()) return std::nullopt;
  return Malformed(absl::StrCat(key.ToString(), ": with the other ranks, ", positions,
                                " elements are staged; the shard has ", run.span.size()));
}

// Fences older generations of the group. Their incomplete contributions are obsolete; complete ones
// may have been committed.
std::vector<ContributionKey> Ledger::Fence(Run& run, uint32_t group,
                                           const GroupGeneration& generation) {
  GroupGeneration& known = run.terms.generations[group];
  const bool formed = generation.number == known.number && !known.key;
  if (generation.number > known.number || formed) known = generation;
  return DropIf(run, [&](const ContributionKey& key, const Contribution& contribution) {
    return key.group == group && key.generation < known.number && !contribution.durable;
  });
}

std::optional<Refused> Ledger::CheckGeneration(const Run& run, uint32_t group,
                                               uint32_t generation) {
  const auto found = run.terms.generations.find(group);
  const GroupGeneration known =
      found == run.terms.generations.end() ? GroupGeneration() : found->second;
  if (generation < known.number) {
    return Refused{v1::REFUSAL_STALE_GENERATION,
                   absl::StrCat("generation ", generation, " of group ", group,
                                " has ended; the lowest accepted one is ", known.number)};
  }
  if (generation == known.number && known.key) return std::nullopt;
  return Refused{v1::REFUSAL_UNSPECIFIED,
                 absl::StrCat("generation ", generation, " of group ", group, " of ", run.terms.run,
                              " is not known here yet")};
}

Decision<SecretKey> Ledger::KeyOf(const std::string& name, uint32_t group,
                                  uint32_t generation) const {
  const Run* const run = Find(name);
  if (run == nullptr || !NewestOf(*run)) return UnknownRun(name);
  if (auto refused = CheckGeneration(*run, group, generation)) return *std::move(refused);
  return *run->terms.generations.at(group).key;
}

std::vector<ContributionKey> Ledger::DropIf(
    Run& run, const std::function<bool(const ContributionKey&, const Contribution&)>& condition) {
  std::vector<ContributionKey> dropped;
  std::erase_if(run.contributions, [&](const auto& entry) {
    if (!condition(entry.first, entry.second)) return false;
    dropped.push_back(entry.first);
    return true;
  });
  return dropped;
}

Ledger::Contribution* Ledger::Find(const ContributionKey& key, uint64_t attempt) {
  Run* const run = Find(key.run);
  if (run == nullptr) return nullptr;
  const auto found = run->contributions.find(key);
  const bool current = found != run->contributions.end() && found->second.attempt == attempt;
  return current ? &found->second : nullptr;
}

Decision<StageGrant> Ledger::Stage(const v1::ContributionHeader& header) {
  Run* const found = Find(header.run());
  if (found == nullptr || !NewestOf(*found)) return UnknownRun(header.run());
  Run& run = *found;
  if (auto refused = CheckIdentity(run, header)) return *refused;
  Decision<Contribution> mapped = MapRanges(run, header);
  if (auto* refused = std::get_if<Refused>(&mapped)) return *refused;
  if (auto refused = CheckRound(run, header)) return *refused;

  const ContributionKey key = ContributionKey::Of(header);
  auto staged = run.contributions.find(key);
  const bool same =
      staged != run.contributions.end() && SameContribution(staged->second.header, header);
  if (staged != run.contributions.end() && !same && staged->second.durable) {
    return Malformed(
        absl::StrCat(key.ToString(), " is already staged with other ranges or samples"));
  }
  if (!same) {
    if (auto refused = CheckRoom(run, key, std::get<Contribution>(mapped))) return *refused;
  }
  StageGrant grant;
  grant.key = key;
  grant.fresh = !same;
  if (!same) {
    staged =
        run.contributions.insert_or_assign(key, std::get<Contribution>(std::move(mapped))).first;
  }
  staged->second.attempt = grant.attempt = ++attempts_;
  grant.next_chunk = staged->second.stored_chunks;
  grant.chunks = staged->second.chunks;
  grant.elements = staged->second.elements;
  if (header.codec() != v1::CODEC_FP32) {
    grant.coding = run.terms.up;
    grant.units = run.terms.units;
    grant.fragments = run.terms.fragments;
    grant.spans = staged->second.spans;
    grant.shard = run.span;
  }
  return grant;
}

std::optional<Refused> Ledger::CheckChunk(const ContributionKey& key, uint64_t attempt,
                                          uint32_t index, int64_t bytes, bool crc_fits) const {
  const Run* run = Find(key.run);
  if (run == nullptr) return UnknownRun(key.run);
  const auto found = run->contributions.find(key);
  if (auto refused = CheckRound(*run, PlaceOf(key))) return refused;
  if (found == run->contributions.end() || found->second.attempt != attempt) {
    return Refused{v1::REFUSAL_OUT_OF_ORDER,
                   absl::StrCat(key.ToString(), ": superseded by a newer stream")};
  }
  const Contribution& staged = found->second;
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
  found->durable = true;
  found->frame = std::move(frame);
  return true;
}

Refused Ledger::WhyDropped(const ContributionKey& key) const {
  const Run* const run = Find(key.run);
  if (run == nullptr) return UnknownRun(key.run);
  if (auto refused = CheckRound(*run, PlaceOf(key))) return *std::move(refused);
  return {v1::REFUSAL_OUT_OF_ORDER,
          absl::StrCat(key.ToString(), ": dropped while it was staged")};
}

std::vector<ContributionKey> Ledger::SyncFailed(const ContributionKey& key) {
  Run* const run = Find(key.run);
  if (run == nullptr) return {};
  return DropIf(*run, [&](const ContributionKey& other, const Contribution& contribution) {
    return other == key && !contribution.durable;
  });
}

void Ledger::ContributionLost(const ContributionKey& key) {
  if (Run* const run = Find(key.run)) run->contributions.erase(key);
}

// --- Rounds

// Returns the participant's segments in order of positions, or the reason why they do not cover the
// shard: a gap may still be filled, an overlap is a bug.
std::variant<GroupSource, Incomplete, Refused> Ledger::CoverShard(
    const Run& run, const v1::Apply& apply, const v1::Participant& participant) {
  GroupSource source;
  source.group = participant.group();
  const ContributionKey first{.run = run.terms.run,
                              .round = apply.round(),
                              .group = participant.group(),
                              .generation = participant.generation()};
  std::string partial;
  for (auto it = run.contributions.lower_bound(first); it != run.contributions.end(); ++it) {
    const auto& [key, contribution] = *it;
    if (std::tie(key.round, key.group, key.generation) !=
        std::tie(first.round, first.group, first.generation)) {
      break;
    }
    if (key.seed != apply.seed()) continue;
    if (contribution.header.fragment() != apply.fragment()) {
      return Malformed(absl::StrCat(key.ToString(), " has fragment ",
                                    contribution.header.fragment(), ", the round has ",
                                    apply.fragment()));
    }
    if (!contribution.durable) {
      absl::StrAppend(&partial, "; rank ", key.rank, " has staged ", contribution.stored_chunks,
                      " of ", contribution.chunks, " chunks");
      continue;
    }
    if (key.rank >= participant.ranks()) {
      return Malformed(absl::StrCat(key.ToString(),
                                    " is staged, but the number of ranks of the group is ",
                                    participant.ranks()));
    }
    int64_t offset = 0;
    for (const Interval& span : contribution.spans) {
      source.segments.push_back({key, span, offset, contribution.frame});
      offset += span.size();
    }
  }
  std::sort(source.segments.begin(), source.segments.end(),
            [](const auto& a, const auto& b) { return a.span.begin < b.span.begin; });
  const std::vector<Interval> exchanged = ExchangedOf(run, apply.fragment());
  auto interval = exchanged.begin();
  int64_t position = interval == exchanged.end() ? run.span.end : interval->begin;
  for (const SourceSegment& segment : source.segments) {
    if (segment.span.begin > position) break;
    if (segment.span.begin < position) {
      return Malformed(absl::StrCat("two ranks of group ", participant.group(),
                                    " have staged position ", segment.span.begin));
    }
    position = segment.span.end;
    if (position < interval->end) continue;
    ++interval;
    position = interval == exchanged.end() ? run.span.end : interval->begin;
  }
  if (position == run.span.end) return source;
  return Incomplete{{participant.group()},
                    absl::StrCat("group ", participant.group(), ", generation ",
                                 participant.generation(), " has not staged position ", position,
                                 " of [", run.span.begin, ", ", run.span.end, ")", partial)};
}

ApplyDecision Ledger::BeginApply(const v1::Apply& apply) {
  Run* const found = Find(apply.run());
  if (found == nullptr || !NewestOf(*found)) return UnknownRun(apply.run());
  Run& run = *found;
  const uint32_t newest = *NewestOf(run);
  if (apply.shard() != run.terms.shard) {
    return Malformed(absl::StrCat("shard ", apply.shard(), " of ", apply.run(),
                                  " is not open here; shard ", run.terms.shard, " is"));
  }
  for (const auto& version : {run.current, run.previous}) {
    if (!version || version->version != apply.round()) continue;
    if (SameParticipants(version->order, apply)) return AlreadyApplied{version->stats};
    return Refused{
        v1::REFUSAL_CLOSED_ROUND,
        absl::StrCat("version ", apply.round(), " was made of ", ParticipantsOf(version->order),
                     "; the order names ", ParticipantsOf(apply))};
  }
  if (run.closed || apply.round() <= newest) {
    return Refused{v1::REFUSAL_CLOSED_ROUND,
                   absl::StrCat("round ", apply.round(), ": version ", newest, " exists",
                                run.closed ? " and the run has ended" : "")};
  }
  if (apply.round() != newest + 1) {
    return Refused{v1::REFUSAL_WRONG_BASE,
                   absl::StrCat("round ", apply.round(), " cannot follow version ", newest)};
  }
  if (!apply.seed() && !HasCoding(run.terms, apply)) {
    return Malformed(absl::StrCat("round ", apply.round(),
                                  " is ordered with another coding than that of the run"));
  }
  if (apply.fragment() > 0 &&
      (run.terms.fragments == 1 || apply.fragment() > run.terms.fragments)) {
    return Malformed(absl::StrCat("round ", apply.round(), " is ordered with fragment ",
                                  apply.fragment(), "; the run has ", run.terms.fragments));
  }
  const bool needs_values = apply.has_outer() || apply.has_down() || apply.fragment() > 0 ||
                            (apply.has_up() && !apply.seed());
  if (run.hollow && needs_values) {
    return Malformed(absl::StrCat("round ", apply.round(), " requires the values of version ",
                                  newest, ", which this shard does not have"));
  }
  if (run.applying) return ApplyUnderWay{};

  if (auto refused = CheckParticipants(apply)) return *refused;
  run.closing = apply;
  std::vector<uint64_t> samples;
  for (const v1::Participant& participant : apply.participants()) {
    samples.push_back(participant.samples());
  }
  const std::vector<float> weights = MeanWeights(samples);
  ApplyPlan plan{run.terms.run,
                 apply.round(),
                 run.span,
                 ExchangedOf(run, apply.fragment()),
                 {},
                 run.terms.statistics,
                 run.terms.units,
                 run.terms.fragments,
                 apply};
  Incomplete missing;
  for (int i = 0; i < apply.participants_size(); ++i) {
    auto source = CoverShard(run, apply, apply.participants(i));
    if (auto* refused = std::get_if<Refused>(&source)) return std::move(*refused);
    if (const auto* gap = std::get_if<Incomplete>(&source)) {
      missing.groups.push_back(gap->groups.front());
      absl::StrAppend(&missing.reason, missing.reason.empty() ? "" : "; ", gap->reason);
      continue;
    }
    plan.groups.push_back(std::get<GroupSource>(std::move(source)));
    plan.groups.back().weight = weights[i];
  }
  if (!missing.groups.empty()) return missing;
  run.applying = true;
  return plan;
}

void Ledger::ApplyFailed(const std::string& name, uint32_t round) {
  Run* const run = Find(name);
  if (run != nullptr && run->closing.round() == round) run->applying = false;
}

std::vector<ContributionKey> Ledger::VersionDurable(const std::string& name, uint32_t version,
                                                    const VersionStats& stats) {
  Run* const found = Find(name);
  if (found == nullptr) return {};
  Run& run = *found;
  const bool first = !NewestOf(run) && version == 0;
  if (!first && !(run.applying && version == run.closing.round())) return {};
  run.previous =
      std::exchange(run.current, StoredVersion{version, stats, first ? v1::Apply() : run.closing});
  run.hollow.reset();
  run.applying = false;
  return DropIf(run, [version](const ContributionKey& key, const Contribution&) {
    return key.round <= version;
  });
}

PullDecision Ledger::Pull(const v1::PullRequest& request) const {
  const Run* run = Find(request.run());
  if (run == nullptr || !NewestOf(*run)) return UnknownRun(request.run());
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
  for (const auto& version : {run->current, run->previous}) {
    if (version && version->version == request.version()) return grant;
  }
  return NoSuchVersion{request.version(), run->current->version};
}

}  // namespace cadre
