#include "base/crc32c.h"

#include <gtest/gtest.h>

#include <string>

namespace cadre {
namespace {

TEST(Crc32cTest, KnownAnswers) {
  EXPECT_EQ(Crc32c(""), 0U);
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283U);
  EXPECT_EQ(Crc32c("a"), 0xc1d04330U);
  // The vectors of RFC 3720, appendix B.4.
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aaU);
  EXPECT_EQ(Crc32c(std::string(32, '\xff')), 0x62a8ab43U);
  std::string up, down;
  for (int i = 0; i < 32; ++i) {
    up.push_back(i);
    down.push_back(31 - i);
  }
  EXPECT_EQ(Crc32c(up), 0x46dd794eU);
  EXPECT_EQ(Crc32c(down), 0x113fdb5cU);
}

// Computes the CRC bit by bit from the polynomial.
uint32_t Slow(const std::string& bytes) {
  uint32_t crc = 0xffffffffU;
  for (const unsigned char byte : bytes) {
    crc ^= byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1U) != 0 ? 0x82f63b78U : 0U);
  }
  return ~crc;
}

// The library works in blocks, so lengths and alignments around block boundaries are tested.
TEST(Crc32cTest, EveryLengthAndAlignment) {
  std::string bytes;
  for (int i = 0; i < 5000; ++i) bytes.push_back(i * 31 + i / 256);
  for (const size_t start : {0, 1, 3, 7, 8}) {
    for (size_t length = 0; length < 300; ++length) {
      const std::string piece = bytes.substr(start, length);
      ASSERT_EQ(Crc32c(absl::string_view(bytes).substr(start, length)), Slow(piece))
          << start << " " << length;
    }
  }
  EXPECT_EQ(Crc32c(bytes), Slow(bytes));
}

TEST(Crc32cTest, PartsAddUpInAnyOrder) {
  std::string bytes;
  for (int i = 0; i < 3000; ++i) bytes.push_back(i * 31 + i / 256);
  const absl::string_view text = bytes;
  for (const size_t first : {0, 1, 5, 1024, 2999}) {
    for (const size_t second : {first, (first + 3000) / 2, size_t{3000}}) {
      const uint32_t last = CrcShare(Crc32c(text.substr(second)), 0);
      const uint32_t middle = CrcShare(Crc32c(text.substr(first, second - first)), 3000 - second);
      EXPECT_EQ(last ^ middle ^ CrcShare(Crc32c(text.substr(0, first)), 3000 - first), Crc32c(text))
          << first << " " << second;
      EXPECT_EQ(ExtendCrc32c(Crc32c(text.substr(0, first)), text.substr(first)), Crc32c(text));
    }
  }
  // More bytes than 32 bits count.
  const uint64_t many = (uint64_t{5} << 32) + 77;
  EXPECT_EQ(CrcShare(CrcShare(0x12345678U, many - 1000), 1000), CrcShare(0x12345678U, many));
}

}  // namespace
}  // namespace cadre
