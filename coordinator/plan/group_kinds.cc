#include "coordinator/plan/group_kinds.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

namespace cadre {
namespace {

// The machines of one entry of the profile: workers [begin, end).
struct Entry {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t workers = 1;
  // Equal for entries whose machines are alike.
  int64_t likeness = 0;
};

std::vector<Entry> EntriesOf(const v1::ClusterProfile& profile) {
  std::vector<Entry> entries;
  std::map<std::string, int64_t> likenesses;
  int64_t begin = 0;
  for (const v1::HostProfile& host : profile.host()) {
    v1::HostProfile machine = host;
    machine.clear_name();
    machine.clear_count();
    const auto likeness = static_cast<int64_t>(likenesses.size());
    const auto found = likenesses.emplace(machine.SerializeAsString(), likeness).first;
    const int64_t workers = std::max(1U, host.workers());
    const int64_t end = begin + workers * std::max(1U, host.count());
    entries.push_back({begin, end, workers, found->second});
    begin = end;
  }
  return entries;
}

// What a group sees: of each entry that it is on its number, where in a machine it begins there,
// and how many ranks it has there. On one machine alone only the machine's likeness counts.
std::vector<int64_t> KeyOf(const std::vector<Entry>& entries, int64_t first, int64_t ranks) {
  auto entry = std::upper_bound(entries.begin(), entries.end(), first,
                                [](int64_t w, const Entry& e) { return w < e.end; });
  const int64_t last = first + ranks;
  const auto machine = [&](int64_t worker) { return (worker - entry->begin) / entry->workers; };
  if (last <= entry->end && machine(first) == machine(last - 1)) return {-1, entry->likeness};
  std::vector<int64_t> key;
  for (; entry != entries.end() && entry->begin < last; ++entry) {
    const int64_t from = std::max(first, entry->begin);
    key.insert(key.end(), {entry - entries.begin(), (from - entry->begin) % entry->workers,
                           std::min(last, entry->end) - from});
  }
  return key;
}

}  // namespace

std::vector<GroupKind> KindsOfGroups(const v1::ClusterProfile& profile, int64_t groups,
                                     int64_t ranks) {
  const std::vector<Entry> entries = EntriesOf(profile);
  std::map<std::vector<int64_t>, size_t> seen;
  std::vector<GroupKind> kinds;
  for (int64_t g = 0; g < groups; ++g) {
    const auto [at, is_new] = seen.emplace(KeyOf(entries, g * ranks, ranks), kinds.size());
    if (is_new) kinds.push_back({.first_worker = static_cast<int>(g * ranks)});
    ++kinds[at->second].groups;
  }
  return kinds;
}

}  // namespace cadre
