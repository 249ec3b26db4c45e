// The round protocol: contributions, commits and decisions. Part of Machine.
//
// Groups train independently for every_steps steps (local SGD between groups, synchronous SGD
// inside; Lee et al., IEEE Big Data 2020), then average their models on the aggregators. Round r
// takes contributions computed from version r - 1 and produces version r:
//
//   rank 0 -> Contributed(r)      after all ranks of the group have staged their slices durably
//   quorum + grace window         Round decides when the round closes (round.h)
//   write CommitRecord(r)         the participants are decided; `closing` is set
//   Apply(r) -> every shard       idempotent; answered by Applied(digest)
//   last Applied                  FinishCommit: version r, evaluation, end of the run
//   Decision -> every participant the version to adopt and the next boundary
//
// A group that misses the round gets a Decision with a refusal and adopts version r as well: its
// local steps since r - 1 are lost, so a slow group costs its own work but never blocks the others.
//
// Invariants:
//   - The participants of a round are durable before the first Apply is sent, and never change.
//   - A version is committed at most once, with one digest; versions increase by one.
//   - A group contributes to a round at most once per generation. Fencing a generation removes its
//     contribution from the open round, but not from a closing one: its staged data is durable.
//   - `unanswered` is set from Contributed to Decision, so every contribution is answered once.
//
// A crash of the coordinator
//   - before the CommitRecord is durable: the round is open again. Groups send Contributed again
//     after they reconnect; the new round may have other participants.
//   - after it: `closing` is restored; Apply is sent again when the shards are open.
//   - after the last Applied was stored: the version is committed; participants send Contributed
//     again and are answered from the last commit.
// A crash of an aggregator delays the commit until its shards are open again; it holds either
// version r - 1 with all staged slices or version r. A crash of a worker fences its generation.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "coordinator/evaluation.h"
#include "coordinator/keys.h"
#include "coordinator/machine.h"

namespace cadre {

void Machine::OnProgress(Member& member, const v1::Progress& progress) {
  Run* const run = RunAtLead(member, progress.place());
  if (run != nullptr) run->slots[progress.place().group()].progress = progress;
}

void Machine::OnContributed(Member& member, const v1::Contributed& contributed) {
  Run* const run = RunAtLead(member, contributed.place());
  if (run == nullptr) return;
  Slot& slot = run->slots[contributed.place().group()];
  if (!slot.started()) {
    Refuse(member.connection, v1::REFUSAL_OUT_OF_ORDER, "Contributed was sent before Start");
    return;
  }
  CountBytes(*run, contributed);
  slot.progress.set_solo_steps(0);
  slot.progress.set_step(std::max(slot.progress.step(), contributed.step()));
  slot.progress.set_loss(contributed.loss());
  if (!IsValidContribution(*run, contributed)) {
    RefuseContribution(*run, slot, contributed, v1::REFUSAL_MALFORMED);
  } else if (run->averages()) {
    OnAveraged(*run, slot, contributed);
  } else {
    OnBoundary(*run, slot, contributed);
  }
}

bool Machine::IsValidContribution(const Run& run, const v1::Contributed& contributed) {
  const uint32_t total = TotalSteps(run.record);
  // A contribution without samples has no weight.
  if (contributed.round() == 0 || contributed.samples() == 0 || contributed.step() == 0) {
    return false;
  }
  if (total > 0 && contributed.step() > total) return false;
  const bool newest = run.averages() && contributed.round() == run.record.version() + 1 &&
                      contributed.base_version() == run.record.version();
  return !newest || contributed.step() > run.record.step();
}

void Machine::CountBytes(Run& run, const v1::Contributed& contributed) {
  Slot& slot = run.slots[contributed.place().group()];
  if (contributed.payload_bytes() == 0 && contributed.message_bytes() == 0) return;
  if (!slot.CountRound(contributed.round())) return;
  run.record.set_payload_bytes(run.record.payload_bytes() + contributed.payload_bytes());
  run.record.set_message_bytes(run.record.message_bytes() + contributed.message_bytes());
  Save(run);
  Save(slot);
}

void Machine::OnAveraged(Run& run, Slot& slot, const v1::Contributed& contributed) {
  const uint32_t version = run.record.version();
  const uint32_t round = contributed.round();
  const bool answered = round == version && run.InLastCommit(slot.group());
  if (answered) {  // a retransmission: the decision was lost
    SendDecision(run, slot, round);
  } else if (round <= version || run.record.state() == v1::RUN_STATE_FINISHING) {
    if (round == version) run.round.NoteLate(now_);
    RefuseContribution(run, slot, contributed, v1::REFUSAL_CLOSED_ROUND);
  } else if (round != version + 1 || contributed.base_version() != version) {
    RefuseContribution(run, slot, contributed, v1::REFUSAL_WRONG_BASE);
  } else if (!run.committing()) {
    slot.unanswered = round;
    run.round.Add(contributed, slot.ranks(), now_);
  } else if (run.InClosing(slot.group())) {
    slot.unanswered = round;  // the decision comes with the commit
  } else {
    if (slot.refused_round != round) run.round.NoteLate(now_);
    RefuseContribution(run, slot, contributed, v1::REFUSAL_CLOSED_ROUND);
  }
}

// The decision names the version to adopt. During a commit this is the version that is being made,
// so the decision is sent when that version exists.
void Machine::RefuseContribution(Run& run, Slot& slot, const v1::Contributed& contributed,
                                 v1::Refusal refusal) {
  if (slot.refused_round != contributed.round()) CountRefusal(refusal);
  slot.refused_round = contributed.round();
  slot.refusal = refusal;
  slot.unanswered = contributed.round();
  if (!run.committing()) SendDecision(run, slot, contributed.round());
}

// In a run that never averages, the group stops here only for an evaluation or at the end.
void Machine::OnBoundary(Run& run, Slot& slot, const v1::Contributed& contributed) {
  if (contributed.step() > run.record.step()) {
    run.record.set_step(contributed.step());
    run.record.set_loss(contributed.loss());
    run.record.set_samples(uint64_t{contributed.step() - FirstStep(run.spec())} *
                           run.spec().batch_per_group());
    const bool due = EvaluationDue(run.record, contributed.step());
    if (run.record.has_evaluating()) FinishEvaluation(run);
    if (!run.live()) return;
    if (AtEnd(run.record, contributed.step())) run.record.set_state(v1::RUN_STATE_FINISHING);
    if (due || run.record.state() == v1::RUN_STATE_FINISHING) BeginEvaluation(run, {slot.group()});
    Save(run);
  }
  SendDecision(run, slot, contributed.round());
  if (run.record.has_evaluating() && IsComplete(run.record.evaluating())) FinishEvaluation(run);
}

void Machine::MaybeClose(Run& run) {
  if (!run.averages() || run.committing() || run.record.state() != v1::RUN_STATE_RUNNING) return;
  if (!run.round.MayClose(run.LiveGroups(), now_)) return;
  v1::CommitRecord commit = run.round.Close(run.id(), now_);
  const int shards = run.record.shards_size();
  for (int shard = 0; shard < shards; ++shard) commit.add_digests()->set_shard(shard);
  out_.Put(CommitKey(run.id(), commit.round()), commit);
  run.closing = std::move(commit);
  for (int shard = 0; shard < shards; ++shard) SendApply(run, shard);
}

void Machine::SendApply(const Run& run, uint32_t shard) {
  const Member* const member = members_.Aggregator(run.record.shards(shard));
  if (member == nullptr || run.closing->digests(shard).applied()) return;
  v1::CoordinatorMessage message;
  v1::Apply& apply = *message.mutable_apply();
  apply.set_run(run.id());
  apply.set_shard(shard);
  apply.set_round(run.closing->round());
  *apply.mutable_participants() = run.closing->participants();
  SendTo(member->id(), message);
}

void Machine::OnApplied(Member& member, const v1::Applied& applied) {
  Run* const run = FindRun(applied.run());
  if (run == nullptr) {
    CountRefusal(v1::REFUSAL_UNKNOWN_RUN);
    return;
  }
  if (!Owns(member, *run, applied.shard())) {
    CountRefusal(v1::REFUSAL_MALFORMED);
    return;
  }
  // A duplicate, or an answer for an earlier round.
  if (!run->committing() || applied.round() != run->closing->round()) return;
  if (!applied.error().empty()) {
    EndRun(*run, v1::RUN_STATE_FAILED,
           absl::StrCat("aggregator ", member.record.name(), " cannot apply round ",
                        applied.round(), " to shard ", applied.shard(), ": ", applied.error()));
    return;
  }
  v1::ShardDigest& digest = *run->closing->mutable_digests(applied.shard());
  if (digest.applied()) return;
  digest.set_applied(true);
  digest.set_digest(applied.digest());
  digest.set_variance_between_groups(applied.variance_between_groups());
  digest.set_displacement(applied.displacement());
  const bool all = std::all_of(run->closing->digests().begin(), run->closing->digests().end(),
                               [](const v1::ShardDigest& shard) { return shard.applied(); });
  if (all) {
    FinishCommit(*run);
  } else {
    out_.Put(CommitKey(run->id(), applied.round()), *run->closing);
  }
}

void Machine::RecordVersion(Run& run, const v1::CommitRecord& commit) {
  v1::RunRecord& record = run.record;
  run.previous_known = true;
  run.previous_version = record.version();
  run.previous_digest = record.digest();
  record.set_version(commit.round());
  record.set_step(commit.step());
  record.set_digest(commit.digest());
  record.set_samples(record.samples() + commit.samples());
  record.set_loss(commit.loss());
  record.set_rounds_committed(record.rounds_committed() + 1);
  record.set_group_failures(0);
  CountDiscrepancy(commit, record);
  run.last = commit;
  run.round.Open(commit.round() + 1);
  out_.Put(CommitKey(run.id(), commit.round()), commit);
  Count("rounds_committed");
}

void Machine::FinishCommit(Run& run) {
  v1::CommitRecord commit = *std::exchange(run.closing, std::nullopt);
  commit.set_committed(true);
  commit.set_digest(SumOfDigests(commit));
  RecordVersion(run, commit);
  const bool due = EvaluationDue(run.record, commit.step());
  // The missing parts of an older evaluation will not arrive: its version is superseded.
  const bool superseded = run.record.has_evaluating() && (due || AtEnd(run.record, commit.step()));
  if (superseded) FinishEvaluation(run);
  if (AtEnd(run.record, commit.step())) run.record.set_state(v1::RUN_STATE_FINISHING);
  // After a restart, a participant waits for its decision even before it has sent Contributed
  // again.
  std::vector<uint32_t> adopting;
  for (Slot& slot : run.slots) {
    if (!slot.started() || (slot.unanswered == 0 && !run.InLastCommit(slot.group()))) continue;
    if (slot.unanswered == 0) slot.unanswered = commit.round();
    if (!MaybeGrow(run, slot) && !MaybeReplan(run, slot)) adopting.push_back(slot.group());
  }
  if (due || run.record.state() == v1::RUN_STATE_FINISHING) BeginEvaluation(run, adopting);
  Save(run);
  for (uint32_t group : adopting) SendDecision(run, run.slots[group], run.slots[group].unanswered);
  if (run.record.has_evaluating() && IsComplete(run.record.evaluating())) FinishEvaluation(run);
}

void Machine::SendDecision(Run& run, Slot& slot, uint32_t round) {
  const v1::RunRecord& record = run.record;
  v1::CoordinatorMessage message;
  v1::Decision& decision = *message.mutable_decision();
  *decision.mutable_place() = slot.Place(0);
  decision.set_round(round);
  decision.set_step(record.step());
  decision.set_included(true);
  if (run.averages()) {
    decision.set_adopt(true);
    decision.set_version(record.version());
    decision.set_digest(record.digest());
    decision.set_included(round == record.version() && run.InLastCommit(slot.group()));
  }
  if (round == slot.refused_round) {
    decision.set_included(false);
    decision.set_refusal(slot.refusal);
  }
  if (record.has_evaluating() && record.evaluating().version() == record.version() &&
      record.evaluating().step() == record.step()) {
    if (AssignPart(*run.record.mutable_evaluating(), slot.group())) Save(run);
    if (const v1::EvaluationPart* part = AssignedPart(record.evaluating(), slot.group())) {
      decision.set_evaluate_begin(part->begin());
      decision.set_evaluate_end(part->end());
    }
  }
  if (record.state() == v1::RUN_STATE_FINISHING) {
    if (slot.SetAtEnd()) Save(slot);
  } else {
    decision.set_next_step(BoundaryAfter(record, record.step()));
  }
  slot.unanswered = 0;
  SendTo(slot.record().members(0), message);
}

// A group with fewer ranks than requested grows at a commit, when it holds no uncommitted state: it
// is released, and its slot is re-formed with workers that are idle.
bool Machine::MaybeGrow(Run& run, Slot& slot) {
  const size_t requested = RanksPerGroup(run.spec());
  if (slot.ranks() >= requested || run.record.state() != v1::RUN_STATE_RUNNING) return false;
  const v1::Cluster::Device kind = DeviceKindOf(slot);
  size_t reserved = 0;
  for (const auto& [number, other] : runs_) {
    if (!other.live() || number > RunNumber(run.id())) continue;
    // Slots with another device kind need none of these workers.
    const v1::Cluster::Device device = RequestedDevice(other.spec());
    if (device != v1::Cluster::DEVICE_UNSPECIFIED && device != kind) continue;
    for (const Slot& waiting : other.slots) {
      reserved += waiting.waiting() ? RanksPerGroup(other.spec()) : 0;
    }
  }
  const size_t idle = IdleWorkersOf(kind);
  if (idle <= reserved) return false;
  size_t ranks = std::min(requested, slot.ranks() + idle - reserved);
  while (ranks > slot.ranks() && !options_.plan(run.spec(), ranks).ok()) --ranks;
  if (ranks <= slot.ranks()) return false;
  Count("groups_grown");
  Fence(run, slot, "the group grows: workers are idle", Ending::kReleased);
  slot.EndWait();
  return true;
}

void Machine::OnAdopted(Member& member, const v1::Adopted& adopted) {
  Run* const run = RunAtLead(member, adopted.place());
  if (run == nullptr || !run->averages()) return;
  Slot& slot = run->slots[adopted.place().group()];
  if (slot.CountVersion(adopted.version())) {
    run->record.set_payload_bytes(run->record.payload_bytes() + adopted.payload_bytes());
    run->record.set_message_bytes(run->record.message_bytes() + adopted.message_bytes());
    Save(*run);
    Save(slot);
  }
  slot.version = std::max(slot.version, adopted.version());
  uint64_t committed = run->record.digest();
  if (adopted.version() != run->record.version()) {
    if (!run->previous_known || adopted.version() != run->previous_version) return;
    committed = run->previous_digest;
  }
  if (adopted.digest() == committed) return;
  CountRefusal(v1::REFUSAL_WRONG_DIGEST);
  Fence(*run, slot,
        absl::StrCat("it adopted version ", adopted.version(), " with digest ",
                     DigestHex(adopted.digest()), ", but ", DigestHex(committed), " was committed"),
        Ending::kFailed);
}

}  // namespace cadre
