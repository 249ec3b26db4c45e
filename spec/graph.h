// A model with its shapes worked out: the chain of layers, defaults resolved, ready to be planned
// and built. Shapes leave the batch dimension out.
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
  kFullyConnected,
  kRelu,
  kSoftmaxCrossEntropy,
};

// "convolution", "max_pool", ...: as in the run spec.
const char* LayerKindName(LayerKind kind);

struct GraphLayer {
  std::string name;
  LayerKind kind = LayerKind::kRelu;
  // Of one sample: [channels, height, width], or [features] after the first fully connected layer.
  Shape input;
  Shape output;
  // Convolution and pooling, in elements.
  int64_t kernel = 0;
  int64_t stride = 0;
  int64_t padding = 0;

  // Multiply-adds count as two. Of one sample, forward.
  int64_t flops = 0;

  int64_t in_features() const { return input.elements(); }
  int64_t out_features() const { return output.elements(); }
  bool has_parameters() const {
    return kind == LayerKind::kConvolution || kind == LayerKind::kFullyConnected;
  }
  // [out, in, kernel, kernel] or [out, in]. Requires: has_parameters().
  Shape weight_shape() const;
};

class Graph {
 public:
  // Errors: InvalidArgument naming the layer and field, and what would be right.
  static absl::StatusOr<Graph> FromModel(const v1::Model& model);

  const std::vector<GraphLayer>& layers() const { return layers_; }
  // Features of the last layer's input.
  int64_t classes() const { return layers_.back().in_features(); }

 private:
  std::vector<GraphLayer> layers_;
};

// The error of one field of one layer, for those who want to point at it.
struct LayerProblem {
  int layer = -1;       // -1: the model as a whole
  std::string field;    // such as "convolution.kernel"; may be empty
  std::string message;  // what is wrong and what would be right
};

// As Graph::FromModel, saying where the problem is. Returns the layers that could be inferred.
std::vector<GraphLayer> InferLayers(const v1::Model& model, std::vector<LayerProblem>* problems);

}  // namespace cadre
