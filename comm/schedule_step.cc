#include "comm/schedule_step.h"

#include "tensor/layout.h"

namespace cadre {

std::vector<Interval> EqualIntervals(int64_t elements, int count) {
  std::vector<Interval> equal;
  equal.reserve(count);
  for (int i = 0; i < count; ++i) {
    equal.push_back({PartBegin(elements, i, count), PartBegin(elements, i + 1, count)});
  }
  return equal;
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
