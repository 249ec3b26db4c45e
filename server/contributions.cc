#include "server/contributions.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/frame.h"

namespace cadre {
namespace {

// A rank's slice of a shard has a few ranges per tensor.
constexpr int kMaxRanges = 1 << 16;
// Those of all ranks of a generation: their headers stay in memory for the round.
constexpr int64_t kMaxRangesOfGroup = 1 << 22;
// A chunk of 4 MiB of values fits, with its header, into the largest message.
constexpr uint32_t kMaxChunkElements = 1 << 20;
// A contribution with more chunks has an unreasonable chunk size.
constexpr int64_t kMaxChunks = 1 << 24;

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

// Which fragment a round exchanges follows from its number, except for the last round of a run.
std::optional<Refused> CheckFragment(const RunTerms& terms, Interval shard,
                                     const Contribution& contribution) {
  const v1::ContributionHeader& header = contribution.header;
  if (header.fragment() == 0) return std::nullopt;
  const uint32_t due = 1 + (header.round() - 1) % terms.fragments;
  if (terms.fragments == 1 || header.fragment() != due || header.seed()) {
    return Malformed(absl::StrCat("the contribution to round ", header.round(), " has fragment ",
                                  header.fragment(), "; the run has ", terms.fragments));
  }
  const std::vector<Interval> exchanged = ExchangedOf(terms, shard, header.fragment());
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

std::optional<Refused> CheckFrame(const RunTerms& terms, const Contribution& contribution) {
  if (terms.units == nullptr) return Malformed("the run has no frames");
  int64_t next = 0;
  int64_t max_elements = 0;
  for (const Interval& span : contribution.spans) {
    if (span.begin < next || !terms.units->IsBorder(span.begin) ||
        !terms.units->IsBorder(span.end)) {
      return Malformed(absl::StrCat("the frame of positions ", span.begin, " to ", span.end,
                                    " does not consist of whole units in order"));
    }
    next = span.end;
    max_elements += MaxFrameWords(terms.units->In(span), CodecOf(*terms.up));
  }
  const uint64_t elements = contribution.header.frame_elements();
  if (elements > 0 && elements <= static_cast<uint64_t>(max_elements)) return std::nullopt;
  return Malformed(absl::StrCat("a frame of ", contribution.positions, " positions has 1 to ",
                                max_elements, " elements, not ", elements));
}

}  // namespace

ContributionKey ContributionKey::Of(const v1::ContributionHeader& header) {
  return {header.run(),        header.round(), header.group(),
          header.generation(), header.rank(),  header.seed()};
}

std::string ContributionKey::ToString() const {
  return absl::StrCat("round ", round, " of ", run, ", group ", group, ", generation ", generation,
                      ", rank ", rank, seed ? ", seed" : "");
}

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

int64_t Elements(const std::vector<Interval>& spans) {
  return std::accumulate(spans.begin(), spans.end(), int64_t{0},
                         [](int64_t sum, const Interval& span) { return sum + span.size(); });
}

std::vector<Interval> ExchangedOf(const RunTerms& terms, Interval shard, uint32_t fragment) {
  if (fragment == 0) return {shard};
  return terms.units->FragmentIn(shard, fragment, terms.fragments);
}

Decision<Contribution> ContributionOf(const RunTerms& terms, Interval shard,
                                      const v1::ContributionHeader& header) {
  if (header.chunk_elements() == 0) return Malformed("chunk_elements is 0");
  if (header.chunk_elements() > kMaxChunkElements) {
    return Refused{v1::REFUSAL_OVERSIZED,
                   absl::StrCat("chunks of ", header.chunk_elements(),
                                " elements exceed the limit of ", kMaxChunkElements)};
  }
  Decision<std::vector<Interval>> spans = Flatten(terms.tensor_begin, shard, header.ranges());
  if (auto* refused = std::get_if<Refused>(&spans)) return *refused;
  Contribution contribution;
  contribution.header = header;
  contribution.spans = std::get<std::vector<Interval>>(std::move(spans));
  if (const auto position = Overlap(contribution.spans)) {
    return Malformed(absl::StrCat("position ", *position, " is in two ranges"));
  }
  if (auto refused = CheckFragment(terms, shard, contribution)) return *refused;
  contribution.positions = Elements(contribution.spans);
  contribution.elements = contribution.positions;
  if (header.codec() != v1::CODEC_FP32) {
    if (auto refused = CheckFrame(terms, contribution)) return *refused;
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

const Contribution* Contributions::Find(const ContributionKey& key) const {
  const auto found = contributions_.find(key);
  return found == contributions_.end() ? nullptr : &found->second;
}

Contribution* Contributions::Find(const ContributionKey& key) {
  const auto found = contributions_.find(key);
  return found == contributions_.end() ? nullptr : &found->second;
}

// The ranks of a generation share a shard, so together they stage no more than its size: one rank
// cannot fill the disk, or the memory, in the names of all.
std::optional<Refused> Contributions::CheckRoom(Interval shard, const ContributionKey& key,
                                                const Contribution& contribution) const {
  int64_t positions = contribution.positions;
  int64_t ranges = contribution.header.ranges_size();
  ContributionKey first = key;
  first.rank = 0;
  first.seed = false;
  for (auto it = contributions_.lower_bound(first); it != contributions_.end(); ++it) {
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
  if (positions <= shard.size()) return std::nullopt;
  return Malformed(absl::StrCat(key.ToString(), ": with the other ranks, ", positions,
                                " elements are staged; the shard has ", shard.size()));
}

Contribution& Contributions::Put(const ContributionKey& key, Contribution contribution) {
  return contributions_.insert_or_assign(key, std::move(contribution)).first->second;
}

std::vector<ContributionKey> Contributions::DropIf(
    const std::function<bool(const ContributionKey&, const Contribution&)>& condition) {
  std::vector<ContributionKey> dropped;
  std::erase_if(contributions_, [&](const auto& entry) {
    if (!condition(entry.first, entry.second)) return false;
    dropped.push_back(entry.first);
    return true;
  });
  return dropped;
}

std::vector<ContributionKey> Contributions::DropAll() {
  return DropIf([](const ContributionKey&, const Contribution&) { return true; });
}

int64_t Contributions::StoredElements() const {
  int64_t elements = 0;
  for (const auto& [key, contribution] : contributions_) {
    // A contribution without elements has no chunks.
    const int64_t chunks = std::max(1U, contribution.chunks);
    elements += contribution.elements * contribution.stored_chunks / chunks;
  }
  return elements;
}

std::variant<GroupSource, Incomplete, Refused> Contributions::Cover(
    const RunTerms& terms, Interval shard, const v1::Apply& apply,
    const v1::Participant& participant) const {
  GroupSource source;
  source.group = participant.group();
  const ContributionKey first{.run = terms.run,
                              .round = apply.round(),
                              .group = participant.group(),
                              .generation = participant.generation()};
  std::string partial;
  for (auto it = contributions_.lower_bound(first); it != contributions_.end(); ++it) {
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
  const std::vector<Interval> exchanged = ExchangedOf(terms, shard, apply.fragment());
  auto interval = exchanged.begin();
  int64_t position = interval == exchanged.end() ? shard.end : interval->begin;
  for (const SourceSegment& segment : source.segments) {
    if (segment.span.begin > position) break;
    if (segment.span.begin < position) {
      return Malformed(absl::StrCat("two ranks of group ", participant.group(),
                                    " have staged position ", segment.span.begin));
    }
    position = segment.span.end;
    if (position < interval->end) continue;
    ++interval;
    position = interval == exchanged.end() ? shard.end : interval->begin;
  }
  if (position == shard.end) return source;
  return Incomplete{{participant.group()},
                    absl::StrCat("group ", participant.group(), ", generation ",
                                 participant.generation(), " has not staged position ", position,
                                 " of [", shard.begin, ", ", shard.end, ")", partial)};
}

}  // namespace cadre
