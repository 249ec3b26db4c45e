// Whether a group should change its plan, and to which: by what the planner predicts, and by what
// plans have turned out to take.
//
// A plan that a group has run counts with the step that was measured of it, however fast the
// planner still thinks it is; others with their prediction, times what the present plan's was off
// by. So a group that has moved to a plan that disappoints goes back at most once, and not to and
// fro; also when the coordinator was started anew meanwhile, as what was measured is durable.
//
// Thread-safe (values and pure functions).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/planning.h"
#include "proto/cadre/v1/plan.pb.h"
#include "proto/cadre/v1/records.pb.h"

namespace cadre {

// A better plan has to be so much faster, as a part of the present step,
inline constexpr double kLeastGain = 0.1;
// and to win so many times what moving to it costs, which is at least this.
inline constexpr double kGainOverCost = 5;
inline constexpr absl::Duration kLeastMoveCost = absl::Seconds(1);

// Equal for plans of equal mesh and layouts, whatever their buckets.
std::string SignatureOf(const v1::Plan& plan);

// What one group slot has learnt of plans, over all its generations. A bounded number of them is
// remembered.
struct PlanMemory {
  // Measured seconds a step, by the digest of the signature.
  std::map<uint64_t, double> measured;
  // Measured over predicted, of the plan that was measured last, on the machine as measured then.
  double bias = 1;

  void Learn(const v1::Plan& plan, double step_seconds, std::optional<double> predicted);
  // Takes it up from the slot's record, and writes it there.
  void Load(const v1::GroupRecord& record);
  void Store(v1::GroupRecord& record) const;
  // Seconds that a step is expected to take. Nothing: not known.
  std::optional<double> Expected(const GroupPlan& plan) const;
};

// The one that is expected to be fastest; the first where nothing is known. Requires: not empty.
const GroupPlan& FastestOf(const std::vector<GroupPlan>& plans, const PlanMemory& memory);

struct PlanChange {
  double now_seconds = 0;
  double then_seconds = 0;
};
// From the present plan, whose step was measured, to the fastest; nothing: that is no 10 % faster.
std::optional<PlanChange> BetterThan(const v1::Plan& present, double step_seconds,
                                     const std::vector<GroupPlan>& plans, const PlanMemory& memory);

// Whether what the move wins over the steps that are left pays for it. `formation`: how long it
// took to form the group last time.
bool Pays(const PlanChange& move, uint64_t steps_left, absl::Duration formation);

// "planned anew: 41.2 ms a step instead of 55.0 ms".
std::string InWords(const PlanChange& move);

}  // namespace cadre
