#include "comm/transport/nccl/nccl_agreement.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace cadre {
namespace {

// Maximum number of kinds remembered per peer; a step has far fewer.
constexpr size_t kMaxKnownCalls = size_t{1} << 16;
// Distinguishes these calls from other calls on the host transport.
constexpr uint64_t kGroupMark = 0x6e63636c;

constexpr uint64_t kStart = 0xcbf29ce484222325;  // FNV-1a over 64-bit words

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
    digest = Mix(Mix(digest, transfer.data.size()), transfer.round);
  }
  return Compare(channel, tag, pairs);
}

absl::Status NcclAgreement::Check(int channel, const CallTag& tag, const NativeCall& call) {
  const int members = call.members.size();
  if (members < 2) return absl::OkStatus();
  uint64_t digest = Mix(kStart, call.data.size());
  for (const Interval& interval : call.intervals) {
    digest = Mix(Mix(digest, interval.begin), interval.end);
  }
  // Neighbors in a ring suffice: if any two members differ, two neighbors differ.
  std::array<PairDigest, 2> pairs = {
      PairDigest{call.members[(call.index + 1) % members], digest, digest},
      PairDigest{call.members[(call.index + members - 1) % members], digest, digest}};
  return Compare(channel, tag, std::span(pairs).first(members == 2 ? 1 : 2));
}

absl::Status NcclAgreement::Compare(int channel, const CallTag& tag, std::span<PairDigest> pairs) {
  // All ranks visit pairs in one order, (0, 1) before (0, 2) before (1, 2), so they cannot
  // deadlock.
  std::sort(pairs.begin(), pairs.end(),
            [](const PairDigest& a, const PairDigest& b) { return a.peer < b.peer; });
  for (const PairDigest& pair : pairs) {
    if (!IsKnown(channel, tag, pair)) CADRE_RETURN_IF_ERROR(CompareWith(tag, pair));
  }
  return absl::OkStatus();
}

bool NcclAgreement::IsKnown(int channel, const CallTag& tag, const PairDigest& pair) {
  uint64_t digest = Mix(kStart, channel);
  // The kind of a call is its tag without the sequence number.
  const uint64_t kind = static_cast<uint64_t>(tag.collective) << 16 |
                        static_cast<uint64_t>(tag.algorithm) << 8 |
                        static_cast<uint64_t>(tag.dtype);
  for (const uint64_t word :
       {kind, uint64_t{tag.members}, uint64_t{tag.group}, tag.elements, pair.sent, pair.received}) {
    digest = Mix(digest, word);
  }
  std::unordered_set<uint64_t>& known = known_[pair.peer];
  // Both ranks of the pair clear at the same call, because they have compared the same calls.
  if (known.size() >= kMaxKnownCalls) known.clear();
  return !known.insert(digest).second;
}

absl::Status NcclAgreement::CompareWith(const CallTag& tag, const PairDigest& pair) {
  std::array<uint64_t, 2> own = {pair.sent, pair.received};
  std::array<uint64_t, 2> peers{};
  const std::array<Transfer, 2> messages = {
      Transfer{Transfer::Kind::kSend, pair.peer, std::as_writable_bytes(std::span(own))},
      Transfer{Transfer::Kind::kReceive, pair.peer, std::as_writable_bytes(std::span(peers))}};
  CallTag host_tag = tag;
  // Sequence numbers are per pair, because pairs compare different calls.
  const int low = std::min(host_.rank(), pair.peer);
  const int high = std::max(host_.rank(), pair.peer);
  host_tag.group = Mix(Mix(kGroupMark, low), high);
  host_tag.sequence = host_.NextSequence(Transport::kMoves, host_tag.group);
  CADRE_RETURN_IF_ERROR(host_.Run(Transport::kMoves, host_tag, messages, {}));
  if (peers[0] == own[1] && peers[1] == own[0]) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("ranks ", host_.rank(), " and ", pair.peer,
                                          " disagree about the messages of ", tag.ToString(),
                                          ": they execute different plans"));
}

}  // namespace cadre
