// The codecs compute the bits of the reference (kernels/codec/reference.h), and the same bits on
// every machine.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "base/crc32c.h"
#include "base/random.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/reference.h"

namespace cadre {
namespace {

using Floats = std::vector<float>;

constexpr float kMax = std::numeric_limits<float>::max();
constexpr float kMin = std::numeric_limits<float>::min();
constexpr float kDenormal = std::numeric_limits<float>::denorm_min();

struct NamedCodec {
  const char* name;
  Codec codec;
};
void PrintTo(const NamedCodec& codec, std::ostream* out) { *out << codec.name; }

std::vector<NamedCodec> AllCodecs() {
  return {{"Fp32", {CodecKind::kFp32}},        {"Bf16", {CodecKind::kBf16}},
          {"Int8", {CodecKind::kInt8}},        {"E3m0", {CodecKind::kE3m0}},
          {"Stat2", {CodecKind::kStat2}},      {"Top1", {CodecKind::kTopK, 1}},
          {"Top64", {CodecKind::kTopK, 64}},   {"Top1000", {CodecKind::kTopK, 1000}},
          {"TopAll", {CodecKind::kTopK, 4096}}};
}

float Normal(uint64_t seed, uint64_t i) { return RandomNormal(seed, RandomStream::kTest, 0, i); }
uint64_t Draw(uint64_t seed, uint64_t i, uint64_t below) {
  return RandomBits(seed, RandomStream::kTest, 1, i) % below;
}
// Any finite float, with equal probability.
float AnyFloat(uint64_t seed, uint64_t i) {
  const auto bits = static_cast<uint32_t>(RandomBits(seed, RandomStream::kTest, 2, i));
  const auto value = std::bit_cast<float>(bits);
  return std::isfinite(value) ? value : std::bit_cast<float>(bits & 0xBFFFFFFFU);
}

struct Pattern {
  const char* name;
  float (*value)(uint64_t seed, uint64_t i);
};
constexpr Pattern kPatterns[] = {
    {"normal", Normal},
    {"heavy tails", [](uint64_t s, uint64_t i) { return std::pow(Normal(s, i), 5.0F); }},
    {"shifted", [](uint64_t s, uint64_t i) { return 100 + Normal(s, i); }},
    {"zeros", [](uint64_t, uint64_t) { return 0.0F; }},
    {"zeros of both signs", [](uint64_t s, uint64_t i) { return Draw(s, i, 2) ? 0.0F : -0.0F; }},
    {"equal", [](uint64_t, uint64_t) { return -0.3F; }},
    {"few magnitudes",
     [](uint64_t s, uint64_t i) { return static_cast<float>(Draw(s, i, 5)) - 2.0F; }},
    {"mostly zeros", [](uint64_t s, uint64_t i) { return Draw(s, i, 90) ? 0.0F : Normal(s, i); }},
    {"one outlier", [](uint64_t s, uint64_t i) { return i == 3 ? 1e30F : Normal(s, i); }},
    {"denormal",
     [](uint64_t s, uint64_t i) { return kDenormal * static_cast<float>(Draw(s, i, 1 << 23)); }},
    {"smallest",
     [](uint64_t s, uint64_t i) {
       return (Draw(s, 7 * i, 2) ? kDenormal : -kDenormal) * static_cast<float>(Draw(s, i, 3));
     }},
    {"at the smallest normal float", [](uint64_t s, uint64_t i) { return kMin * Normal(s, i); }},
    {"huge",
     [](uint64_t s, uint64_t i) { return kMax * std::clamp(Normal(s, i) / 2, -1.0F, 1.0F); }},
    {"largest",
     [](uint64_t s, uint64_t i) {
       const auto bits = static_cast<uint32_t>(0x7F7F0000U + 0x2000 * (i % 8));
       return Draw(s, i, 2) ? kMax : -std::bit_cast<float>(bits);
     }},
    {"below the largest power of two",
     [](uint64_t s, uint64_t i) {
       return std::bit_cast<float>(0x7EFFFFFFU - static_cast<uint32_t>(Draw(s, i, 0x30000)));
     }},
    {"any floats", AnyFloat},
    // Exactly halfway between integers, powers of two and bf16 values.
    {"midpoints",
     [](uint64_t s, uint64_t i) {
       constexpr float kHalves[] = {1.5F, 0.75F, 126.5F, 127.5F, 0.5F, 1.00390625F, 1.01171875F};
       return kHalves[Draw(s, i, 7)] * (Draw(s, i + 99, 2) ? 1.0F : -1.0F);
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

Floats Make(const Pattern& pattern, uint64_t seed, size_t n) {
  Floats values(n);
  for (size_t i = 0; i < n; ++i) values[i] = pattern.value(seed, i);
  return values;
}

std::vector<uint32_t> BitsOf(const Floats& values) {
  std::vector<uint32_t> bits;
  for (const float value : values) bits.push_back(std::bit_cast<uint32_t>(value));
  return bits;
}

class CodecReferenceTest : public ::testing::TestWithParam<NamedCodec> {
 protected:
  void ExpectEqualToReference(const Floats& values) {
    const Codec codec = GetParam().codec;
    std::string coded;
    ASSERT_TRUE(Encode(codec, values, &coded).ok());
    ASSERT_EQ(coded, ReferenceEncode(codec, values));
    ASSERT_LE(std::ssize(coded), MaxCodedBytes(codec, std::ssize(values)));
    const std::string with_more = coded + "more";
    absl::string_view rest = with_more;
    Floats decoded(values.size(), std::nanf(""));
    const absl::Status status = Decode(codec, &rest, decoded);
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_EQ(rest, "more");
    ASSERT_EQ(BitsOf(decoded), BitsOf(ReferenceDecode(codec, coded, std::ssize(values))));
  }
};

TEST_P(CodecReferenceTest, AllShortSizes) {
  for (const Pattern& pattern : kPatterns) {
    const Floats values = Make(pattern, 1, 600);
    for (size_t n = 0; n <= values.size(); ++n) {
      SCOPED_TRACE(::testing::Message() << pattern.name << ", " << n << " values");
      ASSERT_NO_FATAL_FAILURE(ExpectEqualToReference({values.begin(), values.begin() + n}));
    }
  }
}

TEST_P(CodecReferenceTest, SizesAroundABlock) {
  for (const Pattern& pattern : kPatterns) {
    for (const size_t n : {4090, 4091, 4095, 4096, 4097, 4098, 4103, 4104, 8191, 8192, 12300}) {
      SCOPED_TRACE(::testing::Message() << pattern.name << ", " << n << " values");
      ASSERT_NO_FATAL_FAILURE(ExpectEqualToReference(Make(pattern, n, n)));
    }
  }
}

// Tensors are slices of larger arrays, so runs begin at any multiple of 4 bytes.
TEST_P(CodecReferenceTest, ValuesNeedNoAlignment) {
  const Codec codec = GetParam().codec;
  const Floats values = Make(kPatterns[0], 1, 5000);
  for (size_t offset = 0; offset < 17; ++offset) {
    const auto part = std::span(values).subspan(offset, 4500);
    std::string coded = "x";
    ASSERT_TRUE(Encode(codec, part, &coded).ok());
    ASSERT_EQ(coded.substr(1), ReferenceEncode(codec, part));
    absl::string_view rest = coded;
    rest.remove_prefix(1);
    Floats decoded(values.size());
    ASSERT_TRUE(Decode(codec, &rest, std::span(decoded).subspan(offset, 4500)).ok());
    ASSERT_EQ(Floats(decoded.begin() + offset, decoded.begin() + offset + 4500),
              ReferenceDecode(codec, coded.substr(1), 4500));
  }
}

INSTANTIATE_TEST_SUITE_P(Codecs, CodecReferenceTest, ::testing::ValuesIn(AllCodecs()),
                         [](const auto& info) { return info.param.name; });

// A change of these numbers is a change of the format: programs of two versions no longer
// understand each other. The values are the same bits on every machine (base/random.h), and so must
// be their codes.
TEST(CodecFormatTest, BytesAreThoseOfEveryMachine) {
  const Floats values = Make(kPatterns[0], 42, 10000);
  std::vector<std::string> digests;
  for (const NamedCodec& named : AllCodecs()) {
    std::string coded;
    ASSERT_TRUE(Encode(named.codec, values, &coded).ok());
    char digest[32];
    std::snprintf(digest, sizeof(digest), "%s %zu %08x", named.name, coded.size(), Crc32c(coded));
    digests.push_back(digest);
  }
  EXPECT_EQ(digests, std::vector<std::string>(
                         {"Fp32 40000 877f15c2", "Bf16 20000 b2c796cf", "Int8 10040 133f138f",
                          "E3m0 5040 af784098", "Stat2 2524 989696c1", "Top1 18 dd5f0d5b",
                          "Top64 199 e8a5784e", "Top1000 1641 d8d6db43", "TopAll 3762 5596a4d7"}));
}

}  // namespace
}  // namespace cadre
