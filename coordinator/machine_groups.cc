// Groups: forming, starting, fencing. Part of Machine.
#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "coordinator/evaluation.h"
#include "coordinator/machine.h"
#include "coordinator/run.h"

namespace cadre {

std::vector<std::string> Machine::IdleWorkers() const {
  std::vector<std::string> idle;
  for (const auto& [id, member] : members_.all()) {
    if (member.worker() && member.connection != 0 && !member.place.has_value()) idle.push_back(id);
  }
  return idle;
}

// Groups are filled host by host, so that as many ranks as possible are near one another.
std::vector<std::string> Machine::ByHost(const std::vector<std::string>& workers) const {
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

bool Machine::WantsGroup(const Job& job, const Slot& slot) const {
  if (!slot.waiting()) return false;
  if (job.record.state() != v1::FINISHING || !job.averages()) return true;
  // At the end a group is made only for a part of the test split that nobody else will do.
  const bool somebody = std::any_of(job.slots.begin(), job.slots.end(),
                                    [](const Slot& other) { return !other.waiting(); });
  return !somebody && HasFreePart(job.record.evaluating());
}

void Machine::FormGroups(Job& job, std::vector<std::string>& idle) {
  for (Slot& slot : job.slots) {
    if (!WantsGroup(job, slot)) continue;
    if (job.shards_open() && !job.committing() && FormSlot(job, slot, idle)) continue;
    KeepFor(job, idle);
  }
}

// What a slot still waits for is kept from the slots and runs after it.
void Machine::KeepFor(const Job& job, std::vector<std::string>& idle) const {
  std::vector<std::string> kept;
  for (std::vector<std::string>& workers : ByDevice(job, idle)) {
    if (workers.size() > kept.size()) kept = std::move(workers);
  }
  kept.resize(std::min<size_t>(kept.size(), RanksPerGroup(job.spec())));
  Take(kept, idle);
}

// Those of each kind of device that the run takes, the kind of the first worker first.
std::vector<std::vector<std::string>> Machine::ByDevice(
    const Job& job, const std::vector<std::string>& idle) const {
  const v1::ComputeDevice wanted = DeviceWanted(job.spec());
  std::vector<v1::ComputeDevice> kinds;
  std::vector<std::vector<std::string>> workers;
  for (const std::string& id : idle) {
    const v1::ComputeDevice kind = KindOfDevice(members_.Find(id)->record.device());
    if (wanted != v1::COMPUTE_DEVICE_UNSPECIFIED && kind != wanted) continue;
    const auto at =
        static_cast<size_t>(std::find(kinds.begin(), kinds.end(), kind) - kinds.begin());
    if (at == kinds.size()) {
      kinds.push_back(kind);
      workers.emplace_back();
    }
    workers[at].push_back(id);
  }
  return workers;
}

v1::ComputeDevice Machine::KindOf(const Slot& slot) const {
  const Member* const first = members_.Find(slot.record().members(0));
  return first == nullptr ? v1::COMPUTE_DEVICE_UNSPECIFIED : KindOfDevice(first->record.device());
}

size_t Machine::IdleOf(v1::ComputeDevice kind) const {
  const std::vector<std::string> idle = IdleWorkers();
  return static_cast<size_t>(std::count_if(idle.begin(), idle.end(), [&](const std::string& id) {
    return KindOfDevice(members_.Find(id)->record.device()) == kind;
  }));
}

void Machine::Take(const std::vector<std::string>& workers, std::vector<std::string>& idle) {
  const std::set<absl::string_view> taken(workers.begin(), workers.end());
  std::erase_if(idle, [&](const std::string& id) { return taken.count(id) != 0; });
}

// A full group at once; a smaller one only in a slot that has lived, and when it has waited. All
// its ranks compute on one kind of device.
bool Machine::FormSlot(Job& job, Slot& slot, std::vector<std::string>& idle) {
  const size_t wanted = RanksPerGroup(job.spec());
  const bool waited =
      slot.record().lived() && now_ >= slot.waiting_since() + RejoinWait(job.spec());
  const size_t least = waited ? MinRanksPerGroup(job.spec()) : wanted;
  if (!slot.again.empty()) {
    const std::set<absl::string_view> again(slot.again.begin(), slot.again.end());
    std::stable_partition(idle.begin(), idle.end(),
                          [&](const std::string& id) { return again.count(id) != 0; });
  }
  const std::vector<std::vector<std::string>> kinds = ByDevice(job, idle);
  for (size_t ranks = std::min(wanted, idle.size()); ranks >= least && ranks > 0; --ranks) {
    for (const std::vector<std::string>& workers : kinds) {
      if (workers.size() < ranks) continue;
      const std::vector<std::string> members(workers.begin(), workers.begin() + ranks);
      const absl::StatusOr<v1::Plan> plan = PlanGroup(job, slot, members);
      if (!plan.ok()) continue;
      Take(members, idle);
      FormGeneration(job, slot, members, *plan);
      return true;
    }
  }
  return false;
}

void Machine::FormGeneration(Job& job, Slot& slot, const std::vector<std::string>& members,
                             const v1::Plan& plan) {
  if (!job.averages()) Rewind(job);
  meta_.set_generation(meta_.generation() + 1);
  Count("groups_formed");
  slot.Form(meta_.generation(), members, plan, job.record.version(), job.record.step(), now_);
  Save(slot);
  SendOpenRuns(job);
  for (uint32_t rank = 0; rank < slot.ranks(); ++rank) {
    members_.Find(members[rank])->place = slot.Place(rank);
    SendAssignment(job, slot, rank);
  }
}

// A run without aggregators keeps its model in its group only; a new group starts from where the
// run did.
void Machine::Rewind(Job& job) {
  const uint32_t first = FirstStep(job.spec());
  if (job.record.step() == first && job.record.state() != v1::FINISHING) return;
  job.record.set_state(v1::RUNNING);
  job.record.set_step(first);
  job.record.set_samples(0);
  job.record.set_next_evaluation_epoch(EvaluationEpochs(job.spec()));
  job.record.clear_evaluating();
  Save(job);
}

void Machine::SendAssignment(const Job& job, const Slot& slot, uint32_t rank) {
  v1::CoordinatorMessage message;
  v1::Assignment& assignment = *message.mutable_assignment();
  *assignment.mutable_place() = slot.Place(rank);
  assignment.set_lineage(job.record.lineage());
  *assignment.mutable_spec() = job.spec();
  *assignment.mutable_plan() = slot.record().plan();
  for (const std::string& id : slot.record().members()) {
    const Member* const peer = members_.Find(id);
    assignment.add_peers(peer == nullptr ? "" : peer->record.address());
  }
  assignment.set_version(slot.record().version());
  assignment.set_step(slot.record().step());
  if (slot.record().version() == job.record.version()) {
    assignment.set_digest(job.averages() ? job.record.digest() : 0);
  } else if (job.previous_known && slot.record().version() == job.previous_version) {
    assignment.set_digest(job.previous_digest);
  }
  for (const v1::ShardAddress& address : Addresses(job)) *assignment.add_shards() = address;
  SendTo(slot.record().members(static_cast<int>(rank)), message);
}

void Machine::OnPrepared(Member& member, const v1::Prepared& prepared) {
  Job* const job = Placed(member, prepared.place());
  if (job == nullptr) return;
  v1::RunRecord& record = job->record;
  if (prepared.train_samples() == 0) {
    Refuse(member.connection, v1::REFUSAL_MALFORMED, "Prepared has no training samples");
    return;
  }
  if (record.train_samples() == 0) {
    record.set_train_samples(prepared.train_samples());
    record.set_test_samples(prepared.test_samples());
    Save(*job);
    // Epochs are steps from now on.
    if (AtEnd(record, FirstStep(job->spec()))) {
      EndRun(*job, v1::FAILED,
             absl::StrCat("nothing is left to train: the run begins from step ",
                          FirstStep(job->spec()), " and ends at step ", TotalSteps(record)));
      return;
    }
  } else if (record.train_samples() != prepared.train_samples() ||
             record.test_samples() != prepared.test_samples()) {
    EndRun(*job, v1::FAILED,
           absl::StrCat("worker ", member.id(), " on ", member.record.host(), " sees ",
                        prepared.train_samples(), " training and ", prepared.test_samples(),
                        " test samples, others see ", record.train_samples(), " and ",
                        record.test_samples(), ": the data differ"));
    return;
  }
  Slot& slot = job->slots[prepared.place().group()];
  if (!slot.preparing()) return;
  if (const absl::Status status = CheckObeyed(*job, slot, prepared); !status.ok()) {
    Fence(*job, slot,
          absl::StrCat("rank 0 (", member.id(),
                       ") does not obey the group's plan: ", absl::string_view(status.message())),
          Ending::kFailed);
    return;
  }
  slot.Prepare(prepared);
  if (prepared.has_plan() && prepared.place().rank() == 0) LearnLink(slot);
}

absl::Status Machine::CheckObeyed(const Job& job, const Slot& slot,
                                  const v1::Prepared& prepared) const {
  if (prepared.place().rank() != 0 || !prepared.has_plan()) return absl::OkStatus();
  CADRE_RETURN_IF_ERROR(slot.CheckObeyed(prepared.plan()));
  return options_.check_plan ? options_.check_plan(job.spec(), prepared.plan()) : absl::OkStatus();
}

// The first groups start together, so that all take part in the first round; one that is not
// prepared within rejoin_wait of the first is not waited for.
void Machine::MaybeStart(Job& job) {
  const auto is_prepared = [](const Slot& slot) { return slot.prepared(); };
  if (std::none_of(job.slots.begin(), job.slots.end(), is_prepared)) {
    job.barrier_since = absl::InfiniteFuture();
    return;
  }
  if (job.record.state() == v1::QUEUED) {
    job.barrier_since = std::min(job.barrier_since, now_);
    const bool all = std::all_of(job.slots.begin(), job.slots.end(), is_prepared);
    if (!all && now_ < job.barrier_since + RejoinWait(job.spec())) return;
    job.record.set_state(v1::RUNNING);
    job.record.set_started_ms(absl::ToUnixMillis(now_));
    Save(job);
  }
  job.barrier_since = absl::InfiniteFuture();
  for (Slot& slot : job.slots) {
    if (slot.prepared()) StartGroup(job, slot);
  }
}

void Machine::StartGroup(Job& job, Slot& slot) {
  const bool newest = slot.record().version() == job.record.version();
  const bool at_end = newest && job.record.state() == v1::FINISHING;
  slot.Start(at_end ? 0 : BoundaryAfter(job.record, slot.record().step()), now_);
  PredictGroup(job, slot);
  Save(slot);
  if (newest && job.record.has_evaluating() &&
      job.record.evaluating().version() == slot.record().version() &&
      GivePart(*job.record.mutable_evaluating(), slot.group())) {
    Save(job);
  }
  for (uint32_t rank = 0; rank < slot.ranks(); ++rank) SendStart(job, slot, rank);
}

void Machine::SendStart(const Job& job, const Slot& slot, uint32_t rank) {
  v1::CoordinatorMessage message;
  v1::Start& start = *message.mutable_start();
  *start.mutable_place() = slot.Place(rank);
  start.set_next_step(slot.record().next_step());
  start.set_total_steps(TotalSteps(job.record));
  start.set_groups(GroupsOf(job.spec()));
  const v1::EvaluationRecord& evaluating = job.record.evaluating();
  if (job.averages() && job.record.has_evaluating() &&
      evaluating.version() == slot.record().version()) {
    if (const v1::EvaluationPart* part = PartOf(evaluating, slot.group())) {
      start.set_evaluate_begin(part->begin());
      start.set_evaluate_end(part->end());
    }
  }
  SendTo(slot.record().members(static_cast<int>(rank)), message);
}

void Machine::OnGroupFailed(Member& member, const v1::GroupFailed& failed) {
  // Every rank says so when one is lost; all but the first find the generation over already.
  Job* const job = FindJob(failed.place().run());
  if (job == nullptr || !member.place.has_value() ||
      member.place->SerializeAsString() != failed.place().SerializeAsString()) {
    SendRelease(member.id(), failed.place(), "the generation is over");
    return;
  }
  const std::string reason =
      absl::StrCat("rank ", failed.place().rank(), " (", member.id(), "): ", failed.reason());
  if (failed.permanent()) {
    EndRun(*job, v1::FAILED, absl::StrCat("group ", failed.place().group(), ", ", reason));
  } else {
    Fence(*job, job->slots[failed.place().group()], reason, Ending::kFailed);
  }
}

void Machine::Fence(Job& job, Slot& slot, absl::string_view reason, Ending ending) {
  ReleaseMembers(slot, reason);
  job.round.Remove(slot.group());
  if (job.record.has_evaluating() && LosePart(*job.record.mutable_evaluating(), slot.group())) {
    Save(job);
  }
  slot.Clear(std::string(reason), now_);
  Save(slot);
  SendOpenRuns(job);
  if (ending == Ending::kOrderly) return;
  Count("groups_failed");
  job.record.set_group_failures(job.record.group_failures() + 1);
  Save(job);
  if (job.record.group_failures() >= options_.most_group_failures) {
    EndRun(job, v1::FAILED,
           absl::StrCat("groups failed ", job.record.group_failures(),
                        " times without a commit between; the last time: ", reason));
  }
}

void Machine::ReleaseMembers(Slot& slot, absl::string_view reason) {
  AbortTrace(slot, reason);
  for (uint32_t rank = 0; rank < slot.ranks(); ++rank) {
    const std::string& id = slot.record().members(static_cast<int>(rank));
    Member* const member = members_.Find(id);
    if (member == nullptr) continue;
    SendRelease(id, slot.Place(rank), reason);
    member->place.reset();
  }
}

Job* Machine::Placed(Member& member, const v1::GroupPlace& place) {
  Job* const job = FindJob(place.run());
  if (job == nullptr) {
    CountRefusal(v1::REFUSAL_UNKNOWN_RUN);
    SendRelease(member.id(), place, absl::StrCat("there is no run ", place.run()));
    return nullptr;
  }
  if (!member.place.has_value() || member.place->SerializeAsString() != place.SerializeAsString()) {
    CountRefusal(v1::REFUSAL_STALE_GENERATION);
    SendRelease(member.id(), place, "the generation is over");
    return nullptr;
  }
  return job;
}

Job* Machine::PlacedLead(Member& member, const v1::GroupPlace& place) {
  Job* const job = Placed(member, place);
  if (job == nullptr || place.rank() == 0) return job;
  Refuse(member.connection, v1::REFUSAL_MALFORMED, "only rank 0 may say that");
  return nullptr;
}

}  // namespace cadre
