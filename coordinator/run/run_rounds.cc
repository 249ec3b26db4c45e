// The round protocol: contributions, commits and decisions.
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
//   - The participants of an attempt (round_screening.cc) are durable before Apply is sent for it,
//     and never change.
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
#include "coordinator/run/run_rounds.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "base/counted_noun.h"
#include "base/digest.h"
#include "base/status.h"
#include "coordinator/run/claims.h"
#include "coordinator/run/commit_rules.h"
#include "coordinator/run/run_rules.h"
#include "coordinator/run/run_view.h"
#include "coordinator/store/keys.h"
#include "model/data_position.h"
#include "model/opaque.h"
#include "model/screen.h"
#include "model/training_metrics.h"
#include "model/validate.h"
#include "proto/enum_text.h"

namespace cadre {
namespace {

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

// The means are those of the newest round, of so many samples, the tokens those of the run.
void AddMetrics(const v1::TrainingMetrics& metrics, uint64_t samples, v1::RunRecord& run) {
  const uint64_t per_sample = TokensPerSample(run.spec().model());
  const uint64_t tokens = per_sample > 0 ? per_sample * samples : metrics.tokens();
  const uint64_t before = run.metrics().tokens();
  *run.mutable_metrics() = metrics;
  run.mutable_metrics()->set_tokens(before + tokens);
  if (!HasMetrics(run.metrics())) run.clear_metrics();
}

}  // namespace

RunRounds::RunRounds(const RunView& run, StoredRun& stored, Slots& slots, RunEvaluation& evaluation,
                     History& history, Cluster& cluster, const CoordinatorOptions& options)
    : run_(run),
      stored_(stored),
      record_(stored.record()),
      slots_(slots),
      evaluation_(evaluation),
      history_(history),
      cluster_(cluster),
      options_(options),
      round_({.quorum = record_.spec().averaging().quorum(),
              .min_groups = record_.spec().averaging().min_groups(),
              .min_grace = MinGrace(record_.spec())}),
      versions_(run, stored, cluster, options),
      screening_(run, stored, slots, commits_, cluster) {
  round_.Open(record_.version() + 1);
}

// These commits are needed: that of the newest version, the one before it, because a generation may
// still be preparing from that version, those of the versions that are kept, and the one that is
// being applied.
absl::Status RunRounds::Load(const std::map<std::string, std::string>& records) {
  const uint32_t version = record_.version();
  std::set<uint32_t> rounds(record_.kept().begin(), record_.kept().end());
  for (uint32_t round = version - std::min(version, 1U); round <= version + 1; ++round) {
    rounds.insert(round);
  }
  for (const uint32_t round : rounds) {
    const auto it = records.find(CommitKey(run_.id(), round));
    if (it == records.end() || (round > version && !run_.live())) continue;
    v1::CommitRecord commit;
    CADRE_RETURN_IF_ERROR(ParseRecord(it->first, it->second, commit));
    commits_.Load(commit, version);
  }
  return screening_.Load(records);
}

void RunRounds::Adopt(const v1::CommitRecord& commit) {
  commits_.Load(commit, record_.version());
  cluster_.out().Put(CommitKey(run_.id(), commit.round()), commit);
  versions_.Reset();
}

void RunRounds::Reopen() {
  round_.Open(record_.version() + 1);
  record_.clear_left();
}

void RunRounds::RecordTraffic() { std::exchange(traffic_, {}).AddTo(record_); }

void RunRounds::EndGroup(uint32_t group) {
  round_.End(group);
  versions_.EndLoading(group);
}

absl::Status RunRounds::OnContributed(const v1::Contributed& contributed) {
  Slot& slot = slots_[contributed.place().group()];
  // Groups repeat contributions whose decision they have not received.
  const bool repeated = run_.Includes(slot, contributed.round());
  if (const std::string why = WhyImpossible(record_, contributed); !why.empty()) {
    cluster_.CountRefusal(v1::REFUSAL_MALFORMED);
    return absl::InvalidArgumentError(
        absl::StrCat("its contribution to round ", contributed.round(), " is not possible: ", why));
  }
  if (slot.CountRound(contributed.round()) && !repeated) {
    const uint64_t steps = contributed.samples() / std::max(1U, run_.spec().batch_per_group());
    const absl::Status noted =
        slot.NoteStepTime(contributed.train_seconds(), steps, cluster_.now());
    if (!noted.ok()) {
      cluster_.CountRefusal(v1::REFUSAL_MALFORMED);
      cluster_.ReportGroup(v1::EVENT_KIND_MESSAGE_REFUSED, slot.Place(0),
                           absl::StrCat("the training time of group ", slot.group(),
                                        " was ignored: ", noted.message()));
    }
    traffic_ +=
        RunTraffic{.payload = contributed.payload_bytes(), .up = contributed.message_bytes()};
  }
  slot.progress.set_solo_steps(0);
  slot.progress.set_step(std::max(slot.progress.step(), contributed.step()));
  if (contributed.has_loss()) slot.progress.set_loss(contributed.loss());
  if (run_.averages()) OnAveraged(slot, contributed);
  return absl::OkStatus();
}

void RunRounds::OnAveraged(Slot& slot, const v1::Contributed& contributed) {
  versions_.OnLoaded(slot.group(), contributed.base_version());
  const uint32_t version = record_.version();
  const uint32_t round = contributed.round();
  if (run_.Includes(slot, round)) {  // a retransmission: the decision was lost
    SendDecision(slot, round);
  } else if (round <= version || record_.state() == v1::RUN_STATE_FINISHING) {
    const v1::Refusal refusal = screening_.WhyNotIncluded(slot, round);
    const bool is_late = refusal == v1::REFUSAL_CLOSED_ROUND && round == version;
    if (is_late && !run_.TakesFirstValues(round)) round_.NoteLate(cluster_.now());
    Refuse(slot, contributed, refusal);
  } else if (run_.committing() && round == version + 2 && contributed.base_version() + 1 == round) {
    // The store was older than the version. A refusal would let the generation contribute to the
    // round a second time.
    slot.unanswered = round;
    slot.early = contributed;
  } else if (round != version + 1 || contributed.base_version() != version) {
    Refuse(slot, contributed, v1::REFUSAL_WRONG_BASE);
  } else if (!run_.committing()) {
    slot.unanswered = round;
    if (round_.Add(contributed, slot.ranks(), cluster_.now()) && contributed.leaves()) {
      Keep(contributed, slot.ranks());
    }
  } else if (commits_.InClosing(slot.group(), slot.record().generation())) {
    slot.unanswered = round;  // the decision comes with the commit
  } else {
    const v1::Refusal refusal = screening_.WhyNotIncluded(slot, round);
    const bool is_late = refusal == v1::REFUSAL_CLOSED_ROUND && slot.refused_round != round;
    if (is_late && !run_.TakesFirstValues(round)) round_.NoteLate(cluster_.now());
    Refuse(slot, contributed, refusal);
  }
}

// The group may be gone when the coordinator returns from a restart. The rank of the record is the
// last one of the group.
void RunRounds::Keep(const v1::Contributed& contributed, uint32_t ranks) {
  v1::Contributed& left = *record_.add_left();
  left = contributed;
  left.mutable_place()->set_rank(ranks - 1);
  stored_.Save();
}

void RunRounds::RestoreContributions() {
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
void RunRounds::LoseContributions(uint32_t shard) {
  const size_t lost = round_.RemoveLeft();
  if (lost == 0) return;
  record_.clear_left();
  stored_.AddWarning(absl::StrCat("round ", round_.round(), " has lost the contributions of ",
                                  Counted(static_cast<int64_t>(lost), "group"),
                                  " that had left, with shard ", shard));
}

// The decision names the version to adopt. During a commit this is the version that is being made,
// so the decision is sent when that version exists.
void RunRounds::Refuse(Slot& slot, const v1::Contributed& contributed, v1::Refusal refusal) {
  // The run takes its first values from one of its groups; the others are not late.
  const bool is_first =
      refusal == v1::REFUSAL_CLOSED_ROUND && run_.TakesFirstValues(contributed.round());
  if (slot.refused_round != contributed.round() && !is_first) {
    cluster_.CountRefusal(refusal);
    cluster_.ReportGroup(v1::EVENT_KIND_CONTRIBUTION_REFUSED, slot.Place(0),
                         absl::StrCat("the contribution of group ", slot.group(), " to round ",
                                      contributed.round(), " was refused: ", EnumText(refusal)));
  }
  slot.refused_round = contributed.round();
  slot.refusal = refusal;
  slot.unanswered = contributed.round();
  if (!run_.committing()) SendDecision(slot, contributed.round());
}

bool RunRounds::RecordStep(const v1::Contributed& contributed) {
  if (contributed.step() <= record_.step()) return false;
  record_.set_step(contributed.step());
  CopyLoss(contributed, record_);
  const uint64_t samples_before = record_.samples();
  record_.set_samples(uint64_t{contributed.step() - FirstStep(run_.spec())} *
                      run_.spec().batch_per_group());
  AddMetrics(contributed.metrics(), record_.samples() - samples_before, record_);
  return true;
}

bool RunRounds::MayClose(const Round::Away& away) const {
  if (!run_.averages() || run_.committing() || record_.state() != v1::RUN_STATE_RUNNING) {
    return false;
  }
  // The coordinator's store may be older than a version that an aggregator has made of this round.
  if (!run_.shards().AllKnown() || !run_.shards().MayClose()) return false;
  const bool ready = run_.TakesFirstValues(record_.version() + 1)
                         ? round_.arrived() > 0
                         : round_.MayClose(slots_.started().size(), away, cluster_.now());
  return ready && cluster_.now() >= versions_.AwaitsLoadsUntil(away);
}

void RunRounds::Close(const Round::Away& away) {
  v1::CommitRecord commit = round_.Close(run_.id(), cluster_.now());
  commit.set_opened_ms(record_.round_opened_ms());
  commit.set_closed_ms(absl::ToUnixMillis(cluster_.now()));
  round_.FillTimes(absl::FromUnixMillis(record_.round_opened_ms()), commit);
  if (run_.TakesFirstValues(commit.round())) {
    commit.mutable_participants()->DeleteSubrange(1, commit.participants_size() - 1);
    commit.set_samples(0);
    commit.clear_outer();
    commit.clear_claims();
    *commit.mutable_division() = NextDivision(record_, commit.step());
    commit.set_run_samples(record_.samples());
  } else {
    commit.set_attempt(ScreenOf(run_.spec().averaging()).has_value() ? 1 : 0);
    FillFromClaims(record_, commit);
  }
  versions_.SetKeep(away, commit);
  commits_.Begin(std::move(commit), run_.shards().size());
  cluster_.out().Put(CommitKey(run_.id(), commits_.closing()->round()), *commits_.closing());
}

void RunRounds::RollBack() {
  commits_.Begin(versions_.TakeRollback(), run_.shards().size());
  cluster_.out().Put(CommitKey(run_.id(), commits_.closing()->round()), *commits_.closing());
}

bool RunRounds::OnApplied(const v1::Applied& applied) {
  if (!commits_.Apply(applied)) return false;
  if (commits_.applied()) return true;
  cluster_.out().Put(CommitKey(run_.id(), applied.round()), *commits_.closing());
  return false;
}

void RunRounds::Revoke(uint32_t shard) {
  commits_.Revoke(shard);
  cluster_.out().Put(CommitKey(run_.id(), commits_.closing()->round()), *commits_.closing());
}

void RunRounds::Commit() {
  const v1::CommitRecord& commit = commits_.Finish();
  screening_.OnCommit(commit);
  RecordVersion(commit);
  WarnOfIdenticalBatches(commit);
  fastest_step_seconds_ = 0;
  for (const uint32_t group : slots_.started()) {
    const double seconds = slots_[group].step_seconds();
    const bool first = fastest_step_seconds_ == 0;
    if (seconds > 0 && (first || seconds < fastest_step_seconds_)) fastest_step_seconds_ = seconds;
  }
}

void RunRounds::SetInitial(v1::CommitRecord commit) {
  commit.set_run(run_.id());
  const v1::CommitRecord& initial = commits_.SetInitial(std::move(commit));
  record_.add_kept(0);
  cluster_.out().Put(CommitKey(run_.id(), 0), initial);
  record_.set_digest(initial.digest());
  stored_.Save();
}

// A group that has loaded a version before the newest cannot contribute to the open round: its
// contribution is late, and it adopts the newest.
void RunRounds::NudgeGroups(const Round::Away& away) {
  const Slots::Groups& catching_up = slots_.catching_up();
  if (run_.committing() || record_.state() != v1::RUN_STATE_RUNNING || catching_up.empty()) return;
  size_t missing = slots_.started().size() - (round_.arrived() - round_.left());
  for (const uint32_t group : catching_up) missing -= round_.Has(group) ? 0 : 1;
  for (const auto& [group, until] : away) {
    const bool counted = round_.Has(group) || catching_up.contains(group);
    missing -= counted || !slots_[group].started() ? 0 : 1;
  }
  const bool awaited = round_.arrived() > 0 && (missing == 0 || round_.HasQuorum());
  for (const uint32_t group : catching_up) {
    Slot& slot = slots_[group];
    const uint32_t round = slot.version + 1;
    if (versions_.IsLoading(group) || round_.Has(group) || slot.nudged_round >= round) continue;
    if (!awaited && slot.version == record_.version()) continue;
    slot.nudged_round = round;
    v1::CoordinatorMessage message;
    *message.mutable_nudge()->mutable_place() = slot.Place(0);
    message.mutable_nudge()->set_round(round);
    cluster_.SendTo(slot.record().members(0), message);
    cluster_.Count("groups_nudged");
  }
}

// A group without a stream may have adopted the version without the coordinator's knowledge. It
// reports that when it has connected again.
std::vector<uint32_t> RunRounds::LeftOut() const {
  std::vector<uint32_t> groups;
  if (run_.shards().lost().empty() || !run_.shards().MayClose()) return groups;
  for (const uint32_t group : slots_.started()) {
    const Slot& slot = slots_[group];
    const Member* const lead = cluster_.members().Find(slot.record().members(0));
    const bool connected = lead != nullptr && lead->connected();
    const bool known = connected && slot.reported;
    if (known && slot.version < record_.version() && !round_.Has(group)) groups.push_back(group);
  }
  return groups;
}

void RunRounds::Record(const v1::CommitRecord& commit) {
  RecordTraffic();
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
  for (const v1::ScreenedChange& change : commit.screened()) {
    if (change.round() == commit.round()) *point.add_screened() = change;
  }
  point.set_groups(slots_.size());
  point.set_bytes_across_groups(record_.message_bytes());
  if (record_.digest() != 0) point.set_digest(DigestHex(record_.digest()));
  history_.Add(std::move(point), cluster_.now(), cluster_.out());
}

void RunRounds::RecordVersion(const v1::CommitRecord& finished) {
  v1::CommitRecord commit = finished;
  commit.set_committed_ms(absl::ToUnixMillis(cluster_.now()));
  record_.set_version(commit.round());
  record_.set_step(commit.step());
  record_.set_digest(commit.digest());
  CopyLoss(commit, record_);
  if (commit.has_restores()) {
    record_.set_samples(commit.run_samples());
    record_.clear_test();
    evaluation_.Rewind(commit.step());
  } else {
    record_.set_samples(record_.samples() + commit.samples());
    AddMetrics(commit.metrics(), commit.samples(), record_);
  }
  if (commit.has_division()) *record_.mutable_division() = commit.division();
  if (record_.scaling_to() == record_.division().groups()) record_.clear_scaling_to();
  record_.set_rounds_committed(record_.rounds_committed() + 1);
  CountDiscrepancy(commit, record_);
  RecordOuter(commit, record_);
  RecordResidual(commit, record_);
  round_.Open(commit.round() + 1);
  record_.clear_left();
  record_.set_round_opened_ms(commit.committed_ms());
  Record(commit);
  cluster_.out().Put(CommitKey(run_.id(), commit.round()), commit);
  versions_.OnCommit(commit);
  cluster_.Count("rounds_committed");
}

// A group that is hardly slower than the fastest one takes as many steps, so that noise in the
// measurements leaves no samples out.
uint32_t RunRounds::BoundaryOf(const Slot& slot) const {
  const uint32_t step = record_.step();
  const uint32_t boundary = BoundaryAfter(record_, step);
  if (!run_.spec().averaging().steps_by_speed() || slot.step_seconds() <= 0) return boundary;
  const double speed = fastest_step_seconds_ / slot.step_seconds();
  if (speed <= 0 || speed > 0.9) return boundary;
  // A group trains further while the round is exchanged, in any case.
  const uint32_t least = run_.spec().averaging().overlap().steps() + 1;
  const auto steps = static_cast<uint32_t>(std::lround(speed * (boundary - step)));
  return std::min(boundary, step + std::max(least, steps));
}

uint32_t RunRounds::AgreeStepsOf(const Slot& slot) const {
  if (slot.ranks() == 1 || !run_.averages()) return 0;
  const double measured = slot.measured.has_value() ? slot.measured->step() : 0;
  double seconds = std::max(slot.step_seconds(), measured);
  if (seconds == 0) seconds = slot.record().predicted().step();
  if (!(seconds > 0)) return slot.own_loop() ? kFirstAgreeSteps : 0;
  const absl::Duration every = slot.own_loop() ? kProgramsAgreeEvery : kAgreeEvery;
  return static_cast<uint32_t>(std::clamp(absl::ToDoubleSeconds(every) / seconds, 1.0, 1e6));
}

void RunRounds::WarnOfIdenticalBatches(const v1::CommitRecord& commit) {
  if (absl::c_any_of(record_.warnings(), IsOfIdenticalBatches)) return;
  const std::vector<uint32_t> groups = identical_batches_.OnCommit(
      commit, run_.spec().batch_per_group(),
      [this](uint32_t group) { return group < slots_.size() && slots_[group].own_loop(); });
  if (!groups.empty()) stored_.AddWarning(IdenticalBatchesText(groups));
}

void RunRounds::SendDecisions(const std::vector<uint32_t>& groups) {
  if (record_.state() != v1::RUN_STATE_FINISHING) {
    for (const uint32_t group : groups) versions_.SetLoading(group, record_.version());
  }
  stored_.Save();
  for (const uint32_t group : groups) SendDecision(slots_[group], slots_[group].unanswered);
}

void RunRounds::SendDecision(Slot& slot, uint32_t round) {
  const v1::RunRecord& record = record_;
  // There are no steps to decide about: the generation ends with the rollback.
  if (record.has_rollback() && record.train_samples() > 0 && AtEnd(record, record.step())) return;
  v1::CoordinatorMessage message;
  v1::Decision& decision = *message.mutable_decision();
  *decision.mutable_place() = slot.Place(0);
  decision.set_round(round);
  decision.set_step(record.step());
  decision.set_included(true);
  if (run_.averages()) {
    decision.set_adopt(true);
    decision.set_version(record.version());
    decision.set_digest(record.digest());
    *decision.mutable_division() = DivisionOf(record);
    if (commits_.newest()) decision.set_participants(commits_.newest()->participants_size());
    decision.set_included(run_.Includes(slot, decision.round()));
  }
  if (round == slot.refused_round) {
    decision.set_included(false);
    decision.set_refusal(slot.refusal);
  }
  if (record.has_evaluating() && record.evaluating().version() == record.version() &&
      record.evaluating().step() == record.step()) {
    evaluation_.Assign(slot);
    if (const v1::EvaluationPart* part = evaluation_.PartOf(slot)) {
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
    // The others have begun the open round before, unless they receive their decisions now.
    const bool in_time = decision.included() && round == record.version();
    decision.set_catch_up(run_.averages() && !in_time && !run_.TakesFirstValues(record.version()));
    if (run_.averages() && versions_.SetLoading(slot.group(), record.version())) stored_.Save();
  }
  changed |= slot.SetCatchesUp(decision.catch_up());
  slots_.Update(slot);
  if (changed) stored_.Save(slot);
  slot.unanswered = 0;
  cluster_.SendTo(slot.record().members(0), message);
}

absl::Status RunRounds::OnAdopted(const v1::Adopted& adopted) {
  if (!run_.averages()) return absl::OkStatus();
  // This coordinator began with an older store, and the version may be on no aggregator any more.
  if (adopted.version() > record_.version()) {
    cluster_.CountRefusal(v1::REFUSAL_WRONG_BASE);
    return absl::FailedPreconditionError(absl::StrCat("it has adopted version ", adopted.version(),
                                                      ", but the newest of the run is ",
                                                      record_.version()));
  }
  Slot& slot = slots_[adopted.place().group()];
  if (slot.CountVersion(adopted.version())) {
    traffic_ += RunTraffic{.payload = adopted.payload_bytes(),
                           .down = adopted.message_bytes(),
                           .exposed_seconds = SecondsOrZero(adopted.exchange_seconds()),
                           .transfer_seconds = SecondsOrZero(adopted.transfer_seconds())};
  }
  history_.NoteAdopted(adopted.version(), slot.group(), adopted.wait_seconds(),
                       adopted.pull_seconds());
  slot.version = std::max(slot.version, adopted.version());
  versions_.OnLoaded(slot.group(), adopted.version());
  uint64_t committed = record_.digest();
  if (adopted.version() != record_.version()) {
    const std::optional<uint64_t> before = commits_.DigestOf(adopted.version());
    if (!before.has_value()) return absl::OkStatus();
    committed = *before;
  }
  if (adopted.digest() == committed) return absl::OkStatus();
  cluster_.CountRefusal(v1::REFUSAL_WRONG_DIGEST);
  return absl::DataLossError(absl::StrCat("it adopted version ", adopted.version(), " with digest ",
                                          DigestHex(adopted.digest()), ", but ",
                                          DigestHex(committed), " was committed"));
}

absl::Status RunRounds::Scale(uint32_t groups) {
  if (!run_.live() || record_.state() == v1::RUN_STATE_FINISHING) {
    return absl::FailedPreconditionError(absl::StrCat(
        "run ", run_.id(), " is ", EnumText(record_.state()), " and makes no further version"));
  }
  if (!run_.averages()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "run ", run_.id(), " never averages (averaging.every_steps: 0), so it has one group"));
  }
  if (groups == 0 || groups > kMaxGroups) {
    return absl::InvalidArgumentError(
        absl::StrCat("groups: ", groups, " is not between 1 and ", kMaxGroups));
  }
  const v1::Averaging& averaging = run_.spec().averaging();
  for (const auto& [name, min] :
       {std::pair("quorum", averaging.quorum()), std::pair("min_groups", averaging.min_groups())}) {
    if (groups >= min) continue;
    return absl::InvalidArgumentError(absl::StrCat("groups: ", groups, " is less than averaging.",
                                                   name, " of run ", run_.id(), " (", min,
                                                   "): no round would close"));
  }
  record_.set_scaling_to(groups);
  record_.clear_left_out();
  stored_.Save();
  return absl::OkStatus();
}

}  // namespace cadre
