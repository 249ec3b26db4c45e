#include "base/peer_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/base/expect.h"

namespace cadre {
namespace {

using ::testing::EndsWith;

TEST(PeerTextTest, Names) {
  for (const std::string& name :
       {std::string("a"), std::string("worker-0.rack_1"), std::string(63, 'x')}) {
    EXPECT_EQ(CheckName("name", name), absl::OkStatus()) << name;
  }
  for (const std::string& name :
       {std::string(), std::string("A"), std::string("a b"), std::string("a/b"),
        std::string(64, 'x'), std::string("\xc3\xa9"), std::string("a\0", 2)}) {
    EXPECT_FALSE(CheckName("name", name).ok()) << Escaped(name);
  }
  EXPECT_THAT(CheckName("--name", "\x1b[2J"),
              IsError(absl::StatusCode::kInvalidArgument, "--name '\\x1b[2J' is not a name"));
}

TEST(PeerTextTest, Lines) {
  EXPECT_EQ(CheckPeerLine("host", ""), absl::OkStatus());
  EXPECT_EQ(CheckPeerLine("device", "cuda:NVIDIA H200"), absl::OkStatus());
  EXPECT_THAT(CheckPeerLine("host", std::string(301, 'h')),
              IsError(absl::StatusCode::kInvalidArgument, "host has 301 bytes; at most 300"));
  EXPECT_THAT(CheckPeerLine("host", "a\nb"),
              IsError(absl::StatusCode::kInvalidArgument, "host 'a\\nb' has characters"));
}

TEST(PeerTextTest, Escapes) {
  EXPECT_EQ(Escaped("rank 1: \"caf\xc3\xa9\" \\ 50 %"), "rank 1: \"caf\xc3\xa9\" \\ 50 %");
  EXPECT_EQ(Escaped(absl::string_view("\x1b[31m\r\n\0\x7f", 9)), "\\x1b[31m\\x0d\\n\\x00\\x7f");
  // One-byte CSI as a code point, and as a byte that is not UTF-8.
  EXPECT_EQ(Escaped("\xc2\x9b"), "\\xc2\\x9b");
  EXPECT_EQ(Escaped("a\x9b"), "a\\x9b");
  // Right-to-left override.
  EXPECT_EQ(Escaped("\xe2\x80\xae"), "\\xe2\\x80\\xae");
  EXPECT_EQ(Escaped("a\nb\x1b", LineBreaks::kKeep), "a\nb\\x1b");
}

TEST(PeerTextTest, ShortensReasons) {
  EXPECT_EQ(ShortReason(std::string(1024, 'a')), std::string(1024, 'a'));
  const std::string cut = ShortReason(std::string(1025, 'a'));
  EXPECT_EQ(cut, std::string(1024 - 16, 'a') + "... (1025 bytes)");
  // Neither escapes nor characters are divided.
  const std::string escaped = ShortReason(std::string(8 << 20, '\x1b'));
  EXPECT_LE(escaped.size(), 1024U);
  EXPECT_THAT(escaped, EndsWith("\\x1b... (8388608 bytes)"));
  std::string wide;
  for (int i = 0; i < 1000; ++i) wide += "\xe2\x82\xac";
  EXPECT_EQ(Escaped(ShortReason(wide)), ShortReason(wide));
}

}  // namespace
}  // namespace cadre
