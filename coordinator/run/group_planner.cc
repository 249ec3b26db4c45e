#include "coordinator/run/group_planner.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "coordinator/run/run_rules.h"
#include "coordinator/store/keys.h"

namespace cadre {
namespace {

// Number of plans of the rules, and of models, that are kept.
constexpr size_t kMaxKept = 256;

// Name of a worker's link endpoint in measurements. GPUs have separate names, because their links
// differ from the links of their hosts.
std::string LinkEndOf(const v1::MemberRecord& worker) {
  const bool cuda = worker.device_kind() == v1::Cluster::CUDA;
  return cuda ? absl::StrCat(worker.host(), " (CUDA)") : worker.host();
}

// At most a 64th less: equal machines report sizes that differ by some pages, and share a search.
int64_t RoundedMemory(int64_t bytes) {
  int64_t unit = 1;
  while (bytes / unit >= 128) unit *= 2;
  return bytes / unit * unit;
}

}  // namespace

PlanQuery GroupPlanner::QueryFor(const v1::RunRecord& run,
                                 const std::vector<std::string>& members) const {
  PlanQuery query{.spec = run.spec()};
  // Only workers that hold a rank, or will soon, share a host: other idle workers use no resources
  // of it. The groups that the run is about to form on the host count for the first one already;
  // otherwise each would have another share, and its own search.
  std::map<std::string, int> joining;
  for (const std::string& id : members) {
    const Member* const member = cluster_.members().Find(id);
    if (member != nullptr && !member->place.has_value()) ++joining[member->record.host()];
  }
  std::vector<std::string> hosts;
  std::set<std::string> devices;
  for (const std::string& id : members) {
    const Member* const member = cluster_.members().Find(id);
    if (member == nullptr) continue;
    const std::string& host = member->record.host();
    int soon = joining[host];
    if (soon > 0) {
      const size_t demand =
          cluster_.queue().DemandUpTo(RunNumber(run.run()), member->record.device_kind());
      soon =
          std::max<int>(soon, std::min<size_t>(cluster_.members().counts().IdleOn(host), demand));
    }
    const int workers = cluster_.members().counts().PlacedOn(host) + soon;
    // Workers of a host share its memory; for a GPU, each worker reports its own limit.
    const bool cuda = member->record.device_kind() == v1::Cluster::CUDA;
    query.spec.mutable_cluster()->set_device(member->record.device_kind());
    query.ranks.push_back({.host = host,
                           .device = member->record.device(),
                           .cores = static_cast<double>(member->cores) / workers,
                           .memory_bytes = RoundedMemory(
                               static_cast<int64_t>(member->memory_bytes) / (cuda ? 1 : workers))});
    hosts.push_back(LinkEndOf(member->record));
    devices.insert(member->record.device());
  }
  if (hosts.empty()) return query;
  query.link = measurements_.LinkOf(hosts);
  const auto first = std::count(hosts.begin(), hosts.end(), hosts.front());
  if (first > 1 && first < std::ssize(hosts)) {
    query.inside = measurements_.LinkOf(std::vector<std::string>(first, hosts.front()));
  }
  const std::string& model = ModelOf(run).key;
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
PlanQuery GroupPlanner::QueryFor(const v1::RunRecord& run, const Slot& slot) const {
  PlanQuery query = QueryFor(run, slot.members());
  if (slot.plan().link().beta() > 0) query.link = slot.plan().link();
  return query;
}

const GroupPlanner::MeasuredModel& GroupPlanner::ModelOf(const v1::RunRecord& run) const {
  if (models_.size() >= kMaxKept) models_.clear();
  const auto [found, is_new] = models_.try_emplace(run.lineage());
  if (is_new) {
    const v1::Model& model = run.spec().model();
    found->second = {options_.planning->KeyOf(model), options_.planning->LayersOf(model)};
  }
  return found->second;
}

const absl::StatusOr<v1::Plan>& GroupPlanner::PlanOfRules(const v1::RunRecord& run, int ranks) {
  if (rules_.size() >= kMaxKept) rules_.clear();
  const auto [found, is_new] =
      rules_.try_emplace({run.lineage(), ranks}, absl::UnknownError("not planned yet"));
  if (is_new) found->second = options_.plan(run.spec(), ranks);
  return found->second;
}

absl::StatusOr<v1::Plan> GroupPlanner::PlanGroup(const v1::RunRecord& run, const Slot& slot,
                                                 const std::vector<std::string>& members) {
  // No group may train a run that the rules refuse.
  CADRE_ASSIGN_OR_RETURN(v1::Plan by_rules, PlanOfRules(run, std::ssize(members)));
  if (options_.planning == nullptr || run.spec().cluster().keep_plan()) return by_rules;
  CADRE_ASSIGN_OR_RETURN(const std::vector<GroupPlan>& plans,
                         searches_.PlansFor(run, cluster_.meta().epoch(), QueryFor(run, members),
                                            /*urgent=*/true, cluster_.out()));
  return FastestOf(plans, slot.plans()).plan;
}

void GroupPlanner::RecordLink(const Slot& slot) {
  if (slot.ranks() <= 1 || !(slot.plan().link().beta() > 0)) return;
  std::vector<std::string> hosts;
  for (const std::string& id : slot.record().members()) {
    const Member* const member = cluster_.members().Find(id);
    if (member == nullptr) return;
    hosts.push_back(LinkEndOf(member->record));
  }
  measurements_.RecordLink(hosts, slot.plan().link());
}

bool GroupPlanner::PredictGroup(const v1::RunRecord& run, const Slot& slot, double measured) {
  if (options_.planning == nullptr) return false;
  PlanQuery query = QueryFor(run, slot);
  // There is nothing to predict from.
  if (query.times.empty()) return false;
  cluster_.out().Add(PredictStep{.run = run.run(),
                                 .group = slot.group(),
                                 .generation = slot.record().generation(),
                                 .measured = measured,
                                 .query = std::move(query),
                                 .plan = slot.plan()});
  return true;
}

void GroupPlanner::OnMeasured(const v1::RunRecord& run, Slot& slot, const Member& member,
                              const v1::Measured& measured) {
  if (options_.planning == nullptr) return;
  RecordTimes(run, member, measured);
  slot.RecordPlan(measured.times().step(), std::nullopt);
  slot.predicting = PredictGroup(run, slot, measured.times().step());
}

void GroupPlanner::OnPredicted(const StepPredicted& found, Slot& slot) {
  if (found.generation != slot.record().generation()) return;
  const bool is_measured = found.measured > 0;
  // A newer measurement waits for its own prediction.
  if (is_measured && slot.measured.has_value() && found.measured != slot.measured->step()) return;
  if (is_measured) slot.predicting = false;
  if (!found.times.ok()) return;
  // A prediction that was made at the start, from earlier measurements, is kept.
  if (!slot.record().has_predicted()) slot.Predict(*found.times, is_measured);
  if (is_measured) slot.RecordPlan(found.measured, found.times->step());
}

void GroupPlanner::RecordTimes(const v1::RunRecord& run, const Member& member,
                               v1::Measured measured) {
  const MeasuredModel& model = ModelOf(run);
  RemoveUnknownLayers(model.layers, *measured.mutable_layers());
  const Measurements::Update update =
      measurements_.Record(member.record.device(), model.key, measured);
  if (!update.evicted.empty()) cluster_.out().EraseOne(update.evicted);
  cluster_.out().Put(update.key, *update.record);
}

void GroupPlanner::ConsiderPlan(const v1::RunRecord& run, Slot& slot) {
  if (slot.considered) return;
  const auto& plans = searches_.PlansFor(run, cluster_.meta().epoch(), QueryFor(run, slot),
                                         /*urgent=*/false, cluster_.out());
  slot.considered = !slot.predicting && !absl::IsUnavailable(plans.status());
  if (!slot.considered) return;
  if (!plans.ok()) return;
  slot.better = FindBetterPlan(slot.plan(), slot.measured->step(), *plans, slot.plans());
}

}  // namespace cadre
