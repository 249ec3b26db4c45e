// The codes as bit streams: the lowest bit of a byte comes first, and a number is written from its
// lowest bit on. codec.cc describes the codes; this file follows that description literally.
//
// What must be equal bit for bit is not only the rounding, but also the order of sums: the sums of
// the 2-bit code are taken in double, in eight lanes (value i in lane i mod 8), each in the order
// of the values, and the lanes are then added from the first to the last.
#include "kernels/codec/reference.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>

namespace cadre {
namespace {

using Values = std::span<const float>;

class Bits {
 public:
  Bits() = default;
  explicit Bits(absl::string_view bytes) {
    for (const char byte : bytes) Append(static_cast<uint8_t>(byte), 8);
  }

  void Append(uint64_t value, int count) {
    for (int i = 0; i < count; ++i) bits_.push_back((value >> i & 1) != 0);
  }
  uint32_t Take(int count) {
    uint32_t value = 0;
    for (int i = 0; i < count; ++i) value |= (bits_.at(position_++) ? 1U : 0U) << i;
    return value;
  }
  // Completes, or skips, the last byte.
  void Pad() {
    while (bits_.size() % 8 != 0) bits_.push_back(false);
    position_ = (position_ + 7) / 8 * 8;
  }
  std::string Bytes() const {
    std::string bytes(bits_.size() / 8, '\0');
    for (size_t i = 0; i < bits_.size(); ++i) {
      if (bits_[i]) bytes[i / 8] = static_cast<char>(bytes[i / 8] | 1 << (i % 8));
    }
    return bytes;
  }

 private:
  std::vector<bool> bits_;
  size_t position_ = 0;
};

float MaxMagnitude(Values x) {
  float max = 0;
  for (const float value : x) max = std::max(max, std::abs(value));
  return max;
}

// ---- fp32 and bf16

// The nearest bf16 of a finite float, of two equally near ones that with an even last bit; the
// largest finite bf16 if that is infinite.
uint32_t ToBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 31 << 15;
  const uint32_t below = (bits & 0x7FFFFFFFU) >> 16;
  const uint32_t rest = bits & 0xFFFFU;
  const bool up = rest > 0x8000 || (rest == 0x8000 && below % 2 == 1);
  return sign | std::min(below + (up ? 1 : 0), 0x7F7FU);
}

float FromBf16(uint32_t bits) { return std::bit_cast<float>(bits << 16); }

// Bf16 of a level; zero has no sign.
uint32_t ToLevel(double mean) {
  const uint32_t level = ToBf16(static_cast<float>(mean));
  return level == 0x8000 ? 0 : level;
}

// ---- int8

// The exponent of the largest power of two that is not above the magnitude, at least `min`.
int ExponentOf(float magnitude, int min) { return std::max(std::ilogb(magnitude), min); }

void EncodeInt8(Values x, Bits& bits) {
  const float max = MaxMagnitude(x);
  // With the smallest scale, every value is rounded to zero.
  if (std::nearbyint(std::ldexp(double{max}, 126)) == 0) return bits.Append(0, 8);
  int exponent = ExponentOf(max, -120);
  if (std::ldexp(double{max}, 6 - exponent) >= 127.5 && exponent < 127) ++exponent;
  bits.Append(exponent + 127, 8);
  for (const float value : x) {
    const double rounded = std::nearbyint(std::ldexp(double{value}, 6 - exponent));
    bits.Append(static_cast<uint8_t>(static_cast<int>(std::clamp(rounded, -127.0, 127.0))), 8);
  }
}

void DecodeInt8(Bits& bits, std::span<float> x) {
  const int scale = static_cast<int>(bits.Take(8));
  for (float& value : x) {
    value = 0;
    if (scale == 0) continue;
    const auto q = static_cast<int8_t>(bits.Take(8));
    value = static_cast<float>(std::ldexp(static_cast<double>(q), scale - 133));
  }
}

// ---- E3M0

// The exponent of the power of two, from 2^-126 to 2^127, that is nearest to the magnitude;
// midpoints are rounded up. Below the half of 2^-126, zero is nearer: kNearestIsZero.
constexpr int kNearestIsZero = -127;
int NearestExponent(float magnitude) {
  constexpr float kSmallest = std::numeric_limits<float>::min();
  if (magnitude < kSmallest / 2) return kNearestIsZero;
  if (magnitude < kSmallest) return -126;
  const int exponent = std::ilogb(magnitude);
  const bool up = double{magnitude} >= 1.5 * std::ldexp(1.0, exponent);
  return std::min(exponent + (up ? 1 : 0), 127);
}

void EncodeE3m0(Values x, Bits& bits) {
  const int largest = NearestExponent(MaxMagnitude(x));
  bits.Append(largest + 127, 8);
  if (largest == kNearestIsZero) return;
  for (const float value : x) {
    const int exponent = NearestExponent(std::abs(value));
    const int code = exponent == kNearestIsZero ? 0 : std::max(0, exponent - largest + 7);
    bits.Append(code, 3);
    bits.Append(code != 0 && std::signbit(value) ? 1 : 0, 1);
  }
  bits.Pad();
}

void DecodeE3m0(Bits& bits, std::span<float> x) {
  const int scale = static_cast<int>(bits.Take(8));
  for (float& value : x) {
    value = 0;
    if (scale == 0) continue;
    const int code = static_cast<int>(bits.Take(3));
    const bool negative = bits.Take(1) != 0;
    if (code == 0) continue;
    value = std::ldexp(negative ? -1.0F : 1.0F, scale - 127 - 7 + code);
  }
  bits.Pad();
}

// ---- 2 bits, statistical

class Lanes {
 public:
  void Add(size_t index, double value) { lanes_[index % 8] += value; }
  double Sum() const {
    double sum = 0;
    for (const double lane : lanes_) sum += lane;
    return sum;
  }

 private:
  std::array<double, 8> lanes_ = {};
};

void EncodeStat2(Values x, Bits& bits) {
  const auto n = static_cast<double>(x.size());
  Lanes values;
  for (size_t i = 0; i < x.size(); ++i) values.Add(i, x[i]);
  const double mean = values.Sum() / n;
  Lanes squares;
  for (size_t i = 0; i < x.size(); ++i) squares.Add(i, (x[i] - mean) * (x[i] - mean));
  const double step = 1.5 * std::sqrt(squares.Sum() / n);
  const auto code_of = [&](float value) {
    return (value >= static_cast<float>(mean - step) ? 1 : 0) +
           (value >= static_cast<float>(mean) ? 1 : 0) +
           (value >= static_cast<float>(mean + step) ? 1 : 0);
  };
  bool zero = true;
  for (int code = 0; code < 4; ++code) {
    Lanes sum;
    int count = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      if (code_of(x[i]) != code) continue;
      sum.Add(i, x[i]);
      ++count;
    }
    const uint32_t level = count == 0 ? 0 : ToLevel(sum.Sum() / count);
    zero = zero && level == 0;
    bits.Append(level, 16);
  }
  if (zero) return;
  for (const float value : x) bits.Append(code_of(value), 2);
  bits.Pad();
}

void DecodeStat2(Bits& bits, std::span<float> x) {
  std::array<float, 4> levels;
  for (float& level : levels) level = FromBf16(bits.Take(16));
  const bool zero = levels == std::array<float, 4>{};
  for (float& value : x) value = zero ? 0 : levels.at(bits.Take(2));
  bits.Pad();
}

// ---- Top-k

int64_t KeptOf(const Codec& codec, int64_t size) {
  return (size * codec.keep + kCodecBlock - 1) / kCodecBlock;
}

// The smallest b with 2^b > ln 2 * kCodecBlock / keep / 2.
int RiceBitsOf(const Codec& codec) {
  int bits = 0;
  while ((int64_t{2000} << bits) <= kCodecBlock * 693 / codec.keep) ++bits;
  return bits;
}

void EncodeTopK(const Codec& codec, Values x, Bits& bits) {
  std::vector<size_t> kept;
  for (size_t i = 0; i < x.size(); ++i) {
    if (x[i] != 0) kept.push_back(i);
  }
  std::stable_sort(kept.begin(), kept.end(),
                   [&](size_t a, size_t b) { return std::abs(x[a]) > std::abs(x[b]); });
  const auto most = static_cast<size_t>(KeptOf(codec, std::ssize(x)));
  kept.resize(std::min(kept.size(), most));
  std::sort(kept.begin(), kept.end());

  double sum = 0;
  for (const size_t i : kept) sum += std::abs(x[i]);
  double threshold = sum / static_cast<double>(kept.size());
  std::array<uint32_t, 2> levels = {};
  for (int step = 0; !kept.empty(); ++step) {
    std::array<double, 2> means = {};
    std::array<int, 2> counts = {};
    for (const size_t i : kept) {
      const int high = std::abs(x[i]) >= threshold ? 1 : 0;
      means.at(high) += std::abs(x[i]);
      ++counts.at(high);
    }
    for (int level = 0; level < 2; ++level) {
      if (counts.at(level) > 0) means.at(level) /= counts.at(level);
      levels.at(level) = ToLevel(means.at(level));
    }
    if (counts[0] == 0 || step == 4) break;
    threshold = (means[0] + means[1]) / 2;
  }
  const bool zero = levels == std::array<uint32_t, 2>{};
  const bool fewer = !zero && kept.size() < most;
  bits.Append(levels[0], 15);
  bits.Append(fewer ? 1 : 0, 1);
  bits.Append(levels[1], 16);
  if (zero) return;
  if (fewer) bits.Append(kept.size(), 16);
  size_t next = 0;
  for (const size_t i : kept) {
    const size_t distance = i - next;
    for (size_t ones = distance >> RiceBitsOf(codec); ones > 0; --ones) bits.Append(1, 1);
    bits.Append(0, 1);
    bits.Append(distance, RiceBitsOf(codec));
    bits.Append(std::signbit(x[i]) ? 1 : 0, 1);
    bits.Append(std::abs(x[i]) >= threshold ? 1 : 0, 1);
    next = i + 1;
  }
  bits.Pad();
}

void DecodeTopK(const Codec& codec, Bits& bits, std::span<float> x) {
  std::fill(x.begin(), x.end(), 0.0F);
  std::array<float, 2> levels;
  levels[0] = FromBf16(bits.Take(15));
  const bool fewer = bits.Take(1) != 0;
  levels[1] = FromBf16(bits.Take(16));
  if (levels == std::array<float, 2>{}) return;
  const int64_t count = fewer ? bits.Take(16) : KeptOf(codec, std::ssize(x));
  size_t next = 0;
  for (int64_t k = 0; k < count; ++k) {
    size_t ones = 0;
    while (bits.Take(1) != 0) ++ones;
    next += (ones << RiceBitsOf(codec)) + bits.Take(RiceBitsOf(codec));
    const bool negative = bits.Take(1) != 0;
    const float level = levels.at(bits.Take(1));
    // No zero has a sign.
    x[next++] = negative && level != 0 ? -level : level;
  }
  bits.Pad();
}

// ---- Runs

void EncodeBlock(const Codec& codec, Values x, Bits& bits) {
  switch (codec.kind) {
    case CodecKind::kFp32:
      for (const float value : x) bits.Append(std::bit_cast<uint32_t>(value), 32);
      return;
    case CodecKind::kBf16:
      for (const float value : x) bits.Append(ToBf16(value), 16);
      return;
    case CodecKind::kInt8:
      return EncodeInt8(x, bits);
    case CodecKind::kE3m0:
      return EncodeE3m0(x, bits);
    case CodecKind::kStat2:
      return EncodeStat2(x, bits);
    case CodecKind::kTopK:
      return EncodeTopK(codec, x, bits);
  }
}

void DecodeBlock(const Codec& codec, Bits& bits, std::span<float> x) {
  switch (codec.kind) {
    case CodecKind::kFp32:
      for (float& value : x) value = std::bit_cast<float>(bits.Take(32));
      return;
    case CodecKind::kBf16:
      for (float& value : x) value = FromBf16(bits.Take(16));
      return;
    case CodecKind::kInt8:
      return DecodeInt8(bits, x);
    case CodecKind::kE3m0:
      return DecodeE3m0(bits, x);
    case CodecKind::kStat2:
      return DecodeStat2(bits, x);
    case CodecKind::kTopK:
      return DecodeTopK(codec, bits, x);
  }
}

}  // namespace

std::string ReferenceEncode(const Codec& codec, std::span<const float> values) {
  const size_t block = BlockOf(codec.kind);
  Bits bits;
  for (size_t at = 0; at < values.size(); at += block) {
    EncodeBlock(codec, values.subspan(at, std::min(block, values.size() - at)), bits);
  }
  return bits.Bytes();
}

std::vector<float> ReferenceDecode(const Codec& codec, absl::string_view coded, int64_t size) {
  Bits bits(coded);
  std::vector<float> values(size);
  const std::span<float> all = values;
  const size_t block = BlockOf(codec.kind);
  for (size_t at = 0; at < all.size(); at += block) {
    DecodeBlock(codec, bits, all.subspan(at, std::min(block, all.size() - at)));
  }
  return values;
}

}  // namespace cadre
