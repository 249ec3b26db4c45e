// This file is compiled with -ffp-contract=off (CMakeLists.txt), so that no fused multiply-add is
// used. The compiler vectorizes the loops; separate multiplications and additions give equal bits
// for every vector width.
#include "server/mean.h"

#include <algorithm>
#include <numeric>

namespace cadre {

std::vector<float> MeanWeights(std::span<const uint64_t> samples) {
  double total = 0;
  for (const uint64_t count : samples) total += static_cast<double>(count);
  std::vector<float> weights;
  weights.reserve(samples.size());
  for (const uint64_t count : samples) {
    weights.push_back(static_cast<float>(static_cast<double>(count) / total));
  }
  return weights;
}

void SetWeighted(float weight, std::span<const float> x, std::span<float> sum) {
  if (weight == 1.0F) {
    std::copy(x.begin(), x.end(), sum.begin());
    return;
  }
  for (size_t i = 0; i < x.size(); ++i) sum[i] = weight * x[i];
}

void AddWeighted(float weight, std::span<const float> x, std::span<float> sum) {
  for (size_t i = 0; i < x.size(); ++i) {
    const float product = weight * x[i];
    sum[i] = sum[i] + product;
  }
}

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
    const double deviation = change - mean_[i];
    mean_[i] += share * deviation;
    squares_[i % kLanes] += weight * deviation * (change - mean_[i]);
  }
}

void DiscrepancySums::End() {
  Lanes squares = {};
  for (size_t i = 0; i < mean_.size(); ++i) squares[i % kLanes] += mean_[i] * mean_[i];
  variance_ += std::accumulate(squares_.begin(), squares_.end(), 0.0) / weight_;
  displacement_ += std::accumulate(squares.begin(), squares.end(), 0.0);
}

}  // namespace cadre
