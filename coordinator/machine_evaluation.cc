// Evaluation of versions. Part of Machine.
//
// When the step of a commit crosses an evaluation epoch, the test split is divided among the groups
// that adopt the version; each evaluates its part before it continues training. There is at most
// one evaluation at a time. Usually all parts arrive before the next one is due; if a group is
// lost, its part is free until a group starts from that version, and a newer evaluation supersedes
// the old one, whose result then covers fewer samples. Only at the end of a run is every part
// required, so free parts are assigned to groups that have finished their own.
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "coordinator/evaluation.h"
#include "coordinator/machine.h"

namespace cadre {

// The caller saves the run.
void Machine::BeginEvaluation(Run& run, const std::vector<uint32_t>& groups) {
  v1::RunRecord& record = run.record;
  *record.mutable_evaluating() =
      CutTestSplit(record.version(), record.step(), record.test_samples(), groups);
  record.set_next_evaluation_epoch(EvaluationEpochAfter(record, record.step()));
}

void Machine::OnEvaluated(Member& member, const v1::Evaluated& evaluated) {
  Run* const run = RunAtLead(member, evaluated.place());
  if (run == nullptr || !run->record.has_evaluating()) return;
  v1::RunRecord& record = run->record;
  Slot& slot = run->slots[evaluated.place().group()];
  // Every sample has at least one label.
  if (evaluated.begin() > evaluated.end() ||
      evaluated.labels() < evaluated.end() - evaluated.begin() ||
      evaluated.correct() > evaluated.labels()) {
    Refuse(member.connection, v1::REFUSAL_MALFORMED,
           "more correct answers than labels, or fewer labels than samples");
    return;
  }
  // A digest of 0 means none: the group has sent it in Adopted.
  if (run->averages() && evaluated.version() == record.version() && evaluated.digest() != 0 &&
      evaluated.digest() != record.digest()) {
    CountRefusal(v1::REFUSAL_WRONG_DIGEST);
    Fence(*run, slot,
          absl::StrCat("it evaluated a model with digest ", DigestHex(evaluated.digest()),
                       " as version ", evaluated.version()),
          Ending::kFailed);
    return;
  }
  if (!RecordPart(*record.mutable_evaluating(), evaluated)) return;
  if (!run->averages()) record.set_digest(evaluated.digest());
  Save(*run);
  if (IsComplete(record.evaluating())) FinishEvaluation(*run);
}

// The finished parts become the run's result; the run ends if its stop rule is met.
void Machine::FinishEvaluation(Run& run) {
  v1::RunRecord& record = run.record;
  const v1::EvaluationResult result = ResultOf(record.evaluating());
  const bool complete = IsComplete(record.evaluating());
  if (result.samples() > 0) *record.mutable_test() = result;
  record.clear_evaluating();
  Save(run);
  if (!complete) return;
  const bool newest = result.version() == record.version() && result.step() == record.step();
  if (record.state() == v1::RUN_STATE_FINISHING && newest) {
    EndRun(run, v1::RUN_STATE_DONE, "");
  } else if (newest && TargetReached(record) && !run.committing()) {
    EndRun(run, v1::RUN_STATE_DONE, absl::StrCat("test accuracy ", result.accuracy(), " reached"));
  }
}

// At the end of the run, parts of lost groups are assigned to groups that have finished their own.
void Machine::AssignFreeParts(Run& run) {
  if (!run.averages() || run.record.state() != v1::RUN_STATE_FINISHING ||
      !run.record.has_evaluating()) {
    return;
  }
  for (Slot& slot : run.slots) {
    if (!slot.started() || !slot.record().at_end()) continue;
    if (!AssignPart(*run.record.mutable_evaluating(), slot.group())) continue;
    Save(run);
    SendDecision(run, slot, run.record.version());
  }
}

void Machine::ResendPart(Run& run, Slot& slot) {
  if (!run.averages() || run.record.state() != v1::RUN_STATE_FINISHING || !slot.record().at_end())
    return;
  if (AssignedPart(run.record.evaluating(), slot.group()) == nullptr) return;
  SendDecision(run, slot, run.record.version());
}

}  // namespace cadre
