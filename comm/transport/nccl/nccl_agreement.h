// Compares the calls of different ranks before NCCL executes them.
//
// NCCL's messages carry no tags: ranks that execute different plans would block forever or accept a
// wrong tensor. Therefore, when a call of a new kind connects two ranks, they first compare over
// the host transport the tag of the call and the number, lengths and rounds of the messages between
// them. Later calls of the same kind are not compared again. Each rank remembers which calls it has
// compared with each peer, so both ranks of a pair know the same kinds, and detect the first call
// that differs.
//
// Uses channel kMoves of the host transport, which is borrowed. Thread: the one that calls the data
// transport.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "absl/status/status.h"
#include "comm/transport/transport.h"

namespace cadre {

class NcclAgreement {
 public:
  explicit NcclAgreement(Transport& host) : host_(host) {}

  // Errors: Internal, naming both ranks, if they differ; those of the host transport.
  absl::Status Check(int channel, const CallTag& tag, std::span<const Transfer> transfers);
  absl::Status Check(int channel, const CallTag& tag, const NativeCall& call);

 private:
  // Digests of the messages between this rank and a peer.
  struct PairDigest {
    int peer = 0;
    uint64_t sent = 0;
    uint64_t received = 0;
  };

  // Reorders the pairs.
  absl::Status Compare(int channel, const CallTag& tag, std::span<PairDigest> pairs);
  // Whether calls of this kind have been compared with the peer; remembers the kind.
  bool IsKnown(int channel, const CallTag& tag, const PairDigest& pair);
  absl::Status CompareWith(const CallTag& tag, const PairDigest& pair);

  Transport& host_;
  // Digests of calls, by peer.
  std::unordered_map<int, std::unordered_set<uint64_t>> known_;
};

}  // namespace cadre
