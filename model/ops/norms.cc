// Normalizations.
#include <algorithm>
#include <vector>

#include "model/ops/families.h"
#include "model/ops/indices.h"
#include "model/ops/inference.h"
#include "model/ops/operation.h"

namespace cadre {
namespace {

constexpr float kEpsilon = 1e-5F;
constexpr float kMomentum = 0.1F;
// Krizhevsky et al. 2012.
constexpr uint32_t kResponseSize = 5;
constexpr float kResponseAlpha = 1e-4F;
constexpr float kResponseBeta = 0.75F;
constexpr float kResponseK = 2.0F;

// Mean and variance over samples and positions, per channel; the running statistics are
// parameters that the optimizer does not change.
bool InferBatchNorm(LayerInference& infer) {
  v1::BatchNorm& norm = *infer.settings().mutable_batch_norm();
  if (!infer.NeedsImage() || !infer.NotNegative("epsilon", norm.epsilon())) return false;
  if (!norm.has_epsilon()) norm.set_epsilon(kEpsilon);
  if (!norm.has_momentum()) norm.set_momentum(kMomentum);
  if (!(norm.momentum() > 0.0F && norm.momentum() <= 1.0F)) {
    return infer.Problem("momentum", "is ", norm.momentum(), "; it must be above 0 and at most 1");
  }
  const Shape channels{infer.in()[2]};
  infer.Constant("scale", channels, ParameterRole::kScale, 1);
  infer.Constant("shift", channels, ParameterRole::kShift, 0);
  infer.Constant("mean", channels, ParameterRole::kRunningMean, 0);
  infer.Constant("variance", channels, ParameterRole::kRunningVariance, 1);
  return infer.OutputLikeInput(7);
}

bool InferLayerNorm(LayerInference& infer) {
  v1::LayerNorm& norm = *infer.settings().mutable_layer_norm();
  if (!infer.NeedsRows() || !infer.NotNegative("epsilon", norm.epsilon())) return false;
  if (!norm.has_epsilon()) norm.set_epsilon(kEpsilon);
  const Shape features{infer.in().dims().back()};
  if (features.elements() == 1) {
    return infer.Problem("",
                         "normalizes one feature, so that its output would be its shift, whatever "
                         "its input; it needs at least 2 features");
  }
  infer.Constant("scale", features, ParameterRole::kScale, 1);
  infer.Constant("shift", features, ParameterRole::kShift, 0);
  return infer.OutputLikeInput(7);
}

// Zero means unset for the size only: zero is a valid alpha, beta and k.
bool InferLocalResponseNorm(LayerInference& infer) {
  v1::LocalResponseNorm& norm = *infer.settings().mutable_local_response_norm();
  if (!infer.NeedsImage() || !infer.AtMostExtent("size", norm.size()) ||
      !infer.NotNegative("alpha", norm.alpha()) || !infer.NotNegative("beta", norm.beta()) ||
      !infer.NotNegative("k", norm.k())) {
    return false;
  }
  if (norm.size() == 0) norm.set_size(kResponseSize);
  if (!norm.has_alpha()) norm.set_alpha(kResponseAlpha);
  if (!norm.has_beta()) norm.set_beta(kResponseBeta);
  if (!norm.has_k()) norm.set_k(kResponseK);
  return infer.OutputLikeInput(2 * std::min<int64_t>(norm.size(), infer.in()[2]) + 4);
}

std::vector<OpIndex> BatchNormIndices(const GraphLayer& layer) {
  std::vector<OpIndex> indices = AllDimensions(layer);
  for (IndexPlace& place : indices.back().parameters) place = IndexPlace::Dimension(0);
  return indices;
}

constexpr Operation kNorms[] = {
    {.kind = LayerKind::kBatchNorm,
     .infer = InferBatchNorm,
     .indices = BatchNormIndices,
     .saved = {.x = true},
     .in_place = true},
    {.kind = LayerKind::kLayerNorm,
     .infer = InferLayerNorm,
     .indices = AllButLast,
     .saved = {.x = true}},
    {.kind = LayerKind::kLocalResponseNorm,
     .infer = InferLocalResponseNorm,
     .indices = AllButLast,
     .saved = {.x = true}},
};

}  // namespace

std::span<const Operation> Norms() { return kNorms; }

}  // namespace cadre
