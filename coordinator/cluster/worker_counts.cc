#include "coordinator/cluster/worker_counts.h"

#include <algorithm>
#include <set>

namespace cadre {
namespace {

// Numbers that become 0 are removed.
template <typename Key>
void ChangeCount(std::map<Key, int>& counts, const Key& key, int by) {
  int& count = counts[key];
  count += by;
  if (count == 0) counts.erase(key);
}

}  // namespace

size_t WorkerCounts::Usable(v1::Cluster::Device kind, v1::RunSpec::Precision precision) const {
  return Get(usable_, {kind, std::max(precision, v1::RunSpec::FP32)});
}

void WorkerCounts::Change(const Member& member, int by) {
  const v1::MemberRecord& record = member.record;
  const v1::Cluster::Device kind = record.device_kind();
  if (member.place.has_value()) ChangeCount(placed_on_, record.host(), by);
  if (member.idle()) ChangeCount(idle_on_, record.host(), by);
  if (!member.worker() || record.has_reservation()) return;
  if (member.idle()) ChangeCount(idle_, kind, by);
  if (member.withdrawn) return;
  std::set<int> precisions(record.precisions().begin(), record.precisions().end());
  precisions.insert(v1::RunSpec::FP32);
  for (const int precision : precisions) {
    ChangeCount(usable_, std::pair(kind, static_cast<v1::RunSpec::Precision>(precision)), by);
  }
  if (member.place.has_value()) ChangeCount(placed_in_, std::pair(member.place->run(), kind), by);
}

}  // namespace cadre
