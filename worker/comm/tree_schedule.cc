// What goes out from one member, and what only waits for all.
#include <glog/logging.h>

#include "worker/comm/schedule_parts.h"

namespace cadre {

using Kind = ScheduleStep::Kind;

Schedule BroadcastSchedule(int index, int members, int64_t elements, int root) {
  CHECK(root >= 0 && root < members) << root << " of " << members;
  // Places count from the root. A place receives from the place without its lowest bit, and sends
  // to the places that add a bit below that one, the farthest first, for those have the most to
  // pass on.
  const Piece whole = {0, elements};
  const int place = (index - root + members) % members;
  const auto at = [&](int other) { return (other + root) % members; };
  int bit = 1;
  while (bit < members && (place & bit) == 0) bit <<= 1;
  Schedule schedule;
  if (place != 0) schedule.push_back({Kind::kReceive, at(place - bit), whole});
  const int received = LastReceive(schedule);
  for (bit >>= 1; bit > 0; bit >>= 1) {
    if (place + bit >= members) continue;
    schedule.push_back({Kind::kSend, at(place + bit), whole, received});
  }
  return schedule;
}

Schedule BarrierSchedule(int index, int members) {
  // After the exchange over distance d a member has heard, at first or second hand, from the
  // 2 d - 1 members before it.
  Schedule schedule;
  for (int distance = 1; distance < members; distance *= 2) {
    const int heard = LastReceive(schedule);
    schedule.push_back({Kind::kSend, (index + distance) % members, {}, heard});
    schedule.push_back({Kind::kReceive, (index - distance + members) % members, {}, heard});
  }
  return schedule;
}

}  // namespace cadre
