// The codes that a device makes are the bits of the reference (kernels/codec/reference.h), and so
// is what they leave out.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "kernels/codec/reference.h"
#include "tests/kernels/codec_patterns.h"
#include "tests/kernels/cuda_rig.h"

namespace cadre {
namespace {

using codec_patterns::BitsOf;
using codec_patterns::kPatterns;
using codec_patterns::NamedCodec;

// Units of `sizes`, where every seventh is exact and every eleventh a statistic.
std::vector<CodedUnit> UnitsOf(const std::vector<int64_t>& sizes) {
  std::vector<CodedUnit> units;
  for (size_t i = 0; i < sizes.size(); ++i) {
    units.push_back({.size = sizes[i], .coded = i % 7 != 5, .trained = true});
    if (i % 11 == 9) units.back() = {.size = sizes[i], .coded = false, .trained = false};
  }
  return units;
}

int64_t ValuesIn(const std::vector<CodedUnit>& units) {
  int64_t values = 0;
  for (const CodedUnit& unit : units) values += unit.size;
  return values;
}

class CudaCodecTest : public CudaTest, public ::testing::WithParamInterface<NamedCodec> {
 protected:
  const Codec& codec() const { return GetParam().codec; }

  void ExpectEqualToReference(const std::vector<CodedUnit>& units, const Floats& values) {
    std::string expected = "before";
    Floats left_out;
    auto begin = values.begin();
    for (const CodedUnit& unit : units) {
      const Floats part(begin, begin + unit.size);
      begin += unit.size;
      const Codec of_unit = unit.coded ? codec() : Codec{CodecKind::kFp32};
      std::string coded = ReferenceEncode(of_unit, part);
      const Floats decoded = ReferenceDecode(of_unit, coded, unit.size);
      coded.resize((coded.size() + 3) / 4 * 4);
      expected += coded;
      for (int64_t i = 0; i < unit.size; ++i) {
        left_out.push_back(unit.trained ? part[i] - decoded[i] : 0.0F);
      }
    }
    const auto coded_units = kernels().codecs()->MakeUnits(codec(), units);
    const OnDevice x(device(), values);
    const OnDevice rest(device(), Garbage(values.size()));
    std::string frame = "before";
    ASSERT_TRUE(kernels().codecs()->Encode(*coded_units, x.span(), rest.span(), &frame));
    ASSERT_EQ(frame, expected);
    ASSERT_EQ(BitsOf(rest.Get()), BitsOf(left_out));
    ASSERT_EQ(BitsOf(x.Get()), BitsOf(values));
  }
};

TEST_P(CudaCodecTest, EncodesAsTheReference) {
  const std::vector<CodedUnit> units =
      UnitsOf({1,    2,    3,   4,    5,    8,    9,   63,   64,   65,   127,  128,
               129,  255,  256, 257,  258,  511,  512, 513,  600,  2048, 2049, 4090,
               4091, 4095, 1,   4096, 4096, 4096, 7,   4094, 4096, 1000, 31});
  for (const codec_patterns::Pattern& pattern : kPatterns) {
    SCOPED_TRACE(pattern.name);
    const Floats values = codec_patterns::Make(pattern, 1, ValuesIn(units));
    ASSERT_NO_FATAL_FAILURE(ExpectEqualToReference(units, values));
  }
}

// More units than blocks of threads, so that each block encodes several.
TEST_P(CudaCodecTest, EncodesManyUnits) {
  std::vector<int64_t> sizes;
  for (uint64_t i = 0; i < 1500; ++i) sizes.push_back(Draw(1, i % 100 == 7 ? 1000 : 20, 3, i));
  const std::vector<CodedUnit> units = UnitsOf(sizes);
  const Floats values = codec_patterns::Make(kPatterns[17], 2, ValuesIn(units));
  ExpectEqualToReference(units, values);
}

TEST_P(CudaCodecTest, EncodesAgainWithTheSameUnits) {
  const std::vector<CodedUnit> units = UnitsOf({4096, 300});
  const auto coded_units = kernels().codecs()->MakeUnits(codec(), units);
  const OnDevice rest(device(), Garbage(4396));
  for (const size_t pattern : {17, 3, 0}) {
    const Floats values = codec_patterns::Make(kPatterns[pattern], pattern, 4396);
    const OnDevice x(device(), values);
    std::string frame;
    ASSERT_TRUE(kernels().codecs()->Encode(*coded_units, x.span(), rest.span(), &frame));
    std::string expected = ReferenceEncode(codec(), {values.data(), 4096});
    expected.resize((expected.size() + 3) / 4 * 4);
    expected += ReferenceEncode(codec(), {values.data() + 4096, 300});
    expected.resize((expected.size() + 3) / 4 * 4);
    ASSERT_EQ(frame, expected);
  }
}

TEST_P(CudaCodecTest, RefusesValuesThatAreNotFinite) {
  const std::vector<CodedUnit> units = UnitsOf({10, 4096, 300, 5, 5, 20});
  const auto coded_units = kernels().codecs()->MakeUnits(codec(), units);
  Floats values(ValuesIn(units), 0.5F);
  const OnDevice rest(device(), values);
  // In units of all kinds.
  for (const size_t at : {0, 10 + 4095, 4430}) {
    for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity()}) {
      values[at] = bad;
      const OnDevice x(device(), values);
      std::string frame = "before";
      EXPECT_FALSE(kernels().codecs()->Encode(*coded_units, x.span(), rest.span(), &frame));
      EXPECT_EQ(frame, "before");
      values[at] = 0.5F;
    }
  }
  const OnDevice x(device(), values);
  std::string frame;
  EXPECT_TRUE(kernels().codecs()->Encode(*coded_units, x.span(), rest.span(), &frame));
  EXPECT_FALSE(frame.empty());
}

INSTANTIATE_TEST_SUITE_P(CudaCodecs, CudaCodecTest,
                         ::testing::ValuesIn(codec_patterns::AllCodecs()),
                         [](const auto& info) { return info.param.name; });

using CudaErrorFeedbackTest = CudaTest;

TEST_F(CudaErrorFeedbackTest, AddsAndScalesAsTheHost) {
  std::vector<int64_t> sizes;
  for (uint64_t i = 0; i < 600; ++i) sizes.push_back(Draw(1, 300, 4, i));
  const std::vector<CodedUnit> units = UnitsOf(sizes);
  const auto n = ValuesIn(units);
  const auto coded_units = kernels().codecs()->MakeUnits({CodecKind::kInt8}, units);
  const Floats values = codec_patterns::Make(kPatterns[17], 5, n);
  const Floats version = codec_patterns::Make(kPatterns[0], 6, n);
  const Floats carried = codec_patterns::Make(kPatterns[4], 7, n);
  Floats change;
  Floats scaled;
  for (const CodedUnit& unit : units) {
    for (int64_t k = 0; k < unit.size; ++k) {
      const size_t i = change.size();
      change.push_back(unit.trained ? (values[i] - version[i]) + carried[i] : values[i]);
      scaled.push_back(unit.trained ? 0.9F * change[i] : 0.0F);
    }
  }
  const OnDevice x(device(), values);
  const OnDevice y(device(), version);
  const OnDevice e(device(), carried);
  kernels().codecs()->TakeChange(*coded_units, y.span(), e.span(), x.span());
  EXPECT_EQ(BitsOf(x.Get()), BitsOf(change));
  kernels().codecs()->Carry(*coded_units, 0.9F, x.span(), e.span());
  EXPECT_EQ(BitsOf(e.Get()), BitsOf(scaled));
  EXPECT_EQ(BitsOf(x.Get()), BitsOf(change));
}

}  // namespace
}  // namespace cadre
