// Evaluation of versions, and the last checkpoint, for which the end of a run waits. Part of Run.
//
// When the step of a commit reaches the next evaluation, the test split is divided among the groups
// that adopt the version; each evaluates its part before it continues training. There is at most
// one evaluation at a time. Usually all parts arrive before the next one is due; if a group is
// lost, its part is free until a group starts from that version, and a newer evaluation supersedes
// the old one, whose result then covers fewer samples. Only at the end of a run is every part
// required, so free parts are assigned to groups that have finished their own.
#include "coordinator/run/run.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/digest.h"
#include "coordinator/run/evaluation.h"

namespace cadre {

// The caller saves the run.
void Run::BeginEvaluation(std::vector<uint32_t> groups) {
  v1::RunRecord& record = record_;
  std::erase_if(groups, [this](uint32_t group) { return !Evaluates(slots_[group]); });
  *record.mutable_evaluating() =
      CutTestSplit(record.version(), record.step(), record.test_samples(), groups);
  record.set_next_evaluation(NextEvaluation(record, record.step()));
}

void Run::OnEvaluated(const Member& member, const v1::Evaluated& evaluated) {
  v1::RunRecord& record = record_;
  if (!record.has_evaluating()) return;
  Slot& slot = slots_[evaluated.place().group()];
  // Every sample has at least one label.
  if (evaluated.begin() > evaluated.end() ||
      evaluated.labels() < evaluated.end() - evaluated.begin() ||
      evaluated.correct() > evaluated.labels()) {
    cluster_.Refuse(member.connection, v1::REFUSAL_MALFORMED,
                    "more correct answers than labels, or fewer labels than samples");
    return;
  }
  // Members report such a model as diverged instead (FAILURE_CAUSE_DIVERGED).
  if (!std::isfinite(evaluated.loss_sum())) {
    cluster_.Refuse(member.connection, v1::REFUSAL_MALFORMED, "a test loss that is not finite");
    return;
  }
  // A digest of 0 means none: the group has sent it in Adopted.
  if (averages() && evaluated.version() == record.version() && evaluated.digest() != 0 &&
      evaluated.digest() != record.digest()) {
    cluster_.CountRefusal(v1::REFUSAL_WRONG_DIGEST);
    Fence(slot,
          absl::StrCat("it evaluated a model with digest ", DigestHex(evaluated.digest()),
                       " as version ", evaluated.version()),
          v1::FAILURE_CAUSE_DIGEST);
    return;
  }
  if (!RecordPart(*record.mutable_evaluating(), evaluated)) return;
  if (!averages()) record.set_digest(evaluated.digest());
  Save();
  if (IsComplete(record.evaluating())) FinishEvaluation();
}

// The finished parts become the run's result; the run ends if its stop rule is met.
void Run::FinishEvaluation() {
  v1::RunRecord& record = record_;
  const v1::EvaluationResult result = ResultOf(record.evaluating());
  const bool complete = IsComplete(record.evaluating());
  // The run may end now, but not without one of its shards, and not before the programs have its
  // last version and its last checkpoint is written.
  if (complete && (!shards_.lost().empty() || AwaitsPrograms() || AwaitsCheckpoint())) return;
  if (result.samples() > 0) {
    *record.mutable_test() = result;
    record.set_evaluation_seconds(record.evaluation_seconds() + result.seconds());
    history_.Add(result, cluster_.now(), cluster_.out());
    cluster_.ReportRun(
        v1::EVENT_KIND_EVALUATED, id(),
        absl::StrFormat("test accuracy %.4f at step %d", result.accuracy(), result.step()));
  }
  record.clear_evaluating();
  Save();
  if (!complete) return;
  const bool newest = result.version() == record.version() && result.step() == record.step();
  if (record.state() == v1::RUN_STATE_FINISHING && newest) {
    End(v1::RUN_STATE_DONE, "");
  } else if (newest && TargetReached(record) && !committing()) {
    End(v1::RUN_STATE_DONE, absl::StrCat("test accuracy ", result.accuracy(), " reached"));
  }
}

bool Run::AwaitsPrograms() const {
  if (record_.state() != v1::RUN_STATE_FINISHING) return false;
  return std::any_of(slots_.started().begin(), slots_.started().end(), [this](uint32_t group) {
    const Slot& slot = slots_[group];
    return HasOwnLoop(slot) && slot.record().at_end() && slot.version < record_.version();
  });
}

void Run::OnCheckpointed(const Member& member, const v1::Checkpointed& report) {
  if (!checkpoints_.Writes() || report.place().group() != 0) {
    cluster_.Refuse(member.connection, v1::REFUSAL_MALFORMED,
                    "only group 0 of a run with checkpoint.directory writes checkpoints");
    return;
  }
  const std::optional<std::string> text = checkpoints_.Record(member, report);
  if (!text.has_value()) return;
  if (!text->empty()) cluster_.ReportRun(v1::EVENT_KIND_CHECKPOINT, id(), *text);
  Save();
  if (record_.has_evaluating() && IsComplete(record_.evaluating())) FinishEvaluation();
}

bool Run::AwaitsCheckpoint() const {
  const Slot& slot = slots_[0];
  if (!checkpoints_.LacksLast()) return false;
  if (!slot.waiting()) return !HasOwnLoop(slot);
  // It is formed before the run can end (Machine::SettleOnce), unless it must still wait.
  if (planner_.IsSearching(id())) return true;
  if (cluster_.now() >= slot.blocked_until()) return false;
  const auto& idle = cluster_.members().idle();
  return absl::c_any_of(GroupByDevice({idle.begin(), idle.end()}), [this](const auto& workers) {
    return workers.size() >= RanksPerGroup(spec());
  });
}

// At the end of the run, parts of lost groups are assigned to groups that have finished their own.
void Run::AssignFreeParts() {
  if (!averages() || record_.state() != v1::RUN_STATE_FINISHING || !record_.has_evaluating()) {
    return;
  }
  for (const uint32_t group : slots_.started()) {
    if (!HasFreePart(record_.evaluating())) return;
    Slot& slot = slots_[group];
    if (!slot.record().at_end() || !Evaluates(slot)) continue;
    if (!AssignPart(*record_.mutable_evaluating(), slot.group())) continue;
    Save();
    SendDecision(slot, record_.version());
  }
}

void Run::ResendPart(Slot& slot) {
  if (!averages() || record_.state() != v1::RUN_STATE_FINISHING || !slot.record().at_end()) return;
  if (AssignedPart(record_.evaluating(), slot.group()) == nullptr) return;
  SendDecision(slot, record_.version());
}

}  // namespace cadre
