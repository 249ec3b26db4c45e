// A network as the papers see it: its layers with weights, in order, and nothing else.
//
// Symbols of the papers: |W| weights (biases and norms are left out, as are layers of elementwise
// work), d_in inputs of one sample as the layer takes them (after pooling), d_out outputs of one
// sample before anything follows.
//
// Values; thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "spec/graph.h"

namespace cadre {

struct LayerShape {
  std::string name;
  // Position in the graph.
  int number = 0;
  // Otherwise it counts as fully connected: attention and embeddings, too.
  bool convolution = false;
  // Nobody asks for the gradient of what it takes: nothing in front of it has weights.
  bool first = false;
  int64_t weights = 0;
  int64_t inputs = 0;
  int64_t outputs = 0;
  // Of convolutions.
  int64_t in_width = 0, in_channels = 0;
  int64_t out_height = 0, out_width = 0, out_channels = 0;
  int64_t kernel_height = 1, kernel_width = 1;
};

struct NetworkShape {
  std::vector<LayerShape> layers;
  // Of one sample, forward, all layers of the graph.
  double flops = 0;

  int64_t weights() const;
  int64_t convolution_weights() const;
  int64_t product_weights() const { return weights() - convolution_weights(); }
};

NetworkShape NetworkShapeOf(const Graph& graph);

}  // namespace cadre
