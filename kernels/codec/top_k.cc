// The top-k code. The largest values of 4,096, without zeros. Their distances are nearly
// geometrically distributed, so Golomb-Rice codes are within 0.1 bits of the entropy of 7.43 bits a
// value at 1/64. A value is a sign and one of two magnitudes. Four independent levels would cost 32
// bits a block more, 0.165 instead of 0.157 bits a value, for levels that are nearly symmetric
// anyway.
//
// Format. Two magnitudes in bf16 and, if the sign of the first is set, the number of values in 16
// bits; without it, the number is that of Kept. If both magnitudes are 0, nothing follows.
// Otherwise, for each value in the order of indices: its distance from the one before, less 1, as a
// Golomb-Rice code, a sign, and a bit for the magnitude: the mean of those below the mean of all,
// or of the others. The last byte is padded with zeros.
//
// Sources. Top-k by blocks of 4,096: SparseLoCo (Sarfi et al., 2025). Two levels by alternating
// means and thresholds: Lloyd (1982). Codes of distances: Rice and Plaunt (1971); their parameter:
// Golomb (1966).
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "base/vector_loop.h"
#include "kernels/codec/bit_stream.h"
#include "kernels/codec/block_codes.h"
#include "kernels/codec/elements.h"

namespace cadre::codes {
namespace {

CADRE_VECTOR_LOOP
void TakeMagnitudes(const float* __restrict x, int64_t n, int32_t* __restrict magnitudes) {
  for (int64_t i = 0; i < n; ++i) {
    magnitudes[i] = static_cast<int32_t>(std::bit_cast<uint32_t>(x[i]) & kMagnitude);
  }
}

CADRE_VECTOR_LOOP
int32_t CountAtLeast(const int32_t* magnitudes, int64_t n, int32_t threshold) {
  int32_t count = 0;
  for (int64_t i = 0; i < n; ++i) count += magnitudes[i] >= threshold ? 1 : 0;
  return count;
}

// The indices of the `keep` largest magnitudes that are not 0, in order; of equal ones, those with
// lower indices.
//
// The magnitudes of floats are ordered like their bits, so a binary search over the bits finds the
// smallest magnitude that is kept: each step counts the values at or above the middle, a loop that
// vectors execute at the speed of the first-level cache. It ends early when exactly `keep` values
// are counted, which takes about half of the 31 steps on usual data. Its time depends neither on
// how the values are distributed nor on their order, unlike that of a partial sort or of a
// histogram, and it branches on no value.
class Largest {
 public:
  std::span<const uint16_t> Find(Block x, uint32_t keep) {
    const int64_t n = std::ssize(x);
    const auto wanted = static_cast<int32_t>(keep);
    TakeMagnitudes(x.data(), n, magnitudes_.data());
    // At least `wanted` values are at or above `low`, or `low` is the smallest magnitude; fewer are
    // at or above `high`.
    int32_t low = 1;
    int32_t count = CountAtLeast(magnitudes_.data(), n, low);
    auto high = static_cast<int32_t>(MaxMagnitude(x.data(), n) + 1);
    while (count > wanted && high - low > 1) {
      const int32_t middle = low + (high - low) / 2;
      const int32_t above = CountAtLeast(magnitudes_.data(), n, middle);
      if (above >= wanted) {
        low = middle;
        count = above;
      } else {
        high = middle;
      }
    }
    // More than `wanted` values are left only if several are equal to `low`.
    auto ties = static_cast<int32_t>(n);
    if (count > wanted) ties = wanted - CountAtLeast(magnitudes_.data(), n, low + 1);
    size_t found = 0;
    for (int64_t i = 0; i < n; ++i) {
      const int32_t equal = magnitudes_[i] == low && ties > 0 ? 1 : 0;
      indices_[found] = static_cast<uint16_t>(i);
      found += static_cast<size_t>((magnitudes_[i] > low ? 1 : 0) + equal);
      ties -= equal;
    }
    return {indices_.data(), found};
  }

 private:
  std::array<int32_t, kCodecBlock> magnitudes_;
  // One more, because an index is written before it is known to be kept.
  std::array<uint16_t, kCodecBlock + 1> indices_;
};

// The magnitudes below the threshold have the level `low`, others the level `high`.
struct TwoLevels {
  double threshold = 0;
  double low = 0;
  double high = 0;
};

// The means on both sides of a threshold, which is the mean of all at first and then, a few times,
// the middle of the means (Lloyd, 1982). On normally distributed values the steps change little; if
// a few values are much larger than the others, they move the threshold to where it pays.
TwoLevels LevelsOf(Block x, std::span<const uint16_t> indices) {
  double sum = 0;
  for (const uint16_t i : indices) sum += static_cast<double>(std::abs(x[i]));
  TwoLevels levels;
  levels.threshold = sum / static_cast<double>(std::max<size_t>(1, indices.size()));
  for (int step = 0;; ++step) {
    double low = 0;
    double high = 0;
    int64_t lows = 0;
    for (const uint16_t i : indices) {
      const auto magnitude = static_cast<double>(std::abs(x[i]));
      const bool is_low = magnitude < levels.threshold;
      low += is_low ? magnitude : 0.0;
      high += is_low ? 0.0 : magnitude;
      lows += is_low ? 1 : 0;
    }
    const int64_t highs = std::ssize(indices) - lows;
    levels.low = lows > 0 ? low / static_cast<double>(lows) : 0.0;
    levels.high = highs > 0 ? high / static_cast<double>(highs) : 0.0;
    if (lows == 0 || step == kLevelSteps) return levels;
    levels.threshold = (levels.low + levels.high) / 2;
  }
}

}  // namespace

void EncodeTopK(uint32_t keep_of_block, Block x, std::string* coded) {
  Largest largest;
  const uint32_t keep = Kept(keep_of_block, std::ssize(x));
  const std::span<const uint16_t> indices = largest.Find(x, keep);
  const TwoLevels means = LevelsOf(x, indices);
  const uint16_t low = ToBf16(static_cast<float>(means.low));
  const uint16_t high = ToBf16(static_cast<float>(means.high));
  const bool zero = high == 0;
  const bool fewer = !zero && indices.size() < keep;
  uint8_t* const head = Extend(coded, 2 * sizeof(uint16_t) + (fewer ? sizeof(uint16_t) : 0));
  StoreU16(static_cast<uint16_t>(low | (fewer ? kCountFollows : 0)), head);
  StoreU16(high, head + sizeof(uint16_t));
  if (zero) return;
  if (fewer) StoreU16(static_cast<uint16_t>(indices.size()), head + 2 * sizeof(uint16_t));
  BitWriter bits(coded);
  const uint32_t rice = RiceBits(keep_of_block);
  uint32_t next = 0;
  for (const uint16_t i : indices) {
    bits.WriteRice(i - next, rice);
    const bool is_high = static_cast<double>(std::abs(x[i])) >= means.threshold;
    bits.Write((std::signbit(x[i]) ? 1U : 0U) | (is_high ? 2U : 0U), 2);
    next = i + 1U;
  }
  bits.Finish();
}

absl::Status DecodeTopK(uint32_t keep_of_block, absl::string_view* coded, std::span<float> x) {
  const uint8_t* const head = Take(coded, 2 * sizeof(uint16_t));
  if (head == nullptr) return Truncated();
  const uint16_t first = LoadU16(head);
  const std::array<uint16_t, 2> codes = {static_cast<uint16_t>(first & ~kCountFollows),
                                         LoadU16(head + sizeof(uint16_t))};
  if (!IsFiniteBf16(codes[0]) || !IsFiniteBf16(codes[1]) || (codes[1] & 0x8000) != 0) {
    return absl::InvalidArgumentError("a magnitude is negative or not finite");
  }
  // The bits of bf16 without signs are ordered like the values.
  if (codes[0] > codes[1]) return absl::InvalidArgumentError("the magnitudes are not in order");
  const std::array<float, 2> levels = {FromBf16(codes[0]), FromBf16(codes[1])};
  std::fill(x.begin(), x.end(), 0.0F);
  uint32_t count = Kept(keep_of_block, std::ssize(x));
  if ((first & kCountFollows) != 0) {
    const uint8_t* const number = Take(coded, sizeof(uint16_t));
    if (number == nullptr) return Truncated();
    if (LoadU16(number) >= count) return absl::InvalidArgumentError("too many values");
    count = LoadU16(number);
    if (count == 0 || codes[1] == 0) return absl::InvalidArgumentError("a count without values");
  } else if (codes == std::array<uint16_t, 2>{}) {
    return absl::OkStatus();
  }
  BitReader bits(*coded);
  const uint32_t rice = RiceBits(keep_of_block);
  uint64_t next = 0;
  for (uint32_t i = 0; i < count; ++i) {
    next += bits.ReadRice(rice);
    if (!bits.ok()) return Truncated();
    if (next >= x.size()) return absl::InvalidArgumentError("an index is outside of its block");
    const uint32_t code = bits.Read(2);
    const float level = levels[code >> 1];
    // The difference, so that no zero has a sign.
    x[next++] = (code & 1) != 0 ? 0.0F - level : level;
  }
  if (!bits.ok()) return Truncated();
  if (!bits.Finish()) return absl::InvalidArgumentError("the padding is not zero");
  coded->remove_prefix(bits.bytes());
  return absl::OkStatus();
}

}  // namespace cadre::codes
