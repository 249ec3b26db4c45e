// Operations that make, add and select tokens.
#include <vector>

#include "model/ops/families.h"
#include "model/ops/indices.h"
#include "model/ops/inference.h"
#include "model/ops/operation.h"

namespace cadre {
namespace {

bool InferToTokens(LayerInference& infer) {
  return infer.NeedsImage() && infer.Output(Shape{infer.in()[0] * infer.in()[1], infer.in()[2]});
}

bool InferClassToken(LayerInference& infer) {
  return infer.NeedsSequence() && infer.Output(Shape{infer.in()[0] + 1, infer.in()[1]}) &&
         infer.Weight("weight", Shape{infer.in()[1]}, kEmbeddingStddev);
}

bool InferTakeToken(LayerInference& infer) {
  if (!infer.NeedsSequence()) return false;
  const int64_t token = infer.settings().take_token().token();
  const int64_t count = infer.settings().take_token().count();
  if (token >= infer.in()[0]) {
    return infer.Problem("token", "is ", token, "; the sequence has ", infer.in()[0], " tokens");
  }
  if (count > infer.in()[0] - token) {
    return infer.Problem("count", "is ", count, "; from token ", token, " on, the sequence has ",
                         infer.in()[0] - token);
  }
  return infer.Output(count == 0 ? Shape{infer.in()[1]} : Shape{count, infer.in()[1]});
}

bool InferBias(LayerInference& infer) {
  if (!infer.NeedsRows() || !infer.OutputLikeInput(1)) return false;
  if (!infer.settings().bias().per_token()) {
    infer.Constant("bias", Shape{infer.in().dims().back()}, ParameterRole::kBias, 0);
    return true;
  }
  return infer.NeedsSequence() && infer.Weight("bias", infer.in(), kEmbeddingStddev);
}

std::vector<OpIndex> ToTokensIndices(const GraphLayer& layer) {
  return {Along(layer, kSamples, 0),
          Index(layer, "channels", IndexPlace::Dimension(kChannels), IndexPlace::Dimension(2))};
}

std::vector<OpIndex> ClassTokenIndices(const GraphLayer& layer) {
  return {Along(layer, kSamples, 0),
          Index(layer, "features", IndexPlace::Dimension(2), IndexPlace::Dimension(2),
                {{"weight", IndexPlace::Dimension(0)}})};
}

std::vector<OpIndex> TakeTokenIndices(const GraphLayer& layer) {
  return {Along(layer, kSamples, 0), Index(layer, "features", IndexPlace::Dimension(2),
                                           IndexPlace::Dimension(layer.output.rank()))};
}

std::vector<OpIndex> BiasIndices(const GraphLayer& layer) {
  const int last = LastDimension(layer);
  const int parameter_rank = layer.parameters[0].shape.rank();
  return {Along(layer, kSamples, 0),
          Index(layer, "features", IndexPlace::Dimension(last), IndexPlace::Dimension(last),
                {{"bias", IndexPlace::Dimension(parameter_rank - 1)}})};
}

constexpr Operation kTokens[] = {
    {.kind = LayerKind::kToTokens,
     .infer = InferToTokens,
     .indices = ToTokensIndices,
     .split_rule = SplitRule::kImageSamples},
    {.kind = LayerKind::kClassToken, .infer = InferClassToken, .indices = ClassTokenIndices},
    {.kind = LayerKind::kTakeToken, .infer = InferTakeToken, .indices = TakeTokenIndices},
    {.kind = LayerKind::kBias, .infer = InferBias, .indices = BiasIndices},
};

}  // namespace

std::span<const Operation> Tokens() { return kTokens; }

}  // namespace cadre
