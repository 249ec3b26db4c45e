#include "cli/table.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre {
namespace {

TEST(TableTest, AlignsColumns) {
  Table table({"NAME", "STATE", "N"});
  table.AddRow({"a-long-name", "up", "1"});
  table.AddRow({"b", "", "22"});
  EXPECT_EQ(table.Text(),
            "NAME          STATE    N\n"
            "a-long-name   up       1\n"
            "b             <none>   22\n");
}

// Text of other processes cannot control the terminal or forge lines.
TEST(TableTest, EscapesCells) {
  Table table({"NAME", "REASON"});
  table.AddRow({"\x1b[2J", "a\nb"});
  EXPECT_EQ(table.Text(),
            "NAME      REASON\n"
            "\\x1b[2J   a\\nb\n");
  EXPECT_EQ(FieldsText({{"reason", "\x1b]0;x\x07"}}), "reason   \\x1b]0;x\\x07\n");
}

TEST(TableTest, EmptyWithoutRows) { EXPECT_EQ(Table({"NAME"}).Text(), ""); }

TEST(FieldsTextTest, AlignsAndWraps) {
  const std::string word(50, 'x');
  EXPECT_EQ(FieldsText({{"name", "demo"}, {"s", ""}, {"long", absl::StrCat(word, " y ", word)}}),
            absl::StrCat("name   demo\ns      <none>\nlong   ", word, " y\n       ", word, "\n"));
}

TEST(TableTest, CountsCharactersNotBytes) {
  Table table({"WHO", "X"});
  table.AddRow({"zo\xc3\xab", "1"});
  table.AddRow({"bart", "2"});
  EXPECT_EQ(table.Text(),
            "WHO    X\n"
            "zo\xc3\xab    1\n"
            "bart   2\n");
}

TEST(FormatTest, Counts) {
  EXPECT_EQ(FormatCount(0), "0");
  EXPECT_EQ(FormatCount(999), "999");
  EXPECT_EQ(FormatCount(1000), "1,000");
  EXPECT_EQ(FormatCount(3214282), "3,214,282");
  EXPECT_EQ(FormatCount(UINT64_MAX), "18,446,744,073,709,551,615");
}

TEST(FormatTest, Bytes) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1024), "1.0 KiB");
  EXPECT_EQ(FormatBytes(1536), "1.5 KiB");
  // Rounding never shows 1024 of a unit.
  EXPECT_EQ(FormatBytes((1 << 20) - 1), "1.0 MiB");
  EXPECT_EQ(FormatBytes(uint64_t{5} << 40), "5.0 TiB");
  EXPECT_EQ(FormatBytes(UINT64_MAX), "16384.0 PiB");
}

TEST(FormatTest, Ages) {
  EXPECT_EQ(FormatAge(-absl::Seconds(5)), "<1s");
  EXPECT_EQ(FormatAge(absl::Milliseconds(999)), "<1s");
  EXPECT_EQ(FormatAge(absl::Seconds(59)), "59s");
  EXPECT_EQ(FormatAge(absl::Seconds(192)), "3m12s");
  EXPECT_EQ(FormatAge(absl::Seconds(3600)), "1h00m");
  EXPECT_EQ(FormatAge(absl::Hours(76)), "3d04h");
  EXPECT_EQ(FormatAge(absl::InfiniteDuration()), "<none>");
}

TEST(FormatTest, Fractions) {
  EXPECT_EQ(FormatFraction(0.91344), "0.9134");
  EXPECT_EQ(FormatFraction(NAN), "<none>");
  EXPECT_EQ(FormatFraction(INFINITY), "<none>");
}

}  // namespace
}  // namespace cadre
