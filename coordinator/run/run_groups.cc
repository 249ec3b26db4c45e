// The life of a generation:
//
//   Form         chooses idle workers and a plan; the generation number comes from the store
//   Assignment   to every rank, with the peers' addresses and the plan
//   Prepared     from every rank: data sets are open, the ranks are connected; rank 0 reports the
//                plan with buckets and the measured link
//   Start        to every rank, once all are prepared, with the newest version, which they load;
//                the first groups of a run start together
//   Adopted      from rank 0: the version is loaded
//   Fence        ends the generation, whose late messages are refused from then on: its ranks are
//                released, its contribution to the open round is removed and its part of an
//                evaluation becomes free
#include "coordinator/run/run_groups.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "coordinator/cluster/device_match.h"
#include "coordinator/run/evaluation.h"
#include "coordinator/run/run_rules.h"
#include "coordinator/store/keys.h"
#include "model/shard_space.h"

namespace cadre {

RunGroups::RunGroups(const RunView& run, StoredRun& stored, const Parts& parts,
                     const RunContext& context)
    : run_(run),
      stored_(stored),
      record_(stored.record()),
      slots_(parts.slots),
      traces_(parts.traces),
      evaluation_(parts.evaluation),
      rounds_(parts.rounds),
      aggregators_(parts.aggregators),
      cluster_(context.cluster),
      planner_(context.planner),
      options_(context.options),
      checkpoint_writer_(run, stored, parts.evaluation, context.cluster) {
  for (uint32_t group = 0; group < DivisionOf(record_).groups(); ++group) {
    slots_.Add(Slot(run_.id(), group, cluster_.now()));
  }
}

absl::Status RunGroups::Load(const std::map<std::string, std::string>& records) {
  const std::string prefix = GroupsPrefix(run_.id());
  for (auto it = records.lower_bound(prefix);
       it != records.end() && absl::StartsWith(it->first, prefix); ++it) {
    v1::GroupRecord group;
    CADRE_RETURN_IF_ERROR(ParseRecord(it->first, it->second, group));
    if (group.group() >= slots_.size()) continue;
    slots_[group.group()] = Slot(group, cluster_.now());
    slots_.Update(slots_[group.group()]);
  }
  UpdateDemand();
  return absl::OkStatus();
}

void RunGroups::PlaceMembers() {
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

void RunGroups::UpdateDemand() {
  if (!run_.live()) return cluster_.queue().Erase(run_.number());
  RunQueue::Run queued{.id = run_.id(),
                       .priority = run_.spec().priority(),
                       .device = RequestedDevice(run_.spec()),
                       .ranks = RanksPerGroup(run_.spec()),
                       .end = ExpectedEnd(),
                       .shards = {record_.shards().begin(), record_.shards().end()}};
  if (run_.active() && !aggregators_.choice().lacking()) {
    const size_t waiting = absl::c_count_if(
        slots_.waiting(), [this](uint32_t group) { return !run_.LeavesOut(group); });
    queued.slots = std::min(waiting, CountServableSlots());
    const size_t formed = slots_.size() - slots_.waiting().size();
    const size_t needed = run_.spec().averaging().min_groups();
    const bool goes_on = record_.state() != v1::RUN_STATE_FINISHING && !record_.has_rollback();
    if (goes_on && formed > 0 && formed < needed) {
      queued.lacks = (needed - formed) * MinRanksPerGroup(run_.spec());
      queued.blocked_since = cluster_.now();
      queued.of_programs = run_.spec().model().has_opaque();
      queued.precision = run_.spec().precision();
    }
  }
  if (!queued.shards.empty() && !run_.commits().newest().has_value()) {
    queued.unreported_bytes =
        SpaceOfLargestShard(run_.spec(), run_.Parameters(), queued.shards.size());
  }
  cluster_.queue().Set(run_.number(), std::move(queued));
}

size_t RunGroups::CountServableSlots() const {
  return CountServable(run_, cluster_.members(), cluster_.queue(), cluster_.now());
}

absl::Time RunGroups::ExpectedEnd() const {
  const uint32_t total = TotalSteps(record_);
  const uint32_t done = record_.step() - FirstStep(run_.spec());
  if (record_.state() != v1::RUN_STATE_RUNNING || done == 0 || total <= record_.step()) {
    return absl::InfiniteFuture();
  }
  const absl::Duration trained = cluster_.now() - absl::FromUnixMillis(record_.started_ms());
  return cluster_.now() + trained / done * (total - record_.step());
}

void RunGroups::Moved(const Slot& slot) {
  slots_.Update(slot);
  UpdateDemand();
  stored_.Save(slot);
}

bool RunGroups::Needs(const Slot& slot) const {
  if (!slot.waiting() || run_.LeavesOut(slot.group())) return false;
  // A new generation would end when the rollback is carried out.
  if (record_.has_rollback()) return false;
  if (record_.state() != v1::RUN_STATE_FINISHING || !run_.averages()) return true;
  // At the end of the run a group is formed only to write the last checkpoint, or to evaluate a
  // part of the test split that no other group will evaluate.
  if (checkpoint_writer_.Is(slot) && evaluation_.checkpoints().LacksLast()) return true;
  return slots_.waiting().size() == slots_.size() && HasFreePart(record_.evaluating());
}

bool RunGroups::ChooseAggregators(const WorkerIds& idle) {
  const Membership& members = cluster_.members();
  size_t workers = IdlePrograms(run_, members, idle).empty() ? 0 : RanksPerGroup(run_.spec());
  for (const WorkerIds& alike : WorkersByDevice(run_, members, idle)) {
    workers = std::max(workers, alike.size());
  }
  const std::vector<std::string> before(record_.shards().begin(), record_.shards().end());
  const bool chosen = aggregators_.choice().Choose(workers);
  const bool changed = !absl::c_equal(before, record_.shards());
  if (changed && record_.shards_size() > 0) aggregators_.OpenAll();
  if (!chosen || changed) UpdateDemand();
  return chosen;
}

absl::Status RunGroups::Form(WorkerIds& idle, int& formations) {
  UpdateDemand();
  size_t reserved = 0;
  // A group of a slot that another group has left in this round would have to wait.
  std::vector<uint32_t> waiting(slots_.waiting().begin(), slots_.waiting().end());
  std::stable_partition(waiting.begin(), waiting.end(),
                        [this](uint32_t group) { return !run_.round().HasLeft(group); });
  // A group that has been released to be formed again takes its own workers, and keeps its states.
  std::stable_partition(waiting.begin(), waiting.end(), [this](uint32_t group) {
    return !slots_[group].preferred_members.empty();
  });
  for (const uint32_t group : waiting) {
    if (idle.empty() || formations == 0) break;
    Slot& slot = slots_[group];
    if (!Needs(slot) || cluster_.now() < slot.blocked_until()) continue;
    if (run_.shards_open()) {
      const absl::StatusOr<Formation> formation = Choose(slot, idle);
      if (formation.ok()) {
        FormGeneration(slot, *formation);
        --formations;
        continue;
      }
      // Workers with more memory may join a run that has trained before.
      if (absl::IsResourceExhausted(formation.status()) &&
          record_.state() == v1::RUN_STATE_QUEUED) {
        return formation.status();
      }
      if (absl::IsResourceExhausted(formation.status())) continue;
    }
    if (reserved >= CountServableSlots()) continue;
    ReserveWorkers(run_, cluster_.members(), idle);
    ++reserved;
  }
  return absl::OkStatus();
}

absl::StatusOr<Formation> RunGroups::Choose(const Slot& slot, WorkerIds& idle) {
  if (std::optional<Formation> program = FormProgram(run_, cluster_.members(), idle)) {
    return *std::move(program);
  }
  return FormWorkers(run_, planner_, cluster_.members(), cluster_.now(), slot, idle);
}

void RunGroups::FormGeneration(Slot& slot, const Formation& formation) {
  if (!run_.averages()) Rewind();
  if (!record_.reason().empty()) {  // of OnLoopEnded
    record_.clear_reason();
    stored_.Save();
  }
  if (!formation.plan.own_loop()) checkpoint_writer_.OnFormed(slot);
  cluster_.Count("groups_formed");
  slot.Form(cluster_.NewGeneration(), formation.members, formation.plan, cluster_.now());
  Moved(slot);
  // The aggregators must refuse older generations, and know the key of the new one, before it
  // contributes.
  aggregators_.orders().AddFence(slot);
  for (uint32_t rank = 0; rank < slot.ranks(); ++rank) {
    cluster_.members().Place(*cluster_.members().Find(formation.members[rank]), slot.Place(rank));
    SendAssignment(slot, rank);
  }
}

// Without aggregators the model exists only in the group, so a new group starts from the beginning.
void RunGroups::Rewind() {
  const uint32_t first = FirstStep(run_.spec());
  if (record_.step() == first && record_.state() != v1::RUN_STATE_FINISHING) return;
  record_.set_state(v1::RUN_STATE_RUNNING);
  record_.set_step(first);
  record_.set_samples(0);
  evaluation_.Rewind(first);
  stored_.Save();
}

void RunGroups::SendAssignment(const Slot& slot, uint32_t rank) {
  v1::CoordinatorMessage message;
  v1::Assignment& assignment = *message.mutable_assignment();
  *assignment.mutable_place() = slot.Place(rank);
  assignment.set_lineage(record_.lineage());
  const auto screening = record_.screening().find(slot.group());
  const uint32_t branch = screening == record_.screening().end() ? 0 : screening->second.branch();
  assignment.set_branch(std::max(record_.branch(), branch));
  *assignment.mutable_spec() = run_.spec();
  if (evaluation_.checkpoints().Writes() && !checkpoint_writer_.Is(slot)) {
    v1::Checkpoint& checkpoint = *assignment.mutable_spec()->mutable_checkpoint();
    checkpoint.clear_directory();
    checkpoint.clear_every_steps();
    checkpoint.clear_keep();
  }
  *assignment.mutable_plan() = slot.record().plan();
  for (const std::string& id : slot.record().members()) {
    const Member* const peer = cluster_.members().Find(id);
    assignment.add_peers(peer == nullptr ? "" : peer->record.address());
  }
  assignment.set_key(aggregators_.orders().KeyOf(slot));
  for (const v1::ShardAddress& address : aggregators_.directory().Addresses()) {
    *assignment.add_shards() = address;
  }
  cluster_.SendTo(slot.record().members(rank), message);
}

absl::Status RunGroups::Prepare(const v1::Prepared& prepared) {
  Slot& slot = slots_[prepared.place().group()];
  if (prepared.place().rank() == 0 && HasObsoleteStart(slot)) {
    StartGroup(slot, true);
    stored_.Save();
  }
  if (!slot.preparing()) return absl::OkStatus();
  // Ranks repeat the message after a reconnect.
  if (slot.prepared_ranks().contains(prepared.place().rank())) return absl::OkStatus();
  if (prepared.place().rank() == 0 && prepared.has_plan()) {
    CADRE_RETURN_IF_ERROR(slot.CheckReportedPlan(prepared.plan()));
    if (options_.check_plan) {
      CADRE_RETURN_IF_ERROR(options_.check_plan(run_.spec(), prepared.plan()));
    }
  }
  slot.Prepare(prepared);
  slots_.Update(slot);
  if (prepared.has_plan() && prepared.place().rank() == 0) planner_.RecordLink(slot);
  return absl::OkStatus();
}

// The first groups start together, so that all contribute to the first round. They wait at most
// rejoin_wait, counted from the first prepared group, for groups that are not prepared yet.
void RunGroups::MaybeStart() {
  if (slots_.prepared().empty()) {
    barrier_since_ = absl::InfiniteFuture();
    return;
  }
  // Their first version must be the newest, and they pull it from all shards.
  if (!run_.shards_open() || run_.committing()) return;
  if (run_.awaits_data()) return;
  if (record_.state() == v1::RUN_STATE_QUEUED) {
    barrier_since_ = std::min(barrier_since_, cluster_.now());
    const bool all = slots_.prepared().size() == slots_.size();
    if (!all && cluster_.now() < barrier_since_ + RejoinWait(run_.spec())) return;
    record_.set_state(v1::RUN_STATE_RUNNING);
    record_.set_started_ms(absl::ToUnixMillis(cluster_.now()));
    record_.set_round_opened_ms(record_.started_ms());
    stored_.Save();
  }
  barrier_since_ = absl::InfiniteFuture();
  Slots::Groups prepared = slots_.prepared();
  // A group of the slot has left, and its contribution is in the open round.
  std::erase_if(prepared, [this](uint32_t group) { return run_.round().HasLeft(group); });
  const bool catch_up = run_.averages() && !slots_.started().empty();
  for (const uint32_t group : prepared) StartGroup(slots_[group], catch_up);
  if (!prepared.empty()) stored_.Save();
}

void RunGroups::StartGroup(Slot& slot, bool catches_up) {
  const bool at_end = record_.state() == v1::RUN_STATE_FINISHING;
  slot.Start(record_.version(), record_.step(), at_end ? 0 : rounds_.BoundaryOf(slot), catches_up,
             cluster_.now());
  if (run_.averages()) rounds_.versions().SetLoading(slot.group(), record_.version());
  if (!slot.own_loop()) planner_.PredictGroup(record_, slot);
  cluster_.ReportGroup(
      v1::EVENT_KIND_GROUP_STARTED, slot.Place(0),
      absl::StrCat("generation ", slot.record().generation(), " of group ", slot.group(),
                   " has started with ", slot.ranks(), slot.ranks() == 1 ? " rank" : " ranks",
                   " at step ", record_.step()));
  Moved(slot);
  if (record_.has_evaluating() && record_.evaluating().version() == record_.version()) {
    evaluation_.Assign(slot);
  }
  for (uint32_t rank = 0; rank < slot.ranks(); ++rank) SendStart(slot, rank);
}

void RunGroups::SendStart(const Slot& slot, uint32_t rank) {
  v1::CoordinatorMessage message;
  v1::Start& start = *message.mutable_start();
  *start.mutable_place() = slot.Place(rank);
  start.set_version(slot.record().version());
  start.set_step(slot.record().step());
  // A commit may have changed the version since the group was started.
  if (slot.record().version() == record_.version()) {
    start.set_digest(run_.averages() ? record_.digest() : 0);
  } else {
    start.set_digest(run_.commits().DigestOf(slot.record().version()).value_or(0));
  }
  if (const auto* included = run_.commits().IncludedOf(slot.group())) {
    *start.mutable_included() = *included;
  }
  if (const auto* screened = run_.commits().ScreenedOf(slot.group())) {
    *start.mutable_screened() = *screened;
  }
  start.set_catch_up(slot.catches_up());
  start.set_next_step(slot.record().next_step());
  start.set_agree_steps(rounds_.AgreeStepsOf(slot));
  // The round after an earlier version is closed.
  const bool newest = slot.record().version() == record_.version();
  start.set_fragment(newest || !run_.commits().newest().has_value()
                         ? FragmentAfter(record_, slot.record().version())
                         : run_.commits().newest()->fragment());
  start.set_total_steps(TotalSteps(record_));
  start.set_train_samples(record_.train_samples());
  *start.mutable_division() = DivisionOf(record_);
  const v1::EvaluationRecord& evaluating = record_.evaluating();
  if (run_.averages() && record_.has_evaluating() &&
      evaluating.version() == slot.record().version()) {
    if (const v1::EvaluationPart* part = evaluation_.PartOf(slot)) {
      start.set_evaluate_begin(part->begin());
      start.set_evaluate_end(part->end());
    }
  }
  cluster_.SendTo(slot.record().members(rank), message);
}

// The shards keep two versions. A group that has not begun repeats Prepared when it has joined
// again, and receives a Start from the newest version.
bool RunGroups::HasObsoleteStart(const Slot& slot) const {
  const uint32_t version = slot.record().version();
  return run_.averages() && slot.started() && slot.version <= version &&
         version + 1 < record_.version();
}

// Messages may have been lost with the stream, so they are sent again. If the worker and the
// coordinator disagree about the worker's rank, the rank is given up.
void RunGroups::OnRejoined(const Member& member, bool agrees) {
  Slot& slot = slots_[member.place->group()];
  const uint32_t rank = member.place->rank();
  if (slot.preparing()) {
    SendAssignment(slot, rank);
    if (run_.averages()) aggregators_.directory().Send(member.id());
  } else if (agrees) {
    if (rank > 0 || !HasObsoleteStart(slot)) SendStart(slot, rank);
    if (run_.averages()) aggregators_.directory().Send(member.id());
    if (rank == 0) {
      slot.nudged_round = 0;
      slot.reported = false;
      ResendPart(slot);
    }
    aggregators_.ResendRestages(slot, rank);
    traces_.SendSteps(slot, rank);
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

void RunGroups::ResendPart(Slot& slot) {
  const bool waits = record_.state() == v1::RUN_STATE_FINISHING && slot.record().at_end();
  if (!run_.averages() || !waits || evaluation_.PartOf(slot) == nullptr) return;
  rounds_.SendDecision(slot, record_.version());
}

void RunGroups::OnClosed(const Member& member) {
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

void RunGroups::RecordSuccess(Slot& slot) {
  if (!cluster_.standings().empty()) {
    for (const std::string& id : slot.record().members()) {
      const Member* const member = cluster_.members().Find(id);
      if (member != nullptr) cluster_.standings().Succeed(Cluster::WorkerOf(*member));
    }
  }
  if (slot.ClearFailures()) stored_.Save(slot);
}

void RunGroups::Resize() {
  const uint32_t groups = DivisionOf(record_).groups();
  while (slots_.size() < groups) {
    slots_.Add(Slot(run_.id(), slots_.size(), cluster_.now()));
  }
  while (slots_.size() > groups) {
    Slot& slot = slots_[slots_.size() - 1];
    if (run_.Includes(slot, record_.version())) RecordSuccess(slot);
    Fence(slot, absl::StrCat("the run was scaled to ", groups, " groups"), kReleased);
    cluster_.out().EraseOne(GroupKey(run_.id(), slot.group()));
    slots_.RemoveLast();
  }
  UpdateDemand();
}

void RunGroups::Fence(Slot& slot, absl::string_view reason, v1::FailureCause cause) {
  cluster_.ReportGroup(v1::EVENT_KIND_GROUP_ENDED, slot.Place(0),
                       absl::StrCat("generation ", slot.record().generation(), " of group ",
                                    slot.group(), " has ended: ", reason));
  ReleaseMembers(slot, reason);
  rounds_.EndGroup(slot.group());
  evaluation_.Free(slot);
  away_.erase(slot.group());
  slot.Clear(std::string(reason), cluster_.now());
  if (cause != kReleased) {
    cluster_.Count("groups_failed");
    slot.AddFailure(cause, std::string(reason), cluster_.now());
  }
  Moved(slot);
  aggregators_.orders().AddFence(slot);
}

void RunGroups::EndDistrusted(Slot& slot, const std::string& reason) {
  for (const std::string& id : slot.record().members()) {
    const Member* const member = cluster_.members().Find(id);
    if (member == nullptr) continue;
    cluster_.standings().Fail(Cluster::WorkerOf(*member), v1::FAILURE_CAUSE_SCREENED, reason,
                              cluster_.now());
  }
  Fence(slot, reason, v1::FAILURE_CAUSE_SCREENED);
}

void RunGroups::FormAgain(Slot& slot, absl::string_view reason) {
  const std::vector<std::string> members = slot.members();
  Fence(slot, reason, kReleased);
  slot.wait_ended = true;
  slot.preferred_members = members;
}

void RunGroups::FenceAll(absl::string_view reason) {
  for (Slot& slot : slots_) {
    if (!slot.waiting()) Fence(slot, reason, kReleased);
  }
}

void RunGroups::EndPatience() {
  if (slots_.waiting().size() == slots_.size() ||
      cluster_.now() < aggregators_.directory().PatientUntil())
    return;
  cluster_.Count("aggregator_waits_ended");
  const ShardDirectory& directory = aggregators_.directory();
  FenceAll(absl::StrCat("aggregator ", directory.FindAway()->name, " has been away for ",
                        absl::FormatDuration(directory.Patience()), " (",
                        directory.NameOfPatience(), ")"));
}

void RunGroups::Disband(absl::string_view reason) {
  for (Slot& slot : slots_) {
    ReleaseMembers(slot, reason);
    slot = Slot(run_.id(), slot.group(), cluster_.now());
    slots_.Update(slot);
  }
  away_.clear();
  rounds_.EndGroups();
  barrier_since_ = absl::InfiniteFuture();
  UpdateDemand();
  // Without their records, a restart finds no group of this run.
  cluster_.out().EraseBelow(GroupsPrefix(run_.id()));
}

void RunGroups::ReleaseMembers(Slot& slot, absl::string_view reason) {
  traces_.Abort(slot, reason);
  for (uint32_t rank = 0; rank < slot.ranks(); ++rank) {
    const std::string& id = slot.record().members(rank);
    Member* const member = cluster_.members().Find(id);
    if (member == nullptr) continue;
    cluster_.SendRelease(id, slot.Place(rank), reason, record_.state());
    cluster_.members().Place(*member, std::nullopt);
  }
}

}  // namespace cadre
