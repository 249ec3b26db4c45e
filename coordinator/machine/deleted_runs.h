// Deleted runs whose files aggregators may still store, and the orders to remove these.
//
// Pure and thread-compatible.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>

#include "absl/strings/string_view.h"
#include "coordinator/cluster/cluster.h"
#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/records.pb.h"

namespace cadre {

class DeletedRuns {
 public:
  // Borrows `cluster`, which must outlive the object.
  explicit DeletedRuns(Cluster& cluster) : cluster_(cluster) {}

  void Load(const v1::DeletedRunRecord& record) { runs_[record.run()] = record; }
  // The run has been deleted: orders its aggregators to remove its files.
  void Add(const v1::DeletedRunRecord& record);

  bool Contains(absl::string_view run) const { return runs_.contains(run); }
  // Whether files of this run and lineage are to be removed.
  bool Contains(absl::string_view run, absl::string_view lineage) const;
  // The aggregator has files of the run, whether it has confirmed their removal or not. Requires:
  // Contains(run).
  void Require(const std::string& aggregator, const std::string& run);
  // Sends orders that the aggregator has not confirmed, unless many are on their way; it is called
  // again when one of these is confirmed.
  void SendOrders(const Member& aggregator);
  // The aggregator has removed the files. Requires: Contains(run).
  void Confirm(const Member& aggregator, const std::string& run);
  // The stream of the aggregator has ended, or its lease.
  void OnAggregatorLost(const std::string& aggregator) { ordered_.erase(aggregator); }

 private:
  // Forgets the deletion that matters least.
  void Forget();

  Cluster& cluster_;
  // By id. They are not unknown runs, which could be adopted. `aggregators` are those that have not
  // confirmed the removal.
  std::map<std::string, v1::DeletedRunRecord, std::less<>> runs_;
  // Runs that aggregators were told to delete since they joined, and have not confirmed.
  std::map<std::string, std::set<std::string>> ordered_;
};

}  // namespace cadre
