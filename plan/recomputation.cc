// Idea (Chen, Xu, Zhang and Guestrin, "Training deep nets with sublinear memory cost", 2016,
// arXiv:1604.06174): of n equal layers in blocks of sqrt(n), a rank keeps the outputs of sqrt(n)
// blocks and the activations of one, for the price of one more forward pass.
//
// Layers have different sizes, and a position between two layers at which several outputs are still
// needed costs more than one at which a single output is. RecomputationBlocks therefore tries
// limits of the activations in a block. For each limit it walks over the layers and ends a block,
// before the limit is exceeded, at the last of the positions at which the fewest elements are still
// needed. Of all limits, it takes the one with the smallest sum of kept outputs and largest block.
// For a transformer the positions are those behind the additions of its residual connections.
//
// Sizes are those of one whole sample in fp32, so the blocks do not depend on the plan's layouts,
// the batch or the precision. They are a choice of the plan, which lists them, so ranks need not
// agree on this function.
//
// RecomputedLayers follows what backward reads: a layer's input, output or saved values
// (model/ops/operation.h). A fully connected layer at the end of a block, for example, is not
// executed again, because its backward reads its input only. The statistics of batch norm are kept,
// since they are small and computing them again would communicate.
//
// Limits. All blocks but the last are candidates, from the first on; skipping a block in the middle
// is not considered. In plans that place layers, a rank keeps what it has received from others.
#include "plan/recomputation.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "model/ops/operation.h"
#include "plan/cost/communication_cost.h"
#include "plan/layer_memory.h"

namespace cadre {
namespace {

// The number of limits that are tried, from the largest layer to all layers.
constexpr int kLimits = 32;

// Elements per sample that forward saves besides input and output.
int64_t SavedElements(const GraphLayer& layer) {
  LayerExtents whole = {.samples = 1,
                        .output = layer.output.elements(),
                        .features = layer.output.rank() == 0 ? 1 : layer.output.dims().back(),
                        .input_features = layer.input().dims().back()};
  if (layer.kind == LayerKind::kAttention) whole.heads = layer.parameters[0].shape[0];
  return MemoryOfLayer(layer, whole, DType::kFloat32, v1::Cluster::CPU).saved;
}

bool KeepsStatistics(const GraphLayer& layer) { return layer.kind == LayerKind::kBatchNorm; }

// By layer: the elements per sample that backward reads.
std::vector<int64_t> Activations(const Graph& graph) {
  const std::vector<bool> needs_gradient = LayersWithGradient(graph);
  std::vector<int64_t> elements(graph.size());
  for (int l = 0; l < graph.size(); ++l) {
    const auto reads_input = [&](int consumer) {
      return needs_gradient[consumer] && Describe(graph[consumer].kind).saved.x;
    };
    const bool read =
        (needs_gradient[l] && Describe(graph[l].kind).saved.y) ||
        std::any_of(graph.consumers(l).begin(), graph.consumers(l).end(), reads_input);
    elements[l] = (read ? graph[l].output.elements() : 0) + SavedElements(graph[l]);
  }
  return elements;
}

// By position: the elements of the outputs of earlier layers that layers from this one on read.
std::vector<int64_t> ElementsAcross(const Graph& graph) {
  std::vector<int64_t> change(graph.size() + 1);
  for (int l = 0; l < graph.size(); ++l) {
    const std::vector<int>& consumers = graph.consumers(l);
    if (consumers.empty()) continue;
    change[l + 1] += graph[l].output.elements();
    change[std::max(l, consumers.back()) + 1] -= graph[l].output.elements();
  }
  for (int l = 0; l < graph.size(); ++l) change[l + 1] += change[l];
  return change;
}

struct Division {
  std::vector<Interval> blocks;
  // Kept outputs and the largest block.
  int64_t elements = 0;
};

// Requires: no layer has more activations than `limit`.
Division Divide(const std::vector<int64_t>& activations, const std::vector<int64_t>& across,
                int64_t limit) {
  Division division;
  const int layers = std::ssize(activations) - 1;  // without the loss
  int64_t largest = 0;
  int begin = 0;
  while (begin < layers) {
    int64_t elements = 0, of_best = 0;
    int best = -1, end = begin;
    for (; end < layers && elements + activations[end] <= limit; ++end) {
      elements += activations[end];
      if (best >= 0 && across[end + 1] > across[best]) continue;
      best = end + 1;
      of_best = elements;
    }
    if (end == layers) {
      best = layers;
      of_best = elements;
    } else {
      division.elements += across[best];
    }
    division.blocks.push_back({begin, best});
    largest = std::max(largest, of_best);
    begin = best;
  }
  division.elements += largest;
  return division;
}

int64_t Sum(const std::vector<int64_t>& elements, const Interval& layers) {
  int64_t sum = 0;
  for (int64_t l = layers.begin; l < layers.end; ++l) sum += elements[l];
  return sum;
}

double ShareInMemory(const Graph& graph, std::span<const Interval> blocks) {
  const std::vector<int64_t> activations = Activations(graph);
  int64_t all = 0, largest = 0;
  for (const Interval& block : blocks) {
    const int64_t elements = Sum(activations, block);
    all += elements;
    largest = std::max(largest, elements);
  }
  if (all == 0) return 1;
  const int64_t behind = Sum(activations, {blocks.back().end, graph.size() - 1});
  return static_cast<double>(std::max<int64_t>(0, largest - behind)) / static_cast<double>(all);
}

}  // namespace

std::vector<RecomputedLayer> RecomputedLayers(const Graph& graph, std::span<const Interval> blocks,
                                              std::span<const LayerLayouts> layouts) {
  std::vector<RecomputedLayer> layers(graph.size());
  if (blocks.empty()) return layers;
  const std::vector<bool> needs_gradient = LayersWithGradient(graph);
  const double share = ShareInMemory(graph, blocks);
  for (const Interval& block : blocks) {
    for (int l = block.end - 1; l >= block.begin; --l) {
      const SavedForBackward reads = Describe(graph[l].kind).saved;
      RecomputedLayer& layer = layers[l];
      layer.in_block = true;
      layer.share_in_memory = share;
      bool read_again = needs_gradient[l] && reads.y;
      for (const int consumer : graph.consumers(l)) {
        if (!block.contains(consumer)) layer.keeps_output = true;
        const bool moves_again = layouts.empty() || layouts[consumer].at == layouts[l].at;
        read_again = read_again || (layers[consumer].inputs && moves_again);
      }
      const bool saves = SavedElements(graph[l]) > 0 && !KeepsStatistics(graph[l]);
      layer.forward = (read_again && !layer.keeps_output) || (needs_gradient[l] && saves);
      layer.inputs = layer.forward || (needs_gradient[l] && reads.x);
    }
  }
  return layers;
}

std::vector<Interval> RecomputationBlocks(const Graph& graph) {
  const std::vector<int64_t> activations = Activations(graph);
  const std::vector<int64_t> across = ElementsAcross(graph);
  const int64_t all = Sum(activations, {0, graph.size() - 1});
  const int64_t largest =
      std::max<int64_t>(1, *std::max_element(activations.begin(), activations.end()));
  Division best{.elements = std::numeric_limits<int64_t>::max()};
  for (int i = 0; i <= kLimits; ++i) {
    const double ratio = std::max(1.0, static_cast<double>(all) / static_cast<double>(largest));
    const int64_t limit =
        std::ceil(static_cast<double>(largest) * std::pow(ratio, 1.0 * i / kLimits));
    Division division = Divide(activations, across, limit);
    if (division.elements <= best.elements) best = std::move(division);
  }
  if (!best.blocks.empty()) best.blocks.pop_back();
  return std::move(best.blocks);
}

absl::Status CheckBlocks(const Graph& graph, std::span<const Interval> blocks) {
  int64_t end = 0;
  for (const Interval& block : blocks) {
    if (block.begin < end || block.empty() || block.end >= graph.size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "recomputed block of layers ", block.begin, " to ", block.end - 1,
          " is empty, not behind the block before it, or contains the loss, which is layer ",
          graph.size() - 1));
    }
    end = block.end;
  }
  return absl::OkStatus();
}

}  // namespace cadre
