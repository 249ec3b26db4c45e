// A layer with inferred shapes and defaults resolved: a value.
//
// Shapes do not include the batch dimension. An image is [height, width, channels], also in memory;
// a sequence is [tokens, features].
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/cadre/v1/run.pb.h"
#include "tensor/shape.h"

namespace cadre {

// An operation, without `use`, which the reader of run files expands.
using LayerKind = v1::Layer::OpCase;

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
  // Input layers, by index; kInput is the model's input. An attention with a padding token
  // has a second one, the model's tokens.
  std::vector<int> inputs;
  static constexpr int kInput = -1;
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

// An error in one field of one layer.
struct LayerProblem {
  int layer = -1;       // index in the spec; -1: the model as a whole
  std::string field;    // such as "convolution.kernel"; may be empty
  std::string message;  // with valid values
};

}  // namespace cadre
