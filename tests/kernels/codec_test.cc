#include "kernels/codec/codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "kernels/codec/bit_stream.h"

namespace cadre {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr Codec kFp32{CodecKind::kFp32};
constexpr Codec kBf16{CodecKind::kBf16};
constexpr Codec kInt8{CodecKind::kInt8};
constexpr Codec kE3m0{CodecKind::kE3m0};
constexpr Codec kStat2{CodecKind::kStat2};
constexpr Codec kTop64{CodecKind::kTopK, 64};
constexpr Codec kAll[] = {kFp32, kBf16, kInt8, kE3m0, kStat2, kTop64, {CodecKind::kTopK, 1000}};

std::string Coded(const Codec& codec, const std::vector<float>& values) {
  std::string coded;
  const absl::Status status = Encode(codec, values, &coded);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_LE(std::ssize(coded), MaxCodedBytes(codec, std::ssize(values)));
  return coded;
}

std::vector<float> Decoded(const Codec& codec, absl::string_view coded, size_t size) {
  std::vector<float> values(size, -1);
  const absl::Status status = Decode(codec, &coded, values);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(coded.empty());
  return values;
}

std::vector<float> RoundTrip(const Codec& codec, const std::vector<float>& values) {
  return Decoded(codec, Coded(codec, values), values.size());
}

std::string Rejection(const Codec& codec, std::string bytes, size_t size) {
  absl::string_view coded = bytes;
  std::vector<float> values(size);
  return std::string(Decode(codec, &coded, values).message());
}

// Sum of squared errors over the sum of squares.
double RelativeError(const Codec& codec, const std::vector<float>& values) {
  const std::vector<float> decoded = RoundTrip(codec, values);
  double error = 0;
  double squares = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    error += std::pow(double{values[i]} - double{decoded[i]}, 2);
    squares += std::pow(double{values[i]}, 2);
  }
  return error / squares;
}

struct Distributions {
  std::vector<float> gauss, laplace, student3;
  explicit Distributions(size_t n) {
    std::mt19937_64 random(5);
    std::normal_distribution<double> normal;
    std::exponential_distribution<double> exponential;
    std::student_t_distribution<double> student(3);
    for (size_t i = 0; i < n; ++i) {
      gauss.push_back(static_cast<float>(normal(random)));
      laplace.push_back(
          static_cast<float>(exponential(random) * ((random() & 1) != 0 ? 1.0 : -1.0)));
      student3.push_back(static_cast<float>(student(random)));
    }
  }
};

double BitsPerValue(const Codec& codec, const std::vector<float>& values) {
  return 8.0 * static_cast<double>(Coded(codec, values).size()) /
         static_cast<double>(values.size());
}

TEST(CodecTest, SmallExamples) {
  EXPECT_THAT(RoundTrip(kBf16, {1, -2.5F, 1.00390625F}), ElementsAre(1, -2.5F, 1));
  EXPECT_THAT(RoundTrip(kInt8, {64, -1, 0.4F, 127}), ElementsAre(64, -1, 0, 127));
  EXPECT_EQ(Coded(kInt8, {64, -1}), std::string({static_cast<char>(133), 64, -1}));
  // 1.5 is rounded up; what is below 2^-6 of the largest is zero.
  EXPECT_THAT(RoundTrip(kE3m0, {1, -1.5F, 0.7F, 0.01F, 0, 0.02F}),
              ElementsAre(1, -2, 0.5F, 0, 0, 0));
  EXPECT_THAT(RoundTrip(kStat2, {-8, -1, 1, 8}), ElementsAre(-4.5F, -4.5F, 4.5F, 4.5F));
}

TEST(CodecTest, TopKKeepsTheLargest) {
  std::vector<float> values(4096);
  for (size_t i = 0; i < values.size(); ++i) values[i] = 0.001F * static_cast<float>(i % 7);
  values[5] = -2;
  values[4095] = 4;
  values[100] = 6;
  const std::vector<float> decoded = RoundTrip({CodecKind::kTopK, 3}, values);
  EXPECT_EQ(decoded[5], -2) << "below the mean of 2, 4 and 6";
  EXPECT_EQ(decoded[100], 5) << "the mean of 4 and 6";
  EXPECT_EQ(decoded[4095], 5);
  EXPECT_EQ(std::count(decoded.begin(), decoded.end(), 0.0F), 4093);
}

TEST(CodecTest, ZerosAreExact) {
  for (const Codec& codec : kAll) {
    for (const size_t n : {1U, 255U, 256U, 4096U, 5000U}) {
      std::vector<float> zeros(n);
      zeros[n / 2] = -0.0F;
      if (codec.kind == CodecKind::kFp32 || codec.kind == CodecKind::kBf16) zeros[n / 2] = 0;
      for (const float value : RoundTrip(codec, zeros)) {
        ASSERT_EQ(std::bit_cast<uint32_t>(value), 0U) << static_cast<int>(codec.kind);
      }
    }
  }
  EXPECT_LT(BitsPerValue(kE3m0, std::vector<float>(4096)), 0.04);
}

// Fewer values than are kept differ from zero.
TEST(CodecTest, TopKOfAlmostZeros) {
  std::vector<float> values(4096);
  values[7] = 3;
  values[9] = -3;
  EXPECT_EQ(RoundTrip(kTop64, values), values);
  EXPECT_LE(Coded(kTop64, values).size(), 10U);
}

// Relative squared errors on 2^20 samples of known distributions. Those of E3M0, stat2 and of the
// energy that the largest values have were computed independently of this code.
TEST(CodecTest, ErrorsOfKnownDistributions) {
  const Distributions x(1 << 20);
  const auto near = [](double expected) {
    return ::testing::AllOf(::testing::Gt(0.97 * expected), ::testing::Lt(1.03 * expected));
  };
  EXPECT_THAT(RelativeError(kE3m0, x.gauss), near(0.038));
  EXPECT_THAT(RelativeError(kE3m0, x.laplace), near(0.038));
  EXPECT_THAT(RelativeError(kE3m0, x.student3), near(0.038));
  EXPECT_THAT(RelativeError(kStat2, x.gauss), near(0.163));
  EXPECT_THAT(RelativeError(kStat2, x.laplace), near(0.192));
  // The largest 64 of 4,096 have 12 % of the energy of a Gaussian, 21 % of that of a Laplacian and
  // 40 % of that of Student's distribution, of which two magnitudes lose some.
  EXPECT_THAT(RelativeError(kTop64, x.gauss), near(0.880));
  EXPECT_THAT(RelativeError(kTop64, x.laplace), near(0.786));
  EXPECT_LT(RelativeError(kTop64, x.student3), 0.65);
  EXPECT_THAT(RelativeError({CodecKind::kTopK, 256}, x.gauss), near(0.674));
  EXPECT_THAT(RelativeError({CodecKind::kTopK, 256}, x.laplace), near(0.525));
  // A scale that is a power of two costs up to 4 times the error of the best one.
  EXPECT_LT(RelativeError(kInt8, x.gauss), 1e-4);
  EXPECT_LT(RelativeError(kInt8, x.laplace), 3e-4);
  EXPECT_LT(RelativeError(kInt8, x.student3), 1e-3);
  EXPECT_LT(RelativeError(kBf16, x.gauss), 5e-6);
}

// Two magnitudes of one outlier and many others: the threshold moves to between them.
TEST(CodecTest, TopKSeparatesAnOutlier) {
  std::vector<float> values(4096);
  for (size_t i = 0; i < 60; ++i) values[64 * i] = i % 2 == 0 ? 1.0F : -3.0F;
  values[4095] = -1000;
  std::vector<float> want = values;
  for (float& value : want) value = std::abs(value) == 1 ? 2.0F : value == -3 ? -2.0F : value;
  EXPECT_EQ(RoundTrip(kTop64, values), want);
}

TEST(CodecTest, BitsPerValue) {
  const Distributions x(1 << 18);
  EXPECT_LT(BitsPerValue(kInt8, x.gauss), 8.04);
  EXPECT_LT(BitsPerValue(kE3m0, x.gauss), 4.04);
  EXPECT_LT(BitsPerValue(kStat2, x.gauss), 2.02);
  EXPECT_LT(BitsPerValue(kTop64, x.gauss), 0.158);
  EXPECT_LT(BitsPerValue(kTop64, x.laplace), 0.158);
  EXPECT_LT(BitsPerValue(kTop64, x.student3), 0.158);
  // However the indices lie, and even if they are few.
  const double bound = 8.0 * static_cast<double>(MaxCodedBytes(kTop64, 4096)) / 4096;
  EXPECT_LT(bound, 0.18);
  EXPECT_LT(BitsPerValue({CodecKind::kTopK, 128}, x.gauss), 0.30);
}

// A run has the same code however the tensor is cut at multiples of the block.
TEST(CodecTest, BlocksAreIndependent) {
  const Distributions x(20000);
  for (const Codec& codec : kAll) {
    std::string parts;
    const size_t step = 7 * BlockOf(codec.kind);
    for (size_t at = 0; at < x.laplace.size(); at += step) {
      const size_t end = std::min(x.laplace.size(), at + step);
      parts += Coded(codec, {x.laplace.begin() + at, x.laplace.begin() + end});
    }
    EXPECT_EQ(parts, Coded(codec, x.laplace));
  }
}

TEST(CodecTest, AllSizesAndScales) {
  std::mt19937_64 random(11);
  std::normal_distribution<float> normal;
  for (size_t n = 1; n < 9000; n += n < 600 ? 1 : 331) {
    for (const float scale : {1.0F, 1e-38F, 1e-42F, 1e37F}) {
      std::vector<float> values(n);
      for (float& value : values) value = std::clamp(normal(random), -3.0F, 3.0F) * scale;
      for (const Codec& codec : kAll) {
        for (const float value : RoundTrip(codec, values)) {
          ASSERT_LE(std::abs(value), 8.0 * double{scale}) << "size " << n;
        }
      }
    }
  }
}

TEST(CodecTest, LengthIsFoundWithoutDecoding) {
  std::mt19937_64 random(12);
  std::normal_distribution<float> normal;
  for (const int64_t n : {1, 255, 256, 257, 4095, 4097, 9000}) {
    std::vector<float> values(n);
    for (float& value : values) value = normal(random);
    // Blocks of zeros are shorter.
    std::fill_n(values.begin(), n / 2, 0.0F);
    for (const Codec& codec : kAll) {
      std::string coded = Coded(codec, values);
      const size_t bytes = coded.size();
      const std::optional<size_t> truncated =
          CodedBytes(codec, absl::string_view(coded).substr(0, bytes - 1), n);
      EXPECT_FALSE(truncated.has_value()) << "size " << n;
      coded += "more";
      const std::optional<size_t> found = CodedBytes(codec, coded, n);
      if (codec.kind == CodecKind::kTopK) {
        EXPECT_FALSE(found.has_value());
      } else {
        EXPECT_EQ(found, bytes) << "codec " << static_cast<int>(codec.kind) << ", size " << n;
      }
    }
  }
}

TEST(CodecTest, LargestFloats) {
  constexpr float kMax = std::numeric_limits<float>::max();
  for (const Codec& codec : kAll) {
    for (const float value : RoundTrip(codec, {kMax, -kMax, 0, kMax / 2})) {
      EXPECT_TRUE(std::isfinite(value)) << static_cast<int>(codec.kind);
    }
  }
}

// 127.75 of the second largest scale is rounded to 64 of the largest.
TEST(CodecTest, LargestScaleOfInt8) {
  const float value = 127.75F * 0x1p120F;
  EXPECT_THAT(RoundTrip(kInt8, {value, -value, 0}), ElementsAre(0x1p127F, -0x1p127F, 0));
  constexpr float kMax = std::numeric_limits<float>::max();
  EXPECT_THAT(RoundTrip(kInt8, {kMax, -kMax}), ElementsAre(127 * 0x1p121F, -127 * 0x1p121F));
}

TEST(CodecTest, RefusesValuesThatAreNotFinite) {
  for (const Codec& codec : kAll) {
    for (const float bad : {std::nanf(""), HUGE_VALF, -HUGE_VALF}) {
      std::string coded = "kept";
      std::vector<float> values(300, 1);
      values[257] = bad;
      EXPECT_THAT(std::string(Encode(codec, values, &coded).message()), HasSubstr("value 257"));
      EXPECT_EQ(coded, "kept");
    }
  }
}

TEST(CodecTest, RefusesTruncatedCodes) {
  const Distributions x(5000);
  for (const Codec& codec : kAll) {
    const std::string coded = Coded(codec, x.gauss);
    for (size_t size = 0; size < coded.size(); size += 1 + coded.size() / 97) {
      EXPECT_THAT(Rejection(codec, coded.substr(0, size), x.gauss.size()), HasSubstr("truncated"));
    }
  }
}

TEST(CodecTest, RefusesMalformedCodes) {
  const std::string infinite("\0\0\x80\x7f", 4);
  EXPECT_THAT(Rejection(kFp32, infinite, 1), HasSubstr("not finite"));
  EXPECT_THAT(Rejection(kBf16, "\x80\x7f", 1), HasSubstr("not finite"));
  EXPECT_THAT(Rejection(kInt8, "\xff\x01", 1), HasSubstr("scale overflows"));
  EXPECT_THAT(Rejection(kInt8, "\x06\x01", 1), HasSubstr("scale overflows"));
  EXPECT_THAT(Rejection(kInt8, "\x80\x80", 1), HasSubstr("-128"));
  EXPECT_THAT(Rejection(kE3m0, "\xff\x01", 1), HasSubstr("scale overflows"));
  EXPECT_THAT(Rejection(kInt8, "\x80\x3f", 1), HasSubstr("larger than the values require"));
  EXPECT_THAT(Rejection(kInt8, {"\x07\0", 2}, 1), HasSubstr("larger than the values require"));
  EXPECT_EQ(Rejection(kInt8, "\x80\x40", 1), "");
  EXPECT_EQ(Rejection(kInt8, "\x07\x01", 1), "") << "there is no smaller scale";
  EXPECT_THAT(Rejection(kE3m0, "\x03\x17", 2), HasSubstr("exponent overflows"));
  EXPECT_THAT(Rejection(kE3m0, "\x80\x87", 2), HasSubstr("zero has a sign"));
  EXPECT_THAT(Rejection(kE3m0, "\x80\xe6", 2), HasSubstr("larger than the values require"));
  EXPECT_EQ(Rejection(kE3m0, "\x80\xf6", 2), "");
  EXPECT_EQ(Rejection(kE3m0, "\x03\x57", 2), "") << "2^-126 is a normal float";
  EXPECT_THAT(Rejection(kE3m0, "\x80\x17", 1), HasSubstr("padding"));
  EXPECT_THAT(Rejection(kStat2, std::string("\x80\x7f\0\0\0\0\0\0\0", 9), 1),
              HasSubstr("not finite"));
  EXPECT_THAT(Rejection(kStat2, std::string("\x80\x3f\0\x80\0\0\0\0\0", 9), 1),
              HasSubstr("zero has a sign"));
  EXPECT_THAT(Rejection(kStat2, std::string("\x80\x3f\0\0\0\0\0\0\x10", 9), 1),
              HasSubstr("padding"));
}

TEST(CodecTest, RefusesMalformedSparseCodes) {
  const auto code = [](uint16_t low, uint16_t high, const std::vector<uint32_t>& gaps) {
    std::string bytes;
    for (const uint16_t value : {low, high}) {
      bytes.push_back(static_cast<char>(value));
      bytes.push_back(static_cast<char>(value >> 8));
    }
    BitWriter bits(&bytes);
    for (const uint32_t gap : gaps) {
      bits.WriteRice(gap, 10);
      bits.Write(2, 2);
    }
    bits.Finish();
    return bytes;
  };
  constexpr uint16_t kOne = 0x3F80;
  const Codec two{CodecKind::kTopK, 2};
  EXPECT_EQ(Rejection(two, code(0, kOne, {0, 4094}), 4096), "");
  EXPECT_THAT(Rejection(two, code(0, kOne, {0, 4095}), 4096), HasSubstr("outside of its block"));
  EXPECT_THAT(Rejection(two, code(0, kOne, {70000, 0}), 4096), HasSubstr("outside of its block"));
  EXPECT_THAT(Rejection(two, code(0, 0x7F80, {0, 0}), 4096), HasSubstr("not finite"));
  EXPECT_THAT(Rejection(two, code(0, 0x8000 | kOne, {0, 0}), 4096), HasSubstr("negative"));
  EXPECT_THAT(Rejection(two, code(0x8000, kOne, {2}), 4096), HasSubstr("too many values"));
  // The count, then one value.
  EXPECT_EQ(Rejection(two, {"\0\x80\x80\x3f\1\0\0\0", 8}, 4096), "");
  EXPECT_THAT(Rejection(two, {"\0\x80\x80\x3f\0\0\0\0", 8}, 4096), HasSubstr("without values"));
  EXPECT_THAT(Rejection(two, {"\0\x80\0\0\1\0\0\0", 8}, 4096), HasSubstr("without values"));
  EXPECT_THAT(Rejection(two, code(kOne + 1, kOne, {0, 0}), 4096), HasSubstr("not in order"));
  std::string padded = code(0, kOne, {0, 0});
  padded.back() |= static_cast<char>(0x80);
  EXPECT_THAT(Rejection(two, padded, 4096), HasSubstr("padding"));
}

TEST(CodecTest, ChecksCodecs) {
  for (const Codec& codec : kAll) {
    EXPECT_TRUE(CheckCodec(codec).ok());
    EXPECT_EQ(kCodecBlock % BlockOf(codec.kind), 0);
  }
  EXPECT_FALSE(CheckCodec({static_cast<CodecKind>(0)}).ok());
  EXPECT_FALSE(CheckCodec({static_cast<CodecKind>(7)}).ok());
  EXPECT_FALSE(CheckCodec({CodecKind::kTopK, 0}).ok());
  EXPECT_FALSE(CheckCodec({CodecKind::kTopK, 4097}).ok());
  EXPECT_FALSE(CheckCodec({CodecKind::kE3m0, 1}).ok());
}

TEST(BitStreamTest, RoundTrips) {
  std::mt19937 random(3);
  for (uint32_t rice = 0; rice < 12; ++rice) {
    std::string bytes;
    std::vector<uint32_t> values;
    BitWriter writer(&bytes);
    for (int i = 0; i < 500; ++i) {
      values.push_back(static_cast<uint32_t>(random()) >> (20 + random() % 12));
      writer.WriteRice(values.back(), rice);
      writer.Write(i % 4, 2);
    }
    writer.Finish();
    BitReader reader(bytes);
    for (int i = 0; i < 500; ++i) {
      ASSERT_EQ(reader.ReadRice(rice), values[i]);
      ASSERT_EQ(reader.Read(2), static_cast<uint32_t>(i % 4));
    }
    EXPECT_TRUE(reader.ok());
    EXPECT_TRUE(reader.Finish());
    EXPECT_EQ(reader.bytes(), bytes.size());
  }
}

}  // namespace
}  // namespace cadre
