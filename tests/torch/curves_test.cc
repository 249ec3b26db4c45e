// Whole runs have the losses of PyTorch, step by step, and change every parameter by the same
// amount: replicas of one and two ranks are compared with curves.safetensors (written by
// make_fixtures.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "plan/search/planner.h"
#include "tests/equivalence/test_plans.h"
#include "tests/torch/curve.h"
#include "tests/torch/fixtures.h"

namespace cadre {
namespace {

// The fixtures are exact (PyTorch in float64). They also contain the deviation of PyTorch's float32
// runs with weights perturbed by some roundings. It is below 1e-6 until rounding changes the side
// of a ReLU or a maximum, and then grows with the steps, as training amplifies it. The maximum of
// sixteen runs is not an upper bound, so it is multiplied by kRoundings; the floors allow for
// deviations that occurred in none of them.
constexpr double kRoundings = 5;
constexpr double kFloor = 1e-5;
// Changes are small differences of larger weights.
constexpr double kChangeFloor = 1e-4;

struct Run {
  const char* name;
  int ranks;
};

void PrintTo(const Run& run, std::ostream* out) {
  *out << run.name << " on " << run.ranks << " ranks";
}

Curve ReadCurveNamed(const std::string& name) {
  auto curve = ReadCurve(absl::StrCat(FixturesFolder(), "/", name, ".textproto"));
  CHECK(curve.ok()) << curve.status();
  return *std::move(curve);
}

absl::StatusOr<GroupResult> Train(const Curve& curve, int ranks) {
  CADRE_ASSIGN_OR_RETURN(const v1::Plan plan, MakePlan(curve.spec, ranks));
  Ranks group([] { return MakeCpuBackend(1); });
  return group.Train(curve.spec, plan,
                     {.steps = curve.steps(),
                      .rate = curve.spec.schedule().base_rate(),
                      .batches = [&curve](int64_t step) { return curve.batches[step]; }});
}

struct Difference {
  // Largest relative difference of a loss, and of the change of a parameter.
  double loss = 0;
  double change = 0;
  // The same divided by their limits.
  double loss_units = 0;
  double change_units = 0;
  // The parameter with the largest difference.
  std::string parameter;
};

// The norm of the change of a parameter.
double ChangeOf(const Parameter& parameter, const std::vector<float>& from,
                const std::vector<float>& to) {
  double squares = 0;
  for (int64_t i = parameter.offset; i < parameter.end(); ++i) {
    squares += std::pow(1.0 * to[i] - from[i], 2);
  }
  return std::sqrt(squares);
}

Difference Compare(const Curve& curve, const GroupResult& result) {
  Fixtures fixtures("curves.safetensors");
  const std::string prefix = curve.spec.name() + "/";
  const std::vector<float> losses = fixtures.Read(prefix + "losses");
  const std::vector<float> rounding = fixtures.Read(prefix + "rounding");
  EXPECT_EQ(result.losses.size(), losses.size());
  Difference worst;
  for (size_t i = 0; i < std::min(losses.size(), result.losses.size()); ++i) {
    const double difference = std::abs(result.losses[i] / losses[i] - 1);
    EXPECT_TRUE(std::isfinite(difference)) << "step " << i;
    worst.loss = std::max(worst.loss, difference);
    worst.loss_units = std::max(worst.loss_units, difference / (kFloor + kRoundings * rounding[i]));
  }
  const std::vector<float> initial = InitialWeights(curve.index, curve.spec.seed());
  for (const Parameter& parameter : curve.index.parameters()) {
    // The exact change, and the deviation of runs with rounding.
    const std::vector<float> change = fixtures.Read(absl::StrCat(prefix, "moved/", parameter.name));
    const double difference =
        std::abs(ChangeOf(parameter, initial, result.weights) / change[0] - 1);
    EXPECT_TRUE(std::isfinite(difference)) << parameter.name;
    const double units = difference / (kChangeFloor + kRoundings * change[1]);
    if (units > worst.change_units) worst.parameter = parameter.name;
    worst.change = std::max(worst.change, difference);
    worst.change_units = std::max(worst.change_units, units);
  }
  return worst;
}

class Curves : public testing::TestWithParam<Run> {};

TEST_P(Curves, EqualTorch) {
  const Curve curve = ReadCurveNamed(GetParam().name);
  ASSERT_EQ(curve.spec.name(), GetParam().name);
  ASSERT_EQ(CurveDigest(curve),
            Fixtures("curves.safetensors").texts().at(curve.spec.name() + "/digest"))
      << "the fixture was written for other weights or batches; write it again";
  const auto result = Train(curve, GetParam().ranks);
  ASSERT_TRUE(result.ok()) << result.status();
  // The run has learned.
  EXPECT_LT(result->losses.back(), 0.5 * result->losses.front());
  const Difference worst = Compare(curve, *result);
  EXPECT_LT(worst.loss_units, 1) << "losses differ by up to " << worst.loss;
  EXPECT_LT(worst.change_units, 1) << worst.parameter << ": the change differs by " << worst.change;
  RecordProperty("loss", absl::StrFormat("%.1e, %.2f of the limit", worst.loss, worst.loss_units));
  RecordProperty("change",
                 absl::StrFormat("%.1e, %.2f of the limit", worst.change, worst.change_units));
}

INSTANTIATE_TEST_SUITE_P(Runs, Curves,
                         testing::Values(Run{"lenet", 1}, Run{"lenet", 2}, Run{"alexnet", 1},
                                         Run{"resnet18", 1}, Run{"resnet18", 2}, Run{"gpt", 1},
                                         Run{"gpt", 2}, Run{"gnmt", 1}, Run{"gnmt", 2}),
                         [](const auto& info) {
                           return absl::StrCat(info.param.name, "On", info.param.ranks);
                         });

// The comparison detects small errors: gradients with an error of a hundredth, and missing decay.
struct SmallError {
  const char* name;
  float rate;
  float decay;
};

void PrintTo(const SmallError& error, std::ostream* out) {
  *out << error.name << ", rate times " << error.rate << ", decay times " << error.decay;
}

class SmallErrors : public testing::TestWithParam<SmallError> {};

TEST_P(SmallErrors, AreDetected) {
  const auto [name, rate, decay] = GetParam();
  Curve curve = ReadCurveNamed(name);
  v1::Sgd& sgd = *curve.spec.mutable_optimizer()->mutable_sgd();
  v1::Schedule& schedule = *curve.spec.mutable_schedule();
  sgd.set_weight_decay(decay * sgd.weight_decay());
  schedule.set_base_rate(rate * schedule.base_rate());
  const auto result = Train(curve, 1);
  ASSERT_TRUE(result.ok()) << result.status();
  const Difference worst = Compare(curve, *result);
  EXPECT_GT(worst.loss_units, 1) << worst.loss;
  RecordProperty("loss", absl::StrFormat("%.1e, %.2f of the limit", worst.loss, worst.loss_units));
}

INSTANTIATE_TEST_SUITE_P(Runs, SmallErrors,
                         testing::Values(SmallError{"lenet", 1.01F, 1}, SmallError{"lenet", 1, 0},
                                         SmallError{"resnet18", 1.01F, 1},
                                         SmallError{"gpt", 1.01F, 1}, SmallError{"gpt", 1, 0},
                                         SmallError{"gnmt", 1.01F, 1}));

}  // namespace
}  // namespace cadre
