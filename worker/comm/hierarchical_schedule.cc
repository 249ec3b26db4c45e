// First inside each host, where bytes are cheap, then between hosts, then inside again.
#include <glog/logging.h>

#include <algorithm>

#include "worker/comm/schedule_parts.h"

namespace cadre {
namespace {

using Kind = ScheduleStep::Kind;

// Members by host, in the order in which hosts appear.
std::vector<std::vector<int>> ByHost(std::span<const uint64_t> hosts) {
  std::vector<uint64_t> seen;
  std::vector<std::vector<int>> members;
  for (size_t i = 0; i < hosts.size(); ++i) {
    const auto at =
        static_cast<size_t>(std::find(seen.begin(), seen.end(), hosts[i]) - seen.begin());
    if (at == seen.size()) {
      seen.push_back(hosts[i]);
      members.emplace_back();
    }
    members[at].push_back(static_cast<int>(i));
  }
  return members;
}

// Which steps of a part wait for what was before it: those that read, or all.
enum class Waits { kReaders, kAll };

// Adds a part that is carried out among `members` on the data from `begin` on. Its steps that wait
// for nothing wait for `before`.
void Append(Schedule& whole, const Schedule& part, std::span<const int> members, int64_t begin,
            int before, Waits waits) {
  const int first = static_cast<int>(whole.size());
  for (ScheduleStep step : part) {
    step.peer = members[static_cast<size_t>(step.peer)];
    step.piece = {step.piece.begin + begin, step.piece.end + begin};
    if (step.after != ScheduleStep::kNone) {
      step.after += first;
    } else if (waits == Waits::kAll || step.kind != Kind::kReceive) {
      step.after = before;
    }
    whole.push_back(step);
  }
}

struct Place {
  std::vector<std::vector<int>> by_host;
  // Which host, and which of its members.
  size_t host = 0;
  size_t local = 0;

  const std::vector<int>& mates() const { return by_host[host]; }
  // The members of every host at this place in it.
  std::vector<int> Counterparts() const {
    std::vector<int> same;
    for (const std::vector<int>& members : by_host) same.push_back(members[local]);
    return same;
  }
};

Place Find(int index, std::span<const uint64_t> hosts) {
  Place place{.by_host = ByHost(hosts)};
  for (size_t host = 0; host < place.by_host.size(); ++host) {
    const std::vector<int>& members = place.by_host[host];
    const auto found = std::find(members.begin(), members.end(), index);
    if (found == members.end()) continue;
    place.host = host;
    place.local = static_cast<size_t>(found - members.begin());
  }
  return place;
}

// Every member sums a piece over its host, then over all hosts, and hands it to its host. Between
// the parts a step waits for the last receive of the part before, which covers the piece (inside a
// host), or stands for all receives on it (between hosts; see recursive_schedule.cc, and in a ring
// all come from one member). What the gather overwrites was sent in the reduce-scatter, and its
// finished sum contains what was sent.
Schedule PieceByPiece(const Place& place, int64_t elements, Algorithm across) {
  const std::vector<int>& mates = place.mates();
  const auto local = static_cast<int>(place.local);
  const std::vector<Piece> pieces = EqualPieces(elements, static_cast<int>(mates.size()));
  const Piece own = pieces[place.local];
  Schedule all;
  Append(all, RingReduceScatter(local, pieces), mates, 0, ScheduleStep::kNone, Waits::kReaders);
  const Schedule between = AllReduceSchedule(across, static_cast<int>(place.host),
                                             static_cast<int>(place.by_host.size()), own.size());
  Append(all, between, place.Counterparts(), own.begin, LastReceive(all), Waits::kAll);
  Append(all, RingAllGather(local, pieces), mates, 0, LastReceive(all), Waits::kReaders);
  return all;
}

// The first member of each host sums everything for it and tells it what came of it.
Schedule ByFirstMembers(const Place& place, int64_t elements, Algorithm across) {
  const std::vector<int>& mates = place.mates();
  const Piece whole = {0, elements};
  const auto members = static_cast<int>(mates.size());
  Schedule all;
  if (place.local == 0) {
    for (size_t mate = 1; mate < mates.size(); ++mate) {
      all.push_back({Kind::kReceiveSum, mates[mate], whole, LastReceive(all)});
    }
    const Schedule between = AllReduceSchedule(across, static_cast<int>(place.host),
                                               static_cast<int>(place.by_host.size()), elements);
    Append(all, between, place.Counterparts(), 0, LastReceive(all), Waits::kAll);
    Append(all, BroadcastSchedule(0, members, elements, 0), mates, 0, LastReceive(all),
           Waits::kAll);
    return all;
  }
  all.push_back({Kind::kSend, mates[0], whole});
  // What is received overwrites what is being sent.
  Append(all, BroadcastSchedule(static_cast<int>(place.local), members, elements, 0), mates, 0, 0,
         Waits::kAll);
  return all;
}

}  // namespace

Schedule HierarchicalAllReduceSchedule(int index, std::span<const uint64_t> hosts, int64_t elements,
                                       Algorithm across) {
  CHECK(index >= 0 && static_cast<size_t>(index) < hosts.size()) << index;
  const Place place = Find(index, hosts);
  const bool equal = std::all_of(
      place.by_host.begin(), place.by_host.end(),
      [&](const std::vector<int>& members) { return members.size() == place.mates().size(); });
  return equal ? PieceByPiece(place, elements, across) : ByFirstMembers(place, elements, across);
}

}  // namespace cadre
