// Products with a matrix of weights, and rows taken from one.
#include <cmath>
#include <utility>
#include <vector>

#include "model/ops/families.h"
#include "model/ops/indices.h"
#include "model/ops/inference.h"
#include "model/ops/operation.h"

namespace cadre {
namespace {

// A sequence [tokens, features] is multiplied token by token, with the same weights.
bool InferFullyConnected(LayerInference& infer) {
  const v1::FullyConnected& fc = infer.settings().fully_connected();
  if (!infer.NeedsRows() || !infer.Extent("out_features", fc.out_features())) return false;
  const int64_t inputs = infer.in().dims().back();
  const int64_t outputs = fc.out_features();
  std::vector<int64_t> shape = infer.in().dims();
  shape.back() = outputs;
  const Shape weight{outputs, inputs};
  if (ElementsUpTo(weight, kMaxWeights) > kMaxWeights) {
    return infer.Problem("out_features", TooManyElements(weight, kMaxWeights));
  }
  if (!infer.Output(Shape(std::move(shape)))) return false;
  if (infer.layer().tied_to == GraphLayer::kNotTied &&
      !infer.Weight("weight", weight, std::sqrt(2.0 / inputs))) {
    return false;
  }
  if (!fc.no_bias()) infer.Constant("bias", Shape{outputs}, ParameterRole::kBias, 0);
  infer.layer().flops = 2 * infer.layer().output.elements() * inputs;
  return true;
}

bool InferEmbedding(LayerInference& infer) {
  const v1::Embedding& embedding = infer.settings().embedding();
  if (infer.layer().inputs[0] != GraphLayer::kInput || infer.in().rank() != 1) {
    return infer.Problem("", "requires the tokens of a model with `tokens`; its input is ",
                         infer.in().ToString());
  }
  if (!infer.Extent("vocabulary", embedding.vocabulary()) ||
      !infer.Extent("features", embedding.features())) {
    return false;
  }
  const int64_t length = infer.in()[0];
  const int64_t features = embedding.features();
  if (!infer.Output(Shape{length, features}) ||
      !infer.Weight("weight", Shape{embedding.vocabulary(), features}, kEmbeddingStddev)) {
    return false;
  }
  if (!embedding.positions()) return true;
  infer.layer().flops = infer.layer().output.elements();
  return infer.Weight("positions", Shape{length, features}, kEmbeddingStddev);
}

std::vector<OpIndex> FullyConnectedIndices(const GraphLayer& layer) {
  if (layer.shares_weight) return {Along(layer, kSamples, 0)};
  std::vector<OpIndex> indices = AllButLast(layer);
  AddMatrixSides(layer, LastDimension(layer), indices);
  // Any class may be sampled, or be the label of any row.
  if (layer.sampled_classes > 0) {
    std::erase_if(indices, [](const OpIndex& index) { return index.name == "out"; });
  }
  return indices;
}

std::vector<OpIndex> EmbeddingIndices(const GraphLayer& layer) {
  if (layer.shares_weight) return {Along(layer, kSamples, 0)};
  return {Along(layer, kSamples, 0),
          Index(layer, "tokens", IndexPlace::Dimension(1), IndexPlace::Dimension(1),
                {{"positions", IndexPlace::Dimension(0)}}),
          Index(layer, "features", IndexPlace::Summed(), IndexPlace::Dimension(2),
                {{"weight", IndexPlace::Dimension(1)}, {"positions", IndexPlace::Dimension(1)}})};
}

constexpr Operation kDense[] = {
    {.kind = LayerKind::kFullyConnected,
     .infer = InferFullyConnected,
     .indices = FullyConnectedIndices,
     .saved = {.x = true},
     .split_rule = SplitRule::kOutputs,
     .is_product = true,
     .input_gradient_first = true},
    {.kind = LayerKind::kEmbedding,
     .infer = InferEmbedding,
     .indices = EmbeddingIndices,
     .saved = {.x = true},
     .split_rule = SplitRule::kRowSamples,
     .is_product = true},
};

}  // namespace

std::span<const Operation> Dense() { return kDense; }

}  // namespace cadre
