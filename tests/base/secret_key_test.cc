#include "base/secret_key.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/escaping.h"

namespace cadre {
namespace {

using ::testing::Optional;

SecretKey Filled(uint8_t byte) {
  SecretKey key;
  key.fill(byte);
  return key;
}

std::string Hex(const Tag& tag) {
  return absl::BytesToHexString(std::string(tag.begin(), tag.end()));
}

// The expected value is that of `openssl dgst -sha256 -mac HMAC -macopt hexkey:0b...0b`.
TEST(SecretKeyTest, TagIsHmacSha256) {
  EXPECT_EQ(Hex(MakeTag(Filled(0x0b), "Hi There")),
            "492ce020fe2534a5789dc3848806c78f4f6711397f08e7e7a12ca5a4483c8aa6");
}

TEST(SecretKeyTest, TagDependsOnKeyAndMessage) {
  const Tag tag = MakeTag(Filled(1), "message");
  EXPECT_TRUE(AreEqual(tag, MakeTag(Filled(1), "message")));
  EXPECT_FALSE(AreEqual(tag, MakeTag(Filled(2), "message")));
  EXPECT_FALSE(AreEqual(tag, MakeTag(Filled(1), "messagf")));
}

TEST(SecretKeyTest, BytesAreParsedOnlyWithTheRightSize) {
  EXPECT_THAT(ParseSecretKey(KeyBytes(Filled(7))), Optional(Filled(7)));
  for (const size_t size : {0, 15, 17, 32}) {
    EXPECT_EQ(ParseSecretKey(std::string(size, 'k')), std::nullopt) << size;
  }
}

TEST(SecretKeyTest, DerivedKeysDiffer) {
  EXPECT_EQ(DeriveKey("secret", "a"), DeriveKey("secret", "a"));
  EXPECT_NE(DeriveKey("secret", "a"), DeriveKey("secret", "b"));
  EXPECT_NE(DeriveKey("secret", "a"), DeriveKey("other", "a"));
}

}  // namespace
}  // namespace cadre
