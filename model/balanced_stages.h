// Divides the layers of a model into stages of about equal work.
//
// Thread-safe (pure function).
#pragma once

#include <span>
#include <vector>

#include "model/graph.h"

namespace cadre {

// By layer, its stage. Stages are consecutive layers in the order of the graph, and none is empty.
// `work`: by layer, in any unit. The largest work of a stage is within a tenth of the least
// possible. Under this limit the borders are chosen in order, each so that the fewest elements
// cross it. Requires: 1 <= stages <= graph.size().
std::vector<int> BalancedStages(const Graph& graph, std::span<const double> work, int stages);
// The same, where work is the number of floating-point operations.
std::vector<int> BalancedStages(const Graph& graph, int stages);

}  // namespace cadre
