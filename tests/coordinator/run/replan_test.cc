#include "coordinator/run/replan.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "absl/strings/substitute.h"
#include "tests/base/expect.h"

namespace cadre {
namespace {

v1::Plan PlanOf(const std::string& axis, uint32_t ranks = 4) {
  return Parse<v1::Plan>(absl::Substitute(
      "mesh { name: '$0' size: $1 } layers { layer: 'fc1' split { index: '$2' axes: '$0' } }", axis,
      ranks, axis == "data" ? "samples" : "out"));
}

GroupPlan Predicted(const std::string& axis, double step) {
  GroupPlan plan{.plan = PlanOf(axis)};
  plan.predicted.emplace();
  plan.predicted->set_step(step);
  return plan;
}

TEST(ReplanTest, SignatureIgnoresBuckets) {
  v1::Plan plan = PlanOf("data");
  const std::string signature = SignatureOf(plan);
  plan.add_buckets()->set_algorithm(v1::Plan::RING);
  plan.mutable_link()->set_alpha(1);
  EXPECT_EQ(SignatureOf(plan), signature) << "buckets and link are ignored";
  v1::MeshAxis& none = *plan.add_mesh();
  none.set_name("model");
  none.set_size(1);
  plan.mutable_layers(0)->add_split()->set_index("out");
  plan.mutable_layers(0)->mutable_split(1)->add_axes("model");
  EXPECT_EQ(SignatureOf(plan), signature) << "an axis of one rank splits nothing";
  plan.mutable_mesh(1)->set_size(2);
  const std::string both = SignatureOf(plan);
  EXPECT_NE(both, signature);
  plan.mutable_layers(0)->mutable_split()->SwapElements(0, 1);
  EXPECT_EQ(SignatureOf(plan), both) << "the order of the splits is ignored";
  EXPECT_NE(SignatureOf(PlanOf("data", 2)), signature);
  EXPECT_NE(SignatureOf(PlanOf("model")), signature);
  v1::RecomputedBlock& block = *plan.add_recomputed();
  block.set_first("fc1");
  block.set_last("fc1");
  EXPECT_NE(SignatureOf(plan), both);
}

TEST(ReplanTest, SignatureHasTheAxesOfEverySplit) {
  v1::Plan plan = Parse<v1::Plan>(R"(
      mesh { name: "data" size: 2 } mesh { name: "model" size: 2 }
      layers { layer: "fc1" split { index: "samples" axes: "data" } })");
  std::set<std::string> signatures = {SignatureOf(plan)};
  v1::IndexSplit& split = *plan.mutable_layers(0)->mutable_split(0);
  split.add_axes("model");
  signatures.insert(SignatureOf(plan));
  split.mutable_axes()->SwapElements(0, 1);
  signatures.insert(SignatureOf(plan));
  split.clear_axes();
  split.add_axes("model");
  signatures.insert(SignatureOf(plan));
  split.set_index("out");
  signatures.insert(SignatureOf(plan));
  plan.mutable_layers(0)->clear_split();
  signatures.insert(SignatureOf(plan));
  EXPECT_EQ(signatures.size(), 6U);
}

TEST(ReplanTest, SignatureHasCoordinates) {
  v1::Plan plan = PlanOf("stage", 2);
  v1::AxisCoordinate& at = *plan.mutable_layers(0)->add_at();
  at.set_axis("stage");
  const std::string first = SignatureOf(plan);
  EXPECT_NE(first, SignatureOf(PlanOf("stage", 2)));
  plan.mutable_layers(0)->mutable_at(0)->set_coordinate(1);
  EXPECT_NE(SignatureOf(plan), first);
}

TEST(ReplanTest, OfEquallyFastPlansTheFirstIsChosen) {
  const std::vector<GroupPlan> plans = {Predicted("data", 2), Predicted("model", 2)};
  EXPECT_EQ(&FastestOf(plans, PlanHistory()), &plans[0]);
}

TEST(ReplanTest, PlanWithoutAPredictionIsNotCompared) {
  const std::vector<GroupPlan> known_first = {Predicted("data", 2), {.plan = PlanOf("model")}};
  EXPECT_EQ(&FastestOf(known_first, PlanHistory()), &known_first[0]);
  const std::vector<GroupPlan> known_last = {{.plan = PlanOf("data")}, Predicted("model", 2)};
  EXPECT_EQ(&FastestOf(known_last, PlanHistory()), &known_last[0]);
}

TEST(ReplanTest, FirstPlanWithoutPredictions) {
  const std::vector<GroupPlan> plans = {{.plan = PlanOf("data")}, {.plan = PlanOf("model")}};
  EXPECT_EQ(&FastestOf(plans, PlanHistory()), &plans[0]);
}

TEST(ReplanTest, MeasurementOverridesPrediction) {
  const std::vector<GroupPlan> plans = {Predicted("data", 1), Predicted("model", 2)};
  PlanHistory history;
  EXPECT_EQ(&FastestOf(plans, history), &plans[0]);
  history.Record(PlanOf("data"), 3, 3);
  EXPECT_EQ(&FastestOf(plans, history), &plans[1]);
  history.Record(PlanOf("model"), 4, 4);
  EXPECT_EQ(&FastestOf(plans, history), &plans[0]) << "both are measured";
}

// The current plan takes twice its predicted time; the same factor is applied to other plans.
TEST(ReplanTest, BiasAppliesToPredictions) {
  const std::vector<GroupPlan> plans = {Predicted("model", 45), Predicted("data", 50)};
  PlanHistory history;
  history.Record(PlanOf("data"), 100, 50);
  EXPECT_DOUBLE_EQ(*history.Expected(plans[0]), 90);
  const auto better = FindBetterPlan(PlanOf("data"), 100, plans, history);
  ASSERT_TRUE(better.has_value()) << "a gain of 10 % is enough";
  EXPECT_DOUBLE_EQ(better->then_seconds, 90);
  EXPECT_FALSE(FindBetterPlan(PlanOf("data"), 99, {plans[0]}, history).has_value());
}

// The plans may have been searched for a group with other measurements.
TEST(ReplanTest, BiasIsThatOfTheSearchIfItPredictsThePresentPlan) {
  PlanHistory history;
  history.Record(PlanOf("data"), 100, 50);
  const auto better =
      FindBetterPlan(PlanOf("data"), 100, {Predicted("model", 20), Predicted("data", 25)}, history);
  ASSERT_TRUE(better.has_value());
  EXPECT_DOUBLE_EQ(better->then_seconds, 80);
  // The group is formed with the plan for which it is released.
  history.Record(PlanOf("data"), better->now_seconds, better->predicted_now);
  EXPECT_DOUBLE_EQ(*history.Expected(Predicted("model", 20)), 80);
  history.Record(PlanOf("data"), 100, 50);
  EXPECT_FALSE(
      FindBetterPlan(PlanOf("data"), 100, {Predicted("model", 46), Predicted("data", 50)}, history)
          .has_value());
  EXPECT_DOUBLE_EQ(history.bias, 2) << "it is not changed";
}

TEST(ReplanTest, BiasIsClamped) {
  PlanHistory history;
  history.Record(PlanOf("data"), 1000, 1);
  EXPECT_DOUBLE_EQ(history.bias, 4);
  history.Record(PlanOf("data"), 1, 1000);
  EXPECT_DOUBLE_EQ(history.bias, 0.25);
}

TEST(ReplanTest, CurrentPlanIsNoChange) {
  PlanHistory history;
  history.Record(PlanOf("data"), 50, 20);
  EXPECT_FALSE(
      FindBetterPlan(PlanOf("data"), 80, {Predicted("data", 10), Predicted("model", 60)}, history)
          .has_value());
  EXPECT_FALSE(FindBetterPlan(PlanOf("data"), 80, {{.plan = PlanOf("model")}}, history).has_value())
      << "the plan has no prediction";
  EXPECT_FALSE(FindBetterPlan(PlanOf("data"), 80, {{.plan = PlanOf("data")}}, history).has_value());
}

// The group moves to "model", which is slower than predicted, returns to "data" and stays.
TEST(ReplanTest, ReturnsOnce) {
  const std::vector<GroupPlan> plans = {Predicted("model", 30), Predicted("data", 50)};
  PlanHistory history;
  history.Record(PlanOf("data"), 50, 50);
  ASSERT_TRUE(FindBetterPlan(PlanOf("data"), 50, plans, history).has_value());
  history.Record(PlanOf("model"), 70, 30);
  const auto back = FindBetterPlan(PlanOf("model"), 70, plans, history);
  ASSERT_TRUE(back.has_value());
  EXPECT_DOUBLE_EQ(back->then_seconds, 50);
  history.Record(PlanOf("data"), 52, 50);
  EXPECT_FALSE(FindBetterPlan(PlanOf("data"), 52, plans, history).has_value());
}

TEST(ReplanTest, ChangeMustBeWorthwhile) {
  const PlanChange change{.now_seconds = 0.75, .then_seconds = 0.5};
  EXPECT_FALSE(IsWorthwhile(change, 20, absl::ZeroDuration()))
      << "the gain must exceed five times the cost, which is at least one second";
  EXPECT_TRUE(IsWorthwhile(change, 21, absl::ZeroDuration()));
  EXPECT_FALSE(IsWorthwhile(change, 40, absl::Seconds(2)));
  EXPECT_TRUE(IsWorthwhile(change, 41, absl::Seconds(2)));
  EXPECT_FALSE(IsWorthwhile(change, 0, absl::Seconds(2)));
  EXPECT_EQ(ToText({.now_seconds = 0.055, .then_seconds = 0.0412}),
            "replanned: 41.2 ms per step instead of 55.0 ms");
}

TEST(ReplanTest, SignatureHasTheLayers) {
  v1::Plan first = PlanOf("data", 2);
  v1::Plan second = first;
  second.mutable_layers(0)->set_layer("another");
  EXPECT_NE(SignatureOf(first), SignatureOf(second));
}

// A ratio of other plans is applied until the next one is known.
TEST(ReplanTest, BiasNeedsAPrediction) {
  PlanHistory history;
  EXPECT_EQ(history.bias, 1);
  history.Record(PlanOf("data"), 3, 2);
  EXPECT_EQ(history.bias, 1.5);
  history.Record(PlanOf("data"), 3, std::nullopt);
  EXPECT_EQ(history.bias, 1.5);
  history.Record(PlanOf("data"), 3, 0);
  EXPECT_EQ(history.bias, 1.5);
}

TEST(ReplanTest, HistoryIsStoredAndLoaded) {
  PlanHistory history;
  history.Record(PlanOf("data"), 1, 2);
  v1::GroupRecord record;
  record.add_measured_plan();
  history.Store(record);
  EXPECT_EQ(record.measured_plan_size(), 1);
  PlanHistory loaded;
  loaded.Record(PlanOf("model"), 5, 1);
  loaded.Load(record);
  EXPECT_EQ(loaded.measured, history.measured);
  EXPECT_EQ(loaded.bias, 0.5);
  loaded.Load(v1::GroupRecord());
  EXPECT_TRUE(loaded.measured.empty());
  EXPECT_EQ(loaded.bias, 1) << "a record of an earlier build has none";
}

TEST(ReplanTest, HistoryBeginsAgainWithThe65thPlan) {
  PlanHistory history;
  for (uint32_t ranks = 2; ranks <= 65; ++ranks) history.Record(PlanOf("data", ranks), 1, 1);
  history.Record(PlanOf("data", 2), 3, 1);
  EXPECT_EQ(history.measured.size(), 64U) << "a known plan takes no room";
  history.Record(PlanOf("data", 66), 1, 1);
  EXPECT_EQ(history.measured.size(), 1U);
}

TEST(ReplanTest, HistoryIsBounded) {
  PlanHistory history;
  for (uint32_t ranks = 1; ranks <= 1000; ++ranks) history.Record(PlanOf("data", ranks), 1, 1);
  EXPECT_LE(history.measured.size(), 64u);
  EXPECT_TRUE(history.Expected({.plan = PlanOf("data", 1000)}).has_value());
}

}  // namespace
}  // namespace cadre
