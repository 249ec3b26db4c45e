// What is to be placed, and on what: operators with times and memory, the tensors between them,
// devices and the ways between those.
//
// What is assumed, after Pal et al. 2019: an operator runs on one device, from beginning to end,
// and a device runs one at a time; a tensor leaves when its operator ends and travels beside
// whatever the devices compute; links carry any number of transfers at once
// (coordinator/placement/routes.h); an operator's memory is its device's all the time.
//
// A value; thread-compatible.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/placement/routes.h"
#include "proto/cadre/v1/placement.pb.h"
#include "spec/problem.h"

namespace cadre {

struct PlacementProblem {
  struct Operator {
    std::string name;
    // By device.
    std::vector<double> seconds;
    int64_t memory_bytes = 0;
    // The least and the mean of `seconds`.
    double least = 0;
    double mean = 0;
  };
  struct Edge {
    int from = 0;
    int to = 0;
    int64_t bytes = 0;
  };
  struct Device {
    std::string name;
    // 0: no limit.
    int64_t memory_bytes = 0;
  };

  std::vector<Operator> ops;
  std::vector<Edge> edges;
  std::vector<Device> devices;
  Routes routes;
  // Of the routes' nodes (devices first) and links ("a to b").
  std::vector<std::string> link_names;

  // Numbers of the edges into and out of each operator.
  std::vector<std::vector<int>> in;
  std::vector<std::vector<int>> out;
  // All operators, each behind those whose tensors it takes.
  std::vector<int> order;

  int size() const { return static_cast<int>(ops.size()); }
  int device_count() const { return static_cast<int>(devices.size()); }
  const Operator& op(int i) const { return ops[static_cast<size_t>(i)]; }
  const Edge& edge(int e) const { return edges[static_cast<size_t>(e)]; }
  double Seconds(int op, int device) const {
    return ops[static_cast<size_t>(op)].seconds[static_cast<size_t>(device)];
  }
  // Of an edge's tensor from one device to another.
  double TransferSeconds(int edge, int from, int to) const {
    return routes.Seconds(from, to, edges[static_cast<size_t>(edge)].bytes);
  }
  bool limited(int device) const { return devices[static_cast<size_t>(device)].memory_bytes > 0; }
};

inline constexpr int kMostOperators = 10'000;
inline constexpr int kMostOperatorEdges = 100'000;
inline constexpr int kMostPlacementDevices = 256;
inline constexpr int kMostPlacementSwitches = 1'024;
inline constexpr int kMostPlacementLinks = 10'000;

// Everything that is wrong with a graph: names that are missing, unknown or used twice; times,
// rates and sizes that cannot be; a circle of operators, each named; devices without a way between
// them; an operator that fits nowhere, and more memory than all devices have. Fields are paths of
// the message.
std::vector<Problem> FindGraphProblems(const v1::OperatorGraph& graph);

// Requires: FindGraphProblems finds none.
PlacementProblem PlacementProblemOf(const v1::OperatorGraph& graph);

}  // namespace cadre
