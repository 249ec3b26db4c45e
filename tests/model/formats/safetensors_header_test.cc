#include "model/formats/safetensors_header.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kA[] = R"("a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]})";

TEST(SafetensorsHeader, OrdersTensorsByOffset) {
  const auto header =
      ParseSafetensorsHeader("f",
                             R"({"b":{"data_offsets":[24,26],"dtype":"BF16","shape":[]},
          "__metadata__":{"format":"pt","k":""},)" +
                                 std::string(kA) + "}  \n",
                             26);
  ASSERT_TRUE(header.ok()) << header.status();
  ASSERT_EQ(header->tensors.size(), 2U);
  EXPECT_EQ(header->tensors[0].name, "a");
  EXPECT_EQ(header->tensors[0].shape, Shape({2, 3}));
  EXPECT_EQ(header->tensors[1].name, "b");
  EXPECT_EQ(header->tensors[1].type, "BF16");
  EXPECT_EQ(header->tensors[1].shape, Shape());
  EXPECT_EQ(header->tensors[1].begin, 24);
  EXPECT_EQ(header->tensors[1].end, 26);
  EXPECT_EQ(header->metadata, (std::map<std::string, std::string>{{"format", "pt"}, {"k", ""}}));
}

TEST(SafetensorsHeader, AcceptsEmptyTensors) {
  EXPECT_TRUE(ParseSafetensorsHeader("f", "{}", 0).ok());
  const auto header = ParseSafetensorsHeader(
      "f", absl::StrCat(R"({"e":{"dtype":"F32","shape":[4,0],"data_offsets":[24,24]},)", kA, "}"),
      24);
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->tensors[1].shape.elements(), 0);
}

// The format gains types, whose sizes are not known.
TEST(SafetensorsHeader, AcceptsUnknownTypes) {
  const auto header = ParseSafetensorsHeader(
      "f",
      absl::StrCat(R"({"new":{"dtype":"F4","shape":[3,5],"data_offsets":[24,32]},)", kA,
                   R"(,"z":{"dtype":"F8_E4M3FNUZ","shape":[2],"data_offsets":[32,34]}})"),
      34);
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->tensors[1].type, "F4");
  EXPECT_EQ(header->tensors[1].end, 32);
  EXPECT_EQ(header->tensors[2].type, "F8_E4M3FNUZ");
}

struct Bad {
  const char* what;
  std::string json;
  int64_t data_bytes;
  const char* message;
};

void PrintTo(const Bad& bad, std::ostream* out) { *out << bad.what; }

// A list of `n` ones, such as "[1,1,1]".
std::string Ones(int n) {
  return absl::StrCat("[", absl::StrJoin(std::vector<int>(n, 1), ","), "]");
}

std::string Tensor(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return absl::StrCat(R"({"x":{"dtype":)", dtype, R"(,"shape":)", shape, R"(,"data_offsets":)",
                      offsets, "}}");
}

class Refused : public ::testing::TestWithParam<Bad> {};

TEST_P(Refused, NamesFileAndReason) {
  const Bad& bad = GetParam();
  const auto header = ParseSafetensorsHeader("the file", bad.json, bad.data_bytes);
  ASSERT_FALSE(header.ok());
  EXPECT_EQ(header.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(header.status().message()),
              AllOf(HasSubstr("the file: "), HasSubstr(bad.message)));
}

std::string WithA(const std::string& other) { return absl::StrCat("{", kA, ",", other, "}"); }

INSTANTIATE_TEST_SUITE_P(
    Headers, Refused,
    ::testing::Values(
        Bad{"empty", "", 0, "does not begin with '{'"},
        Bad{"leading space", " {}", 0, "does not begin with '{'"},
        Bad{"no JSON", "{\"a\"", 0, "not JSON"}, Bad{"two values", "{}{}", 0, "not JSON"},
        Bad{"not UTF-8", "{\"\xff\":{}}", 0, "not JSON"},
        Bad{"number for a tensor", R"({"x":1})", 0, "tensor 'x': has a number"},
        Bad{"list for a tensor", R"({"x":[]})", 0, "tensor 'x': has a list"},
        Bad{"no dtype", R"({"x":{"shape":[],"data_offsets":[0,4]}})", 4, "'x': has no dtype"},
        Bad{"no shape", R"({"x":{"dtype":"F32","data_offsets":[0,4]}})", 4, "has no shape"},
        Bad{"no offsets", R"({"x":{"dtype":"F32","shape":[]}})", 4, "has no data_offsets"},
        Bad{"empty dtype", Tensor("\"\"", "[]", "[0,4]"), 4, "'x': has an empty dtype"},
        Bad{"unknown dtype of too many elements",
            Tensor("\"F4\"", "[4611686018027387905,4]", "[0,4]"), 4, "is too large"},
        Bad{"unknown dtype beyond the data", Tensor("\"F4\"", "[8]", "[0,4]"), 3,
            "do not lie in the file's 3 bytes"},
        Bad{"unknown dtype with a hole", Tensor("\"F4\"", "[8]", "[0,4]"), 5,
            "1 bytes after the last tensor"},
        Bad{"dtype a number", Tensor("32", "[]", "[0,4]"), 4, "tensor 'x': has a number"},
        Bad{"negative extent", Tensor("\"F32\"", "[-1]", "[0,4]"), 4, "has a negative number"},
        Bad{"fractional extent", Tensor("\"F32\"", "[1.0]", "[0,4]"), 4, "not an integer"},
        Bad{"extent beyond 64 bits", Tensor("\"F32\"", "[99999999999999999999]", "[0,4]"), 4,
            "too large"},
        Bad{"extent beyond int64", Tensor("\"F32\"", "[18446744073709551615]", "[0,4]"), 4,
            "too large"},
        Bad{"product overflows", Tensor("\"F32\"", "[4294967296,4294967296]", "[0,4]"), 4,
            "too large"},
        Bad{"product overflows to the stored size",
            Tensor("\"F32\"", "[4611686018427387905,4]", "[0,16]"), 16, "too large"},
        Bad{"nested shape", Tensor("\"F32\"", "[[1]]", "[0,4]"), 4, "tensor 'x': has a list"},
        Bad{"object in a tensor", Tensor("{}", "[]", "[0,4]"), 4, "tensor 'x': has an object"},
        Bad{"one offset", Tensor("\"F32\"", "[]", "[4]"), 4, "1 numbers, not 2"},
        Bad{"three offsets", Tensor("\"F32\"", "[]", "[0,4,4]"), 4, "3 numbers, not 2"},
        Bad{"offsets in reverse order", Tensor("\"F32\"", "[]", "[4,0]"), 4, "do not lie in"},
        Bad{"beyond the data", Tensor("\"F32\"", "[2]", "[0,8]"), 4, "do not lie in the file's 4"},
        Bad{"too few bytes", Tensor("\"F32\"", "[2]", "[0,4]"), 4, "has 4 bytes; F32 [2] takes 8"},
        Bad{"too many bytes", Tensor("\"F16\"", "[]", "[0,4]"), 4, "has 4 bytes; F16 [] takes 2"},
        Bad{"unknown field", R"({"x":{"dtype":"F32","shape":[],"data_offsets":[0,4],"y":0}})", 4,
            "tensor 'x': has a number"},
        Bad{"null", R"({"x":null})", 0, "null"}, Bad{"true", R"({"x":true})", 0, "true or false"},
        Bad{"name twice", WithA(kA), 24, "tensor 'a' is repeated"},
        Bad{"field twice", R"({"x":{"dtype":"F32","dtype":"F32"}})", 4, "'dtype' is repeated"},
        Bad{"overlap", WithA(R"("x":{"dtype":"F32","shape":[],"data_offsets":[20,24]})"), 24,
            "tensor 'x': overlaps"},
        Bad{"the same offsets twice",
            WithA(R"("x":{"dtype":"F32","shape":[6],"data_offsets":[0,24]})"), 24, "overlaps"},
        Bad{"hole", WithA(R"("x":{"dtype":"F32","shape":[],"data_offsets":[28,32]})"), 32,
            "tensor 'x': 4 bytes before it"},
        Bad{"hole in front", Tensor("\"F32\"", "[]", "[4,8]"), 8, "4 bytes before it"},
        Bad{"bytes left", WithA(R"("x":{"dtype":"F32","shape":[],"data_offsets":[24,28]})"), 29,
            "1 bytes after the last tensor"},
        Bad{"data without tensors", "{}", 1, "1 bytes after"},
        Bad{"metadata of numbers", R"({"__metadata__":{"a":1}})", 0, "__metadata__: has a number"},
        Bad{"metadata twice", R"({"__metadata__":{},"__metadata__":{}})", 0, "is repeated"},
        Bad{"metadata key twice", R"({"__metadata__":{"a":"","a":""}})", 0, "'a' is repeated"},
        Bad{"deep", "{\"x\":" + std::string(100'000, '['), 0, "has a list"},
        Bad{"many dimensions", Tensor("\"F32\"", Ones(33), "[0,4]"), 4, "more than 32"}));

TEST(SafetensorsHeader, EscapesAndTruncatesNames) {
  const std::string name = "\\n" + std::string(1000, 'n');
  const auto header = ParseSafetensorsHeader("f", "{\"" + name + "\":1}", 0);
  ASSERT_FALSE(header.ok());
  EXPECT_LT(header.status().message().size(), 300U);
  EXPECT_THAT(std::string(header.status().message()), HasSubstr("\\nnnn"));
}

TEST(SafetensorsHeader, FormatsAndParses) {
  const std::vector<NamedShape> tensors = {
      {"z/weight", Shape({3, 2})}, {"a\"b", Shape()}, {"e", Shape({0, 7})}, {"m", Shape({5})}};
  const auto text = FormatSafetensorsHeader(tensors, {{"format", "cadre"}, {"b", "\xff"}});
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(text->size() % 8, 0U);
  const auto header = ParseSafetensorsHeader("f", absl::string_view(*text).substr(8), 4 * 12);
  ASSERT_TRUE(header.ok()) << header.status();
  ASSERT_EQ(header->tensors.size(), tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_EQ(header->tensors[i].name, tensors[i].name);
    EXPECT_EQ(header->tensors[i].shape, tensors[i].shape);
    EXPECT_EQ(header->tensors[i].type, "F32");
  }
  EXPECT_EQ(header->metadata.at("format"), "cadre");
}

TEST(SafetensorsHeader, RefusesInvalidNames) {
  for (const std::vector<NamedShape>& tensors :
       {std::vector<NamedShape>{{"a", Shape()}, {"a", Shape({2})}},
        std::vector<NamedShape>{{"__metadata__", Shape()}}}) {
    EXPECT_EQ(FormatSafetensorsHeader(tensors, {}).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace cadre
