// Decides whether a group should change its plan, from predictions of the planner and measured step
// times of plans that the group has run. See replan.cc for the method.
//
// Thread-safe (values and pure functions).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/events/planning.h"
#include "proto/cadre/v1/plan.pb.h"
#include "proto/cadre/v1/records.pb.h"

namespace cadre {

// A better plan must reduce the step time by at least this fraction.
inline constexpr double kMinGain = 0.1;
// The time saved over the remaining steps must be at least this multiple of the cost of the change,
// which is at least kMinChangeCost.
inline constexpr double kGainOverCost = 5;
inline constexpr absl::Duration kMinChangeCost = absl::Seconds(1);

// Equal for plans with equal mesh, layouts and recomputed blocks; buckets do not matter.
std::string SignatureOf(const v1::Plan& plan);

// Measured plans of one group slot, over all its generations; bounded in number.
struct PlanHistory {
  // Measured seconds per step, by digest of the signature.
  std::map<uint64_t, double> measured;
  // Ratio of measured to predicted step time of the plan that was measured last.
  double bias = 1;

  void Record(const v1::Plan& plan, double step_seconds, std::optional<double> predicted);
  // Read from and write to the slot's record.
  void Load(const v1::GroupRecord& record);
  void Store(v1::GroupRecord& record) const;
  // Expected seconds per step; nullopt if unknown.
  std::optional<double> Expected(const GroupPlan& plan) const;
};

// The plan with the shortest expected step time; the first if none is known. Requires: not empty.
const GroupPlan& FastestOf(const std::vector<GroupPlan>& plans, const PlanHistory& history);

struct PlanChange {
  double now_seconds = 0;
  double then_seconds = 0;
  // What the search has predicted for the present plan, if it has.
  std::optional<double> predicted_now;
};
// The change from the current plan, whose step time was measured, to the fastest plan; nullopt if
// the gain is below kMinGain.
std::optional<PlanChange> FindBetterPlan(const v1::Plan& present, double step_seconds,
                                         const std::vector<GroupPlan>& plans,
                                         const PlanHistory& history);

// Whether the time saved over the remaining steps justifies the change. `formation`: duration of
// the group's last formation.
bool IsWorthwhile(const PlanChange& change, uint64_t steps_left, absl::Duration formation);

// "replanned: 41.2 ms per step instead of 55.0 ms".
std::string ToText(const PlanChange& change);

}  // namespace cadre
