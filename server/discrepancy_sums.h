// The two sums of the discrepancy measure (plan/cost/discrepancy.h) over one shard: the variance
// between the groups' models in a round, and the displacement of their mean.
//
// With x_g a group's value minus the value of the version before, and w_g its weight, every
// position adds
//
//   m                        = sum of w_g x_g / sum of w_g
//   variance_between_groups += sum of w_g (x_g - m)^2 / sum of w_g
//   displacement            += m^2
//
// In double, in one pass over the groups with Welford's running mean (Technometrics 4(3), 1962), so
// no precision is lost where the groups are close, and equal groups have a variance of exactly 0.
// Equal calls produce equal bits.
#pragma once

#include <array>
#include <limits>
#include <span>
#include <vector>

namespace cadre {

// NaN if unknown.
struct DiscrepancyTerms {
  double variance_between_groups = std::numeric_limits<double>::quiet_NaN();
  double displacement = std::numeric_limits<double>::quiet_NaN();
};

// Accumulates over blocks of positions. Thread-compatible.
//
//   for each block: sums.Begin(before); for each group: sums.Add(weight, x); sums.End();
//   sums.Total()
class DiscrepancySums {
 public:
  // Starts a block with the values of the version before, which must stay valid until End.
  void Begin(std::span<const float> before);
  // The next group's values at the same positions. Requires: weight >= 0, x as long as `before`.
  void Add(double weight, std::span<const float> x);
  // Requires: at least one weight is above 0.
  void End();

  // Sums over all blocks so far; 0 and 0 before the first.
  DiscrepancyTerms Total() const { return {variance_, displacement_}; }

 private:
  // Independent partial sums, so that additions do not wait for one another.
  static constexpr size_t kLanes = 8;
  using Lanes = std::array<double, kLanes>;

  std::span<const float> before_;
  // Mean of the groups so far, by position.
  std::vector<double> mean_;
  double weight_ = 0;
  Lanes squares_ = {};
  double variance_ = 0;
  double displacement_ = 0;
};

}  // namespace cadre
