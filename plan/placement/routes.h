// Routes between devices, over links and switches.
//
// A transfer of D bytes takes, over the links l of a route, the sum of alpha_l + D / bandwidth_l.
// It uses the route with the minimum sum, which depends on D. Links between switches carry any
// number of transfers simultaneously, each at full speed, as in Pal et al. 2019.
//
// A value; thread-compatible.
#pragma once

#include <cstdint>
#include <vector>

namespace cadre {

class Routes {
 public:
  // Between two nodes, in both directions: alpha seconds per message, beta seconds per byte.
  struct Link {
    int from = 0;
    int to = 0;
    double alpha = 0;
    double beta = 0;
  };

  Routes() = default;
  // Nodes 0 .. devices - 1 are devices, the others switches. Requires: finite alpha >= 0 and beta >
  // 0; no transfer has more than `max_bytes`.
  Routes(int devices, int nodes, std::vector<Link> links, int64_t max_bytes);

  // Seconds of a transfer; 0 between a device and itself; infinite if there is no route.
  double Seconds(int from, int to, int64_t bytes) const;
  // Numbers of the links of the fastest route, in order. Requires: there is a route.
  std::vector<int> Path(int from, int to, int64_t bytes) const;
  // Whether transfers from two devices to a third always take equally long.
  bool SameRoutes(int one, int other, int third) const {
    return lines(one, third) == lines(other, third);
  }

 private:
  // The time alpha + beta D of one route as a function of D.
  struct Line {
    double alpha = 0;
    double beta = 0;
    friend bool operator==(const Line&, const Line&) = default;
  };
  // The lower envelope of the lines of all routes, from small to large D.
  using Lines = std::vector<Line>;

  const Lines& lines(int from, int to) const { return lines_[int64_t{from} * devices_ + to]; }
  static Lines Envelope(Lines lines, double max_bytes);
  std::vector<Lines> EnvelopesFrom(int source, double max_bytes) const;

  int devices_ = 0;
  int nodes_ = 0;
  std::vector<Link> links_;
  // By node: numbers of its links.
  std::vector<std::vector<int>> links_of_;
  // By pair of devices.
  std::vector<Lines> lines_;
};

}  // namespace cadre
