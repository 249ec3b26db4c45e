// The ring: every member sends to the next member and receives from the previous one.
//
// Source: P. Patarasuk and X. Yuan, "Bandwidth Optimal All-reduce Algorithms for Clusters of
// Workstations", J. Parallel and Distributed Computing 69(2), 2009. Reduce-scatter and all-gather
// take p - 1 steps each, and each member sends n minus one interval in each of them: no algorithm
// sends fewer bytes, and every byte goes to a neighbor.
//
// In step s of the reduce-scatter member i sends interval i - s and adds interval i - s - 1, so
// interval k is summed in the order of the ring beginning at member k + 1, whatever the timing.
// Each send waits for the receive before it, byte by byte: an interval is forwarded while it still
// arrives.
//
// The all-gather of an all-reduce overwrites data that was sent in the reduce-scatter and names no
// dependency for it. None is needed: a byte of a finished sum arrives only after this member's own
// addend has gone around the ring.
//
// Limits: 2 (p - 1) latencies, which dominates small messages (see recursive_schedule.cc).
#include <utility>

#include "comm/schedule_parts.h"

namespace cadre {
namespace {

using Kind = ScheduleStep::Kind;

class Ring {
 public:
  Ring(int index, std::span<const Interval> intervals)
      : index_(index), size_(std::ssize(intervals)), intervals_(intervals) {}

  // Appends `steps` steps. The first sends the interval at distance `first`: this member's data, or
  // the result of the last receive if there was one.
  void Rounds(int first, int steps, Kind receive) {
    for (int step = 0; step < steps; ++step) {
      schedule_.push_back({Kind::kSend, Around(1), IntervalAt(first - step), last_receive_});
      last_receive_ = std::ssize(schedule_);
      schedule_.push_back({receive, Around(-1), IntervalAt(first - step - 1)});
    }
  }
  Schedule Take() { return std::move(schedule_); }

 private:
  int Around(int distance) const { return ((index_ + distance) % size_ + size_) % size_; }
  Interval IntervalAt(int distance) const { return intervals_[Around(distance)]; }

  const int index_;
  const int size_;
  const std::span<const Interval> intervals_;
  Schedule schedule_;
  int last_receive_ = ScheduleStep::kNone;
};

}  // namespace

Schedule RingReduceScatter(int index, std::span<const Interval> intervals) {
  Ring ring(index, intervals);
  ring.Rounds(-1, std::ssize(intervals) - 1, Kind::kReceiveSum);
  return ring.Take();
}

Schedule RingAllGather(int index, std::span<const Interval> intervals) {
  Ring ring(index, intervals);
  ring.Rounds(0, std::ssize(intervals) - 1, Kind::kReceive);
  return ring.Take();
}

Schedule RingAllReduce(int index, std::span<const Interval> intervals) {
  Ring ring(index, intervals);
  ring.Rounds(-1, std::ssize(intervals) - 1, Kind::kReceiveSum);
  ring.Rounds(0, std::ssize(intervals) - 1, Kind::kReceive);
  return ring.Take();
}

}  // namespace cadre
