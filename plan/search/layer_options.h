// The ways to split a layer (options) that the search considers: few of the legal ones (LegalSplits
// of model/op_indices.h), chosen so that the others are unlikely to be faster.
//
//   `data`           splits samples, always
//   `space`, `model` split samples or an index that the layer has: outputs, inputs, heads, groups,
//                    channels, features or tokens; `space` also rows
//   no split         (all ranks of the axis compute the same) only if the work is small: layers
//                    without matrix products, and products with less than a fiftieth of the
//                    model's work if compute time is modelled
//
// A split that would leave a part empty is considered for samples only, and none that gives a batch
// norm statistics of one value. Axes that split one index
// are in the mesh's order. A strategy or a pin leaves one option. If the strategy's option does not
// exist for a layer, or would leave ranks without rows, the search may split this layer in any way
// and reports it (SearchResult::strategy_exceptions). No strategy restricts layers without weights.
//
// Values and pure functions; thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/graph.h"
#include "model/op_indices.h"
#include "plan/search/compact_layout.h"
#include "plan/search/plan_problem.h"

namespace cadre {

// One way to split a layer.
struct LayerOption {
  // By axis of the compact mesh: the position in IndicesOf of the index that it splits; -1: none.
  std::vector<int8_t> index;
  // Layout of every input; axes over which its gradient is a partial sum; layout of the output.
  CompactLayout input;
  AxisSet gradient_partial = 0;
  CompactLayout output;

  friend bool operator==(const LayerOption&, const LayerOption&) = default;
};

// Layers of one class have the same options at the same cost, except for measured times. A class
// does not depend on the mesh.
struct LayerClass {
  std::vector<OpIndex> indices;
  // By index: the largest number of parts with which no part is empty.
  std::vector<int64_t> extents;
  const GraphLayer* example = nullptr;
  // The index that a pin, or else the strategy, assigns to every axis but `data`; -1: the search
  // chooses.
  int pinned_index = -1;
  int strategy_index = -1;
  // Whether axes may be left without an index.
  bool may_replicate = false;
  // The sizes of a micro-batch, of which statistics must not be those of one value
  // (plan/norm_statistics.h).
  std::vector<int64_t> micro_batches;
};
LayerClass ClassOf(const PlanProblem& problem, int layer);
// Equal for layers of one class.
std::string ClassKey(const PlanProblem& problem, int layer);

// Whether the strategy's split is possible on this mesh. Requires: layer_class.strategy_index >= 0.
bool StrategyApplies(const LayerClass& layer_class, const CompactMesh& mesh);

// Empty only if a pin cannot be satisfied on this mesh, or if a batch norm has statistics of one
// value however it is split.
std::vector<LayerOption> OptionsOf(const LayerClass& layer_class, const CompactMesh& mesh);

// The number of parts into which an option splits an index.
int64_t PartsOf(const CompactMesh& mesh, const std::vector<int8_t>& option, int index);

std::vector<IndexSplit> SplitsOf(const LayerClass& layer_class, const CompactMesh& mesh,
                                 const LayerOption& option);

}  // namespace cadre
