#include "plan/placement/placement_problem.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace cadre {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kTwo[] = R"(op { name: "a" seconds: 1 memory_bytes: 4 }
op { name: "b" seconds: 2 }
edge { from: "a" to: "b" bytes: 8 }
device { name: "one" }
device { name: "two" memory_bytes: 6 }
switch: "s"
link { from: "one" to: "s" alpha: 0.5 bandwidth: 4 }
link { from: "two" to: "s" bandwidth: 2 }
)";

std::string ErrorOf(const std::string& text) {
  const auto problem = ParseOperatorGraph("g.textproto", text);
  EXPECT_EQ(problem.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(problem.status().message());
}

// The graph above with `what` replaced by `by`.
std::string With(const std::string& what, const std::string& by) {
  std::string text = kTwo;
  const size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return text.replace(at, what.size(), by);
}

TEST(PlacementProblemTest, ReadsGraph) {
  const auto problem = ParseOperatorGraph("g.textproto", kTwo);
  ASSERT_TRUE(problem.ok()) << problem.status();
  EXPECT_EQ(problem->size(), 2);
  EXPECT_EQ(problem->op(0).name, "a");
  EXPECT_EQ(problem->op(0).memory_bytes, 4);
  EXPECT_DOUBLE_EQ(problem->Seconds(1, 1), 2);
  EXPECT_FALSE(problem->limited(0));
  EXPECT_TRUE(problem->limited(1));
  // 0.5 + 8 / 4, then 8 / 2.
  EXPECT_DOUBLE_EQ(problem->TransferSeconds(0, 0, 1), 6.5);
  EXPECT_DOUBLE_EQ(problem->TransferSeconds(0, 1, 0), 6.5);
  EXPECT_DOUBLE_EQ(problem->TransferSeconds(0, 1, 1), 0);
  EXPECT_EQ(problem->link_names[0], "one - s");
}

TEST(PlacementProblemTest, TimesByDevice) {
  const auto problem =
      ParseOperatorGraph("g", With("seconds: 2", "seconds: 2 on { device: 'two' seconds: 0.5 }"));
  ASSERT_TRUE(problem.ok()) << problem.status();
  EXPECT_DOUBLE_EQ(problem->Seconds(1, 0), 2);
  EXPECT_DOUBLE_EQ(problem->Seconds(1, 1), 0.5);
  EXPECT_DOUBLE_EQ(problem->op(1).min_seconds, 0.5);
}

TEST(PlacementProblemTest, MissingFile) {
  const absl::Status status = ReadOperatorGraph("/nowhere/g.textproto").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/nowhere/g.textproto"));
}

TEST(PlacementProblemTest, RejectsMalformedText) {
  EXPECT_THAT(ErrorOf("operators {}"), StartsWith("g.textproto:1:1: OperatorGraph has no field"));
  EXPECT_THAT(ErrorOf("op { name: 3 }"), StartsWith("g.textproto:1:"));
  EXPECT_EQ(ErrorOf(""),
            "g.textproto:1:1: op: is missing; at least one is required\n"
            "g.textproto:1:1: device: is missing; at least one is required");
}

TEST(PlacementProblemTest, RejectsInvalidNames) {
  EXPECT_THAT(ErrorOf(With("name: \"b\"", "name: \"a\"")),
              StartsWith("g.textproto:2:6: op[1].name: 'a' is used twice"));
  EXPECT_THAT(ErrorOf(With("name: \"b\" ", "")),
              StartsWith("g.textproto:2:1: op[1].name: is missing: every operator needs a name"));
  EXPECT_THAT(ErrorOf(With("to: \"b\"", "to: \"z\"")),
              StartsWith("g.textproto:3:18: edge[0].to: unknown operator 'z'"));
  EXPECT_THAT(ErrorOf(With("from: \"a\" ", "")),
              StartsWith("g.textproto:3:1: edge[0].from: is missing: the name of operator"));
  EXPECT_THAT(ErrorOf(With("name: \"two\"", "name: \"one\"")), HasSubstr("'one' is used twice"));
  EXPECT_THAT(ErrorOf(With("switch: \"s\"", "switch: \"one\"")),
              HasSubstr("g.textproto:6:1: switch[0]: 'one' is used twice"));
  EXPECT_THAT(ErrorOf(With("link { from: \"one\"", "link { from: \"three\"")),
              HasSubstr("link[0].from: unknown device or switch 'three'"));
  EXPECT_THAT(ErrorOf(With("link { from: \"one\"", "link { from: \"s\"")),
              HasSubstr("link[0]: connects 's' with itself"));
  EXPECT_THAT(ErrorOf(With("seconds: 2", "seconds: 2 on { device: 's' seconds: 1 }")),
              HasSubstr("op[1].on[0].device: unknown device 's'"));
  EXPECT_THAT(ErrorOf(With("seconds: 2",
                           "on { device: 'one' seconds: 1 } on { device: 'one' seconds: 1 }")),
              HasSubstr("op[1].on[1].device: 'one' is used twice"));
  EXPECT_THAT(ErrorOf(absl::StrCat(kTwo, "edge { from: 'a' to: 'b' bytes: 1 }")),
              StartsWith("g.textproto:9:1: edge[1]: duplicate edge from 'a' to 'b'"));
}

TEST(PlacementProblemTest, RejectsInvalidNumbers) {
  EXPECT_THAT(ErrorOf(With("seconds: 2", "seconds: -2")),
              StartsWith("g.textproto:2:16: op[1].seconds: is -2; must be 0"));
  EXPECT_THAT(ErrorOf(With("seconds: 2", "seconds: nan")), HasSubstr("op[1].seconds: is nan"));
  EXPECT_THAT(ErrorOf(With("seconds: 2", "seconds: 1e300")), HasSubstr("op[1].seconds: is 1e+300"));
  EXPECT_THAT(ErrorOf(With("seconds: 2", "")),
              StartsWith("g.textproto:2:1: op[1].seconds: is missing"));
  EXPECT_THAT(ErrorOf(With("seconds: 2", "on { device: 'one' seconds: 1 }")),
              HasSubstr("op[1].seconds: is missing"));
  EXPECT_THAT(ErrorOf(With("seconds: 2", "seconds: 2 on { device: 'one' seconds: -1 }")),
              HasSubstr("op[1].on[0].seconds: is -1"));
  EXPECT_THAT(ErrorOf(With("alpha: 0.5", "alpha: -0.5")), HasSubstr("link[0].alpha: is -0.5"));
  EXPECT_THAT(ErrorOf(With("bandwidth: 4", "bandwidth: 0")), HasSubstr("link[0].bandwidth: is 0"));
  EXPECT_THAT(ErrorOf(With("bandwidth: 4", "")), HasSubstr("link[0].bandwidth: is 0"));
  EXPECT_THAT(ErrorOf(With("bandwidth: 4", "bandwidth: inf")),
              HasSubstr("link[0].bandwidth: is inf"));
  EXPECT_THAT(ErrorOf(With("bytes: 8", "bytes: 18446744073709551615")),
              HasSubstr("edge[0].bytes: is 18446744073709551615; must be at most"));
  EXPECT_THAT(ErrorOf(With("seconds: 2", "seconds: 2 memory_bytes: 1099511627777")),
              HasSubstr("op[1].memory_bytes: is 1099511627777; must be at most 1099511627776"));
}

TEST(PlacementProblemTest, ReportsCycle) {
  const std::string error = ErrorOf(absl::StrCat(
      kTwo,
      "op { name: 'c' seconds: 1 } op { name: 'end' seconds: 1 } edge { from: 'c' to: 'end' }\n"
      "edge { from: 'b' to: 'c' } edge { from: 'c' to: 'a' }"));
  EXPECT_THAT(error, StartsWith("g.textproto:"));
  EXPECT_THAT(error, HasSubstr("closes a cycle of 3 operators: "));
  // The cycle may start at any of the three.
  EXPECT_THAT(error,
              AnyOf(HasSubstr("'a' -> 'b' -> 'c' -> 'a'"), HasSubstr("'b' -> 'c' -> 'a' -> 'b'"),
                    HasSubstr("'c' -> 'a' -> 'b' -> 'c'")));
  EXPECT_EQ(error.find("'end'"), std::string::npos);
  EXPECT_THAT(ErrorOf(absl::StrCat(kTwo, "edge { from: 'a' to: 'a' }")),
              StartsWith("g.textproto:9:1: edge[1]: closes a cycle of 1 operators: 'a' -> 'a'"));
}

TEST(PlacementProblemTest, ReportsUnconnectedDevices) {
  EXPECT_THAT(ErrorOf(With("link { from: \"two\" to: \"s\" bandwidth: 2 }", "")),
              StartsWith("g.textproto:5:1: device[1]: no path of links connects 'one' and 'two'"));
}

TEST(PlacementProblemTest, RejectsTooMuchMemory) {
  const std::string limited =
      With("device { name: \"one\" }", "device { name: \"one\" memory_bytes: 3 }");
  EXPECT_TRUE(ParseOperatorGraph("g", limited).ok());
  EXPECT_THAT(ErrorOf(absl::StrCat(limited, "op { name: 'c' seconds: 1 memory_bytes: 7 }")),
              StartsWith("g.textproto:9:27: op[2].memory_bytes: 'c' needs 7 bytes, 1 more than the "
                         "largest device has\n"
                         "g.textproto:4:1: device[0]: all operators need 11 bytes, 2 more than all "
                         "devices have"));
}

}  // namespace
}  // namespace cadre
