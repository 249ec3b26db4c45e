#include "coordinator/placement/routes.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <utility>

namespace cadre {

Routes::Routes(int devices, int nodes, std::vector<Link> links, int64_t most_bytes)
    : devices_(devices),
      nodes_(nodes),
      links_(std::move(links)),
      links_of_(static_cast<size_t>(nodes)) {
  for (size_t l = 0; l < links_.size(); ++l) {
    links_of_[static_cast<size_t>(links_[l].from)].push_back(static_cast<int>(l));
    links_of_[static_cast<size_t>(links_[l].to)].push_back(static_cast<int>(l));
  }
  lines_.reserve(static_cast<size_t>(devices) * static_cast<size_t>(devices));
  for (int source = 0; source < devices; ++source) {
    std::vector<Lines> ways = WaysFrom(source, static_cast<double>(most_bytes));
    std::move(ways.begin(), ways.begin() + devices, std::back_inserter(lines_));
  }
}

// The lines that are the least for some D in [0, most_bytes].
Routes::Lines Routes::Envelope(Lines lines, double most_bytes) {
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
    if (!kept.empty() && meet(kept.back(), line) >= most_bytes) continue;
    kept.push_back(line);
  }
  return kept;
}

// Bellman and Ford's way to shortest paths, for all sizes of transfer at once: an envelope takes
// the place of a distance. It ends because a way that leads in a circle is longer for every size.
std::vector<Routes::Lines> Routes::WaysFrom(int source, double most_bytes) const {
  std::vector<Lines> ways(static_cast<size_t>(nodes_));
  ways[static_cast<size_t>(source)] = {Line{}};
  std::deque<int> changed = {source};
  std::vector<bool> waits(static_cast<size_t>(nodes_), false);
  while (!changed.empty()) {
    const int node = changed.front();
    changed.pop_front();
    waits[static_cast<size_t>(node)] = false;
    for (const int l : links_of_[static_cast<size_t>(node)]) {
      const Link& link = links_[static_cast<size_t>(l)];
      const int next = link.from == node ? link.to : link.from;
      Lines longer = ways[static_cast<size_t>(next)];
      for (const Line& line : ways[static_cast<size_t>(node)]) {
        longer.push_back({line.alpha + link.alpha, line.beta + link.beta});
      }
      Lines best = Envelope(std::move(longer), most_bytes);
      if (best == ways[static_cast<size_t>(next)]) continue;
      ways[static_cast<size_t>(next)] = std::move(best);
      if (!waits[static_cast<size_t>(next)]) changed.push_back(next);
      waits[static_cast<size_t>(next)] = true;
    }
  }
  return ways;
}

double Routes::Seconds(int from, int to, int64_t bytes) const {
  if (from == to) return 0;
  double least = std::numeric_limits<double>::infinity();
  for (const Line& line : lines(from, to)) {
    least = std::min(least, line.alpha + line.beta * static_cast<double>(bytes));
  }
  return least;
}

std::vector<int> Routes::Path(int from, int to, int64_t bytes) const {
  constexpr double kFar = std::numeric_limits<double>::infinity();
  std::vector<double> seconds(static_cast<size_t>(nodes_), kFar);
  std::vector<int> arrived_by(static_cast<size_t>(nodes_), -1);
  std::vector<bool> settled(static_cast<size_t>(nodes_), false);
  seconds[static_cast<size_t>(from)] = 0;
  for (int round = 0; round < nodes_; ++round) {
    int node = -1;
    for (int n = 0; n < nodes_; ++n) {
      const auto i = static_cast<size_t>(n);
      if (settled[i] || seconds[i] == kFar) continue;
      if (node < 0 || seconds[i] < seconds[static_cast<size_t>(node)]) node = n;
    }
    if (node < 0 || node == to) break;
    settled[static_cast<size_t>(node)] = true;
    for (const int l : links_of_[static_cast<size_t>(node)]) {
      const Link& link = links_[static_cast<size_t>(l)];
      const auto next = static_cast<size_t>(link.from == node ? link.to : link.from);
      const double then =
          seconds[static_cast<size_t>(node)] + link.alpha + link.beta * static_cast<double>(bytes);
      if (settled[next] || then >= seconds[next]) continue;
      seconds[next] = then;
      arrived_by[next] = l;
    }
  }
  std::vector<int> path;
  for (int node = to; node != from;) {
    const int l = arrived_by[static_cast<size_t>(node)];
    path.push_back(l);
    const Link& link = links_[static_cast<size_t>(l)];
    node = link.from == node ? link.to : link.from;
  }
  std::reverse(path.begin(), path.end());
  return path;
}

}  // namespace cadre
