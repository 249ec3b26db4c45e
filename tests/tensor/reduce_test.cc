// Compares sums of every type and vector width with scalar loops, and scalar loops with exact
// arithmetic.
#include "tensor/reduce.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

namespace cadre {
namespace {

constexpr DType kTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kUInt64,
                            DType::kFloat64};

std::vector<VectorWidth> Widths() {
  std::vector<VectorWidth> widths;
  for (const VectorWidth width : {VectorWidth::kNone, VectorWidth::k256, VectorWidth::k512}) {
    if (width <= WidestVectors()) widths.push_back(width);
  }
  return widths;
}

uint16_t AddOne(DType type, uint16_t a, uint16_t b) {
  ReferenceSumOf(type).add(reinterpret_cast<std::byte*>(&a), reinterpret_cast<std::byte*>(&b),
                           sizeof a);
  return a;
}

bool IsNan(DType type, const std::byte* at) {
  const auto load = [&](auto value) {
    std::memcpy(&value, at, sizeof value);
    return value;
  };
  switch (type) {
    case DType::kFloat32:
      return std::isnan(load(0.0F));
    case DType::kFloat64:
      return std::isnan(load(0.0));
    case DType::kBFloat16:
      return (load(uint16_t{0}) & 0x7fff) > 0x7f80;
    case DType::kFloat16:
      return (load(uint16_t{0}) & 0x7fff) > 0x7c00;
    default:
      return false;
  }
}

// Random bits, which include infinities, NaNs and denormals; or numbers of similar size, whose sums
// cancel and tie.
std::vector<std::byte> RandomElements(std::mt19937_64& random, DType type, size_t elements) {
  std::vector<std::byte> bytes(elements * SizeOf(type));
  const bool near = random() % 2 == 0;
  for (size_t at = 0; at < bytes.size(); at += SizeOf(type)) {
    uint64_t bits = random();
    if (near) {
      // A random sign, one of a few exponents, and a random fraction.
      const int width = SizeOf(type) * 8;
      const uint64_t one = type == DType::kFloat16    ? 0x3c00
                           : type == DType::kBFloat16 ? 0x3f80
                           : type == DType::kFloat32  ? 0x3f800000
                                                      : 0x3ff0000000000000;
      const uint64_t sign = bits >> 63 << (width - 1);
      bits = (one + (bits & (std::bit_ceil(one >> 3) - 1))) | sign;
    }
    if (random() % 8 == 0) bits = 0;
    std::memcpy(bytes.data() + at, &bits, SizeOf(type));
  }
  return bytes;
}

TEST(ReduceTest, AllWidthsEqualReference) {
  std::mt19937_64 random(1);
  for (const DType type : kTypes) {
    const size_t element = SizeOf(type);
    for (const VectorWidth width : Widths()) {
      SCOPED_TRACE(testing::Message() << "width " << 128 * (1 << static_cast<int>(width)));
      for (int round = 0; round < 400; ++round) {
        const size_t elements = random() % 200;
        const auto values = RandomElements(random, type, elements + 1);
        const auto sum = RandomElements(random, type, elements + 1);
        // Shifted by an element: aligned to the element only.
        const size_t shift = random() % 2 * element;
        auto expected = sum;
        auto got = sum;
        const size_t bytes = elements * element;
        ReferenceSumOf(type).add(expected.data() + shift, values.data() + shift, bytes);
        SumOf(type, width).add(got.data() + shift, values.data() + shift, bytes);
        for (size_t at = 0; at < sum.size(); at += element) {
          if (IsNan(type, &expected[at]) && IsNan(type, &got[at])) continue;
          ASSERT_EQ(std::memcmp(&expected[at], &got[at], element), 0)
              << DTypeName(type) << " at " << at / element << " of " << elements;
        }
      }
    }
  }
}

TEST(ReduceTest, DefaultWidth) {
  for (const DType type : kTypes) {
    EXPECT_EQ(SumOf(type).add, SumOf(type, WidestVectors()).add);
    EXPECT_EQ(SumOf(type).element, SizeOf(type));
    EXPECT_EQ(ReferenceSumOf(type).element, SizeOf(type));
  }
}

// Adding zero tests the conversions: every value must remain.
TEST(ReduceTest, SixteenBitPlusZero) {
  for (const DType type : {DType::kBFloat16, DType::kFloat16}) {
    for (const VectorWidth width : Widths()) {
      std::vector<uint16_t> all(1 << 16);
      std::iota(all.begin(), all.end(), 0);
      const std::vector<uint16_t> before = all;
      const std::vector<uint16_t> zeros(all.size(), 0);
      SumOf(type, width)
          .add(reinterpret_cast<std::byte*>(all.data()),
               reinterpret_cast<const std::byte*>(zeros.data()), all.size() * 2);
      for (size_t i = 0; i < all.size(); ++i) {
        const auto* bytes = reinterpret_cast<const std::byte*>(&before[i]);
        if (IsNan(type, bytes)) {
          EXPECT_TRUE(IsNan(type, reinterpret_cast<const std::byte*>(&all[i]))) << i;
        } else if (before[i] == 0x8000) {
          EXPECT_EQ(all[i], 0);  // -0 + 0
        } else {
          EXPECT_EQ(all[i], before[i]);
        }
      }
    }
  }
}

// The result must be closer to the exact sum than its two neighbors.
TEST(ReduceTest, SixteenBitRoundsToNearest) {
  const auto value16 = [](uint16_t bits) {
    const int exponent = bits >> 10 & 0x1f;
    const double fraction = bits & 0x3ff;
    const double size =
        exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
    return bits & 0x8000 ? -size : size;
  };
  const auto value_b16 = [](uint16_t bits) {
    return double{std::bit_cast<float>(uint32_t{bits} << 16)};
  };
  std::mt19937_64 random(2);
  for (int round = 0; round < 200'000; ++round) {
    const uint16_t a = random();
    // Both have a similar size, so that both matter.
    const uint16_t b = a + (random() % 8192) - 4096 + (random() % 2) * 0x8000;
    for (const DType type : {DType::kBFloat16, DType::kFloat16}) {
      const auto value = [&](uint16_t bits) {
        return type == DType::kFloat16 ? value16(bits) : value_b16(bits);
      };
      const uint16_t top = type == DType::kFloat16 ? 0x7c00 : 0x7f80;
      if ((a & 0x7fff) >= top || (b & 0x7fff) >= top) continue;
      // By definition, sums are rounded to float first.
      const float exact = value(a) + value(b);
      const uint16_t sum = AddOne(type, a, b);
      if ((sum & 0x7fff) >= top) continue;
      const double error = std::abs(value(sum) - exact);
      for (const int step : {-1, 1}) {
        const uint16_t other = sum + step;
        if ((other & 0x7fff) >= top || (other ^ sum) & 0x8000) continue;
        const double error_of_other = std::abs(value(other) - exact);
        ASSERT_LE(error, error_of_other) << a << " + " << b;
        if (error < error_of_other) continue;
        ASSERT_EQ(sum & 1, 0) << a << " + " << b << ": a tie was rounded to odd";
      }
    }
  }
}

TEST(ReduceTest, SixteenBitLimits) {
  // float16: 65,504 + 16 is halfway to the first number out of range; 65,504 + 8 is less.
  EXPECT_EQ(AddOne(DType::kFloat16, 0x7bff, 0x4c00), 0x7c00);
  EXPECT_EQ(AddOne(DType::kFloat16, 0x7bff, 0x4800), 0x7bff);
  // The smallest denormal doubled; the largest denormal and the smallest make a normal number.
  EXPECT_EQ(AddOne(DType::kFloat16, 0x0001, 0x0001), 0x0002);
  EXPECT_EQ(AddOne(DType::kFloat16, 0x03ff, 0x0001), 0x0400);
  // Infinity plus a number; infinities of opposite signs.
  EXPECT_EQ(AddOne(DType::kFloat16, 0x7c00, 0x3c00), 0x7c00);
  const uint16_t none = AddOne(DType::kFloat16, 0x7c00, 0xfc00);
  EXPECT_TRUE(IsNan(DType::kFloat16, reinterpret_cast<const std::byte*>(&none)));
  // bfloat16: 256 + 1 ties to even, down; 258 + 1 ties to even, up.
  EXPECT_EQ(AddOne(DType::kBFloat16, 0x4380, 0x3f80), 0x4380);
  EXPECT_EQ(AddOne(DType::kBFloat16, 0x4381, 0x3f80), 0x4382);
  // The largest doubled; denormals.
  EXPECT_EQ(AddOne(DType::kBFloat16, 0x7f7f, 0x7f7f), 0x7f80);
  EXPECT_EQ(AddOne(DType::kBFloat16, 0x0001, 0x0001), 0x0002);
  // A NaN whose fraction would be truncated remains a NaN.
  const uint16_t nan = AddOne(DType::kBFloat16, 0x7f81, 0x3f80);
  EXPECT_TRUE(IsNan(DType::kBFloat16, reinterpret_cast<const std::byte*>(&nan)));
}

TEST(ReduceDeathTest, BytesHaveNoSum) { EXPECT_DEATH(SumOf(DType::kBytes), "cannot be added"); }

}  // namespace
}  // namespace cadre
