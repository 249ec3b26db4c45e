// Sums of every type and width of vector, against plain loops, and those against arithmetic.
#include "worker/comm/reduce.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
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

// Random bits: infinities, NaNs and denormals among them; or numbers near one another, whose sums
// cancel and tie.
std::vector<std::byte> RandomElements(std::mt19937_64& dice, DType type, size_t elements) {
  std::vector<std::byte> bytes(elements * SizeOf(type));
  const bool near = dice() % 2 == 0;
  for (size_t at = 0; at < bytes.size(); at += SizeOf(type)) {
    uint64_t bits = dice();
    if (near) {
      // A sign, an exponent of a few, a fraction.
      const int drop = static_cast<int>(SizeOf(type)) * 8;
      const uint64_t one = type == DType::kFloat16    ? 0x3c00
                           : type == DType::kBFloat16 ? 0x3f80
                           : type == DType::kFloat32  ? 0x3f800000
                                                      : 0x3ff0000000000000;
      const uint64_t sign = bits >> 63 << (drop - 1);
      bits = (one + (bits & (std::bit_ceil(one >> 3) - 1))) | sign;
    }
    if (dice() % 8 == 0) bits = 0;
    std::memcpy(bytes.data() + at, &bits, SizeOf(type));
  }
  return bytes;
}

TEST(ReduceTest, AllWidthsEqualReference) {
  std::mt19937_64 dice(1);
  for (const DType type : kTypes) {
    const size_t element = SizeOf(type);
    for (const VectorWidth width : Widths()) {
      for (int round = 0; round < 400; ++round) {
        const size_t elements = dice() % 200;
        const auto values = RandomElements(dice, type, elements + 1);
        const auto sum = RandomElements(dice, type, elements + 1);
        // One element on: aligned to the element only.
        const size_t shift = dice() % 2 * element;
        auto expected = sum;
        auto got = sum;
        const size_t bytes = elements * element;
        ReferenceSumOf(type).add(expected.data() + shift, values.data() + shift, bytes);
        SumOf(type, width).add(got.data() + shift, values.data() + shift, bytes);
        for (size_t at = 0; at < sum.size(); at += element) {
          if (IsNan(type, &expected[at]) && IsNan(type, &got[at])) continue;
          ASSERT_EQ(std::memcmp(&expected[at], &got[at], element), 0)
              << DTypeName(type) << " at " << at / element << " of " << elements << ", width "
              << static_cast<int>(width);
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

// Adding zero shows the conversions: every value comes back.
TEST(ReduceTest, SixteenBitPlusZero) {
  for (const DType type : {DType::kBFloat16, DType::kFloat16}) {
    for (const VectorWidth width : Widths()) {
      std::vector<uint16_t> all(1 << 16);
      for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
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

// The nearest of the two neighbours of an exact sum, found without bit tricks.
TEST(ReduceTest, SixteenBitRoundsToNearest) {
  const auto value16 = [](uint16_t bits) {
    const int exponent = bits >> 10 & 0x1f;
    const double fraction = bits & 0x3ff;
    const double size =
        exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
    return bits & 0x8000 ? -size : size;
  };
  const auto value_b16 = [](uint16_t bits) {
    return static_cast<double>(std::bit_cast<float>(static_cast<uint32_t>(bits) << 16));
  };
  std::mt19937_64 dice(2);
  for (int round = 0; round < 200'000; ++round) {
    const auto a = static_cast<uint16_t>(dice());
    // Near in size, so that both matter.
    const auto b = static_cast<uint16_t>(a + (dice() % 8192) - 4096 + (dice() % 2) * 0x8000);
    for (const DType type : {DType::kBFloat16, DType::kFloat16}) {
      const auto value = [&](uint16_t bits) {
        return type == DType::kFloat16 ? value16(bits) : value_b16(bits);
      };
      const uint16_t top = type == DType::kFloat16 ? 0x7c00 : 0x7f80;
      if ((a & 0x7fff) >= top || (b & 0x7fff) >= top) continue;
      // Exact in double, and in the float that the sum is rounded to first, but for sums whose
      // addends are far apart in bfloat16, where float rounds first by definition.
      const double exact = static_cast<double>(static_cast<float>(value(a) + value(b)));
      const uint16_t sum = AddOne(type, a, b);
      if ((sum & 0x7fff) >= top) continue;
      const double error = std::abs(value(sum) - exact);
      for (const int step : {-1, 1}) {
        const auto other = static_cast<uint16_t>(sum + step);
        if ((other & 0x7fff) >= top || (other ^ sum) & 0x8000) continue;
        const double error_of_other = std::abs(value(other) - exact);
        ASSERT_LE(error, error_of_other) << a << " + " << b;
        if (error < error_of_other) continue;
        ASSERT_EQ(sum & 1, 0) << a << " + " << b << ": a tie went to odd";
      }
    }
  }
}

TEST(ReduceTest, SixteenBitLimits) {
  // float16: 65,504 + 16 is halfway to what is not there any more; 65,504 + 8 is not.
  EXPECT_EQ(AddOne(DType::kFloat16, 0x7bff, 0x4c00), 0x7c00);
  EXPECT_EQ(AddOne(DType::kFloat16, 0x7bff, 0x4800), 0x7bff);
  // The smallest denormal doubled; the largest denormal and the smallest make a normal number.
  EXPECT_EQ(AddOne(DType::kFloat16, 0x0001, 0x0001), 0x0002);
  EXPECT_EQ(AddOne(DType::kFloat16, 0x03ff, 0x0001), 0x0400);
  // Infinities: one stays, two of unlike signs are no number.
  EXPECT_EQ(AddOne(DType::kFloat16, 0x7c00, 0x3c00), 0x7c00);
  const uint16_t none = AddOne(DType::kFloat16, 0x7c00, 0xfc00);
  EXPECT_TRUE(IsNan(DType::kFloat16, reinterpret_cast<const std::byte*>(&none)));
  // bfloat16: 256 + 1 ties to even, down; 258 + 1 ties to even, up.
  EXPECT_EQ(AddOne(DType::kBFloat16, 0x4380, 0x3f80), 0x4380);
  EXPECT_EQ(AddOne(DType::kBFloat16, 0x4381, 0x3f80), 0x4382);
  // The largest doubled; denormals.
  EXPECT_EQ(AddOne(DType::kBFloat16, 0x7f7f, 0x7f7f), 0x7f80);
  EXPECT_EQ(AddOne(DType::kBFloat16, 0x0001, 0x0001), 0x0002);
  // A NaN whose fraction is all below the cut stays a NaN.
  const uint16_t nan = AddOne(DType::kBFloat16, 0x7f81, 0x3f80);
  EXPECT_TRUE(IsNan(DType::kBFloat16, reinterpret_cast<const std::byte*>(&nan)));
}

TEST(ReduceDeathTest, BytesHaveNoSum) { EXPECT_DEATH(SumOf(DType::kBytes), "not added"); }

}  // namespace
}  // namespace cadre
