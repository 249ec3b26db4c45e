// Part of LayerInference: norms.
#include <algorithm>

#include "model/inference.h"

namespace cadre {
namespace {

constexpr float kEpsilon = 1e-5F;
constexpr float kMomentum = 0.1F;
// Krizhevsky et al. 2012.
constexpr uint32_t kResponseSize = 5;
constexpr float kResponseAlpha = 1e-4F;
constexpr float kResponseBeta = 0.75F;
constexpr float kResponseK = 2.0F;

}  // namespace

// Mean and variance over samples and positions, per channel; the running statistics are parameters
// that the optimizer does not change.
bool LayerInference::BatchNorm() {
  v1::BatchNorm& norm = *settings().mutable_batch_norm();
  if (!NeedsImage() || !NotNegative("epsilon", norm.epsilon())) return false;
  if (!norm.has_epsilon()) norm.set_epsilon(kEpsilon);
  if (!norm.has_momentum()) norm.set_momentum(kMomentum);
  if (!(norm.momentum() > 0.0F && norm.momentum() <= 1.0F)) {
    return Problem("momentum", "is ", norm.momentum(), "; it must be above 0 and at most 1");
  }
  const Shape channels{in()[2]};
  Constant("scale", channels, ParameterRole::kScale, 1);
  Constant("shift", channels, ParameterRole::kShift, 0);
  Constant("mean", channels, ParameterRole::kRunningMean, 0);
  Constant("variance", channels, ParameterRole::kRunningVariance, 1);
  return OutputLikeInput(7);
}

bool LayerInference::LayerNorm() {
  v1::LayerNorm& norm = *settings().mutable_layer_norm();
  if (!NeedsRows() || !NotNegative("epsilon", norm.epsilon())) return false;
  if (!norm.has_epsilon()) norm.set_epsilon(kEpsilon);
  const Shape features{in().dims().back()};
  Constant("scale", features, ParameterRole::kScale, 1);
  Constant("shift", features, ParameterRole::kShift, 0);
  return OutputLikeInput(7);
}

// Zero means unset for the size only: zero is a valid alpha, beta and k.
bool LayerInference::LocalResponseNorm() {
  v1::LocalResponseNorm& norm = *settings().mutable_local_response_norm();
  if (!NeedsImage() || !AtMostExtent("size", norm.size()) || !NotNegative("alpha", norm.alpha()) ||
      !NotNegative("beta", norm.beta()) || !NotNegative("k", norm.k())) {
    return false;
  }
  if (norm.size() == 0) norm.set_size(kResponseSize);
  if (!norm.has_alpha()) norm.set_alpha(kResponseAlpha);
  if (!norm.has_beta()) norm.set_beta(kResponseBeta);
  if (!norm.has_k()) norm.set_k(kResponseK);
  return OutputLikeInput(2 * std::min<int64_t>(norm.size(), in()[2]) + 4);
}

}  // namespace cadre
