// How seldom groups may average so that more groups still mean less time, by what is proved of
// local SGD.
//
// Sources, for G groups that average every H steps and T steps of each: training is G times as fast
// while G is at most about (T / H^4)^(1/3) (Yu, Yang, Zhu 2019: gradients of bounded length) or
// (T / H^2)^(1/3) (Wang, Joshi 2018). Constants are left out of both, so these are orders of
// magnitude; what a run's own discrepancy says (coordinator/cost/discrepancy.h) goes before them.
//
// Thread-safe (pure functions).
#pragma once

#include <cstdint>

namespace cadre {

enum class IntervalBound {
  kYu,
  kWangJoshi,
};

// The most steps between averages; at least 1. Requires: steps >= 0, groups >= 1.
int64_t MostStepsBetweenAverages(double steps, int64_t groups, IntervalBound bound);

// The most groups; at least 1. Requires: steps >= 0, every_steps >= 1.
int64_t MostGroupsOfInterval(double steps, int64_t every_steps, IntervalBound bound);

}  // namespace cadre
