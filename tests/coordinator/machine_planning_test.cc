// What groups measure, what is predicted of them, and when they are planned anew.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "coordinator/keys.h"
#include "tests/coordinator/fake_cluster.h"

namespace cadre::testing {
namespace {

using ::testing::HasSubstr;

// Knows two plans: over "data", which is also the rules', and over "model". Their steps take what a
// test says, on any machine whose layers were measured.
class FakePlanning final : public Planning {
 public:
  std::map<std::string, double> seconds = {{"data", 0.05}, {"model", 0.03}};
  mutable std::vector<PlanQuery> questions;
  mutable int searches = 0;

  absl::StatusOr<std::vector<GroupPlan>> PlansFor(const PlanQuery& question) const override {
    ++searches;
    questions.push_back(question);
    questions.back().spec = nullptr;
    if (question.times.empty()) return std::vector<GroupPlan>{{.plan = PlanOf(question, "data")}};
    std::vector<GroupPlan> plans;
    for (const auto& [axis, step] : seconds) {
      plans.push_back({.plan = PlanOf(question, axis), .predicted = TimesOf(step)});
    }
    std::sort(plans.begin(), plans.end(), [](const GroupPlan& a, const GroupPlan& b) {
      return a.predicted->step() < b.predicted->step();
    });
    return plans;
  }
  absl::StatusOr<v1::StepTimes> Predict(const PlanQuery& question,
                                        const v1::Plan& plan) const override {
    questions.push_back(question);
    questions.back().spec = nullptr;
    if (question.times.empty()) return absl::FailedPreconditionError("nothing was measured");
    return TimesOf(seconds.at(plan.mesh(0).name()));
  }
  std::string KeyOf(const v1::Model&) const override { return "0123456789abcdef"; }
  std::vector<std::string> LayersOf(const v1::Model&) const override { return {"fc1", "fc2"}; }

 private:
  static v1::Plan PlanOf(const PlanQuery& question, const std::string& axis) {
    v1::Plan plan;
    v1::MeshAxis& mesh = *plan.add_mesh();
    mesh.set_name(axis);
    mesh.set_size(static_cast<uint32_t>(question.ranks.size()));
    return plan;
  }
  static v1::StepTimes TimesOf(double step) {
    v1::StepTimes times;
    times.set_step(step);
    times.set_compute(step);
    return times;
  }
};

class MachinePlanningTest : public ::testing::Test {
 protected:
  MachinePlanningTest()
      : cluster_([this](Machine::Options& options) { options.planning = &planning_; }) {
    cluster_.behaviour.train = false;
    cluster_.AddAggregator("agg-0");
  }
  void AddWorkers(int n) {
    for (int i = 0; i < n; ++i) cluster_.AddWorker(absl::StrCat("w", cluster_.workers().size()));
  }
  std::string MeshOf(const std::string& run, uint32_t group = 0) {
    const v1::GroupStatus status = cluster_.Group(run, group);
    return status.mesh().empty() ? "" : status.mesh().begin()->first;
  }
  void Measure(const std::string& run, double step, uint32_t group = 0) {
    cluster_.Measure(cluster_.Lead(run, group), step);
  }
  // Every group ends a round.
  void Commit(const std::string& run, uint32_t groups = 1) {
    for (uint32_t group = 0; group < groups; ++group) {
      cluster_.ContributeOnce(cluster_.Lead(run, group));
    }
  }

  FakePlanning planning_;
  FakeCluster cluster_;
};

TEST_F(MachinePlanningTest, MeasurementsAreShownAndStored) {
  AddWorkers(2);
  const std::string run = cluster_.Submit(MakeSpec(1, 2, 5, 20));
  EXPECT_FALSE(cluster_.Group(run, 0).has_predicted()) << "nothing was measured yet";
  EXPECT_FALSE(cluster_.Group(run, 0).has_measured());
  Measure(run, 0.1);
  const v1::GroupStatus group = cluster_.Group(run, 0);
  EXPECT_EQ(group.measured().step(), 0.1);
  EXPECT_EQ(group.predicted().step(), 0.05) << "of what it has measured itself";
  EXPECT_TRUE(group.prediction_from_own_measurement());
  EXPECT_DOUBLE_EQ(group.prediction_error(), -0.5);
  EXPECT_THAT(group.prediction_error_cause(),
              HasSubstr("link: collectives and updates took 100 ms"));
  ASSERT_EQ(cluster_.store().count(LayerTimesKey("processor, 1 thread", "0123456789abcdef")), 1u);
  v1::LayerTimesRecord record;
  ASSERT_TRUE(record.ParseFromString(
      cluster_.store().at(LayerTimesKey("processor, 1 thread", "0123456789abcdef"))));
  EXPECT_EQ(record.device(), "processor, 1 thread");
  EXPECT_EQ(record.times().time(0).layer(), "fc1");
}

TEST_F(MachinePlanningTest, LaterRunUsesMeasurements) {
  AddWorkers(2);
  const std::string first = cluster_.Submit(MakeSpec(1, 2, 5, 20));
  EXPECT_EQ(MeshOf(first), "data");
  Measure(first, 0.05);
  cluster_.StopRun(first);
  cluster_.RestartCoordinator();
  const std::string second = cluster_.Submit(MakeSpec(1, 2, 5, 20));
  EXPECT_EQ(MeshOf(second), "model") << "the faster one, as measured layers say";
  EXPECT_EQ(cluster_.Group(second, 0).predicted().step(), 0.03);
  planning_.seconds["model"] = 0.07;
  Measure(second, 0.04);
  EXPECT_EQ(cluster_.Group(second, 0).predicted().step(), 0.03)
      << "as it was predicted before this run measured anything";
  EXPECT_FALSE(cluster_.Group(second, 0).prediction_from_own_measurement());
}

TEST_F(MachinePlanningTest, KeepPlanUsesRules) {
  AddWorkers(2);
  v1::RunSpec spec = MakeSpec(1, 2, 5, 20);
  spec.mutable_cluster()->set_keep_plan(true);
  for (int time = 0; time < 2; ++time) {
    const std::string run = cluster_.Submit(spec);
    EXPECT_EQ(MeshOf(run), "data");
    EXPECT_EQ(cluster_.Group(run, 0).has_predicted(), time > 0) << "it is predicted all the same";
    Measure(run, 0.05);
    cluster_.StopRun(run);
  }
}

TEST_F(MachinePlanningTest, ARestartKeepsBoth) {
  AddWorkers(2);
  const std::string run = cluster_.Submit(MakeSpec(1, 2, 5, 20));
  Measure(run, 0.06);
  planning_.seconds["data"] = 0.5;
  cluster_.RestartCoordinator();
  const v1::GroupStatus group = cluster_.Group(run, 0);
  EXPECT_EQ(group.generation(), 1u);
  EXPECT_EQ(group.predicted().step(), 0.05);
  EXPECT_EQ(group.measured().step(), 0.06) << "the lead has said it again";
  EXPECT_TRUE(group.prediction_from_own_measurement());
}

TEST_F(MachinePlanningTest, RanksOfAHostAreAdjacent) {
  for (const char* host : {"a", "b", "a", "b"}) {
    cluster_.AddWorker(absl::StrCat("w", cluster_.workers().size()), host);
    cluster_.workers().back().cores = 8;
  }
  // They say how many cores they have when they join anew.
  for (FakeWorker& worker : cluster_.workers()) {
    cluster_.Cut(worker);
    cluster_.Connect(worker);
  }
  cluster_.Submit(MakeSpec(1, 4, 5, 20));
  ASSERT_FALSE(planning_.questions.empty());
  const PlanQuery& question = planning_.questions.back();
  std::string hosts;
  for (const RankResources& rank : question.ranks) hosts += rank.host;
  EXPECT_EQ(hosts, "aabb");
  EXPECT_EQ(question.ranks[0].cores, 4) << "two share eight";
  EXPECT_EQ(question.ranks[0].device, "processor, 1 thread");
  EXPECT_EQ(cluster_.workers()[2].place().rank(), 1u);
}

// Workers of a host share its memory; of a GPU each has said what it may take.
TEST_F(MachinePlanningTest, AGpusMemoryIsItsWorkersOwn) {
  for (const char* device : {"cpu:1", "cuda:NVIDIA H200"}) {
    cluster_.behaviour.train = false;
    for (int i = 0; i < 2; ++i) {
      FakeWorker& worker =
          cluster_.AddWorker(absl::StrCat("w", cluster_.workers().size()), "host", device);
      worker.memory_bytes = 1000;
      cluster_.Cut(worker);
      cluster_.Connect(worker);
    }
    const std::string run = cluster_.Submit(MakeSpec(1, 2, 5, 20));
    ASSERT_EQ(cluster_.RunStatus(run).state(), v1::RUN_STATE_RUNNING) << device;
    ASSERT_FALSE(planning_.questions.empty());
    const PlanQuery& question = planning_.questions.back();
    ASSERT_EQ(question.ranks.size(), 2u);
    EXPECT_EQ(question.ranks[0].device, device);
    EXPECT_EQ(question.ranks[0].memory_bytes, *device == 'c' && device[1] == 'p' ? 500 : 1000);
  }
}

TEST_F(MachinePlanningTest, LinksAreRememberedByHosts) {
  AddWorkers(2);
  cluster_.behaviour.on_prepared = [&](v1::Prepared& prepared) {
    if (prepared.place().rank() != 0) return;
    *prepared.mutable_plan() = cluster_.workers()[0].assignment->plan();
    prepared.mutable_plan()->mutable_link()->set_beta(7e-9);
  };
  const std::string run = cluster_.Submit(MakeSpec(1, 2, 5, 20));
  EXPECT_FALSE(planning_.questions.front().link.has_value());
  cluster_.RestartCoordinator();
  planning_.questions.clear();
  Measure(run, 0.06);
  ASSERT_TRUE(planning_.questions.back().link.has_value());
  EXPECT_EQ(planning_.questions.back().link->beta(), 7e-9);
}

TEST_F(MachinePlanningTest, BetterPlanAtNextCommit) {
  AddWorkers(2);
  const std::string run = cluster_.Submit(MakeSpec(1, 2, 5, 1000));
  Measure(run, 0.05);
  EXPECT_EQ(cluster_.Group(run, 0).generation(), 1u) << "not in the middle of a round";
  Commit(run);
  ASSERT_EQ(cluster_.RunStatus(run).version(), 1u);
  v1::GroupStatus group = cluster_.Group(run, 0);
  EXPECT_EQ(group.generation(), 2u);
  EXPECT_EQ(MeshOf(run), "model");
  EXPECT_EQ(group.state(), v1::GROUP_STATE_TRAINING);
  EXPECT_EQ(group.version(), 1u);
  EXPECT_EQ(group.reason(), "replanned: 30.0 ms per step instead of 50.0 ms");
  EXPECT_EQ(group.predicted().step(), 0.03);
  EXPECT_FALSE(group.has_measured());
  EXPECT_EQ(cluster_.Counter("groups_replanned"), 1u);
  EXPECT_EQ(cluster_.Counter("groups_failed"), 0u);
  Measure(run, 0.032);
  Commit(run);
  Commit(run);
  EXPECT_EQ(cluster_.RunStatus(run).version(), 3u);
  EXPECT_EQ(cluster_.Group(run, 0).generation(), 2u);
  EXPECT_EQ(cluster_.Counter("groups_replanned"), 1u);
}

TEST_F(MachinePlanningTest, DisappointingPlanIsLeftOnce) {
  AddWorkers(2);
  const std::string run = cluster_.Submit(MakeSpec(1, 2, 5, 1000));
  Measure(run, 0.05);
  Commit(run);
  ASSERT_EQ(MeshOf(run), "model");
  Measure(run, 0.08);
  Commit(run);
  EXPECT_EQ(MeshOf(run), "data") << "its 50 ms are measured";
  EXPECT_EQ(cluster_.Group(run, 0).reason(), "replanned: 50.0 ms per step instead of 80.0 ms");
  for (int round = 0; round < 3; ++round) {
    Measure(run, 0.05);
    Commit(run);
  }
  EXPECT_EQ(MeshOf(run), "data") << "however fast the planner still thinks the other is";
  EXPECT_EQ(cluster_.Counter("groups_replanned"), 2u);
}

// As above; what was measured outlives the coordinator.
TEST_F(MachinePlanningTest, PlanHistorySurvivesRestart) {
  AddWorkers(2);
  const std::string run = cluster_.Submit(MakeSpec(1, 2, 5, 1000));
  Measure(run, 0.05);
  Commit(run);
  Measure(run, 0.08);
  Commit(run);
  ASSERT_EQ(MeshOf(run), "data");
  cluster_.RestartCoordinator();
  for (int round = 0; round < 3; ++round) {
    Measure(run, 0.05);
    Commit(run);
  }
  EXPECT_EQ(cluster_.RunStatus(run).version(), 5u);
  EXPECT_EQ(MeshOf(run), "data");
  EXPECT_EQ(cluster_.Counter("groups_replanned"), 2u);
}

// It lives without its fourth worker, and does not wait for one again when it is planned anew.
TEST_F(MachinePlanningTest, AShortGroupFormsAnewAtOnce) {
  AddWorkers(3);
  v1::RunSpec spec = MakeSpec(1, 3, 5, 1000);
  spec.mutable_cluster()->set_min_ranks_per_group(2);
  const std::string run = cluster_.Submit(spec);
  ASSERT_EQ(cluster_.Group(run, 0).members_size(), 3);
  cluster_.Kill(cluster_.workers()[2]);
  ASSERT_TRUE(cluster_.RunUntil([&] {
    return cluster_.Group(run, 0).members_size() == 2 &&
           cluster_.Group(run, 0).state() == v1::GROUP_STATE_TRAINING;
  }));
  ASSERT_EQ(MeshOf(run), "data");
  const uint32_t generation = cluster_.Group(run, 0).generation();
  const absl::Time before = cluster_.now();
  Measure(run, 0.05);
  Commit(run);
  EXPECT_EQ(cluster_.now(), before);
  EXPECT_EQ(MeshOf(run), "model");
  EXPECT_EQ(cluster_.Group(run, 0).members_size(), 2);
  EXPECT_EQ(cluster_.Group(run, 0).generation(), generation + 1);
  EXPECT_EQ(cluster_.Group(run, 0).state(), v1::GROUP_STATE_TRAINING);
}

// The oldest of the idle workers would come first otherwise.
TEST_F(MachinePlanningTest, ReplanKeepsMembers) {
  AddWorkers(4);
  const std::string early = cluster_.Submit(MakeSpec(1, 2, 5, 1000));
  const std::string run = cluster_.Submit(MakeSpec(1, 2, 5, 1000));
  cluster_.StopRun(early);
  const v1::GroupStatus before = cluster_.Group(run, 0);
  ASSERT_EQ(before.members_size(), 2);
  ASSERT_FALSE(cluster_.workers()[0].assignment.has_value());
  Measure(run, 0.05);
  Commit(run);
  const v1::GroupStatus after = cluster_.Group(run, 0);
  EXPECT_GT(after.generation(), before.generation());
  EXPECT_EQ(MeshOf(run), "model");
  ASSERT_EQ(after.members_size(), 2);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(after.members(rank).member_id(), before.members(rank).member_id());
  }
}

TEST_F(MachinePlanningTest, EqualGroupsShareASearch) {
  AddWorkers(2);
  const std::string first = cluster_.Submit(MakeSpec(1, 2, 5, 20));
  Measure(first, 0.05);
  cluster_.StopRun(first);
  AddWorkers(4);
  planning_.searches = 0;
  const std::string run = cluster_.Submit(MakeSpec(3, 2, 5, 20));
  EXPECT_EQ(planning_.searches, 1);
  for (uint32_t group = 0; group < 3; ++group) EXPECT_EQ(MeshOf(run, group), "model");
  cluster_.StopRun(run);
  cluster_.AddWorker("w6", "elsewhere");
  cluster_.AddWorker("w7", "elsewhere");
  // So that one has fewer neighbours than the others.
  for (FakeWorker& worker : cluster_.workers()) {
    worker.cores = 8;
    cluster_.Cut(worker);
    cluster_.Connect(worker);
  }
  planning_.searches = 0;
  cluster_.Submit(MakeSpec(4, 2, 5, 20));
  EXPECT_GT(planning_.searches, 1) << "machines differ";
}

// Both on one host: what one measures is not the other's link.
TEST_F(MachinePlanningTest, PredictionUsesOwnLink) {
  AddWorkers(4);
  cluster_.behaviour.on_prepared = [&](v1::Prepared& prepared) {
    if (prepared.place().rank() != 0) return;
    for (const FakeWorker& worker : cluster_.workers()) {
      if (!worker.lead() || worker.place().group() != prepared.place().group()) continue;
      *prepared.mutable_plan() = worker.assignment->plan();
    }
    prepared.mutable_plan()->mutable_link()->set_beta(1e-9 * (1 + prepared.place().group()));
  };
  const std::string run = cluster_.Submit(MakeSpec(2, 2, 5, 20));
  for (uint32_t group = 0; group < 2; ++group) {
    planning_.questions.clear();
    Measure(run, 0.06, group);
    ASSERT_FALSE(planning_.questions.empty());
    for (const PlanQuery& question : planning_.questions) {
      EXPECT_EQ(question.link->beta(), 1e-9 * (1 + group));
    }
  }
}

// What keeps a group at its plan.
struct Kept {
  const char* label;
  void (*change)(v1::RunSpec&);
  double predicted;
};
class MachineKeepsPlanTest : public MachinePlanningTest,
                             public ::testing::WithParamInterface<Kept> {};

TEST_P(MachineKeepsPlanTest, Stays) {
  AddWorkers(2);
  planning_.seconds["model"] = GetParam().predicted;
  v1::RunSpec spec = MakeSpec(1, 2, 5, 1000);
  GetParam().change(spec);
  const std::string run = cluster_.Submit(spec);
  Measure(run, 0.05);
  Commit(run);
  EXPECT_GT(cluster_.RunStatus(run).step(), 0u);
  EXPECT_EQ(cluster_.Group(run, 0).generation(), 1u);
  EXPECT_EQ(cluster_.Counter("groups_replanned"), 0u);
}

INSTANTIATE_TEST_SUITE_P(
    All, MachineKeepsPlanTest,
    ::testing::Values(
        Kept{"RequestedByUser", [](v1::RunSpec& s) { s.mutable_cluster()->set_keep_plan(true); },
             0.03},
        Kept{"TooFewStepsAreLeft", [](v1::RunSpec& s) { s.mutable_stop()->set_steps(250); }, 0.03},
        Kept{"ItsEndIsNotKnown",
             [](v1::RunSpec& s) {
               s.clear_stop();
               s.mutable_stop()->set_test_accuracy(0.99F);
             },
             0.03},
        Kept{"TheGainIsSmall", [](v1::RunSpec&) {}, 0.046},
        Kept{"TheRunNeverAverages", [](v1::RunSpec& s) { s.clear_averaging(); }, 0.03}),
    [](const auto& info) { return info.param.label; });

TEST_F(MachinePlanningTest, NoReplanWithoutAMember) {
  AddWorkers(2);
  const std::string run = cluster_.Submit(MakeSpec(1, 2, 5, 1000));
  Measure(run, 0.05);
  FakeWorker& other = cluster_.workers()[cluster_.workers()[0].lead() ? 1 : 0];
  cluster_.Cut(other);
  Commit(run);
  EXPECT_EQ(cluster_.Group(run, 0).generation(), 1u);
  cluster_.Connect(other);
  Commit(run);
  EXPECT_EQ(cluster_.Group(run, 0).generation(), 2u);
  EXPECT_EQ(cluster_.Group(run, 0).members_size(), 2);
}

TEST_F(MachinePlanningTest, OneReplanPerCall) {
  AddWorkers(4);
  const std::string run = cluster_.Submit(MakeSpec(2, 2, 5, 1000));
  Measure(run, 0.05, 0);
  Measure(run, 0.05, 1);
  Commit(run, 2);
  EXPECT_EQ(MeshOf(run, 0), "model");
  EXPECT_EQ(MeshOf(run, 1), "data");
  EXPECT_EQ(cluster_.Counter("groups_replanned"), 1u);
  Commit(run, 2);
  EXPECT_EQ(MeshOf(run, 1), "model");
  EXPECT_EQ(cluster_.Counter("groups_replanned"), 2u);
}

// Its stream stays: on every new one it would come before all else again, and nothing would ever
// get through.
TEST_F(MachinePlanningTest, InvalidMeasurementIsDropped) {
  AddWorkers(2);
  const std::string run = cluster_.Submit(MakeSpec(1, 2, 5, 20));
  FakeWorker& lead = cluster_.Lead(run, 0);
  Measure(run, -1);
  EXPECT_EQ(cluster_.Counter("refused_malformed"), 1u);
  EXPECT_FALSE(cluster_.Group(run, 0).has_measured());
  EXPECT_EQ(cluster_.store().count(LayerTimesKey(lead.device, "0123456789abcdef")), 0u);
  EXPECT_TRUE(cluster_.IsOpen(lead.connection));
  Commit(run);
  EXPECT_EQ(cluster_.RunStatus(run).version(), 1u);
  EXPECT_EQ(cluster_.Group(run, 0).generation(), 1u);
  cluster_.Cut(lead);
  cluster_.Connect(lead);
  EXPECT_EQ(cluster_.Counter("refused_malformed"), 2u) << "said again";
  Commit(run);
  EXPECT_EQ(cluster_.RunStatus(run).version(), 2u);
}

TEST_F(MachinePlanningTest, OnlyTheRunsLayersAreKept) {
  AddWorkers(2);
  const std::string run = cluster_.Submit(MakeSpec(1, 2, 5, 20));
  FakeWorker& lead = cluster_.Lead(run, 0);
  v1::MemberMessage message;
  v1::Measured& measured = *message.mutable_measured();
  *measured.mutable_place() = lead.place();
  measured.mutable_times()->set_step(1);
  measured.set_copy_seconds(3e-9);
  for (const char* layer : {"fc1", "elsewhere", "fc2"}) {
    v1::LayerTime& time = *measured.mutable_layers()->add_time();
    time.set_layer(layer);
    time.set_samples(16);
  }
  cluster_.SendFrom(lead.connection, message);
  v1::LayerTimesRecord record;
  ASSERT_TRUE(
      record.ParseFromString(cluster_.store().at(LayerTimesKey(lead.device, "0123456789abcdef"))));
  ASSERT_EQ(record.times().time_size(), 2);
  EXPECT_EQ(record.times().time(0).layer(), "fc1");
  EXPECT_EQ(record.times().time(1).layer(), "fc2");
  EXPECT_EQ(record.copy_seconds(), 3e-9);
}

TEST_F(MachinePlanningTest, OnlyCurrentRankZeroMeasures) {
  AddWorkers(2);
  const std::string run = cluster_.Submit(MakeSpec(1, 2, 5, 20));
  FakeWorker& other = cluster_.workers()[cluster_.workers()[0].lead() ? 1 : 0];
  v1::MemberMessage message;
  *message.mutable_measured()->mutable_place() = cluster_.Lead(run, 0).place();
  message.mutable_measured()->mutable_times()->set_step(1);
  message.mutable_measured()->mutable_place()->set_generation(99);
  cluster_.SendFrom(cluster_.Lead(run, 0).connection, message);
  EXPECT_EQ(cluster_.Counter("refused_stale_generation"), 1u);
  *message.mutable_measured()->mutable_place() = other.place();
  cluster_.SendFrom(other.connection, message);
  EXPECT_EQ(cluster_.Counter("refused_malformed"), 1u);
  EXPECT_FALSE(cluster_.Group(run, 0).has_measured());
}

}  // namespace
}  // namespace cadre::testing
