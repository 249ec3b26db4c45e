// Counter-based random numbers: a value is a pure function of (seed, stream, substream, counter),
// so weights, sample order and noise do not depend on the rank or the time of the computation.
//
// Thread-safe (pure functions).
#pragma once

#include <cstdint>
#include <vector>

namespace cadre {

// One stream per use; numbers are never reused.
enum class RandomStream : uint32_t {
  kInitialWeights = 1,
  kSampleOrder = 2,
  kSyntheticCentres = 3,
  kSyntheticNoise = 4,
  kSyntheticLabels = 5,
  kBackoff = 6,
  kIdentity = 7,
  kDropout = 8,
  kAugmentation = 9,
  kSyntheticTokens = 10,
  kSampledClasses = 11,
  kTest = 1000,
};

// The numbers of one (seed, stream, substream), with the key computed once. Inline, for loops over
// many counters.
class RandomSequence {
 public:
  RandomSequence(uint64_t seed, RandomStream stream, uint64_t substream)
      : key_(Mix(Mix(seed + kGolden * (static_cast<uint64_t>(stream) + 1)) +
                 kGolden * (substream + 1))) {}

  // RandomBits of this counter.
  uint64_t Bits(uint64_t counter) const { return Mix(key_ + kGolden * (counter + 1)); }

 private:
  static constexpr uint64_t kGolden = 0x9e3779b97f4a7c15ULL;

  // The finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection with full avalanche.
  static constexpr uint64_t Mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
  }

  uint64_t key_;
};

// 64 well-mixed bits.
uint64_t RandomBits(uint64_t seed, RandomStream stream, uint64_t substream, uint64_t counter);

// Uniform in [0, 1), a multiple of 2^-24.
float RandomUniform(uint64_t seed, RandomStream stream, uint64_t substream, uint64_t counter);

// Standard normal (Box-Muller on two uniforms of the same counter); bitwise equal on every CPU.
float RandomNormal(uint64_t seed, RandomStream stream, uint64_t substream, uint64_t counter);

// A permutation of 0 .. size - 1 (Fisher-Yates). Requires: size < 2^32.
std::vector<uint32_t> RandomPermutation(uint64_t seed, RandomStream stream, uint64_t substream,
                                        uint64_t size);

}  // namespace cadre
