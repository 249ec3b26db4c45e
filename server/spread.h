// How far the groups' models lie apart in a round, and how far their mean has moved: what the
// discrepancy measure (coordinator/cost/discrepancy.h) is made of.
//
// With x_g a group's value less that of the version before and w_g its weight, at every position
//
//   m       = sum of w_g x_g / sum of w_g
//   spread += sum of w_g (x_g - m)^2 / sum of w_g
//   moved  += m^2
//
// All in double, in one pass over the groups (the running mean of Welford 1962), so nothing is lost
// where groups lie close together, and equal groups have a spread of exactly 0. Equal calls give
// equal bits.
#pragma once

#include <array>
#include <limits>
#include <span>
#include <vector>

namespace cadre {

// NaN: not known.
struct Spread {
  double spread = std::numeric_limits<double>::quiet_NaN();
  double moved = std::numeric_limits<double>::quiet_NaN();
};

// Sums over pieces of positions. Thread-compatible.
//
//   for each piece: sums.Begin(before); for each group: sums.Add(weight, x); sums.End();
//   sums.Total()
class SpreadSums {
 public:
  // Values of the version before; they must stay where they are until End.
  void Begin(std::span<const float> before);
  // The next group's values at the same positions. Requires: weight >= 0, x as long as `before`.
  void Add(double weight, std::span<const float> x);
  // Requires: some weight was above 0.
  void End();

  // Of the pieces so far; 0 and 0 before the first.
  Spread Total() const { return {spread_, moved_}; }

 private:
  // Sums go round this many places, so that one addition need not wait for the one before.
  static constexpr size_t kLanes = 8;
  using Lanes = std::array<double, kLanes>;

  std::span<const float> before_;
  // By position: mean of the groups so far.
  std::vector<double> mean_;
  double weight_ = 0;
  Lanes squares_ = {};
  double spread_ = 0;
  double moved_ = 0;
};

}  // namespace cadre
