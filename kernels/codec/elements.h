// What the implementations of the codes for vectors (codec.cc) and for GPUs (kernels/cuda/codec.cu)
// share: numbers of the formats, and operations on the bits of one float. codec.cc describes the
// codes.
//
// Thread-safe (pure functions, which also run in CUDA kernels).
#pragma once

#include <bit>
#include <cstdint>

namespace cadre {

// The longest block of all codecs, and a multiple of the others.
inline constexpr int64_t kCodecBlock = 4096;

}  // namespace cadre

namespace cadre::codes {

// Values that share a scale.
inline constexpr int64_t kScaleBlock = 256;
inline constexpr uint32_t kMagnitude = 0x7FFFFFFF;
inline constexpr uint32_t kMantissaBits = 23;
// Biased exponent of the largest finite float.
inline constexpr uint32_t kMaxExponent = 254;
// Sums of stat2 have so many lanes.
inline constexpr int kLanes = 8;

constexpr bool IsFinite(uint32_t magnitude) { return magnitude >> kMantissaBits <= kMaxExponent; }

// ---- bf16

inline constexpr uint16_t kNegativeZeroBf16 = 0x8000;

constexpr uint16_t ToBf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
  // The largest values would become infinite.
  return (rounded & 0x7FFF) >= 0x7F80 ? static_cast<uint16_t>((bits >> 16 & 0x8000) | 0x7F7F)
                                      : static_cast<uint16_t>(rounded);
}

constexpr float FromBf16(uint16_t value) { return std::bit_cast<float>(uint32_t{value} << 16); }

// ---- int8

inline constexpr uint32_t kMinInt8Scale = 7;

// 2^(exponent - 127). Requires: 1 <= exponent <= kMaxExponent.
constexpr float PowerOfTwo(uint32_t exponent) {
  return std::bit_cast<float>(exponent << kMantissaBits);
}

// How a block of int8 is rounded.
struct Int8Scale {
  // 0: all values are rounded to zero, and nothing follows.
  uint32_t exponent = 0;
  float factor = 0;
  // Values of this magnitude and above would be rounded to 128.
  float limit = 0;
  // Some value is that large, and there is no next scale.
  bool clamped = false;
};

// `max`: the largest magnitude of the block.
constexpr Int8Scale Int8ScaleOf(uint32_t max) {
  // With the smallest scale, 2^-127 is rounded to the even 0.
  constexpr uint32_t kRoundedToZero = 1U << (kMantissaBits - 1);
  if (max <= kRoundedToZero) return {};
  const uint32_t exponent = max >> kMantissaBits;
  Int8Scale scale;
  scale.exponent = exponent < kMinInt8Scale ? kMinInt8Scale : exponent;
  // 127.5 2^(e - 133): ties are rounded to the even 128.
  scale.limit = 127.5F * PowerOfTwo(scale.exponent - 6);
  const bool exceeds = std::bit_cast<float>(max) >= scale.limit;
  scale.clamped = exceeds && scale.exponent == kMaxExponent;
  if (exceeds && !scale.clamped) ++scale.exponent;
  scale.factor = PowerOfTwo(kMaxExponent + 6 - scale.exponent);
  return scale;
}

// The integer nearest to value * factor, ties to even. Requires: its magnitude is at most 128.
constexpr int32_t RoundInt8(float value, float factor) {
  // Adding and subtracting it rounds to the nearest integer.
  constexpr float kRound = 0x1.8p23F;
  return static_cast<int32_t>((value * factor + kRound) - kRound);
}

// ---- E3M0

inline constexpr int32_t kLevels = 7;

// The biased exponent of the power of two that is nearest to the magnitude; 0: zero is nearest.
constexpr uint32_t NearestPower(uint32_t magnitude) {
  const uint32_t power = (magnitude + (1U << (kMantissaBits - 1))) >> kMantissaBits;
  return power < kMaxExponent ? power : kMaxExponent;
}

// The code of a value in a block whose largest power of two is 2^(e - 127).
constexpr uint8_t E3m0CodeOf(uint32_t bits, int32_t e) {
  constexpr uint32_t kHalf = 1U << (kMantissaBits - 1);
  const auto power = static_cast<int32_t>(((bits & kMagnitude) + kHalf) >> kMantissaBits);
  const int32_t above = power - e + kLevels;
  int32_t code = above < kLevels ? above : kLevels;
  code = power == 0 || code < 0 ? 0 : code;
  return static_cast<uint8_t>(code == 0 ? 0 : code | static_cast<int32_t>(bits >> 31 << 3));
}

constexpr float E3m0ValueOf(int32_t code, int32_t e) {
  const int32_t magnitude = (e - kLevels + (code & 7)) << kMantissaBits;
  const auto bits = static_cast<uint32_t>((code & 7) == 0 ? 0 : magnitude);
  return std::bit_cast<float>(bits | static_cast<uint32_t>(code >> 3) << 31);
}

// ---- Top-k

// In the first magnitude: the number of values follows.
inline constexpr uint16_t kCountFollows = 0x8000;
// Steps that move the threshold between the two magnitudes.
inline constexpr int kLevelSteps = 4;

// The number of values that are kept of `size`, if as many are not 0.
constexpr uint32_t Kept(uint32_t keep, int64_t size) {
  return static_cast<uint32_t>((size * keep + kCodecBlock - 1) / kCodecBlock);
}

// The best parameter for geometrically distributed distances is about log2(ln 2 * their mean).
constexpr uint32_t RiceBits(uint32_t keep) {
  const uint64_t mean = kCodecBlock * 693 / keep;
  uint32_t bits = 0;
  while (uint64_t{2000} << bits <= mean) ++bits;
  return bits;
}

}  // namespace cadre::codes
