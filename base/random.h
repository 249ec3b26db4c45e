// Counter-based random numbers: a value is a pure function of (seed, stream, counter), so that
// weights, sample order and noise do not depend on who computes them, or when.
//
// Thread-safe (pure functions).
#pragma once

#include <cstdint>
#include <vector>

namespace cadre {

// Streams that Cadre draws from; a new use gets a new number.
enum class RandomStream : uint32_t {
  kInitialWeights = 1,
  kSampleOrder = 2,
  kSyntheticCentres = 3,
  kSyntheticNoise = 4,
  kSyntheticLabels = 5,
  kBackoff = 6,
  kIdentity = 7,
  kTest = 1000,
};

// 64 well-mixed bits.
uint64_t RandomBits(uint64_t seed, RandomStream stream, uint64_t substream, uint64_t counter);

// Uniform in [0, 1), 24 bits of it.
float RandomUniform(uint64_t seed, RandomStream stream, uint64_t substream, uint64_t counter);

// Standard normal (Box-Muller on two uniforms of the same counter): the same bits on every
// processor.
float RandomNormal(uint64_t seed, RandomStream stream, uint64_t substream, uint64_t counter);

// A permutation of 0 .. size - 1 (Fisher-Yates). Requires: size < 2^32.
std::vector<uint32_t> RandomPermutation(uint64_t seed, RandomStream stream, uint64_t substream,
                                        uint64_t size);

}  // namespace cadre
