// All-reduce in three phases: inside each host, between hosts, and inside each host again.
//
// Links inside a host are an order of magnitude faster than links between hosts, so the bytes
// between hosts determine the time. With m members on each of h hosts: a ring reduce-scatter inside
// the host leaves each member an interval of n / m; members with the same position on all hosts
// all-reduce their interval (`across`); a ring all-gather distributes the result inside the host.
// Each host then sends only 2 (h - 1) / h n bytes, by m members in parallel. NCCL and MPI libraries
// use the same decomposition.
//
// If hosts have different numbers of members, the positions do not match. Then the first member of
// each host is its leader: it reduces the data of its host, the leaders all-reduce, and each leader
// broadcasts the result to its host.
//
// The phases are one schedule, not three calls: a step waits only for the last receive of the phase
// before it on the same data, so one part of the data may be sent between hosts while another part
// is still reduced inside a host.
//
// Invariant: the order of additions depends on the numbering of hosts and members alone, so all
// members hold equal bits. Limits: two levels; halving-doubling between hosts needs two extra steps
// if their number is not a power of two.
#include <glog/logging.h>

#include <algorithm>

#include "comm/schedule_parts.h"

namespace cadre {
namespace {

using Kind = ScheduleStep::Kind;

// Which steps of a phase wait for the previous phase: those that read data, or all.
enum class Waits { kReaders, kAll };

// Appends a phase among `members` on the data from `begin` on. Its steps without a dependency
// depend on step `before`.
void Append(Schedule& whole, const Schedule& part, std::span<const int> members, int64_t begin,
            int before, Waits waits) {
  const int first = std::ssize(whole);
  for (ScheduleStep step : part) {
    step.peer = members[step.peer];
    step.interval = {step.interval.begin + begin, step.interval.end + begin};
    if (step.after != ScheduleStep::kNone) {
      step.after += first;
    } else if (waits == Waits::kAll || step.kind != Kind::kReceive) {
      step.after = before;
    }
    whole.push_back(step);
  }
}

struct Position {
  // Members by host, in the order in which hosts appear.
  std::vector<std::vector<int>> by_host;
  // Index of the host, and of the member on it.
  int host = 0;
  int local = 0;

  const std::vector<int>& local_members() const { return by_host[host]; }
  // The members with the same index on each host.
  std::vector<int> Counterparts() const {
    std::vector<int> same;
    for (const std::vector<int>& members : by_host) same.push_back(members[local]);
    return same;
  }
};

Position Find(int index, std::span<const uint64_t> hosts) {
  Position position;
  std::vector<uint64_t> seen;
  for (int member = 0; member < std::ssize(hosts); ++member) {
    const int host = std::find(seen.begin(), seen.end(), hosts[member]) - seen.begin();
    if (host == std::ssize(seen)) {
      seen.push_back(hosts[member]);
      position.by_host.emplace_back();
    }
    if (member == index) {
      position.host = host;
      position.local = position.by_host[host].size();
    }
    position.by_host[host].push_back(member);
  }
  return position;
}

// Each member reduces one interval, inside the host and then between hosts, and distributes it.
// Between phases a step depends on the last receive of the previous phase: inside a host that
// receive covers the interval, and between hosts it completes after all other receives (receives of
// a ring come from one member; see recursive_schedule.cc for the others). The gather overwrites
// data that the reduce-scatter sent; the finished sum contains that data, so it was sent before.
Schedule ByInterval(const Position& position, int64_t elements, Algorithm across) {
  const std::vector<int>& local_members = position.local_members();
  const int local = position.local;
  const std::vector<Interval> intervals = EqualIntervals(elements, std::ssize(local_members));
  const Interval own = intervals[local];
  Schedule all;
  Append(all, RingReduceScatter(local, intervals), local_members, 0, ScheduleStep::kNone,
         Waits::kReaders);
  const Schedule between =
      AllReduceSchedule(across, position.host, std::ssize(position.by_host), own.size());
  Append(all, between, position.Counterparts(), own.begin, LastReceive(all), Waits::kAll);
  Append(all, RingAllGather(local, intervals), local_members, 0, LastReceive(all), Waits::kReaders);
  return all;
}

// The first member of each host reduces the host's data and broadcasts the result.
Schedule ByLeaders(const Position& position, int64_t elements, Algorithm across) {
  const std::vector<int>& local_members = position.local_members();
  const Interval whole = {0, elements};
  const int members = std::ssize(local_members);
  Schedule all;
  if (position.local == 0) {
    for (int local = 1; local < members; ++local) {
      all.push_back({Kind::kReceiveSum, local_members[local], whole, LastReceive(all)});
    }
    const Schedule between =
        AllReduceSchedule(across, position.host, std::ssize(position.by_host), elements);
    Append(all, between, position.Counterparts(), 0, LastReceive(all), Waits::kAll);
    Append(all, BroadcastSchedule(0, members, elements, 0), local_members, 0, LastReceive(all),
           Waits::kAll);
    return all;
  }
  all.push_back({Kind::kSend, local_members[0], whole});
  // The result overwrites the data of the send.
  Append(all, BroadcastSchedule(position.local, members, elements, 0), local_members, 0, 0,
         Waits::kAll);
  return all;
}

}  // namespace

Schedule HierarchicalAllReduceSchedule(int index, std::span<const uint64_t> hosts, int64_t elements,
                                       Algorithm across) {
  CHECK(index >= 0 && index < std::ssize(hosts)) << index;
  const Position position = Find(index, hosts);
  const bool equal = std::all_of(position.by_host.begin(), position.by_host.end(),
                                 [&](const std::vector<int>& members) {
                                   return members.size() == position.local_members().size();
                                 });
  return equal ? ByInterval(position, elements, across) : ByLeaders(position, elements, across);
}

}  // namespace cadre
