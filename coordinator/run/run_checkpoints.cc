// The checkpoints that a run writes, by the reports of rank 0 of group 0. Part of Run.
//
// The last checkpoint is the trained model of a run without aggregators, and what the user asked
// for in any other. So the end of the run waits for it while group 0 can still write it, and a run
// that ends without it says so in its reason, in an event and in its status (last_missing), from
// which the command line takes its exit code.
#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "coordinator/run/evaluation.h"
#include "coordinator/run/run.h"

namespace cadre {

void Run::OnCheckpointed(const Member& member, const v1::Checkpointed& report) {
  if (!WritesCheckpoints() || report.place().group() != 0) {
    cluster_.Refuse(member.connection, v1::REFUSAL_MALFORMED,
                    "only group 0 of a run with checkpoint.directory writes checkpoints");
    return;
  }
  v1::CheckpointStatus& checkpoint = *record_.mutable_checkpoint();
  const uint32_t step = report.step();
  const auto explain = [&](absl::string_view text) {
    cluster_.ReportRun(v1::EVENT_KIND_CHECKPOINT, id(), text);
  };
  // Both kinds of reports may be repeated.
  if (report.error().empty()) {
    if (checkpoint.has_saved_step() && checkpoint.saved_step() == step) return;
    checkpoint.set_saved_step(step);
    if (!report.warning().empty()) {
      explain(
          absl::StrCat("the checkpoint of step ", step, " is written, but: ", report.warning()));
    }
  } else {
    if (checkpoint.failed_step() == step && checkpoint.error() == report.error()) return;
    checkpoint.set_failures(checkpoint.failures() + 1);
    checkpoint.set_failed_step(step);
    checkpoint.set_error(report.error());
    explain(absl::StrCat("no checkpoint of step ", step, " (worker ", member.record.name(), " on ",
                         member.record.host(), "): ", report.error()));
  }
  Save();
  if (record_.has_evaluating() && IsComplete(record_.evaluating())) FinishEvaluation();
}

bool Run::HasLastCheckpoint() const {
  const v1::CheckpointStatus& checkpoint = record_.checkpoint();
  return checkpoint.has_saved_step() && checkpoint.saved_step() == record_.step();
}

bool Run::FailedLastCheckpoint() const {
  return record_.checkpoint().failures() > 0 &&
         record_.checkpoint().failed_step() == record_.step();
}

bool Run::LacksLastCheckpoint() const {
  return record_.state() == v1::RUN_STATE_FINISHING && WritesCheckpoints() &&
         !HasLastCheckpoint() && !FailedLastCheckpoint();
}

bool Run::AwaitsCheckpoint() const {
  const Slot& slot = slots_[0];
  if (!LacksLastCheckpoint()) return false;
  if (!slot.waiting()) return !HasOwnLoop(slot);
  // It is formed before the run can end (Machine::SettleOnce), unless it must still wait.
  if (planner_.IsSearching(id())) return true;
  if (cluster_.now() >= slot.blocked_until()) return false;
  const auto& idle = cluster_.members().idle();
  return absl::c_any_of(GroupByDevice({idle.begin(), idle.end()}), [this](const auto& workers) {
    return workers.size() >= RanksPerGroup(spec());
  });
}

std::string Run::MissingCheckpoint() const {
  if (!WritesCheckpoints() || HasLastCheckpoint()) return "";
  return absl::StrCat("the last checkpoint, of step ", record_.step(), ", is missing: ",
                      FailedLastCheckpoint() ? record_.checkpoint().error()
                                             : std::string("group 0 has not written it"));
}

}  // namespace cadre
