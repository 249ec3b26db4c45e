// This file is compiled with -ffp-contract=off (CMakeLists.txt), so that no fused multiply-add is
// used. The loops over values are compiled for several levels of the instruction set; separate
// multiplications and additions give equal bits for every vector width.
#include "server/mean.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/vector_loop.h"

namespace cadre {
namespace {

constexpr size_t kLanes = DiscrepancySums::kLanes;

using Floats = float __attribute__((vector_size(kLanes * sizeof(float))));
using Doubles = double __attribute__((vector_size(kLanes * sizeof(double))));

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

// A step of Welford's algorithm for each value: `deviations` and `changes` receive the squares of
// the deviations from the mean before, and of the changes. Compilers do not find vectors for two
// sums in one loop over lanes, so they are written here.
CADRE_VECTOR_LOOP
void AddDeviations(double share, const float* __restrict x, const float* __restrict before,
                   double* __restrict mean, double* __restrict deviations,
                   double* __restrict changes, size_t n) {
  Doubles of_deviations = {};
  Doubles of_changes = {};
  for (size_t i = 0; i < n; i += kLanes) {
    const size_t lanes = n - i < kLanes ? n - i : kLanes;
    Floats value = {};
    Floats old = {};
    Doubles running = {};
    if (lanes == kLanes) {
      std::memcpy(&value, x + i, sizeof(value));
      std::memcpy(&old, before + i, sizeof(old));
      std::memcpy(&running, mean + i, sizeof(running));
    } else {
      std::memcpy(&value, x + i, lanes * sizeof(float));
      std::memcpy(&old, before + i, lanes * sizeof(float));
      std::memcpy(&running, mean + i, lanes * sizeof(double));
    }
    const Doubles change =
        __builtin_convertvector(value, Doubles) - __builtin_convertvector(old, Doubles);
    const Doubles deviation = change - running;
    const Doubles next = running + share * deviation;
    of_deviations += deviation * deviation;
    of_changes += change * change;
    if (lanes == kLanes) {
      std::memcpy(mean + i, &next, sizeof(next));
    } else {
      std::memcpy(mean + i, &next, lanes * sizeof(double));
    }
  }
  std::memcpy(deviations, &of_deviations, sizeof(of_deviations));
  std::memcpy(changes, &of_changes, sizeof(of_changes));
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

void TrimmedMean(std::span<const float> weights, size_t trim, std::span<const float> values,
                 std::span<float> mean) {
  const size_t groups = weights.size();
  const size_t n = mean.size();
  std::vector<std::pair<float, size_t>> sorted(groups);
  for (size_t i = 0; i < n; ++i) {
    for (size_t group = 0; group < groups; ++group) sorted[group] = {values[group * n + i], group};
    std::sort(sorted.begin(), sorted.end());
    double sum = 0;
    double total = 0;
    for (size_t k = trim; k < groups - trim; ++k) {
      const double weight = weights[sorted[k].second];
      sum += weight * double{sorted[k].first};
      total += weight;
    }
    mean[i] = static_cast<float>(sum / total);
  }
}

void DiscrepancySums::Begin(std::span<const float> before) {
  before_ = before;
  mean_.assign(before.size(), 0);
  weight_ = 0;
  squares_ = {};
}

double DiscrepancySums::Add(double weight, std::span<const float> x) {
  Lanes deviations = {};
  Lanes changes = {};
  weight_ += weight;
  const double share = weight_ > 0 ? weight / weight_ : 0;
  AddDeviations(share, x.data(), before_.data(), mean_.data(), deviations.data(), changes.data(),
                x.size());
  // A deviation from the mean before is 1 / (1 - share) times that from the mean after.
  for (size_t lane = 0; lane < kLanes; ++lane) {
    squares_[lane] += weight * (1 - share) * deviations[lane];
  }
  return std::accumulate(changes.begin(), changes.end(), 0.0);
}

DiscrepancyTerms DiscrepancySums::End() const {
  Lanes squares = {};
  AddSquares(mean_.data(), squares.data(), mean_.size());
  return {std::accumulate(squares_.begin(), squares_.end(), 0.0) / weight_,
          std::accumulate(squares.begin(), squares.end(), 0.0)};
}

}  // namespace cadre
