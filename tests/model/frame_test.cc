#include "model/frame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "base/random.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;
using Kind = ExchangeUnit::Kind;

const std::vector<ExchangeUnit> kUnits = {{{100, 4196}, Kind::kCoded},
                                          {{4196, 4296}, Kind::kCoded},
                                          {{4296, 4301}, Kind::kExact},
                                          {{4301, 4311}, Kind::kStatistic}};
constexpr size_t kSize = 4211;
constexpr Codec kStat2{CodecKind::kStat2};

std::vector<float> RandomValues(uint64_t salt, int64_t count) {
  std::vector<float> values(count);
  for (int64_t i = 0; i < count; ++i) values[i] = RandomNormal(salt, RandomStream::kTest, 0, i);
  return values;
}

bool SameBits(std::span<const float> a, std::span<const float> b) {
  return std::ranges::equal(a, b, {}, std::bit_cast<uint32_t, float>,
                            std::bit_cast<uint32_t, float>);
}

std::string FrameOf(const std::vector<float>& values, std::vector<uint16_t>* words = nullptr) {
  std::string frame;
  EXPECT_TRUE(EncodeFrame(kUnits, kStat2, values, &frame, words).ok());
  return frame;
}

TEST(Frame, OnlyCodedUnitsAreLossy) {
  const std::vector<float> values = RandomValues(1, kSize);
  std::vector<uint16_t> words;
  const std::string frame = FrameOf(values, &words);
  EXPECT_EQ(std::accumulate(words.begin(), words.end(), size_t{0}) * 4, frame.size());
  EXPECT_LE(std::ssize(frame), 4 * MaxFrameWords(kUnits, kStat2));
  std::vector<float> decoded;
  ASSERT_TRUE(DecodeFrame(kUnits, kStat2, frame, &decoded).ok());
  EXPECT_TRUE(SameBits(std::span(decoded).last(15), std::span(values).last(15)));
  EXPECT_FALSE(SameBits(std::span(decoded).first(100), std::span(values).first(100)));
  std::string coded;
  ASSERT_TRUE(Encode(kStat2, std::span(values).first(4096), &coded).ok());
  EXPECT_EQ(frame.substr(0, coded.size()), coded) << "the codec's bytes";
}

// The reader keeps a part of the frame in memory.
TEST(Frame, IsReadPieceByPiece) {
  std::vector<ExchangeUnit> units;
  for (int64_t begin = 0; begin < 40 * kUnitSize; begin += kUnitSize) {
    units.push_back({{begin, begin + kUnitSize}, Kind::kCoded});
  }
  const std::vector<float> values = RandomValues(2, 40 * kUnitSize);
  for (const Codec& codec : {Codec{CodecKind::kBf16}, Codec{CodecKind::kTopK, 3}}) {
    std::string frame;
    ASSERT_TRUE(EncodeFrame(units, codec, values, &frame).ok());
    std::vector<float> decoded;
    FrameReader reader(codec, frame.size(), [&](uint64_t offset, std::span<char> bytes) {
      frame.copy(bytes.data(), bytes.size(), offset);
      return absl::OkStatus();
    });
    for (const ExchangeUnit& unit : units) {
      std::vector<float> next(unit.positions.size());
      ASSERT_TRUE(reader.Next(unit, next).ok());
      decoded.insert(decoded.end(), next.begin(), next.end());
      EXPECT_EQ(reader.done() == frame.size(), &unit == &units.back());
    }
    EXPECT_TRUE(reader.CheckEnd().ok());
    std::vector<float> whole;
    ASSERT_TRUE(DecodeFrame(units, codec, frame, &whole).ok());
    EXPECT_TRUE(SameBits(decoded, whole));
    std::vector<float> expected(values.size());
    std::string coded;
    ASSERT_TRUE(Encode(codec, values, &coded).ok());
    absl::string_view rest = coded;
    ASSERT_TRUE(Decode(codec, &rest, expected).ok());
    EXPECT_TRUE(SameBits(decoded, expected));
  }
}

TEST(Frame, PiecesAreFoundAndDecodedAlone) {
  const std::vector<float> values = RandomValues(1, kSize);
  for (const CodecKind kind : {CodecKind::kBf16, CodecKind::kE3m0, CodecKind::kStat2}) {
    const Codec codec{kind};
    std::string frame;
    ASSERT_TRUE(EncodeFrame(kUnits, codec, values, &frame).ok());
    std::vector<float> whole;
    ASSERT_TRUE(DecodeFrame(kUnits, codec, frame, &whole).ok());
    const auto offsets = PieceOffsets(kUnits, codec, frame, 2);
    ASSERT_TRUE(offsets.has_value());
    ASSERT_EQ(offsets->size(), (std::size(kUnits) + 1) / 2 + 1);
    std::vector<float> pieces;
    for (size_t i = 0; i + 1 < offsets->size(); ++i) {
      const size_t begin = 2 * i;
      const size_t count = std::min<size_t>(2, std::size(kUnits) - begin);
      std::vector<float> decoded;
      const std::string piece = frame.substr((*offsets)[i], (*offsets)[i + 1] - (*offsets)[i]);
      ASSERT_TRUE(
          DecodeFrame(std::span(kUnits).subspan(begin, count), codec, piece, &decoded).ok());
      pieces.insert(pieces.end(), decoded.begin(), decoded.end());
    }
    EXPECT_TRUE(SameBits(pieces, whole));
    EXPECT_FALSE(PieceOffsets(kUnits, codec, frame.substr(4), 2).has_value());
    EXPECT_FALSE(PieceOffsets(kUnits, codec, frame + "more", 2).has_value());
  }
  std::string sparse;
  const Codec topk{CodecKind::kTopK, 3};
  ASSERT_TRUE(EncodeFrame(kUnits, topk, values, &sparse).ok());
  EXPECT_FALSE(PieceOffsets(kUnits, topk, sparse, 2).has_value());
}

TEST(Frame, MalformedFramesAreRefused) {
  const std::string frame = FrameOf(RandomValues(1, kSize));
  const auto error = [](const std::string& bytes) {
    std::vector<float> decoded;
    return std::string(DecodeFrame(kUnits, kStat2, bytes, &decoded).message());
  };
  EXPECT_EQ(error(frame), "");
  EXPECT_THAT(error(frame.substr(0, frame.size() - 4)), HasSubstr("positions 4301 to 4311"));
  EXPECT_THAT(error(frame.substr(0, 100)), HasSubstr("positions 100 to 4196"));
  EXPECT_THAT(error(frame + std::string(4, '\0')), HasSubstr("its units only"));
  std::string infinite = frame;
  infinite[frame.size() - 1] = 0x7f;
  infinite[frame.size() - 2] = static_cast<char>(0x80);
  EXPECT_THAT(error(infinite), HasSubstr("not finite"));
}

TEST(Frame, ValuesThatAreNotFiniteAreNamed) {
  std::vector<float> values = RandomValues(1, kSize);
  values[4199] = std::numeric_limits<float>::infinity();
  std::string frame;
  EXPECT_THAT(std::string(EncodeFrame(kUnits, kStat2, values, &frame).message()),
              HasSubstr("positions 4296 to 4301: value 3"));
}

}  // namespace
}  // namespace cadre
