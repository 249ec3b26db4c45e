#include "tests/model/changed_spec.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "model/validate.h"
#include "tests/model/testing.h"

namespace cadre::testing {
namespace {

// Clears the field at a path such as "data.idx.mean".
void Clear(absl::string_view path, google::protobuf::Message* message) {
  const std::pair<std::string, std::string> split = absl::StrSplit(path, absl::MaxSplits('.', 1));
  const auto* field = message->GetDescriptor()->FindFieldByName(split.first);
  ASSERT_NE(field, nullptr) << path;
  if (split.second.empty()) return message->GetReflection()->ClearField(message, field);
  Clear(split.second, message->GetReflection()->MutableMessage(message, field));
}

}  // namespace

v1::RunSpec Changed(const std::string& cleared, const std::string& text) {
  v1::RunSpec spec = DemoSpec();
  for (const absl::string_view path : absl::StrSplit(cleared, ", ", absl::SkipEmpty())) {
    Clear(path, &spec);
  }
  EXPECT_TRUE(google::protobuf::TextFormat::MergeFromString(text, &spec)) << text;
  return spec;
}

void ExpectProblems(const std::vector<Violation>& violations) {
  ASSERT_THAT(FindProblems(DemoSpec()), ::testing::IsEmpty());
  for (const Violation& violation : violations) {
    SCOPED_TRACE(absl::StrCat("without ", violation.cleared, ", with ", violation.text));
    const v1::RunSpec spec = Changed(violation.cleared, violation.text);
    const std::vector<Problem> problems = FindProblems(spec);
    EXPECT_EQ(problems.size(), 1U) << ValidateRunSpec(spec);
    if (problems.empty()) continue;
    EXPECT_EQ(problems[0].field, violation.field);
    EXPECT_THAT(problems[0].message, ::testing::HasSubstr(violation.message));
  }
}

}  // namespace cadre::testing
