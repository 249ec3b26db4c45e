// Evaluation of versions. Part of Machine.
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "coordinator/evaluation.h"
#include "coordinator/machine.h"

namespace cadre {

// The caller saves the run.
void Machine::BeginEvaluation(Job& job, const std::vector<uint32_t>& groups) {
  v1::RunRecord& record = job.record;
  *record.mutable_evaluating() =
      CutTestSplit(record.version(), record.step(), record.test_samples(), groups);
  record.set_next_evaluation_epoch(EvaluationEpochAfter(record, record.step()));
}

void Machine::OnEvaluated(Member& member, const v1::Evaluated& evaluated) {
  Job* const job = PlacedLead(member, evaluated.place());
  if (job == nullptr || !job->record.has_evaluating()) return;
  v1::RunRecord& record = job->record;
  Slot& slot = job->slots[evaluated.place().group()];
  // Every sample has a label at least.
  if (evaluated.begin() > evaluated.end() ||
      evaluated.labels() < evaluated.end() - evaluated.begin() ||
      evaluated.correct() > evaluated.labels()) {
    Refuse(member.connection, v1::REFUSAL_MALFORMED,
           "more correct answers than labels, or fewer labels than samples");
    return;
  }
  // A digest of 0 is none: the group has said it in Adopted.
  if (job->averages() && evaluated.version() == record.version() && evaluated.digest() != 0 &&
      evaluated.digest() != record.digest()) {
    CountRefusal(v1::REFUSAL_WRONG_DIGEST);
    Fence(*job, slot,
          absl::StrCat("it evaluated a model with digest ", DigestHex(evaluated.digest()),
                       " as version ", evaluated.version()),
          Ending::kFailed);
    return;
  }
  if (!TakePart(*record.mutable_evaluating(), evaluated)) return;
  if (!job->averages()) record.set_digest(evaluated.digest());
  Save(*job);
  if (IsComplete(record.evaluating())) FinishEvaluation(*job);
}

// What was handed back so far becomes the run's result; the run ends if its stop rule is met.
void Machine::FinishEvaluation(Job& job) {
  v1::RunRecord& record = job.record;
  const v1::EvaluationResult result = ResultOf(record.evaluating());
  const bool complete = IsComplete(record.evaluating());
  if (result.samples() > 0) *record.mutable_test() = result;
  record.clear_evaluating();
  Save(job);
  if (!complete) return;
  const bool newest = result.version() == record.version() && result.step() == record.step();
  if (record.state() == v1::FINISHING && newest) {
    EndRun(job, v1::DONE, "");
  } else if (newest && TargetReached(record) && !job.committing()) {
    EndRun(job, v1::DONE, absl::StrCat("test accuracy ", result.accuracy(), " reached"));
  }
}

// At the end, parts of lost groups go to groups that have done theirs.
void Machine::HandOutParts(Job& job) {
  if (!job.averages() || job.record.state() != v1::FINISHING || !job.record.has_evaluating()) {
    return;
  }
  for (Slot& slot : job.slots) {
    if (!slot.started() || !slot.record().at_end()) continue;
    if (!GivePart(*job.record.mutable_evaluating(), slot.group())) continue;
    Save(job);
    SendDecision(job, slot, job.record.version());
  }
}

void Machine::RepeatPart(Job& job, Slot& slot) {
  if (!job.averages() || job.record.state() != v1::FINISHING || !slot.record().at_end()) return;
  if (PartOf(job.record.evaluating(), slot.group()) == nullptr) return;
  SendDecision(job, slot, job.record.version());
}

}  // namespace cadre
