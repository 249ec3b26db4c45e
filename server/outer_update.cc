// The loops below are compiled with -ffp-contract=off, so that only std::fma fuses, and for several
// levels of the instruction set, because without the instruction std::fma is a slow library call.
#include "server/outer_update.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/vector_loop.h"
#include "model/outer_optimizer.h"

namespace cadre {
namespace {

struct Settings {
  float learning_rate;
  float momentum;
};

CADRE_VECTOR_LOOP
void Nesterov(Settings s, const float* x, float* m, float* b, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const float d = m[i] - x[i];
    b[i] = s.momentum * b[i] + d;
    m[i] = std::fma(std::fma(b[i], s.momentum, d), s.learning_rate, x[i]);
  }
}

CADRE_VECTOR_LOOP
void SlowMo(Settings s, float rate, const float* x, float* m, float* u, size_t n) {
  const float scale = s.learning_rate * rate;
  for (size_t i = 0; i < n; ++i) {
    u[i] = s.momentum * u[i] + (m[i] - x[i]) / rate;
    m[i] = std::fma(u[i], scale, x[i]);
  }
}

// A round of delayed Nesterov that only sums the changes up.
CADRE_VECTOR_LOOP
void Accumulate(Settings s, const float* x, float* m, float* a, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const float d = m[i] - x[i];
    a[i] = a[i] + d;
    m[i] = std::fma(d, s.learning_rate, x[i]);
  }
}

// A round of delayed Nesterov that updates the momentum.
CADRE_VECTOR_LOOP
void Delayed(Settings s, float rounds, const float* x, float* m, float* b, float* a, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const float d = m[i] - x[i];
    b[i] = s.momentum * b[i] + (a[i] + d) / rounds;
    a[i] = 0;
    m[i] = std::fma(std::fma(b[i], s.momentum, d), s.learning_rate, x[i]);
  }
}

}  // namespace

OuterUpdate::OuterUpdate(const v1::OuterStep& step, uint32_t round)
    : states_(OuterStates(step.optimizer())),
      slowmo_(step.optimizer().has_slowmo()),
      learning_rate_(OuterRate(step.optimizer())),
      momentum_(OuterMomentum(step.optimizer())),
      rate_(step.rate()),
      every_rounds_(static_cast<float>(step.optimizer().nesterov().every_rounds())),
      updates_momentum_(states_ == 1 || round % step.optimizer().nesterov().every_rounds() == 0) {}

void OuterUpdate::Update(std::span<const float> before, std::span<float> values,
                         std::array<std::span<float>, 2> states) {
  const Settings settings{learning_rate_, momentum_};
  const size_t n = values.size();
  const float* const x = before.data();
  float* const m = values.data();
  float* const momentum = states[0].data();
  AddSums(x, m, momentum, n);
  if (slowmo_ && rate_ == 0) {
    // The groups have not changed anything in their last step, so that d cannot be scaled.
  } else if (slowmo_) {
    SlowMo(settings, rate_, x, m, momentum, n);
  } else if (states_ == 1) {
    Nesterov(settings, x, m, momentum, n);
  } else if (updates_momentum_) {
    Delayed(settings, every_rounds_, x, m, momentum, states[1].data(), n);
  } else {
    Accumulate(settings, x, m, states[1].data(), n);
  }
}

void OuterUpdate::AddSums(const float* before, const float* mean, const float* momentum, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const double d = static_cast<double>(mean[i]) - static_cast<double>(before[i]);
    const double b = momentum[i];
    change_squared_[i % kLanes] += d * d;
    momentum_squared_[i % kLanes] += b * b;
    product_[i % kLanes] += d * b;
  }
}

v1::OuterSums OuterUpdate::sums() const {
  const auto sum = [](const Lanes& lanes) {
    return std::accumulate(lanes.begin(), lanes.end(), 0.0);
  };
  v1::OuterSums sums;
  sums.set_change_squared(sum(change_squared_));
  sums.set_momentum_squared(sum(momentum_squared_));
  sums.set_product(sum(product_));
  return sums;
}

}  // namespace cadre
