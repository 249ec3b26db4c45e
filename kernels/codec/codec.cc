// Idea. A group sends how far it has moved, not where it is, and such differences need few bits:
// the aggregator averages the errors of several groups, and a sender that adds what a code has left
// out to its next difference (error feedback) loses nothing for good. Blocks are coded
// independently, each with the scale or the levels that fit its own values.
//
//   int8, E3M0  The scale of 256 values is a power of two, one byte. Its products are exact, so
//               a decoder has nothing to round, and an encoder rounds once. The levels of E3M0 are
//               powers of two as well: its relative squared error is 0.038 for normal, Laplace and
//               Student-3 distributions alike, where integers of 4 bits have 0.016, 0.032 and
//               0.076. Rounding to them needs integer operations on the bits of floats only.
//   stat2       Four levels: the means of what lies below mean - 1.5 sigma, below the mean, below
//               mean + 1.5 sigma, and above. Relative squared error: 0.163 (normal), 0.192
//               (Laplace), 0.30 (Student-3).
//   top-k       The largest values of 4,096, without zeros. Their distances are nearly
//               geometrically distributed, so Golomb-Rice codes are within 0.1 bits of the entropy
//               of 7.43 bits a value at 1/64. A value is a sign and one of two magnitudes. Four
//               independent levels would cost 32 bits a block more, 0.165 instead of 0.157 bits a
//               value, for levels that are nearly symmetric anyway.
//
// Sources. E3M0 for pseudo-gradients: Streaming DiLoCo (Douillard et al., 2025), here with a power
// of two as scale. Levels at the means of buckets of 1.5 sigma, and top-k by blocks of 4,096:
// SparseLoCo (Sarfi et al., 2025). Two levels by alternating means and thresholds: Lloyd (1982).
// Codes of distances: Rice and Plaunt (1971); their parameter: Golomb (1966).
//
// Equal bits. Programs on unlike processors must write and read equal codes. Every loop over values
// therefore computes on the bits of floats, or rounds every operation exactly and adds in eight
// lanes in double, in a fixed order. Vectors of any width then give the same result, and the file
// is compiled with -ffp-contract=off, because a fused multiply-add rounds once instead of twice.
// reference.cc does the same one value at a time, kernels/cuda/codec.cu with a block of threads for
// each unit. Tests compare all three.
//
// Limits. The floating-point environment must be the default one (round to nearest, denormals not
// flushed to zero). E3M0 has 7 powers of two: what is below 3/256 of its block's largest power is
// lost, unless error feedback keeps it. int8 and E3M0 have no denormal levels, so values below
// 2^-127 become zero. stat2 decodes zeros exactly only in blocks of zeros. The codes of stat2 have
// an entropy of 1.57 bits on normal values, which a range coder would use.
#include "kernels/codec/codec.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/vector_loop.h"
#include "kernels/codec/bit_stream.h"
#include "kernels/codec/elements.h"

namespace cadre {
namespace {

using namespace codes;

using Block = std::span<const float>;

absl::Status Truncated() { return absl::InvalidArgumentError("the code is truncated"); }

// Removes `size` bytes from the front of `coded`; null if there are fewer.
const uint8_t* Take(absl::string_view* coded, size_t size) {
  if (coded->size() < size) return nullptr;
  const auto* const bytes = reinterpret_cast<const uint8_t*>(coded->data());
  coded->remove_prefix(size);
  return bytes;
}

// Extends `coded` by `size` bytes and returns the first of them.
uint8_t* Extend(std::string* coded, size_t size) {
  const size_t begin = coded->size();
  coded->resize(begin + size);
  return reinterpret_cast<uint8_t*>(coded->data()) + begin;
}

CADRE_VECTOR_LOOP
uint32_t MaxMagnitude(const float* x, int64_t n) {
  uint32_t max = 0;
  for (int64_t i = 0; i < n; ++i) max = std::max(max, std::bit_cast<uint32_t>(x[i]) & kMagnitude);
  return max;
}

// ---- bf16

bool IsFiniteBf16(uint16_t value) { return (value & 0x7F80) != 0x7F80; }

void StoreU16(uint16_t value, uint8_t* to) { std::memcpy(to, &value, sizeof(value)); }
uint16_t LoadU16(const uint8_t* from) {
  uint16_t value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

CADRE_VECTOR_LOOP
void RoundBf16(const float* x, int64_t n, uint8_t* to) {
  for (int64_t i = 0; i < n; ++i) StoreU16(ToBf16(x[i]), to + 2 * i);
}

// Returns whether all values are finite.
CADRE_VECTOR_LOOP
bool WidenBf16(const uint8_t* from, int64_t n, float* x) {
  uint32_t max = 0;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = uint32_t{LoadU16(from + 2 * i)} << 16;
    max = std::max(max, bits & kMagnitude);
    x[i] = std::bit_cast<float>(bits);
  }
  return IsFinite(max);
}

void EncodeBf16(Block x, std::string* coded) {
  RoundBf16(x.data(), std::ssize(x), Extend(coded, x.size() * sizeof(uint16_t)));
}

absl::Status DecodeBf16(absl::string_view* coded, std::span<float> x) {
  const uint8_t* const from = Take(coded, x.size() * sizeof(uint16_t));
  if (from == nullptr) return Truncated();
  if (WidenBf16(from, std::ssize(x), x.data())) return absl::OkStatus();
  return absl::InvalidArgumentError("a value is not finite");
}

// ---- fp32

void EncodeFp32(Block x, std::string* coded) {
  std::memcpy(Extend(coded, x.size_bytes()), x.data(), x.size_bytes());
}

absl::Status DecodeFp32(absl::string_view* coded, std::span<float> x) {
  const uint8_t* const from = Take(coded, x.size_bytes());
  if (from == nullptr) return Truncated();
  std::memcpy(x.data(), from, x.size_bytes());
  if (IsFinite(MaxMagnitude(x.data(), std::ssize(x)))) return absl::OkStatus();
  return absl::InvalidArgumentError("a value is not finite");
}

// ---- int8
//
// One byte e, then, unless e is 0, one byte for each value: integers q with x = q 2^(e - 133). The
// largest magnitude has the exponent e or, if it would be rounded to 128, e - 1.

CADRE_VECTOR_LOOP
void QuantizeInt8(const float* __restrict x, int64_t n, float factor, int8_t* __restrict q) {
  for (int64_t i = 0; i < n; ++i) q[i] = static_cast<int8_t>(RoundInt8(x[i], factor));
}

// Returns the largest magnitude of an integer.
CADRE_VECTOR_LOOP
uint8_t DequantizeInt8(const int8_t* __restrict q, int64_t n, float scale, float* __restrict x) {
  uint8_t max = 0;
  for (int64_t i = 0; i < n; ++i) {
    max = std::max(max, static_cast<uint8_t>(q[i] < 0 ? -q[i] : q[i]));
  }
  for (int64_t i = 0; i < n; ++i) x[i] = static_cast<float>(q[i]) * scale;
  return max;
}

void EncodeInt8(Block x, std::string* coded) {
  const Int8Scale scale = Int8ScaleOf(MaxMagnitude(x.data(), std::ssize(x)));
  if (scale.exponent == 0) {
    *Extend(coded, 1) = 0;
    return;
  }
  uint8_t* const to = Extend(coded, 1 + x.size());
  *to = static_cast<uint8_t>(scale.exponent);
  auto* const q = reinterpret_cast<int8_t*>(to + 1);
  QuantizeInt8(x.data(), std::ssize(x), scale.factor, q);
  if (!scale.clamped) return;
  for (size_t i = 0; i < x.size(); ++i) {
    if (std::abs(x[i]) >= scale.limit) q[i] = x[i] < 0 ? -127 : 127;
  }
}

absl::Status DecodeInt8(absl::string_view* coded, std::span<float> x) {
  const uint8_t* const scale = Take(coded, 1);
  if (scale == nullptr) return Truncated();
  if (*scale == 0) {
    std::fill(x.begin(), x.end(), 0.0F);
    return absl::OkStatus();
  }
  if (*scale < kMinInt8Scale || *scale > kMaxExponent) {
    return absl::InvalidArgumentError("a scale overflows");
  }
  const uint8_t* const q = Take(coded, x.size());
  if (q == nullptr) return Truncated();
  const uint8_t max = DequantizeInt8(reinterpret_cast<const int8_t*>(q), std::ssize(x),
                                     PowerOfTwo(*scale - 6U), x.data());
  if (max > 127) return absl::InvalidArgumentError("an integer is -128");
  // A smaller scale would do.
  if (max < (*scale > kMinInt8Scale ? 64 : 1)) {
    return absl::InvalidArgumentError("the scale is larger than the values require");
  }
  return absl::OkStatus();
}

// ---- E3M0
//
// One byte e, then, unless e is 0, four bits for each value: a sign and c, where 0 is zero and
// other c are 2^(e - 127 - 7 + c). A value is rounded to the nearest power of two; what is below
// the smallest of them is zero.

CADRE_VECTOR_LOOP
void QuantizeE3m0(const float* __restrict x, int64_t n, int32_t e, uint8_t* __restrict codes) {
  for (int64_t i = 0; i < n; ++i) codes[i] = E3m0CodeOf(std::bit_cast<uint32_t>(x[i]), e);
}

CADRE_VECTOR_LOOP
void PackNibbles(const uint8_t* __restrict codes, int64_t bytes, uint8_t* __restrict to) {
  for (int64_t i = 0; i < bytes; ++i) {
    to[i] = static_cast<uint8_t>(codes[2 * i] | codes[2 * i + 1] << 4);
  }
}

CADRE_VECTOR_LOOP
void UnpackNibbles(const uint8_t* __restrict from, int64_t bytes, uint8_t* __restrict codes) {
  for (int64_t i = 0; i < bytes; ++i) {
    codes[2 * i] = from[i] & 0xF;
    codes[2 * i + 1] = from[i] >> 4;
  }
}

// What the codes of a block contain: the smallest c above 0 (256 if there is none), the largest c,
// and whether a zero has a sign.
struct E3m0Codes {
  int32_t min;
  int32_t max;
  bool negative_zero;
};

CADRE_VECTOR_LOOP
E3m0Codes InspectE3m0(const uint8_t* codes, int64_t n) {
  // Minima and maxima of bytes, which vectors compute fastest. c - 1 is 255 for zero, so that its
  // minimum ignores zeros; `distance` is that from the code of a zero with a sign.
  uint8_t min = 255;
  uint8_t max = 0;
  uint8_t distance = 255;
  for (int64_t i = 0; i < n; ++i) {
    const uint8_t c = codes[i] & 7;
    const auto less = static_cast<uint8_t>(c - 1);
    const auto from_negative_zero = static_cast<uint8_t>(codes[i] ^ 8);
    min = less < min ? less : min;
    max = c > max ? c : max;
    distance = from_negative_zero < distance ? from_negative_zero : distance;
  }
  return {min + 1, max, distance == 0};
}

CADRE_VECTOR_LOOP
void DequantizeE3m0(const uint8_t* __restrict codes, int64_t n, int32_t e, float* __restrict x) {
  for (int64_t i = 0; i < n; ++i) x[i] = E3m0ValueOf(codes[i], e);
}

void EncodeE3m0(Block x, std::string* coded) {
  const uint32_t e = NearestPower(MaxMagnitude(x.data(), std::ssize(x)));
  if (e == 0) {
    *Extend(coded, 1) = 0;
    return;
  }
  std::array<uint8_t, kScaleBlock> codes = {};
  QuantizeE3m0(x.data(), std::ssize(x), static_cast<int32_t>(e), codes.data());
  const size_t bytes = (x.size() + 1) / 2;
  uint8_t* const to = Extend(coded, 1 + bytes);
  *to = static_cast<uint8_t>(e);
  PackNibbles(codes.data(), static_cast<int64_t>(bytes), to + 1);
}

absl::Status DecodeE3m0(absl::string_view* coded, std::span<float> x) {
  const uint8_t* const scale = Take(coded, 1);
  if (scale == nullptr) return Truncated();
  if (*scale == 0) {
    std::fill(x.begin(), x.end(), 0.0F);
    return absl::OkStatus();
  }
  if (*scale > kMaxExponent) return absl::InvalidArgumentError("a scale overflows");
  const size_t bytes = (x.size() + 1) / 2;
  const uint8_t* const from = Take(coded, bytes);
  if (from == nullptr) return Truncated();
  if (x.size() % 2 != 0 && from[bytes - 1] >> 4 != 0) {
    return absl::InvalidArgumentError("the padding is not zero");
  }
  std::array<uint8_t, kScaleBlock> codes;
  UnpackNibbles(from, static_cast<int64_t>(bytes), codes.data());
  const E3m0Codes found = InspectE3m0(codes.data(), std::ssize(x));
  if (found.negative_zero) return absl::InvalidArgumentError("a zero has a sign");
  // The scale is the exponent of the largest value.
  if (found.max < kLevels) {
    return absl::InvalidArgumentError("the scale is larger than the values require");
  }
  if (*scale + found.min <= kLevels) return absl::InvalidArgumentError("an exponent overflows");
  DequantizeE3m0(codes.data(), std::ssize(x), *scale, x.data());
  return absl::OkStatus();
}

// ---- 2-bit statistical
//
// Four levels in bf16, then, unless all of them are 0, two bits for each value.

// Eight values, and eight lanes of sums in double. A value i is added to lane i % 8, and lanes are
// added from the first to the last, whatever the width of the processor's vectors is.
using EightFloats = float __attribute__((vector_size(kLanes * sizeof(float))));
using EightInts = int32_t __attribute__((vector_size(kLanes * sizeof(int32_t))));
using EightBytes = uint8_t __attribute__((vector_size(kLanes)));
using Lanes = double __attribute__((vector_size(kLanes * sizeof(double))));

// Loads `n` values; the others are `rest`.
__attribute__((always_inline)) inline EightFloats LoadFloats(const float* x, int64_t n,
                                                             float rest) {
  EightFloats values = rest - EightFloats{};
  if (n >= static_cast<int64_t>(kLanes)) {
    std::memcpy(&values, x, sizeof(values));
  } else {
    for (int64_t i = 0; i < n; ++i) values[i] = x[i];
  }
  return values;
}

__attribute__((always_inline)) inline double SumOf(const Lanes& lanes) {
  double sum = 0;
  for (size_t lane = 0; lane < kLanes; ++lane) sum += lanes[lane];
  return sum;
}

CADRE_VECTOR_LOOP
double MeanOf(const float* x, int64_t n) {
  Lanes sums = {};
  for (int64_t i = 0; i < n; i += kLanes) {
    sums += __builtin_convertvector(LoadFloats(x + i, n - i, 0), Lanes);
  }
  return SumOf(sums) / static_cast<double>(n);
}

CADRE_VECTOR_LOOP
double VarianceOf(const float* x, int64_t n, double mean) {
  constexpr int64_t kStep = kLanes;
  Lanes squares = {};
  int64_t i = 0;
  for (; i + kStep <= n; i += kStep) {
    const Lanes d = __builtin_convertvector(LoadFloats(x + i, kStep, 0), Lanes) - mean;
    squares += d * d;
  }
  for (int64_t lane = 0; i < n; ++i, ++lane) {
    const double d = static_cast<double>(x[i]) - mean;
    squares[lane] += d * d;
  }
  return SumOf(squares) / static_cast<double>(n);
}

struct Thresholds {
  float low, middle, high;
};

// The sum and the number of the values of each code.
struct Buckets {
  std::array<double, 4> sums;
  std::array<int32_t, 4> counts;
};

// Writes whole groups of eight codes; those after the n-th are 0.
CADRE_VECTOR_LOOP
void QuantizeStat2(const float* __restrict x, int64_t n, Thresholds t, uint8_t* __restrict codes,
                   Buckets* __restrict buckets) {
  Lanes sums[4] = {};
  EightInts counts[4] = {};
  for (int64_t i = 0; i < n; i += kLanes) {
    // Zeros instead of the missing values change no sum.
    const EightFloats values = LoadFloats(x + i, n - i, 0);
    // The result of a comparison is -1 or 0.
    EightInts code = -((values >= t.low) + (values >= t.middle) + (values >= t.high));
    for (int64_t lane = n - i; lane < static_cast<int64_t>(kLanes); ++lane) code[lane] = -1;
    for (int bucket = 0; bucket < 4; ++bucket) {
      const EightInts is = code == bucket;
      const auto chosen = reinterpret_cast<EightFloats>(reinterpret_cast<EightInts>(values) & is);
      sums[bucket] += __builtin_convertvector(chosen, Lanes);
      counts[bucket] -= is;
    }
    for (int64_t lane = n - i; lane < static_cast<int64_t>(kLanes); ++lane) code[lane] = 0;
    const EightBytes bytes = __builtin_convertvector(code, EightBytes);
    std::memcpy(codes + i, &bytes, sizeof(bytes));
  }
  for (int bucket = 0; bucket < 4; ++bucket) {
    buckets->sums[bucket] = SumOf(sums[bucket]);
    buckets->counts[bucket] = 0;
    for (size_t lane = 0; lane < kLanes; ++lane) buckets->counts[bucket] += counts[bucket][lane];
  }
}

CADRE_VECTOR_LOOP
void PackPairs(const uint8_t* __restrict codes, int64_t bytes, uint8_t* __restrict to) {
  for (int64_t i = 0; i < bytes; ++i) {
    const uint8_t* const c = codes + 4 * i;
    to[i] = static_cast<uint8_t>(c[0] | c[1] << 2 | c[2] << 4 | c[3] << 6);
  }
}

CADRE_VECTOR_LOOP
void UnpackPairs(const uint8_t* __restrict from, int64_t bytes, uint8_t* __restrict codes) {
  for (int64_t i = 0; i < bytes; ++i) {
    codes[4 * i] = from[i] & 3;
    codes[4 * i + 1] = from[i] >> 2 & 3;
    codes[4 * i + 2] = from[i] >> 4 & 3;
    codes[4 * i + 3] = from[i] >> 6;
  }
}

CADRE_VECTOR_LOOP
void LookUpLevels(const uint8_t* __restrict codes, int64_t n, const float* levels,
                  float* __restrict x) {
  const float a = levels[0];
  const float b = levels[1];
  const float c = levels[2];
  const float d = levels[3];
  for (int64_t i = 0; i < n; ++i) {
    const float low = codes[i] == 0 ? a : b;
    const float high = codes[i] == 2 ? c : d;
    x[i] = codes[i] < 2 ? low : high;
  }
}

void EncodeStat2(Block x, std::string* coded) {
  const double mean = MeanOf(x.data(), std::ssize(x));
  const double step = 1.5 * std::sqrt(VarianceOf(x.data(), std::ssize(x), mean));
  std::array<uint8_t, kCodecBlock + kLanes> codes;
  Buckets buckets;
  QuantizeStat2(
      x.data(), std::ssize(x),
      {static_cast<float>(mean - step), static_cast<float>(mean), static_cast<float>(mean + step)},
      codes.data(), &buckets);
  std::array<uint16_t, 4> levels = {};
  for (size_t level = 0; level < levels.size(); ++level) {
    if (buckets.counts[level] == 0) continue;
    levels[level] = ToBf16(static_cast<float>(buckets.sums[level] / buckets.counts[level]));
    // A zero without sign, so that the code of zeros is unique.
    if (levels[level] == kNegativeZeroBf16) levels[level] = 0;
  }
  const bool zero = levels == std::array<uint16_t, 4>{};
  const size_t bytes = zero ? 0 : (x.size() + 3) / 4;
  uint8_t* const to = Extend(coded, sizeof(levels) + bytes);
  std::memcpy(to, levels.data(), sizeof(levels));
  PackPairs(codes.data(), static_cast<int64_t>(bytes), to + sizeof(levels));
}

absl::Status DecodeStat2(absl::string_view* coded, std::span<float> x) {
  const uint8_t* const head = Take(coded, 4 * sizeof(uint16_t));
  if (head == nullptr) return Truncated();
  std::array<float, 4> levels;
  bool zero = true;
  for (size_t level = 0; level < levels.size(); ++level) {
    const uint16_t value = LoadU16(head + level * sizeof(uint16_t));
    if (!IsFiniteBf16(value)) return absl::InvalidArgumentError("a level is not finite");
    if (value == kNegativeZeroBf16) return absl::InvalidArgumentError("a zero has a sign");
    zero &= value == 0;
    levels[level] = FromBf16(value);
  }
  if (zero) {
    std::fill(x.begin(), x.end(), 0.0F);
    return absl::OkStatus();
  }
  const size_t bytes = (x.size() + 3) / 4;
  const uint8_t* const from = Take(coded, bytes);
  if (from == nullptr) return Truncated();
  if (const size_t last = x.size() % 4; last != 0 && from[bytes - 1] >> (2 * last) != 0) {
    return absl::InvalidArgumentError("the padding is not zero");
  }
  std::array<uint8_t, kCodecBlock> codes;
  UnpackPairs(from, static_cast<int64_t>(bytes), codes.data());
  LookUpLevels(codes.data(), std::ssize(x), levels.data(), x.data());
  return absl::OkStatus();
}

// ---- Top-k
//
// Two magnitudes in bf16 and, if the sign of the first is set, the number of values in 16 bits;
// without it, the number is that of Kept. If both magnitudes are 0, nothing follows. Otherwise, for
// each value in the order of indices: its distance from the one before, less 1, as a Golomb-Rice
// code, a sign, and a bit for the magnitude: the mean of those below the mean of all, or of the
// others. The last byte is padded with zeros.

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

void EncodeTopK(const Codec& codec, Block x, std::string* coded) {
  Largest largest;
  const uint32_t keep = Kept(codec.keep, std::ssize(x));
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
  const uint32_t rice = RiceBits(codec.keep);
  uint32_t next = 0;
  for (const uint16_t i : indices) {
    bits.WriteRice(i - next, rice);
    const bool is_high = static_cast<double>(std::abs(x[i])) >= means.threshold;
    bits.Write((std::signbit(x[i]) ? 1U : 0U) | (is_high ? 2U : 0U), 2);
    next = i + 1U;
  }
  bits.Finish();
}

absl::Status DecodeTopK(const Codec& codec, absl::string_view* coded, std::span<float> x) {
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
  uint32_t count = Kept(codec.keep, std::ssize(x));
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
  const uint32_t rice = RiceBits(codec.keep);
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

// The number of values that one call below codes: a block, or as many of the codecs that code each
// value by itself.
size_t StepOf(CodecKind kind) {
  const int64_t block = BlockOf(kind);
  return block == 1 ? kCodecBlock : block;
}

void EncodeBlock(const Codec& codec, Block block, std::string* coded) {
  switch (codec.kind) {
    case CodecKind::kFp32:
      return EncodeFp32(block, coded);
    case CodecKind::kBf16:
      return EncodeBf16(block, coded);
    case CodecKind::kInt8:
      return EncodeInt8(block, coded);
    case CodecKind::kE3m0:
      return EncodeE3m0(block, coded);
    case CodecKind::kStat2:
      return EncodeStat2(block, coded);
    case CodecKind::kTopK:
      return EncodeTopK(codec, block, coded);
  }
}

absl::Status DecodeBlock(const Codec& codec, absl::string_view* coded, std::span<float> block) {
  switch (codec.kind) {
    case CodecKind::kFp32:
      return DecodeFp32(coded, block);
    case CodecKind::kBf16:
      return DecodeBf16(coded, block);
    case CodecKind::kInt8:
      return DecodeInt8(coded, block);
    case CodecKind::kE3m0:
      return DecodeE3m0(coded, block);
    case CodecKind::kStat2:
      return DecodeStat2(coded, block);
    case CodecKind::kTopK:
      return DecodeTopK(codec, coded, block);
  }
  return absl::InvalidArgumentError("unknown codec");
}

}  // namespace

int64_t BlockOf(CodecKind kind) {
  switch (kind) {
    case CodecKind::kFp32:
    case CodecKind::kBf16:
      return 1;
    case CodecKind::kInt8:
    case CodecKind::kE3m0:
      return kScaleBlock;
    case CodecKind::kStat2:
    case CodecKind::kTopK:
      return kCodecBlock;
  }
  return kCodecBlock;
}

absl::Status CheckCodec(const Codec& codec) {
  if (codec.kind < CodecKind::kFp32 || codec.kind > CodecKind::kTopK) {
    return absl::InvalidArgumentError(
        absl::StrCat("codec ", static_cast<int>(codec.kind), " does not exist"));
  }
  const bool sparse = codec.kind == CodecKind::kTopK;
  if (sparse ? codec.keep == 0 || codec.keep > kCodecBlock : codec.keep != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        codec.keep, " values are kept; ",
        sparse ? absl::StrCat("1 to ", kCodecBlock, " are possible") : "the codec keeps all"));
  }
  return absl::OkStatus();
}

int64_t MaxCodedBytes(const Codec& codec, int64_t size) {
  const int64_t block = BlockOf(codec.kind);
  const int64_t blocks = (size + block - 1) / block;
  switch (codec.kind) {
    case CodecKind::kFp32:
      return size * int64_t{sizeof(float)};
    case CodecKind::kBf16:
      return size * int64_t{sizeof(uint16_t)};
    case CodecKind::kInt8:
      return blocks + size;
    case CodecKind::kE3m0:
      return blocks + (size + 1) / 2;
    case CodecKind::kStat2:
      return 8 * blocks + (size + 3) / 4;
    case CodecKind::kTopK: {
      // Each value has at most its remainder, a sign, a magnitude and the end of its unary part.
      // The unary parts of a block are together at most its size, divided by 2^b.
      const int64_t rice = RiceBits(codec.keep);
      const int64_t values = (size * codec.keep + kCodecBlock - 1) / kCodecBlock + blocks;
      return 7 * blocks + (values * (rice + 3) + (size >> rice) + 7) / 8;
    }
  }
  return 0;
}

absl::Status Encode(const Codec& codec, std::span<const float> values, std::string* coded) {
  if (!IsFinite(MaxMagnitude(values.data(), std::ssize(values)))) {
    const auto bad = std::find_if(values.begin(), values.end(),
                                  [](float value) { return !std::isfinite(value); });
    return absl::InvalidArgumentError(
        absl::StrCat("value ", bad - values.begin(), " is not finite"));
  }
  const size_t block = StepOf(codec.kind);
  for (size_t at = 0; at < values.size(); at += block) {
    EncodeBlock(codec, values.subspan(at, std::min(block, values.size() - at)), coded);
  }
  return absl::OkStatus();
}

absl::Status Decode(const Codec& codec, absl::string_view* coded, std::span<float> values) {
  const size_t block = StepOf(codec.kind);
  for (size_t at = 0; at < values.size(); at += block) {
    CADRE_RETURN_IF_ERROR(
        DecodeBlock(codec, coded, values.subspan(at, std::min(block, values.size() - at))));
  }
  return absl::OkStatus();
}

}  // namespace cadre
