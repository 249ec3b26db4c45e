// Idea. Any split of a model over ranks or shards must have the same digest as the whole. A hash
// over a byte stream (CRC, SHA) depends on the order; a sum over elements does not. Summing the
// values themselves would miss permutations and compensating changes, so each term mixes the
// position and the value into 64 bits first (an additive multiset hash in the sense of Clarke et
// al. 2003, without its cryptographic claims).
//
// Invariants. For a fixed position the mix is a bijection of the 32 bits of the value: a change of
// a single value always changes the digest. For several independent changes the probability of
// equal digests is about 2^-64. Digest(a ++ b, p) == Digest(a, p) + Digest(b, p + |a|) modulo 2^64.
//
// Cost. A few multiplications per element. The compiler vectorizes the loop, so that one core reads
// values about as fast as memory delivers them. Limits. A digest detects accidental corruption, but
// no attack: collisions are easy to construct.
#include "base/digest.h"

#include <bit>

#include "absl/strings/str_format.h"
#include "base/vector_loop.h"

namespace cadre {
namespace {

CADRE_VECTOR_LOOP
uint64_t SumOfMixes(const float* values, uint64_t n, uint64_t first) {
  uint64_t sum = 0;
  for (uint64_t i = 0; i < n; ++i) {
    // The product spreads the position over 64 bits; two rounds of multiplication and xorshift then
    // give full avalanche.
    uint64_t x = (first + i + 1) * 0x9e3779b97f4a7c15ULL;
    x ^= uint64_t{std::bit_cast<uint32_t>(values[i])} << 16;
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93ULL;
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93ULL;
    sum += x ^ (x >> 32);
  }
  return sum;
}

}  // namespace

uint64_t Digest(std::span<const float> values, uint64_t first) {
  return SumOfMixes(values.data(), values.size(), first);
}

uint64_t TextDigest(absl::string_view text) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (const unsigned char c : text) hash = (hash ^ c) * 0x100000001b3ULL;
  return hash;
}

std::string DigestHex(uint64_t digest) { return absl::StrFormat("%016x", digest); }

}  // namespace cadre
