#include "worker/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace cadre {
namespace {

// Progress along a decay curve: 0 at the end of warm-up, 1 at the end of the run.
double Done(const v1::Schedule& schedule, int64_t step, int64_t total_steps) {
  const int64_t warm = std::min<int64_t>(schedule.warmup_steps(), total_steps);
  if (step < warm || total_steps == warm) return 0;
  const double decaying = total_steps - warm;
  return std::min(1.0, (step - warm) / decaying);
}

double StepFactor(const v1::StepDecay& decay, int64_t step) {
  const double factor = decay.factor();
  const double drops = step / std::max<int64_t>(1, decay.every_steps());
  return std::pow(factor, drops);
}

double CosineFactor(const v1::CosineDecay& decay, double done) {
  const double last = decay.final_fraction();
  return last + (1 - last) * 0.5 * (1 + std::cos(std::numbers::pi * done));
}

double PolynomialFactor(const v1::PolynomialDecay& decay, double done) {
  const double last = decay.final_fraction();
  const double power = decay.has_power() ? decay.power() : 1;
  return last + (1 - last) * std::pow(1 - done, power);
}

double Factor(const v1::Schedule& schedule, int64_t step, int64_t total_steps) {
  switch (schedule.decay_case()) {
    case v1::Schedule::kStep:
      return StepFactor(schedule.step(), step);
    case v1::Schedule::kCosine:
      return CosineFactor(schedule.cosine(), Done(schedule, step, total_steps));
    case v1::Schedule::kPolynomial:
      return PolynomialFactor(schedule.polynomial(), Done(schedule, step, total_steps));
    case v1::Schedule::DECAY_NOT_SET:
      break;
  }
  return 1;
}

}  // namespace

float RateAt(const v1::Schedule& schedule, int64_t step, int64_t total_steps) {
  double rate = schedule.base_rate();
  const double warm = schedule.warmup_steps();
  if (step < warm) rate *= (step + 1) / warm;
  return rate * Factor(schedule, step, total_steps);
}

}  // namespace cadre
