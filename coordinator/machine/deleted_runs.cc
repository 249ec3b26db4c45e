#include "coordinator/machine/deleted_runs.h"

#include <algorithm>
#include <utility>

#include "coordinator/store/keys.h"

namespace cadre {
namespace {

// Maximum number of records of deleted runs. Beyond it the oldest are forgotten, first those whose
// removal all aggregators have confirmed: their files count as those of an unknown run that may
// have ended.
constexpr size_t kMaxDeletedRuns = 1024;

// Maximum number of orders to delete that one aggregator has not confirmed: few of the messages
// that may wait for a member (streams.cc).
constexpr size_t kMaxOrderedDeletes = 64;

}  // namespace

void DeletedRuns::Add(const v1::DeletedRunRecord& record) {
  cluster_.out().Put(DeletedKey(record.run()), record);
  runs_[record.run()] = record;
  while (runs_.size() > kMaxDeletedRuns) Forget();
  for (const std::string& name : record.aggregators()) {
    if (const Member* member = cluster_.members().Aggregator(name)) SendOrders(*member);
  }
}

bool DeletedRuns::Contains(absl::string_view run, absl::string_view lineage) const {
  const auto found = runs_.find(run);
  return found != runs_.end() && found->second.lineage() == lineage;
}

void DeletedRuns::Require(const std::string& aggregator, const std::string& run) {
  v1::DeletedRunRecord& deleted = runs_.at(run);
  auto& names = *deleted.mutable_aggregators();
  if (std::find(names.begin(), names.end(), aggregator) != names.end()) return;
  *names.Add() = aggregator;
  cluster_.out().Put(DeletedKey(run), deleted);
}

void DeletedRuns::SendOrders(const Member& aggregator) {
  const std::string& name = aggregator.record.name();
  std::set<std::string>& ordered = ordered_[name];
  for (const auto& [run, deleted] : runs_) {
    if (ordered.size() >= kMaxOrderedDeletes) return;
    const auto& names = deleted.aggregators();
    if (std::find(names.begin(), names.end(), name) == names.end()) continue;
    if (!ordered.insert(run).second) continue;
    v1::CoordinatorMessage message;
    message.mutable_delete_run()->set_run(run);
    message.mutable_delete_run()->set_lineage(deleted.lineage());
    cluster_.SendTo(aggregator.id(), message);
  }
}

void DeletedRuns::Confirm(const Member& aggregator, const std::string& run) {
  const std::string& name = aggregator.record.name();
  v1::DeletedRunRecord& deleted = runs_.at(run);
  auto& names = *deleted.mutable_aggregators();
  const auto confirmed = std::remove(names.begin(), names.end(), name);
  if (confirmed == names.end()) return;
  names.erase(confirmed, names.end());
  cluster_.out().Put(DeletedKey(run), deleted);
  ordered_[name].erase(run);
  SendOrders(aggregator);
}

void DeletedRuns::Forget() {
  const auto rank = [](const auto& entry) {
    return std::pair(!entry.second.aggregators().empty(), RunNumber(entry.first));
  };
  const auto oldest = std::min_element(
      runs_.begin(), runs_.end(), [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
  cluster_.NoteRemovedRun(RunNumber(oldest->first));
  for (auto& [name, runs] : ordered_) runs.erase(oldest->first);
  cluster_.out().EraseOne(DeletedKey(oldest->first));
  runs_.erase(oldest);
}

}  // namespace cadre
