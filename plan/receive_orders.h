// The order of the receives between coordinates of a pass (TapeOp::order), which is equal on all
// ranks.
//
// Values and pure functions; thread-safe.
#pragma once

#include <vector>

#include "model/graph.h"

namespace cadre {

struct ReceiveOrders {
  // By layer and input: the order of the input's receive, and of that of its gradient.
  std::vector<std::vector<int>> forward;
  std::vector<std::vector<int>> gradient;
  // By layer: the order of what backward computes of it.
  std::vector<int> backward;
  // The number of receives.
  int count = 0;
};

// Gradients are received in the order in which backward adds those of each producer, from the last
// producer to the first.
ReceiveOrders NumberReceives(const Graph& graph);

// The layers that take the output of a layer, each once.
std::vector<int> ConsumersOf(const Graph& graph, int producer);

}  // namespace cadre
