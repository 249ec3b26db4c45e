#include "base/status.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace cadre {
namespace {

TEST(AnnotateTest, KeepsCodeAndAddsContext) {
  EXPECT_EQ(Annotate(absl::OkStatus(), "round 3"), absl::OkStatus());
  EXPECT_EQ(Annotate(absl::DataLossError("damaged"), "round 3"),
            absl::DataLossError("round 3: damaged"));
}

absl::StatusOr<std::unique_ptr<int>> Make(int value) {
  if (value < 0) return absl::InvalidArgumentError("negative");
  return std::make_unique<int>(value);
}

absl::Status Check(int value, int* calls) {
  ++*calls;
  if (value > 10) return absl::OutOfRangeError("large");
  return absl::OkStatus();
}

absl::StatusOr<int> Sum(int a, int b, int* calls) {
  CADRE_RETURN_IF_ERROR(Check(a, calls));
  // The macro may be used twice in one function, and with a move-only type.
  CADRE_ASSIGN_OR_RETURN(const std::unique_ptr<int> first, Make(a));
  CADRE_ASSIGN_OR_RETURN(std::unique_ptr<int> second, Make(b));
  CADRE_RETURN_IF_ERROR(Check(b, calls));
  return *first + *second;
}

TEST(StatusMacrosTest, PropagateErrors) {
  int calls = 0;
  EXPECT_EQ(*Sum(1, 2, &calls), 3);
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(Sum(1, -2, &calls).status(), absl::InvalidArgumentError("negative"));
  calls = 0;
  EXPECT_EQ(Sum(11, 2, &calls).status(), absl::OutOfRangeError("large"));
  // The expression is evaluated once.
  EXPECT_EQ(calls, 1);
}

TEST(StatusMacrosTest, AreSingleStatements) {
  const auto check = [](bool first) -> absl::Status {
    int calls = 0;
    if (first)
      CADRE_RETURN_IF_ERROR(Check(20, &calls));
    else
      CADRE_RETURN_IF_ERROR(Check(1, &calls));
    return absl::OkStatus();
  };
  EXPECT_FALSE(check(true).ok());
  EXPECT_TRUE(check(false).ok());
}

}  // namespace
}  // namespace cadre
