// Shared by the test programs that compare plans: their arguments, and the comparison as an
// expectation.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "tests/equivalence/comparison.h"
#include "tests/equivalence/small_models.h"

namespace cadre {

// The value of an argument of the test program that starts with `prefix`, such as "--zoo=".
inline std::string ArgumentOr(const std::string& prefix, const std::string& default_value) {
  for (const std::string& argument : ::testing::internal::GetArgvs()) {
    absl::string_view rest = argument;
    if (absl::ConsumePrefix(&rest, prefix)) return std::string(rest);
  }
  return default_value;
}

inline std::string ZooFolder() { return ArgumentOr("--zoo=", "model/zoo"); }

// A small version of a model of the zoo. An error ends the test program.
inline v1::RunSpec ZooSpec(const std::string& name) {
  const auto spec = SmallModel(ZooFolder(), name);
  CHECK(spec.ok()) << spec.status();
  return *spec;
}

// The name of a model as part of a test name.
inline std::string TestName(std::string model) {
  model.erase(std::remove(model.begin(), model.end(), '-'), model.end());
  return model;
}

// Expects that all plans compute what one rank computes.
inline ComparisonResult ExpectEqual(Comparison& comparison, const std::vector<Plan>& plans) {
  const auto result = comparison.Run(plans);
  EXPECT_TRUE(result.ok()) << result.status();
  if (!result.ok()) return {};
  EXPECT_EQ(result->plans, std::ssize(plans));
  for (const std::string& failure : result->messages) ADD_FAILURE() << failure;
  EXPECT_EQ(result->failures, 0);
  return *result;
}

inline std::unique_ptr<Backend> OneThreadCpu() { return MakeCpuBackend(1); }

}  // namespace cadre
