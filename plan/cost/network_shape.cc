#include "plan/cost/network_shape.h"

#include <algorithm>

namespace cadre {
namespace {

int64_t WeightsOf(const GraphLayer& layer) {
  int64_t weights = 0;
  for (const LayerParameter& parameter : layer.parameters) {
    if (parameter.role == ParameterRole::kWeight) weights += parameter.shape.elements();
  }
  return weights;
}

LayerShape ShapeOf(const GraphLayer& layer) {
  LayerShape shape{.name = layer.name, .weights = WeightsOf(layer)};
  for (const Shape& input : layer.input_shapes) shape.inputs += input.elements();
  shape.outputs = layer.output.elements();
  if (layer.kind != LayerKind::kConvolution) return shape;
  shape.convolution = true;
  shape.in_width = layer.input()[1];
  shape.in_channels = layer.input()[2];
  shape.out_height = layer.output[0];
  shape.out_width = layer.output[1];
  shape.out_channels = layer.output[2];
  shape.kernel_height = layer.window.kernel_height;
  shape.kernel_width = layer.window.kernel_width;
  return shape;
}

}  // namespace

int64_t NetworkShape::weights() const {
  int64_t sum = 0;
  for (const LayerShape& layer : layers) sum += layer.weights;
  return sum;
}

int64_t NetworkShape::convolution_weights() const {
  int64_t sum = 0;
  for (const LayerShape& layer : layers) sum += layer.convolution ? layer.weights : 0;
  return sum;
}

NetworkShape NetworkShapeOf(const Graph& graph) {
  NetworkShape network;
  // By layer: whether it or any layer before it has weights.
  std::vector<bool> trained;
  for (int l = 0; l < graph.size(); ++l) {
    const GraphLayer& layer = graph[l];
    network.flops += layer.flops;
    const bool behind = std::any_of(layer.inputs.begin(), layer.inputs.end(), [&](int input) {
      return input != Graph::kInput && trained[input];
    });
    trained.push_back(behind || WeightsOf(layer) > 0);
    if (WeightsOf(layer) == 0) continue;
    network.layers.push_back(ShapeOf(layer));
    network.layers.back().number = l;
    network.layers.back().first = !behind;
  }
  return network;
}

}  // namespace cadre
