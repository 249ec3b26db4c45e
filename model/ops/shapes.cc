// Operations that rearrange elements.
#include <utility>
#include <vector>

#include "model/ops/families.h"
#include "model/ops/indices.h"
#include "model/ops/inference.h"
#include "model/ops/operation.h"

namespace cadre {
namespace {

// Joins along the last dimension: channels of images, features of rows.
bool InferConcat(LayerInference& infer) {
  if (!infer.NeedsInputs(2)) return false;
  std::vector<int64_t> joined = infer.in().dims();
  joined.back() = 0;
  for (const Shape& shape : infer.layer().input_shapes) {
    std::vector<int64_t> dims = shape.dims();
    const int64_t channels = dims.back();
    dims.back() = joined.back();
    if (dims != joined) {
      return infer.Problem("", "concatenates ", infer.in().ToString(), " and ", shape.ToString(),
                           "; its inputs may only differ in the last dimension");
    }
    joined.back() += channels;
  }
  return infer.Output(Shape(std::move(joined)));
}

bool InferFlatten(LayerInference& infer) {
  return infer.NeedsImage() && infer.Output(Shape{infer.in().elements()});
}

// Flattening is channel by channel, so a part of the channels is a part of the features.
std::vector<OpIndex> FlattenIndices(const GraphLayer& layer) {
  const int last = LastDimension(layer);
  std::vector<OpIndex> indices = {
      Along(layer, kSamples, 0),
      Index(layer, "channels", IndexPlace::Dimension(last), IndexPlace::Dimension(1))};
  indices.back().divisible = layer.input()[last - 1];
  return indices;
}

constexpr Operation kShapes[] = {
    {.kind = LayerKind::kConcat,
     .infer = InferConcat,
     .indices = AllButLast,
     .takes_several = true},
    {.kind = LayerKind::kFlatten,
     .infer = InferFlatten,
     .indices = FlattenIndices,
     .split_rule = SplitRule::kImageSamples},
};

}  // namespace

std::span<const Operation> Shapes() { return kShapes; }

}  // namespace cadre
