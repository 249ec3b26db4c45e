// Broadcast by a binomial tree and barrier by dissemination (Hensgen, Finkel and Manber, "Two
// algorithms for barrier synchronization", 1988). Both take log2 p steps, rounded up.
#include <glog/logging.h>

#include "worker/comm/schedule_parts.h"

namespace cadre {

using Kind = ScheduleStep::Kind;

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
