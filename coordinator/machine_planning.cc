// Measurements of groups, predictions, and changes to better plans. Part of Machine.
#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "coordinator/keys.h"
#include "coordinator/machine.h"
#include "coordinator/run_rules.h"

namespace cadre {
namespace {

// Pins (choices fixed by the user) do not forbid a change: the search respects them, and if they
// leave no choice, it finds the current plan.
bool MayReplan(const v1::RunSpec& spec) { return Averages(spec) && !spec.cluster().keep_plan(); }

// If only an accuracy target ends the run, the run is assumed to be half done.
uint64_t StepsLeft(const v1::RunRecord& run) {
  const uint32_t total = TotalSteps(run);
  return total == 0 ? run.step() - FirstStep(run.spec()) : total - std::min(total, run.step());
}

// Name of a worker's link endpoint in measurements. GPUs have separate names, because their links
// differ from the links of their hosts.
std::string LinkEndOf(const v1::MemberRecord& worker) {
  const bool cuda = worker.device_kind() == v1::Cluster::CUDA;
  return cuda ? absl::StrCat(worker.host(), " (CUDA)") : worker.host();
}

// A key of all inputs of a search except the run; equal for groups on equal resources.
std::string ResourcesKey(const PlanQuery& query) {
  std::map<std::string, size_t> hosts;
  std::string key;
  for (const RankResources& rank : query.ranks) {
    const size_t host = hosts.try_emplace(rank.host, hosts.size()).first->second;
    absl::StrAppend(&key, host, " ", rank.cores, " ", rank.memory_bytes, "\n");
  }
  for (const auto& link : {query.link, query.inside}) {
    const std::string bytes = link.has_value() ? link->SerializeAsString() : "";
    absl::StrAppend(&key, link.has_value(), " ", bytes.size(), "\n", bytes);
  }
  // Times do not change within a call, so the device identifies them.
  for (const v1::LayerTimesRecord& times : query.times) {
    absl::StrAppend(&key, times.device().size(), "\n", times.device());
  }
  return key;
}

}  // namespace

// Counts only workers that hold a rank, and the members of the new group: idle workers use no
// resources of their host.
std::map<std::string, int> Machine::CountWorkersByHost(
    const std::vector<std::string>& members) const {
  const std::set<absl::string_view> here(members.begin(), members.end());
  std::map<std::string, int> sharing;
  for (const auto& [id, member] : members_.all()) {
    if (!member.worker()) continue;
    if (member.place.has_value() || here.count(id) != 0) ++sharing[member.record.host()];
  }
  return sharing;
}

PlanQuery Machine::QueryFor(const Run& run, const std::vector<std::string>& members) const {
  PlanQuery query{.spec = &run.spec()};
  const std::map<std::string, int> sharing = CountWorkersByHost(members);
  std::vector<std::string> hosts;
  std::set<std::string> devices;
  for (const std::string& id : members) {
    const Member* const member = members_.Find(id);
    if (member == nullptr) continue;
    const std::string& host = member->record.host();
    const int workers = sharing.at(host);
    // Workers of a host share its memory; for a GPU, each worker reports its own limit.
    const bool cuda = member->record.device_kind() == v1::Cluster::CUDA;
    query.ranks.push_back(
        {.host = host,
         .device = member->record.device(),
         .cores = static_cast<double>(member->cores) / workers,
         .memory_bytes = static_cast<int64_t>(member->memory_bytes) / (cuda ? 1 : workers)});
    hosts.push_back(LinkEndOf(member->record));
    devices.insert(member->record.device());
  }
  if (hosts.empty()) return query;
  query.link = measurements_.LinkOf(hosts);
  const auto first = std::count(hosts.begin(), hosts.end(), hosts.front());
  if (first > 1 && first < std::ssize(hosts)) {
    query.inside = measurements_.LinkOf(std::vector<std::string>(first, hosts.front()));
  }
  const std::string model = options_.planning->KeyOf(run.spec().model());
  for (const std::string& device : devices) {
    const v1::LayerTimesRecord* const times = measurements_.TimesOf(device, model);
    if (times == nullptr) {
      query.times.clear();
      break;
    }
    query.times.push_back(*times);
  }
  return query;
}

// The group's own link is used: other groups on the same hosts may have newer measurements, but
// these are of other links.
PlanQuery Machine::QueryFor(const Run& run, const Slot& slot) const {
  PlanQuery query = QueryFor(run, slot.members());
  if (slot.plan().link().beta() > 0) query.link = slot.plan().link();
  return query;
}

const absl::StatusOr<std::vector<GroupPlan>>& Machine::PlansFor(const Run& run,
                                                                const PlanQuery& query) {
  const auto [it, added] = searched_.try_emplace(absl::StrCat(run.id(), "\n", ResourcesKey(query)),
                                                 absl::UnknownError("not searched yet"));
  if (added) it->second = options_.planning->PlansFor(query);
  return it->second;
}

absl::StatusOr<v1::Plan> Machine::PlanGroup(const Run& run, const Slot& slot,
                                            const std::vector<std::string>& members) {
  // No group may train a run that the rules refuse.
  CADRE_ASSIGN_OR_RETURN(v1::Plan by_rules, options_.plan(run.spec(), std::ssize(members)));
  if (options_.planning == nullptr || run.spec().cluster().keep_plan()) return by_rules;
  const absl::StatusOr<std::vector<GroupPlan>>& plans = PlansFor(run, QueryFor(run, members));
  CADRE_RETURN_IF_ERROR(plans.status());
  return FastestOf(*plans, slot.plans()).plan;
}

void Machine::RecordLink(const Slot& slot) {
  if (slot.ranks() <= 1 || !(slot.plan().link().beta() > 0)) return;
  std::vector<std::string> hosts;
  for (const std::string& id : slot.record().members()) {
    const Member* const member = members_.Find(id);
    if (member == nullptr) return;
    hosts.push_back(LinkEndOf(member->record));
  }
  measurements_.RecordLink(hosts, slot.plan().link());
}

void Machine::PredictGroup(const Run& run, Slot& slot) {
  if (options_.planning == nullptr || slot.record().has_predicted()) return;
  const auto predicted = options_.planning->Predict(QueryFor(run, slot), slot.plan());
  if (predicted.ok()) slot.Predict(*predicted, /*from_own_measurement=*/false);
}

// The member sends this message again after every reconnect; it is idempotent. An invalid message
// is dropped but the stream stays open, because the member would send it on the next stream again.
void Machine::OnMeasured(Member& member, const v1::Measured& measured) {
  Run* const run = RunAtLead(member, measured.place());
  if (run == nullptr) return;
  if (!CheckMeasured(measured).ok()) {
    CountRefusal(v1::REFUSAL_MALFORMED);
    return;
  }
  Slot& slot = run->slots[measured.place().group()];
  if (!slot.started()) return;
  slot.measured = measured.times();
  slot.better.reset();
  slot.considered = false;
  if (options_.planning == nullptr) return;
  RecordTimes(*run, member, measured);
  const auto predicted = options_.planning->Predict(QueryFor(*run, slot), slot.plan());
  // A prediction that was made at the start, from earlier measurements, is kept.
  if (predicted.ok() && !slot.record().has_predicted()) {
    slot.Predict(*predicted, /*from_own_measurement=*/true);
  }
  slot.RecordPlan(measured.times().step(),
                  predicted.ok() ? std::optional(predicted->step()) : std::nullopt);
  Save(slot);
}

void Machine::RecordTimes(const Run& run, const Member& member, v1::Measured measured) {
  const v1::Model& model = run.spec().model();
  RemoveUnknownLayers(options_.planning->LayersOf(model), *measured.mutable_layers());
  const Measurements::Update update =
      measurements_.Record(member.record.device(), options_.planning->KeyOf(model), measured);
  if (!update.evicted.empty()) out_.EraseOne(update.evicted);
  out_.Put(update.key, *update.record);
}

bool Machine::CanReform(const Run& run, const Slot& slot) const {
  for (const std::string& id : slot.record().members()) {
    const Member* const member = members_.Find(id);
    if (member == nullptr || !member->connected()) return false;
  }
  // A waiting slot would take the released workers.
  for (const auto& [number, other] : runs_) {
    if (!other.live() || number > RunNumber(run.id())) continue;
    if (std::any_of(other.slots.begin(), other.slots.end(),
                    [](const Slot& waiting) { return waiting.waiting(); })) {
      return false;
    }
  }
  return true;
}

// At most one search per Handle call: a search may take long in large groups, and only one group
// changes its plan at a time.
void Machine::ConsiderPlan(const Run& run, Slot& slot) {
  if (slot.considered || std::exchange(looked_for_better_plan_, true)) return;
  slot.considered = true;
  const auto& plans = PlansFor(run, QueryFor(run, slot));
  if (!plans.ok()) return;
  slot.better = FindBetterPlan(slot.plan(), slot.measured->step(), *plans, slot.plans());
}

// At a commit a group holds no uncommitted state: it is released, and its slot is re-formed
// immediately with the same members and the better plan.
bool Machine::MaybeReplan(Run& run, Slot& slot) {
  if (options_.planning == nullptr || !slot.measured.has_value() || !MayReplan(run.spec())) {
    return false;
  }
  const uint64_t steps = StepsLeft(run.record);
  const PlanChange best_case{.now_seconds = slot.measured->step()};
  if (run.record.state() != v1::RUN_STATE_RUNNING ||
      !IsWorthwhile(best_case, steps, slot.formation()))
    return false;
  if (!CanReform(run, slot)) return false;
  ConsiderPlan(run, slot);
  if (!slot.better.has_value() || !IsWorthwhile(*slot.better, steps, slot.formation()))
    return false;
  Count("groups_replanned");
  // The group must form with the link used in this decision, even if other groups on these hosts
  // have measured another one since.
  RecordLink(slot);
  const std::vector<std::string> members = slot.members();
  // The text is made first, because Fence resets slot.better.
  Fence(run, slot, ToText(PlanChange(*slot.better)), Ending::kReleased);
  slot.EndWait();
  slot.preferred_members = members;
  return true;
}

}  // namespace cadre
