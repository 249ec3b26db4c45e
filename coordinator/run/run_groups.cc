// Groups: forming, starting, fencing. Part of Run.
//
// The life of a generation:
//
//   FormSlot     chooses idle workers and a plan; the generation number comes from the store
//   Assignment   to every rank, with the peers' addresses and the plan
//   Prepared     from every rank: data sets are open, the ranks are connected; rank 0 reports the
//                plan with buckets and the measured link
//   Start        to every rank, once all are prepared, with the newest version, which they load;
//                the first groups of a run start together
//   Adopted      from rank 0: the version is loaded
//   Fence        ends the generation, whose late messages are refused from then on: its ranks are
//                released, its contribution to the open round is removed and its part of an
//                evaluation becomes free
//
// A slot that waits for workers reserves idle ones, in order of submission and of slots. Otherwise
// runs with small groups would take every worker that becomes idle, and a large group would never
// form. The price is idle workers while a large group waits.
//
// A group of full size forms immediately. A smaller one forms only after rejoin_wait: a restarted
// worker usually returns sooner, and forming the group twice costs more than the wait. A run never
// starts with a group of fewer workers than requested; once it has started, its other groups may.
//
// All ranks of a group have one kind of device, since the slowest rank determines the pace.
#include "coordinator/run/run.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "coordinator/cluster/device_match.h"
#include "coordinator/run/evaluation.h"
#include "coordinator/run/run_rules.h"

namespace cadre {
namespace {

void Take(const std::vector<std::string>& workers, std::vector<std::string>& idle) {
  const std::set<absl::string_view> taken(workers.begin(), workers.end());
  std::erase_if(idle, [&](const std::string& id) { return taken.count(id) != 0; });
}

}  // namespace

bool Run::NeedsGroup(const Slot& slot) const {
  if (!slot.waiting()) return false;
  if (record_.state() != v1::RUN_STATE_FINISHING || !averages()) return true;
  // At the end of the run a group is formed only to write the last checkpoint, or to evaluate a
  // part of the test split that no other group will evaluate.
  if (slot.group() == 0 && checkpoints_.LacksLast()) return true;
  return slots_.waiting().size() == slots_.size() && HasFreePart(record_.evaluating());
}

bool Run::Form(std::vector<std::string>& idle) {
  if (chooses_shards()) {
    size_t workers = ProgramsIn(idle).empty() ? 0 : RanksPerGroup(spec());
    for (const auto& alike : GroupByDevice(idle)) workers = std::max(workers, alike.size());
    if (!ChooseShards(workers)) return false;
  }
  // A group of a slot that another group has left in this round would have to wait.
  std::vector<uint32_t> waiting(slots_.waiting().begin(), slots_.waiting().end());
  std::stable_partition(waiting.begin(), waiting.end(),
                        [this](uint32_t group) { return !round_.HasLeft(group); });
  for (const uint32_t group : waiting) {
    if (idle.empty()) break;
    Slot& slot = slots_[group];
    if (!NeedsGroup(slot) || cluster_.now() < slot.blocked_until()) continue;
    if (shards_open() && (FormOfProgram(slot, idle) || FormSlot(slot, idle))) continue;
    if (!active()) return true;  // the run has failed
    ReserveFor(idle);
  }
  return true;
}

// Reserves the workers that a slot waits for: later slots and runs do not get them.
void Run::ReserveFor(std::vector<std::string>& idle) const {
  std::vector<std::string> reserved;
  for (std::vector<std::string>& workers : GroupByDevice(idle)) {
    if (workers.size() > reserved.size()) reserved = std::move(workers);
  }
  reserved.resize(std::min<size_t>(reserved.size(), RanksPerGroup(spec())));
  Take(reserved, idle);
}

// The workers that suit the run, divided by device kind. The kind of the first worker comes first.
std::vector<std::vector<std::string>> Run::GroupByDevice(
    const std::vector<std::string>& idle) const {
  std::vector<v1::Cluster::Device> kinds;
  std::vector<std::vector<std::string>> workers;
  if (spec().model().has_opaque()) return {};
  for (const std::string& id : idle) {
    const v1::MemberRecord& worker = cluster_.members().Find(id)->record;
    if (worker.has_reservation() || !Suits(worker, spec())) continue;
    const v1::Cluster::Device kind = worker.device_kind();
    const auto index = std::find(kinds.begin(), kinds.end(), kind) - kinds.begin();
    if (index == std::ssize(kinds)) {
      kinds.push_back(kind);
      workers.emplace_back();
    }
    workers[index].push_back(id);
  }
  return workers;
}

bool Run::IsReserved(const v1::Reservation& reservation) const {
  return reservation.run() == id() || reservation.run() == spec().name();
}

// The workers of each program for this run all of whose ranks are idle, by rank. The ranks of an
// opaque model may be any number, those of another one at most that of the run.
std::vector<std::vector<std::string>> Run::ProgramsIn(const std::vector<std::string>& idle) const {
  std::map<std::string, std::map<uint32_t, std::string>> programs;
  std::vector<std::vector<std::string>> complete;
  for (const std::string& id : idle) {
    const v1::MemberRecord& worker = cluster_.members().Find(id)->record;
    const v1::Reservation& reservation = worker.reservation();
    if (!worker.has_reservation() || !IsReserved(reservation)) continue;
    if (!worker.program_ended().empty()) continue;
    if (!spec().model().has_opaque() && reservation.ranks() > RanksPerGroup(spec())) continue;
    std::map<uint32_t, std::string>& ranks = programs[reservation.program()];
    ranks[reservation.rank()] = id;
    if (ranks.size() < reservation.ranks()) continue;
    std::vector<std::string>& members = complete.emplace_back();
    for (const auto& [rank, member] : ranks) members.push_back(member);
  }
  return complete;
}

// At the end of a run only groups that can evaluate are needed.
bool Run::FormOfProgram(Slot& slot, std::vector<std::string>& idle) {
  if (!averages()) return false;
  if (record_.state() == v1::RUN_STATE_FINISHING && !ProgramsEvaluate()) return false;
  const std::vector<std::vector<std::string>> programs = ProgramsIn(idle);
  if (programs.empty()) return false;
  const std::vector<std::string>& members = programs.front();
  v1::Plan plan;
  plan.set_own_loop(true);
  v1::MeshAxis& axis = *plan.add_mesh();
  axis.set_name("data");
  axis.set_size(members.size());
  Take(members, idle);
  FormGeneration(slot, members, plan);
  return true;
}

// In a slot that never had a group, the wait begins when the run starts with the other groups.
absl::Time Run::ShrinksAt(const Slot& slot) const {
  absl::Time since = slot.waiting_since();
  if (!slot.record().lived()) {
    if (record_.state() == v1::RUN_STATE_QUEUED) return absl::InfiniteFuture();
    since = std::max(since, absl::FromUnixMillis(record_.started_ms()));
  }
  return since + RejoinWait(spec());
}

// Forms a full group immediately; a smaller one only after rejoin_wait. All ranks have one kind of
// device.
bool Run::FormSlot(Slot& slot, std::vector<std::string>& idle) {
  const size_t requested = RanksPerGroup(spec());
  const bool waited = cluster_.now() >= ShrinksAt(slot);
  const size_t min_ranks = waited ? MinRanksPerGroup(spec()) : requested;
  if (!slot.preferred_members.empty()) {
    const std::set<absl::string_view> preferred(slot.preferred_members.begin(),
                                                slot.preferred_members.end());
    std::stable_partition(idle.begin(), idle.end(),
                          [&](const std::string& id) { return preferred.count(id) != 0; });
  }
  const std::vector<std::vector<std::string>> kinds = GroupByDevice(idle);
  absl::Status too_large;
  // Some numbers of ranks have no legal plan, so smaller groups are tried as well.
  for (size_t ranks = std::min(requested, idle.size()); ranks >= min_ranks && ranks > 0; --ranks) {
    for (const std::vector<std::string>& workers : kinds) {
      if (workers.size() < ranks) continue;
      const std::vector<std::string> members(workers.begin(), workers.begin() + ranks);
      const absl::StatusOr<v1::Plan> plan = planner_.PlanGroup(record_, slot, members);
      if (absl::IsUnavailable(plan.status())) return false;
      if (absl::IsResourceExhausted(plan.status())) too_large.Update(plan.status());
      if (!plan.ok()) continue;
      Take(members, idle);
      FormGeneration(slot, members, *plan);
      return true;
    }
  }
  // Workers with more memory may join a run that has trained before.
  if (!too_large.ok() && record_.state() == v1::RUN_STATE_QUEUED) {
    End(v1::RUN_STATE_FAILED, too_large.message());
  }
  return false;
}

void Run::FormGeneration(Slot& slot, const std::vector<std::string>& members,
                         const v1::Plan& plan) {
  if (!averages()) Rewind();
  if (!record_.reason().empty()) {  // of OnLoopEnded
    record_.clear_reason();
    Save();
  }
  cluster_.Count("groups_formed");
  slot.Form(cluster_.NewGeneration(), members, plan, cluster_.now());
  Moved(slot);
  // The aggregators must refuse older generations, and know the key of the new one, before it
  // contributes.
  AddFence(slot);
  for (uint32_t rank = 0; rank < slot.ranks(); ++rank) {
    cluster_.members().Place(*cluster_.members().Find(members[rank]), slot.Place(rank));
    SendAssignment(slot, rank);
  }
}

// Without aggregators the model exists only in the group, so a new group starts from the beginning.
void Run::Rewind() {
  const uint32_t first = FirstStep(spec());
  if (record_.step() == first && record_.state() != v1::RUN_STATE_FINISHING) return;
  record_.set_state(v1::RUN_STATE_RUNNING);
  record_.set_step(first);
  record_.set_samples(0);
  record_.set_next_evaluation(NextEvaluation(record_, first));
  record_.clear_evaluating();
  Save();
}

void Run::SendAssignment(const Slot& slot, uint32_t rank) {
  v1::CoordinatorMessage message;
  v1::Assignment& assignment = *message.mutable_assignment();
  *assignment.mutable_place() = slot.Place(rank);
  assignment.set_lineage(record_.lineage());
  *assignment.mutable_spec() = spec();
  *assignment.mutable_plan() = slot.record().plan();
  for (const std::string& id : slot.record().members()) {
    const Member* const peer = cluster_.members().Find(id);
    assignment.add_peers(peer == nullptr ? "" : peer->record.address());
  }
  assignment.set_key(KeyOf(slot));
  for (const v1::ShardAddress& address : Addresses()) *assignment.add_shards() = address;
  cluster_.SendTo(slot.record().members(rank), message);
}

void Run::OnPrepared(const Member& member, const v1::Prepared& prepared) {
  // A program need not know the data of the other groups.
  if (HasOwnLoop(slots_[prepared.place().group()]) && prepared.train_samples() == 0) {
    return Prepare(member, prepared);
  }
  if (prepared.train_samples() == 0) {
    cluster_.Refuse(member.connection, v1::REFUSAL_MALFORMED, "Prepared has no training samples");
    return;
  }
  if (record_.train_samples() == 0) RecordData(prepared);
  if (!live()) return;
  if (!AgreesOnData(member, prepared)) return FailForData(member, prepared);
  // If this report has decided the vote, another rank of its group may have been outvoted, and the
  // group has failed.
  if (member.Holds(prepared.place())) Prepare(member, prepared);
}

void Run::RecordData(const v1::Prepared& prepared) {
  record_.set_train_samples(prepared.train_samples());
  record_.set_test_samples(prepared.test_samples());
  if (!prepared.data_left_out().empty()) {
    AddWarning(absl::StrCat("files that are not used: ", prepared.data_left_out()));
  }
  // The number of samples is known now, so epochs can be converted to steps.
  record_.set_next_evaluation(NextEvaluation(record_, record_.step()));
  Save();
  if (AtEnd(record_, FirstStep(spec()))) {
    End(v1::RUN_STATE_FAILED,
        absl::StrCat("no steps left to train: the run starts at step ", FirstStep(spec()),
                     " and ends at step ", TotalSteps(record_)));
    return;
  }
  // An adopted or rebuilt run does not know until now where it stands.
  if (record_.version() > 0 && AtEnd(record_, record_.step())) {
    record_.set_state(v1::RUN_STATE_FINISHING);
    BeginEvaluation({});
    Save();
  }
}

// The first host may have an incomplete copy of the data. While no group has started, the data of
// the run is therefore replaced when more hosts have reported another one.
bool Run::AgreesOnData(const Member& member, const v1::Prepared& prepared) {
  const DataSizes sizes = SizesOf(prepared);
  const DataSizes of_run{record_.train_samples(), record_.test_samples()};
  data_sizes_[member.record.host()] = sizes;
  if (sizes == of_run) return true;
  if (HasStarted()) return false;
  // After a restart, it is not known which host has the data of the run.
  if (CountHostsWith(sizes) <= std::max<size_t>(1, CountHostsWith(of_run))) return false;
  failures_.Forget(v1::FAILURE_CAUSE_DATA_DIFFERS);
  cluster_.standings().Forgive(v1::FAILURE_CAUSE_DATA_DIFFERS);
  RecordData(prepared);
  FailOutvoted(of_run);
  return live();
}

bool Run::MayAgreeOnData() const {
  if (HasStarted()) return false;
  const size_t agreeing = CountHostsWith({record_.train_samples(), record_.test_samples()});
  return data_sizes_.size() < CountHosts() || 2 * agreeing > data_sizes_.size();
}

size_t Run::CountHostsWith(const DataSizes& sizes) const {
  return std::count_if(data_sizes_.begin(), data_sizes_.end(),
                       [&](const auto& entry) { return entry.second == sizes; });
}

void Run::FailOutvoted(const DataSizes& sizes) {
  for (Slot& slot : slots_) {
    const std::map<uint32_t, v1::Prepared> ranks = slot.prepared_ranks();
    const auto outvoted = std::find_if(ranks.begin(), ranks.end(), [&](const auto& entry) {
      return SizesOf(entry.second) == sizes;
    });
    if (outvoted == ranks.end()) continue;
    const Member* const member = cluster_.members().Find(slot.record().members(outvoted->first));
    if (member != nullptr) FailForData(*member, outvoted->second);
  }
}

void Run::FailForData(const Member& member, const v1::Prepared& prepared) {
  FailGroup(
      member, prepared.place(), v1::FAILURE_CAUSE_DATA_DIFFERS,
      absl::StrCat("sees ", prepared.train_samples(), " training and ", prepared.test_samples(),
                   " test samples, others see ", record_.train_samples(), " and ",
                   record_.test_samples(), ": the data sets differ"));
}

void Run::Prepare(const Member& member, const v1::Prepared& prepared) {
  Slot& slot = slots_[prepared.place().group()];
  if (prepared.place().rank() == 0 && HasObsoleteStart(slot)) StartGroup(slot, true);
  if (!slot.preparing()) return;
  // Ranks repeat the message after a reconnect.
  if (slot.prepared_ranks().contains(prepared.place().rank())) return;
  if (const absl::Status status = CheckReportedPlan(slot, prepared); !status.ok()) {
    FailGroup(member, prepared.place(), v1::FAILURE_CAUSE_PLAN,
              absl::StrCat("does not follow the group's plan: ", status.message()));
    return;
  }
  slot.Prepare(prepared);
  slots_.Update(slot);
  if (prepared.has_plan() && prepared.place().rank() == 0) planner_.RecordLink(slot);
}

absl::Status Run::CheckReportedPlan(const Slot& slot, const v1::Prepared& prepared) const {
  if (prepared.place().rank() != 0 || !prepared.has_plan()) return absl::OkStatus();
  CADRE_RETURN_IF_ERROR(slot.CheckReportedPlan(prepared.plan()));
  return options_.check_plan ? options_.check_plan(spec(), prepared.plan()) : absl::OkStatus();
}

bool Run::AwaitsData() const {
  return record_.train_samples() == 0 && spec().stop().steps() == 0 && !slots_.prepared().empty();
}

// The first groups start together, so that all contribute to the first round. They wait at most
// rejoin_wait, counted from the first prepared group, for groups that are not prepared yet.
void Run::MaybeStart() {
  if (slots_.prepared().empty()) {
    barrier_since_ = absl::InfiniteFuture();
    return;
  }
  // Their first version must be the newest, and they pull it from all shards.
  if (!shards_open() || committing()) return;
  if (AwaitsData()) return;
  if (record_.state() == v1::RUN_STATE_QUEUED) {
    barrier_since_ = std::min(barrier_since_, cluster_.now());
    const bool all = slots_.prepared().size() == slots_.size();
    if (!all && cluster_.now() < barrier_since_ + RejoinWait(spec())) return;
    record_.set_state(v1::RUN_STATE_RUNNING);
    record_.set_started_ms(absl::ToUnixMillis(cluster_.now()));
    record_.set_round_opened_ms(record_.started_ms());
    Save();
  }
  barrier_since_ = absl::InfiniteFuture();
  Slots::Groups prepared = slots_.prepared();
  // A group of the slot has left, and its contribution is in the open round.
  std::erase_if(prepared, [this](uint32_t group) { return round_.HasLeft(group); });
  const bool catch_up = averages() && !slots_.started().empty();
  for (const uint32_t group : prepared) StartGroup(slots_[group], catch_up);
}

void Run::StartGroup(Slot& slot, bool catches_up) {
  const bool at_end = record_.state() == v1::RUN_STATE_FINISHING;
  slot.Start(record_.version(), record_.step(), at_end ? 0 : BoundaryOf(slot), catches_up,
             cluster_.now());
  if (averages()) loading_[slot.group()] = record_.version();
  if (!HasOwnLoop(slot)) planner_.PredictGroup(record_, slot);
  cluster_.ReportGroup(
      v1::EVENT_KIND_GROUP_STARTED, slot.Place(0),
      absl::StrCat("generation ", slot.record().generation(), " of group ", slot.group(),
                   " has started with ", slot.ranks(), slot.ranks() == 1 ? " rank" : " ranks",
                   " at step ", record_.step()));
  Moved(slot);
  if (record_.has_evaluating() && record_.evaluating().version() == record_.version() &&
      Evaluates(slot) && AssignPart(*record_.mutable_evaluating(), slot.group())) {
    Save();
  }
  for (uint32_t rank = 0; rank < slot.ranks(); ++rank) SendStart(slot, rank);
}

void Run::SendStart(const Slot& slot, uint32_t rank) {
  v1::CoordinatorMessage message;
  v1::Start& start = *message.mutable_start();
  *start.mutable_place() = slot.Place(rank);
  start.set_version(slot.record().version());
  start.set_step(slot.record().step());
  // A commit may have changed the version since the group was started.
  if (slot.record().version() == record_.version()) {
    start.set_digest(averages() ? record_.digest() : 0);
  } else {
    start.set_digest(commits_.DigestBefore(slot.record().version()).value_or(0));
  }
  start.set_catch_up(slot.catches_up());
  start.set_next_step(slot.record().next_step());
  start.set_agree_steps(AgreeStepsOf(slot));
  // The round after an earlier version is closed.
  const bool newest = slot.record().version() == record_.version();
  start.set_fragment(newest || !commits_.newest().has_value()
                         ? FragmentAfter(record_, slot.record().version())
                         : commits_.newest()->fragment());
  start.set_total_steps(TotalSteps(record_));
  start.set_train_samples(record_.train_samples());
  *start.mutable_division() = DivisionOf(record_);
  const v1::EvaluationRecord& evaluating = record_.evaluating();
  if (averages() && record_.has_evaluating() && evaluating.version() == slot.record().version()) {
    if (const v1::EvaluationPart* part = AssignedPart(evaluating, slot.group())) {
      start.set_evaluate_begin(part->begin());
      start.set_evaluate_end(part->end());
    }
  }
  cluster_.SendTo(slot.record().members(rank), message);
}

// The shards keep two versions. A group that has not begun repeats Prepared when it has joined
// again, and receives a Start from the newest version.
bool Run::HasObsoleteStart(const Slot& slot) const {
  const uint32_t version = slot.record().version();
  return averages() && slot.started() && slot.version <= version && version + 1 < record_.version();
}

// Messages may have been lost with the stream, so they are sent again. If the worker and the
// coordinator disagree about the worker's rank, the rank is given up.
void Run::OnWorkerRejoined(const Member& member, bool agrees) {
  Slot& slot = slots_[member.place->group()];
  const uint32_t rank = member.place->rank();
  if (slot.preparing()) {
    SendAssignment(slot, rank);
    if (averages()) SendShardAddresses(member.id());
  } else if (agrees) {
    if (rank > 0 || !HasObsoleteStart(slot)) SendStart(slot, rank);
    if (averages()) SendShardAddresses(member.id());
    if (rank == 0) {
      slot.nudged_round = 0;
      slot.reported = false;
      ResendPart(slot);
    }
    ResendRestages(slot, rank);
    SendTraceSteps(slot, rank);
  } else {
    Fence(slot, absl::StrCat("worker ", member.id(), " reconnected without its rank"),
          v1::FAILURE_CAUSE_PEER);
    return;
  }
  const std::vector<std::string> members = slot.members();
  const bool all = std::all_of(members.begin(), members.end(), [this](const std::string& id) {
    const Member* const peer = cluster_.members().Find(id);
    return peer == nullptr || peer->connected();
  });
  if (all) away_.erase(slot.group());
}

void Run::OnWorkerClosed(const Member& member) {
  Slot& slot = slots_[member.place->group()];
  // Forming the group again costs little; waiting for the lease to expire would cost seconds.
  if (slot.preparing()) {
    const std::string reason =
        absl::StrCat("the stream of worker ", member.id(), " closed during preparation");
    cluster_.standings().Fail(Cluster::WorkerOf(member), v1::FAILURE_CAUSE_LEASE, reason,
                              cluster_.now());
    Fence(slot, reason, kReleased);
  } else {
    away_.try_emplace(slot.group(), cluster_.now() + options_.return_grace);
  }
}

void Run::OnWorkerLost(const v1::RankSlot& place, absl::string_view reason,
                       v1::FailureCause cause) {
  Fence(slots_[place.group()], reason, cause);
}

void Run::Fence(Slot& slot, absl::string_view reason, v1::FailureCause cause) {
  cluster_.ReportGroup(v1::EVENT_KIND_GROUP_ENDED, slot.Place(0),
                       absl::StrCat("generation ", slot.record().generation(), " of group ",
                                    slot.group(), " has ended: ", reason));
  ReleaseMembers(slot, reason);
  round_.End(slot.group());
  if (record_.has_evaluating() && FreePart(*record_.mutable_evaluating(), slot.group())) {
    Save();
  }
  away_.erase(slot.group());
  loading_.erase(slot.group());
  slot.Clear(std::string(reason), cluster_.now());
  if (cause != kReleased) {
    cluster_.Count("groups_failed");
    slot.AddFailure(cause, std::string(reason), cluster_.now());
  }
  Moved(slot);
  AddFence(slot);
}

void Run::ReleaseMembers(Slot& slot, absl::string_view reason) {
  AbortTrace(slot, reason);
  for (uint32_t rank = 0; rank < slot.ranks(); ++rank) {
    const std::string& id = slot.record().members(rank);
    Member* const member = cluster_.members().Find(id);
    if (member == nullptr) continue;
    cluster_.SendRelease(id, slot.Place(rank), reason, record_.state());
    cluster_.members().Place(*member, std::nullopt);
  }
}

}  // namespace cadre
