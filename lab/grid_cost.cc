#include "lab/grid_cost.h"

#include <cmath>

namespace cadre {

GridTerms IntegratedTerms(const LayerShape& layer, const Grid& grid, double batch) {
  const double samples = batch / grid.pc;
  GridTerms terms;
  terms.forward = AllGather(samples * layer.outputs, grid.pr);
  if (!layer.first) {
    terms.input_gradient = AllReduce(samples * layer.inputs, grid.pr);
  }
  terms.weight_gradient = AllReduce(1.0 * layer.weights / grid.pr, grid.pc);
  return terms;
}

GridTerms BatchTerms(const LayerShape& layer, int64_t ranks) {
  return IntegratedTerms(layer, {.pr = 1, .pc = ranks}, 1);
}

GridTerms DomainTerms(const LayerShape& layer, const Grid& grid, double batch) {
  const double samples = batch / grid.pc;
  GridTerms terms;
  terms.weight_gradient = AllReduce(layer.weights, grid.ranks());
  if (grid.pr == 1) return terms;
  if (layer.kernel_height > 1) {
    terms.forward = {HaloWords(samples, layer.in_width, layer.in_channels, layer.kernel_height), 1};
  }
  if (layer.kernel_width > 1) {
    terms.input_gradient = {
        HaloWords(samples, layer.out_width, layer.out_channels, layer.kernel_width), 1};
  }
  return terms;
}

double HaloWords(double batch, int64_t width, int64_t channels, int64_t kernel) {
  return batch * width * channels * (kernel / 2);
}

double SimpleBatchLimit(const LayerShape& layer) {
  return 2.0 * layer.weights / (3 * layer.outputs);
}

double ExactBatchLimit(const LayerShape& layer) {
  const int64_t words = layer.outputs + (layer.first ? 0 : 2 * layer.inputs);
  return 2.0 * layer.weights / words;
}

double BestRows(const NetworkShape& network, int64_t ranks, double batch) {
  double words = 0;
  for (const LayerShape& layer : network.layers) {
    words += (layer.outputs + (layer.first ? 0 : 2 * layer.inputs));
  }
  return std::sqrt(2.0 * network.weights() * ranks / (batch * words));
}

}  // namespace cadre
