// Shortest paths whose lengths depend on the size of the transfer.
//
// The time of a route is a line alpha + beta D in the size D, so the minimum time between two
// devices is the lower envelope of the lines of all routes: a concave, piecewise linear function.
// Envelopes replace distances in the algorithm of Bellman and Ford. They have few lines, because
// latencies and bandwidths of a cluster take few values. The links of a route are found by
// Dijkstra's algorithm for a given size, only for the transfers of the final placement.
#include "plan/placement/routes.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <utility>

namespace cadre {

Routes::Routes(int devices, int nodes, std::vector<Link> links, int64_t max_bytes)
    : devices_(devices), nodes_(nodes), links_(std::move(links)), links_of_(nodes) {
  for (size_t l = 0; l < links_.size(); ++l) {
    links_of_[links_[l].from].push_back(l);
    links_of_[links_[l].to].push_back(l);
  }
  lines_.reserve(int64_t{devices} * devices);
  for (int source = 0; source < devices; ++source) {
    std::vector<Lines> envelopes = EnvelopesFrom(source, max_bytes);
    std::move(envelopes.begin(), envelopes.begin() + devices, std::back_inserter(lines_));
  }
}

// The lines that are minimal for some D in [0, max_bytes].
Routes::Lines Routes::Envelope(Lines lines, double max_bytes) {
  std::sort(lines.begin(), lines.end(), [](const Line& a, const Line& b) {
    return std::pair(a.alpha, a.beta) < std::pair(b.alpha, b.beta);
  });
  const auto meet = [](const Line& a, const Line& b) {
    return (b.alpha - a.alpha) / (a.beta - b.beta);
  };
  Lines kept;
  for (const Line& line : lines) {
    if (!kept.empty() && line.beta >= kept.back().beta) continue;
    while (kept.size() > 1 && meet(kept.back(), line) <= meet(kept[kept.size() - 2], kept.back())) {
      kept.pop_back();
    }
    if (kept.size() == 1 && meet(kept[0], line) <= 0) kept.pop_back();
    if (!kept.empty() && meet(kept.back(), line) >= max_bytes) continue;
    kept.push_back(line);
  }
  return kept;
}

// Terminates because a cycle is longer for every size.
std::vector<Routes::Lines> Routes::EnvelopesFrom(int source, double max_bytes) const {
  std::vector<Lines> envelopes(nodes_);
  envelopes[source] = {Line{}};
  std::deque<int> changed = {source};
  std::vector<bool> queued(nodes_, false);
  while (!changed.empty()) {
    const int node = changed.front();
    changed.pop_front();
    queued[node] = false;
    for (const int l : links_of_[node]) {
      const Link& link = links_[l];
      const int next = link.from == node ? link.to : link.from;
      Lines longer = envelopes[next];
      for (const Line& line : envelopes[node]) {
        longer.push_back({line.alpha + link.alpha, line.beta + link.beta});
      }
      Lines best = Envelope(std::move(longer), max_bytes);
      if (best == envelopes[next]) continue;
      envelopes[next] = std::move(best);
      if (!queued[next]) changed.push_back(next);
      queued[next] = true;
    }
  }
  return envelopes;
}

double Routes::Seconds(int from, int to, int64_t bytes) const {
  if (from == to) return 0;
  double min_seconds = std::numeric_limits<double>::infinity();
  for (const Line& line : lines(from, to)) {
    min_seconds = std::min(min_seconds, line.alpha + line.beta * bytes);
  }
  return min_seconds;
}

std::vector<int> Routes::Path(int from, int to, int64_t bytes) const {
  constexpr double kFar = std::numeric_limits<double>::infinity();
  std::vector<double> seconds(nodes_, kFar);
  std::vector<int> arrived_by(nodes_, -1);
  std::vector<bool> settled(nodes_, false);
  seconds[from] = 0;
  for (int round = 0; round < nodes_; ++round) {
    int node = -1;
    for (int n = 0; n < nodes_; ++n) {
      if (settled[n] || seconds[n] == kFar) continue;
      if (node < 0 || seconds[n] < seconds[node]) node = n;
    }
    if (node < 0 || node == to) break;
    settled[node] = true;
    for (const int l : links_of_[node]) {
      const Link& link = links_[l];
      const int next = link.from == node ? link.to : link.from;
      const double then = seconds[node] + link.alpha + link.beta * bytes;
      if (settled[next] || then >= seconds[next]) continue;
      seconds[next] = then;
      arrived_by[next] = l;
    }
  }
  std::vector<int> path;
  for (int node = to; node != from;) {
    const int l = arrived_by[node];
    path.push_back(l);
    const Link& link = links_[l];
    node = link.from == node ? link.to : link.from;
  }
  std::reverse(path.begin(), path.end());
  return path;
}

}  // namespace cadre
