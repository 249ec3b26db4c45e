#include "base/random.h"

#include <cmath>
#include <numbers>
#include <numeric>
#include <utility>

namespace cadre {
namespace {

// The logarithm and cosine of C libraries may differ in the last bit between CPUs; initial weights
// would then differ between workers. The two functions below consist of IEEE sums and products,
// which round equally everywhere (the build disables fused multiply-add in this file).

// log(x) by 2 artanh((m - 1) / (m + 1)). Requires: 0 < x <= 1.
double Logarithm(double x) {
  int exponent = 0;
  double m = std::frexp(x, &exponent);  // in [1/2, 1)
  if (m < std::numbers::sqrt2 / 2) {
    m *= 2;
    --exponent;
  }
  const double s = (m - 1) / (m + 1);  // |s| < 0.172: the tail after s^17 / 17 is below 1e-14
  double sum = 0;
  for (int k = 17; k >= 1; k -= 2) sum = sum * (s * s) + 1.0 / k;
  return 2 * s * sum + exponent * std::numbers::ln2;
}

// cos(2 pi turns) by its power series in the first quarter turn. Requires: 0 <= turns < 1.
double CosineOfTurns(double turns) {
  const double half = turns > 0.5 ? 1 - turns : turns;
  const bool beyond_quarter = half > 0.25;
  const double angle = 2 * std::numbers::pi * (beyond_quarter ? 0.5 - half : half);
  double sum = 1;
  for (int k = 22; k >= 2; k -= 2) sum = 1 - sum * (angle * angle) / (k * (k - 1));
  return beyond_quarter ? -sum : sum;
}

float ToUniform(uint32_t bits) { return (bits >> 8) * 0x1.0p-24F; }

}  // namespace

uint64_t RandomBits(uint64_t seed, RandomStream stream, uint64_t substream, uint64_t counter) {
  return RandomSequence(seed, stream, substream).Bits(counter);
}

float RandomUniform(uint64_t seed, RandomStream stream, uint64_t substream, uint64_t counter) {
  return ToUniform(RandomBits(seed, stream, substream, counter));
}

float RandomNormal(uint64_t seed, RandomStream stream, uint64_t substream, uint64_t counter) {
  const uint64_t bits = RandomBits(seed, stream, substream, counter);
  // 1 - u lies in (0, 1], so the logarithm is finite.
  const double u = 1.0 - ToUniform(bits);
  const double v = ToUniform(bits >> 32);
  return std::sqrt(-2 * Logarithm(u)) * CosineOfTurns(v);
}

std::vector<uint32_t> RandomPermutation(uint64_t seed, RandomStream stream, uint64_t substream,
                                        uint64_t size) {
  std::vector<uint32_t> order(size);
  std::iota(order.begin(), order.end(), 0U);
  for (uint64_t i = size; i > 1; --i) {
    // The bias of a 64-bit remainder over fewer than 2^32 values is below 2^-32.
    std::swap(order[i - 1], order[RandomBits(seed, stream, substream, i) % i]);
  }
  return order;
}

}  // namespace cadre
