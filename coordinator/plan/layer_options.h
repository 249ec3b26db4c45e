// The ways to cut a layer that the search tries: a small part of what is legal (spec/op_indices.h's
// LegalSplits), chosen so that what is left out can hardly pay.
//
//   `data`           goes to samples, always
//   `space`, `model` to samples; to what the layer has of outputs, inputs, heads, groups, channels
//                    or features, tokens; `space` also to rows
//   to nothing       (every rank does the same) where work is little: layers without products, and
//                    products of less than a fiftieth of the model's work where the time of
//                    computing is known
//
// A part that would be empty is tried along samples only. Axes that split one index stand in the
// mesh's order. A strategy or a pin leaves one way; where a strategy's way is not there or would
// leave ranks without rows, the layer is free, which the answer says (freed). Layers without
// weights are free in every strategy.
//
// Values and pure functions; thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/plan/compact_layout.h"
#include "coordinator/plan/plan_problem.h"
#include "spec/graph.h"
#include "spec/op_indices.h"

namespace cadre {

struct LayerOption {
  // By axis of the compact mesh: number of the index in IndicesOf, -1: none.
  std::vector<int8_t> index;
  // Of every input, its gradient's addends, and the output.
  CompactLayout input;
  AxisSet gradient_partial = 0;
  CompactLayout output;

  friend bool operator==(const LayerOption&, const LayerOption&) = default;
};

// What makes two layers have the same options at the same cost, apart from measured times: worked
// out once, for all meshes.
struct LayerClass {
  std::vector<OpIndex> indices;
  // Of a split, how many parts leave none empty; one per index.
  std::vector<int64_t> extents;
  const GraphLayer* example = nullptr;
  // The index that a pin or a strategy gives `data` and every other axis to; -1: free.
  int pinned = -1;
  int wanted = -1;
  bool may_repeat = false;
};
LayerClass ClassOf(const PlanProblem& problem, int layer);
// Equal for layers of one class.
std::string ClassKey(const PlanProblem& problem, int layer);

// Multiplies, so that where it is cut says most.
bool IsProduct(LayerKind kind);

// The strategy's way is there. Requires: of.wanted >= 0.
bool IsApplied(const LayerClass& of, const CompactMesh& mesh);

// Empty only where a pin cannot be fulfilled on this mesh.
std::vector<LayerOption> OptionsOf(const LayerClass& of, const CompactMesh& mesh);

std::vector<IndexSplit> SplitsOf(const LayerClass& of, const CompactMesh& mesh,
                                 const LayerOption& option);

}  // namespace cadre
