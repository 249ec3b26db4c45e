#include "comm/schedule.h"

#include <glog/logging.h>

#include "comm/schedule_parts.h"

namespace cadre {

using Kind = ScheduleStep::Kind;

namespace {

void CheckIndex(int index, int64_t members) {
  CHECK(index >= 0 && index < members) << index << " of " << members;
}

}  // namespace

Schedule ReduceScatterSchedule(Algorithm algorithm, int index,
                               std::span<const Interval> intervals) {
  CheckIndex(index, std::ssize(intervals));
  if (algorithm == Algorithm::kRing) return RingReduceScatter(index, intervals);
  if (algorithm == Algorithm::kButterfly) return ButterflyReduceScatter(index, intervals);
  CHECK(algorithm == Algorithm::kHalvingDoubling) << AlgorithmName(algorithm);
  return HalvingReduceScatter(index, intervals);
}

Schedule AllGatherSchedule(Algorithm algorithm, int index, std::span<const Interval> intervals) {
  CheckIndex(index, std::ssize(intervals));
  if (algorithm == Algorithm::kRing) return RingAllGather(index, intervals);
  CHECK(algorithm == Algorithm::kButterfly || algorithm == Algorithm::kHalvingDoubling)
      << AlgorithmName(algorithm);
  return DoublingAllGather(index, intervals);
}

Schedule AllReduceSchedule(Algorithm algorithm, int index, int members, int64_t elements) {
  CheckIndex(index, members);
  if (algorithm == Algorithm::kRing) return RingAllReduce(index, EqualIntervals(elements, members));
  if (algorithm == Algorithm::kButterfly) return ButterflyAllReduce(index, members, elements);
  CHECK(algorithm == Algorithm::kHalvingDoubling) << AlgorithmName(algorithm);
  return HalvingDoublingAllReduce(index, members, elements);
}

Schedule BroadcastSchedule(int index, int members, int64_t elements, int root) {
  CHECK(root >= 0 && root < members) << root << " of " << members;
  // Positions count from the root. A position receives from the one without its lowest set bit, and
  // sends to those that add a lower bit, largest subtree first.
  const Interval whole = {0, elements};
  const int position = (index - root + members) % members;
  const auto at = [&](int other) { return (other + root) % members; };
  int bit = 1;
  while (bit < members && (position & bit) == 0) bit <<= 1;
  Schedule schedule;
  if (position != 0) schedule.push_back({Kind::kReceive, at(position - bit), whole});
  const int received = LastReceive(schedule);
  for (bit >>= 1; bit > 0; bit >>= 1) {
    if (position + bit >= members) continue;
    schedule.push_back({Kind::kSend, at(position + bit), whole, received});
  }
  return schedule;
}

// Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization", 1988. Like the
// broadcast, it takes log2 p steps, rounded up.
Schedule BarrierSchedule(int index, int members) {
  // After the exchange over distance d a member has received, directly or indirectly, from the
  // 2 d - 1 members before it.
  Schedule schedule;
  for (int distance = 1; distance < members; distance *= 2) {
    const int received = LastReceive(schedule);
    schedule.push_back({Kind::kSend, (index + distance) % members, {}, received});
    schedule.push_back({Kind::kReceive, (index - distance + members) % members, {}, received});
  }
  return schedule;
}

}  // namespace cadre
