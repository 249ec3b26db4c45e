// A network as the papers model it: its layers with weights, in order.
//
// Symbols of the papers: |W| weights (without biases, norms and elementwise layers), d_in inputs of
// the layer per sample (after pooling), d_out its outputs per sample.
//
// Values; thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/graph.h"

namespace cadre {

// One layer with weights.
struct LayerShape {
  std::string name;
  // Position in the graph.
  int number = 0;
  // Whether the layer is a convolution. All other layers, including attention and embeddings, count
  // as fully connected.
  bool convolution = false;
  // Whether the gradient of the layer's input is not needed, because no layer before it has
  // weights.
  bool first = false;
  int64_t weights = 0;
  int64_t inputs = 0;
  int64_t outputs = 0;
  // Convolutions only.
  int64_t in_width = 0, in_channels = 0;
  int64_t out_height = 0, out_width = 0, out_channels = 0;
  int64_t kernel_height = 1, kernel_width = 1;
};

struct NetworkShape {
  std::vector<LayerShape> layers;
  // Floating-point operations of forward, per sample, of all layers of the graph.
  double flops = 0;

  int64_t weights() const;
  int64_t convolution_weights() const;
  int64_t product_weights() const { return weights() - convolution_weights(); }
};

NetworkShape NetworkShapeOf(const Graph& graph);

}  // namespace cadre
