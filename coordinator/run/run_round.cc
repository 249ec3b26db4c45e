// The round protocol: contributions, commits and decisions. Part of Run.
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
#include "coordinator/run/run.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "base/counted_noun.h"
#include "base/digest.h"
#include "coordinator/run/evaluation.h"
#include "coordinator/run/identical_batches.h"
#include "coordinator/store/keys.h"
#include "model/coding.h"
#include "model/opaque.h"
#include "model/outer_optimizer.h"
#include "model/training_metrics.h"
#include "proto/enum_text.h"

namespace cadre {
namespace {

// Longest pause of a group that loads a version, for which the version is kept.
constexpr absl::Duration kMaxLoadPause = absl::Seconds(10);
// How often the ranks of a group agree on whether one of them leaves: native groups gather their
// weights for it, programs exchange one message. kFirstAgreeSteps: of programs whose steps were not
// measured yet.
constexpr absl::Duration kAgreeEvery = absl::Seconds(10);
constexpr absl::Duration kProgramsAgreeEvery = absl::Seconds(5);
constexpr uint32_t kFirstAgreeSteps = 8;

// Also if there is none.
template <typename From, typename To>
void CopyLoss(const From& from, To& to) {
  to.clear_loss();
  if (from.has_loss()) to.set_loss(from.loss());
}

}  // namespace

void Run::OnContributed(Member& member, const v1::Contributed& contributed) {
  Slot& slot = slots_[contributed.place().group()];
  // Another coordinator, with a newer store, has started the group.
  if (!slot.started()) {
    return FailGroup(member, contributed.place(), v1::FAILURE_CAUSE_UNSPECIFIED,
                     "a contribution arrived before the group was started here");
  }
  // After a restart, groups repeat contributions that are part of the newest version.
  const bool repeated = contributed.round() <= record_.version() && InNewest(slot);
  const bool is_new = slot.CountRound(contributed.round()) && !repeated;
  if (is_new && IsValidContribution(contributed)) {
    slot.NoteStepTime(contributed.train_seconds(),
                      contributed.samples() / std::max(1U, spec().batch_per_group()));
  }
  if (is_new) {
    Count({.payload = contributed.payload_bytes(), .up = contributed.message_bytes()});
  }
  slot.progress.set_solo_steps(0);
  slot.progress.set_step(std::max(slot.progress.step(), contributed.step()));
  if (contributed.has_loss()) slot.progress.set_loss(contributed.loss());
  if (!IsValidContribution(contributed)) {
    RefuseContribution(slot, contributed, v1::REFUSAL_MALFORMED);
  } else if (averages()) {
    OnAveraged(slot, contributed);
  } else {
    OnBoundary(slot, contributed);
  }
}

bool Run::IsValidContribution(const v1::Contributed& contributed) const {
  const uint32_t total = TotalSteps(record_);
  // The first values of the run, before the first step.
  if (BeginsWithGroupValues(spec()) && contributed.round() == 1) {
    return contributed.samples() == 1 && contributed.step() == 0;
  }
  // A contribution without samples has no weight.
  if (contributed.round() == 0 || contributed.samples() == 0 || contributed.step() == 0) {
    return false;
  }
  if (!std::isfinite(contributed.rate()) || contributed.rate() < 0) return false;
  // An older round had another number of total steps if the number of groups has changed since.
  const bool newest = !averages() || (contributed.round() == record_.version() + 1 &&
                                      contributed.base_version() == record_.version());
  if (!newest) return true;
  if (total > 0 && contributed.step() > total) return false;
  return !averages() || contributed.step() > record_.step();
}

void Run::Count(const Traffic& traffic) {
  traffic_.payload += traffic.payload;
  traffic_.up += traffic.up;
  traffic_.down += traffic.down;
  traffic_.exposed_seconds += traffic.exposed_seconds;
  traffic_.transfer_seconds += traffic.transfer_seconds;
}

void Run::RecordBytes() {
  const Traffic traffic = std::exchange(traffic_, {});
  record_.set_payload_bytes(record_.payload_bytes() + traffic.payload);
  record_.set_message_bytes(record_.message_bytes() + traffic.up + traffic.down);
  record_.set_bytes_up(record_.bytes_up() + traffic.up);
  record_.set_exchange_seconds(record_.exchange_seconds() + traffic.exposed_seconds);
  record_.set_transfer_seconds(record_.transfer_seconds() + traffic.transfer_seconds);
}

void Run::OnLoaded(uint32_t group, uint32_t version) {
  const auto load = loading_.find(group);
  if (load != loading_.end() && version >= load->second) loading_.erase(load);
}

void Run::OnAveraged(Slot& slot, const v1::Contributed& contributed) {
  OnLoaded(slot.group(), contributed.base_version());
  const uint32_t version = record_.version();
  const uint32_t round = contributed.round();
  const bool answered = round == version && InNewest(slot);
  if (answered) {  // a retransmission: the decision was lost
    SendDecision(slot, round);
  } else if (round <= version || record_.state() == v1::RUN_STATE_FINISHING) {
    if (round == version && !TakesFirstValues(round)) round_.NoteLate(cluster_.now());
    RefuseContribution(slot, contributed, v1::REFUSAL_CLOSED_ROUND);
  } else if (round != version + 1 || contributed.base_version() != version) {
    RefuseContribution(slot, contributed, v1::REFUSAL_WRONG_BASE);
  } else if (!committing()) {
    slot.unanswered = round;
    if (round_.Add(contributed, slot.ranks(), cluster_.now()) && contributed.leaves()) {
      KeepContribution(contributed, slot.ranks());
    }
  } else if (commits_.InClosing(slot.group(), slot.record().generation())) {
    slot.unanswered = round;  // the decision comes with the commit
  } else {
    if (slot.refused_round != round && !TakesFirstValues(round)) round_.NoteLate(cluster_.now());
    RefuseContribution(slot, contributed, v1::REFUSAL_CLOSED_ROUND);
  }
}

// The group may be gone when the coordinator returns from a restart. The rank of the record is the
// last one of the group.
void Run::KeepContribution(const v1::Contributed& contributed, uint32_t ranks) {
  v1::Contributed& left = *record_.add_left();
  left = contributed;
  left.mutable_place()->set_rank(ranks - 1);
  Save();
}

void Run::RestoreContributions() {
  for (const v1::Contributed& left : record_.left()) {
    v1::Contributed contributed = left;
    contributed.mutable_place()->set_rank(0);
    const uint32_t group = left.place().group();
    if (left.round() != round_.round() || group >= slots_.size()) continue;
    round_.Add(contributed, left.place().rank() + 1, cluster_.now());
    const v1::GroupRecord& record = slots_[group].record();
    if (record.generation() != left.place().generation()) round_.End(group);
  }
}

// The groups that could stage the values again are gone.
void Run::LoseContributions(uint32_t shard) {
  const size_t lost = round_.RemoveLeft();
  if (lost == 0) return;
  record_.clear_left();
  AddWarning(absl::StrCat("round ", round_.round(), " has lost the contributions of ",
                          Counted(static_cast<int64_t>(lost), "group"),
                          " that had left, with shard ", shard));
}

// The decision names the version to adopt. During a commit this is the version that is being made,
// so the decision is sent when that version exists.
void Run::RefuseContribution(Slot& slot, const v1::Contributed& contributed, v1::Refusal refusal) {
  // The run takes its first values from one of its groups; the others are not late.
  const bool is_first =
      refusal == v1::REFUSAL_CLOSED_ROUND && TakesFirstValues(contributed.round());
  if (slot.refused_round != contributed.round() && !is_first) {
    cluster_.CountRefusal(refusal);
    cluster_.ReportGroup(v1::EVENT_KIND_CONTRIBUTION_REFUSED, slot.Place(0),
                         absl::StrCat("the contribution of group ", slot.group(), " to round ",
                                      contributed.round(), " was refused: ", EnumText(refusal)));
  }
  slot.refused_round = contributed.round();
  slot.refusal = refusal;
  slot.unanswered = contributed.round();
  if (!committing()) SendDecision(slot, contributed.round());
}

// In a run that never averages, the group stops here only for an evaluation or at the end.
void Run::OnBoundary(Slot& slot, const v1::Contributed& contributed) {
  if (contributed.step() > record_.step()) {
    record_.set_step(contributed.step());
    CopyLoss(contributed, record_);
    const uint64_t samples_before = record_.samples();
    record_.set_samples(uint64_t{contributed.step() - FirstStep(spec())} *
                        spec().batch_per_group());
    AddMetrics(contributed.metrics(), record_.samples() - samples_before);
    failures_.OnCommit();
    RecordSuccess(slot);
    const bool due = EvaluationDue(record_, contributed.step());
    if (record_.has_evaluating()) FinishEvaluation();
    if (!live()) return;
    if (AtEnd(record_, contributed.step())) record_.set_state(v1::RUN_STATE_FINISHING);
    if (due || record_.state() == v1::RUN_STATE_FINISHING) BeginEvaluation({slot.group()});
    RecordBytes();
    v1::CommitRecord point;
    point.set_rate(contributed.rate());
    AddHistory(point);
    Save();
  }
  SendDecision(slot, contributed.round());
  if (record_.has_evaluating() && IsComplete(record_.evaluating())) FinishEvaluation();
}

// A pull may be slow, but a group that has been away for too long, or has stopped, is not awaited.
bool Run::LoadsOldVersion(const Round::Away& away) const {
  return std::any_of(loading_.begin(), loading_.end(), [&](const auto& load) {
    const auto found = away.find(load.first);
    const auto& watch = slots_[load.first].watch;
    const bool gone = (found != away.end() && found->second <= cluster_.now()) ||
                      (watch.has_value() && watch->pause() > kMaxLoadPause);
    return load.second < record_.version() && !gone;
  });
}

void Run::MaybeClose() {
  if (!averages() || committing() || record_.state() != v1::RUN_STATE_RUNNING) return;
  // The coordinator's store may be older than a version that an aggregator has made of this round.
  if (!shards_.AllKnown() || !shards_.MayClose()) return;
  const Round::Away away = Away();
  const bool first = TakesFirstValues(record_.version() + 1);
  if (first ? round_.arrived() == 0
            : !round_.MayClose(slots_.started().size(), away, cluster_.now())) {
    return;
  }
  if (LoadsOldVersion(away)) return;
  for (const uint32_t group : LeftOut()) {
    Fence(slots_[group], "the version that it loads is lost", kReleased);
    cluster_.Count("groups_left_out");
  }
  v1::CommitRecord commit = round_.Close(id(), cluster_.now());
  commit.set_opened_ms(record_.round_opened_ms());
  commit.set_closed_ms(absl::ToUnixMillis(cluster_.now()));
  round_.FillTimes(absl::FromUnixMillis(record_.round_opened_ms()), commit);
  *commit.mutable_division() = NextDivision(commit.step());
  if (first) {
    commit.mutable_participants()->DeleteSubrange(1, commit.participants_size() - 1);
    commit.set_samples(0);
  } else {
    SetRules(commit);
  }
  commits_.Begin(std::move(commit), shards_.size());
  cluster_.out().Put(CommitKey(id(), commits_.closing()->round()), *commits_.closing());
  for (int shard = 0; shard < shards_.size(); ++shard) {
    // The others receive it when they are open.
    if (shards_.Accepts(shard)) SendApply(shard);
  }
}

bool Run::TakesFirstValues(uint32_t round) const {
  return round == 1 && BeginsWithGroupValues(spec());
}

void Run::SetRules(v1::CommitRecord& commit) const {
  if (const auto outer = OuterOptimizerOf(spec().averaging())) {
    *commit.mutable_outer()->mutable_optimizer() = *outer;
  } else {
    commit.clear_outer();
  }
  if (const auto up = CodingOf(spec().averaging().up())) *commit.mutable_up() = *up;
  if (const auto down = CodingOf(spec().averaging().down())) *commit.mutable_down() = *down;
  commit.set_fragment(FragmentAfter(record_, record_.version()));
}

// A group that has loaded a version before the newest cannot contribute to the open round: its
// contribution is late, and it adopts the newest.
void Run::NudgeGroups() {
  const Slots::Groups& catching_up = slots_.catching_up();
  if (committing() || record_.state() != v1::RUN_STATE_RUNNING || catching_up.empty()) return;
  size_t missing = slots_.started().size() - (round_.arrived() - round_.left());
  for (const uint32_t group : catching_up) missing -= round_.Has(group) ? 0 : 1;
  for (const auto& [group, until] : Away()) {
    const bool counted = round_.Has(group) || catching_up.contains(group);
    missing -= counted || !slots_[group].started() ? 0 : 1;
  }
  const bool awaited = round_.arrived() > 0 && (missing == 0 || round_.HasQuorum());
  for (const uint32_t group : catching_up) {
    Slot& slot = slots_[group];
    const uint32_t round = slot.version + 1;
    if (loading_.contains(group) || round_.Has(group) || slot.nudged_round >= round) continue;
    if (!awaited && slot.version == record_.version()) continue;
    slot.nudged_round = round;
    v1::CoordinatorMessage message;
    *message.mutable_nudge()->mutable_place() = slot.Place(0);
    message.mutable_nudge()->set_round(round);
    cluster_.SendTo(slot.record().members(0), message);
    cluster_.Count("groups_nudged");
  }
}

void Run::SendApply(uint32_t shard) {
  if (shards_.IsOpen(shard) && commits_.closing()->digests(shard).applied()) return;
  v1::CoordinatorMessage message;
  v1::Apply& apply = *message.mutable_apply();
  apply.set_run(id());
  apply.set_shard(shard);
  apply.set_round(commits_.closing()->round());
  *apply.mutable_participants() = commits_.closing()->participants();
  apply.set_step(commits_.closing()->step());
  apply.set_samples(record_.samples() + commits_.closing()->samples());
  *apply.mutable_division() = commits_.closing()->division();
  if (commits_.closing()->has_outer()) *apply.mutable_outer() = commits_.closing()->outer();
  if (commits_.closing()->has_up()) *apply.mutable_up() = commits_.closing()->up();
  if (commits_.closing()->has_down()) *apply.mutable_down() = commits_.closing()->down();
  apply.set_fragment(commits_.closing()->fragment());
  apply.set_seed(TakesFirstValues(apply.round()));
  SendToShard(shard, message);
}

void Run::OnApplied(const Member& member, const v1::Applied& applied) {
  if (!shards_.Owns(member.record.name(), applied.shard())) {
    cluster_.CountRefusal(v1::REFUSAL_MALFORMED);
    return;
  }
  if (!OnRestoringApplied(applied)) return;
  // A duplicate, or an answer for an earlier round.
  if (!committing() || applied.round() != commits_.closing()->round()) return;
  // The round was closed differently by another coordinator, with a copy of the store.
  if (applied.refusal() == v1::REFUSAL_CLOSED_ROUND) return FallBehind(applied.round());
  if (!applied.error().empty()) {
    End(v1::RUN_STATE_FAILED,
        absl::StrCat("aggregator ", member.record.name(), " cannot apply round ", applied.round(),
                     " to shard ", applied.shard(), ": ", applied.error()));
    return;
  }
  if (!commits_.Apply(applied)) return;
  if (commits_.applied()) {
    FinishCommit();
  } else {
    cluster_.out().Put(CommitKey(id(), applied.round()), *commits_.closing());
  }
}

void Run::AddHistory(const v1::CommitRecord& commit) {
  v1::CommitPoint point;
  point.set_version(record_.version());
  point.set_step(record_.step());
  point.set_epoch(EpochAt(record_, record_.step()));
  point.set_samples(record_.samples());
  CopyLoss(record_, point);
  if (record_.has_metrics()) *point.mutable_metrics() = record_.metrics();
  point.set_rate(commit.rate());
  point.set_opened_ms(commit.opened_ms());
  point.set_closed_ms(commit.closed_ms());
  *point.mutable_participants() = commit.times();
  point.set_groups(slots_.size());
  point.set_bytes_across_groups(record_.message_bytes());
  if (record_.digest() != 0) point.set_digest(DigestHex(record_.digest()));
  history_.Add(std::move(point), cluster_.now(), cluster_.out());
}

// The means are those of the newest round, the tokens those of the run.
void Run::AddMetrics(const v1::TrainingMetrics& metrics, uint64_t samples) {
  const uint64_t per_sample = TokensPerSample(spec().model());
  const uint64_t tokens = per_sample > 0 ? per_sample * samples : metrics.tokens();
  const uint64_t before = record_.metrics().tokens();
  *record_.mutable_metrics() = metrics;
  record_.mutable_metrics()->set_tokens(before + tokens);
  if (!HasMetrics(record_.metrics())) record_.clear_metrics();
}

void Run::RecordVersion(const v1::CommitRecord& finished) {
  v1::CommitRecord commit = finished;
  commit.set_committed_ms(absl::ToUnixMillis(cluster_.now()));
  v1::RunRecord& record = record_;
  record.set_version(commit.round());
  record.set_step(commit.step());
  record.set_digest(commit.digest());
  record.set_samples(record.samples() + commit.samples());
  CopyLoss(commit, record);
  AddMetrics(commit.metrics(), commit.samples());
  if (commit.has_division()) *record.mutable_division() = commit.division();
  if (record.scaling_to() == record.division().groups()) record.clear_scaling_to();
  record.set_rounds_committed(record.rounds_committed() + 1);
  failures_.OnCommit();
  RecordBytes();
  CountDiscrepancy(commit, record);
  RecordOuter(commit, record);
  RecordResidual(commit, record);
  round_.Open(commit.round() + 1);
  record.clear_left();
  record.set_round_opened_ms(commit.committed_ms());
  AddHistory(commit);
  cluster_.out().Put(CommitKey(id(), commit.round()), commit);
  if (const uint32_t keep = std::max(options_.keep_commits, 2U); commit.round() >= keep) {
    cluster_.out().EraseOne(CommitKey(id(), commit.round() - keep));
  }
  cluster_.Count("rounds_committed");
}

// A group that is hardly slower than the fastest one takes as many steps, so that noise in the
// measurements leaves no samples out.
uint32_t Run::BoundaryOf(const Slot& slot) const {
  const uint32_t step = record_.step();
  const uint32_t boundary = BoundaryAfter(record_, step);
  if (!spec().averaging().steps_by_speed() || slot.step_seconds() <= 0) return boundary;
  const double speed = fastest_step_seconds_ / slot.step_seconds();
  if (speed <= 0 || speed > 0.9) return boundary;
  // A group trains further while the round is exchanged, in any case.
  const uint32_t least = spec().averaging().overlap().steps() + 1;
  const auto steps = static_cast<uint32_t>(std::lround(speed * (boundary - step)));
  return std::min(boundary, step + std::max(least, steps));
}

uint32_t Run::AgreeStepsOf(const Slot& slot) const {
  if (slot.ranks() == 1 || !averages()) return 0;
  const double measured = slot.measured.has_value() ? slot.measured->step() : 0;
  double seconds = std::max(slot.step_seconds(), measured);
  if (seconds == 0) seconds = slot.record().predicted().step();
  if (!(seconds > 0)) return HasOwnLoop(slot) ? kFirstAgreeSteps : 0;
  const absl::Duration every = HasOwnLoop(slot) ? kProgramsAgreeEvery : kAgreeEvery;
  return static_cast<uint32_t>(std::clamp(absl::ToDoubleSeconds(every) / seconds, 1.0, 1e6));
}

void Run::MeasureSpeeds() {
  fastest_step_seconds_ = 0;
  for (const uint32_t group : slots_.started()) {
    const double seconds = slots_[group].step_seconds();
    const bool first = fastest_step_seconds_ == 0;
    if (seconds > 0 && (first || seconds < fastest_step_seconds_)) fastest_step_seconds_ = seconds;
  }
}

void Run::WarnOfIdenticalBatches(const v1::CommitRecord& commit) {
  if (absl::c_any_of(record_.warnings(), IsOfIdenticalBatches)) return;
  const std::vector<uint32_t> groups =
      identical_batches_.OnCommit(commit, spec().batch_per_group(), [this](uint32_t group) {
        return group < slots_.size() && HasOwnLoop(slots_[group]);
      });
  if (!groups.empty()) AddWarning(IdenticalBatchesText(groups));
}

void Run::FinishCommit() {
  const v1::CommitRecord& commit = commits_.Finish();
  RecordVersion(commit);
  WarnOfIdenticalBatches(commit);
  MeasureSpeeds();
  // A rebuilt run that finishes a round does not know its data; OnPrepared decides where it stands.
  const bool known = record_.train_samples() > 0;
  const bool at_end = known && AtEnd(record_, commit.step());
  const bool due = known && EvaluationDue(record_, commit.step());
  // The missing parts of an older evaluation will not arrive: its version is superseded.
  const bool superseded = record_.has_evaluating() && (due || at_end);
  if (superseded) FinishEvaluation();
  if (at_end) record_.set_state(v1::RUN_STATE_FINISHING);
  ResizeSlots();
  // After a restart, a participant waits for its decision even before it has sent Contributed
  // again.
  std::vector<uint32_t> adopting;
  const Slots::Groups started = slots_.started();
  for (const uint32_t group : started) {
    Slot& slot = slots_[group];
    if (slot.unanswered == 0 && !InNewest(slot)) continue;
    if (InNewest(slot)) RecordSuccess(slot);
    if (slot.unanswered == 0) slot.unanswered = commit.round();
    if (!MaybeGrow(slot) && !MaybeReplan(slot)) adopting.push_back(slot.group());
  }
  if (due || record_.state() == v1::RUN_STATE_FINISHING) BeginEvaluation(adopting);
  Save();
  for (uint32_t group : adopting) SendDecision(slots_[group], slots_[group].unanswered);
  if (record_.has_evaluating() && IsComplete(record_.evaluating())) FinishEvaluation();
}

void Run::SendDecision(Slot& slot, uint32_t round) {
  const v1::RunRecord& record = record_;
  v1::CoordinatorMessage message;
  v1::Decision& decision = *message.mutable_decision();
  *decision.mutable_place() = slot.Place(0);
  decision.set_round(round);
  decision.set_step(record.step());
  decision.set_included(true);
  if (averages()) {
    decision.set_adopt(true);
    decision.set_version(record.version());
    decision.set_digest(record.digest());
    *decision.mutable_division() = DivisionOf(record);
    if (commits_.newest()) decision.set_participants(commits_.newest()->participants_size());
    decision.set_included(round == record.version() && InNewest(slot));
  }
  if (round == slot.refused_round) {
    decision.set_included(false);
    decision.set_refusal(slot.refusal);
  }
  if (record.has_evaluating() && record.evaluating().version() == record.version() &&
      record.evaluating().step() == record.step()) {
    if (Evaluates(slot) && AssignPart(*record_.mutable_evaluating(), slot.group())) Save();
    if (const v1::EvaluationPart* part = AssignedPart(record.evaluating(), slot.group())) {
      decision.set_evaluate_begin(part->begin());
      decision.set_evaluate_end(part->end());
    }
  }
  bool changed = false;
  if (record.state() == v1::RUN_STATE_FINISHING) {
    changed = slot.SetAtEnd();
  } else {
    decision.set_next_step(BoundaryOf(slot));
    decision.set_agree_steps(AgreeStepsOf(slot));
    decision.set_fragment(FragmentAfter(record, record.version()));
    decision.set_catch_up(averages() && !decision.included() &&
                          !TakesFirstValues(record.version()));
    if (averages()) loading_[slot.group()] = record.version();
  }
  changed |= slot.SetCatchesUp(decision.catch_up());
  slots_.Update(slot);
  if (changed) Save(slot);
  slot.unanswered = 0;
  cluster_.SendTo(slot.record().members(0), message);
}

void Run::OnAdopted(const v1::Adopted& adopted) {
  if (!averages()) return;
  Slot& slot = slots_[adopted.place().group()];
  if (slot.CountVersion(adopted.version())) {
    Count({.payload = adopted.payload_bytes(),
           .down = adopted.message_bytes(),
           .exposed_seconds = SecondsOrZero(adopted.exchange_seconds()),
           .transfer_seconds = SecondsOrZero(adopted.transfer_seconds())});
  }
  history_.NoteAdopted(adopted.version(), slot.group(), adopted.wait_seconds(),
                       adopted.pull_seconds());
  slot.version = std::max(slot.version, adopted.version());
  OnLoaded(slot.group(), adopted.version());
  uint64_t committed = record_.digest();
  if (adopted.version() != record_.version()) {
    const std::optional<uint64_t> before = commits_.DigestBefore(adopted.version());
    if (!before.has_value()) return;
    committed = *before;
  }
  if (adopted.digest() == committed) {
    if (record_.has_evaluating() && IsComplete(record_.evaluating())) FinishEvaluation();
    return;
  }
  cluster_.CountRefusal(v1::REFUSAL_WRONG_DIGEST);
  Fence(slot,
        absl::StrCat("it adopted version ", adopted.version(), " with digest ",
                     DigestHex(adopted.digest()), ", but ", DigestHex(committed), " was committed"),
        v1::FAILURE_CAUSE_DIGEST);
}

}  // namespace cadre
