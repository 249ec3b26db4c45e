// Contributions, commits and decisions. Part of Machine.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "coordinator/evaluation.h"
#include "coordinator/keys.h"
#include "coordinator/machine.h"
#include "coordinator/run_discrepancy.h"

namespace cadre {

void Machine::OnProgress(Member& member, const v1::Progress& progress) {
  Job* const job = PlacedLead(member, progress.place());
  if (job != nullptr) job->slots[progress.place().group()].progress = progress;
}

void Machine::OnContributed(Member& member, const v1::Contributed& contributed) {
  Job* const job = PlacedLead(member, contributed.place());
  if (job == nullptr) return;
  Slot& slot = job->slots[contributed.place().group()];
  if (!slot.started()) {
    Refuse(member.connection, v1::REFUSAL_OUT_OF_ORDER, "Contributed came before Start");
    return;
  }
  CountBytes(*job, contributed);
  slot.progress.set_solo_steps(0);
  slot.progress.set_step(std::max(slot.progress.step(), contributed.step()));
  slot.progress.set_loss(contributed.loss());
  if (const std::string wrong = CheckContributed(*job, contributed); !wrong.empty()) {
    RefuseContribution(*job, slot, contributed, v1::REFUSAL_MALFORMED);
  } else if (job->averages()) {
    OnAveraged(*job, slot, contributed);
  } else {
    OnBoundary(*job, slot, contributed);
  }
}

std::string Machine::CheckContributed(const Job& job, const v1::Contributed& contributed) {
  const uint32_t total = TotalSteps(job.record);
  if (contributed.round() == 0) return "rounds begin at 1";
  if (contributed.samples() == 0) return "a contribution without samples has no weight";
  if (contributed.step() == 0) return "no step was taken";
  if (total > 0 && contributed.step() > total) return "more steps than the run has";
  const bool newest = job.averages() && contributed.round() == job.record.version() + 1 &&
                      contributed.base_version() == job.record.version();
  if (newest && contributed.step() <= job.record.step()) return "no step since the version";
  return "";
}

void Machine::CountBytes(Job& job, const v1::Contributed& contributed) {
  Slot& slot = job.slots[contributed.place().group()];
  if (contributed.payload_bytes() == 0 && contributed.message_bytes() == 0) return;
  if (!slot.CountRound(contributed.round())) return;
  job.record.set_payload_bytes(job.record.payload_bytes() + contributed.payload_bytes());
  job.record.set_message_bytes(job.record.message_bytes() + contributed.message_bytes());
  Save(job);
  Save(slot);
}

void Machine::OnAveraged(Job& job, Slot& slot, const v1::Contributed& contributed) {
  const uint32_t version = job.record.version();
  const uint32_t round = contributed.round();
  const bool answered = round == version && job.InLastCommit(slot.group());
  if (answered) {  // said again: the decision was lost
    SendDecision(job, slot, round);
  } else if (round <= version || job.record.state() == v1::FINISHING) {
    if (round == version) job.round.NoteLate(now_);
    RefuseContribution(job, slot, contributed, v1::REFUSAL_CLOSED_ROUND);
  } else if (round != version + 1 || contributed.base_version() != version) {
    RefuseContribution(job, slot, contributed, v1::REFUSAL_WRONG_BASE);
  } else if (!job.committing()) {
    slot.unanswered = round;
    job.round.Add(contributed, slot.ranks(), now_);
  } else if (job.InClosing(slot.group())) {
    slot.unanswered = round;  // the decision comes with the commit
  } else {
    if (slot.refused_round != round) job.round.NoteLate(now_);
    RefuseContribution(job, slot, contributed, v1::REFUSAL_CLOSED_ROUND);
  }
}

// The group is told which version to adopt; while a commit is under way, that is the one it makes.
void Machine::RefuseContribution(Job& job, Slot& slot, const v1::Contributed& contributed,
                                 v1::Refusal refusal) {
  if (slot.refused_round != contributed.round()) CountRefusal(refusal);
  slot.refused_round = contributed.round();
  slot.refusal = refusal;
  slot.unanswered = contributed.round();
  if (!job.committing()) SendDecision(job, slot, contributed.round());
}

// A run that never averages: its group stops here only to be evaluated, or to end.
void Machine::OnBoundary(Job& job, Slot& slot, const v1::Contributed& contributed) {
  if (contributed.step() > job.record.step()) {
    job.record.set_step(contributed.step());
    job.record.set_loss(contributed.loss());
    job.record.set_samples(uint64_t{contributed.step() - FirstStep(job.spec())} *
                           job.spec().batch_per_group());
    const bool due = EvaluationDue(job.record, contributed.step());
    if (job.record.has_evaluating()) FinishEvaluation(job);
    if (!job.live()) return;
    if (AtEnd(job.record, contributed.step())) job.record.set_state(v1::FINISHING);
    if (due || job.record.state() == v1::FINISHING) BeginEvaluation(job, {slot.group()});
    Save(job);
  }
  SendDecision(job, slot, contributed.round());
  if (job.record.has_evaluating() && IsComplete(job.record.evaluating())) FinishEvaluation(job);
}

void Machine::MaybeClose(Job& job) {
  if (!job.averages() || job.committing() || job.record.state() != v1::RUNNING) return;
  if (!job.round.MayClose(job.LiveGroups(), now_)) return;
  v1::CommitRecord commit = job.round.Close(job.id(), now_);
  const auto shards = static_cast<uint32_t>(job.record.shards_size());
  for (uint32_t shard = 0; shard < shards; ++shard) commit.add_digests()->set_shard(shard);
  out_.Put(CommitKey(job.id(), commit.round()), commit);
  job.closing = std::move(commit);
  for (uint32_t shard = 0; shard < shards; ++shard) SendApply(job, shard);
}

void Machine::SendApply(const Job& job, uint32_t shard) {
  const Member* const member = members_.Aggregator(job.record.shards(static_cast<int>(shard)));
  if (member == nullptr || job.closing->digests(static_cast<int>(shard)).applied()) return;
  v1::CoordinatorMessage message;
  v1::Apply& apply = *message.mutable_apply();
  apply.set_run(job.id());
  apply.set_shard(shard);
  apply.set_round(job.closing->round());
  *apply.mutable_participants() = job.closing->participants();
  SendTo(member->id(), message);
}

void Machine::OnApplied(Member& member, const v1::Applied& applied) {
  Job* const job = FindJob(applied.run());
  if (job == nullptr) {
    CountRefusal(v1::REFUSAL_UNKNOWN_RUN);
    return;
  }
  if (!Owns(member, *job, applied.shard())) {
    CountRefusal(v1::REFUSAL_MALFORMED);
    return;
  }
  // Said again, or of a round that is done.
  if (!job->committing() || applied.round() != job->closing->round()) return;
  if (!applied.error().empty()) {
    EndRun(*job, v1::FAILED,
           absl::StrCat("aggregator ", member.record.name(), " cannot apply round ",
                        applied.round(), " to shard ", applied.shard(), ": ", applied.error()));
    return;
  }
  v1::ShardDigest& digest = *job->closing->mutable_digests(static_cast<int>(applied.shard()));
  if (digest.applied()) return;
  digest.set_applied(true);
  digest.set_digest(applied.digest());
  digest.set_spread(applied.spread());
  digest.set_moved(applied.moved());
  const bool all = std::all_of(job->closing->digests().begin(), job->closing->digests().end(),
                               [](const v1::ShardDigest& shard) { return shard.applied(); });
  if (all) {
    FinishCommit(*job);
  } else {
    out_.Put(CommitKey(job->id(), applied.round()), *job->closing);
  }
}

void Machine::RecordVersion(Job& job, const v1::CommitRecord& commit) {
  v1::RunRecord& record = job.record;
  job.previous_known = true;
  job.previous_version = record.version();
  job.previous_digest = record.digest();
  record.set_version(commit.round());
  record.set_step(commit.step());
  record.set_digest(commit.digest());
  record.set_samples(record.samples() + commit.samples());
  record.set_loss(commit.loss());
  record.set_rounds_committed(record.rounds_committed() + 1);
  record.set_group_failures(0);
  CountDiscrepancy(commit, record);
  job.last = commit;
  job.round.Open(commit.round() + 1);
  out_.Put(CommitKey(job.id(), commit.round()), commit);
  Count("rounds_committed");
}

void Machine::FinishCommit(Job& job) {
  v1::CommitRecord commit = *std::exchange(job.closing, std::nullopt);
  commit.set_committed(true);
  commit.set_digest(SumOfDigests(commit));
  RecordVersion(job, commit);
  const bool due = EvaluationDue(job.record, commit.step());
  // What is still missing of an older evaluation will not come: its version is history.
  const bool superseded = job.record.has_evaluating() && (due || AtEnd(job.record, commit.step()));
  if (superseded) FinishEvaluation(job);
  if (AtEnd(job.record, commit.step())) job.record.set_state(v1::FINISHING);
  // A participant waits for its answer also when, after a restart, it has not said so again yet.
  std::vector<uint32_t> adopting;
  for (Slot& slot : job.slots) {
    if (!slot.started() || (slot.unanswered == 0 && !job.InLastCommit(slot.group()))) continue;
    if (slot.unanswered == 0) slot.unanswered = commit.round();
    if (!GrowInstead(job, slot) && !ReplanInstead(job, slot)) adopting.push_back(slot.group());
  }
  if (due || job.record.state() == v1::FINISHING) BeginEvaluation(job, adopting);
  Save(job);
  for (uint32_t group : adopting) SendDecision(job, job.slots[group], job.slots[group].unanswered);
  if (job.record.has_evaluating() && IsComplete(job.record.evaluating())) FinishEvaluation(job);
}

void Machine::SendDecision(Job& job, Slot& slot, uint32_t round) {
  const v1::RunRecord& record = job.record;
  v1::CoordinatorMessage message;
  v1::Decision& decision = *message.mutable_decision();
  *decision.mutable_place() = slot.Place(0);
  decision.set_round(round);
  decision.set_step(record.step());
  decision.set_included(true);
  if (job.averages()) {
    decision.set_adopt(true);
    decision.set_version(record.version());
    decision.set_digest(record.digest());
    decision.set_included(round == record.version() && job.InLastCommit(slot.group()));
  }
  if (round == slot.refused_round) {
    decision.set_included(false);
    decision.set_refusal(slot.refusal);
  }
  if (record.has_evaluating() && record.evaluating().version() == record.version() &&
      record.evaluating().step() == record.step()) {
    if (GivePart(*job.record.mutable_evaluating(), slot.group())) Save(job);
    if (const v1::EvaluationPart* part = PartOf(record.evaluating(), slot.group())) {
      decision.set_evaluate_begin(part->begin());
      decision.set_evaluate_end(part->end());
    }
  }
  if (record.state() == v1::FINISHING) {
    if (slot.SetAtEnd()) Save(slot);
  } else {
    decision.set_next_step(BoundaryAfter(record, record.step()));
  }
  slot.unanswered = 0;
  SendTo(slot.record().members(0), message);
}

// A short group takes the workers that are idle at a commit, when it holds nothing that is not
// committed: it is released and its slot forms anew.
bool Machine::GrowInstead(Job& job, Slot& slot) {
  const size_t wanted = RanksPerGroup(job.spec());
  if (slot.ranks() >= wanted || job.record.state() != v1::RUNNING) return false;
  const v1::ComputeDevice kind = KindOf(slot);
  size_t promised = 0;
  for (const auto& [number, other] : jobs_) {
    if (!other.live() || number > RunNumber(job.id())) continue;
    // What wants another kind takes none of these.
    const v1::ComputeDevice taken = DeviceWanted(other.spec());
    if (taken != v1::COMPUTE_DEVICE_UNSPECIFIED && taken != kind) continue;
    for (const Slot& waiting : other.slots) {
      promised += waiting.waiting() ? RanksPerGroup(other.spec()) : 0;
    }
  }
  const size_t idle = IdleOf(kind);
  if (idle <= promised) return false;
  size_t ranks = std::min(wanted, slot.ranks() + idle - promised);
  while (ranks > slot.ranks() && !options_.plan(job.spec(), static_cast<int>(ranks)).ok()) --ranks;
  if (ranks <= slot.ranks()) return false;
  Count("groups_grown");
  Fence(job, slot, "the group grows: idle workers are there", Ending::kOrderly);
  slot.StopWaiting();
  return true;
}

void Machine::OnAdopted(Member& member, const v1::Adopted& adopted) {
  Job* const job = PlacedLead(member, adopted.place());
  if (job == nullptr || !job->averages()) return;
  Slot& slot = job->slots[adopted.place().group()];
  if (slot.CountVersion(adopted.version())) {
    job->record.set_payload_bytes(job->record.payload_bytes() + adopted.payload_bytes());
    job->record.set_message_bytes(job->record.message_bytes() + adopted.message_bytes());
    Save(*job);
    Save(slot);
  }
  slot.version = std::max(slot.version, adopted.version());
  uint64_t committed = job->record.digest();
  if (adopted.version() != job->record.version()) {
    if (!job->previous_known || adopted.version() != job->previous_version) return;
    committed = job->previous_digest;
  }
  if (adopted.digest() == committed) return;
  CountRefusal(v1::REFUSAL_WRONG_DIGEST);
  Fence(*job, slot,
        absl::StrCat("it adopted version ", adopted.version(), " with digest ",
                     DigestHex(adopted.digest()), ", but ", DigestHex(committed), " was committed"),
        Ending::kFailed);
}

}  // namespace cadre
