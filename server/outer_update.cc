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

// Each sum has so many partial sums, so that additions do not wait for one another.
constexpr size_t kLanes = 8;

struct Lanes {
  double change_squared[kLanes] = {};
  double momentum_squared[kLanes] = {};
  double product[kLanes] = {};
};

// Requires: n <= kLanes.
inline void AddTerms(const float* __restrict x, const float* __restrict m,
                     const float* __restrict b, size_t n, Lanes& lanes) {
  for (size_t i = 0; i < n; ++i) {
    const double d = static_cast<double>(m[i]) - static_cast<double>(x[i]);
    const double momentum = b[i];
    lanes.change_squared[i] += d * d;
    lanes.momentum_squared[i] += momentum * momentum;
    lanes.product[i] += d * momentum;
  }
}

CADRE_VECTOR_LOOP
void AddToLanes(const float* x, const float* m, const float* b, size_t n, Lanes* lanes) {
  Lanes sums = *lanes;
  const size_t whole = n / kLanes * kLanes;
  for (size_t i = 0; i < whole; i += kLanes) AddTerms(x + i, m + i, b + i, kLanes, sums);
  AddTerms(x + whole, m + whole, b + whole, n - whole, sums);
  *lanes = sums;
}

v1::OuterSums SumsOf(const float* before, const float* mean, const float* momentum, size_t n) {
  Lanes lanes;
  AddToLanes(before, mean, momentum, n, &lanes);
  const auto sum = [](std::span<const double> terms) {
    return std::accumulate(terms.begin(), terms.end(), 0.0);
  };
  v1::OuterSums sums;
  sums.set_change_squared(sum(lanes.change_squared));
  sums.set_momentum_squared(sum(lanes.momentum_squared));
  sums.set_product(sum(lanes.product));
  return sums;
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

v1::OuterSums OuterUpdate::Update(std::span<const float> before, std::span<float> values,
                                  std::array<std::span<float>, 2> states) const {
  const Settings settings{learning_rate_, momentum_};
  const size_t n = values.size();
  const float* const x = before.data();
  float* const m = values.data();
  float* const momentum = states[0].data();
  v1::OuterSums sums = SumsOf(x, m, momentum, n);
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
  return sums;
}

void AddSums(const v1::OuterSums& more, v1::OuterSums& sums) {
  sums.set_change_squared(sums.change_squared() + more.change_squared());
  sums.set_momentum_squared(sums.momentum_squared() + more.momentum_squared());
  sums.set_product(sums.product() + more.product());
}

}  // namespace cadre
