// Whether the ranks that are about to pair data over NCCL mean the same.
//
// NCCL's messages carry no tags: ranks that obey different plans would wait for one another for
// ever, or take one tensor for another. So the first time that two ranks are joined by a call of
// its kind, they compare, over the host transport, what they are about to do: the call's tag, and
// how many messages of which lengths go between them. Later calls of that kind cost nothing. What
// is known is known by pairs, and so the same to both: ranks that have agreed on every call so far
// differ in the first one that is new to both.
//
// Uses channel kMoves of the host transport. Threads: the one that calls on the data's transport.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "absl/status/status.h"
#include "worker/transport/call_tag.h"
#include "worker/transport/transport.h"

namespace cadre {

class NcclAgreement {
 public:
  // Borrows the transport.
  explicit NcclAgreement(Transport& host) : host_(host) {}

  // Errors: Internal where they differ, naming both pairs; the host transport's.
  absl::Status Check(int channel, const CallTag& tag, std::span<const Transfer> transfers);
  absl::Status Check(int channel, const CallTag& tag, const NativeCall& call);

 private:
  // What this rank thinks of what goes between it and a peer.
  struct PairDigest {
    int peer = 0;
    uint64_t sent = 0;
    uint64_t received = 0;
  };

  // Reorders the pairs.
  absl::Status Compare(int channel, const CallTag& tag, std::span<PairDigest> pairs);
  // True: calls of this kind have been agreed on with the peer.
  bool IsKnown(int channel, const CallTag& tag, const PairDigest& pair);
  absl::Status CompareWith(const CallTag& tag, const PairDigest& pair);

  Transport& host_;
  // Digests of calls, by peer.
  std::unordered_map<int, std::unordered_set<uint64_t>> known_;
};

}  // namespace cadre
