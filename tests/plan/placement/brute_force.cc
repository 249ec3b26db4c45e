#include "tests/plan/placement/brute_force.h"

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <vector>

namespace cadre::testing {
namespace {

constexpr double kFar = std::numeric_limits<double>::infinity();

class Search {
 public:
  explicit Search(const v1::OperatorGraph& graph)
      : ops_(graph.op_size()),
        devices_(graph.device_size()),
        tail_(ops_, 0),
        place_(ops_, kNowhere),
        finish_(ops_, 0),
        free_(devices_, 0) {
    std::map<std::string, size_t> device;
    for (const auto& each : graph.device()) {
      device.emplace(each.name(), device.size());
      const int64_t bytes = each.memory_bytes();
      room_.push_back(bytes > 0 ? bytes : std::numeric_limits<int64_t>::max());
    }
    std::map<std::string, size_t> op;
    for (const auto& each : graph.op()) {
      op.emplace(each.name(), op.size());
      memory_.push_back(each.memory_bytes());
      seconds_.emplace_back(devices_, each.seconds());
      for (const auto& on : each.on()) seconds_.back()[device.at(on.device())] = on.seconds();
    }
    for (const auto& edge : graph.edge()) {
      edges_.push_back({op.at(edge.from()), op.at(edge.to()), ShortestPaths(graph, edge.bytes())});
    }
    AddTails();
  }

  std::optional<double> Least() {
    Choose(0, 0);
    if (best_ == kFar) return std::nullopt;
    return best_;
  }

  std::optional<double> LeastWithSharedLinks() {
    arrived_.assign(edges_.size(), kFar);
    finish_.assign(ops_, kFar);
    sender_free_.assign(devices_, 0);
    receiver_free_.assign(devices_, 0);
    ChooseDevices(0);
    if (best_ == kFar) return std::nullopt;
    return best_;
  }

 private:
  static constexpr size_t kNowhere = static_cast<size_t>(-1);
  using Matrix = std::vector<std::vector<double>>;
  struct Edge {
    size_t from;
    size_t to;
    Matrix seconds;
  };

  // Shortest paths for one size (Floyd and Warshall).
  static Matrix ShortestPaths(const v1::OperatorGraph& graph, double bytes) {
    std::map<std::string, size_t> node;
    for (const auto& device : graph.device()) node.emplace(device.name(), node.size());
    for (const auto& name : graph.switch_()) node.emplace(name, node.size());
    const size_t n = node.size();
    Matrix paths(n, std::vector<double>(n, kFar));
    for (size_t i = 0; i < n; ++i) paths[i][i] = 0;
    for (const auto& link : graph.link()) {
      const double seconds = link.alpha() + bytes / link.bandwidth();
      double& there = paths[node.at(link.from())][node.at(link.to())];
      double& back = paths[node.at(link.to())][node.at(link.from())];
      there = back = std::min(there, seconds);
    }
    for (size_t k = 0; k < n; ++k) {
      for (size_t i = 0; i < n; ++i) {
        for (size_t j = 0; j < n; ++j)
          paths[i][j] = std::min(paths[i][j], paths[i][k] + paths[k][j]);
      }
    }
    return paths;
  }

  // The minimum time from an operator's start to the end of any schedule, for pruning.
  void AddTails() {
    for (size_t round = 0; round < ops_; ++round) {
      for (size_t i = 0; i < ops_; ++i) {
        double behind = 0;
        for (const Edge& edge : edges_) {
          if (edge.from == i) behind = std::max(behind, tail_[edge.to]);
        }
        tail_[i] = behind + *std::min_element(seconds_[i].begin(), seconds_[i].end());
      }
    }
  }

  // The time at which the inputs of an operator are on a device; infinite if one is not computed
  // yet.
  double Ready(size_t op, size_t device) const {
    double ready = 0;
    for (const Edge& edge : edges_) {
      if (edge.to != op) continue;
      if (place_[edge.from] == kNowhere) return kFar;
      ready = std::max(ready, finish_[edge.from] + edge.seconds[place_[edge.from]][device]);
    }
    return ready;
  }

  // Places operators in order of their starts, which covers all schedules in which no operator
  // could start earlier.
  void Choose(size_t placed, double last_start) {
    if (placed == ops_) {
      best_ = std::min(best_, *std::max_element(finish_.begin(), finish_.end()));
      return;
    }
    for (size_t i = 0; i < ops_; ++i) {
      // No operator starts before the one placed last.
      if (place_[i] == kNowhere && last_start + tail_[i] >= best_) return;
    }
    for (size_t i = 0; i < ops_; ++i) {
      for (size_t d = 0; d < devices_ && place_[i] == kNowhere; ++d)
        Place(i, d, placed, last_start);
    }
  }

  void Place(size_t i, size_t d, size_t placed, double last_start) {
    const double start = std::max(Ready(i, d), free_[d]);
    const double finish = start + seconds_[i][d];
    if (start < last_start || start + tail_[i] >= best_ || finish >= best_) return;
    if (memory_[i] > room_[d]) return;
    const double free = free_[d];
    place_[i] = d;
    finish_[i] = finish;
    free_[d] = finish;
    room_[d] -= memory_[i];
    Choose(placed + 1, start);
    room_[d] += memory_[i];
    free_[d] = free;
    finish_[i] = 0;
    place_[i] = kNowhere;
  }

  void ChooseDevices(size_t i) {
    if (i == ops_) {
      Continue(0);
      return;
    }
    for (size_t d = 0; d < devices_; ++d) {
      if (memory_[i] > room_[d]) continue;
      place_[i] = d;
      room_[d] -= memory_[i];
      ChooseDevices(i + 1);
      room_[d] += memory_[i];
    }
  }

  // Begins operators and messages in order of their starts, which covers all schedules in which
  // none could begin earlier.
  void Continue(double last_start) {
    bool done = true;
    for (size_t i = 0; i < ops_; ++i) {
      if (finish_[i] != kFar) continue;
      done = false;
      if (last_start + tail_[i] >= best_) return;
    }
    if (done) {
      best_ = std::min(best_, *std::max_element(finish_.begin(), finish_.end()));
      return;
    }
    for (size_t i = 0; i < ops_; ++i) {
      if (finish_[i] == kFar) Begin(i, last_start);
    }
    for (size_t e = 0; e < edges_.size(); ++e) {
      if (arrived_[e] == kFar && finish_[edges_[e].from] != kFar) Send(e, last_start);
    }
  }

  void Begin(size_t i, double last_start) {
    const size_t d = place_[i];
    double start = free_[d];
    for (size_t e = 0; e < edges_.size(); ++e) {
      if (edges_[e].to == i) start = std::max(start, arrived_[e]);
    }
    const double finish = start + seconds_[i][d];
    if (start < last_start || finish >= best_) return;
    const double free = free_[d];
    free_[d] = finish_[i] = finish;
    Continue(start);
    free_[d] = free;
    finish_[i] = kFar;
  }

  void Send(size_t e, double last_start) {
    const size_t from = place_[edges_[e].from];
    const size_t to = place_[edges_[e].to];
    const double seconds = edges_[e].seconds[from][to];
    double start = finish_[edges_[e].from];
    if (seconds > 0) start = std::max({start, sender_free_[from], receiver_free_[to]});
    if (seconds > 0 && start < last_start) return;
    const double sender = sender_free_[from];
    const double receiver = receiver_free_[to];
    arrived_[e] = start + seconds;
    if (seconds > 0) sender_free_[from] = receiver_free_[to] = arrived_[e];
    Continue(seconds > 0 ? start : last_start);
    sender_free_[from] = sender;
    receiver_free_[to] = receiver;
    arrived_[e] = kFar;
  }

  const size_t ops_;
  const size_t devices_;
  std::vector<int64_t> memory_;
  Matrix seconds_;
  std::vector<Edge> edges_;
  std::vector<double> tail_;
  std::vector<int64_t> room_;
  std::vector<size_t> place_;
  std::vector<double> finish_;
  std::vector<double> free_;
  // By edge and device, for messages that wait for one another. An operator or message that has
  // not begun ends at kFar.
  std::vector<double> arrived_;
  std::vector<double> sender_free_;
  std::vector<double> receiver_free_;
  double best_ = kFar;
};

}  // namespace

std::optional<double> OptimalMakespan(const v1::OperatorGraph& graph) {
  return Search(graph).Least();
}

std::optional<double> OptimalMakespanWithSharedLinks(const v1::OperatorGraph& graph) {
  return Search(graph).LeastWithSharedLinks();
}

}  // namespace cadre::testing
