#include "cli/arguments.h"

#include <map>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class Flags : public FlagRegistry {
 public:
  std::optional<bool> TakesValue(absl::string_view name) const override {
    if (name == "o" || name == "groups") return true;
    if (name == "quiet" || name == "restart") return false;
    return std::nullopt;
  }
  absl::Status Set(absl::string_view name, absl::string_view value) override {
    if (name == "groups" && value == "many") return absl::InvalidArgumentError("not a number");
    values[std::string(name)] = std::string(value);
    return absl::OkStatus();
  }
  std::vector<std::string> Names() const override { return {"groups", "o", "quiet", "restart"}; }

  std::map<std::string, std::string> values;
};

absl::StatusOr<std::vector<std::string>> Parse(std::vector<std::string> words, Flags& flags) {
  return ParseArguments(words, flags);
}

TEST(ArgumentsTest, FlagsMayStandAnywhere) {
  Flags flags;
  const auto words =
      Parse({"-o", "json", "local", "--groups", "2", "run.textproto", "--quiet"}, flags);
  ASSERT_TRUE(words.ok()) << words.status();
  EXPECT_THAT(*words, ElementsAre("local", "run.textproto"));
  EXPECT_EQ(flags.values["o"], "json");
  EXPECT_EQ(flags.values["groups"], "2");
  EXPECT_EQ(flags.values["quiet"], "true");
}

TEST(ArgumentsTest, EqualsSignsDashesAndNegatedSwitches) {
  Flags flags;
  const auto words = Parse({"--o=a=b", "-groups=-1", "--norestart", "-"}, flags);
  ASSERT_TRUE(words.ok()) << words.status();
  EXPECT_THAT(*words, ElementsAre("-"));
  EXPECT_EQ(flags.values["o"], "a=b");
  EXPECT_EQ(flags.values["groups"], "-1");
  EXPECT_EQ(flags.values["restart"], "false");
  ASSERT_TRUE(Parse({"--no-quiet", "--restart=false"}, flags).ok());
  EXPECT_EQ(flags.values["quiet"], "false");
  EXPECT_EQ(flags.values["restart"], "false");
}

TEST(ArgumentsTest, AValueMayLookLikeAFlag) {
  Flags flags;
  ASSERT_TRUE(Parse({"--groups", "-1"}, flags).ok());
  EXPECT_EQ(flags.values["groups"], "-1");
}

TEST(ArgumentsTest, TwoDashesEndTheFlags) {
  Flags flags;
  const auto words = Parse({"--quiet", "--", "--groups", "x"}, flags);
  ASSERT_TRUE(words.ok());
  EXPECT_THAT(*words, ElementsAre("--groups", "x"));
  EXPECT_FALSE(flags.values.contains("groups"));
}

TEST(ArgumentsTest, RefusesWhatItDoesNotKnow) {
  Flags flags;
  EXPECT_THAT(std::string(Parse({"--grups", "2"}, flags).status().message()),
              HasSubstr("unknown flag --grups; did you mean --groups?"));
  EXPECT_THAT(std::string(Parse({"--zzzzzzz"}, flags).status().message()),
              testing::EndsWith("unknown flag --zzzzzzz"));
  EXPECT_THAT(std::string(Parse({"--groups"}, flags).status().message()),
              HasSubstr("--groups needs a value"));
  EXPECT_FALSE(Parse({"--groups", "many"}, flags).ok());
  // A flag with a value cannot be negated.
  EXPECT_FALSE(Parse({"--nogroups"}, flags).ok());
  EXPECT_FALSE(Parse({"--norestart=1"}, flags).ok());
}

TEST(NearestTest, FindsTyposOnly) {
  const std::vector<std::string> verbs = {"local", "run", "runs", "status", "watch", "members"};
  EXPECT_EQ(Nearest("statsu", verbs), "status");
  EXPECT_EQ(Nearest("lcoal", verbs), "local");
  EXPECT_EQ(Nearest("member", verbs), "members");
  EXPECT_EQ(Nearest("stat", verbs), "status");
  EXPECT_EQ(Nearest("wacht", verbs), "watch");
  EXPECT_EQ(Nearest("frobnicate", verbs), std::nullopt);
  EXPECT_EQ(Nearest("", verbs), std::nullopt);
}

TEST(ParseSecondsTest, TakesNumbersAndUnits) {
  EXPECT_EQ(*ParseSeconds("90"), 90);
  EXPECT_EQ(*ParseSeconds("1.5s"), 1.5);
  EXPECT_EQ(*ParseSeconds("5m"), 300);
  EXPECT_EQ(*ParseSeconds("1h30m"), 5400);
  for (const char* bad : {"", "soon", "0", "-5s", "nan", "inf", "5 parsecs"}) {
    EXPECT_FALSE(ParseSeconds(bad).ok()) << bad;
  }
}

}  // namespace
}  // namespace cadre
