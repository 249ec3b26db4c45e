// The steps of a schedule (schedule.h).
//
// Thread-safe (values and pure functions).
#pragma once

#include <cstdint>
#include <vector>

#include "comm/transport/transport.h"
#include "tensor/interval.h"

namespace cadre {

// [0, elements) in `count` consecutive intervals of nearly equal size (PartBegin).
std::vector<Interval> EqualIntervals(int64_t elements, int count);

struct ScheduleStep {
  using Kind = Transfer::Kind;
  Kind kind = Kind::kSend;
  // Index among the members.
  int peer = 0;
  Interval interval;
  // Position of the step that this one depends on, or kNone. A byte may move once that step has
  // passed its address; see Transfer::after.
  static constexpr int kNone = Transfer::kNone;
  int after = kNone;
};
using Schedule = std::vector<ScheduleStep>;

// Position of the last receive of either kind, or ScheduleStep::kNone.
int LastReceive(const Schedule& schedule);

// Work of one member.
struct ScheduleWork {
  int64_t messages = 0;
  int64_t elements = 0;  // sent
  int64_t added = 0;
};
ScheduleWork WorkOf(const Schedule& schedule);

}  // namespace cadre
