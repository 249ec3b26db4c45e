// A Run contains state from the store (record, slots, commits) and state that is rebuilt after a
// restart (round, opened shards), when aggregators open their shards again and groups send their
// contributions again. Counters, members, runs, groups and commits are durable; progress, open
// contributions, prepared ranks, measured step times and the answers of aggregators are not. Every
// transaction leaves a state from which the protocol can continue; machine_crash_test checks this
// for every transaction of two runs.
#include "coordinator/run/run.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "coordinator/run/evaluation.h"
#include "coordinator/run/formation.h"
#include "coordinator/run/run_rules.h"
#include "coordinator/store/keys.h"
#include "model/training_metrics.h"

namespace cadre {
namespace {

// Time after which a shard that is being created will not be: enough for hundreds of gigabytes.
constexpr absl::Duration kMaxCreation = absl::Minutes(30);

// Refuses a report of rank 0, and the rank with it, whose loss or metrics are not valid.
template <typename Report>
bool RefuseReport(const Member& member, const Report& report, Cluster& cluster) {
  absl::Status valid = CheckMetrics(report.metrics());
  if (report.has_loss() && !std::isfinite(report.loss())) {
    valid = absl::InvalidArgumentError("a training loss that is not finite");
  }
  if (valid.ok()) return false;
  cluster.Refuse(member.connection, v1::REFUSAL_MALFORMED, valid.message());
  return true;
}

// If the move of a shard is complete, the shard is on another aggregator from now on. Requires: see
// ShardMoves::Complete.
void CompleteMove(Aggregators& aggregators, const RunVersions& versions, Slots& slots,
                  RunGroups& groups) {
  const std::optional<ShardMoves::Moved> moved = aggregators.CompleteMove();
  if (!moved.has_value()) return;
  // The aggregator has one version.
  for (const auto& [group, version] : versions.loading()) {
    if (version == moved->version || !slots.started().contains(group)) continue;
    groups.Fence(slots[group],
                 absl::StrCat("shard ", moved->shard, " has moved without the version it loads"),
                 kReleased);
  }
  groups.UpdateDemand();
}

// Whether another coordinator has made the version, or has made the closing one of other
// contributions.
bool IsOlderThan(const RunView& run, const v1::RunOpened& opened) {
  if (!run.committing()) return opened.version() > run.record().version();
  // The disk may have returned to the first attempt, and is ordered to make the version again.
  const v1::CommitRecord& closing = *run.commits().closing();
  return opened.version() > closing.round() ||
         (closing.attempt() <= 1 && run.commits().Contradicts(opened));
}

absl::Status CheckNotBehind(const RunWithStatus& run) {
  if (!run.behind()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("run ", run.id(), ": ", run.WaitReason()));
}

}  // namespace

Run::Run(const v1::RunRecord& record, const RunContext& context)
    : RunWithStatus(stored_, history_, slots_, context,
                    {.evaluation = evaluation_,
                     .rounds = rounds_,
                     .aggregators = aggregators_,
                     .stale = stale_,
                     .obligations = obligations_}),
      cluster_(context.cluster),
      stored_(record, cluster_),
      history_(record.run(), context.options.keep_history),
      traces_(*this, cluster_, context.options.max_trace_bytes),
      evaluation_(*this, stored_, history_, cluster_, context.planner),
      rounds_(*this, stored_, slots_, evaluation_, history_, cluster_, context.options),
      aggregators_(*this, stored_, rounds_, context),
      groups_(*this, stored_,
              {.slots = slots_,
               .traces = traces_,
               .evaluation = evaluation_,
               .rounds = rounds_,
               .aggregators = aggregators_},
              context),
      attribution_(*this, slots_, data_sizes_, rounds_, groups_, context),
      data_(*this, stored_, data_sizes_, evaluation_, groups_, attribution_, cluster_),
      parking_(*this, stored_,
               {.evaluation = evaluation_,
                .rounds = rounds_,
                .aggregators = aggregators_,
                .groups = groups_,
                .attribution = attribution_},
               cluster_),
      obligations_(*this,
                   {.evaluation = evaluation_, .rounds = rounds_, .aggregators = aggregators_},
                   context) {
  groups_.UpdateDemand();
}

absl::Status Run::Load(const std::map<std::string, std::string>& records) {
  // Stores of earlier builds have the spec in the record of the run.
  if (!records.contains(SpecKey(id()))) stored_.SaveSpec();
  stored_.SetReported();
  CADRE_RETURN_IF_ERROR(history_.Load(records));
  CADRE_RETURN_IF_ERROR(rounds_.Load(records));
  CADRE_RETURN_IF_ERROR(groups_.Load(records));
  rounds_.RestoreContributions();
  return absl::OkStatus();
}

void Run::OnWorkerMessage(Member& member, const v1::MemberMessage& message) {
  switch (message.body_case()) {
    case v1::MemberMessage::kPrepared:
      return Fail(data_.OnPrepared(member, message.prepared()));
    case v1::MemberMessage::kProgress:
      if (!RefuseReport(member, message.progress(), cluster_)) {
        slots_[message.progress().place().group()].SetProgress(
            message.progress(), TokensPerSample(spec().model()), spec().batch_per_group());
      }
      return;
    case v1::MemberMessage::kContributed:
      if (!RefuseReport(member, message.contributed(), cluster_)) {
        OnContributed(member, message.contributed());
      }
      return;
    case v1::MemberMessage::kAdopted:
      return OnValues(message.adopted().place().group(), rounds_.OnAdopted(message.adopted()));
    case v1::MemberMessage::kEvaluated:
      return OnValues(message.evaluated().place().group(),
                      evaluation_.OnEvaluated(member, message.evaluated()));
    case v1::MemberMessage::kCheckpointed:
      if (evaluation_.OnCheckpointed(member, message.checkpointed()) && evaluation_.complete()) {
        FinishEvaluation();
      }
      return;
    case v1::MemberMessage::kMeasured:
      return groups_.OnMeasured(member, message.measured());
    case v1::MemberMessage::kTraced:
      return traces_.OnTraced(member, message.traced());
    case v1::MemberMessage::kRestaged:
      return aggregators_.OnRestaged(message.restaged());
    default:
      return;
  }
}

void Run::Stop(absl::string_view reason) {
  if (live()) End(v1::RUN_STATE_STOPPED, reason.empty() ? "stopped by request" : reason);
}

void Run::OnLoopEnded() {
  const bool last = slots_.waiting().size() == slots_.size();
  if (!last || record().state() != v1::RUN_STATE_RUNNING) return;
  stored_.record().set_reason("its programs have ended their loops");
  stored_.Save();
  Touch();
}

void Run::OnGroupFailed(const Member& member, const v1::GroupFailed& failed) {
  const std::optional<std::string> reason = attribution_.OnGroupFailed(member, failed);
  // Without averaging there is no version to which it could return.
  if (reason.has_value() && failed.cause() == v1::FAILURE_CAUSE_DIVERGED && averages()) {
    parking_.ParkDiverged(*reason);
  } else {
    Fail(reason);
  }
}

void Run::FailRefused(const Member& member, const std::string& reason) {
  // A worker that cannot send what its group needs cannot train in it.
  const v1::RankSlot place = *member.place;
  Fail(attribution_.Fail(member, place, v1::FAILURE_CAUSE_PLAN, reason));
}

void Run::OnContributed(const Member& member, const v1::Contributed& contributed) {
  // Another coordinator, with a newer store, has started the group.
  Slot& slot = slots_[contributed.place().group()];
  if (!slot.started()) {
    return Fail(attribution_.Fail(member, contributed.place(), v1::FAILURE_CAUSE_UNSPECIFIED,
                                  "a contribution arrived before the group was started here"));
  }
  if (const absl::Status possible = rounds_.OnContributed(contributed); !possible.ok()) {
    return Fail(attribution_.Fail(member, contributed.place(), v1::FAILURE_CAUSE_CLAIM,
                                  std::string(possible.message())));
  }
  if (averages()) return;
  // In a run that never averages, the group stops here only for an evaluation or at the end.
  if (rounds_.RecordStep(contributed)) {
    attribution_.OnCommit();
    groups_.RecordSuccess(slot);
    const bool due = EvaluationDue(record(), contributed.step());
    if (record().has_evaluating()) FinishEvaluation();
    if (!live()) return;
    if (AtEnd(record(), contributed.step())) {
      stored_.record().set_state(v1::RUN_STATE_FINISHING);
    }
    if (due || record().state() == v1::RUN_STATE_FINISHING) evaluation_.Begin({slot.group()});
    v1::CommitRecord point;
    point.set_rate(contributed.rate());
    rounds_.Record(point);
    stored_.Save();
  }
  rounds_.SendDecision(slot, contributed.round());
  if (evaluation_.complete()) FinishEvaluation();
}

void Run::OnValues(uint32_t group, const absl::Status& values) {
  if (!values.ok()) {
    // The group has done nothing wrong if its version is later than the record.
    const bool later = absl::IsFailedPrecondition(values);
    groups_.Fence(slots_[group], values.message(), later ? kReleased : v1::FAILURE_CAUSE_DIGEST);
  } else if (evaluation_.complete()) {
    FinishEvaluation();
  }
}

void Run::FinishEvaluation() {
  if (const std::optional<std::string> reason = evaluation_.Finish()) {
    End(v1::RUN_STATE_DONE, *reason);
  }
}

void Run::OnAggregatorMessage(const Member& member, const v1::MemberMessage& message) {
  if (message.has_run_deleted()) return aggregators_.moves().OnRemoved(member.record.name());
  if (parked() || behind()) return;
  if (message.has_run_opened()) {
    OnRunOpened(member, message.run_opened());
  } else if (message.has_shard_copied()) {
    aggregators_.copies().OnCopied(member, message.shard_copied().copy());
  } else {
    OnApplied(member, message.applied());
  }
}

// The creation of a shard ends by itself if it fails (server/aggregator.h), but a disk may also
// hang. Afterwards there are values to keep, so the run waits, and its status has the reason.
void Run::OnDelayedOrder(const Member& member, const v1::DelayedOrder& delayed) {
  const bool creates = live() && !commits().newest().has_value() && delayed.order() == "open_run";
  if (creates && delayed.seconds() >= absl::ToDoubleSeconds(kMaxCreation)) {
    End(v1::RUN_STATE_FAILED, Cluster::DelayText(member, delayed));
  }
}

void Run::OnAggregatorJoined(const Member& member, const v1::Hello& hello) {
  aggregators_.moves().OnJoined(member, hello);
  aggregators_.OnJoined(member, active());
  if (behind()) aggregators_.orders().RequestReport(member);
}

void Run::OnAggregatorLost(const std::string& name) {
  aggregators_.OnLost(name);
  stale_.OnAggregatorLost(name);
}

void Run::OnRunOpened(const Member& member, const v1::RunOpened& opened) {
  if (!live()) return cluster_.SendTo(member.id(), CloseRun());
  if (aggregators_.moves().OnOpened(member, opened)) return;
  if (!aggregators_.IsOfShard(member, opened)) {
    // The answer is malformed or belongs to an earlier assignment of shards.
    cluster_.CountRefusal(v1::REFUSAL_MALFORMED);
    return;
  }
  if (!opened.error().empty()) {
    const std::string reason =
        absl::StrCat("aggregator ", member.record.name(), " cannot ",
                     commits().newest().has_value() ? absl::StrCat("restore shard ", opened.shard())
                                                    : "create version 0",
                     ": ", opened.error());
    if (commits().newest().has_value()) return parking_.Park({opened.shard(), reason});
    if (aggregators_.choice().OnTooLittleSpace(member, opened)) return groups_.UpdateDemand();
    return End(v1::RUN_STATE_FAILED, reason);
  }
  if (aggregators_.IsFirst(opened) && !opened.hollow() && IsOlderThan(*this, opened)) {
    return FallBehind(opened.version());
  }
  aggregators_.OnOpened(member, opened);
}

void Run::OnApplied(const Member& member, const v1::Applied& applied) {
  if (aggregators_.moves().OnApplied(member, applied)) return;
  if (!shards().Owns(member.record.name(), applied.shard())) {
    cluster_.CountRefusal(v1::REFUSAL_MALFORMED);
    return;
  }
  if (aggregators_.LoseContributions(applied)) {
    if (const auto lost = aggregators_.Restore()) parking_.Park(*lost);
  }
  if (!aggregators_.OnRestoringApplied(applied)) return;
  // A duplicate, or an answer for an earlier round.
  if (!committing() || applied.round() != commits().closing()->round()) return;
  // The round was closed differently by another coordinator, with a copy of the store.
  if (applied.refusal() == v1::REFUSAL_CLOSED_ROUND) return FallBehind(applied.round());
  if (!applied.error().empty() && commits().closing()->has_restores()) {
    return parking_.Park(
        {applied.shard(), absl::StrCat("aggregator ", member.record.name(), " cannot roll shard ",
                                       applied.shard(), " back: ", applied.error())});
  }
  if (!applied.error().empty()) {
    End(v1::RUN_STATE_FAILED,
        absl::StrCat("aggregator ", member.record.name(), " cannot apply round ", applied.round(),
                     " to shard ", applied.shard(), ": ", applied.error()));
    return;
  }
  // A shard that was restored may have made the version by an earlier attempt.
  const v1::CommitRecord& closing = *commits().closing();
  const uint32_t attempt = AttemptOf(applied, closing);
  if (attempt < closing.attempt()) return aggregators_.SendApplies();
  if (attempt != closing.attempt() || !rounds_.OnApplied(applied)) return;
  if (rounds_.screening().Screen()) return aggregators_.SendApplies();
  FinishCommit();
}

void Run::FinishCommit() {
  if (aggregators_.AwaitsCopies()) return;
  rounds_.Commit();
  CompleteMove(aggregators_, rounds_.versions(), slots_, groups_);
  if (commits().newest()->attempt() > 0) aggregators_.orders().Publish();
  aggregators_.copies().Report();
  attribution_.OnCommit();
  if (const std::string empty = rounds_.screening().WhyEmpty(); !empty.empty()) {
    stored_.record().set_branch(record().version());
    return parking_.ParkDiverged(empty);
  }
  for (const auto& [group, reason] : rounds_.screening().MarkDistrusted()) {
    groups_.EndDistrusted(slots_[group], reason);
  }
  if (const v1::CommitRecord& commit = *commits().newest(); commit.has_restores()) {
    cluster_.ReportRun(v1::EVENT_KIND_ROLLBACK, id(),
                       absl::StrCat("version ", commit.round(), " is a copy of version ",
                                    commit.restores(), ", of step ", commit.step()));
  }
  // A rebuilt run that finishes a round does not know its data; DataAgreement decides where it
  // stands. A run that is to be rolled back goes on from another step.
  const uint32_t step = record().step();
  const bool known = record().train_samples() > 0 && !record().has_rollback();
  const bool at_end = known && AtEnd(record(), step);
  const bool due = known && EvaluationDue(record(), step);
  // The missing parts of an older evaluation will not arrive: its version is superseded.
  const bool superseded = record().has_evaluating() && (due || at_end);
  if (superseded) FinishEvaluation();
  if (at_end) stored_.record().set_state(v1::RUN_STATE_FINISHING);
  groups_.Resize();
  // After a restart, a participant waits for its decision even before it has sent Contributed
  // again.
  std::vector<uint32_t> adopting;
  for (const uint32_t group : Slots::Groups(slots_.started())) {
    Slot& slot = slots_[group];
    const bool included = Includes(slot, record().version());
    if (slot.unanswered == 0 && !included) continue;
    if (included) groups_.RecordSuccess(slot);
    // It has adopted the version, and contributes to the next round.
    if (slot.early.has_value()) continue;
    if (slot.unanswered == 0) slot.unanswered = record().version();
    if (groups_.MaybeGrow(slot) || groups_.MaybeReplan(slot)) continue;
    if (groups_.checkpoint_writer().Take(slot)) {
      groups_.FormAgain(slot, "its next generation writes the checkpoints of the run");
    } else {
      adopting.push_back(slot.group());
    }
  }
  if (due || record().state() == v1::RUN_STATE_FINISHING) evaluation_.Begin(adopting);
  rounds_.SendDecisions(adopting);
  // Contributions that arrived before the version from which they were computed was committed.
  const Slots::Groups contributors = slots_.started();
  for (const uint32_t group : contributors) {
    const auto early = std::exchange(slots_[group].early, std::nullopt);
    if (!early.has_value()) continue;
    const Member* const lead = cluster_.members().Find(slots_[group].record().members(0));
    if (lead != nullptr) OnContributed(*lead, *early);
  }
  if (evaluation_.complete()) FinishEvaluation();
}

absl::Status Run::Resume() {
  CADRE_RETURN_IF_ERROR(CheckNotBehind(*this));
  return parking_.Resume();
}

absl::Status Run::RollBack(uint32_t version, const std::vector<uint32_t>& leave_out) {
  CADRE_RETURN_IF_ERROR(CheckNotBehind(*this));
  return parking_.RollBack(version, leave_out);
}

bool Run::Form(std::vector<std::string>& idle, int& formations) {
  if (chooses_shards() && !groups_.ChooseAggregators(idle)) return false;
  if (const absl::Status formed = groups_.Form(idle, formations); !formed.ok()) {
    End(v1::RUN_STATE_FAILED, formed.message());
  }
  return true;
}

void Run::Advance() {
  groups_.EndPatience();
  if (const auto taker = cluster_.queue().TakerFrom(number(), cluster_.now())) {
    groups_.FenceAll(absl::StrCat("run ", *taker, ", which is before this one, can continue with ",
                                  "its workers; both have too few"));
    cluster_.Count("runs_gave_up_workers");
  }
  attribution_.JudgeReports();
  if (const auto lost = aggregators_.Restore()) parking_.Park(*lost);
  aggregators_.copies().Send();
  if (active()) aggregators_.moves().Advance(obligations_.LateAggregators());
  if (committing() && commits().applied()) FinishCommit();
  if (active() && aggregators_.moves().MayComplete()) {
    CompleteMove(aggregators_, rounds_.versions(), slots_, groups_);
  }
  // The end of an evaluation waits for lost shards.
  if (averages() && shards_open() && evaluation_.complete()) FinishEvaluation();
  if (!live() || parking_.AdvanceRollback()) return;
  groups_.MaybeStart();
  if (const Round::Away away = attribution_.Away(); rounds_.MayClose(away)) {
    for (const uint32_t group : rounds_.LeftOut()) {
      groups_.Fence(slots_[group], "the version that it loads is lost", kReleased);
      cluster_.Count("groups_left_out");
    }
    rounds_.Close(away);
    aggregators_.SendApplies();
  }
  rounds_.NudgeGroups(attribution_.Away());
  // At the end of the run, parts of lost groups are assigned to groups that have finished their
  // own.
  if (!averages() || record().state() != v1::RUN_STATE_FINISHING) return;
  if (const std::optional<uint32_t> group = groups_.checkpoint_writer().TakeLast()) {
    groups_.FormAgain(slots_[*group], "its next generation writes the last checkpoint of the run");
  }
  for (const uint32_t group : slots_.started()) {
    if (!record().has_evaluating() || !HasFreePart(record().evaluating())) return;
    Slot& slot = slots_[group];
    if (slot.record().at_end() && evaluation_.Assign(slot)) {
      rounds_.SendDecision(slot, record().version());
    }
  }
}

absl::Time Run::NextDeadline() const {
  absl::Time next = absl::InfiniteFuture();
  if (!active()) return next;
  // A deadline that has passed without an effect can only take effect with an event, so it is
  // ignored.
  auto consider = [&](absl::Time when) {
    if (when > cluster_.now()) next = std::min(next, when);
  };
  for (const FailureReports& reports : attribution_.reports()) consider(reports.until());
  consider(aggregators_.directory().PatientUntil());
  for (const uint32_t group : slots_.waiting()) {
    consider(ShrinksAt(*this, slots_[group]));
    consider(slots_[group].blocked_until());
    consider(ReservesUntil(slots_[group]));
  }
  consider(groups_.barrier_since() + RejoinWait(spec()));
  consider(cluster_.queue().BlockedUntil(number()));
  const Round::Away away = attribution_.Away();
  consider(aggregators_.copies().AwaitedUntil());
  consider(aggregators_.moves().Deadline());
  consider(obligations_.NextDeadline());
  if (!committing()) {
    consider(round().ClosesAt(slots_.started().size(), away));
    consider(rounds_.versions().AwaitsLoadsUntil(away));
  }
  for (const auto& [group, until] : away) consider(until);
  return next;
}

void Run::FallBehind(uint32_t version) {
  if (!stale_.Add(version)) return;
  groups_.Disband("the coordinator's store is older than the values of the run");
  aggregators_.Reset();
  rounds_.Reopen();
  cluster_.Count("runs_behind");
  for (const std::string& id : cluster_.members().aggregators()) {
    aggregators_.orders().RequestReport(*cluster_.members().Find(id));
  }
}

std::optional<RebuiltRun> Run::OnReport(const std::string& aggregator,
                                        const v1::RunReport& report) {
  if (!behind()) return std::nullopt;
  std::optional<RebuiltRun> rebuilt = stale_.OnReport(*this, aggregator, report);
  if (!rebuilt.has_value() || !rebuilt->ended) return rebuilt;
  // Their files are deleted with the run.
  for (const auto& [name, one] : stale_.reports()) stored_.record().add_former_shards(name);
  aggregators_.moves().KeepFiles();
  stored_.record().set_has_unknown_versions(true);
  End(v1::RUN_STATE_STOPPED,
      "it had ended, with a result that is lost: the coordinator's store is older");
  return std::nullopt;
}

void Run::Adopt(const v1::CommitRecord& newest, const std::optional<v1::CommitRecord>& closing) {
  rounds_.Adopt(newest);
  if (closing.has_value()) rounds_.Adopt(*closing);
  Submit();
  aggregators_.OpenAll();
}

void Run::Fail(const std::optional<std::string>& reason) {
  if (reason.has_value()) End(v1::RUN_STATE_FAILED, *reason);
}

void Run::End(v1::RunState state, absl::string_view reason) {
  v1::RunRecord& record = stored_.record();
  record.set_state(state);
  record.set_reason(std::string(reason));
  if (const std::string missing = state == v1::RUN_STATE_DONE ? evaluation_.EndCheckpoints() : "";
      !missing.empty()) {
    record.set_reason(absl::StrCat(reason, reason.empty() ? "" : "; ", missing));
  }
  record.set_ended_ms(absl::ToUnixMillis(cluster_.now()));
  record.clear_evaluating();
  rounds_.RecordTraffic();
  groups_.Disband(absl::StrCat("the run has ended: ", reason));
  for (const std::string& name : record.shards()) {
    const Member* const member = cluster_.members().Aggregator(name);
    if (member != nullptr) cluster_.SendTo(member->id(), CloseRun());
  }
  // Idle workers may have been started for this run alone.
  for (const std::string& worker : cluster_.members().idle()) {
    v1::RankSlot none;
    none.set_run(id());
    cluster_.SendRelease(worker, none, "the run has ended", state);
  }
  rounds_.Abandon();
  aggregators_.moves().End();
  history_.Flush(cluster_.out());
  stored_.Save();
  for (const auto& [id, member] : cluster_.members().all()) {
    if (IsReserved(member.record.reservation())) {
      cluster_.SendTo(id, RunEnded(state == v1::RUN_STATE_DONE, record.reason()));
    }
  }
  cluster_.Count(state == v1::RUN_STATE_DONE     ? "runs_done"
                 : state == v1::RUN_STATE_FAILED ? "runs_failed"
                                                 : "runs_stopped");
}

}  // namespace cadre
