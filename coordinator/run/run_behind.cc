// A record that is older than the values on the aggregators. Part of Run.
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
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/run/run.h"

namespace cadre {

bool Run::IsLater(absl::string_view aggregator, const v1::ShardState& shard) const {
  if (!live() || !averages() || !shards_.MayStore(aggregator, shard.shard())) return false;
  // A run is closed, or a round applied, only after the store has recorded it.
  return shard.closed() || shard.version() > record_.version() + (committing() ? 1 : 0);
}

void Run::FallBehind(uint32_t version) {
  if (behind()) {
    behind_->version = std::max(behind_->version, version);
    return;
  }
  behind_ = Behind{.version = version, .problem = "its aggregators have not reported"};
  Disband("the coordinator's store is older than the values of the run");
  shards_.Reset();
  round_.Open(record_.version() + 1);
  record_.clear_left();
  cluster_.Count("runs_behind");
  for (const std::string& id : cluster_.members().aggregators()) {
    RequestReport(*cluster_.members().Find(id));
  }
}

void Run::RequestReport(const Member& aggregator) const {
  v1::CoordinatorMessage message;
  message.mutable_report_run()->set_run(id());
  cluster_.SendTo(aggregator.id(), message);
}

std::optional<RebuiltRun> Run::OnReport(const std::string& aggregator,
                                        const v1::RunReport& report) {
  if (!behind() || !report.has_open() || report.open().lineage() != record_.lineage() ||
      !shards_.MayStore(aggregator, report.open().shard())) {
    return std::nullopt;
  }
  behind_->reports[aggregator] = report;
  RebuiltRun rebuilt = RebuildRun(id(), behind_->reports);
  if (rebuilt.ended) {
    // Their files are deleted with the run.
    for (const auto& [name, one] : behind_->reports) record_.add_former_shards(name);
    End(v1::RUN_STATE_STOPPED,
        "it had ended, with a result that is lost: the coordinator's store is older");
    return std::nullopt;
  }
  const uint32_t newest = rebuilt.record.version() + (rebuilt.closing.has_value() ? 1 : 0);
  if (rebuilt.problem.empty() && newest < behind_->version) {
    rebuilt.problem = absl::StrCat("no connected aggregator has version ", behind_->version,
                                   ", which one had before");
  }
  behind_->problem = rebuilt.problem;
  if (!rebuilt.problem.empty()) return std::nullopt;
  if (commits_.newest().has_value() && record_.version() == rebuilt.record.version()) {
    rebuilt.newest = *commits_.newest();
    rebuilt.record.set_digest(record_.digest());
  }
  // What the reports do not have remains as it was at the time of the copy.
  v1::RunRecord record = record_;
  record.clear_reason();
  record.clear_evaluating();
  record.clear_left();
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
  record.mutable_former_shards()->MergeFrom(rebuilt.record.former_shards());
  if (rebuilt.record.has_division()) *record.mutable_division() = rebuilt.record.division();
  rebuilt.record = std::move(record);
  return rebuilt;
}

void Run::FenceAll(absl::string_view reason) {
  for (Slot& slot : slots_) {
    if (!slot.waiting()) Fence(slot, reason, kReleased);
  }
}

}  // namespace cadre
