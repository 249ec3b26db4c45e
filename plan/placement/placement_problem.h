// The input of operator placement: operators with times and memory, the tensors between them,
// devices and the routes between devices.
//
// Assumptions, after Pal et al. 2019: an operator runs on one device without preemption, and a
// device runs one operator at a time; a tensor is sent when its operator has ended, concurrently
// with compute; an operator occupies its memory all the time. Unlike there, a device sends one
// tensor and receives one tensor at a time (plan/placement/schedule_builder.h).
//
// A value; thread-compatible.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/problem.h"
#include "plan/placement/routes.h"
#include "proto/cadre/v1/placement.pb.h"

namespace cadre {

struct PlacementProblem {
  struct Operator {
    std::string name;
    // By device.
    std::vector<double> seconds;
    int64_t memory_bytes = 0;
    // The minimum and the mean of `seconds`.
    double min_seconds = 0;
    double mean = 0;
  };
  struct Edge {
    int from = 0;
    int to = 0;
    int64_t bytes = 0;
  };
  struct Device {
    std::string name;
    // The device's memory; 0: no limit.
    int64_t memory_bytes = 0;
  };

  std::vector<Operator> ops;
  std::vector<Edge> edges;
  std::vector<Device> devices;
  Routes routes;
  // By link: "a - b".
  std::vector<std::string> link_names;

  // By operator: numbers of its incoming and outgoing edges.
  std::vector<std::vector<int>> in;
  std::vector<std::vector<int>> out;
  // A topological order of the operators.
  std::vector<int> order;
  // Whether devices run operators, and send and receive their tensors, in this order, as ranks
  // execute layers. Otherwise a schedule states the order.
  bool in_order = false;

  int size() const { return std::ssize(ops); }
  int device_count() const { return std::ssize(devices); }
  const Operator& op(int i) const { return ops[i]; }
  const Edge& edge(int e) const { return edges[e]; }
  double Seconds(int op, int device) const { return ops[op].seconds[device]; }
  // Transfer of an edge's tensor from one device to another.
  double TransferSeconds(int edge, int from, int to) const {
    return routes.Seconds(from, to, edges[edge].bytes);
  }
  bool limited(int device) const { return devices[device].memory_bytes > 0; }
};

inline constexpr int kMaxOperators = 10'000;
inline constexpr int kMaxOperatorEdges = 100'000;
inline constexpr int kMaxPlacementDevices = 256;
inline constexpr int kMaxPlacementSwitches = 1'024;
inline constexpr int kMaxPlacementLinks = 10'000;

// All problems of a graph: names that are missing, unknown or used twice; invalid times, rates and
// sizes; a cycle, with its operators; devices that are not connected; an operator that fits on no
// device; operators that need more memory than all devices have. Fields are paths in the message.
std::vector<Problem> FindGraphProblems(const v1::OperatorGraph& graph);

// Requires: FindGraphProblems finds none.
PlacementProblem PlacementProblemOf(const v1::OperatorGraph& graph);

// The problem of a graph in text format. Errors: NotFound, PermissionDenied, ... with the path;
// InvalidArgument with one "FILE:LINE:COLUMN: field: message" per line, for malformed text and for
// the problems that FindGraphProblems finds.
absl::StatusOr<PlacementProblem> ReadOperatorGraph(const std::string& path);
// The same for a text; error messages refer to it as `path`.
absl::StatusOr<PlacementProblem> ParseOperatorGraph(const std::string& path,
                                                    const std::string& text);

// Where and when each operator of a problem runs.
struct OperatorSchedule {
  // By operator.
  std::vector<int> device;
  std::vector<double> start;
  // By edge: when its tensor is sent, if its operators are on different devices.
  std::vector<double> sent;
  // When the last operator ends; the first starts at 0.
  double makespan = 0;
};

}  // namespace cadre
