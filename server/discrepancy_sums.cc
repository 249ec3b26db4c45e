// Compiled with -ffp-contract=off (CMakeLists.txt): equal bits on all machines.
#include "server/discrepancy_sums.h"

#include <numeric>

namespace cadre {

void DiscrepancySums::Begin(std::span<const float> before) {
  before_ = before;
  mean_.assign(before.size(), 0);
  weight_ = 0;
  squares_ = {};
}

void DiscrepancySums::Add(double weight, std::span<const float> x) {
  if (weight == 0) return;
  weight_ += weight;
  const double share = weight / weight_;
  for (size_t i = 0; i < x.size(); ++i) {
    const double change = static_cast<double>(x[i]) - static_cast<double>(before_[i]);
    const double off = change - mean_[i];
    mean_[i] += share * off;
    squares_[i % kLanes] += weight * off * (change - mean_[i]);
  }
}

void DiscrepancySums::End() {
  Lanes squares = {};
  for (size_t i = 0; i < mean_.size(); ++i) squares[i % kLanes] += mean_[i] * mean_[i];
  variance_ += std::accumulate(squares_.begin(), squares_.end(), 0.0) / weight_;
  displacement_ += std::accumulate(squares.begin(), squares.end(), 0.0);
}

}  // namespace cadre
