// An additive digest of fp32 values by position.
//
// The digest of a set of (position, value) pairs is the sum, modulo 2^64, of a 64-bit mix of each
// pair: the digests of shards, or of ranks, add up to the digest of the model. Training ranks can
// therefore verify the weights that they get from the shards of the aggregator (the parameter
// server), although the two divide the model differently.
//
// Thread-safe (pure functions).
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "absl/strings/string_view.h"

namespace cadre {

// Digest of `values` at positions first, first + 1, ... in the fixed parameter order. Values are
// compared by their bits: -0.0 differs from 0.0.
uint64_t Digest(std::span<const float> values, uint64_t first);

// The FNV-1a hash of the text, for names that are derived from contents.
uint64_t TextDigest(absl::string_view text);

// Sixteen hex digits.
std::string DigestHex(uint64_t digest);

}  // namespace cadre
