// Compiled without contraction of multiply and add (CMakeLists.txt): equal bits everywhere.
#include "server/spread.h"

#include <numeric>

namespace cadre {

void SpreadSums::Begin(std::span<const float> before) {
  before_ = before;
  mean_.assign(before.size(), 0);
  weight_ = 0;
  squares_ = {};
}

void SpreadSums::Add(double weight, std::span<const float> x) {
  if (weight == 0) return;
  weight_ += weight;
  const double share = weight / weight_;
  for (size_t i = 0; i < x.size(); ++i) {
    const double moved = static_cast<double>(x[i]) - static_cast<double>(before_[i]);
    const double off = moved - mean_[i];
    mean_[i] += share * off;
    squares_[i % kLanes] += weight * off * (moved - mean_[i]);
  }
}

void SpreadSums::End() {
  Lanes moved = {};
  for (size_t i = 0; i < mean_.size(); ++i) moved[i % kLanes] += mean_[i] * mean_[i];
  spread_ += std::accumulate(squares_.begin(), squares_.end(), 0.0) / weight_;
  moved_ += std::accumulate(moved.begin(), moved.end(), 0.0);
}

}  // namespace cadre
