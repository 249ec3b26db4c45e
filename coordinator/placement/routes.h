// Ways between devices, over links and switches.
//
// A transfer of D bytes over links l takes the sum of alpha_l + D / bandwidth_l; it takes the way
// on which that is least, so which way depends on D. Links carry any number of transfers at once,
// each at full speed: that is how Pal et al. 2019 count, and it is too good where many tensors
// cross one link together.
//
// A value; thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace cadre {

class Routes {
 public:
  // Between two nodes, both ways: alpha seconds a message, beta seconds a byte.
  struct Link {
    int from = 0;
    int to = 0;
    double alpha = 0;
    double beta = 0;
  };

  Routes() = default;
  // Devices are the nodes 0 .. devices - 1, switches those behind. Requires: 0 <= alpha and
  // 0 < beta, finite; no transfer is of more than `most_bytes`.
  Routes(int devices, int nodes, std::vector<Link> links, int64_t most_bytes);

  // Whether there is a way between two devices.
  bool Connected(int from, int to) const { return !lines(from, to).empty(); }
  // 0 for one and the same device. Requires: Connected.
  double Seconds(int from, int to, int64_t bytes) const;
  // Numbers of the links of the way that takes least, in order. Requires: Connected.
  std::vector<int> Path(int from, int to, int64_t bytes) const;
  // Whether two devices have equal ways to a third.
  bool SameWays(int one, int other, int third) const {
    return lines(one, third) == lines(other, third);
  }

 private:
  // alpha + beta D.
  struct Line {
    double alpha = 0;
    double beta = 0;
    friend bool operator==(const Line&, const Line&) = default;
  };
  // The lower envelope of all ways' lines: the first is best for the smallest transfers.
  using Lines = std::vector<Line>;

  const Lines& lines(int from, int to) const {
    return lines_[static_cast<size_t>(from) * static_cast<size_t>(devices_) +
                  static_cast<size_t>(to)];
  }
  static Lines Envelope(Lines lines, double most_bytes);
  std::vector<Lines> WaysFrom(int source, double most_bytes) const;

  int devices_ = 0;
  int nodes_ = 0;
  std::vector<Link> links_;
  // By node: numbers of its links.
  std::vector<std::vector<int>> links_of_;
  // By pair of devices.
  std::vector<Lines> lines_;
};

}  // namespace cadre
