#include "coordinator/run/run_evaluation.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/digest.h"
#include "coordinator/run/claims.h"
#include "coordinator/run/formation.h"
#include "coordinator/run/run_view.h"

namespace cadre {

void RunEvaluation::Begin(std::vector<uint32_t> groups) {
  std::erase_if(groups, [this](uint32_t group) { return !Evaluates(run_.slots()[group]); });
  *record_.mutable_evaluating() =
      CutTestSplit(record_.version(), record_.step(), record_.test_samples(), groups);
  SetNext(record_.step());
}

absl::Status RunEvaluation::OnEvaluated(const Member& member, const v1::Evaluated& evaluated) {
  if (!record_.has_evaluating()) return absl::OkStatus();
  if (const std::string why = WhyImpossible(record_, evaluated); !why.empty()) {
    cluster_.Refuse(member.connection, v1::REFUSAL_MALFORMED, why);
    return absl::OkStatus();
  }
  // Members report such a model as diverged instead (FAILURE_CAUSE_DIVERGED).
  if (!std::isfinite(evaluated.loss_sum())) {
    cluster_.Refuse(member.connection, v1::REFUSAL_MALFORMED, "a test loss that is not finite");
    return absl::OkStatus();
  }
  // A digest of 0 means none: the group has sent it in Adopted.
  if (run_.averages() && evaluated.version() == record_.version() && evaluated.digest() != 0 &&
      evaluated.digest() != record_.digest()) {
    cluster_.CountRefusal(v1::REFUSAL_WRONG_DIGEST);
    return absl::DataLossError(absl::StrCat("it evaluated a model with digest ",
                                            DigestHex(evaluated.digest()), " as version ",
                                            evaluated.version()));
  }
  if (!RecordPart(*record_.mutable_evaluating(), evaluated)) return absl::OkStatus();
  if (!run_.averages()) record_.set_digest(evaluated.digest());
  stored_.Save();
  return absl::OkStatus();
}

std::optional<std::string> RunEvaluation::Finish() {
  const v1::EvaluationResult result = ResultOf(record_.evaluating());
  const bool complete = IsComplete(record_.evaluating());
  // The run may end now, but not without one of its shards, and not before the programs have its
  // last version and its last checkpoint is written.
  if (complete && (!run_.shards().lost().empty() || AwaitsPrograms() || AwaitsCheckpoint())) {
    return std::nullopt;
  }
  if (result.samples() > 0) {
    *record_.mutable_test() = result;
    record_.set_evaluation_seconds(record_.evaluation_seconds() + result.seconds());
    history_.Add(result, cluster_.now(), cluster_.out());
    cluster_.ReportRun(
        v1::EVENT_KIND_EVALUATED, run_.id(),
        absl::StrFormat("test accuracy %.4f at step %d", result.accuracy(), result.step()));
  }
  record_.clear_evaluating();
  stored_.Save();
  if (!complete) return std::nullopt;
  const bool newest = result.version() == record_.version() && result.step() == record_.step();
  if (record_.state() == v1::RUN_STATE_FINISHING && newest) return "";
  if (newest && TargetReached(record_) && !run_.committing()) {
    return absl::StrCat("test accuracy ", result.accuracy(), " reached");
  }
  return std::nullopt;
}

bool RunEvaluation::AwaitsPrograms() const {
  if (record_.state() != v1::RUN_STATE_FINISHING) return false;
  const Slots::Groups& started = run_.slots().started();
  return std::any_of(started.begin(), started.end(), [this](uint32_t group) {
    const Slot& slot = run_.slots()[group];
    return slot.own_loop() && slot.record().at_end() && slot.version < record_.version();
  });
}

bool RunEvaluation::OnCheckpointed(const Member& member, const v1::Checkpointed& report) {
  if (!checkpoints_.Writes() || report.place().group() != checkpoints_.writer()) {
    cluster_.Refuse(member.connection, v1::REFUSAL_MALFORMED,
                    absl::StrCat("group ", report.place().group(), " of run ", run_.id(),
                                 " writes no checkpoints"));
    return false;
  }
  const std::optional<std::string> text = checkpoints_.Record(member, report);
  if (!text.has_value()) return false;
  if (!text->empty()) cluster_.ReportRun(v1::EVENT_KIND_CHECKPOINT, run_.id(), *text);
  stored_.Save();
  return true;
}

bool RunEvaluation::AwaitsCheckpoint() const {
  if (!checkpoints_.LacksLast()) return false;
  if (HasWriter()) return true;
  // One of them takes its place (CheckpointWriter).
  return absl::c_any_of(run_.slots().started(),
                        [this](uint32_t group) { return !run_.slots()[group].own_loop(); });
}

bool RunEvaluation::HasWriter() const {
  if (checkpoints_.writer() >= run_.slots().size()) return false;
  const Slot& slot = run_.slots()[checkpoints_.writer()];
  if (run_.LeavesOut(slot.group())) return false;
  if (!slot.waiting()) return !slot.own_loop();
  // It is formed before the run can end (Machine::Settle), unless it must still wait.
  if (planner_.IsSearching(run_.id())) return true;
  if (cluster_.now() >= slot.blocked_until()) return false;
  const auto& idle = cluster_.members().idle();
  return absl::c_any_of(
      WorkersByDevice(run_, cluster_.members(), {idle.begin(), idle.end()}),
      [this](const auto& workers) { return workers.size() >= RanksPerGroup(run_.spec()); });
}

bool RunEvaluation::Evaluates(const Slot& slot) const {
  return !slot.own_loop() || run_.spec().model().opaque().test_samples() > 0;
}

bool RunEvaluation::Assign(const Slot& slot) {
  if (!Evaluates(slot) || !AssignPart(*record_.mutable_evaluating(), slot.group())) return false;
  stored_.Save();
  return true;
}

void RunEvaluation::Free(const Slot& slot) {
  if (record_.has_evaluating() && FreePart(*record_.mutable_evaluating(), slot.group())) {
    stored_.Save();
  }
}

}  // namespace cadre
