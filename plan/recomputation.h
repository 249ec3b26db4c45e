// Recomputation of activations: the layers of a block keep nothing for backward. Their forward
// operations are executed again directly before backward reaches the block, so that a rank keeps
// the activations of one block at a time, and of the others only what layers behind them read.
// Results have the same bits. recomputation.cc explains how blocks are chosen.
//
// A plan lists its blocks (Plan::recomputed); the tape executes them (plan/tape.h).
//
// Values and pure functions; thread-safe.
#pragma once

#include <span>
#include <vector>

#include "absl/status/status.h"
#include "model/graph.h"
#include "model/op_indices.h"
#include "tensor/interval.h"

namespace cadre {

// What is executed again of a layer.
struct RecomputedLayer {
  // Whether the layer belongs to a block. If not, the rest is false.
  bool in_block = false;
  // Layers behind the block read the output, so it is not discarded.
  bool keeps_output = false;
  // Whether the inputs, as the layer needs them, are moved again.
  bool inputs = false;
  // Whether the layer's own operation is executed again. Implies `inputs`.
  bool forward = false;
  // The fraction of the layer's activations, except the output that it keeps, that counts for the
  // memory of a rank: the sum over the layers of all blocks is what the largest block needs in
  // addition to the layers behind the blocks, whose activations are discarded before it is executed
  // again. It is a good estimate if all layers are split in the same way.
  double share_in_memory = 1;
};

// One per layer. `blocks`: ascending and disjoint intervals of layers. `layouts`: of each layer,
// for the coordinates at which it is placed; a layer keeps what it receives from other coordinates.
// Empty: all layers are at the same ones.
std::vector<RecomputedLayer> RecomputedLayers(const Graph& graph, std::span<const Interval> blocks,
                                              std::span<const LayerLayouts> layouts = {});

// Divides the layers before the loss into consecutive blocks such that the activations of the
// largest block and all outputs that blocks keep are few. The result omits the last block, whose
// activations are needed directly after they were computed. Empty: the model is one block.
std::vector<Interval> RecomputationBlocks(const Graph& graph);

// Errors: InvalidArgument for blocks that are empty, overlap, are not in order or contain the loss.
absl::Status CheckBlocks(const Graph& graph, std::span<const Interval> blocks);

}  // namespace cadre
