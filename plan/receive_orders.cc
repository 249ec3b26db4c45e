#include "plan/receive_orders.h"

#include <algorithm>

namespace cadre {

ReceiveOrders NumberReceives(const Graph& graph) {
  ReceiveOrders orders;
  for (const GraphLayer& layer : graph.layers()) {
    orders.forward.emplace_back();
    for (size_t i = 0; i < layer.inputs.size(); ++i) {
      orders.forward.back().push_back(orders.count++);
    }
  }
  orders.gradient = orders.forward;
  orders.backward.resize(graph.size());
  for (int producer = graph.size() - 1; producer >= 0; --producer) {
    const std::vector<int> consumers = ConsumersOf(graph, producer);
    for (auto l = consumers.rbegin(); l != consumers.rend(); ++l) {
      for (int i = 0; i < std::ssize(graph[*l].inputs); ++i) {
        if (graph[*l].inputs[i] == producer) orders.gradient[*l][i] = orders.count++;
      }
    }
    orders.backward[producer] = orders.count;
  }
  return orders;
}

std::vector<int> ConsumersOf(const Graph& graph, int producer) {
  std::vector<int> consumers = graph.consumers(producer);
  consumers.erase(std::unique(consumers.begin(), consumers.end()), consumers.end());
  return consumers;
}

}  // namespace cadre
