#include "model/outer_optimizer.h"

#include <algorithm>

namespace cadre {
namespace {

constexpr float kNesterovRate = 0.7F;
constexpr float kNesterovMomentum = 0.9F;
constexpr float kSlowMoRate = 1.0F;
constexpr float kSlowMoMomentum = 0.7F;

template <typename Settings>
void SetDefaults(float rate, float momentum, Settings& settings) {
  if (!settings.has_learning_rate()) settings.set_learning_rate(rate);
  if (!settings.has_momentum()) settings.set_momentum(momentum);
}

}  // namespace

std::optional<v1::OuterOptimizer> OuterOptimizerOf(const v1::Averaging& averaging) {
  v1::OuterOptimizer optimizer = averaging.outer();
  switch (optimizer.kind_case()) {
    case v1::OuterOptimizer::kNesterov: {
      v1::OuterNesterov& nesterov = *optimizer.mutable_nesterov();
      SetDefaults(kNesterovRate, kNesterovMomentum, nesterov);
      nesterov.set_every_rounds(std::max(1U, nesterov.every_rounds()));
      return optimizer;
    }
    case v1::OuterOptimizer::kSlowmo:
      SetDefaults(kSlowMoRate, kSlowMoMomentum, *optimizer.mutable_slowmo());
      return optimizer;
    case v1::OuterOptimizer::KIND_NOT_SET:
      return std::nullopt;
  }
  return std::nullopt;
}

int OuterStates(const v1::OuterOptimizer& optimizer) {
  return optimizer.nesterov().every_rounds() > 1 ? 2 : 1;
}

float OuterRate(const v1::OuterOptimizer& optimizer) {
  return optimizer.has_slowmo() ? optimizer.slowmo().learning_rate()
                                : optimizer.nesterov().learning_rate();
}

float OuterMomentum(const v1::OuterOptimizer& optimizer) {
  return optimizer.has_slowmo() ? optimizer.slowmo().momentum() : optimizer.nesterov().momentum();
}

}  // namespace cadre
