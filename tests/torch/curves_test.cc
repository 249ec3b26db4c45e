// Whole runs lose what they lose in PyTorch, step by step, and move every parameter as far:
// curves.safetensors (made by make_fixtures.py) against replicas of one and two ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "plan/search/planner.h"
#include "tests/torch/curve.h"
#include "tests/torch/fixtures.h"
#include "tests/torch/folder.h"

namespace cadre {
namespace {

// The fixtures are exact (PyTorch in float64), and beside them stands how far PyTorch's own float32
// runs stray from that when their weights are off by some roundings. Until a ReLU or a maximum
// falls on the other side by rounding alone that is less than 1e-6; from there on it grows with the
// steps, by as much as training itself amplifies. Sixteen such runs are no bound for the next,
// hence the factor; what no run saw may still be off by some roundings, hence the floor.
constexpr double kRoundings = 5;
constexpr double kFloor = 1e-5;
// Movements are small differences of larger weights.
constexpr double kMovedFloor = 1e-4;

struct Run {
  const char* name;
  int ranks;
};

void PrintTo(const Run& run, std::ostream* out) {
  *out << run.name << " on " << run.ranks << " ranks";
}

Fixtures OpenFixtures() {
  auto fixtures = Fixtures::Open(absl::StrCat(FixturesFolder(), "/curves.safetensors"));
  if (!fixtures.ok()) {
    ADD_FAILURE() << fixtures.status();
    std::abort();
  }
  return *std::move(fixtures);
}

Curve ReadCurveNamed(const std::string& name) {
  auto curve = ReadCurve(absl::StrCat(FixturesFolder(), "/", name, ".textproto"));
  if (!curve.ok()) {
    ADD_FAILURE() << curve.status();
    std::abort();
  }
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

struct Apart {
  // Largest relative difference of a loss, and of a movement.
  double loss = 0;
  double moved = 0;
  // The same in units of what is allowed.
  double loss_units = 0;
  double moved_units = 0;
  std::string worst_moved;
};

// Of the weights of one parameter, from their beginning.
double Moved(const Parameter& parameter, const std::vector<float>& from,
             const std::vector<float>& to) {
  double squares = 0;
  for (auto i = static_cast<size_t>(parameter.offset); i < static_cast<size_t>(parameter.end());
       ++i) {
    squares += std::pow(static_cast<double>(to[i]) - from[i], 2);
  }
  return std::sqrt(squares);
}

Apart Compare(const Curve& curve, const GroupResult& result) {
  Fixtures fixtures = OpenFixtures();
  const std::string prefix = curve.spec.name() + "/";
  const std::vector<float> losses = fixtures.Read(prefix + "losses");
  const std::vector<float> rounding = fixtures.Read(prefix + "rounding");
  EXPECT_EQ(result.losses.size(), losses.size());
  Apart apart;
  for (size_t i = 0; i < std::min(losses.size(), result.losses.size()); ++i) {
    const double difference = std::abs(result.losses[i] / losses[i] - 1);
    EXPECT_TRUE(std::isfinite(difference)) << "step " << i;
    apart.loss = std::max(apart.loss, difference);
    apart.loss_units = std::max(apart.loss_units, difference / (kFloor + kRoundings * rounding[i]));
  }
  const std::vector<float> initial = InitialWeights(curve.index, curve.spec.seed());
  for (const Parameter& parameter : curve.index.parameters()) {
    const std::vector<float> wanted = fixtures.Read(absl::StrCat(prefix, "moved/", parameter.name));
    const double difference = std::abs(Moved(parameter, initial, result.weights) / wanted[0] - 1);
    EXPECT_TRUE(std::isfinite(difference)) << parameter.name;
    const double units = difference / (kMovedFloor + kRoundings * wanted[1]);
    if (units > apart.moved_units) apart.worst_moved = parameter.name;
    apart.moved = std::max(apart.moved, difference);
    apart.moved_units = std::max(apart.moved_units, units);
  }
  return apart;
}

class Curves : public testing::TestWithParam<Run> {};

TEST_P(Curves, AreThoseOfTorch) {
  const Curve curve = ReadCurveNamed(GetParam().name);
  ASSERT_EQ(curve.spec.name(), GetParam().name);
  ASSERT_EQ(CurveDigest(curve), OpenFixtures().texts().at(curve.spec.name() + "/digest"))
      << "weights or batches are not those that the fixture was made with; make it again";
  const auto result = Train(curve, GetParam().ranks);
  ASSERT_TRUE(result.ok()) << result.status();
  // There was something to learn.
  EXPECT_LT(result->losses.back(), 0.5 * result->losses.front());
  const Apart apart = Compare(curve, *result);
  EXPECT_LT(apart.loss_units, 1) << "losses differ by up to " << apart.loss;
  EXPECT_LT(apart.moved_units, 1) << apart.worst_moved << " has moved differently, by "
                                  << apart.moved;
  RecordProperty("loss",
                 absl::StrFormat("%.1e, %.2f of what is allowed", apart.loss, apart.loss_units));
  RecordProperty("moved",
                 absl::StrFormat("%.1e, %.2f of what is allowed", apart.moved, apart.moved_units));
}

INSTANTIATE_TEST_SUITE_P(Runs, Curves,
                         testing::Values(Run{"lenet", 1}, Run{"lenet", 2}, Run{"alexnet", 1},
                                         Run{"resnet18", 1}, Run{"resnet18", 2}, Run{"gpt", 1},
                                         Run{"gpt", 2}),
                         [](const auto& info) {
                           return absl::StrCat(info.param.name, "On", info.param.ranks);
                         });

// The comparison sees small mistakes: gradients that are off by a hundredth, decay that is left
// out.
struct Mistake {
  const char* name;
  float rate;
  float decay;
};

void PrintTo(const Mistake& mistake, std::ostream* out) {
  *out << mistake.name << ", rate times " << mistake.rate << ", decay times " << mistake.decay;
}

class Mistakes : public testing::TestWithParam<Mistake> {};

TEST_P(Mistakes, AreSeen) {
  const auto [name, rate, decay] = GetParam();
  Curve curve = ReadCurveNamed(name);
  v1::Sgd& sgd = *curve.spec.mutable_optimizer()->mutable_sgd();
  v1::Schedule& schedule = *curve.spec.mutable_schedule();
  sgd.set_weight_decay(decay * sgd.weight_decay());
  schedule.set_base_rate(rate * schedule.base_rate());
  const auto result = Train(curve, 1);
  ASSERT_TRUE(result.ok()) << result.status();
  const Apart apart = Compare(curve, *result);
  EXPECT_GT(apart.loss_units, 1) << apart.loss;
  RecordProperty("loss",
                 absl::StrFormat("%.1e, %.2f of what is allowed", apart.loss, apart.loss_units));
}

INSTANTIATE_TEST_SUITE_P(Runs, Mistakes,
                         testing::Values(Mistake{"lenet", 1.01F, 1}, Mistake{"lenet", 1, 0},
                                         Mistake{"resnet18", 1.01F, 1}, Mistake{"gpt", 1.01F, 1},
                                         Mistake{"gpt", 1, 0}));

}  // namespace
}  // namespace cadre
