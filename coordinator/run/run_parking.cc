// A rollback is ordered once, and carried out when the closing round, if there is one, is applied
// and all shards are open. Until then the groups go on, because a shard that is lost may have to be
// restored with what they hold. The order is in the record of the run, so it survives the
// coordinator, and a run that is parked meanwhile: `cadre resume` continues with it.
#include "coordinator/run/run_parking.h"

#include "absl/strings/str_cat.h"
#include "coordinator/run/run_rules.h"
#include "coordinator/run/run_view.h"

namespace cadre {
namespace {

std::string TextOfRollback(uint32_t version) {
  return absl::StrCat("the run is rolled back to version ", version);
}

}  // namespace

// A closing round is kept: with the disk restored, it can be finished.
void RunParking::Park(absl::string_view cause, absl::string_view remedy) {
  for (const Slot& slot : run_.slots()) evaluation_.Free(slot);
  v1::RunRecord& record = stored_.record();
  record.set_state(v1::RUN_STATE_PARKED);
  record.set_reason(absl::StrCat(cause, "; ", remedy));
  groups_.Disband(absl::StrCat("the run is parked: ", cause));
  aggregators_.Reset();
  rounds_.Reopen();
  rounds_.RecordTraffic();
  stored_.Save();
  cluster_.Count("runs_parked");
}

void RunParking::Park(const Aggregators::LostShard& lost) {
  Park(lost.reason, absl::StrCat("no live group can restore it; restore the disk of aggregator ",
                                 run_.record().shards(static_cast<int>(lost.shard)),
                                 ", or start it again; then: cadre resume ", run_.id()));
}

// The newest version is the last one that is known to be good: nothing that diverged is in it. An
// older one may have to be chosen if the run diverges again and again.
void RunParking::ParkDiverged(absl::string_view reason) {
  stored_.record().set_diverged(true);
  Park(reason,
       absl::StrCat("the run is parked at version ", run_.record().version(),
                    "; to train on from it: cadre resume ", run_.id(),
                    "; from an older version: cadre rollback ", run_.id(), " --to VERSION"));
  attribution_.OnCommit();
}

absl::Status RunParking::Resume() {
  if (!run_.parked()) {
    return absl::FailedPreconditionError(absl::StrCat("run ", run_.id(), " is not parked"));
  }
  Continue();
  return absl::OkStatus();
}

void RunParking::Continue() {
  v1::RunRecord& record = stored_.record();
  record.clear_reason();
  record.clear_diverged();
  const bool at_end = !record.has_rollback() && AtEnd(record, record.step());
  record.set_state(record.started_ms() == 0 ? v1::RUN_STATE_QUEUED
                   : at_end                 ? v1::RUN_STATE_FINISHING
                                            : v1::RUN_STATE_RUNNING);
  stored_.Save();
  aggregators_.OpenAll();
}

absl::Status RunParking::RollBack(uint32_t version, const std::vector<uint32_t>& leave_out) {
  if (const absl::Status can = rounds_.versions().CheckRollback(version, leave_out); !can.ok())
    return can;
  stored_.record().clear_evaluating();
  rounds_.versions().OrderRollback(version, leave_out);
  cluster_.ReportRun(v1::EVENT_KIND_ROLLBACK, run_.id(), TextOfRollback(version));
  cluster_.Count("rollbacks_ordered");
  // A run that is not parked has its shards open already.
  if (run_.parked()) {
    Continue();
    return absl::OkStatus();
  }
  if (run_.record().state() == v1::RUN_STATE_FINISHING) {
    stored_.record().set_state(v1::RUN_STATE_RUNNING);
  }
  stored_.Save();
  return absl::OkStatus();
}

bool RunParking::AdvanceRollback() {
  if (!run_.record().has_rollback() || run_.committing() || !run_.shards().AllOpen()) return false;
  const uint32_t version = run_.record().rollback();
  if (const absl::Status kept = rounds_.versions().CheckKept(version); !kept.ok()) {
    stored_.record().clear_rollback();
    stored_.record().clear_left_out();
    Park(absl::StrCat("the rollback is not possible: ", kept.message()),
         absl::StrCat("to roll back to another version: cadre rollback ", run_.id(),
                      " --to VERSION; to continue with version ", run_.record().version(),
                      ": cadre resume ", run_.id()));
    return true;
  }
  groups_.FenceAll(TextOfRollback(version));
  rounds_.Reopen();
  rounds_.RollBack();
  aggregators_.SendApplies();
  return true;
}

}  // namespace cadre
