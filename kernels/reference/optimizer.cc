#include "kernels/extents.h"
#include "kernels/optimizer_step.h"
#include "kernels/reference/reference_backend.h"

namespace cadre {

void ReferenceOptimizer::Sgd(const SgdStep& step, std::span<const float> g, std::span<float> w,
                             std::span<float> v) {
  CheckSize("g", g.size(), std::ssize(w));
  CheckSize("v", v.size(), std::ssize(w));
  const auto factors = SgdFactorsOf<double>(step);
  for (size_t i = 0; i < w.size(); ++i) {
    double weight = w[i], velocity = v[i];
    if (step.nesterov) {
      SgdElement<true, double>(factors, g[i], &weight, &velocity);
    } else {
      SgdElement<false, double>(factors, g[i], &weight, &velocity);
    }
    w[i] = static_cast<float>(weight);
    v[i] = static_cast<float>(velocity);
  }
}

void ReferenceOptimizer::AdamW(const AdamWStep& step, std::span<const float> g, std::span<float> w,
                               std::span<float> m, std::span<float> v) {
  CheckSize("g", g.size(), std::ssize(w));
  CheckSize("m", m.size(), std::ssize(w));
  CheckSize("v", v.size(), std::ssize(w));
  const auto factors = AdamFactorsOf<double>(step);
  for (size_t i = 0; i < w.size(); ++i) {
    double weight = w[i], first = m[i], second = v[i];
    AdamElement<double>(factors, g[i], &weight, &first, &second);
    w[i] = static_cast<float>(weight);
    m[i] = static_cast<float>(first);
    v[i] = static_cast<float>(second);
  }
}

double ReferenceOptimizer::SumOfSquares(std::span<const float> x) {
  double sum = 0;
  for (const float value : x) sum += static_cast<double>(value) * value;
  return sum;
}

}  // namespace cadre
