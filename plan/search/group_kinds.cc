// Part of plan/search/group_choice.h: KindsOfGroups.

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "plan/search/group_choice.h"
#include "tensor/interval.h"

namespace cadre {
namespace {

// The hosts of one entry of the profile.
struct Entry {
  // Workers of all its hosts.
  Interval workers;
  int64_t workers_per_host = 1;
  // Equal for entries with equal hosts.
  int64_t host_kind = 0;
};

std::vector<Entry> LayerEntriesOf(const v1::ClusterProfile& profile) {
  std::vector<Entry> entries;
  std::map<std::string, int64_t> host_kinds;
  int64_t begin = 0;
  for (const v1::HostProfile& host : profile.host()) {
    v1::HostProfile kind = host;
    kind.clear_name();
    kind.clear_count();
    const auto found = host_kinds.emplace(kind.SerializeAsString(), std::ssize(host_kinds)).first;
    const int64_t workers = std::max(1U, host.workers());
    const int64_t end = begin + workers * std::max(1U, host.count());
    entries.push_back({{begin, end}, workers, found->second});
    begin = end;
  }
  return entries;
}

// Equal for groups of one kind. A group within one host depends only on the kind of host; otherwise
// the key lists, for each entry that the group uses, the entry, its first worker's position in a
// host, and its number of ranks there.
std::vector<int64_t> KeyOf(const std::vector<Entry>& entries, int64_t first, int64_t ranks) {
  auto entry = std::upper_bound(entries.begin(), entries.end(), first,
                                [](int64_t w, const Entry& e) { return w < e.workers.end; });
  const Interval group = {first, first + ranks};
  const auto host = [&](int64_t worker) {
    return (worker - entry->workers.begin) / entry->workers_per_host;
  };
  if (entry->workers.contains(group) && host(first) == host(group.end - 1)) {
    return {-1, entry->host_kind};
  }
  std::vector<int64_t> key;
  for (; entry != entries.end() && entry->workers.begin < group.end; ++entry) {
    const Interval here = Intersect(group, entry->workers);
    key.insert(key.end(),
               {entry - entries.begin(),
                (here.begin - entry->workers.begin) % entry->workers_per_host, here.size()});
  }
  return key;
}

}  // namespace

std::vector<GroupKind> KindsOfGroups(const v1::ClusterProfile& profile, int64_t groups,
                                     int64_t ranks) {
  const std::vector<Entry> entries = LayerEntriesOf(profile);
  std::map<std::vector<int64_t>, size_t> seen;
  std::vector<GroupKind> kinds;
  for (int64_t g = 0; g < groups; ++g) {
    const auto [at, is_new] = seen.emplace(KeyOf(entries, g * ranks, ranks), kinds.size());
    if (is_new) kinds.emplace_back().first_worker = g * ranks;
    ++kinds[at->second].groups;
  }
  return kinds;
}

}  // namespace cadre
