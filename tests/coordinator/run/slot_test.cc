#include "coordinator/run/slot.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "tests/base/expect.h"

namespace cadre {
namespace {

v1::Prepared FromRank(const Slot& slot, uint32_t rank) {
  v1::Prepared prepared;
  *prepared.mutable_place() = slot.Place(rank);
  return prepared;
}

TEST(SlotTest, StateTransitions) {
  const absl::Time now = absl::FromUnixSeconds(5);
  Slot slot("run-1", 2, now);
  EXPECT_TRUE(slot.waiting());
  slot.Form(7, {"w1", "w2"}, v1::Plan(), absl::FromUnixSeconds(6));
  EXPECT_TRUE(slot.preparing());
  EXPECT_EQ(slot.Place(1).generation(), 7u);
  EXPECT_EQ(slot.Place(1).group(), 2u);
  slot.Prepare(FromRank(slot, 0));
  slot.Prepare(FromRank(slot, 0));
  EXPECT_FALSE(slot.prepared()) << "rank 1 is not prepared";
  slot.Prepare(FromRank(slot, 1));
  EXPECT_TRUE(slot.prepared());
  EXPECT_FALSE(slot.record().lived());
  slot.Start(3, 30, 40, /*catches_up=*/true, absl::FromUnixSeconds(9));
  EXPECT_TRUE(slot.started());
  EXPECT_EQ(slot.formation(), absl::Seconds(3));
  EXPECT_FALSE(slot.record().at_end());
  slot.Clear("lost", now + absl::Seconds(1));
  EXPECT_TRUE(slot.waiting());
  EXPECT_TRUE(slot.record().lived());
  EXPECT_EQ(slot.record().reason(), "lost");
  EXPECT_EQ(slot.waiting_since(), now + absl::Seconds(1));
  EXPECT_EQ(slot.ranks(), 0u);
}

v1::Plan AssignedPlan() {
  return Parse<v1::Plan>(R"(mesh { name: "data" size: 2 }
                            layers { layer: "fc1" split { index: "samples" } }
                            buckets { algorithm: RING })");
}

TEST(SlotTest, PreparedReportsPlan) {
  Slot slot("run-1", 0, absl::FromUnixSeconds(5));
  slot.Form(1, {"w1", "w2"}, AssignedPlan(), absl::FromUnixSeconds(6));
  EXPECT_EQ(slot.plan().buckets(0).algorithm(), v1::Plan::RING);
  v1::Prepared prepared = FromRank(slot, 0);
  *prepared.mutable_plan() = AssignedPlan();
  prepared.mutable_plan()->mutable_buckets(0)->set_algorithm(v1::Plan::BUTTERFLY);
  prepared.mutable_plan()->add_buckets();
  prepared.mutable_plan()->mutable_link()->set_beta(1e-9);
  EXPECT_EQ(slot.CheckReportedPlan(prepared.plan()), absl::OkStatus());
  slot.Prepare(prepared);
  EXPECT_EQ(slot.plan().SerializeAsString(), prepared.plan().SerializeAsString());
  EXPECT_EQ(slot.record().plan().SerializeAsString(), AssignedPlan().SerializeAsString())
      << "the assigned plan is kept";
  // Plans of other ranks are ignored.
  v1::Prepared other = FromRank(slot, 1);
  *other.mutable_plan() = AssignedPlan();
  slot.Prepare(other);
  EXPECT_EQ(slot.plan().buckets_size(), 2);
  // The reported plan survives a restart and ends with the generation.
  EXPECT_EQ(Slot(slot.record(), absl::FromUnixSeconds(6)).plan().buckets_size(), 2);
  slot.Clear("lost", absl::FromUnixSeconds(6));
  EXPECT_EQ(slot.plan().buckets_size(), 0);
  slot.Form(2, {"w1", "w2"}, AssignedPlan(), absl::FromUnixSeconds(6));
  EXPECT_EQ(slot.plan().buckets_size(), 1);
}

// One rank could otherwise make every status larger than a message may be.
TEST(SlotTest, LargeReportsAreNotKept) {
  Slot slot("run-1", 0, absl::FromUnixSeconds(5));
  slot.Form(1, {"w1", "w2"}, AssignedPlan(), absl::FromUnixSeconds(6));
  v1::Prepared prepared = FromRank(slot, 0);
  for (int i = 0; i < 1000; ++i) prepared.add_held()->set_parameter(std::string(2000, 'x'));
  slot.Prepare(prepared);
  EXPECT_EQ(slot.prepared_ranks().at(0).held_size(), 1000);
  prepared.add_held()->set_parameter(std::string(200'000, 'x'));
  slot.Prepare(prepared);
  EXPECT_EQ(slot.prepared_ranks().at(0).held_size(), 0);
  v1::Plan plan = AssignedPlan();
  for (int i = 0; i < (1 << 18); ++i) plan.add_buckets();
  EXPECT_FALSE(slot.CheckReportedPlan(plan).ok());
}

TEST(SlotTest, OtherPlanIsRefused) {
  Slot slot("run-1", 0, absl::FromUnixSeconds(5));
  slot.Form(1, {"w1", "w2"}, AssignedPlan(), absl::FromUnixSeconds(6));
  const auto reason = [&](const std::function<void(v1::Plan&)>& change) {
    v1::Plan plan = AssignedPlan();
    change(plan);
    const absl::Status status = slot.CheckReportedPlan(plan);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_EQ(reason([](v1::Plan& p) { p.mutable_mesh(0)->set_size(3); }),
            "its mesh differs from the assigned one");
  EXPECT_EQ(reason([](v1::Plan& p) { p.add_mesh(); }), "its mesh differs from the assigned one");
  EXPECT_EQ(reason([](v1::Plan& p) { p.clear_layers(); }),
            "it has 0 layers, the assigned plan has 1");
  EXPECT_EQ(reason([](v1::Plan& p) { p.mutable_layers(0)->mutable_split(0)->add_axes("data"); }),
            "the layout of layer 'fc1' differs from the assigned one");
}

TEST(SlotTest, StartWithoutStepsIsAtEnd) {
  Slot slot("run-1", 0, absl::FromUnixSeconds(5));
  slot.Form(1, {"w1"}, v1::Plan(), absl::FromUnixSeconds(6));
  slot.Start(3, 30, 0, /*catches_up=*/false, absl::FromUnixSeconds(6));
  EXPECT_TRUE(slot.record().at_end());
  EXPECT_FALSE(slot.SetAtEnd());
}

// Prediction and measurement belong to a generation; the history of plans belongs to the slot.
TEST(SlotTest, ClearKeepsPlanHistory) {
  Slot slot("run-1", 0, absl::FromUnixSeconds(5));
  slot.Form(1, {"w1"}, AssignedPlan(), absl::FromUnixSeconds(6));
  v1::StepTimes times;
  times.set_step(2);
  slot.Predict(times, /*from_own_measurement=*/true);
  EXPECT_TRUE(slot.record().prediction_from_own_measurement());
  slot.measured = times;
  slot.better = PlanChange{.now_seconds = 2, .then_seconds = 1};
  slot.RecordPlan(2, 1);
  slot.Clear("replanned", absl::FromUnixSeconds(7));
  EXPECT_FALSE(slot.record().has_predicted());
  EXPECT_FALSE(slot.measured.has_value());
  EXPECT_FALSE(slot.better.has_value());
  EXPECT_FALSE(slot.record().prediction_from_own_measurement());
  EXPECT_EQ(slot.plans().Expected({.plan = AssignedPlan()}), 2);
  const Slot restored(slot.record(), absl::FromUnixSeconds(8));
  EXPECT_EQ(restored.plans().Expected({.plan = AssignedPlan()}), 2);
  EXPECT_EQ(restored.plans().bias, 2);
}

TEST(SlotTest, CountsBytesOnce) {
  Slot slot("run-1", 0, absl::FromUnixSeconds(5));
  slot.Form(1, {"w1"}, v1::Plan(), absl::FromUnixSeconds(6));
  EXPECT_TRUE(slot.CountRound(1));
  EXPECT_FALSE(slot.CountRound(1));
  EXPECT_TRUE(slot.CountRound(2));
  EXPECT_FALSE(slot.CountRound(1));
  EXPECT_TRUE(slot.CountVersion(1));
  EXPECT_FALSE(slot.CountVersion(1));
  slot.Clear("", absl::FromUnixSeconds(6));
  slot.Form(2, {"w1"}, v1::Plan(), absl::FromUnixSeconds(6));
  EXPECT_TRUE(slot.CountRound(1)) << "the bytes of a new generation are counted";
}

}  // namespace
}  // namespace cadre
