// Bounds on the steps between averages, up to which more groups still reduce the training time,
// from convergence results for local SGD.
//
// Sources, for G groups that average every H steps and train for T steps each: the speed-up is
// linear in G while G is at most about (T / H^4)^(1/3) (Yu, Yang, Zhu 2019: gradients of bounded
// length) or (T / H^2)^(1/3) (Wang, Joshi 2018). Both omit constants, so they are only orders of
// magnitude. The measured discrepancy of a run (plan/cost/discrepancy.h) takes precedence.
//
// Thread-safe (pure functions).
#pragma once

#include <cstdint>

namespace cadre {

enum class IntervalBound {
  kYu,
  kWangJoshi,
};

// The maximum number of steps between averages; at least 1. `steps` is T. Requires: steps >= 0,
// groups >= 1.
int64_t MaxStepsBetweenAverages(double steps, int64_t groups, IntervalBound bound);

// The maximum number of groups; at least 1. Requires: steps >= 0, every_steps >= 1.
int64_t MaxGroupsForInterval(double steps, int64_t every_steps, IntervalBound bound);

}  // namespace cadre
