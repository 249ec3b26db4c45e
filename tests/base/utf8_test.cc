#include "base/utf8.h"

#include <gtest/gtest.h>

namespace cadre {
namespace {

// Borders of the ranges of the Unicode standard's table of well-formed byte sequences.
TEST(Utf8Test, AcceptsWellFormed) {
  for (const absl::string_view good :
       {absl::string_view(""), absl::string_view("plain/path"), absl::string_view("\0", 1),
        absl::string_view("\x7f"), absl::string_view("\xc2\x80"), absl::string_view("\xdf\xbf"),
        absl::string_view("\xe0\xa0\x80"), absl::string_view("\xed\x9f\xbf"),
        absl::string_view("\xee\x80\x80"), absl::string_view("\xef\xbf\xbf"),
        absl::string_view("\xf0\x90\x80\x80"), absl::string_view("\xf4\x8f\xbf\xbf"),
        absl::string_view("a\xc3\xa9z")}) {
    EXPECT_TRUE(IsUtf8(good)) << good;
  }
}

TEST(Utf8Test, RefusesMalformed) {
  for (const absl::string_view bad :
       {"\x80", "\xbf", "\xc0\x80", "\xc1\xbf", "\xc2", "\xc2z", "\xe0\x9f\xbf", "\xe1\x80",
        "\xed\xa0\x80", "\xed\xbf\xbf", "\xf0\x8f\xbf\xbf", "\xf0\x90\x80", "\xf4\x90\x80\x80",
        "\xf5\x80\x80\x80", "\xf8\x88\x80\x80\x80", "\xff", "ok\xfe"}) {
    EXPECT_FALSE(IsUtf8(bad)) << bad;
  }
}

}  // namespace
}  // namespace cadre
