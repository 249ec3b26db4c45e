// Which nodes of an ONNX graph an output depends on, in an order in which every node follows the
// nodes whose results it uses. Files of some exporters have their nodes in another order.
//
// Thread-safe (pure functions).
#pragma once

#include <set>
#include <string>
#include <vector>

#include "proto/cadre/onnx/model.pb.h"

namespace cadre {

struct GraphOrder {
  // Positions in Graph.node. The order of the file, as far as it is possible.
  std::vector<int> nodes;
  // The names of the values on which the output depends, and of the output itself.
  std::set<std::string> values;
  // One line for each name that nothing computes, or that is computed more than once, and for
  // nodes that depend on their own results. With problems, the rest is incomplete.
  std::vector<std::string> problems;
};

GraphOrder OrderFor(const onnx::Graph& graph, const std::string& output);

// "operator Conv of node 'stem'"; the name of the first result stands for that of a node without a
// name.
std::string DisplayName(const onnx::Node& node);

// "'a', 'b' and 3 more": the first of the names, quoted.
std::string FirstNames(const std::vector<std::string>& names);

}  // namespace cadre
