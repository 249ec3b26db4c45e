#include "worker/transport/nccl/nccl_agreement.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace cadre {
namespace {

// Calls that are remembered of a peer; a step has far fewer kinds.
constexpr size_t kMaxKnownCalls = size_t{1} << 16;
// Tells these calls of the host transport from those of its own users.
constexpr uint64_t kGroupMark = 0x6e63636c;

constexpr uint64_t kStart = 0xcbf29ce484222325;  // FNV-1a, by words

uint64_t Mix(uint64_t digest, uint64_t word) {
  digest = (digest ^ word) * 0x100000001b3;
  return digest ^ (digest >> 29);
}

}  // namespace

absl::Status NcclAgreement::Check(int channel, const CallTag& tag,
                                  std::span<const Transfer> transfers) {
  std::vector<PairDigest> pairs;
  for (const Transfer& transfer : transfers) {
    if (transfer.data.empty()) continue;
    auto pair = std::find_if(pairs.begin(), pairs.end(),
                             [&](const PairDigest& each) { return each.peer == transfer.peer; });
    if (pair == pairs.end()) pair = pairs.insert(pair, {transfer.peer, kStart, kStart});
    uint64_t& digest = transfer.kind == Transfer::Kind::kSend ? pair->sent : pair->received;
    digest = Mix(Mix(digest, transfer.data.size()), static_cast<uint64_t>(transfer.round));
  }
  return Compare(channel, tag, pairs);
}

absl::Status NcclAgreement::Check(int channel, const CallTag& tag, const NativeCall& call) {
  const auto members = call.members.size();
  if (members < 2) return absl::OkStatus();
  uint64_t digest = Mix(kStart, call.data.size());
  for (const auto& [begin, end] : call.intervals) {
    digest = Mix(Mix(digest, begin), end);
  }
  // Around the members: where any two differ, two neighbours do.
  const auto index = static_cast<size_t>(call.index);
  std::array<PairDigest, 2> pairs = {
      PairDigest{call.members[(index + 1) % members], digest, digest},
      PairDigest{call.members[(index + members - 1) % members], digest, digest}};
  return Compare(channel, tag, std::span(pairs).first(members == 2 ? 1 : 2));
}

absl::Status NcclAgreement::Compare(int channel, const CallTag& tag, std::span<PairDigest> pairs) {
  // Pairs of ranks in the same order everywhere, (0, 1) before (0, 2) before (1, 2): then there is
  // always a pair both of whose ranks have come to it.
  std::sort(pairs.begin(), pairs.end(),
            [](const PairDigest& a, const PairDigest& b) { return a.peer < b.peer; });
  for (const PairDigest& pair : pairs) {
    if (!IsKnown(channel, tag, pair)) CADRE_RETURN_IF_ERROR(CompareWith(tag, pair));
  }
  return absl::OkStatus();
}

bool NcclAgreement::IsKnown(int channel, const CallTag& tag, const PairDigest& pair) {
  uint64_t digest = Mix(kStart, channel);
  for (const uint64_t word :
       {static_cast<uint64_t>(tag.collective), static_cast<uint64_t>(tag.algorithm),
        static_cast<uint64_t>(tag.dtype), uint64_t{tag.members}, uint64_t{tag.group}, tag.elements,
        pair.sent, pair.received}) {
    digest = Mix(digest, word);
  }
  std::unordered_set<uint64_t>& known = known_[pair.peer];
  // Forgotten by both at the same call, since they have made the same ones.
  if (known.size() >= kMaxKnownCalls) known.clear();
  return !known.insert(digest).second;
}

absl::Status NcclAgreement::CompareWith(const CallTag& tag, const PairDigest& pair) {
  std::array<uint64_t, 2> own = {pair.sent, pair.received};
  std::array<uint64_t, 2> theirs{};
  const std::array<Transfer, 2> messages = {
      Transfer{Transfer::Kind::kSend, pair.peer, std::as_writable_bytes(std::span(own))},
      Transfer{Transfer::Kind::kReceive, pair.peer, std::as_writable_bytes(std::span(theirs))}};
  CallTag host_tag = tag;
  // Counted by pair: other pairs have compared more, or less.
  const int low = std::min(host_.rank(), pair.peer);
  const int high = std::max(host_.rank(), pair.peer);
  host_tag.group = static_cast<uint32_t>(Mix(Mix(kGroupMark, low), high));
  host_tag.sequence = host_.NextSequence(Transport::kMoves, host_tag.group);
  CADRE_RETURN_IF_ERROR(host_.Run(Transport::kMoves, host_tag, messages, {}));
  if (theirs[0] == own[1] && theirs[1] == own[0]) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("ranks ", host_.rank(), " and ", pair.peer,
                                          " disagree about the messages of ", tag.ToString(),
                                          ": they obey different plans"));
}

}  // namespace cadre
