#include "worker/optim/step_norms.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "glog/logging.h"
#include "model/optimizer_state.h"

namespace cadre {
namespace {

// Keeps the factor finite when all gradients are zero.
constexpr double kSmallestNorm = 1e-6;

}  // namespace

StepNorms::StepNorms(const v1::Optimizer& optimizer, int parameters)
    : clip_norm_(optimizer.clip_norm()),
      by_tensor_(UsesTensorNorms(optimizer)),
      parameters_(parameters) {
  if (by_tensor_) {
    sums_.resize(2 * parameters_);
  } else if (clip_norm_ > 0) {
    sums_.resize(1);
  }
}

void StepNorms::Clear() { std::fill(sums_.begin(), sums_.end(), 0.0); }

void StepNorms::Add(int parameter, double gradient_squares, double weight_squares) {
  if (sums_.empty()) return;
  CHECK_LT(parameter, parameters_);
  sums_[by_tensor_ ? parameter : 0] += gradient_squares;
  if (by_tensor_) sums_[parameters_ + parameter] += weight_squares;
}

double StepNorms::GradientNorm() const {
  const int64_t count = by_tensor_ ? parameters_ : std::ssize(sums_);
  return std::sqrt(std::accumulate(sums_.begin(), sums_.begin() + count, 0.0));
}

double StepNorms::GradientScale() const {
  if (!(clip_norm_ > 0)) return 1;
  const double factor = clip_norm_ / (GradientNorm() + kSmallestNorm);
  return factor >= 1 ? 1 : factor;
}

double StepNorms::GradientNorm(int parameter) const {
  CHECK(by_tensor_);
  return std::sqrt(sums_[parameter]);
}

double StepNorms::WeightNorm(int parameter) const {
  CHECK(by_tensor_);
  return std::sqrt(sums_[parameters_ + parameter]);
}

}  // namespace cadre
