#include "model/formula.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

namespace cadre {
namespace {

const std::map<std::string, int64_t> kValues = {{"width", 64}, {"a_b", 3}, {"least", INT64_MIN}};

TEST(FormulaTest, Evaluates) {
  const std::map<std::string, int64_t> values = {
      {"7", 7},
      {" width ", 64},
      {"4 * width", 256},
      {"1 + 2 * 3", 7},
      {"(1 + 2) * 3", 9},
      {"10 - 3 - 2", 5},
      {"64 / 4 / 2", 8},
      {"width/2*a_b", 96},
      {"2 * (width - (1 + a_b) * 2)", 112},
      {"0 - width", -64},
      {"((((5))))", 5},
      {"9223372036854775807", INT64_MAX},
      {"least", INT64_MIN},
  };
  for (const auto& [formula, value] : values) {
    const auto result = Evaluate(formula, kValues);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(*result, value) << formula;
  }
}

TEST(FormulaTest, ReportsErrors) {
  const std::map<std::string, std::string> errors = {
      {"", "ends where a number"},
      {"1 +", "ends where a number"},
      {"2 * * 3", "unexpected '* 3'"},
      {"(1 + 2", "is missing a ')'"},
      {"(1 2)", "unexpected '2)'"},
      {"1)", "unexpected ')'"},
      {"3 4", "unexpected '4'"},
      {"1.5", "unexpected '.5'"},
      {"-1", "unexpected '-1'"},
      {"Width", "unexpected 'Width'"},
      {"height", "'height', but the parameters of the block are a_b, least, width"},
      {"width / 7", "divides 64 by 7, which leaves a remainder"},
      {"1 / 0", "divides by 0"},
      {"1 / (a_b - 3)", "divides by 0"},
      {"9223372036854775808", "is too large"},
      {"9223372036854775807 + 1", "is too large"},
      {"least - 1", "is too large"},
      {"least / (0 - 1)", "is too large"},
      {"least * 2", "is too large"},
      {"\xff", "unexpected '\\xff'"},
  };
  for (const auto& [formula, message] : errors) {
    const auto result = Evaluate(formula, kValues);
    EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument) << formula;
    EXPECT_THAT(std::string(result.status().message()), ::testing::HasSubstr(message)) << formula;
  }
  EXPECT_THAT(std::string(Evaluate("x", {}).status().message()),
              ::testing::HasSubstr("the block has no parameters"));
}

TEST(FormulaTest, LimitsDepth) {
  const auto nested = [](size_t n) { return std::string(n, '(') + "1" + std::string(n, ')'); };
  EXPECT_EQ(Evaluate(nested(50), {}).value(), 1);
  EXPECT_THAT(std::string(Evaluate(nested(100'000), {}).status().message()),
              ::testing::HasSubstr("nested parentheses"));
}

}  // namespace
}  // namespace cadre
