// Decisions about contributions. Part of Ledger.
//
// The order of the checks determines which refusal a rank receives, and ranks react to it. The
// identity is checked first: if it is wrong, the cause is a bug or another cluster. Ranges are
// checked next because they do not depend on the round. Generation and round, which change with
// time, come last. A stale generation is reported rather than a closed round: the rank then gives
// up its place in the group, whereas after a closed round it adopts the new version.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/ledger.h"

namespace cadre {
namespace {

// A chunk of 4 MiB of values fits, with its header, into the largest message.
constexpr uint32_t kMaxChunkElements = 1 << 20;
constexpr int64_t kValueBytes = sizeof(float);
// A contribution with more chunks has an unreasonable chunk size.
constexpr int64_t kMaxChunks = 1 << 24;

// Whether two headers announce the same contribution.
bool SameContribution(const v1::ContributionHeader& a, const v1::ContributionHeader& b) {
  v1::ContributionHeader left = a;
  v1::ContributionHeader right = b;
  left.clear_schema_hash();
  right.clear_schema_hash();
  return left.SerializeAsString() == right.SerializeAsString();
}

uint32_t LowestGeneration(const RunTerms& terms, uint32_t group) {
  const auto found = terms.generations.find(group);
  return found == terms.generations.end() ? 0 : found->second;
}

}  // namespace

ContributionKey ContributionKey::Of(const v1::ContributionHeader& header) {
  return {header.run(), header.round(), header.group(), header.generation(), header.rank()};
}

std::string ContributionKey::ToString() const {
  return absl::StrCat("round ", round, " of ", run, ", group ", group, ", generation ", generation,
                      ", rank ", rank);
}

std::optional<Refused> Ledger::CheckIdentity(const Run& run, const v1::ContributionHeader& header) {
  const RunTerms& terms = run.terms;
  if (header.lineage() != terms.lineage) {
    return Refused{v1::REFUSAL_WRONG_LINEAGE,
                   absl::StrCat("run ", terms.run, " has lineage ", terms.lineage,
                                ", the contribution has ", header.lineage())};
  }
  if (header.group() >= terms.groups || header.rank() >= terms.ranks) {
    return Malformed(absl::StrCat("group ", header.group(), ", rank ", header.rank(),
                                  ": the run has groups 0 to ", terms.groups - 1,
                                  " with ranks 0 to ", terms.ranks - 1));
  }
  if (header.codec() != v1::CODEC_FP32) {
    return Malformed(absl::StrCat("codec ", static_cast<int>(header.codec()), " is not supported"));
  }
  return std::nullopt;
}

std::optional<Refused> Ledger::CheckRound(const Run& run, const v1::ContributionHeader& header) {
  const uint32_t lowest = LowestGeneration(run.terms, header.group());
  if (header.generation() < lowest) {
    return Refused{v1::REFUSAL_STALE_GENERATION,
                   absl::StrCat("generation ", header.generation(), " of group ", header.group(),
                                " has ended; the lowest accepted one is ", lowest)};
  }
  if (run.closed) {
    return Refused{v1::REFUSAL_CLOSED_ROUND, absl::StrCat("run ", run.terms.run, " has ended")};
  }
  const uint32_t version = run.current ? run.current->number : 0;
  const bool left_out = header.round() == run.closing_round &&
                        !run.closing.contains({header.group(), header.generation()});
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
  contribution.elements = Elements(contribution.spans);
  const int64_t chunks =
      (contribution.elements + header.chunk_elements() - 1) / header.chunk_elements();
  if (chunks > kMaxChunks) {
    return Malformed(absl::StrCat(chunks, " chunks exceed the limit of ", kMaxChunks));
  }
  contribution.chunks = chunks;
  return contribution;
}

// Fences older generations of the group. Their incomplete contributions are obsolete; complete ones
// may have been committed.
std::vector<ContributionKey> Ledger::Fence(Run& run, uint32_t group, uint32_t generation) {
  uint32_t& lowest = run.terms.generations[group];
  lowest = std::max(lowest, generation);
  return DropIf(run, [&](const ContributionKey& key, const Contribution& contribution) {
    return key.group == group && key.generation < generation && !contribution.durable;
  });
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
  if (found == nullptr || !found->current) return UnknownRun(header.run());
  Run& run = *found;
  if (auto refused = CheckIdentity(run, header)) return *refused;
  Decision<Contribution> laid = MapRanges(run, header);
  if (auto* refused = std::get_if<Refused>(&laid)) return *refused;
  if (auto refused = CheckRound(run, header)) return *refused;

  const ContributionKey key = ContributionKey::Of(header);
  auto there = run.contributions.find(key);
  const bool same =
      there != run.contributions.end() && SameContribution(there->second.header, header);
  if (there != run.contributions.end() && !same && there->second.durable) {
    return Malformed(
        absl::StrCat(key.ToString(), " is already staged with other ranges or samples"));
  }
  StageGrant grant;
  grant.key = key;
  grant.fresh = !same;
  grant.dropped = Fence(run, header.group(), header.generation());
  if (!same) {
    there = run.contributions.insert_or_assign(key, std::get<Contribution>(std::move(laid))).first;
  }
  there->second.attempt = grant.attempt = ++attempts_;
  grant.next_chunk = there->second.stored_chunks;
  grant.chunks = there->second.chunks;
  grant.elements = there->second.elements;
  return grant;
}

std::optional<Refused> Ledger::CheckChunk(const ContributionKey& key, uint64_t attempt,
                                          uint32_t index, int64_t bytes, bool crc_fits) const {
  const Run* run = Find(key.run);
  if (run == nullptr) return UnknownRun(key.run);
  const auto found = run->contributions.find(key);
  v1::ContributionHeader place;
  place.set_group(key.group);
  place.set_generation(key.generation);
  place.set_round(key.round);
  place.set_base_version(key.round - 1);
  if (auto refused = CheckRound(*run, place)) return refused;
  if (found == run->contributions.end() || found->second.attempt != attempt) {
    return Refused{v1::REFUSAL_OUT_OF_ORDER,
                   absl::StrCat(key.ToString(), ": superseded by a newer stream")};
  }
  const Contribution& there = found->second;
  const int64_t chunk_elements = there.header.chunk_elements();
  const int64_t full = chunk_elements * kValueBytes;
  const std::string chunk = absl::StrCat("chunk ", index, " of ", key.ToString());
  if (bytes > full) {
    return Refused{v1::REFUSAL_OVERSIZED,
                   absl::StrCat(chunk, " has ", bytes, " bytes, more than the announced ", full)};
  }
  if (there.stored_chunks == there.chunks || index != there.stored_chunks) {
    return Malformed(absl::StrCat(chunk, " is not the next one: ", there.stored_chunks, " of ",
                                  there.chunks, " are stored"));
  }
  const int64_t left = (there.elements - index * chunk_elements) * kValueBytes;
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

bool Ledger::ContributionDurable(const ContributionKey& key, uint64_t attempt) {
  Contribution* const found = Find(key, attempt);
  if (found == nullptr || found->stored_chunks != found->chunks) return false;
  found->durable = true;
  return true;
}

void Ledger::ContributionLost(const ContributionKey& key) {
  if (Run* const run = Find(key.run)) run->contributions.erase(key);
}

}  // namespace cadre
