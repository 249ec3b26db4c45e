#include "coordinator/run/slot.h"

#include <gtest/gtest.h>

#include <cmath>
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
  // Each bucket takes two bytes.
  v1::Plan plan = AssignedPlan();
  for (int i = 0; i < (128 << 10); ++i) plan.add_buckets();
  EXPECT_EQ(slot.CheckReportedPlan(plan), absl::OkStatus());
  plan.add_buckets();
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

// A generation begins with nothing of the one before, but with the slot's history.
TEST(SlotTest, NextGenerationBeginsAnew) {
  const absl::Time now = absl::FromUnixSeconds(100);
  Slot slot("run-1", 0, now);
  slot.Form(1, {"w1", "w2"}, AssignedPlan(), now);
  v1::Prepared prepared = FromRank(slot, 0);
  *prepared.mutable_plan() = AssignedPlan();
  slot.Prepare(prepared);
  slot.Start(3, 30, 40, /*catches_up=*/true, now);
  slot.Predict(v1::StepTimes(), /*from_own_measurement=*/true);
  slot.SetAtEnd();
  slot.CountRound(5);
  slot.CountVersion(5);
  EXPECT_EQ(slot.NoteStepTime(0.5, 5, now), absl::OkStatus());
  v1::Progress progress;
  progress.set_step(35);
  progress.set_samples_per_second(8);
  slot.SetProgress(progress, /*per_sample=*/4, /*batch=*/8);
  slot.measured = v1::StepTimes();
  slot.measured_at = now;
  slot.considered = true;
  slot.better = PlanChange();
  slot.preferred_members = {"w1"};
  slot.watch.emplace(absl::Seconds(2));
  slot.version = 4;
  slot.reported = false;
  slot.nudged_round = slot.unanswered = slot.refused_round = 5;
  slot.refusal = v1::REFUSAL_SCREENED;
  slot.early.emplace();
  slot.Clear("lost", now);
  EXPECT_TRUE(slot.waiting());
  slot.Form(2, {"w3"}, AssignedPlan(), now + absl::Seconds(1));

  v1::GroupRecord expected;
  expected.set_run("run-1");
  expected.set_generation(2);
  expected.add_members("w3");
  *expected.mutable_plan() = AssignedPlan();
  expected.set_formed_ms(absl::ToUnixMillis(now + absl::Seconds(1)));
  expected.set_lived(true);
  expected.set_reason("lost");
  EXPECT_EQ(slot.record().DebugString(), expected.DebugString());
  EXPECT_TRUE(slot.prepared_ranks().empty());
  EXPECT_EQ(slot.step_seconds(), 0);
  EXPECT_EQ(slot.tokens_per_second(), 0);
  EXPECT_EQ(slot.progress.step(), 0U);
  EXPECT_FALSE(slot.measured.has_value());
  EXPECT_EQ(slot.measured_at, absl::InfinitePast());
  EXPECT_FALSE(slot.considered);
  EXPECT_FALSE(slot.better.has_value());
  EXPECT_TRUE(slot.preferred_members.empty());
  EXPECT_FALSE(slot.watch.has_value());
  EXPECT_EQ(slot.version, 0U);
  EXPECT_TRUE(slot.reported);
  EXPECT_EQ(slot.nudged_round, 0U);
  EXPECT_EQ(slot.unanswered, 0U);
  EXPECT_EQ(slot.refused_round, 0U);
  EXPECT_EQ(slot.refusal, v1::REFUSAL_UNSPECIFIED);
  EXPECT_FALSE(slot.early.has_value());
}

TEST(SlotTest, TokensOfTheStepsSinceTheLastReport) {
  Slot slot("run-1", 0, absl::FromUnixSeconds(5));
  v1::Progress progress;
  const auto report = [&](uint32_t step, uint64_t tokens) {
    progress.set_step(step);
    progress.mutable_metrics()->set_tokens(tokens);
    slot.SetProgress(progress, /*per_sample=*/0, /*batch=*/10);
    return slot.tokens_per_second();
  };
  EXPECT_EQ(report(1, 100), 0) << "the rate of samples is not known";
  progress.set_samples_per_second(20);
  EXPECT_EQ(report(3, 100), 100) << "100 tokens in 20 samples";
  EXPECT_EQ(report(3, 0), 100) << "no step since";
  EXPECT_EQ(report(4, 10), 20);
  slot.SetProgress(progress, /*per_sample=*/7, /*batch=*/10);
  EXPECT_EQ(slot.tokens_per_second(), 140);
}

TEST(SlotTest, LossStaysUntilTheNextOne) {
  Slot slot("run-1", 0, absl::FromUnixSeconds(5));
  v1::Progress progress;
  slot.SetProgress(progress, 0, 1);
  EXPECT_FALSE(slot.progress.has_loss());
  progress.set_loss(2);
  slot.SetProgress(progress, 0, 1);
  progress.clear_loss();
  slot.SetProgress(progress, 0, 1);
  EXPECT_EQ(slot.progress.loss(), 2);
  progress.set_loss(1);
  slot.SetProgress(progress, 0, 1);
  EXPECT_EQ(slot.progress.loss(), 1);
}

TEST(SlotTest, FailuresInAShortTimeBlockTheSlot) {
  absl::Time now = absl::FromUnixSeconds(1000);
  Slot slot("run-1", 0, now);
  EXPECT_FALSE(slot.ClearFailures());
  for (int i = 0; i < 10; ++i) slot.AddFailure(v1::FAILURE_CAUSE_PEER, "lost", now);
  EXPECT_EQ(slot.blocked_until(), absl::InfinitePast());
  slot.AddFailure(v1::FAILURE_CAUSE_PEER, "lost", now);
  EXPECT_EQ(slot.blocked_until(), now + absl::Seconds(1));
  slot.AddFailure(v1::FAILURE_CAUSE_PEER, "lost", now);
  EXPECT_EQ(slot.blocked_until(), now + absl::Seconds(2));
  now += absl::Minutes(10);
  slot.AddFailure(v1::FAILURE_CAUSE_PEER, "lost", now);
  EXPECT_EQ(slot.record().failed().failures(), 13U);
  now += absl::Minutes(10) + absl::Milliseconds(1);
  slot.AddFailure(v1::FAILURE_CAUSE_PEER, "lost", now);
  EXPECT_EQ(slot.record().failed().failures(), 1U) << "the others are forgotten";
  EXPECT_TRUE(slot.ClearFailures());
  EXPECT_FALSE(slot.record().has_failed());
}

TEST(SlotTest, MoreTimeThanHasPassedIsRefused) {
  const absl::Time start = absl::FromUnixSeconds(1000);
  Slot slot("run-1", 0, start);
  slot.Form(1, {"w1"}, v1::Plan(), start);
  slot.Start(0, 0, 10, /*catches_up=*/false, start);
  EXPECT_EQ(slot.NoteStepTime(5, 0, start), absl::OkStatus()) << "no steps say nothing";
  EXPECT_EQ(slot.NoteStepTime(0, 5, start), absl::OkStatus());
  EXPECT_EQ(slot.step_seconds(), 0);
  const absl::Time later = start + absl::Seconds(9);
  EXPECT_EQ(slot.NoteStepTime(10, 5, later), absl::OkStatus()) << "clocks may differ by a second";
  EXPECT_EQ(slot.step_seconds(), 2);
  EXPECT_FALSE(slot.NoteStepTime(0.5, 5, later).ok()) << "that time is claimed already";
  EXPECT_EQ(slot.step_seconds(), 2);
  EXPECT_EQ(slot.NoteStepTime(4, 4, later + absl::Seconds(3)), absl::OkStatus());
  EXPECT_EQ(slot.step_seconds(), 1.5);
  for (const double seconds : {-1.0, std::nan(""), HUGE_VAL}) {
    EXPECT_FALSE(slot.NoteStepTime(seconds, 5, later + absl::Hours(1)).ok()) << seconds;
  }
}

}  // namespace
}  // namespace cadre
