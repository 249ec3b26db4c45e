// Collectives as lists of messages: who sends which part of the data to whom, and what waits for
// what. Written once; a transport carries them out, costs count their steps and bytes, and a test
// plays them in memory in any order.
//
// Data is a row of elements that lies at the same place on every member. A schedule is one member's
// part. Sums are made in an order that the schedule alone decides, so they have equal bits on all
// members and from run to run.
//
// Thread-safe (values and pure functions).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tensor/collective.h"

namespace cadre {

// Elements [begin, end).
struct Piece {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  friend bool operator==(const Piece&, const Piece&) = default;
};

// `elements` in near-equal pieces (PartBegin).
std::vector<Piece> EqualPieces(int64_t elements, int pieces);

struct ScheduleStep {
  enum class Kind : uint8_t { kSend, kReceive, kReceiveSum };
  Kind kind = Kind::kSend;
  // Index among the members.
  int peer = 0;
  Piece piece;
  // Position of the step that stands in the way (see Transfer::after), or kNone.
  static constexpr int kNone = -1;
  int after = kNone;
};
using Schedule = std::vector<ScheduleStep>;

// Member `index` of pieces.size() members: afterwards it has the sum of piece `index`; the rest of
// the data is unspecified. Requires: pieces do not overlap. kRing, kButterfly (recursive doubling
// of everything: each piece summed everywhere) or kHalvingDoubling (recursive halving).
Schedule ReduceScatterSchedule(Algorithm algorithm, int index, std::span<const Piece> pieces);
// Member i has piece i; afterwards all have all. kRing; kButterfly and kHalvingDoubling are both
// recursive doubling.
Schedule AllGatherSchedule(Algorithm algorithm, int index, std::span<const Piece> pieces);
// Everything summed everywhere. kRing, kButterfly, kHalvingDoubling.
Schedule AllReduceSchedule(Algorithm algorithm, int index, int members, int64_t elements);
// kHierarchical: `hosts` says of each member which host it is on, in any numbers. Inside a host a
// ring, between hosts `across`.
Schedule HierarchicalAllReduceSchedule(int index, std::span<const uint64_t> hosts, int64_t elements,
                                       Algorithm across);
// By a binomial tree.
Schedule BroadcastSchedule(int index, int members, int64_t elements, int root);
// By dissemination; messages are empty.
Schedule BarrierSchedule(int index, int members);

// What one member sends in it.
struct ScheduleWork {
  int64_t messages = 0;
  int64_t elements = 0;
  int64_t added = 0;
};
ScheduleWork WorkOf(const Schedule& schedule);

}  // namespace cadre
