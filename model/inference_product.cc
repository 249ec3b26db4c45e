// Part of LayerInference: layers that multiply by matrices, or take rows from them.
#include <cmath>

#include "model/inference.h"

namespace cadre {
namespace {

// Deviation of the rows of embeddings (as in Radford et al. 2019).
constexpr double kEmbeddingStddev = 0.02;

// The deviation of weights that preserve the variance of the input, for layers that no ReLU (which
// halves the variance) follows.
double PlainStddev(int64_t fan_in) { return std::sqrt(1.0 / fan_in); }

}  // namespace

// A sequence [tokens, features] is multiplied token by token, with the same weights.
bool LayerInference::FullyConnected() {
  const v1::FullyConnected& fc = settings().fully_connected();
  if (!NeedsRows() || !Extent("out_features", fc.out_features())) return false;
  const int64_t inputs = in().dims().back();
  const int64_t outputs = fc.out_features();
  std::vector<int64_t> shape = in().dims();
  shape.back() = outputs;
  const Shape weight{outputs, inputs};
  if (ElementsUpTo(weight, kMaxWeights) > kMaxWeights) {
    return Problem("out_features", TooManyElements(weight, kMaxWeights));
  }
  if (!Output(Shape(std::move(shape))) || !Weight("weight", weight, std::sqrt(2.0 / inputs))) {
    return false;
  }
  if (!fc.no_bias()) Constant("bias", Shape{outputs}, ParameterRole::kBias, 0);
  layer_.flops = 2 * layer_.output.elements() * inputs;
  return true;
}

bool LayerInference::Embedding() {
  const v1::Embedding& embedding = settings().embedding();
  if (layer_.inputs[0] != Graph::kInput || in().rank() != 1) {
    return Problem("", "requires the tokens of a model with `tokens`; its input is ",
                   in().ToString());
  }
  if (!Extent("vocabulary", embedding.vocabulary()) || !Extent("features", embedding.features())) {
    return false;
  }
  const int64_t length = in()[0];
  const int64_t features = embedding.features();
  if (!Output(Shape{length, features}) ||
      !Weight("weight", Shape{embedding.vocabulary(), features}, kEmbeddingStddev)) {
    return false;
  }
  if (!embedding.positions()) return true;
  layer_.flops = layer_.output.elements();
  return Weight("positions", Shape{length, features}, kEmbeddingStddev);
}

// The weights of queries, keys and values have the head as first dimension, so that heads, the
// index along which attention is split, are contiguous.
bool LayerInference::Attention() {
  const int64_t heads = settings().attention().heads();
  if (in().rank() != 2) {
    return Problem("", "requires a sequence [tokens, features]; its input is ", in().ToString());
  }
  if (!Extent("heads", heads)) return false;
  const int64_t tokens = in()[0];
  const int64_t features = in()[1];
  if (features % heads != 0) {
    return Problem("heads", "is ", heads, ", which does not divide the ", features, " features");
  }
  // The probabilities of one sample.
  const Shape scores{heads, tokens, tokens};
  if (ElementsUpTo(scores, kMaxElements) > kMaxElements) {
    return Problem("", TooManyElements(scores, kMaxElements));
  }
  const int64_t size = features / heads;
  const double stddev = PlainStddev(features);
  if (!Weight("qkv_weight", Shape{heads, 3, size, features}, stddev)) return false;
  Constant("qkv_bias", Shape{heads, 3, size}, ParameterRole::kBias, 0);
  if (!Weight("out_weight", Shape{features, heads, size}, stddev)) return false;
  Constant("out_bias", Shape{features}, ParameterRole::kBias, 0);
  layer_.output = in();
  // The four projections, and the products with keys and with values.
  layer_.flops = 8 * tokens * features * features + 4 * tokens * tokens * features;
  return true;
}

}  // namespace cadre
