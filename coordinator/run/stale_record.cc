#include "coordinator/run/stale_record.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "coordinator/run/run_view.h"

namespace cadre {

bool StaleRecord::Add(uint32_t version) {
  const bool added = !version_.has_value();
  version_ = std::max(version_.value_or(version), version);
  return added;
}

RunReports StaleRecord::ReportsOf(const RunView& run) const {
  RunReports reports = reports_;
  const auto is_known = [&](const RunReports::value_type& entry) {
    return run.shards().MayStore(entry.first, entry.second.open().shard());
  };
  const v1::RunRecord& record = run.record();
  std::erase_if(reports, [&](const RunReports::value_type& entry) {
    const v1::OpenRun& open = entry.second.open();
    const v1::ShardState& state = entry.second.state();
    // It may have version 0 from before the aggregators were chosen again. The one that the record
    // names may have a later version, and is awaited.
    const bool untrained = record.digest() != 0 && state.version() == 0 &&
                           int64_t{open.shard()} < record.shards_size();
    if (untrained && !reports_.contains(record.shards(static_cast<int>(open.shard())))) return true;
    if (is_known(entry)) return false;
    return int64_t{open.shards()} != run.shards().size() || state.run().empty() ||
           absl::c_any_of(reports_, [&](const RunReports::value_type& other) {
             const v1::ShardState& held = other.second.state();
             return is_known(other) && other.second.open().shard() == open.shard() &&
                    !held.run().empty() && held.version() >= state.version();
           });
  });
  return reports;
}

std::optional<RebuiltRun> StaleRecord::OnReport(const RunView& run, const std::string& aggregator,
                                                const v1::RunReport& report) {
  if (!report.has_open() || report.open().lineage() != run.record().lineage()) return std::nullopt;
  reports_[aggregator] = report;
  RebuiltRun rebuilt = RebuildRun(run.id(), ReportsOf(run));
  if (rebuilt.ended) return rebuilt;
  const uint32_t newest = rebuilt.record.version() + (rebuilt.closing.has_value() ? 1 : 0);
  if (rebuilt.problem.empty() && newest < *version_) {
    rebuilt.problem =
        absl::StrCat("no connected aggregator has version ", *version_, ", which one had before");
  }
  problem_ = rebuilt.problem;
  if (!rebuilt.problem.empty()) return std::nullopt;
  if (run.commits().newest().has_value() && run.record().version() == rebuilt.record.version()) {
    rebuilt.newest = *run.commits().newest();
    rebuilt.record.set_digest(run.record().digest());
  }
  // What the reports do not have remains as it was at the time of the copy.
  v1::RunRecord record = run.record();
  record.clear_reason();
  record.clear_evaluating();
  record.clear_left();
  record.clear_rollback();
  // When the first group has opened the data again, OnPrepared decides where the run stands.
  record.clear_train_samples();
  record.clear_test_samples();
  record.set_state(rebuilt.record.state());
  record.set_version(rebuilt.record.version());
  record.set_step(rebuilt.record.step());
  record.set_digest(rebuilt.record.digest());
  record.set_samples(rebuilt.record.samples());
  record.set_rounds_committed(rebuilt.record.rounds_committed());
  *record.mutable_shards() = rebuilt.record.shards();
  // The aggregators that store a shard now do not remove it, and a move begins again.
  auto& leaving = *record.mutable_leaving();
  if (record.has_move()) *leaving.Add() = record.move().to();
  record.clear_move();
  leaving.erase(std::remove_if(leaving.begin(), leaving.end(),
                               [&](const std::string& name) {
                                 return absl::c_linear_search(record.shards(), name);
                               }),
                leaving.end());
  record.mutable_former_shards()->MergeFrom(rebuilt.record.former_shards());
  if (rebuilt.record.has_division()) *record.mutable_division() = rebuilt.record.division();
  rebuilt.record = std::move(record);
  return rebuilt;
}

}  // namespace cadre
