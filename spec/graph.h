// A model with its shapes worked out: layers in an order in which each comes after those whose
// outputs it takes, defaults resolved, ready to be planned and built.
//
// Shapes leave the batch dimension out. An image is [height, width, channels], channels last, which
// is also how activations lie in memory; a sequence is [tokens, features].
//
// A value; thread-safe once made.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/cadre/v1/run.pb.h"
#include "tensor/shape.h"

namespace cadre {

enum class LayerKind {
  kConvolution,
  kMaxPool,
  kAveragePool,
  kGlobalAveragePool,
  kFullyConnected,
  kRelu,
  kGelu,
  kSigmoid,
  kTanh,
  kBatchNorm,
  kLocalResponseNorm,
  kDropout,
  kAdd,
  kConcat,
  kFlatten,
  kEmbedding,
  kLayerNorm,
  kAttention,
  kSoftmaxCrossEntropy,
};

// "convolution", "max_pool", ...: as in the run spec.
const char* LayerKindName(LayerKind kind);

// What a parameter is to those who start, decay and average it.
enum class ParameterRole {
  kWeight,
  kBias,
  // Of norms.
  kScale,
  kShift,
  // Of batch norm: not trained, but drawn towards each batch's statistics. Their "gradient" is the
  // batch's statistic.
  kRunningMean,
  kRunningVariance,
};

// True for parameters that no gradient changes.
inline bool IsStatistic(ParameterRole role) {
  return role == ParameterRole::kRunningMean || role == ParameterRole::kRunningVariance;
}

struct LayerParameter {
  // "weight", "bias", "scale", "qkv_weight", ...
  std::string name;
  Shape shape;
  ParameterRole role = ParameterRole::kWeight;
  // Standard deviation of initial values; 0: all are `initial_value`.
  double initial_stddev = 0;
  float initial_value = 0;
};

// Convolution and pooling, in elements.
struct Window {
  int64_t kernel_height = 1, kernel_width = 1;
  int64_t stride = 1;
  int64_t padding_height = 0, padding_width = 0;
  int64_t dilation = 1;
  friend bool operator==(const Window&, const Window&) = default;

  // Rows (columns) of the input that one output sees, holes included.
  int64_t reach_height() const { return dilation * (kernel_height - 1) + 1; }
  int64_t reach_width() const { return dilation * (kernel_width - 1) + 1; }
};

struct GraphLayer {
  std::string name;
  LayerKind kind = LayerKind::kRelu;
  // Its place in the spec's list; flattening that a fully connected layer implies shares its place.
  int spec_layer = 0;
  // Layers whose outputs it takes, by position; Graph::kInput is the model's input.
  std::vector<int> inputs;
  // Of one sample, one per input.
  std::vector<Shape> input_shapes;
  Shape output;
  Window window;
  // Convolution only.
  int64_t groups = 1;
  // As the spec gives it, with defaults put in where 0 stands for one.
  v1::Layer settings;
  // In the order of the parameter index.
  std::vector<LayerParameter> parameters;
  // Multiply-adds count as two. Of one sample, forward.
  int64_t flops = 0;

  const Shape& input(int i = 0) const { return input_shapes[static_cast<size_t>(i)]; }
  bool has_parameters() const { return !parameters.empty(); }
};

class Graph {
 public:
  static constexpr int kInput = -1;

  // Errors: InvalidArgument naming the layer and field, and what would be right.
  static absl::StatusOr<Graph> FromModel(const v1::Model& model);

  const std::vector<GraphLayer>& layers() const { return layers_; }
  const GraphLayer& operator[](int i) const { return layers_[static_cast<size_t>(i)]; }
  int size() const { return static_cast<int>(layers_.size()); }
  // Of one sample: [height, width, channels], or [length] for tokens, which travel as whole numbers
  // in fp32 (exact below 2^24).
  const Shape& input() const { return input_; }
  bool takes_tokens() const { return takes_tokens_; }
  // Elements of the loss's last dimension.
  int64_t classes() const;
  // 1, or the tokens of a sequence.
  int64_t labels_per_sample() const;
  // Layers that take the output of layer `i` (kInput allowed), in order; twice if twice.
  const std::vector<int>& consumers(int i) const { return consumers_[static_cast<size_t>(i + 1)]; }

 private:
  Shape input_;
  bool takes_tokens_ = false;
  std::vector<GraphLayer> layers_;
  std::vector<std::vector<int>> consumers_;
};

// The error of one field of one layer, for those who want to point at it.
struct LayerProblem {
  int layer = -1;       // in the spec's list; -1: the model as a whole
  std::string field;    // such as "convolution.kernel"; may be empty
  std::string message;  // what is wrong and what would be right
};

// As Graph::FromModel, saying where the problems are. Returns the layers that could be inferred.
std::vector<GraphLayer> InferLayers(const v1::Model& model, std::vector<LayerProblem>* problems);

}  // namespace cadre
