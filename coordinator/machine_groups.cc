// Groups: forming, starting, fencing. Part of Machine.
//
// The life of a generation:
//
//   FormSlot     chooses idle workers and a plan; the generation number comes from the store
//   Assignment   to every rank, with the peers' addresses, the plan and the first version
//   Prepared     from every rank: data sets are open, the version is loaded, the ranks are
//                connected; rank 0 reports the plan with buckets and the measured link
//   Start        to every rank, once all are prepared; the first groups of a run start together
//   Fence        ends the generation, whose late messages are refused from then on: its ranks are
//                released, its contribution to the open round is removed and its part of an
//                evaluation becomes free
//
// A slot that waits for workers reserves idle ones, in order of submission and of slots. Otherwise
// runs with small groups would take every worker that becomes idle, and a large group would never
// form. The price is idle workers while a large group waits.
//
// A group of full size forms immediately. A smaller one forms only in a slot that had a group
// before, after rejoin_wait: a restarted worker usually returns sooner, and forming the group twice
// costs more than the wait. The first generation always has full size, so a run never starts with
// fewer workers than requested.
//
// All ranks of a group have one kind of device, since the slowest rank determines the pace.
#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "coordinator/evaluation.h"
#include "coordinator/machine.h"
#include "coordinator/run_rules.h"

namespace cadre {

// Members are ordered by age, so the oldest idle worker comes first.
std::vector<std::string> Machine::IdleWorkers() const {
  std::vector<std::string> idle;
  for (const auto& [id, member] : members_.all()) {
    if (member.worker() && member.connected() && !member.place.has_value()) idle.push_back(id);
  }
  return idle;
}

// Groups are filled host by host, so that as many ranks as possible share a host.
std::vector<std::string> Machine::SortByHost(const std::vector<std::string>& workers) const {
  std::vector<std::string> hosts;
  std::map<std::string, std::vector<std::string>> on;
  for (const std::string& id : workers) {
    const std::string& host = members_.Find(id)->record.host();
    if (on[host].empty()) hosts.push_back(host);
    on[host].push_back(id);
  }
  std::vector<std::string> sorted;
  for (const std::string& host : hosts) {
    sorted.insert(sorted.end(), on[host].begin(), on[host].end());
  }
  return sorted;
}

bool Machine::NeedsGroup(const Run& run, const Slot& slot) const {
  if (!slot.waiting()) return false;
  if (run.record.state() != v1::RUN_STATE_FINISHING || !run.averages()) return true;
  // At the end of the run a group is formed only to evaluate a part of the test split that no other
  // group will evaluate.
  const bool occupied = std::any_of(run.slots.begin(), run.slots.end(),
                                    [](const Slot& other) { return !other.waiting(); });
  return !occupied && HasFreePart(run.record.evaluating());
}

void Machine::FormGroups(Run& run, std::vector<std::string>& idle) {
  for (Slot& slot : run.slots) {
    if (!NeedsGroup(run, slot)) continue;
    if (run.shards_open() && !run.committing() && FormSlot(run, slot, idle)) continue;
    ReserveFor(run, idle);
  }
}

// Reserves the workers that a slot waits for: later slots and runs do not get them.
void Machine::ReserveFor(const Run& run, std::vector<std::string>& idle) const {
  std::vector<std::string> reserved;
  for (std::vector<std::string>& workers : GroupByDevice(run, idle)) {
    if (workers.size() > reserved.size()) reserved = std::move(workers);
  }
  reserved.resize(std::min<size_t>(reserved.size(), RanksPerGroup(run.spec())));
  Take(reserved, idle);
}

// The workers divided by device kind, without kinds that the run does not accept. The kind of the
// first worker comes first.
std::vector<std::vector<std::string>> Machine::GroupByDevice(
    const Run& run, const std::vector<std::string>& idle) const {
  const v1::Cluster::Device device = RequestedDevice(run.spec());
  std::vector<v1::Cluster::Device> kinds;
  std::vector<std::vector<std::string>> workers;
  for (const std::string& id : idle) {
    const v1::Cluster::Device kind = members_.Find(id)->record.device_kind();
    if (device != v1::Cluster::DEVICE_UNSPECIFIED && kind != device) continue;
    const auto index = std::find(kinds.begin(), kinds.end(), kind) - kinds.begin();
    if (index == std::ssize(kinds)) {
      kinds.push_back(kind);
      workers.emplace_back();
    }
    workers[index].push_back(id);
  }
  return workers;
}

v1::Cluster::Device Machine::DeviceKindOf(const Slot& slot) const {
  const Member* const first = members_.Find(slot.record().members(0));
  return first == nullptr ? v1::Cluster::DEVICE_UNSPECIFIED : first->record.device_kind();
}

size_t Machine::IdleWorkersOf(v1::Cluster::Device kind) const {
  const std::vector<std::string> idle = IdleWorkers();
  return std::count_if(idle.begin(), idle.end(), [&](const std::string& id) {
    return members_.Find(id)->record.device_kind() == kind;
  });
}

void Machine::Take(const std::vector<std::string>& workers, std::vector<std::string>& idle) {
  const std::set<absl::string_view> taken(workers.begin(), workers.end());
  std::erase_if(idle, [&](const std::string& id) { return taken.count(id) != 0; });
}

// Forms a full group immediately; a smaller one only in a slot that had a group before, after
// rejoin_wait. All ranks have one kind of device.
bool Machine::FormSlot(Run& run, Slot& slot, std::vector<std::string>& idle) {
  const size_t requested = RanksPerGroup(run.spec());
  const bool waited =
      slot.record().lived() && now_ >= slot.waiting_since() + RejoinWait(run.spec());
  const size_t min_ranks = waited ? MinRanksPerGroup(run.spec()) : requested;
  if (!slot.preferred_members.empty()) {
    const std::set<absl::string_view> preferred(slot.preferred_members.begin(),
                                                slot.preferred_members.end());
    std::stable_partition(idle.begin(), idle.end(),
                          [&](const std::string& id) { return preferred.count(id) != 0; });
  }
  const std::vector<std::vector<std::string>> kinds = GroupByDevice(run, idle);
  // Some numbers of ranks have no legal plan, so smaller groups are tried as well.
  for (size_t ranks = std::min(requested, idle.size()); ranks >= min_ranks && ranks > 0; --ranks) {
    for (const std::vector<std::string>& workers : kinds) {
      if (workers.size() < ranks) continue;
      const std::vector<std::string> members(workers.begin(), workers.begin() + ranks);
      const absl::StatusOr<v1::Plan> plan = PlanGroup(run, slot, members);
      if (!plan.ok()) continue;
      Take(members, idle);
      FormGeneration(run, slot, members, *plan);
      return true;
    }
  }
  return false;
}

void Machine::FormGeneration(Run& run, Slot& slot, const std::vector<std::string>& members,
                             const v1::Plan& plan) {
  if (!run.averages()) Rewind(run);
  meta_.set_generation(meta_.generation() + 1);
  Count("groups_formed");
  slot.Form(meta_.generation(), members, plan, run.record.version(), run.record.step(), now_);
  Save(slot);
  // The aggregators must accept the new generation, and refuse older ones, before it contributes.
  SendOpenRuns(run);
  for (uint32_t rank = 0; rank < slot.ranks(); ++rank) {
    members_.Find(members[rank])->place = slot.Place(rank);
    SendAssignment(run, slot, rank);
  }
}

// Without aggregators the model exists only in the group, so a new group starts from the beginning.
void Machine::Rewind(Run& run) {
  const uint32_t first = FirstStep(run.spec());
  if (run.record.step() == first && run.record.state() != v1::RUN_STATE_FINISHING) return;
  run.record.set_state(v1::RUN_STATE_RUNNING);
  run.record.set_step(first);
  run.record.set_samples(0);
  run.record.set_next_evaluation_epoch(EvaluationEpochs(run.spec()));
  run.record.clear_evaluating();
  Save(run);
}

void Machine::SendAssignment(const Run& run, const Slot& slot, uint32_t rank) {
  v1::CoordinatorMessage message;
  v1::Assignment& assignment = *message.mutable_assignment();
  *assignment.mutable_place() = slot.Place(rank);
  assignment.set_lineage(run.record.lineage());
  *assignment.mutable_spec() = run.spec();
  *assignment.mutable_plan() = slot.record().plan();
  for (const std::string& id : slot.record().members()) {
    const Member* const peer = members_.Find(id);
    assignment.add_peers(peer == nullptr ? "" : peer->record.address());
  }
  assignment.set_version(slot.record().version());
  assignment.set_step(slot.record().step());
  // A commit may have changed the version since the generation was formed.
  if (slot.record().version() == run.record.version()) {
    assignment.set_digest(run.averages() ? run.record.digest() : 0);
  } else if (run.previous_known && slot.record().version() == run.previous_version) {
    assignment.set_digest(run.previous_digest);
  }
  for (const v1::ShardAddress& address : Addresses(run)) *assignment.add_shards() = address;
  SendTo(slot.record().members(rank), message);
}

void Machine::OnPrepared(Member& member, const v1::Prepared& prepared) {
  Run* const run = RunAtPlace(member, prepared.place());
  if (run == nullptr) return;
  v1::RunRecord& record = run->record;
  if (prepared.train_samples() == 0) {
    Refuse(member.connection, v1::REFUSAL_MALFORMED, "Prepared has no training samples");
    return;
  }
  if (record.train_samples() == 0) {
    record.set_train_samples(prepared.train_samples());
    record.set_test_samples(prepared.test_samples());
    Save(*run);
    // The number of samples is known now, so epochs can be converted to steps.
    if (AtEnd(record, FirstStep(run->spec()))) {
      EndRun(*run, v1::RUN_STATE_FAILED,
             absl::StrCat("no steps left to train: the run starts at step ", FirstStep(run->spec()),
                          " and ends at step ", TotalSteps(record)));
      return;
    }
  } else if (record.train_samples() != prepared.train_samples() ||
             record.test_samples() != prepared.test_samples()) {
    EndRun(*run, v1::RUN_STATE_FAILED,
           absl::StrCat("worker ", member.id(), " on ", member.record.host(), " sees ",
                        prepared.train_samples(), " training and ", prepared.test_samples(),
                        " test samples, others see ", record.train_samples(), " and ",
                        record.test_samples(), ": the data sets differ"));
    return;
  }
  Slot& slot = run->slots[prepared.place().group()];
  if (!slot.preparing()) return;
  if (const absl::Status status = CheckReportedPlan(*run, slot, prepared); !status.ok()) {
    Fence(*run, slot,
          absl::StrCat("rank 0 (", member.id(),
                       ") does not follow the group's plan: ", absl::string_view(status.message())),
          Ending::kFailed);
    return;
  }
  slot.Prepare(prepared);
  if (prepared.has_plan() && prepared.place().rank() == 0) RecordLink(slot);
}

absl::Status Machine::CheckReportedPlan(const Run& run, const Slot& slot,
                                        const v1::Prepared& prepared) const {
  if (prepared.place().rank() != 0 || !prepared.has_plan()) return absl::OkStatus();
  CADRE_RETURN_IF_ERROR(slot.CheckReportedPlan(prepared.plan()));
  return options_.check_plan ? options_.check_plan(run.spec(), prepared.plan()) : absl::OkStatus();
}

// The first groups start together, so that all contribute to the first round. They wait at most
// rejoin_wait, counted from the first prepared group, for groups that are not prepared yet.
void Machine::MaybeStart(Run& run) {
  const auto is_prepared = [](const Slot& slot) { return slot.prepared(); };
  if (std::none_of(run.slots.begin(), run.slots.end(), is_prepared)) {
    run.barrier_since = absl::InfiniteFuture();
    return;
  }
  if (run.record.state() == v1::RUN_STATE_QUEUED) {
    run.barrier_since = std::min(run.barrier_since, now_);
    const bool all = std::all_of(run.slots.begin(), run.slots.end(), is_prepared);
    if (!all && now_ < run.barrier_since + RejoinWait(run.spec())) return;
    run.record.set_state(v1::RUN_STATE_RUNNING);
    run.record.set_started_ms(absl::ToUnixMillis(now_));
    Save(run);
  }
  run.barrier_since = absl::InfiniteFuture();
  for (Slot& slot : run.slots) {
    if (slot.prepared()) StartGroup(run, slot);
  }
}

void Machine::StartGroup(Run& run, Slot& slot) {
  const bool newest = slot.record().version() == run.record.version();
  const bool at_end = newest && run.record.state() == v1::RUN_STATE_FINISHING;
  slot.Start(at_end ? 0 : BoundaryAfter(run.record, slot.record().step()), now_);
  PredictGroup(run, slot);
  Save(slot);
  if (newest && run.record.has_evaluating() &&
      run.record.evaluating().version() == slot.record().version() &&
      AssignPart(*run.record.mutable_evaluating(), slot.group())) {
    Save(run);
  }
  for (uint32_t rank = 0; rank < slot.ranks(); ++rank) SendStart(run, slot, rank);
}

void Machine::SendStart(const Run& run, const Slot& slot, uint32_t rank) {
  v1::CoordinatorMessage message;
  v1::Start& start = *message.mutable_start();
  *start.mutable_place() = slot.Place(rank);
  start.set_next_step(slot.record().next_step());
  start.set_total_steps(TotalSteps(run.record));
  start.set_groups(GroupsOf(run.spec()));
  const v1::EvaluationRecord& evaluating = run.record.evaluating();
  if (run.averages() && run.record.has_evaluating() &&
      evaluating.version() == slot.record().version()) {
    if (const v1::EvaluationPart* part = AssignedPart(evaluating, slot.group())) {
      start.set_evaluate_begin(part->begin());
      start.set_evaluate_end(part->end());
    }
  }
  SendTo(slot.record().members(rank), message);
}

void Machine::OnGroupFailed(Member& member, const v1::GroupFailed& failed) {
  // All ranks report the loss of one rank; only the first report finds the generation alive.
  Run* const run = FindRun(failed.place().run());
  if (run == nullptr || !member.Holds(failed.place())) {
    SendRelease(member.id(), failed.place(), "the generation has ended");
    return;
  }
  const std::string reason =
      absl::StrCat("rank ", failed.place().rank(), " (", member.id(), "): ", failed.reason());
  const bool permanent =
      failed.cause() == v1::FAILURE_CAUSE_PLAN || failed.cause() == v1::FAILURE_CAUSE_DIVERGED ||
      failed.cause() == v1::FAILURE_CAUSE_MEMORY ||
      (run->record.version() == 0 && (failed.cause() == v1::FAILURE_CAUSE_DATA ||
                                      failed.cause() == v1::FAILURE_CAUSE_CHECKPOINT));
  if (permanent) {
    EndRun(*run, v1::RUN_STATE_FAILED,
           absl::StrCat("group ", failed.place().group(), ", ", reason));
  } else {
    Fence(*run, run->slots[failed.place().group()], reason, Ending::kFailed);
  }
}

void Machine::Fence(Run& run, Slot& slot, absl::string_view reason, Ending ending) {
  ReleaseMembers(slot, reason);
  run.round.Remove(slot.group());
  if (run.record.has_evaluating() && FreePart(*run.record.mutable_evaluating(), slot.group())) {
    Save(run);
  }
  slot.Clear(std::string(reason), now_);
  Save(slot);
  SendOpenRuns(run);
  if (ending == Ending::kReleased) return;
  Count("groups_failed");
  run.record.set_group_failures(run.record.group_failures() + 1);
  Save(run);
  if (run.record.group_failures() >= options_.max_group_failures) {
    EndRun(run, v1::RUN_STATE_FAILED,
           absl::StrCat("groups failed ", run.record.group_failures(),
                        " times without a commit in between; last failure: ", reason));
  }
}

void Machine::ReleaseMembers(Slot& slot, absl::string_view reason) {
  AbortTrace(slot, reason);
  for (uint32_t rank = 0; rank < slot.ranks(); ++rank) {
    const std::string& id = slot.record().members(rank);
    Member* const member = members_.Find(id);
    if (member == nullptr) continue;
    SendRelease(id, slot.Place(rank), reason);
    member->place.reset();
  }
}

// A message for another generation is normal after a fence: the member may have sent it before it
// received Release. The message is refused, but the stream stays open.
Run* Machine::RunAtPlace(Member& member, const v1::RankSlot& place) {
  Run* const run = FindRun(place.run());
  if (run == nullptr) {
    CountRefusal(v1::REFUSAL_UNKNOWN_RUN);
    SendRelease(member.id(), place, absl::StrCat("no such run: ", place.run()));
    return nullptr;
  }
  if (!member.Holds(place)) {
    CountRefusal(v1::REFUSAL_STALE_GENERATION);
    SendRelease(member.id(), place, "the generation has ended");
    return nullptr;
  }
  return run;
}

Run* Machine::RunAtLead(Member& member, const v1::RankSlot& place) {
  Run* const run = RunAtPlace(member, place);
  if (run == nullptr || place.rank() == 0) return run;
  Refuse(member.connection, v1::REFUSAL_MALFORMED, "only rank 0 may send this message");
  return nullptr;
}

}  // namespace cadre
