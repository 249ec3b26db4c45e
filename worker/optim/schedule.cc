#include "worker/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace cadre {
namespace {

double Decay(const v1::Schedule& schedule, uint32_t step, uint32_t total_steps) {
  switch (schedule.decay_case()) {
    case v1::Schedule::kStep: {
      const uint32_t drops = step / std::max(1U, schedule.step().every_steps());
      return std::pow(schedule.step().factor(), drops);
    }
    case v1::Schedule::kCosine: {
      const uint32_t warm = std::min(schedule.warmup_steps(), total_steps);
      if (step < warm || total_steps <= warm) return 1.0;
      const double done = std::min(1.0, static_cast<double>(step - warm) / (total_steps - warm));
      const double last = schedule.cosine().final_fraction();
      return last + (1.0 - last) * 0.5 * (1.0 + std::cos(std::numbers::pi * done));
    }
    case v1::Schedule::DECAY_NOT_SET:
      return 1.0;
  }
  return 1.0;
}

}  // namespace

float RateAt(const v1::Schedule& schedule, uint32_t step, uint32_t total_steps) {
  double rate = schedule.base_rate();
  if (step < schedule.warmup_steps()) {
    rate *= (static_cast<double>(step) + 1.0) / schedule.warmup_steps();
  }
  return static_cast<float>(rate * Decay(schedule, step, total_steps));
}

}  // namespace cadre
