// A model with inferred shapes: layers in topological order, with defaults resolved.
//
// A value; immutable and thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/ops/layer.h"
#include "proto/cadre/v1/run.pb.h"
#include "tensor/shape.h"

namespace cadre {

// Limit of layers of a model, after expansion of blocks.
inline constexpr int kMaxLayers = 1 << 14;
// Limit of a layer's name, after expansion of blocks.
inline constexpr size_t kMaxLayerNameCharacters = 1000;
// The name that refers to the input of the model.
inline constexpr char kInputName[] = "input";
// Limit of inputs of one layer.
inline constexpr int kMaxInputs = 1024;

class Graph {
 public:
  static constexpr int kInput = GraphLayer::kInput;
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

// By layer: whether the gradient of its output is needed, because it or a layer before it has
// parameters.
std::vector<bool> LayersWithGradient(const Graph& graph);

// The same as Graph::FromModel, but reports all problems. Returns the layers before the first one.
std::vector<GraphLayer> InferLayers(const v1::Model& model, std::vector<LayerProblem>* problems);

}  // namespace cadre
