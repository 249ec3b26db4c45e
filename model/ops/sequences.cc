// Operations over whole sequences: attention and LSTM.
#include <cmath>
#include <vector>

#include "model/ops/families.h"
#include "model/ops/indices.h"
#include "model/ops/inference.h"
#include "model/ops/operation.h"

namespace cadre {
namespace {

// The weights of queries, keys and values have the head as first dimension, so that heads, the
// index along which attention is split, are contiguous.
bool InferAttention(LayerInference& infer) {
  const int64_t heads = infer.settings().attention().heads();
  if (!infer.NeedsSequence() || !infer.Extent("heads", heads)) return false;
  const int64_t tokens = infer.in()[0];
  const int64_t features = infer.in()[1];
  if (features % heads != 0) {
    return infer.Problem("heads", "is ", heads, ", which does not divide the ", features,
                         " features");
  }
  const int64_t size = features / heads;
  // Preserves the variance of the input: no ReLU, which halves it, follows.
  const double stddev = std::sqrt(1.0 / features);
  if (!infer.Weight("qkv_weight", Shape{heads, 3, size, features}, stddev)) return false;
  infer.Constant("qkv_bias", Shape{heads, 3, size}, ParameterRole::kBias, 0);
  if (!infer.Weight("out_weight", Shape{features, heads, size}, stddev)) return false;
  infer.Constant("out_bias", Shape{features}, ParameterRole::kBias, 0);
  infer.layer().output = infer.in();
  // The four projections, and the products with keys and with values.
  return infer.Flops({4, tokens, features, 2 * features + tokens});
}

bool InferDotProductAttention(LayerInference& infer) {
  if (infer.layer().inputs.size() != 2) {
    return infer.Problem("", "takes ", infer.layer().inputs.size(),
                         " inputs; name the queries and the source");
  }
  const Shape& source = infer.layer().input_shapes[1];
  if (infer.in().rank() != 2 || source.rank() != 2 || infer.in()[1] != source[1]) {
    return infer.Problem(
        "",
        "requires queries [tokens, features] and a source of as many features; its "
        "inputs are ",
        infer.in().ToString(), " and ", source.ToString());
  }
  if (ElementsUpTo(Shape{infer.in()[0], source[0]}, kMaxElements) > kMaxElements) {
    return infer.Problem("", TooManyElements(Shape{infer.in()[0], source[0]}, kMaxElements));
  }
  infer.layer().flops = 4 * infer.in().elements() * source[0];
  return infer.Output(infer.in());
}

// Initial values have the variance of those of torch.nn.LSTM, which are uniform in
// [-1 / sqrt(hidden), 1 / sqrt(hidden)]; that of the bias is the variance of its two biases' sum.
bool InferLstm(LayerInference& infer) {
  const v1::Lstm& lstm = infer.settings().lstm();
  if (!infer.NeedsSequence() || !infer.Extent("hidden", lstm.hidden()) ||
      !infer.AtMostExtent("projection", lstm.projection())) {
    return false;
  }
  const int64_t hidden = lstm.hidden();
  if (lstm.projection() >= hidden) {
    return infer.Problem("projection", "is ", lstm.projection(), "; it must be less than the ",
                         hidden, " hidden features");
  }
  const int64_t tokens = infer.in()[0];
  const int64_t features = infer.in()[1];
  const int64_t outputs = lstm.projection() == 0 ? hidden : lstm.projection();
  const double stddev = std::sqrt(1.0 / (3 * hidden));
  if (ElementsUpTo(Shape{tokens, 4 * hidden}, kMaxElements) > kMaxElements) {
    return infer.Problem("hidden", TooManyElements(Shape{tokens, 4 * hidden}, kMaxElements));
  }
  if (!infer.Output(Shape{tokens, outputs}) ||
      !infer.Weight("input_weight", Shape{4 * hidden, features}, stddev) ||
      !infer.Weight("recurrent_weight", Shape{4 * hidden, outputs}, stddev)) {
    return false;
  }
  infer.Constant("bias", Shape{4 * hidden}, ParameterRole::kBias, 0);
  infer.layer().parameters.back().initial_stddev = std::sqrt(2.0) * stddev;
  infer.layer().flops = 2 * tokens * 4 * hidden * (features + outputs);
  if (lstm.projection() == 0) return true;
  infer.layer().flops += 2 * tokens * hidden * outputs;
  return infer.Weight("projection_weight", Shape{outputs, hidden}, stddev);
}

std::vector<OpIndex> AttentionIndices(const GraphLayer& layer) {
  return {Along(layer, kSamples, 0),
          Index(layer, "heads", IndexPlace::Summed(), IndexPlace::Summed(),
                {{"qkv_weight", IndexPlace::Dimension(0)},
                 {"qkv_bias", IndexPlace::Dimension(0)},
                 {"out_weight", IndexPlace::Dimension(1)},
                 {"out_bias", IndexPlace::Same()}})};
}

constexpr Operation kSequences[] = {
    {.kind = LayerKind::kAttention,
     .infer = InferAttention,
     .indices = AttentionIndices,
     .saved = {.x = true},
     .split_rule = SplitRule::kHeads,
     .is_product = true},
    {.kind = LayerKind::kDotProductAttention,
     .infer = InferDotProductAttention,
     .indices = SamplesOnly,
     .saved = {.x = true},
     .split_rule = SplitRule::kAllSamples,
     .takes_several = true,
     .is_product = true},
    {.kind = LayerKind::kLstm,
     .infer = InferLstm,
     .indices = SamplesOnly,
     .saved = {.x = true},
     .split_rule = SplitRule::kAllSamples,
     .is_product = true},
};

}  // namespace

std::span<const Operation> Sequences() { return kSequences; }

}  // namespace cadre
