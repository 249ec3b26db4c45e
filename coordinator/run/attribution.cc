// Who caused the failure of a generation, and what follows.
//
// A failure concerns one of four:
//
//   the worker  a cause of its own (data, checkpoint, memory, device, plan); the standing of the
//               worker and of its host decide when it receives work again (standing.h)
//   a peer      other ranks cannot reach it: the reports of all ranks are compared
//               (failure_reports.h)
//   a host      a lease ended
//   the run     it diverged on several hosts, or several hosts report the same permanent cause
//               (run_failures.h)
//
// Failures of aggregators concern none of them. In addition, every failure counts for its slot: a
// slot that fails too often without a commit waits before it forms the next generation, so that a
// failure without a known cause cannot keep the whole cluster busy. Nothing else ends a run.
//
// A rank that hangs is found by its heartbeats (deadlines.h). All ranks of a stalled group look
// alike; which of them hangs is seen after the release: a healthy one leaves the generation within
// seconds. None receives new work before it has.
#include "coordinator/run/attribution.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/cluster/device_match.h"
#include "coordinator/run/evaluation.h"
#include "coordinator/run/run_rules.h"
#include "proto/enum_text.h"

namespace cadre {
namespace {

// Workers that were named without enough evidence are the last choice for this time.
constexpr absl::Duration kDoubt = absl::Minutes(30);
// A program pauses, and is not only slow, if it makes no progress for the time of so many steps.
constexpr int kPausedSteps = 4;

}  // namespace

std::optional<std::string> Attribution::OnGroupFailed(const Member& member,
                                                      const v1::GroupFailed& failed) {
  const v1::RankSlot& place = failed.place();
  if (member.Holds(place)) {
    Slot& slot = slots_[place.group()];
    std::vector<FailureReports::Rank> ranks;
    for (const std::string& id : slot.record().members()) {
      const Member* const peer = cluster_.members().Find(id);
      FailureReports::Rank& rank = ranks.emplace_back();
      rank.member_id = id;
      if (peer != nullptr) rank.worker = Cluster::WorkerOf(*peer);
    }
    failure_reports_.emplace_back(place, std::move(ranks), cluster_.now());
    const bool known = failed.cause() != v1::FAILURE_CAUSE_UNSPECIFIED;
    groups_.Fence(slot,
                  absl::StrCat("rank ", place.rank(), " (", member.id(), "): ", failed.reason()),
                  known ? failed.cause() : v1::FAILURE_CAUSE_PEER);
  }
  const auto reports =
      std::find_if(failure_reports_.begin(), failure_reports_.end(),
                   [&](const FailureReports& one) { return one.Covers(place, member.id()); });
  if (reports == failure_reports_.end() || !reports->Add(failed) ||
      !Attribute(member, failed, *reports)) {
    return std::nullopt;
  }
  // The cause lies in the run, not in the workers that have reported it.
  if (IsOfSender(failed.cause())) cluster_.standings().Forgive(failed.cause());
  return absl::StrCat("group ", place.group(), ", rank ", place.rank(), " (", member.id(), " on ",
                      member.record.host(), "): ", failed.reason());
}

std::optional<std::string> Attribution::Fail(const Member& member, const v1::RankSlot& place,
                                             v1::FailureCause cause, const std::string& reason) {
  v1::GroupFailed failed;
  *failed.mutable_place() = place;
  failed.set_cause(cause);
  failed.set_reason(reason);
  return OnGroupFailed(member, failed);
}

bool Attribution::Attribute(const Member& member, const v1::GroupFailed& failed,
                            const FailureReports& reports) {
  const v1::FailureCause cause = failed.cause();
  const v1::RankSlot& place = failed.place();
  Standings& standings = cluster_.standings();
  bool ends = false;
  if (IsOfSender(cause)) {
    standings.Fail(Cluster::WorkerOf(member), cause, failed.reason(), cluster_.now());
    ends = IsPermanent(cause) && run_.live() &&
           failures_.Add(cause, member.record.host(), run_.record().version(), CountHosts()) &&
           !(cause == v1::FAILURE_CAUSE_DATA_DIFFERS && MayAgreeOnData());
  } else if (cause == v1::FAILURE_CAUSE_DIVERGED) {
    std::set<std::string> hosts;
    for (const FailureReports::Rank& rank : reports.ranks()) {
      if (rank.worker.host.empty()) continue;  // The member has been removed.
      hosts.insert(rank.worker.host);
      // One of them may have computed it wrongly.
      standings.Doubt(rank.worker, cluster_.now(), cluster_.now() + kDoubt);
    }
    ends = run_.live() &&
           failures_.AddDivergence(place.generation(), hosts, slots_.size(), CountHosts());
  } else if (cause == v1::FAILURE_CAUSE_PEER) {
    // Until all ranks have reported, other workers are preferred.
    for (const uint32_t rank : failed.suspects()) {
      if (rank >= reports.ranks().size()) continue;
      standings.Doubt(reports.ranks()[rank].worker, cluster_.now(), reports.until());
    }
  }
  return ends;
}

// A suspect that has no stream was lost. The end of its lease is not recorded any more, since its
// peers noticed the loss first and it has no rank.
void Attribution::JudgeReports() {
  std::erase_if(failure_reports_, [this](const FailureReports& reports) {
    if (cluster_.now() < reports.until()) return false;
    const std::vector<uint32_t> suspects = reports.Suspects();
    if (suspects.empty()) {
      for (const uint32_t rank : reports.Named()) {
        cluster_.standings().Doubt(reports.ranks()[rank].worker, cluster_.now(),
                                   cluster_.now() + kDoubt);
      }
    }
    for (const uint32_t rank : suspects) {
      const auto& [id, worker] = reports.ranks()[rank];
      const Member* const member = cluster_.members().Find(id);
      const bool lost = member == nullptr || !member->connected();
      cluster_.standings().Fail(worker, lost ? v1::FAILURE_CAUSE_LEASE : v1::FAILURE_CAUSE_PEER,
                                reports.ReasonOf(rank), cluster_.now());
    }
    return true;
  });
}

size_t Attribution::CountHosts() const {
  std::set<absl::string_view> hosts;
  for (const auto& [id, member] : cluster_.members().all()) {
    // Also one that connects again: its lease has not ended.
    if (!member.worker()) continue;
    if (Suits(member.record, spec())) hosts.insert(member.record.host());
  }
  for (const auto& [host, lost] : cluster_.lost_hosts()) {
    if (cluster_.now() - lost < kReturn) hosts.insert(host);
  }
  for (const auto& [key, record] : cluster_.standings().records()) {
    const absl::Time failed = absl::FromUnixMillis(record.failed().last_ms());
    if (cluster_.now() - failed < kReturn) hosts.insert(key.first);
  }
  return hosts.size() + (cluster_.AwaitsUnknownHost() ? 1 : 0);
}

bool Attribution::MayAgreeOnData() const {
  if (run_.has_started()) return false;
  const size_t agreeing = data_sizes_.CountHosts(DataSizes::Of(run_.record()));
  return data_sizes_.hosts() < CountHosts() || 2 * agreeing > data_sizes_.hosts();
}

Round::Away Attribution::Away() const {
  Round::Away away = groups_.away();
  for (const uint32_t group : rounds_.LeftOut()) away[group] = absl::InfinitePast();
  for (const uint32_t group : paused_) {
    if (group < slots_.size() && HasPaused(slots_[group])) away[group] = absl::InfinitePast();
  }
  return away;
}

bool Attribution::OnHeartbeat(const Member& member, const v1::Heartbeat& heartbeat) {
  Slot& slot = slots_[member.place->group()];
  const uint32_t rank = member.place->rank();
  // The thread may still be occupied by an earlier generation.
  const bool here = heartbeat.has_place() && member.Holds(heartbeat.place());
  // An idle thread that hangs does not take the assignment either, so it counts as preparing.
  const bool idle = heartbeat.activity() == v1::ACTIVITY_UNSPECIFIED;
  const bool reports = !idle || slot.preparing();
  v1::Activity activity =
      reports && (idle || !here) ? v1::ACTIVITY_PREPARING : heartbeat.activity();
  const bool pulls = slot.version < run_.record().version();
  const bool waits = slot.unanswered != 0 || (slot.started() && run_.round().Has(slot.group())) ||
                     (slot.preparing() && slot.prepared_ranks().count(rank) != 0) ||
                     (activity == v1::ACTIVITY_EXCHANGING &&
                      !(pulls ? run_.shards().AllOpen() : run_.shards().AllAccept()));
  const bool at_end =
      slot.record().at_end() && AssignedPart(run_.record().evaluating(), slot.group()) == nullptr;
  if (waits && reports) {
    activity = v1::ACTIVITY_WAITING;
  } else if (activity == v1::ACTIVITY_WAITING && !at_end) {
    // Its thread hangs while it waits: it does not react to an answer, or to a new assignment.
    activity = slot.started() ? v1::ACTIVITY_TRAINING : v1::ACTIVITY_PREPARING;
  }
  if (rank == 0) {
    slot.reported = true;
    slot.exchanges = here && heartbeat.activity() == v1::ACTIVITY_EXCHANGING;
  }
  if (!slot.watch.has_value()) {
    slot.watch.emplace(options_.heartbeat,
                       slot.own_loop() ? std::optional(MaxPause(spec())) : std::nullopt);
  }
  if (slot.started() && slot.progress.step() > slot.record().step()) slot.watch->SetStepped();
  slot.watch->OnHeartbeat(rank, activity, here ? heartbeat.progress() : 0, cluster_.now(), pauses_);
  const double step = std::max(slot.measured.has_value() ? slot.measured->step() : 0.0,
                               static_cast<double>(slot.record().predicted().step()));
  const auto stall = slot.watch->Check(slot.ranks(), absl::Seconds(step), pauses_);
  if (stall.has_value()) FenceStalled(slot, *stall);
  const bool paused = HasPaused(slot);
  if (paused) {
    paused_.insert(slot.group());
  } else {
    paused_.erase(slot.group());
  }
  // A round may wait for the progress of a group that loads, or for its reports; it no longer waits
  // for a group that pauses.
  return stall.has_value() || rounds_.versions().IsLoading(slot.group()) ||
         !run_.shards().lost().empty() || paused;
}

// A program whose steps take longer than the window still makes progress.
bool Attribution::HasPaused(const Slot& slot) const {
  if (!run_.averages() || !slot.started() || !slot.watch.has_value() ||
      run_.round().Has(slot.group())) {
    return false;
  }
  // The time of a contribution includes earlier pauses, the reported one does not.
  const double reported = SecondsOrZero(slot.progress.step_seconds());
  const double step = reported > 0 ? reported : slot.step_seconds();
  return slot.watch->program_pause() >=
         std::max(run_.round().Grace(), kPausedSteps * absl::Seconds(step));
}

void Attribution::FenceStalled(Slot& slot, const ProgressWatch::Stall& stall) {
  pauses_.ObserveStall(stall.activity);
  std::string reason = absl::StrCat(
      "no progress for ", absl::FormatDuration(absl::Trunc(stall.pause, absl::Seconds(1))), " (",
      EnumText(stall.activity), ")");
  std::vector<std::string> names;
  for (uint32_t rank = 0; rank < slot.ranks(); ++rank) {
    Member* const member = cluster_.members().Find(slot.record().members(rank));
    if (member == nullptr) continue;
    const auto& suspects = stall.suspects;
    const bool suspect = std::find(suspects.begin(), suspects.end(), rank) != suspects.end();
    member->hung = {.since = cluster_.now(), .progress = member->progress, .recorded = suspect};
    cluster_.UpdateIdle(*member);
    if (!suspect) continue;
    names.push_back(absl::StrCat(member->id(), " (", member->record.name(), ")"));
    cluster_.standings().Fail(Cluster::WorkerOf(*member), v1::FAILURE_CAUSE_STALLED, reason,
                              cluster_.now());
  }
  if (!names.empty()) absl::StrAppend(&reason, "; first stopped: ", absl::StrJoin(names, ", "));
  cluster_.Count("groups_stalled");
  groups_.Fence(slot, reason, v1::FAILURE_CAUSE_STALLED);
}

}  // namespace cadre
