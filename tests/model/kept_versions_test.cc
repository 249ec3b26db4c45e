#include "model/kept_versions.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <string>

#include "model/validate.h"

namespace cadre {
namespace {

v1::Averaging Averaging(const std::string& text) {
  v1::Averaging averaging;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &averaging));
  return averaging;
}

TEST(KeptVersionsTest, DefaultIsOneOlderVersion) {
  EXPECT_EQ(KeptVersionsOf({}).every, 8u);
  EXPECT_EQ(KeptVersionsOf({}).count, 1u);
  const v1::Averaging none = Averaging("keep_versions { count: 0 }");
  EXPECT_EQ(KeptVersionsOf(none).count, 0u);
  EXPECT_EQ(MaxOlderVersions(none), 0u);
}

TEST(KeptVersionsTest, VersionsThatGroupsLoadAreCountedWithAQuorum) {
  EXPECT_EQ(MaxOlderVersions(Averaging("quorum: 2 keep_versions { every: 100 count: 5 }")), 7u);
}

TEST(KeptVersionsTest, ImpossibleSettingsAreReported) {
  const auto problems = [](const std::string& averaging) {
    v1::RunSpec spec;
    *spec.mutable_averaging() = Averaging(averaging);
    std::string text;
    for (const Problem& problem : FindProblems(spec)) {
      text += problem.field + " " + problem.message + "\n";
    }
    return text;
  };
  EXPECT_THAT(
      problems("keep_versions { every: 4 }"),
      ::testing::HasSubstr("averaging.keep_versions is set, but averaging.every_steps is 0"));
  EXPECT_THAT(problems("every_steps: 8 keep_versions { count: 65 }"),
              ::testing::ContainsRegex("averaging.keep_versions.count .*65"));
  EXPECT_THAT(problems("every_steps: 8 keep_versions { count: 64 }"),
              ::testing::Not(::testing::HasSubstr("keep_versions")));
}

}  // namespace
}  // namespace cadre
