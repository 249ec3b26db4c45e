// Checks an operator graph and prepares it for scheduling.
//
// The checks run in stages, because later ones rely on earlier ones: sizes, then names and numbers,
// then the properties of the whole graph. A cycle is found by removing operators without
// predecessors (Kahn 1962) and reported with its operators; unconnected devices are found by
// union-find.
//
// The topological order always takes the ready operator that is listed first in the graph, so all
// later algorithms, and their results, depend on the graph alone.
#include "plan/placement/placement_problem.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <optional>
#include <queue>
#include <set>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/file.h"
#include "base/status.h"
#include "model/text_message.h"

namespace cadre {
namespace {

using Numbers = absl::flat_hash_map<std::string, int>;

// With these limits, sums over all operators neither overflow nor lose precision.
constexpr double kMaxSeconds = 1e12;
constexpr double kMinBandwidth = 1e-3;
// Large enough for the largest graph that is allowed.
constexpr int64_t kMaxGraphBytes = 32 << 20;
// Maximum bytes of an operator or a tensor, and of a device.
constexpr uint64_t kMaxBytes = uint64_t{1} << 40;
constexpr uint64_t kMaxDeviceBytes = uint64_t{1} << 50;

std::string At(absl::string_view field, int i, absl::string_view more = "") {
  return absl::StrCat(field, "[", i, "]", more);
}

// Kahn's algorithm: always takes the operator with the smallest number among those whose
// predecessors have all been taken. Operators of cycles, and those behind them, are left out.
std::vector<int> TopologicalOrder(const std::vector<std::vector<int>>& successors) {
  std::vector<int> waits(successors.size());
  for (const std::vector<int>& each : successors) {
    for (const int to : each) ++waits[to];
  }
  std::priority_queue<int, std::vector<int>, std::greater<>> free;
  for (size_t i = 0; i < waits.size(); ++i) {
    if (waits[i] == 0) free.push(i);
  }
  std::vector<int> order;
  while (!free.empty()) {
    order.push_back(free.top());
    free.pop();
    for (const int to : successors[order.back()]) {
      if (--waits[to] == 0) free.push(to);
    }
  }
  return order;
}

// Checks a graph from top to bottom; later checks rely on the success of earlier ones.
class GraphChecker : private ProblemCollector {
 public:
  explicit GraphChecker(const v1::OperatorGraph& graph) : graph_(graph) {}

  std::vector<Problem> Check() {
    CheckSizes();
    if (!problems_.empty()) return std::move(problems_);
    CheckDevices();
    CheckOperators();
    CheckEdges();
    CheckLinks();
    if (!problems_.empty()) return std::move(problems_);
    CheckCycle();
    CheckConnected();
    CheckMemory();
    return std::move(problems_);
  }

 private:
  void CheckSize(absl::string_view field, int size, int min, int max) {
    if (size < min) Add(field, "is missing; at least one is required");
    if (size > max) Add(field, "has ", size, " entries, at most ", max, " are allowed");
  }

  void CheckSizes() {
    CheckSize("op", graph_.op_size(), 1, kMaxOperators);
    CheckSize("edge", graph_.edge_size(), 0, kMaxOperatorEdges);
    CheckSize("device", graph_.device_size(), 1, kMaxPlacementDevices);
    CheckSize("switch", graph_.switch__size(), 0, kMaxPlacementSwitches);
    CheckSize("link", graph_.link_size(), 0, kMaxPlacementLinks);
  }

  // Registers a new name.
  void CheckName(const std::string& field, const std::string& name, Numbers& known, int number,
                 absl::string_view what) {
    if (name.empty()) {
      Add(field, "is missing: every ", what, " needs a name");
    } else if (!known.try_emplace(name, number).second) {
      Add(field, Quoted(name), " is used twice");
    }
  }

  void CheckSeconds(const std::string& field, double seconds) {
    if (std::isfinite(seconds) && seconds >= 0 && seconds <= kMaxSeconds) return;
    Add(field, "is ", seconds, "; must be 0 to ", kMaxSeconds);
  }

  void CheckBytes(const std::string& field, uint64_t bytes, uint64_t max = kMaxBytes) {
    if (bytes > max) Add(field, "is ", bytes, "; must be at most ", max);
  }

  std::optional<int> Find(const std::string& field, const std::string& name, const Numbers& known,
                          absl::string_view what) {
    const auto found = known.find(name);
    if (found != known.end()) return found->second;
    if (name.empty()) {
      Add(field, "is missing: the name of ", what);
    } else {
      Add(field, "unknown ", what, " ", Quoted(name));
    }
    return std::nullopt;
  }

  void CheckDevices() {
    for (int d = 0; d < graph_.device_size(); ++d) {
      CheckName(At("device", d, ".name"), graph_.device(d).name(), nodes_, d, "device");
      CheckBytes(At("device", d, ".memory_bytes"), graph_.device(d).memory_bytes(),
                 kMaxDeviceBytes);
    }
    devices_ = nodes_;
    for (int s = 0; s < graph_.switch__size(); ++s) {
      CheckName(At("switch", s), graph_.switch_(s), nodes_, graph_.device_size() + s, "switch");
    }
  }

  void CheckOperators() {
    for (int i = 0; i < graph_.op_size(); ++i) {
      const v1::Operator& op = graph_.op(i);
      CheckName(At("op", i, ".name"), op.name(), ops_, i, "operator");
      CheckSeconds(At("op", i, ".seconds"), op.seconds());
      CheckBytes(At("op", i, ".memory_bytes"), op.memory_bytes());
      Numbers named;
      for (int t = 0; t < op.on_size(); ++t) {
        const std::string on = At("op", i, absl::StrCat(".on[", t, "]"));
        Find(on + ".device", op.on(t).device(), devices_, "device");
        if (!op.on(t).device().empty()) {
          CheckName(on + ".device", op.on(t).device(), named, t, "device");
        }
        CheckSeconds(on + ".seconds", op.on(t).seconds());
      }
      if (!op.has_seconds() && op.on_size() < graph_.device_size()) {
        Add(At("op", i, ".seconds"), "is missing: no time on some devices");
      }
    }
  }

  void CheckEdges() {
    std::set<std::pair<int, int>> seen;
    for (int e = 0; e < graph_.edge_size(); ++e) {
      const v1::OperatorEdge& edge = graph_.edge(e);
      const auto from = Find(At("edge", e, ".from"), edge.from(), ops_, "operator");
      const auto to = Find(At("edge", e, ".to"), edge.to(), ops_, "operator");
      CheckBytes(At("edge", e, ".bytes"), edge.bytes());
      if (from && to && !seen.insert({*from, *to}).second) {
        Add(At("edge", e), "duplicate edge from ", Quoted(edge.from()), " to ", Quoted(edge.to()),
            "; use one edge with their total bytes");
      }
    }
  }

  void CheckLinks() {
    for (int l = 0; l < graph_.link_size(); ++l) {
      const v1::PlacementLink& link = graph_.link(l);
      Find(At("link", l, ".from"), link.from(), nodes_, "device or switch");
      Find(At("link", l, ".to"), link.to(), nodes_, "device or switch");
      if (link.from() == link.to() && !link.from().empty()) {
        Add(At("link", l), "connects ", Quoted(link.from()), " with itself");
      }
      CheckSeconds(At("link", l, ".alpha"), link.alpha());
      if (!std::isfinite(link.bandwidth()) || link.bandwidth() < kMinBandwidth) {
        Add(At("link", l, ".bandwidth"), "is ", link.bandwidth(),
            "; must be finite bytes a second, at least ", kMinBandwidth);
      }
    }
  }

  // Every operator that has no place in the topological order has a predecessor of the same kind,
  // so following predecessors finds a cycle.
  void CheckCycle() {
    std::vector<std::vector<int>> predecessors(graph_.op_size());
    std::vector<std::vector<int>> successors(graph_.op_size());
    for (const v1::OperatorEdge& edge : graph_.edge()) {
      const int from = ops_.at(edge.from());
      const int to = ops_.at(edge.to());
      predecessors[to].push_back(from);
      successors[from].push_back(to);
    }
    std::vector<bool> ordered(successors.size());
    for (const int i : TopologicalOrder(successors)) ordered[i] = true;
    const auto first = std::find(ordered.begin(), ordered.end(), false);
    if (first == ordered.end()) return;
    std::vector<int> walk;
    walk.push_back(first - ordered.begin());
    std::vector<int> at(ordered.size(), -1);
    while (at[walk.back()] < 0) {
      at[walk.back()] = std::ssize(walk) - 1;
      const std::vector<int>& from = predecessors[walk.back()];
      walk.push_back(*std::find_if(from.begin(), from.end(), [&](int i) { return !ordered[i]; }));
    }
    AddCycle({walk.begin() + at[walk.back()], walk.end()});
  }

  // `walk` goes backwards and ends where it begins.
  void AddCycle(std::vector<int> walk) {
    std::reverse(walk.begin(), walk.end());
    const std::vector<int> shown(walk.begin(), walk.begin() + std::min<long>(9, walk.size()));
    const std::string names = absl::StrJoin(shown, " -> ", [&](std::string* out, int i) {
      absl::StrAppend(out, Quoted(graph_.op(i).name()));
    });
    int e = 0;
    while (ops_.at(graph_.edge(e).from()) != walk[0] || ops_.at(graph_.edge(e).to()) != walk[1]) {
      ++e;
    }
    Add(At("edge", e), "closes a cycle of ", walk.size() - 1, " operators: ", names,
        shown.size() < walk.size() ? " -> ..." : "");
  }

  // Whether all devices are connected (union-find).
  void CheckConnected() {
    std::vector<int> root(nodes_.size());
    std::iota(root.begin(), root.end(), 0);
    const auto find = [&](int node) {
      while (root[node] != node) node = root[node];
      return node;
    };
    for (const v1::PlacementLink& link : graph_.link()) {
      root[find(nodes_.at(link.from()))] = find(nodes_.at(link.to()));
    }
    for (int d = 1; d < graph_.device_size(); ++d) {
      if (find(d) == find(0)) continue;
      Add(At("device", d), "no path of links connects ", Quoted(graph_.device(0).name()), " and ",
          Quoted(graph_.device(d).name()));
    }
  }

  void CheckMemory() {
    uint64_t largest = 0;
    uint64_t room = 0;
    for (const v1::PlacementDevice& device : graph_.device()) {
      if (device.memory_bytes() == 0) return;
      largest = std::max<uint64_t>(largest, device.memory_bytes());
      room += device.memory_bytes();
    }
    uint64_t needed = 0;
    for (int i = 0; i < graph_.op_size(); ++i) {
      const uint64_t bytes = graph_.op(i).memory_bytes();
      needed += bytes;
      if (bytes <= largest) continue;
      Add(At("op", i, ".memory_bytes"), Quoted(graph_.op(i).name()), " needs ", bytes, " bytes, ",
          bytes - largest, " more than the largest device has");
    }
    if (needed > room) {
      Add("device[0]", "all operators need ", needed, " bytes, ", needed - room,
          " more than all devices have");
    }
  }

  const v1::OperatorGraph& graph_;
  Numbers ops_;
  Numbers devices_;
  // Devices and switches.
  Numbers nodes_;
};

PlacementProblem::Operator OperatorOf(const v1::Operator& op, const Numbers& devices) {
  PlacementProblem::Operator made{.name = op.name(),
                                  .seconds = std::vector<double>(devices.size(), op.seconds())};
  made.memory_bytes = op.memory_bytes();
  for (const v1::OperatorTime& on : op.on()) {
    made.seconds[devices.at(on.device())] = on.seconds();
  }
  made.min_seconds = *std::min_element(made.seconds.begin(), made.seconds.end());
  made.mean = std::accumulate(made.seconds.begin(), made.seconds.end(), 0.0) / made.seconds.size();
  return made;
}

void AddRoutes(const v1::OperatorGraph& graph, Numbers nodes, PlacementProblem& problem) {
  for (const std::string& name : graph.switch_()) nodes.emplace(name, nodes.size());
  std::vector<Routes::Link> links;
  for (const v1::PlacementLink& link : graph.link()) {
    links.push_back({.from = nodes.at(link.from()),
                     .to = nodes.at(link.to()),
                     .alpha = link.alpha(),
                     .beta = 1 / link.bandwidth()});
    problem.link_names.push_back(absl::StrCat(link.from(), " - ", link.to()));
  }
  int64_t max_bytes = 1;
  for (const PlacementProblem::Edge& edge : problem.edges) {
    max_bytes = std::max(max_bytes, edge.bytes);
  }
  problem.routes = Routes(problem.device_count(), std::ssize(nodes), std::move(links), max_bytes);
}

}  // namespace

std::vector<Problem> FindGraphProblems(const v1::OperatorGraph& graph) {
  return GraphChecker(graph).Check();
}

PlacementProblem PlacementProblemOf(const v1::OperatorGraph& graph) {
  PlacementProblem problem;
  Numbers devices;
  for (const v1::PlacementDevice& device : graph.device()) {
    devices.emplace(device.name(), devices.size());
    problem.devices.push_back({.name = device.name()});
    problem.devices.back().memory_bytes = device.memory_bytes();
  }
  Numbers ops;
  for (const v1::Operator& op : graph.op()) {
    ops.emplace(op.name(), ops.size());
    problem.ops.push_back(OperatorOf(op, devices));
  }
  problem.in.resize(problem.ops.size());
  problem.out.resize(problem.ops.size());
  std::vector<std::vector<int>> successors(problem.ops.size());
  for (const v1::OperatorEdge& edge : graph.edge()) {
    const int e = std::ssize(problem.edges);
    problem.edges.push_back({.from = ops.at(edge.from()), .to = ops.at(edge.to())});
    problem.edges.back().bytes = edge.bytes();
    problem.out[problem.edges.back().from].push_back(e);
    problem.in[problem.edges.back().to].push_back(e);
    successors[problem.edges.back().from].push_back(problem.edges.back().to);
  }
  AddRoutes(graph, devices, problem);
  problem.order = TopologicalOrder(successors);
  return problem;
}

absl::StatusOr<PlacementProblem> ReadOperatorGraph(const std::string& path) {
  CADRE_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxGraphBytes));
  return ParseOperatorGraph(path, text);
}

absl::StatusOr<PlacementProblem> ParseOperatorGraph(const std::string& path,
                                                    const std::string& text) {
  v1::OperatorGraph graph;
  CADRE_ASSIGN_OR_RETURN(const TextLocations locations,
                         ParseTextMessage(path, text, "an operator graph", graph));
  CADRE_RETURN_IF_ERROR(locations.Refuse(FindGraphProblems(graph)));
  return PlacementProblemOf(graph);
}

}  // namespace cadre
