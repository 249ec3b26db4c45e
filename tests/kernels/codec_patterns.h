// All codecs, and values of all kinds, for tests that compare implementations of the codecs.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <ostream>
#include <vector>

#include "base/random.h"
#include "kernels/codec/codec.h"

namespace cadre::codec_patterns {

using Floats = std::vector<float>;

inline constexpr float kMax = std::numeric_limits<float>::max();
inline constexpr float kMin = std::numeric_limits<float>::min();
inline constexpr float kDenormal = std::numeric_limits<float>::denorm_min();

struct NamedCodec {
  const char* name;
  Codec codec;
};
inline void PrintTo(const NamedCodec& codec, std::ostream* out) { *out << codec.name; }

inline std::vector<NamedCodec> AllCodecs() {
  return {{"Fp32", {CodecKind::kFp32}},        {"Bf16", {CodecKind::kBf16}},
          {"Int8", {CodecKind::kInt8}},        {"E3m0", {CodecKind::kE3m0}},
          {"Stat2", {CodecKind::kStat2}},      {"Top1", {CodecKind::kTopK, 1}},
          {"Top64", {CodecKind::kTopK, 64}},   {"Top1000", {CodecKind::kTopK, 1000}},
          {"TopAll", {CodecKind::kTopK, 4096}}};
}

inline float Normal(uint64_t seed, uint64_t i) {
  return RandomNormal(seed, RandomStream::kTest, 0, i);
}
inline uint64_t DrawBelow(uint64_t seed, uint64_t i, uint64_t below) {
  return RandomBits(seed, RandomStream::kTest, 1, i) % below;
}
// Any finite float, with equal probability.
inline float AnyFloat(uint64_t seed, uint64_t i) {
  const auto bits = static_cast<uint32_t>(RandomBits(seed, RandomStream::kTest, 2, i));
  const auto value = std::bit_cast<float>(bits);
  return std::isfinite(value) ? value : std::bit_cast<float>(bits & 0xBFFFFFFFU);
}

struct Pattern {
  const char* name;
  float (*value)(uint64_t seed, uint64_t i);
};
inline constexpr Pattern kPatterns[] = {
    {"normal", Normal},
    {"heavy tails", [](uint64_t s, uint64_t i) { return std::pow(Normal(s, i), 5.0F); }},
    {"shifted", [](uint64_t s, uint64_t i) { return 100 + Normal(s, i); }},
    {"zeros", [](uint64_t, uint64_t) { return 0.0F; }},
    {"zeros of both signs",
     [](uint64_t s, uint64_t i) { return DrawBelow(s, i, 2) ? 0.0F : -0.0F; }},
    {"equal", [](uint64_t, uint64_t) { return -0.3F; }},
    {"few magnitudes",
     [](uint64_t s, uint64_t i) { return static_cast<float>(DrawBelow(s, i, 5)) - 2.0F; }},
    {"mostly zeros",
     [](uint64_t s, uint64_t i) { return DrawBelow(s, i, 90) ? 0.0F : Normal(s, i); }},
    {"one outlier", [](uint64_t s, uint64_t i) { return i == 3 ? 1e30F : Normal(s, i); }},
    {"denormal",
     [](uint64_t s, uint64_t i) {
       return kDenormal * static_cast<float>(DrawBelow(s, i, 1 << 23));
     }},
    {"smallest",
     [](uint64_t s, uint64_t i) {
       return (DrawBelow(s, 7 * i, 2) ? kDenormal : -kDenormal) *
              static_cast<float>(DrawBelow(s, i, 3));
     }},
    {"at the smallest normal float", [](uint64_t s, uint64_t i) { return kMin * Normal(s, i); }},
    {"huge",
     [](uint64_t s, uint64_t i) { return kMax * std::clamp(Normal(s, i) / 2, -1.0F, 1.0F); }},
    {"largest",
     [](uint64_t s, uint64_t i) {
       const auto bits = static_cast<uint32_t>(0x7F7F0000U + 0x2000 * (i % 8));
       return DrawBelow(s, i, 2) ? kMax : -std::bit_cast<float>(bits);
     }},
    {"below the largest power of two",
     [](uint64_t s, uint64_t i) {
       return std::bit_cast<float>(0x7EFFFFFFU - static_cast<uint32_t>(DrawBelow(s, i, 0x30000)));
     }},
    {"any floats", AnyFloat},
    // Exactly halfway between integers, powers of two and bf16 values.
    {"midpoints",
     [](uint64_t s, uint64_t i) {
       constexpr float kHalves[] = {1.5F, 0.75F, 126.5F, 127.5F, 0.5F, 1.00390625F, 1.01171875F};
       return kHalves[DrawBelow(s, i, 7)] * (DrawBelow(s, i + 99, 2) ? 1.0F : -1.0F);
     }},
    {"one kind after another", [](uint64_t s, uint64_t i) {
       switch (i / 200 % 5) {
         case 0:
           return Normal(s, i);
         case 1:
           return 0.0F;
         case 2:
           return 1e-41F * Normal(s, i);
         case 3:
           return 1e37F * Normal(s, i);
         default:
           return 7.0F;
       }
     }}};

inline Floats Make(const Pattern& pattern, uint64_t seed, size_t n) {
  Floats values(n);
  for (size_t i = 0; i < n; ++i) values[i] = pattern.value(seed, i);
  return values;
}

inline std::vector<uint32_t> BitsOf(const Floats& values) {
  std::vector<uint32_t> bits;
  for (const float value : values) bits.push_back(std::bit_cast<uint32_t>(value));
  return bits;
}

}  // namespace cadre::codec_patterns
