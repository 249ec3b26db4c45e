// Rebuilds the record of a run that is older than the values on the aggregators.
//
// After the coordinator was started with an older copy of its store (a backup), the records of live
// runs are those of the time of the copy: since then, versions were made, groups were formed, runs
// may have ended. What was decided since is on the aggregators only, as after the loss of the whole
// store, and the record is rebuilt from their reports in the same way (adoption.h).
//
// The same happens to a coordinator that was replaced while it ran, and returns after the end of
// the other one. The round that it was closing may have been closed with other participants.
//
// The first message that shows a later state ends the groups of the run. Nothing is ordered to its
// shards from then on, because OpenRun replaces the run files from which the reports are made.
// When the reports of all shards belong together, Machine replaces the run by one with the rebuilt
// record. Until then the run waits, and its reason says for what.
//
// The state is not durable: after a restart, the next messages of the aggregators show it again.
//
// Pure and thread-compatible.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "coordinator/run/adoption.h"
#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/records.pb.h"

namespace cadre {

class RunView;

class StaleRecord {
 public:
  // Whether the record is known to be older.
  bool known() const { return version_.has_value(); }
  // Why the reports do not amount to the run.
  const std::string& problem() const { return problem_; }
  const RunReports& reports() const { return reports_; }

  // An aggregator has this version. Returns whether the record was not known to be older.
  bool Add(uint32_t version);
  // Returns what the reports amount to; nullopt if they lack something.
  std::optional<RebuiltRun> OnReport(const RunView& run, const std::string& aggregator,
                                     const v1::RunReport& report);
  void OnAggregatorLost(const std::string& name) { reports_.erase(name); }

 private:
  // Those of the aggregators that the record names and, for shards of which these have no version
  // as new, of others: the shards may have moved there since.
  RunReports ReportsOf(const RunView& run) const;

  // The newest version that an aggregator had.
  std::optional<uint32_t> version_;
  RunReports reports_;
  std::string problem_ = "its aggregators have not reported";
};

}  // namespace cadre
