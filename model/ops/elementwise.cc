// Operations on each element, besides activations.
#include <vector>

#include "model/ops/families.h"
#include "model/ops/indices.h"
#include "model/ops/inference.h"
#include "model/ops/operation.h"

namespace cadre {
namespace {

bool InferDropout(LayerInference& infer) {
  return infer.Fraction("rate", infer.settings().dropout().rate()) && infer.OutputLikeInput(1);
}

bool InferAdd(LayerInference& infer) {
  if (!infer.NeedsInputs(2)) return false;
  for (const Shape& shape : infer.layer().input_shapes) {
    if (shape == infer.in()) continue;
    return infer.Problem("", "adds ", infer.in().ToString(), " and ", shape.ToString(),
                         "; its inputs must have equal shapes");
  }
  return infer.OutputLikeInput(std::ssize(infer.layer().inputs) - 1);
}

// The factor is a whole tensor, or one number per channel of an image.
bool InferMultiply(LayerInference& infer) {
  if (infer.layer().inputs.size() != 2) {
    return infer.Problem("", "takes ", infer.layer().inputs.size(), " inputs; name two");
  }
  const Shape& factor = infer.layer().input_shapes[1];
  if (factor != infer.in() && !(infer.in().rank() == 3 && factor == Shape{infer.in()[2]})) {
    return infer.Problem(
        "", "multiplies ", infer.in().ToString(), " by ", factor.ToString(),
        "; the second input must have the shape of the first, or the channels of an "
        "image");
  }
  return infer.OutputLikeInput(1);
}

// One factor per channel is replicated along the image, so its gradient is a partial sum.
std::vector<OpIndex> MultiplyIndices(const GraphLayer& layer) {
  std::vector<OpIndex> indices = AllDimensions(layer);
  if (layer.input(1) == layer.input(0)) return indices;
  indices[kHeight].inputs[1] = indices[kWidth].inputs[1] = IndexPlace::Summed();
  indices[kChannels].inputs[1] = IndexPlace::Dimension(1);
  return indices;
}

constexpr Operation kElementwise[] = {
    {.kind = LayerKind::kDropout,
     .infer = InferDropout,
     .indices = AllDimensions,
     .in_place = true,
     .split_rule = SplitRule::kKeepSplit},
    {.kind = LayerKind::kAdd,
     .infer = InferAdd,
     .indices = AllDimensions,
     .in_place = true,
     .split_rule = SplitRule::kKeepSplit,
     .takes_several = true},
    {.kind = LayerKind::kMultiply,
     .infer = InferMultiply,
     .indices = MultiplyIndices,
     .saved = {.x = true},
     .takes_several = true},
};

}  // namespace

std::span<const Operation> Elementwise() { return kElementwise; }

}  // namespace cadre
