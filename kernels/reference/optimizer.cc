#include <cmath>

#include "kernels/extents.h"
#include "kernels/reference/reference_kernels.h"

namespace cadre {

void ReferenceKernels::Sgd(const SgdStep& step, std::span<const float> g, std::span<float> w,
                           std::span<float> v) {
  CheckSize("g", g.size(), static_cast<int64_t>(w.size()));
  CheckSize("v", v.size(), static_cast<int64_t>(w.size()));
  for (size_t i = 0; i < w.size(); ++i) {
    const double slope = static_cast<double>(step.gradient_scale) * g[i] +
                         static_cast<double>(step.weight_decay) * w[i];
    const double velocity = static_cast<double>(step.momentum) * v[i] + slope;
    const double direction = step.nesterov ? slope + step.momentum * velocity : velocity;
    v[i] = static_cast<float>(velocity);
    w[i] = static_cast<float>(w[i] - step.rate * direction);
  }
}

void ReferenceKernels::AdamW(const AdamWStep& step, std::span<const float> g, std::span<float> w,
                             std::span<float> m, std::span<float> v) {
  CheckSize("g", g.size(), static_cast<int64_t>(w.size()));
  CheckSize("m", m.size(), static_cast<int64_t>(w.size()));
  CheckSize("v", v.size(), static_cast<int64_t>(w.size()));
  for (size_t i = 0; i < w.size(); ++i) {
    const double slope = static_cast<double>(step.gradient_scale) * g[i];
    const double first = step.beta1 * static_cast<double>(m[i]) + (1.0 - step.beta1) * slope;
    const double second =
        step.beta2 * static_cast<double>(v[i]) + (1.0 - step.beta2) * slope * slope;
    const double direction =
        first / step.correction1 / (std::sqrt(second / step.correction2) + step.epsilon);
    const double decay = static_cast<double>(step.weight_decay) * w[i];
    m[i] = static_cast<float>(first);
    v[i] = static_cast<float>(second);
    w[i] = static_cast<float>(w[i] - step.rate * (direction + decay));
  }
}

double ReferenceKernels::SumOfSquares(std::span<const float> x) {
  double sum = 0;
  for (const float value : x) sum += static_cast<double>(value) * value;
  return sum;
}

}  // namespace cadre
