// Measurements of groups, changes to better plans, and growth of small groups. Part of RunGroups.
#include "coordinator/run/run_groups.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/cluster/measurements.h"
#include "coordinator/run/formation.h"
#include "coordinator/run/replan.h"
#include "coordinator/run/run_rules.h"
#include "model/layer_placement.h"

namespace cadre {
namespace {

// A group measures its steps far less often.
constexpr absl::Duration kMeasuredInterval = absl::Seconds(1);

// Pins (choices fixed by the user) do not forbid a change: the search respects them, and if they
// leave no choice, it finds the current plan.
bool MayReplan(const v1::RunSpec& spec) {
  return Averages(spec) && !spec.cluster().keep_plan() && !PlacesLayers(spec.cluster());
}

// If only an accuracy target ends the run, the run is assumed to be half done.
uint64_t StepsLeft(const v1::RunRecord& run) {
  const uint32_t total = TotalSteps(run);
  return total == 0 ? run.step() - FirstStep(run.spec()) : total - std::min(total, run.step());
}

}  // namespace

// The member sends this message again after every reconnect; it is idempotent. An invalid message
// is dropped but the stream stays open, because the member would send it on the next stream again.
void RunGroups::OnMeasured(const Member& member, const v1::Measured& measured) {
  Slot& slot = slots_[measured.place().group()];
  if (!slot.started()) return;
  const absl::Duration since_start = slot.SinceStart(cluster_.now());
  if (const absl::Status possible = CheckMeasured(measured, since_start); !possible.ok()) {
    cluster_.CountRefusal(v1::REFUSAL_MALFORMED);
    cluster_.ReportGroup(v1::EVENT_KIND_MESSAGE_REFUSED, measured.place(),
                         absl::StrCat("step times that group ", slot.group(),
                                      " has measured were ignored: ", possible.message()));
    return;
  }
  if (cluster_.now() < slot.measured_at + kMeasuredInterval) return;
  slot.measured_at = cluster_.now();
  slot.measured = measured.times();
  slot.better.reset();
  slot.considered = false;
  planner_.OnMeasured(record_, slot, member, measured);
  stored_.Save(slot);
  // The plans are known at the next commit.
  if (MayGain(slot)) planner_.ConsiderPlan(record_, slot);
}

void RunGroups::OnPredicted(const StepPredicted& found) {
  if (found.group >= slots_.size() || !slots_[found.group].started()) return;
  planner_.OnPredicted(found, slots_[found.group]);
  stored_.Save(slots_[found.group]);
}

bool RunGroups::MayGain(const Slot& slot) const {
  if (options_.planning == nullptr || !slot.measured.has_value() || !MayReplan(run_.spec()) ||
      record_.state() != v1::RUN_STATE_RUNNING) {
    return false;
  }
  const PlanChange best_case{.now_seconds = slot.measured->step()};
  return IsWorthwhile(best_case, StepsLeft(record_), slot.formation());
}

bool RunGroups::CanReform(const Slot& slot) const {
  // A waiting slot would take the released workers.
  return AllConnected(slot, cluster_.members()) && !cluster_.queue().AnyDemandUpTo(run_.number());
}

// At a commit a group holds no uncommitted state: it is released, and its slot is re-formed
// immediately with the same members and the better plan.
bool RunGroups::MaybeReplan(Slot& slot) {
  if (!MayGain(slot) || !CanReform(slot)) return false;
  planner_.ConsiderPlan(record_, slot);
  if (!slot.better.has_value() ||
      !IsWorthwhile(*slot.better, StepsLeft(record_), slot.formation())) {
    return false;
  }
  cluster_.Count("groups_replanned");
  // The group must form with the link used in this decision, even if other groups on these hosts
  // have measured another one since.
  planner_.RecordLink(slot);
  // The same holds for the bias of the prediction.
  if (slot.better->predicted_now.has_value()) {
    slot.RecordPlan(slot.better->now_seconds, slot.better->predicted_now);
  }
  // The text is made first, because Fence resets slot.better.
  FormAgain(slot, ToText(PlanChange(*slot.better)));
  return true;
}

// A group with fewer ranks than requested grows at a commit, when it holds no uncommitted state: it
// is released, and its slot is re-formed with workers that are idle.
bool RunGroups::MaybeGrow(Slot& slot) {
  const size_t requested = RanksPerGroup(run_.spec());
  if (slot.own_loop()) return false;
  if (slot.ranks() >= requested || record_.state() != v1::RUN_STATE_RUNNING) return false;
  // The first rank may have been removed.
  const Member* const first = cluster_.members().Find(slot.record().members(0));
  const v1::Cluster::Device kind =
      first == nullptr ? v1::Cluster::DEVICE_UNSPECIFIED : first->record.device_kind();
  const size_t reserved = cluster_.queue().DemandUpTo(run_.number(), kind);
  const size_t idle = cluster_.CountTrusted(kind, run_.spec().precision());
  if (idle <= reserved) return false;
  size_t ranks = std::min(requested, slot.ranks() + idle - reserved);
  while (ranks > slot.ranks() && !planner_.PlanOfRules(record_, ranks).ok()) --ranks;
  if (ranks <= slot.ranks()) return false;
  cluster_.Count("groups_grown");
  FormAgain(slot, "the group grows: workers are idle");
  return true;
}

}  // namespace cadre
