#include "coordinator/run/formation.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/string_view.h"
#include "coordinator/cluster/device_match.h"
#include "coordinator/run/run_rules.h"

namespace cadre {
namespace {

// For so long the workers of a group that has ended are reserved, if one of them is lost.
constexpr absl::Duration kReturnTime = absl::Minutes(1);

void Take(const WorkerIds& workers, WorkerIds& idle) {
  const std::set<absl::string_view> taken(workers.begin(), workers.end());
  std::erase_if(idle, [&](const std::string& id) { return taken.count(id) != 0; });
}

}  // namespace

std::vector<WorkerIds> WorkersByDevice(const RunView& run, const Membership& members,
                                       const WorkerIds& idle) {
  std::vector<v1::Cluster::Device> kinds;
  std::vector<WorkerIds> workers;
  if (run.spec().model().has_opaque()) return {};
  for (const std::string& id : idle) {
    const v1::MemberRecord& worker = members.Find(id)->record;
    if (worker.has_reservation() || !Suits(worker, run.spec())) continue;
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

std::vector<WorkerIds> IdlePrograms(const RunView& run, const Membership& members,
                                    const WorkerIds& idle) {
  std::map<std::string, std::map<uint32_t, std::string>> programs;
  std::vector<WorkerIds> complete;
  for (const std::string& id : idle) {
    const v1::MemberRecord& worker = members.Find(id)->record;
    const v1::Reservation& reservation = worker.reservation();
    if (!run.IsReserved(reservation)) continue;
    if (!worker.program_ended().empty()) continue;
    const bool any = run.spec().model().has_opaque();
    if (!any && reservation.ranks() > RanksPerGroup(run.spec())) continue;
    std::map<uint32_t, std::string>& ranks = programs[reservation.program()];
    ranks[reservation.rank()] = id;
    if (ranks.size() < reservation.ranks()) continue;
    WorkerIds& program = complete.emplace_back();
    for (const auto& [rank, member] : ranks) program.push_back(member);
  }
  return complete;
}

size_t CountAvailable(const RunView& run, const Membership& members, const RunQueue& queue,
                      v1::Cluster::Device kind) {
  const v1::Cluster::Device requested = RequestedDevice(run.spec());
  if (requested != v1::Cluster::DEVICE_UNSPECIFIED && requested != kind) return 0;
  const size_t workers = members.counts().Usable(kind, run.spec().precision());
  const size_t held = members.counts().PlacedIn(run.id(), kind) +
                      queue.HeldByBlocked(RunNumber(run.id()), kind).workers;
  return workers - std::min(workers, held);
}

absl::Time ReservesUntil(const Slot& slot) {
  return slot.record().lived() ? slot.waiting_since() + kReturnTime : absl::InfinitePast();
}

size_t CountServable(const RunView& run, const Membership& members, const RunQueue& queue,
                     absl::Time now) {
  if (run.spec().model().has_opaque()) return 0;
  // The first group of a run has all its ranks; see ShrinksAt for the others.
  const bool first = run.record().state() == v1::RUN_STATE_QUEUED &&
                     run.slots().waiting().size() == run.slots().size();
  const size_t ranks = first ? RanksPerGroup(run.spec()) : MinRanksPerGroup(run.spec());
  size_t slots = 0;
  for (const v1::Cluster::Device kind : kDeviceKinds) {
    slots += CountAvailable(run, members, queue, kind) / ranks;
  }
  const size_t ended = absl::c_count_if(run.slots().waiting(), [&](uint32_t group) {
    return now < ReservesUntil(run.slots()[group]);
  });
  return std::max(slots, ended);
}

void ReserveWorkers(const RunView& run, const Membership& members, WorkerIds& idle) {
  WorkerIds reserved;
  for (WorkerIds& workers : WorkersByDevice(run, members, idle)) {
    if (workers.size() > reserved.size()) reserved = std::move(workers);
  }
  reserved.resize(std::min<size_t>(reserved.size(), RanksPerGroup(run.spec())));
  Take(reserved, idle);
}

bool AllConnected(const Slot& slot, const Membership& members) {
  return absl::c_all_of(slot.record().members(), [&members](const std::string& id) {
    const Member* const member = members.Find(id);
    return member != nullptr && member->connected();
  });
}

// In a slot that never had a group, the wait begins when the run starts with the other groups.
absl::Time ShrinksAt(const RunView& run, const Slot& slot) {
  if (slot.wait_ended) return absl::InfinitePast();
  absl::Time since = slot.waiting_since();
  if (!slot.record().lived()) {
    if (run.record().state() == v1::RUN_STATE_QUEUED) return absl::InfiniteFuture();
    since = std::max(since, absl::FromUnixMillis(run.record().started_ms()));
  }
  return since + RejoinWait(run.spec());
}

// At the end of a run only groups that can evaluate are needed.
std::optional<Formation> FormProgram(const RunView& run, const Membership& members,
                                     WorkerIds& idle) {
  if (!run.averages()) return std::nullopt;
  const bool evaluates = run.spec().model().opaque().test_samples() > 0;
  if (run.record().state() == v1::RUN_STATE_FINISHING && !evaluates) return std::nullopt;
  std::vector<WorkerIds> programs = IdlePrograms(run, members, idle);
  if (programs.empty()) return std::nullopt;
  Formation formed{.members = std::move(programs.front())};
  formed.plan.set_own_loop(true);
  v1::MeshAxis& axis = *formed.plan.add_mesh();
  axis.set_name("data");
  axis.set_size(formed.members.size());
  Take(formed.members, idle);
  return formed;
}

absl::StatusOr<Formation> FormWorkers(const RunView& run, GroupPlanner& planner,
                                      const Membership& members, absl::Time now, const Slot& slot,
                                      WorkerIds& idle) {
  const size_t requested = RanksPerGroup(run.spec());
  const bool waited = now >= ShrinksAt(run, slot);
  const size_t min_ranks = waited ? MinRanksPerGroup(run.spec()) : requested;
  if (!slot.preferred_members.empty()) {
    const std::set<absl::string_view> preferred(slot.preferred_members.begin(),
                                                slot.preferred_members.end());
    std::stable_partition(idle.begin(), idle.end(),
                          [&](const std::string& id) { return preferred.count(id) != 0; });
  }
  const std::vector<WorkerIds> kinds = WorkersByDevice(run, members, idle);
  absl::Status too_large;
  // Some numbers of ranks have no legal plan, so smaller groups are tried as well.
  for (size_t ranks = std::min(requested, idle.size()); ranks >= min_ranks; --ranks) {
    for (const WorkerIds& workers : kinds) {
      if (workers.size() < ranks) continue;
      const WorkerIds chosen(workers.begin(), workers.begin() + ranks);
      absl::StatusOr<v1::Plan> plan = planner.PlanGroup(run.record(), slot, chosen);
      if (absl::IsUnavailable(plan.status())) return plan.status();
      if (absl::IsResourceExhausted(plan.status())) too_large.Update(plan.status());
      if (!plan.ok()) continue;
      Take(chosen, idle);
      return Formation{chosen, *std::move(plan)};
    }
  }
  return too_large.ok() ? absl::UnavailableError("too few workers are idle") : too_large;
}

}  // namespace cadre
