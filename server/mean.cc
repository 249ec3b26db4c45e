// This file is compiled with -ffp-contract=off (CMakeLists.txt), so that no fused multiply-add is
// used. The loops over values are compiled for several levels of the instruction set; separate
// multiplications and additions give equal bits for every vector width.
#include "server/mean.h"

#include <algorithm>
#include <numeric>

#include "base/vector_loop.h"

namespace cadre {
namespace {

constexpr size_t kLanes = DiscrepancySums::kLanes;

CADRE_VECTOR_LOOP
void Scale(float weight, const float* __restrict x, float* __restrict sum, size_t n) {
  for (size_t i = 0; i < n; ++i) sum[i] = weight * x[i];
}

CADRE_VECTOR_LOOP
void AddScaled(float weight, const float* __restrict x, float* __restrict sum, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const float product = weight * x[i];
    sum[i] = sum[i] + product;
  }
}

// Adds (i) for every index below n, in lane i % kLanes. The loop over the lanes has a constant
// length, so that compilers use vectors for it.
template <typename Term>
inline void AddInLanes(size_t n, double* __restrict sums, const Term& term) {
  double lanes[kLanes];
  std::copy_n(sums, kLanes, lanes);
  const size_t whole = n / kLanes * kLanes;
  for (size_t i = 0; i < whole; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] += term(i + lane);
  }
  for (size_t i = whole; i < n; ++i) lanes[i - whole] += term(i);
  std::copy_n(lanes, kLanes, sums);
}

// A step of Welford's algorithm for each value.
CADRE_VECTOR_LOOP
void AddDeviations(double weight, double share, const float* __restrict x,
                   const float* __restrict before, double* __restrict mean,
                   double* __restrict squares, size_t n) {
  AddInLanes(n, squares, [=](size_t i) {
    const double change = static_cast<double>(x[i]) - static_cast<double>(before[i]);
    const double deviation = change - mean[i];
    const double next = mean[i] + share * deviation;
    mean[i] = next;
    return weight * deviation * (change - next);
  });
}

CADRE_VECTOR_LOOP
void AddSquares(const double* __restrict x, double* __restrict squares, size_t n) {
  AddInLanes(n, squares, [=](size_t i) { return x[i] * x[i]; });
}

}  // namespace

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
  Scale(weight, x.data(), sum.data(), x.size());
}

void AddWeighted(float weight, std::span<const float> x, std::span<float> sum) {
  AddScaled(weight, x.data(), sum.data(), x.size());
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
  AddDeviations(weight, weight / weight_, x.data(), before_.data(), mean_.data(), squares_.data(),
                x.size());
}

DiscrepancyTerms DiscrepancySums::End() const {
  Lanes squares = {};
  AddSquares(mean_.data(), squares.data(), mean_.size());
  return {std::accumulate(squares_.begin(), squares_.end(), 0.0) / weight_,
          std::accumulate(squares.begin(), squares.end(), 0.0)};
}

}  // namespace cadre
