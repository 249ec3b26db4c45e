#include "model/shard_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace cadre {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> All(const std::string& pattern) {
  const ShardNames names = *ShardNames::Parse(pattern);
  std::vector<std::string> all;
  for (int64_t i = 0; i < names.size(); ++i) all.push_back(names[i]);
  return all;
}

TEST(ShardNamesTest, ExpandsRanges) {
  EXPECT_THAT(All("train.tar"), ElementsAre("train.tar"));
  EXPECT_THAT(All("a/t-{08..11}.tar"),
              ElementsAre("a/t-08.tar", "a/t-09.tar", "a/t-10.tar", "a/t-11.tar"));
  EXPECT_THAT(All("{9..10}"), ElementsAre("9", "10"));
  EXPECT_THAT(All("x{000..000}"), ElementsAre("x000"));
  EXPECT_THAT(ShardNames::Parse("{000001..1000000}")->size(), 1'000'000);
}

TEST(ShardNamesTest, RefusesInvalidRanges) {
  const auto error = [](const char* pattern) {
    const absl::Status status = ShardNames::Parse(pattern).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << pattern;
    return std::string(status.message());
  };
  EXPECT_THAT(error("t-{3..1}"), HasSubstr("'t-{3..1}' has a descending range"));
  EXPECT_THAT(error("t-{1..2"), HasSubstr("unbalanced braces"));
  EXPECT_THAT(error("t-1..2}"), HasSubstr("unbalanced braces"));
  EXPECT_THAT(error("}{"), HasSubstr("unbalanced braces"));
  EXPECT_THAT(error("{1..2}{1..2}"), HasSubstr("more than one pair"));
  EXPECT_THAT(error("{{1..2}}"), HasSubstr("more than one pair"));
  for (const char* pattern : {"{}", "{1}", "{1..}", "{..1}", "{1..2..3}", "{a..b}", "{-1..1}",
                              "{+1..2}", "{ 1..2}", "{1.5..2}", "{1..99999999999999999999}"}) {
    EXPECT_THAT(error(pattern), HasSubstr("braces without a range")) << pattern;
  }
  EXPECT_THAT(error("{0..1000000}"), HasSubstr("more than a million"));
  EXPECT_THAT(error("{0..9223372036854775807}"), HasSubstr("more than a million"));
}

}  // namespace
}  // namespace cadre
