// The operation that ends a model.
#include <vector>

#include "model/ops/families.h"
#include "model/ops/indices.h"
#include "model/ops/inference.h"
#include "model/ops/operation.h"

namespace cadre {
namespace {

// Softmax and loss are one layer, so that its gradient is probability minus label, without a
// division by small probabilities.
bool InferSoftmaxCrossEntropy(LayerInference& infer) {
  if (!infer.Fraction("label_smoothing",
                      infer.settings().softmax_cross_entropy().label_smoothing())) {
    return false;
  }
  if (infer.in().rank() == 3) {
    return infer.Problem("", "requires [classes] or [tokens, classes]; its input is the image ",
                         infer.in().ToString(),
                         "; put a fully_connected, global_average_pool or flatten before it");
  }
  if (const int64_t classes = infer.in().dims().back(); classes < 2) {
    return infer.Problem("", "takes ", classes, " features; classes must be at least 2");
  }
  infer.layer().flops = kLossFlops * infer.in().elements();
  return infer.Output(Shape{1});
}

// The loss is one number, and every rank computes an addend of it.
std::vector<OpIndex> LossIndices(const GraphLayer& layer) {
  std::vector<OpIndex> indices = AllButLast(layer);
  for (OpIndex& index : indices) index.output = IndexPlace::Summed();
  return indices;
}

constexpr Operation kLosses[] = {
    {.kind = LayerKind::kSoftmaxCrossEntropy,
     .infer = InferSoftmaxCrossEntropy,
     .indices = LossIndices,
     .split_rule = SplitRule::kAllSamples},
};

}  // namespace

std::span<const Operation> Losses() { return kLosses; }

}  // namespace cadre
