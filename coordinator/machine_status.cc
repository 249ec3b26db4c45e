// The cluster's status. Part of Machine.
//
// The status is computed from the state for every request; only reports of the members are stored
// for it. All times are by the coordinator's clock. Values that a restart loses (progress,
// heartbeats, measured step times) are absent until the members have sent them again.
#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "coordinator/machine.h"
#include "coordinator/prediction_error_cause.h"
#include "coordinator/run_rules.h"

namespace cadre {

v1::StatusReply Machine::Status(absl::Time now, absl::string_view run_id) const {
  v1::StatusReply reply;
  FillCoordinator(now, reply);
  for (const auto& [number, run] : runs_) {
    if (!run_id.empty() && run.id() != run_id) continue;
    *reply.add_runs() = RunStatusOf(run, now);
    if (!run.live()) continue;
    for (const Slot& slot : run.slots) *reply.add_groups() = GroupStatusOf(run, slot);
  }
  for (const auto& [id, member] : members_.all()) {
    if (member.worker()) {
      *reply.add_workers() = MemberStatusOf(member, now);
    } else {
      *reply.add_aggregators() = AggregatorStatusOf(member, now);
    }
  }
  return reply;
}

absl::StatusOr<v1::RunStatus> Machine::RunStatus(absl::string_view run_id, absl::Time now) const {
  const Run* const run = FindRun(run_id);
  if (run == nullptr) return absl::NotFoundError(absl::StrCat("no such run: ", run_id));
  return RunStatusOf(*run, now);
}

void Machine::FillCoordinator(absl::Time now, v1::StatusReply& reply) const {
  v1::CoordinatorStatus& coordinator = *reply.mutable_coordinator();
  coordinator.set_version(options_.version);
  coordinator.set_schema_hash(options_.schema_hash);
  if (started_ != absl::InfinitePast()) {
    coordinator.set_uptime_seconds(absl::ToDoubleSeconds(now - started_));
  }
  coordinator.set_starts(meta_.starts());
  // Aggregators count what they refuse themselves and report the sums in their heartbeats.
  auto& counters = *reply.mutable_counters();
  counters = meta_.counters();
  for (const auto& [id, member] : members_.all()) {
    for (const auto& [name, value] : member.counters) {
      if (absl::StartsWith(name, "refused_")) counters[name] += value;
    }
  }
}

v1::RunStatus Machine::RunStatusOf(const Run& run, absl::Time now) const {
  const v1::RunRecord& record = run.record;
  v1::RunStatus status;
  status.set_run(record.run());
  status.set_name(record.spec().name());
  status.set_state(record.state());
  status.set_reason(run.live() ? WaitReason(run) : record.reason());
  status.set_lineage(record.lineage());
  status.set_version(record.version());
  status.set_step(record.step());
  status.set_total_steps(TotalSteps(record));
  status.set_epoch(EpochAt(record, record.step()));
  status.set_total_epochs(EpochAt(record, TotalSteps(record)));
  status.set_loss(record.loss());
  if (record.has_test()) *status.mutable_test() = record.test();
  status.set_rounds_committed(record.rounds_committed());
  status.set_payload_bytes_across_groups(record.payload_bytes());
  status.set_bytes_across_groups(record.message_bytes());
  status.set_digest(record.digest() == 0 ? "" : DigestHex(record.digest()));
  status.set_samples(record.samples());
  const uint64_t groups = GroupsOf(record.spec());
  status.set_groups(groups);
  status.set_groups_alive(run.LiveGroups().size());
  if (options_.parameter_count) status.set_parameters(options_.parameter_count(record.spec()));
  // Synchronous training would perform one all-reduce of the gradients of all groups per step,
  // which sends 2 (G - 1) n values in total.
  status.set_bytes_across_groups_synchronous(2 * (groups - 1) * status.parameters() *
                                             sizeof(float) *
                                             (record.step() - FirstStep(record.spec())));
  for (const Slot& slot : run.slots) {
    status.set_rate(std::max(status.rate(), slot.progress.rate()));
    if (record.step() == 0 && slot.progress.step() > 0) status.set_loss(slot.progress.loss());
  }
  if (record.has_discrepancy()) *status.mutable_discrepancy() = DiscrepancyStatus(record);
  FillTimes(run, now, status);
  return status;
}

void Machine::FillTimes(const Run& run, absl::Time now, v1::RunStatus& status) const {
  const v1::RunRecord& record = run.record;
  if (record.started_ms() == 0) return;
  const absl::Time end = run.live() ? now : absl::FromUnixMillis(record.ended_ms());
  const double seconds =
      std::max(0.0, absl::ToDoubleSeconds(end - absl::FromUnixMillis(record.started_ms())));
  status.set_seconds(seconds);
  // Contributions are counted at commits; before the first one, the rate of the groups is used.
  double now_training = 0;
  uint32_t step = record.step();
  for (const Slot& slot : run.slots) {
    now_training += slot.progress.samples_per_second();
    step = std::max(step, slot.progress.step());
  }
  if (record.samples() > 0 && seconds > 0) {
    status.set_samples_per_second(static_cast<double>(record.samples()) / seconds);
  } else {
    status.set_samples_per_second(now_training);
  }
  const uint32_t done = step - FirstStep(record.spec());
  if (run.live() && done > 0 && status.total_steps() > step) {
    status.set_eta_seconds(seconds / done * (status.total_steps() - step));
  }
}

// AT_BOUNDARY lasts from Contributed to Decision, also while a commit is being applied.
v1::GroupState Machine::StateOf(const Run& run, const Slot& slot) {
  if (slot.waiting()) return v1::GROUP_STATE_WAITING;
  if (!slot.started()) return v1::GROUP_STATE_PREPARING;
  if (slot.record().at_end()) return v1::GROUP_STATE_IDLE;
  if (slot.unanswered != 0 || run.round.Has(slot.group())) return v1::GROUP_STATE_AT_BOUNDARY;
  return slot.progress.solo_steps() > 0 ? v1::GROUP_STATE_SOLO : v1::GROUP_STATE_TRAINING;
}

v1::GroupStatus Machine::GroupStatusOf(const Run& run, const Slot& slot) const {
  v1::GroupStatus status;
  const v1::GroupRecord& record = slot.record();
  status.set_run(run.id());
  status.set_group(slot.group());
  status.set_generation(record.generation());
  status.set_state(StateOf(run, slot));
  for (const v1::MeshAxis& axis : record.plan().mesh()) {
    (*status.mutable_mesh())[axis.name()] = axis.size();
  }
  for (uint32_t rank = 0; rank < slot.ranks(); ++rank) {
    v1::GroupMember& member = *status.add_members();
    member.set_rank(rank);
    member.set_member_id(record.members(rank));
    const Member* const known = members_.Find(member.member_id());
    if (known != nullptr) member.set_name(known->record.name());
    auto prepared = slot.prepared_ranks().find(rank);
    if (prepared != slot.prepared_ranks().end()) {
      *member.mutable_held() = prepared->second.held();
      *member.mutable_memory() = prepared->second.memory();
      *member.mutable_planned_memory() = prepared->second.planned_memory();
    }
  }
  status.set_step(std::max(slot.progress.step(), record.step()));
  status.set_loss(slot.progress.loss());
  status.set_samples_per_second(slot.progress.samples_per_second());
  status.set_version(std::max(slot.version, record.version()));
  status.set_solo_steps(slot.progress.solo_steps());
  status.set_reason(record.reason());
  *status.mutable_plan() = slot.plan();
  const v1::Cluster& cluster = run.spec().cluster();
  status.set_collectives(cluster.collectives() == v1::Cluster::COLLECTIVE_POLICY_UNSPECIFIED
                             ? v1::Cluster::AUTO
                             : cluster.collectives());
  status.set_overlap(cluster.overlap() == v1::Cluster::OVERLAP_UNSPECIFIED ? v1::Cluster::ON
                                                                           : cluster.overlap());
  status.set_step_seconds(slot.progress.step_seconds());
  status.set_exposed_seconds(slot.progress.exposed_seconds());
  FillPrediction(slot, status);
  return status;
}

void Machine::FillPrediction(const Slot& slot, v1::GroupStatus& status) {
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

v1::MemberStatus Machine::MemberStatusOf(const Member& member, absl::Time now) const {
  v1::MemberStatus status;
  status.set_member_id(member.id());
  status.set_name(member.record.name());
  status.set_host(member.record.host());
  status.set_address(member.record.address());
  status.set_device(member.record.device());
  status.set_heartbeat_age_seconds(std::max(0.0, absl::ToDoubleSeconds(now - member.last_heard)));
  status.set_connected(member.connected());
  if (member.place.has_value()) *status.mutable_place() = *member.place;
  for (const auto& [name, value] : member.counters) (*status.mutable_counters())[name] = value;
  return status;
}

v1::AggregatorStatus Machine::AggregatorStatusOf(const Member& member, absl::Time now) const {
  v1::AggregatorStatus status;
  *status.mutable_member() = MemberStatusOf(member, now);
  for (const auto& [number, run] : runs_) {
    for (int i = 0; i < run.record.shards_size(); ++i) {
      if (!run.live() || !Owns(member, run, i)) continue;
      v1::ShardState& shard = *status.add_shards();
      shard.set_run(run.id());
      shard.set_lineage(run.record.lineage());
      shard.set_shard(i);
      shard.set_version(run.record.version());
      shard.set_digest(run.ShardDigestOf(i).value_or(0));
    }
  }
  return status;
}

// Returns the first reason that applies, in the order in which a run needs its members.
std::string Machine::WaitReason(const Run& run) const {
  for (const std::string& name : run.record.shards()) {
    const Member* const member = members_.Aggregator(name);
    if (member == nullptr || !member->connected()) {
      return absl::StrCat("waiting for aggregator ", name);
    }
  }
  const bool formed = std::any_of(run.slots.begin(), run.slots.end(),
                                  [](const Slot& slot) { return !slot.waiting(); });
  if (formed) return run.record.state() == v1::RUN_STATE_QUEUED ? "workers are preparing" : "";
  if (run.averages() && run.record.shards_size() == 0) {
    const auto connected = std::count_if(
        members_.all().begin(), members_.all().end(),
        [](const auto& entry) { return !entry.second.worker() && entry.second.connected(); });
    const auto required = std::max<int64_t>(1, run.spec().cluster().aggregators());
    if (connected < required) {
      return absl::StrCat("waiting for aggregators: ", connected, " of ", required, " connected");
    }
  }
  if (run.averages() && run.record.shards_size() > 0 && !run.shards_open()) {
    return "aggregators are opening their shards";
  }
  return MissingWorkers(run);
}

std::string Machine::MissingWorkers(const Run& run) const {
  const uint32_t ranks = RanksPerGroup(run.spec());
  const std::vector<std::string> idle = IdleWorkers();
  const auto cuda = std::count_if(idle.begin(), idle.end(), [this](const std::string& id) {
    return members_.Find(id)->record.device_kind() == v1::Cluster::CUDA;
  });
  const int64_t cpu = std::ssize(idle) - cuda;
  const v1::Cluster::Device device = RequestedDevice(run.spec());
  if (device == v1::Cluster::CUDA) {
    return absl::StrCat("waiting for ", ranks, ranks == 1 ? " worker" : " workers",
                        " with CUDA devices; idle: ", cuda, " with CUDA devices, ", cpu,
                        " with CPUs");
  }
  if (cuda == 0) {
    return absl::StrCat("waiting for workers: ", idle.size(), " of ", ranks,
                        " for a group are idle");
  }
  return absl::StrCat("waiting for ", ranks, ranks == 1 ? " worker" : " workers",
                      device == v1::Cluster::CPU ? " with CPUs" : " with one kind of device",
                      "; idle: ", cpu, " with CPUs, ", cuda, " with CUDA devices");
}

}  // namespace cadre
