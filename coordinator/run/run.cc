// A Run contains state from the store (record, slots, commits) and state that is rebuilt after a
// restart (round, opened shards), when aggregators open their shards again and groups send their
// contributions again. Counters, members, runs, groups and commits are durable; progress, open
// contributions, prepared ranks, measured step times and the answers of aggregators are not. Every
// transaction leaves a state from which the protocol can continue; machine_crash_test checks this
// for every transaction of two runs.
#include "coordinator/run/run.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "coordinator/cluster/device_match.h"
#include "coordinator/run/evaluation.h"
#include "coordinator/store/keys.h"
#include "model/training_metrics.h"
#include "proto/enum_text.h"

namespace cadre {
namespace {

// Number of warnings of a run that are kept.
constexpr int kMaxWarnings = 32;

}  // namespace

Run::Run(const v1::RunRecord& record, const RunContext& context)
    : cluster_(context.cluster),
      planner_(context.planner),
      options_(context.options),
      record_(record),
      round_({.quorum = record.spec().averaging().quorum(),
              .min_groups = record.spec().averaging().min_groups(),
              .min_grace = MinGrace(record.spec())}),
      shards_(record_),
      checkpoints_(record_),
      history_(record.run(), context.options.keep_history) {
  for (uint32_t group = 0; group < DivisionOf(record_).groups(); ++group) {
    slots_.Add(Slot(id(), group, cluster_.now()));
  }
  round_.Open(record_.version() + 1);
  UpdateDemand();
}

// Only three commits are needed: that of the newest version, the one before it, because a
// generation may still be preparing from that version, and the one that is being applied.
absl::Status Run::Load(const std::map<std::string, std::string>& records) {
  // Stores of earlier builds have the spec in the record of the run.
  if (!records.contains(SpecKey(id()))) SaveSpec();
  reported_ = record_.state();
  CADRE_RETURN_IF_ERROR(history_.Load(records));
  const uint32_t version = record_.version();
  for (uint32_t round = version - std::min(version, 1U); round <= version + 1; ++round) {
    const auto it = records.find(CommitKey(id(), round));
    if (it == records.end() || (round > version && !live())) continue;
    v1::CommitRecord commit;
    CADRE_RETURN_IF_ERROR(ParseRecord(it->first, it->second, commit));
    commits_.Load(commit, version);
  }
  const std::string prefix = GroupsPrefix(id());
  for (auto it = records.lower_bound(prefix);
       it != records.end() && absl::StartsWith(it->first, prefix); ++it) {
    v1::GroupRecord group;
    CADRE_RETURN_IF_ERROR(ParseRecord(it->first, it->second, group));
    if (group.group() >= slots_.size()) continue;
    slots_[group.group()] = Slot(group, cluster_.now());
    slots_.Update(slots_[group.group()]);
  }
  RestoreContributions();
  UpdateDemand();
  return absl::OkStatus();
}

void Run::PlaceMembers() {
  for (Slot& slot : slots_) {
    if (slot.waiting()) continue;
    bool all = true;
    for (uint32_t rank = 0; rank < slot.ranks(); ++rank) {
      Member* const member = cluster_.members().Find(slot.record().members(rank));
      if (member == nullptr) {
        all = false;
      } else {
        cluster_.members().Place(*member, slot.Place(rank));
      }
    }
    planner_.RecordLink(slot);
    if (!all) Fence(slot, "a member is no longer registered", kReleased);
  }
}

void Run::OnWorkerMessage(Member& member, const v1::MemberMessage& message) {
  switch (message.body_case()) {
    case v1::MemberMessage::kPrepared:
      return OnPrepared(member, message.prepared());
    case v1::MemberMessage::kProgress:
      if (!RefuseReport(member, message.progress())) OnProgress(message.progress());
      return;
    case v1::MemberMessage::kContributed:
      if (!RefuseReport(member, message.contributed())) {
        OnContributed(member, message.contributed());
      }
      return;
    case v1::MemberMessage::kAdopted:
      return OnAdopted(message.adopted());
    case v1::MemberMessage::kEvaluated:
      return OnEvaluated(member, message.evaluated());
    case v1::MemberMessage::kCheckpointed:
      return OnCheckpointed(member, message.checkpointed());
    case v1::MemberMessage::kMeasured:
      return OnMeasured(member, message.measured());
    case v1::MemberMessage::kTraced:
      return OnTraced(member, message.traced());
    case v1::MemberMessage::kRestaged:
      return shards_.OnRestaged(message.restaged());
    default:
      return;
  }
}

template <typename Report>
bool Run::RefuseReport(const Member& member, const Report& report) {
  absl::Status valid = CheckMetrics(report.metrics());
  if (report.has_loss() && !std::isfinite(report.loss())) {
    valid = absl::InvalidArgumentError("a training loss that is not finite");
  }
  if (valid.ok()) return false;
  cluster_.Refuse(member.connection, v1::REFUSAL_MALFORMED, valid.message());
  return true;
}

void Run::OnProgress(const v1::Progress& progress) {
  Slot& slot = slots_[progress.place().group()];
  slot.NoteTokens(progress, TokensPerSample(spec().model()), spec().batch_per_group());
  // A group that has not reported a loss since its last message keeps the one before.
  const v1::Progress before = std::exchange(slot.progress, progress);
  if (!progress.has_loss() && before.has_loss()) slot.progress.set_loss(before.loss());
}

void Run::OnLoopEnded() {
  const bool last = slots_.waiting().size() == slots_.size();
  if (!last || record_.state() != v1::RUN_STATE_RUNNING) return;
  record_.set_reason("its programs have ended their loops");
  Save();
  Touch();
}

void Run::Stop(absl::string_view reason) {
  if (live()) End(v1::RUN_STATE_STOPPED, reason.empty() ? "stopped by request" : reason);
}

void Run::Advance() {
  JudgeReports();
  RestoreShards();
  // The end of an evaluation waits for lost shards.
  const bool evaluated = record_.has_evaluating() && IsComplete(record_.evaluating());
  if (averages() && shards_open() && evaluated) FinishEvaluation();
  if (!live()) return;
  MaybeStart();
  MaybeClose();
  NudgeGroups();
  AssignFreeParts();
}

absl::Time Run::NextDeadline() const {
  absl::Time next = absl::InfiniteFuture();
  if (!active()) return next;
  // A deadline that has passed without an effect can only take effect with an event, so it is
  // ignored.
  auto consider = [&](absl::Time when) {
    if (when > cluster_.now()) next = std::min(next, when);
  };
  for (const FailureReports& reports : failure_reports_) consider(reports.until());
  for (const uint32_t group : slots_.waiting()) {
    consider(ShrinksAt(slots_[group]));
    consider(slots_[group].blocked_until());
  }
  consider(barrier_since_ + RejoinWait(spec()));
  const Round::Away away = Away();
  if (!committing()) consider(round_.ClosesAt(slots_.started().size(), away));
  for (const auto& [group, until] : away) consider(until);
  return next;
}

void Run::End(v1::RunState state, absl::string_view reason) {
  record_.set_state(state);
  record_.set_reason(std::string(reason));
  if (const std::string missing = state == v1::RUN_STATE_DONE ? checkpoints_.End() : "";
      !missing.empty()) {
    record_.set_reason(absl::StrCat(reason, reason.empty() ? "" : "; ", missing));
  }
  record_.set_ended_ms(absl::ToUnixMillis(cluster_.now()));
  record_.clear_evaluating();
  RecordBytes();
  Disband(absl::StrCat("the run has ended: ", reason));
  for (const std::string& name : record_.shards()) {
    const Member* const member = cluster_.members().Aggregator(name);
    if (member != nullptr) SendCloseRun(*member);
  }
  // Idle workers may have been started for this run alone.
  for (const std::string& worker : cluster_.members().idle()) {
    v1::RankSlot none;
    none.set_run(id());
    cluster_.SendRelease(worker, none, "the run has ended", state);
  }
  commits_.Abandon();
  history_.Flush(cluster_.out());
  Save();
  for (const auto& [id, member] : cluster_.members().all()) {
    if (member.record.has_reservation() && IsReserved(member.record.reservation())) {
      SendRunEnded(member);
    }
  }
  cluster_.Count(state == v1::RUN_STATE_DONE     ? "runs_done"
                 : state == v1::RUN_STATE_FAILED ? "runs_failed"
                                                 : "runs_stopped");
}

void Run::SendRunEnded(const Member& worker) const {
  SendEnded(worker, record_.state() == v1::RUN_STATE_DONE, record_.reason());
}

void Run::SendEnded(const Member& worker, bool done, absl::string_view reason) const {
  v1::CoordinatorMessage message;
  v1::RunEnded& ended = *message.mutable_run_ended();
  ended.set_run(id());
  ended.set_done(done);
  ended.set_reason(std::string(reason));
  ended.set_version(record_.version());
  ended.set_step(record_.step());
  cluster_.SendTo(worker.id(), message);
}

void Run::Disband(absl::string_view reason) {
  for (Slot& slot : slots_) {
    ReleaseMembers(slot, reason);
    slot = Slot(id(), slot.group(), cluster_.now());
    slots_.Update(slot);
  }
  away_.clear();
  loading_.clear();
  barrier_since_ = absl::InfiniteFuture();
  UpdateDemand();
  // Without their records, a restart finds no group of this run.
  cluster_.out().EraseBelow(GroupsPrefix(id()));
}

bool Run::AddWarning(const std::string& text) {
  if (record_.warnings_size() >= kMaxWarnings || absl::c_linear_search(record_.warnings(), text)) {
    return false;
  }
  record_.add_warnings(text);
  if (record_.warnings_size() == kMaxWarnings) {
    record_.add_warnings("further warnings are only in the logs of the members");
  }
  cluster_.ReportRun(v1::EVENT_KIND_RUN_WARNING, id(), text);
  cluster_.Count("warnings");
  Save();
  return true;
}

// The spec, which may be large and does not change, has a record of its own.
void Run::Save() {
  if (std::exchange(reported_, record_.state()) != record_.state()) {
    const bool explained = !record_.reason().empty() && record_.state() >= v1::RUN_STATE_DONE;
    cluster_.ReportRun(v1::EVENT_KIND_RUN_STATE, id(),
                       absl::StrCat("the run is ", EnumText(record_.state()), explained ? ": " : "",
                                    explained ? record_.reason() : ""));
  }
  v1::RunSpec* const spec = record_.release_spec();
  cluster_.out().Put(RunKey(id()), record_);
  record_.set_allocated_spec(spec);
}

void Run::SaveSpec() { cluster_.out().Put(SpecKey(id()), record_.spec()); }

void Run::Save(const Slot& slot) {
  cluster_.out().Put(GroupKey(id(), slot.group()), slot.record());
}

void Run::Moved(const Slot& slot) {
  slots_.Update(slot);
  UpdateDemand();
  Save(slot);
}

void Run::UpdateDemand() {
  cluster_.SetDemand(
      number(), {.device = RequestedDevice(spec()),
                 .ranks = RanksPerGroup(spec()),
                 .slots = active() && !spec().model().has_opaque() ? slots_.waiting().size() : 0});
}

}  // namespace cadre
