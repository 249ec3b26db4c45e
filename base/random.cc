#include "base/random.h"

#include <cmath>
#include <numbers>
#include <numeric>
#include <utility>

namespace cadre {
namespace {

// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection with full avalanche.
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

constexpr uint64_t kGolden = 0x9e3779b97f4a7c15ULL;

float ToUniform(uint32_t bits) { return static_cast<float>(bits >> 8) * 0x1.0p-24F; }

}  // namespace

uint64_t RandomBits(uint64_t seed, RandomStream stream, uint64_t substream, uint64_t counter) {
  uint64_t key = Mix(seed + kGolden * (static_cast<uint64_t>(stream) + 1));
  key = Mix(key + kGolden * (substream + 1));
  return Mix(key + kGolden * (counter + 1));
}

float RandomUniform(uint64_t seed, RandomStream stream, uint64_t substream, uint64_t counter) {
  return ToUniform(static_cast<uint32_t>(RandomBits(seed, stream, substream, counter)));
}

float RandomNormal(uint64_t seed, RandomStream stream, uint64_t substream, uint64_t counter) {
  const uint64_t bits = RandomBits(seed, stream, substream, counter);
  // 1 - u lies in (0, 1], so the logarithm is finite.
  const float u = 1.0F - ToUniform(static_cast<uint32_t>(bits));
  const float v = ToUniform(static_cast<uint32_t>(bits >> 32));
  return std::sqrt(-2.0F * std::log(u)) * std::cos(2.0F * std::numbers::pi_v<float> * v);
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
