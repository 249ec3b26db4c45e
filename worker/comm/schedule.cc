#include "worker/comm/schedule.h"

#include <glog/logging.h>

#include "tensor/layout.h"
#include "worker/comm/schedule_parts.h"

namespace cadre {
namespace {

void CheckIndex(int index, int64_t members) {
  CHECK(index >= 0 && index < members) << index << " of " << members;
}

}  // namespace

std::vector<Interval> EqualIntervals(int64_t elements, int count) {
  std::vector<Interval> equal;
  equal.reserve(count);
  for (int i = 0; i < count; ++i) {
    equal.push_back({PartBegin(elements, i, count), PartBegin(elements, i + 1, count)});
  }
  return equal;
}

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

int LastReceive(const Schedule& schedule) {
  int last = std::ssize(schedule) - 1;
  while (last >= 0 && schedule[last].kind == ScheduleStep::Kind::kSend) --last;
  return last >= 0 ? last : ScheduleStep::kNone;
}

ScheduleWork WorkOf(const Schedule& schedule) {
  ScheduleWork work;
  for (const ScheduleStep& step : schedule) {
    if (step.kind == ScheduleStep::Kind::kSend) {
      ++work.messages;
      work.elements += step.interval.size();
    } else if (step.kind == ScheduleStep::Kind::kReceiveSum) {
      work.added += step.interval.size();
    }
  }
  return work;
}

}  // namespace cadre
