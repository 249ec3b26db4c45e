// A model with inferred shapes: layers in topological order, with defaults resolved.
//
// Shapes do not include the batch dimension. An image is [height, width, channels], also in memory;
// a sequence is [tokens, features].
//
// A value; immutable and thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/cadre/v1/run.pb.h"
#include "tensor/shape.h"

namespace cadre {

// The operations of v1::Layer, except `use`, which the reader of run files expands.
enum class LayerKind {
  kConvolution = v1::Layer::kConvolution,
  kMaxPool = v1::Layer::kMaxPool,
  kAveragePool = v1::Layer::kAveragePool,
  kGlobalAveragePool = v1::Layer::kGlobalAveragePool,
  kFullyConnected = v1::Layer::kFullyConnected,
  kRelu = v1::Layer::kRelu,
  kGelu = v1::Layer::kGelu,
  kSigmoid = v1::Layer::kSigmoid,
  kTanh = v1::Layer::kTanh,
  kBatchNorm = v1::Layer::kBatchNorm,
  kLocalResponseNorm = v1::Layer::kLocalResponseNorm,
  kDropout = v1::Layer::kDropout,
  kAdd = v1::Layer::kAdd,
  kConcat = v1::Layer::kConcat,
  kFlatten = v1::Layer::kFlatten,
  kEmbedding = v1::Layer::kEmbedding,
  kLayerNorm = v1::Layer::kLayerNorm,
  kAttention = v1::Layer::kAttention,
  kRelu6 = v1::Layer::kRelu6,
  kHardSwish = v1::Layer::kHardSwish,
  kHardSigmoid = v1::Layer::kHardSigmoid,
  kSilu = v1::Layer::kSilu,
  kMultiply = v1::Layer::kMultiply,
  kToTokens = v1::Layer::kToTokens,
  kClassToken = v1::Layer::kClassToken,
  kTakeToken = v1::Layer::kTakeToken,
  kBias = v1::Layer::kBias,
  kLstm = v1::Layer::kLstm,
  kDotProductAttention = v1::Layer::kDotProductAttention,
  kSoftmaxCrossEntropy = v1::Layer::kSoftmaxCrossEntropy,
};

// "convolution", "max_pool", ...: the name of the field in the run spec.
const char* LayerKindName(LayerKind kind);

// The role of a parameter in initialization, weight decay and averaging.
enum class ParameterRole {
  kWeight,
  kBias,
  // The affine map of norms.
  kScale,
  kShift,
  // Running statistics of batch norm: not trained, but averaged with the statistics of each batch,
  // which are passed as their "gradient".
  kRunningMean,
  kRunningVariance,
};

// True for parameters without gradients.
inline bool IsStatistic(ParameterRole role) {
  return role == ParameterRole::kRunningMean || role == ParameterRole::kRunningVariance;
}

// One parameter tensor of a layer.
struct LayerParameter {
  // "weight", "bias", "scale", "qkv_weight", ...
  std::string name;
  Shape shape;
  ParameterRole role = ParameterRole::kWeight;
  // Standard deviation of initial values; 0: all of them equal `initial_value`.
  double initial_stddev = 0;
  float initial_value = 0;
};

// The window of a convolution or pooling layer, in elements.
struct Window {
  int64_t kernel_height = 1, kernel_width = 1;
  int64_t stride_height = 1, stride_width = 1;
  int64_t padding_height = 0, padding_width = 0;
  int64_t dilation = 1;
  friend bool operator==(const Window&, const Window&) = default;

  // Rows (columns) of the input that one output covers, including dilation.
  int64_t reach_height() const { return dilation * (kernel_height - 1) + 1; }
  int64_t reach_width() const { return dilation * (kernel_width - 1) + 1; }
};

// One layer, with its inferred shapes and parameters.
struct GraphLayer {
  std::string name;
  LayerKind kind = LayerKind::kRelu;
  // Index in the spec. The flattening before a fully connected layer has the index of that layer.
  int spec_layer = 0;
  // Input layers, by index; Graph::kInput is the model's input. An attention with a padding token
  // has a second one, the model's tokens.
  std::vector<int> inputs;
  // Shapes of one sample, one per input.
  std::vector<Shape> input_shapes;
  Shape output;
  Window window;
  // Convolution only.
  int64_t groups = 1;
  // Fully connected only: the embedding whose table is the weight (FullyConnected.tied_to), by
  // index. The weight is then a parameter of the embedding, not of this layer.
  int tied_to = kNotTied;
  static constexpr int kNotTied = -1;
  // Whether this layer uses a weight that another layer uses too. Such layers split only their
  // samples, and over all axes, so that they have the same partial sums of the weight's gradient.
  bool shares_weight = false;
  // Fully connected only: the size of the sample of classes, if the loss draws one
  // (SoftmaxCrossEntropy.sampling); otherwise 0. The output is then that of training: the score of
  // the label, and those of the sampled classes.
  int64_t sampled_classes = 0;
  // The layer of the spec, with defaults resolved.
  v1::Layer settings;
  // In the order of the parameter index.
  std::vector<LayerParameter> parameters;
  // Floating-point operations of the forward pass of one sample; a multiply-add counts as two.
  int64_t flops = 0;

  const Shape& input(int i = 0) const { return input_shapes[i]; }
  bool has_parameters() const { return !parameters.empty(); }
};

// Whether the layer is an attention with a padding token.
bool HasPadding(const GraphLayer& layer);

class Graph {
 public:
  static constexpr int kInput = -1;
  static constexpr int kNoLayer = -2;

  // Errors: InvalidArgument with the layer, the field and valid values.
  static absl::StatusOr<Graph> FromModel(const v1::Model& model);

  const std::vector<GraphLayer>& layers() const { return layers_; }
  const GraphLayer& operator[](int i) const { return layers_[i]; }
  int size() const { return std::ssize(layers_); }
  // Shape of one sample: [height, width, channels], or [length] for tokens, which are integers in
  // fp32 (exact below 2^24).
  const Shape& input() const { return input_; }
  bool takes_tokens() const { return takes_tokens_; }
  // The number of classes: the extent of the last dimension of the loss's input in evaluation.
  int64_t classes() const;
  // The layer whose scores of all classes training does not compute, because the loss draws a
  // sample of them; kNoLayer without sampling.
  int sampled_layer() const;
  // The graph that evaluation computes: with the scores of all classes. It has the same layers,
  // inputs and parameters.
  Graph ForEvaluation() const;
  // 1, or the tokens whose scores the loss takes: the last ones of a sequence of tokens.
  int64_t labels_per_sample() const;
  // The layers that take the output of layer `i` (or kInput), in order; a layer that takes it twice
  // is listed twice.
  const std::vector<int>& consumers(int i) const { return consumers_[i + 1]; }

 private:
  Shape input_;
  bool takes_tokens_ = false;
  std::vector<GraphLayer> layers_;
  std::vector<std::vector<int>> consumers_;
};

// An error in one field of one layer.
struct LayerProblem {
  int layer = -1;       // index in the spec; -1: the model as a whole
  std::string field;    // such as "convolution.kernel"; may be empty
  std::string message;  // with valid values
};

// The same as Graph::FromModel, but reports all problems. Returns the layers before the first one.
std::vector<GraphLayer> InferLayers(const v1::Model& model, std::vector<LayerProblem>* problems);

}  // namespace cadre
