#include "coordinator/cost/averaging_interval.h"

#include <algorithm>
#include <cmath>

namespace cadre {
namespace {

double PowerOf(IntervalBound bound) { return bound == IntervalBound::kYu ? 4 : 2; }

// The whole number below; what is a whole number up to rounding stays.
int64_t Whole(double value) {
  return std::max<int64_t>(1, static_cast<int64_t>(std::floor(value * (1 + 1e-12))));
}

}  // namespace

int64_t MostStepsBetweenAverages(double steps, int64_t groups, IntervalBound bound) {
  const auto g = static_cast<double>(groups);
  return Whole(std::pow(steps / (g * g * g), 1 / PowerOf(bound)));
}

int64_t MostGroupsOfInterval(double steps, int64_t every_steps, IntervalBound bound) {
  return Whole(std::cbrt(steps / std::pow(static_cast<double>(every_steps), PowerOf(bound))));
}

}  // namespace cadre
