#include "coordinator/placement/placement_problem.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <queue>
#include <set>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace cadre {
namespace {

using Numbers = absl::flat_hash_map<std::string, int>;

// Sums of so many such times and sizes stay far from what a double, or 64 bits, cannot hold.
constexpr double kMostSeconds = 1e12;
constexpr double kLeastBandwidth = 1e-3;
// Of an operator or a tensor, and of a device.
constexpr uint64_t kMostBytes = uint64_t{1} << 40;
constexpr uint64_t kMostDeviceBytes = uint64_t{1} << 50;

std::string At(absl::string_view field, int i, absl::string_view more = "") {
  return absl::StrCat(field, "[", i, "]", more);
}

std::string Quoted(absl::string_view name) { return absl::StrCat("'", name, "'"); }

// Looks at a graph from top to bottom; later checks rely on what earlier ones found in order.
class GraphChecker {
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
    CheckCircle();
    CheckWays();
    CheckMemory();
    return std::move(problems_);
  }

 private:
  void Add(std::string field, std::string message) {
    problems_.push_back({std::move(field), std::move(message)});
  }

  void CheckSize(absl::string_view field, int size, int least, int most) {
    if (size < least) Add(std::string(field), "there is none; at least one is needed");
    if (size > most) Add(std::string(field), absl::StrCat("there are ", size, "; most is ", most));
  }

  void CheckSizes() {
    CheckSize("op", graph_.op_size(), 1, kMostOperators);
    CheckSize("edge", graph_.edge_size(), 0, kMostOperatorEdges);
    CheckSize("device", graph_.device_size(), 1, kMostPlacementDevices);
    CheckSize("switch", graph_.switch__size(), 0, kMostPlacementSwitches);
    CheckSize("link", graph_.link_size(), 0, kMostPlacementLinks);
  }

  // Remembers a name that is new.
  void CheckName(const std::string& field, const std::string& name, Numbers& known, int number,
                 absl::string_view what) {
    if (name.empty()) {
      Add(field, absl::StrCat("is missing: every ", what, " has a name"));
    } else if (!known.try_emplace(name, number).second) {
      Add(field, absl::StrCat(Quoted(name), " is used twice"));
    }
  }

  void CheckSeconds(std::string field, double seconds) {
    if (std::isfinite(seconds) && seconds >= 0 && seconds <= kMostSeconds) return;
    Add(std::move(field), absl::StrCat("is ", seconds, "; must be 0 to ", kMostSeconds));
  }

  void CheckBytes(std::string field, uint64_t bytes, uint64_t most = kMostBytes) {
    if (bytes > most) {
      Add(std::move(field), absl::StrCat("is ", bytes, "; must be at most ", most));
    }
  }

  std::optional<int> Find(const std::string& field, const std::string& name, const Numbers& known,
                          absl::string_view what) {
    const auto found = known.find(name);
    if (found != known.end()) return found->second;
    Add(field, name.empty() ? absl::StrCat("is missing: the name of ", what)
                            : absl::StrCat("there is no ", what, " ", Quoted(name)));
    return std::nullopt;
  }

  void CheckDevices() {
    for (int d = 0; d < graph_.device_size(); ++d) {
      CheckName(At("device", d, ".name"), graph_.device(d).name(), nodes_, d, "device");
      CheckBytes(At("device", d, ".memory_bytes"), graph_.device(d).memory_bytes(),
                 kMostDeviceBytes);
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
        Add(At("op", i, ".seconds"), "is missing: how long does it take on a device?");
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
        Add(At("edge", e), absl::StrCat("there is one from ", Quoted(edge.from()), " to ",
                                        Quoted(edge.to()), " already; add their bytes up"));
      }
    }
  }

  void CheckLinks() {
    for (int l = 0; l < graph_.link_size(); ++l) {
      const v1::PlacementLink& link = graph_.link(l);
      Find(At("link", l, ".from"), link.from(), nodes_, "device or switch");
      Find(At("link", l, ".to"), link.to(), nodes_, "device or switch");
      if (link.from() == link.to() && !link.from().empty()) {
        Add(At("link", l), absl::StrCat("leads from ", Quoted(link.from()), " to itself"));
      }
      CheckSeconds(At("link", l, ".alpha"), link.alpha());
      if (!std::isfinite(link.bandwidth()) || link.bandwidth() < kLeastBandwidth) {
        Add(At("link", l, ".bandwidth"),
            absl::StrCat("is ", link.bandwidth(), "; must be finite bytes a second, at least ",
                         kLeastBandwidth));
      }
    }
  }

  // Takes operators away that nothing stands before; what is left holds a circle, and so does
  // walking backwards in it.
  void CheckCircle() {
    std::vector<std::vector<int>> before(static_cast<size_t>(graph_.op_size()));
    std::vector<std::vector<int>> behind(before.size());
    std::vector<size_t> waits(before.size());
    for (const v1::OperatorEdge& edge : graph_.edge()) {
      const int from = ops_.at(edge.from());
      const int to = ops_.at(edge.to());
      before[static_cast<size_t>(to)].push_back(from);
      behind[static_cast<size_t>(from)].push_back(to);
      ++waits[static_cast<size_t>(to)];
    }
    std::vector<int> free;
    for (size_t i = 0; i < waits.size(); ++i) {
      if (waits[i] == 0) free.push_back(static_cast<int>(i));
    }
    for (size_t next = 0; next < free.size(); ++next) {
      for (const int to : behind[static_cast<size_t>(free[next])]) {
        if (--waits[static_cast<size_t>(to)] == 0) free.push_back(to);
      }
    }
    if (free.size() == waits.size()) return;
    const auto first = std::find_if(waits.begin(), waits.end(), [](size_t w) { return w > 0; });
    std::vector<int> walk = {static_cast<int>(first - waits.begin())};
    std::vector<int> at(waits.size(), -1);
    while (at[static_cast<size_t>(walk.back())] < 0) {
      at[static_cast<size_t>(walk.back())] = static_cast<int>(walk.size()) - 1;
      const std::vector<int>& from = before[static_cast<size_t>(walk.back())];
      walk.push_back(*std::find_if(from.begin(), from.end(),
                                   [&](int i) { return waits[static_cast<size_t>(i)] > 0; }));
    }
    AddCircle({walk.begin() + at[static_cast<size_t>(walk.back())], walk.end()});
  }

  // `walk` goes backwards and ends where it begins.
  void AddCircle(std::vector<int> walk) {
    std::reverse(walk.begin(), walk.end());
    const std::vector<int> shown(walk.begin(), walk.begin() + std::min<long>(9, walk.size()));
    const std::string names = absl::StrJoin(shown, " -> ", [&](std::string* out, int i) {
      absl::StrAppend(out, Quoted(graph_.op(i).name()));
    });
    int e = 0;
    while (ops_.at(graph_.edge(e).from()) != walk[0] || ops_.at(graph_.edge(e).to()) != walk[1]) {
      ++e;
    }
    Add(At("edge", e), absl::StrCat("closes a circle of ", walk.size() - 1, " operators: ", names,
                                    shown.size() < walk.size() ? " -> ..." : ""));
  }

  // What the first device reaches.
  void CheckWays() {
    std::vector<int> root(nodes_.size());
    std::iota(root.begin(), root.end(), 0);
    const auto find = [&](int node) {
      while (root[static_cast<size_t>(node)] != node) node = root[static_cast<size_t>(node)];
      return node;
    };
    for (const v1::PlacementLink& link : graph_.link()) {
      root[static_cast<size_t>(find(nodes_.at(link.from())))] = find(nodes_.at(link.to()));
    }
    for (int d = 1; d < graph_.device_size(); ++d) {
      if (find(d) == find(0)) continue;
      Add(At("device", d),
          absl::StrCat("no path of links connects ", Quoted(graph_.device(0).name()), " and ",
                       Quoted(graph_.device(d).name())));
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
      Add(At("op", i, ".memory_bytes"),
          absl::StrCat(Quoted(graph_.op(i).name()), " needs ", bytes, " bytes, ", bytes - largest,
                       " more than the largest device has"));
    }
    if (needed > room) {
      Add("device[0]", absl::StrCat("all operators need ", needed, " bytes, ", needed - room,
                                    " more than all devices have"));
    }
  }

  const v1::OperatorGraph& graph_;
  Numbers ops_;
  Numbers devices_;
  // Devices and switches.
  Numbers nodes_;
  std::vector<Problem> problems_;
};

PlacementProblem::Operator OperatorOf(const v1::Operator& op, const Numbers& devices) {
  PlacementProblem::Operator made{.name = op.name(),
                                  .seconds = std::vector<double>(devices.size(), op.seconds()),
                                  .memory_bytes = static_cast<int64_t>(op.memory_bytes())};
  for (const v1::OperatorTime& on : op.on()) {
    made.seconds[static_cast<size_t>(devices.at(on.device()))] = on.seconds();
  }
  made.least = *std::min_element(made.seconds.begin(), made.seconds.end());
  made.mean = std::accumulate(made.seconds.begin(), made.seconds.end(), 0.0) /
              static_cast<double>(made.seconds.size());
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
  int64_t most_bytes = 1;
  for (const PlacementProblem::Edge& edge : problem.edges) {
    most_bytes = std::max(most_bytes, edge.bytes);
  }
  problem.routes =
      Routes(problem.device_count(), static_cast<int>(nodes.size()), std::move(links), most_bytes);
}

// Of those that are free, the one that the graph names first: the order is a function of the graph.
void AddOrder(PlacementProblem& problem) {
  std::vector<size_t> waits;
  std::priority_queue<int, std::vector<int>, std::greater<>> free;
  for (int i = 0; i < problem.size(); ++i) {
    waits.push_back(problem.in[static_cast<size_t>(i)].size());
    if (waits.back() == 0) free.push(i);
  }
  while (!free.empty()) {
    const int i = free.top();
    free.pop();
    problem.order.push_back(i);
    for (const int e : problem.out[static_cast<size_t>(i)]) {
      const int to = problem.edge(e).to;
      if (--waits[static_cast<size_t>(to)] == 0) free.push(to);
    }
  }
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
    problem.devices.push_back({device.name(), static_cast<int64_t>(device.memory_bytes())});
  }
  Numbers ops;
  for (const v1::Operator& op : graph.op()) {
    ops.emplace(op.name(), ops.size());
    problem.ops.push_back(OperatorOf(op, devices));
  }
  problem.in.resize(problem.ops.size());
  problem.out.resize(problem.ops.size());
  for (const v1::OperatorEdge& edge : graph.edge()) {
    const int e = static_cast<int>(problem.edges.size());
    problem.edges.push_back(
        {ops.at(edge.from()), ops.at(edge.to()), static_cast<int64_t>(edge.bytes())});
    problem.out[static_cast<size_t>(problem.edges.back().from)].push_back(e);
    problem.in[static_cast<size_t>(problem.edges.back().to)].push_back(e);
  }
  AddRoutes(graph, devices, problem);
  AddOrder(problem);
  return problem;
}

}  // namespace cadre
