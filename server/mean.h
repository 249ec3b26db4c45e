// The weighted mean of a round: sum over groups, in group order, of weight * value, in fp32
// (base/weighted_sums.h); and the discrepancy between the groups.
//
// Equal inputs in equal order give equal bits on every machine: each product and each sum is
// rounded separately (no fused multiply-add), and the order of the sum is fixed.
//
// Functions are thread-safe, DiscrepancySums is thread-compatible.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace cadre {

// samples / total in double, rounded once to float; exactly 1 for a single participant.
// Requires: the total is not 0.
std::vector<float> MeanWeights(std::span<const uint64_t> samples);

// For each of `mean.size()` positions, the weighted mean of the groups' values without the `trim`
// largest and the `trim` smallest; of equal values, those of lower groups count as smaller.
// `values` has those of group 0, then of group 1 and so on. Requires: they are finite, and more
// groups than 2 * trim.
void TrimmedMean(std::span<const float> weights, size_t trim, std::span<const float> values,
                 std::span<float> mean);

// The two sums of the discrepancy measure (plan/cost/discrepancy.h) over one shard: the variance
// between the groups' models in a round, and the displacement of their mean.
//
// Let x_g be a group's value minus the value of the previous version, and w_g the group's weight.
// Then every position adds
//
//   m                        = sum of w_g x_g / sum of w_g
//   variance_between_groups += sum of w_g (x_g - m)^2 / sum of w_g
//   displacement            += m^2
//
// They are computed in double, in one pass over the groups with Welford's running mean
// (Technometrics 4(3), 1962), so no precision is lost if the groups are close, and equal groups
// have a variance of exactly 0. Equal calls produce equal bits. NaN if unknown.
struct DiscrepancyTerms {
  double variance_between_groups = std::numeric_limits<double>::quiet_NaN();
  double displacement = std::numeric_limits<double>::quiet_NaN();

  DiscrepancyTerms& operator+=(const DiscrepancyTerms& more) {
    variance_between_groups += more.variance_between_groups;
    displacement += more.displacement;
    return *this;
  }
};

// Computes the two sums of a block of positions. Thread-compatible.
//
//   sums.Begin(before); for each group: sums.Add(weight, x); terms = sums.End();
class DiscrepancySums {
 public:
  // Number of independent partial sums, so that additions do not wait for one another.
  static constexpr size_t kLanes = 8;

  // Starts a block with the values of the previous version, which must stay valid until End.
  void Begin(std::span<const float> before);
  // The next group's values at the same positions. Returns the sum of the squares of its changes.
  // Requires: weight >= 0, x as long as `before`.
  double Add(double weight, std::span<const float> x);
  // The sums over the block. Requires: at least one weight is above 0.
  DiscrepancyTerms End() const;

 private:
  using Lanes = std::array<double, kLanes>;

  std::span<const float> before_;
  // Mean of the groups so far, by position.
  std::vector<double> mean_;
  double weight_ = 0;
  Lanes squares_ = {};
};

}  // namespace cadre
