// The codecs compute the bits of the reference (kernels/codec/reference.h), and the same bits on
// every machine.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include "base/crc32c.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/reference.h"
#include "tests/kernels/codec_patterns.h"

namespace cadre {
namespace {

using namespace codec_patterns;

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
