#include "plan/cost/averaging_interval.h"

#include <algorithm>
#include <cmath>

namespace cadre {
namespace {

double PowerOf(IntervalBound bound) { return bound == IntervalBound::kYu ? 4 : 2; }

// Rounds down, to at least 1. The factor keeps a value that is whole except for rounding errors.
int64_t Whole(double value) { return std::max<int64_t>(1, std::floor(value * (1 + 1e-12))); }

}  // namespace

int64_t MaxStepsBetweenAverages(double steps, int64_t groups, IntervalBound bound) {
  const double g = groups;
  return Whole(std::pow(steps / (g * g * g), 1 / PowerOf(bound)));
}

int64_t MaxGroupsForInterval(double steps, int64_t every_steps, IntervalBound bound) {
  return Whole(std::cbrt(steps / std::pow(every_steps, PowerOf(bound))));
}

}  // namespace cadre
