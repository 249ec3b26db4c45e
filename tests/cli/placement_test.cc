#include "cli/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "nlohmann/json.hpp"
#include "plan/placement/placement_problem.h"
#include "tests/cli/program.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kDiamond[] = R"(
  op { name: "a" seconds: 2 memory_bytes: 3 } op { name: "b" seconds: 4 memory_bytes: 5 }
  op { name: "c" seconds: 3 } op { name: "d" seconds: 2 }
  edge { from: "a" to: "b" bytes: 1 } edge { from: "a" to: "c" bytes: 1 }
  edge { from: "b" to: "d" bytes: 1 } edge { from: "c" to: "d" bytes: 1 }
  device { name: "one" } device { name: "two" }
  link { from: "one" to: "two" bandwidth: 1 })";

Result Show(const std::string& text, const std::string& format) {
  const TemporaryFolder folder;
  return Call({"plan", "--placement", folder.Write("graph.textproto", text), "-o", format});
}

TEST(PlacementTest, JsonHasMakespanAndPlacement) {
  const Result result = Show(kDiamond, "json");
  ASSERT_EQ(result.exit_code, kExitOk) << result.err;
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_DOUBLE_EQ(json["makespan"].get<double>(), 9);
  EXPECT_DOUBLE_EQ(json["lower_bound"].get<double>(), 9);
  EXPECT_DOUBLE_EQ(json["gap"].get<double>(), 0);
  EXPECT_EQ(json["method"], "exact");
  EXPECT_NEAR(json["speedup"].get<double>(), 1.2222, 5e-5);
  ASSERT_EQ(json["placement"].size(), 4u);
  // Only c is on the other device.
  EXPECT_EQ(json["placement"]["a"], json["placement"]["b"]);
  EXPECT_EQ(json["placement"]["a"], json["placement"]["d"]);
  EXPECT_NE(json["placement"]["a"], json["placement"]["c"]);
  EXPECT_DOUBLE_EQ(json["starts"]["c"].get<double>(), 3);
  ASSERT_EQ(json["transfers"].size(), 2u);
  EXPECT_EQ(json["transfers"][0]["links"][0], "one - two");
  EXPECT_EQ(json["mesh"], "model=2");
  EXPECT_EQ(json["layer"], "a=model@0,b=model@0,c=model@1,d=model@0");
  EXPECT_EQ(json["memory_bytes"][json["placement"]["a"].get<std::string>()], 8);
}

TEST(PlacementTest, TextHasAChart) {
  const Result result = Show(kDiamond, "table");
  ASSERT_EQ(result.exit_code, kExitOk) << result.err;
  EXPECT_THAT(result.out, StartsWith("makespan 9 s, 1.222 times as fast as all on one: 11 s\n"
                                     "exact: no placement takes less\n"));
  EXPECT_THAT(result.out, HasSubstr("[a=============][b=============================]........"));
  EXPECT_THAT(result.out, HasSubstr("a -> c   1       2 s    3 s       one - two"));
}

TEST(PlacementTest, ErrorsHaveAPosition) {
  const Result result = Show("op { name: 'a' seconds: -1 }\ndevice { name: 'd' }", "json");
  EXPECT_EQ(result.exit_code, kExitFailure);
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, HasSubstr("graph.textproto:1:16: op[0].seconds: is -1"));
}

TEST(PlacementTest, ChartOmitsTinyOperators) {
  const auto problem = ParseOperatorGraph(
      "g",
      "op { name: 'long-name' seconds: 1 } op { name: 'b' seconds: 1e-6 } device { name: 'd' }");
  ASSERT_TRUE(problem.ok());
  const OperatorSchedule schedule{.device = {0, 0}, .start = {0, 1}, .makespan = 1.000001};
  EXPECT_EQ(PlacementChart(*problem, schedule, 8), "d  [long-n]\n");
  EXPECT_EQ(PlacementChart(*problem, schedule, 1), "d  |\n");
}

}  // namespace
}  // namespace cadre
