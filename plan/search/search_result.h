// What a search finds (plan/search/search.h).
//
// Values; thread-compatible.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/op_indices.h"
#include "plan/search/prediction.h"

namespace cadre {

// The second best way to split one layer if all other layers remain unchanged.
struct LayerRunnerUp {
  std::vector<IndexSplit> splits;
  // How many serial seconds it adds to the plan; infinite: there is no other way.
  double more_seconds = 0;
};

struct SearchResult {
  Candidate best;
  // Up to five of the best plans of other meshes or policies, fastest first. One of `best` and
  // `others` places no layers (prediction.h), if such a plan fits into memory.
  std::vector<Candidate> others;
  // One per layer of the graph.
  std::vector<LayerRunnerUp> runners_up;
  // Layers to which the strategy could not be applied; each was split in the best way.
  std::vector<std::string> strategy_exceptions;
  // Whether the sums were minimised exactly. Overlap is not part of the sums, so the result is the
  // fastest of the predicted plans, not necessarily of all plans.
  bool exact = true;
  // An upper bound on how far the sum that was found is above the minimum, as a fraction of it,
  // over all meshes; 0 if exact, infinite if unknown.
  double gap = 0;
  // Whether the memory limit excluded some plan.
  bool memory_binds = false;
  // The number of meshes considered, and of table entries in all minimisations.
  int64_t meshes = 0;
  int64_t states = 0;
  // The best plan without the pins; nullopt: the problem has no pins.
  std::optional<Candidate> unpinned;
};

}  // namespace cadre
