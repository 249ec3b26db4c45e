#include "worker/optim/schedule.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/base/expect.h"

namespace cadre {
namespace {

struct Case {
  std::string name;
  std::string schedule;
  int64_t total_steps = 0;
  // Expected rates by step.
  std::vector<std::pair<int64_t, float>> rates;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class RateAtTest : public ::testing::TestWithParam<Case> {};

TEST_P(RateAtTest, FollowsTheSchedule) {
  const auto schedule = Parse<v1::Schedule>(GetParam().schedule);
  for (const auto& [step, rate] : GetParam().rates) {
    EXPECT_FLOAT_EQ(RateAt(schedule, step, GetParam().total_steps), rate) << "step " << step;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Schedules, RateAtTest,
    ::testing::Values(
        Case{"Constant", "base_rate: 0.1", 100, {{0, 0.1F}, {99, 0.1F}}},
        Case{"WarmUp",
             "base_rate: 0.4 warmup_steps: 4",
             100,
             {{0, 0.1F}, {1, 0.2F}, {3, 0.4F}, {4, 0.4F}}},
        Case{"StepDecay",
             "base_rate: 1 step { every_steps: 10 factor: 0.5 }",
             100,
             {{9, 1.0F}, {10, 0.5F}, {35, 0.125F}}},
        // Half way, the rate is the mean of 1 and 0.2; after the end it is constant.
        Case{"Cosine",
             "base_rate: 1 warmup_steps: 10 cosine { final_fraction: 0.2 }",
             110,
             {{10, 1.0F}, {60, 0.6F}, {110, 0.2F}, {500, 0.2F}}},
        // Half way, the rate is 2 (0.2 + 0.8 / 4).
        Case{"Polynomial",
             "base_rate: 2 warmup_steps: 10 polynomial { power: 2 final_fraction: 0.2 }",
             110,
             {{0, 0.2F}, {10, 2.0F}, {60, 0.8F}, {110, 0.4F}, {500, 0.4F}}},
        Case{"PolynomialWithoutPowerIsLinear",
             "base_rate: 1 polynomial {}",
             10,
             {{0, 1.0F}, {3, 0.7F}, {10, 0.0F}}},
        Case{"WarmUpScalesStepDecay",
             "base_rate: 1 warmup_steps: 4 step { every_steps: 2 factor: 0.5 }",
             100,
             {{2, 0.75F * 0.5F}}},
        Case{"RunWithoutSteps", "base_rate: 1 cosine {}", 0, {{0, 1.0F}}},
        Case{"WarmUpLongerThanTheRun", "base_rate: 1 warmup_steps: 10 cosine {}", 5, {{4, 0.5F}}}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace cadre
