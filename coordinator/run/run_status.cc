#include "coordinator/run/run_status.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/digest.h"
#include "coordinator/cluster/device_match.h"
#include "coordinator/run/evaluation.h"
#include "coordinator/run/formation.h"
#include "coordinator/run/prediction_error_cause.h"
#include "coordinator/run/run_rules.h"
#include "coordinator/run/screen.h"
#include "model/shard_space.h"

namespace cadre {
namespace {

std::string AfterReason(const std::string& reason, const std::string& next) {
  return absl::StrCat(reason, reason.empty() || next.empty() ? "" : "; ", next);
}

// Computes the perplexities of the known losses. One that is too large for a number is left out.
void FillPerplexity(v1::RunStatus& status) {
  const double perplexity = std::exp(status.loss());
  if (status.has_loss() && std::isfinite(perplexity)) status.set_perplexity(perplexity);
  const double of_test = std::exp(status.test().loss());
  if (status.test().samples() > 0 && std::isfinite(of_test)) status.set_test_perplexity(of_test);
}

void FillPrediction(const Slot& slot, v1::GroupStatus& status) {
  const bool predicted = slot.record().has_predicted();
  if (predicted) *status.mutable_predicted() = slot.record().predicted();
  status.set_prediction_from_own_measurement(slot.record().prediction_from_own_measurement());
  if (!slot.measured.has_value()) return;
  *status.mutable_measured() = *slot.measured;
  if (!predicted) return;
  status.set_prediction_error(PredictionError(slot.record().predicted(), *slot.measured));
  status.set_prediction_error_cause(
      PredictionErrorCause(slot.record().predicted(), *slot.measured));
}

v1::GroupMember RankStatus(const Membership& members, const Slot& slot, uint32_t rank,
                           bool details) {
  v1::GroupMember member;
  member.set_rank(rank);
  member.set_member_id(slot.record().members(rank));
  const Member* const known = members.Find(member.member_id());
  if (known != nullptr) {
    member.set_name(known->record.name());
    member.set_step_seconds(known->step_seconds);
    member.set_wait_seconds(known->wait_seconds);
    member.mutable_fallbacks()->Add(known->fallbacks.begin(), known->fallbacks.end());
  }
  const auto prepared = slot.prepared_ranks().find(rank);
  if (details && prepared != slot.prepared_ranks().end()) {
    *member.mutable_held() = prepared->second.held();
    *member.mutable_memory() = prepared->second.memory();
    if (prepared->second.has_planned_memory()) {
      *member.mutable_planned_memory() = prepared->second.planned_memory();
    }
  }
  return member;
}

// Requires: `status` has the parameters and the number of groups.
void FillTraffic(const v1::RunRecord& record, const RunTraffic& traffic, v1::RunStatus& status) {
  const uint64_t groups = status.groups();
  status.set_payload_bytes_across_groups(record.payload_bytes() + traffic.payload);
  status.set_bytes_across_groups(record.message_bytes() + traffic.up + traffic.down);
  status.set_bytes_up(record.bytes_up() + traffic.up);
  status.set_bytes_down(status.bytes_across_groups() - status.bytes_up());
  // Synchronous training would perform one all-reduce of the gradients of all groups per step,
  // which sends 2 (G - 1) n values in total. G is the present number of groups.
  status.set_bytes_across_groups_synchronous(2 * (groups - 1) * status.parameters() *
                                             sizeof(float) *
                                             (record.step() - FirstStep(record.spec())));
  if (const uint64_t bytes = status.bytes_across_groups(); bytes > 0) {
    const double steps = record.step() - FirstStep(record.spec());
    status.set_traffic_factor(8.0 * static_cast<double>(status.parameters()) * steps *
                              static_cast<double>(groups) / static_cast<double>(bytes));
    status.set_exposed_exchange_seconds((record.exchange_seconds() + traffic.exposed_seconds) /
                                        static_cast<double>(groups));
    status.set_transfer_seconds((record.transfer_seconds() + traffic.transfer_seconds) /
                                static_cast<double>(groups));
  }
}

void FillTimes(const RunView& run, absl::Time now, v1::RunStatus& status) {
  const v1::RunRecord& record = run.record();
  if (record.started_ms() == 0) return;
  const absl::Time end = run.live() ? now : absl::FromUnixMillis(record.ended_ms());
  const double seconds =
      std::max(0.0, absl::ToDoubleSeconds(end - absl::FromUnixMillis(record.started_ms())));
  status.set_seconds(seconds);
  // Contributions are counted at commits; before the first one, the rate of the groups is used.
  double now_training = 0;
  double tokens_now = 0;
  uint32_t step = record.step();
  for (const Slot& slot : run.slots()) {
    now_training += slot.progress.samples_per_second();
    tokens_now += slot.tokens_per_second();
    step = std::max(step, slot.progress.step());
  }
  if (record.samples() > 0 && seconds > 0) {
    status.set_samples_per_second(static_cast<double>(record.samples()) / seconds);
    status.set_tokens_per_second(static_cast<double>(record.metrics().tokens()) / seconds);
  } else {
    status.set_samples_per_second(now_training);
    status.set_tokens_per_second(tokens_now);
  }
  const uint32_t done = step - FirstStep(record.spec());
  if (run.active() && done > 0 && status.total_steps() > step) {
    status.set_eta_seconds(seconds / done * (status.total_steps() - step));
  }
}

// Requires: `status` has the reason of the record.
void FillScreening(const v1::RunRecord& run, v1::GroupStatus& status) {
  const auto found = run.screening().find(status.group());
  if (found == run.screening().end()) return;
  const v1::GroupScreening& record = found->second;
  status.set_screened(record.screened());
  *status.mutable_newest_screened() = record.newest();
  if (record.left_out() == 0) return;
  status.set_reason(AfterReason(status.reason(), absl::StrCat("round ", record.newest().round(),
                                                              " has left out its contribution: ",
                                                              WhyScreened(record.newest()))));
}

// AT_BOUNDARY lasts from Contributed to Decision, also while a commit is being applied.
v1::GroupState StateOf(const Slot& slot, const Round& round) {
  if (slot.waiting()) return v1::GROUP_STATE_WAITING;
  if (!slot.started()) return v1::GROUP_STATE_PREPARING;
  if (slot.record().at_end()) return v1::GROUP_STATE_IDLE;
  if (slot.unanswered != 0 || round.Has(slot.group())) return v1::GROUP_STATE_AT_BOUNDARY;
  return slot.progress.solo_steps() > 0 ? v1::GROUP_STATE_SOLO : v1::GROUP_STATE_TRAINING;
}

// The ranks of the group that have lost their streams; empty if there are none. A group waits for
// such a rank until its lease expires.
std::string DisconnectedRanks(const Membership& members, const Slot& slot) {
  std::vector<std::string> away;
  for (uint32_t rank = 0; rank < slot.ranks(); ++rank) {
    const Member* const member = members.Find(slot.record().members(rank));
    if (member == nullptr || member->connected()) continue;
    away.push_back(Programs::Describe(rank, *member));
  }
  return away.empty() ? "" : absl::StrCat("waiting for ", absl::StrJoin(away, ", "));
}

}  // namespace

v1::RunStatus RunWithStatus::Status(absl::Time now) const {
  const v1::RunRecord& record = this->record();
  v1::RunStatus status;
  status.set_run(record.run());
  status.set_name(record.spec().name());
  status.set_priority(record.spec().priority());
  status.set_state(record.state());
  status.set_reason(active() || behind() ? WaitReason() : record.reason());
  status.set_lineage(record.lineage());
  status.set_version(record.version());
  status.set_step(record.step());
  status.set_total_steps(TotalSteps(record));
  status.set_epoch(EpochAt(record, record.step()));
  status.set_total_epochs(EpochAt(record, TotalSteps(record)));
  if (record.has_loss()) status.set_loss(record.loss());
  if (record.has_test()) *status.mutable_test() = record.test();
  if (record.has_metrics()) *status.mutable_metrics() = record.metrics();
  status.set_evaluation_seconds(record.evaluation_seconds());
  status.set_rounds_committed(record.rounds_committed());
  status.set_digest(record.digest() == 0 ? "" : DigestHex(record.digest()));
  status.set_samples(record.samples());
  const uint64_t groups = slots().size();
  status.set_groups(groups);
  if (record.scaling_to() != groups) status.set_scaling_to(record.scaling_to());
  status.set_groups_alive(slots().started().size());
  status.set_parameters(Parameters());
  FillTraffic(record, parts_.rounds.traffic(), status);
  for (const Slot& slot : slots()) {
    status.set_rate(std::max(status.rate(), slot.progress.rate()));
    if (record.step() == 0 && slot.progress.has_loss()) status.set_loss(slot.progress.loss());
  }
  if (record.has_discrepancy()) *status.mutable_discrepancy() = DiscrepancyStatus(record);
  if (record.has_outer()) *status.mutable_outer() = OuterStatusOf(record);
  FillVersions(status);
  parts_.aggregators.copies().FillStatus(status);
  if (parts_.evaluation.checkpoints().Writes()) *status.mutable_checkpoint() = record.checkpoint();
  *status.mutable_warnings() = record.warnings();
  FillRemoval(status);
  if (record.has_residual()) status.set_residual_ratio(ResidualRatioOf(record));
  FillTimes(*this, now, status);
  if (status.tokens_per_second() > 0 || record.metrics().tokens() > 0) FillPerplexity(status);
  return status;
}

v1::GroupStatus RunWithStatus::StatusOf(const Slot& slot, bool details) const {
  v1::GroupStatus status;
  const v1::GroupRecord& record = slot.record();
  status.set_run(id());
  status.set_group(slot.group());
  status.set_generation(record.generation());
  status.set_state(StateOf(slot, round()));
  // Programs divide their work themselves.
  if (!slot.own_loop()) {
    for (const v1::MeshAxis& axis : record.plan().mesh()) {
      (*status.mutable_mesh())[axis.name()] = axis.size();
    }
    const v1::Cluster& cluster = spec().cluster();
    status.set_collectives(cluster.collectives() == v1::Cluster::COLLECTIVE_POLICY_UNSPECIFIED
                               ? v1::Cluster::AUTO
                               : cluster.collectives());
    status.set_overlap(cluster.overlap() == v1::Cluster::OVERLAP_UNSPECIFIED ? v1::Cluster::ON
                                                                             : cluster.overlap());
  }
  for (uint32_t rank = 0; rank < slot.ranks(); ++rank) {
    *status.add_members() = RankStatus(cluster_.members(), slot, rank, details);
  }
  status.set_step(std::max(slot.progress.step(), record.step()));
  if (slot.progress.has_loss()) status.set_loss(slot.progress.loss());
  status.set_samples_per_second(slot.progress.samples_per_second());
  if (slot.progress.has_metrics()) *status.mutable_metrics() = slot.progress.metrics();
  status.set_version(std::max(slot.version, record.version()));
  status.set_solo_steps(slot.progress.solo_steps());
  FillReason(slot, status);
  if (details) *status.mutable_plan() = slot.plan();
  status.set_step_seconds(slot.progress.step_seconds());
  status.set_exposed_seconds(slot.progress.exposed_seconds());
  FillPrediction(slot, status);
  return status;
}

// Requires: `status` has the state.
void RunWithStatus::FillReason(const Slot& slot, v1::GroupStatus& status) const {
  status.set_reason(slot.record().reason());
  FillScreening(this->record(), status);
  if (LeavesOut(slot.group())) {
    status.set_reason("left out of the run since a rollback, until the run is scaled");
  }
  if (slot.waiting() && slot.blocked_until() > cluster_.now()) {
    status.set_reason(absl::StrCat(
        slot.record().failed().failures(), " failures without a commit; next attempt in ",
        absl::FormatDuration(absl::Ceil(slot.blocked_until() - cluster_.now(), absl::Seconds(1))),
        "; last failure: ", slot.record().failed().reason()));
  }
  if (slot.waiting()) {
    const std::string incomplete = IncompletePrograms();
    if (!incomplete.empty()) status.set_reason(AfterReason(status.reason(), incomplete));
  } else if (const std::string away = DisconnectedRanks(cluster_.members(), slot); !away.empty()) {
    status.set_reason(AfterReason(status.reason(), away));
  }
  if (slot.prepared() && round().HasLeft(slot.group())) {
    status.set_reason(AfterReason(
        status.reason(), absl::StrCat("begins after round ", round().round(),
                                      ", which has a contribution of this group already")));
  }
  if (slot.exchanges || status.state() == v1::GROUP_STATE_AT_BOUNDARY) {
    const std::string away = AwayReason();
    if (!away.empty()) status.set_reason(AfterReason(status.reason(), away));
  }
}

void RunWithStatus::FillVersions(v1::RunStatus& status) const {
  for (const uint32_t version : parts_.rounds.versions().Kept()) {
    const v1::CommitRecord& commit = *commits().Find(version);
    v1::KeptVersionStatus& kept = *status.add_kept_versions();
    kept.set_version(version);
    kept.set_step(version == 0 ? FirstStep(spec()) : commit.step());
    kept.set_digest(DigestHex(commit.digest()));
    if (commit.has_restores()) kept.set_restores(commit.restores());
  }
  if (record().has_rollback()) status.set_rolling_back_to(record().rollback());
  *status.mutable_left_out_groups() = record().left_out();
  status.set_diverged(record().diverged());
}

uint64_t RunWithStatus::Parameters() const {
  if (!parameters_.has_value()) {
    parameters_ = options_.parameter_count ? options_.parameter_count(spec()) : 0;
  }
  return *parameters_;
}

EndedRun RunWithStatus::Ended() const {
  const v1::RunRecord& record = this->record();
  EndedRun ended{.number = number(),
                 .has_version = record.version() > 0 || record.has_unknown_versions(),
                 .ended = absl::FromUnixMillis(record.ended_ms())};
  if (record.removal_ms() != 0) ended.removal = absl::FromUnixMillis(record.removal_ms());
  if (!ended.has_version) return ended;
  // The newest version and the one before are always stored, also if the record has none of them.
  std::set<uint32_t> versions(record.kept().begin(), record.kept().end());
  const uint32_t newest = std::max(record.version(), 1U);
  versions.insert({newest, newest - 1});
  ended.bytes = SpaceOfEnded(spec(), Parameters(), versions.size());
  return ended;
}

bool RunWithStatus::HasSoleModelOn(absl::string_view aggregator) const {
  return !live() && Ended().has_version && absl::c_linear_search(record().shards(), aggregator);
}

void RunWithStatus::FillRemoval(v1::RunStatus& status) const {
  if (live()) return;
  status.set_stored_bytes(Ended().bytes);
  status.set_removal_ms(record().removal_ms());
  if (const std::string text = RemovalText(); !text.empty()) status.add_warnings(text);
}

void RunWithStatus::FillShards(const Member& aggregator, v1::AggregatorStatus& status) const {
  parts_.obligations.FillDelayed(aggregator, status);
  if (!live()) return;
  parts_.aggregators.moves().FillStatus(aggregator, status);
  for (int i = 0; i < shards().size(); ++i) {
    if (!shards().Owns(aggregator.record.name(), i)) continue;
    v1::ShardState& shard = *status.add_shards();
    shard.set_run(id());
    shard.set_lineage(record().lineage());
    shard.set_shard(i);
    shard.set_version(record().version());
    shard.set_digest(commits().ShardDigest(i).value_or(0));
  }
}

std::string RunWithStatus::WaitReason() const {
  if (const std::string away = AwayReason(); !behind() && !away.empty()) {
    return AfterReason(away, parts_.aggregators.moves().RescueText());
  }
  const std::optional<std::string> reason = WaitReasonBesideWorkers();
  return reason.has_value() ? *reason : MissingWorkers();
}

std::string RunWithStatus::AwayReason() const {
  const auto away = parts_.aggregators.directory().FindAway();
  if (!away) return "";
  const absl::Duration time = cluster_.now() - away->since;
  return absl::StrCat("waiting for aggregator ", away->name, ", away for ",
                      absl::FormatDuration(absl::Trunc(time, absl::Seconds(1))), " (limit ",
                      absl::FormatDuration(parts_.aggregators.directory().Patience()), ")");
}

// Returns the first reason that applies, in the order in which a run needs its members.
std::optional<std::string> RunWithStatus::WaitReasonBesideWorkers() const {
  if (behind()) {
    return absl::StrCat("its record is older than the values of its aggregators, and is rebuilt: ",
                        parts_.stale.problem());
  }
  if (const auto away = parts_.aggregators.directory().FindAway()) {
    return absl::StrCat("waiting for aggregator ", away->name);
  }
  const std::string rescue = parts_.aggregators.moves().RescueText();
  for (const std::string& name : record().shards()) {
    const Member& aggregator = *cluster_.members().Aggregator(name);
    for (const v1::DelayedOrder& delayed : aggregator.delayed_orders) {
      if (delayed.run() == id()) {
        return AfterReason(Cluster::DelayText(aggregator, delayed), rescue);
      }
    }
  }
  for (std::string& reason : std::array{parts_.obligations.Reason(), shards().RestoreReason(),
                                        parts_.aggregators.copies().WaitReason(),
                                        parts_.aggregators.moves().WaitReason(), RoundReason()}) {
    if (!reason.empty()) return AfterReason(reason, rescue);
  }
  if (parts_.evaluation.complete()) {
    if (parts_.evaluation.AwaitsPrograms())
      return "waiting for the programs to load the last version";
    if (parts_.evaluation.AwaitsCheckpoint()) {
      return absl::StrCat("waiting for group ", parts_.evaluation.checkpoints().writer(),
                          " to write the last checkpoint, of step ", record().step());
    }
  }
  if (slots().waiting().size() < slots().size()) {
    const bool all_prepared =
        slots().waiting().size() + slots().prepared().size() == slots().size();
    if (awaits_data() && all_prepared) {
      return "waiting for a worker of Cadre, which reads the data: programs alone need stop.steps";
    }
    if (record().state() == v1::RUN_STATE_QUEUED) return "workers are preparing";
    const uint32_t min_groups = spec().averaging().min_groups();
    const size_t alive = slots().started().size();
    if (alive >= min_groups || record().state() != v1::RUN_STATE_RUNNING) return "";
    return absl::StrCat("waiting for groups: ", alive, " of at least ", min_groups, " are live");
  }
  if (averages() && record().shards_size() == 0) {
    if (std::string reason = parts_.aggregators.choice().FindPlacement().reason; !reason.empty())
      return reason;
  }
  if (averages() && record().shards_size() > 0 && !shards_open()) {
    std::vector<std::string> opening;
    for (int shard = 0; shard < shards().size(); ++shard) {
      if (!shards().IsOpen(shard)) opening.push_back(record().shards(shard));
    }
    return absl::StrCat("aggregators are opening their shards: ", absl::StrJoin(opening, ", "));
  }
  if (planner_.IsSearching(id())) return "searching a plan for the measured workers";
  return std::nullopt;
}

std::string RunWithStatus::RoundReason() const {
  if (record().has_rollback()) {
    return absl::StrCat("the run is being rolled back to version ", record().rollback());
  }
  const absl::Time until = parts_.rounds.versions().AwaitsLoadsUntil({});
  const bool ready = round().ClosesAt(slots().started().size(), {}) <= cluster_.now();
  if (!ready || until <= cluster_.now()) return "";
  std::vector<std::string> groups;
  for (const auto& [group, version] : parts_.rounds.versions().LoadsThatEnd({})) {
    groups.push_back(absl::StrCat("group ", group, ", which loads version ", version));
  }
  return absl::StrCat("round ", round().round(), " waits at most ",
                      absl::FormatDuration(absl::Ceil(until - cluster_.now(), absl::Seconds(1))),
                      " for ", absl::StrJoin(groups, ", and "));
}

// It visits all idle workers, so it is called for a status, but not for every event.
std::string RunWithStatus::IncompletePrograms() const {
  std::set<absl::string_view> seen;
  std::vector<std::string> incomplete;
  for (const std::string& id : cluster_.members().idle()) {
    const v1::MemberRecord& worker = cluster_.members().Find(id)->record;
    const v1::Reservation& reservation = worker.reservation();
    if (!IsReserved(reservation) || !worker.program_ended().empty() ||
        !seen.insert(reservation.program()).second) {
      continue;
    }
    const std::string missing = cluster_.programs().MissingRanks(reservation);
    if (missing.empty()) continue;
    incomplete.push_back(absl::StrCat("the program of '", worker.name(), "' waits for ", missing));
  }
  return absl::StrJoin(incomplete, "; ");
}

std::string RunWithStatus::MissingWorkers() const {
  const std::string incomplete = IncompletePrograms();
  if (incomplete.empty() && !record().reason().empty()) {  // of OnLoopEnded
    const uint32_t total = TotalSteps(record());
    return absl::StrCat(record().reason(), " at step ", record().step(),
                        total > 0 ? absl::StrCat(" of ", total) : "",
                        "; it continues when a program joins, and `cadre stop ", id(), "` ends it");
  }
  if (spec().model().has_opaque()) {
    return incomplete.empty() ? "waiting for a program to join" : incomplete;
  }
  const std::string workers = MissingNativeWorkers();
  return incomplete.empty() ? workers : absl::StrCat(workers, "; ", incomplete);
}

std::string RunWithStatus::MissingNativeWorkers() const {
  const Membership& members = cluster_.members();
  const uint32_t ranks = RanksPerGroup(spec());
  const RunQueue& queue = cluster_.queue();
  size_t available = 0;
  for (const v1::Cluster::Device kind : kDeviceKinds) {
    available = std::max(available, CountAvailable(*this, members, queue, kind));
  }
  const std::string waiting = absl::StrCat("waiting for workers", WorkersText(), ": ");
  if (CountServable(*this, members, queue, cluster_.now()) == 0) {
    const bool has_groups = slots().waiting().size() < slots().size();
    return absl::StrCat(waiting, "a group needs ", ranks, ", and ",
                        available == 0 ? "none" : absl::StrCat("only ", available), " can be used",
                        has_groups ? " besides those of the run" : "", BlockedText(),
                        cluster_.ExcludedWorkers(), "; other runs are served meanwhile");
  }
  size_t idle = 0;
  std::string before;
  std::optional<RunQueue::Start> start;
  for (const v1::Cluster::Device kind : kDeviceKinds) {
    if (CountAvailable(*this, members, queue, kind) == 0) continue;
    const size_t of_kind = CountIdle(kind);
    const size_t reserved = std::min(of_kind, queue.DemandBefore(number(), kind));
    idle = std::max(idle, of_kind - reserved);
    if (reserved > 0) before = queue.FirstBefore(number(), kind);
    const auto expected = queue.ExpectedStart(number(), kind);
    if (expected.has_value() && (!start.has_value() || expected->at < start->at)) start = expected;
  }
  std::string text = absl::StrCat(waiting, idle, " of ", ranks, " for a group are idle");
  if (!before.empty()) absl::StrAppend(&text, " and not reserved for ", before);
  absl::StrAppend(&text, cluster_.ExcludedWorkers());
  if (!start.has_value()) return text;
  const absl::Duration left = std::max(start->at - cluster_.now(), absl::ZeroDuration());
  return absl::StrCat(text, "; expected to start in ",
                      absl::FormatDuration(absl::Ceil(left, absl::Seconds(1))), ", when ",
                      start->after, " ends");
}

std::string RunWithStatus::BlockedText() const {
  const v1::Cluster::Device requested = RequestedDevice(spec());
  RunQueue::Blocked most;
  for (const v1::Cluster::Device kind : kDeviceKinds) {
    if (requested != v1::Cluster::DEVICE_UNSPECIFIED && requested != kind) continue;
    const RunQueue::Blocked held = cluster_.queue().HeldByBlocked(number(), kind);
    if (held.workers > most.workers) most = held;
  }
  if (most.workers == 0) return "";
  return absl::StrCat(" (", most.workers, " more in ", most.first, ", which lacks workers itself)");
}

size_t RunWithStatus::CountIdle(v1::Cluster::Device kind) const {
  return absl::c_count_if(cluster_.members().idle(), [&](const std::string& id) {
    const v1::MemberRecord& worker = cluster_.members().Find(id)->record;
    return !worker.has_reservation() && worker.device_kind() == kind && Suits(worker, spec());
  });
}

std::string RunWithStatus::WorkersText() const {
  const v1::Cluster::Device device = RequestedDevice(spec());
  const v1::RunSpec::Precision precision = spec().precision();
  const auto kinds = absl::c_count_if(kDeviceKinds, [&](v1::Cluster::Device kind) {
    return cluster_.members().counts().Usable(kind, precision) > 0;
  });
  return absl::StrCat(device == v1::Cluster::CUDA  ? " with CUDA devices"
                      : device == v1::Cluster::CPU ? " with CPUs"
                      : kinds > 1                  ? " with one kind of device"
                                                   : "",
                      precision <= v1::RunSpec::FP32
                          ? ""
                          : absl::StrCat(" that support ", v1::RunSpec::Precision_Name(precision)));
}

}  // namespace cadre
