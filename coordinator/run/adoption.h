// Adoption of runs that aggregators store and the coordinator does not know: the reports that one
// call waits for, and the records that they amount to.
//
// Pure and thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/events/events.h"
#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/records.pb.h"

namespace cadre {

// Reports about one run, by the name of the aggregator.
using RunReports = std::map<std::string, v1::RunReport>;

// One call, from its ReportRun orders to the last answer.
struct Adoption {
  RequestId request = 0;
  // When aggregators that have not answered are left out.
  absl::Time until;
  // Whether one run was named; otherwise ended runs are not mentioned.
  bool named = false;
  // Orders without an answer, as (aggregator, run).
  std::set<std::pair<std::string, std::string>> awaited;
  std::map<std::string, RunReports> runs;

  void Add(absl::string_view aggregator, const v1::RunReport& report);
  // The aggregator is disconnected.
  void Lose(absl::string_view aggregator);
};

struct RebuiltRun {
  // Why the run cannot be adopted. If empty, the other fields are set.
  std::string problem;
  v1::RunRecord record;
  v1::CommitRecord newest;
  // Some shards have applied it, others not.
  std::optional<v1::CommitRecord> closing;
  // The highest generation that the aggregators know.
  uint32_t generation = 0;
  // The run has ended.
  bool ended = false;
};

// Rebuilds the records of a run. What the aggregators do not store is missing: losses, results of
// evaluations, traffic.
RebuiltRun RebuildRun(const std::string& run, const RunReports& reports);

}  // namespace cadre
