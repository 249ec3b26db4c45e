#include "base/digest.h"

#include <bit>

#include "absl/strings/str_format.h"

namespace cadre {

uint64_t Digest(std::span<const float> values, uint64_t first) {
  uint64_t sum = 0;
  for (uint64_t i = 0; i < values.size(); ++i) {
    // The multiplier spreads the position over the word. For one position the rest is a bijection
    // of the value's bits: one changed value always changes the sum. Two multiply-xorshift rounds
    // give full avalanche, so that changes do not cancel by pattern.
    uint64_t x = (first + i + 1) * 0x9e3779b97f4a7c15ULL;
    x ^= static_cast<uint64_t>(std::bit_cast<uint32_t>(values[i])) << 16;
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93ULL;
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93ULL;
    sum += x ^ (x >> 32);
  }
  return sum;
}

uint64_t TextDigest(absl::string_view text) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return hash;
}

std::string DigestHex(uint64_t digest) { return absl::StrFormat("%016x", digest); }

}  // namespace cadre
