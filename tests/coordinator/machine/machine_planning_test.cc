// Measurements of groups, predictions for them, and changes to better plans.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "coordinator/store/keys.h"
#include "tests/coordinator/machine/fake_cluster.h"

namespace cadre::testing {
namespace {

using ::testing::HasSubstr;

// A planner with two plans: over "data", which is also the plan of the rules, and over "model".
// Tests set their step times, which apply to any host whose layers were measured.
class FakePlanning final : public Planning {
 public:
  std::map<std::string, double> seconds = {{"data", 0.05}, {"model", 0.03}};
  mutable std::vector<PlanQuery> queries;
  mutable int searches = 0;

  absl::StatusOr<std::vector<GroupPlan>> PlansFor(const PlanQuery& query) const override {
    ++searches;
    queries.push_back(query);
    if (query.times.empty()) return std::vector<GroupPlan>{{.plan = PlanOf(query, "data")}};
    std::vector<GroupPlan> plans;
    for (const auto& [axis, step] : seconds) {
      plans.push_back({.plan = PlanOf(query, axis), .predicted = TimesOf(step)});
    }
    std::sort(plans.begin(), plans.end(), [](const GroupPlan& a, const GroupPlan& b) {
      return a.predicted->step() < b.predicted->step();
    });
    return plans;
  }
  absl::StatusOr<v1::StepTimes> Predict(const PlanQuery& query,
                                        const v1::Plan& plan) const override {
    queries.push_back(query);
    if (query.times.empty()) return absl::FailedPreconditionError("no measurements");
    return TimesOf(seconds.at(plan.mesh(0).name()));
  }
  std::string KeyOf(const v1::Model&) const override { return "0123456789abcdef"; }
  std::vector<std::string> LayersOf(const v1::Model&) const override { return {"fc1", "fc2"}; }

 private:
  static v1::Plan PlanOf(const PlanQuery& query, const std::string& axis) {
    v1::Plan plan;
    v1::MeshAxis& mesh = *plan.add_mesh();
    mesh.set_name(axis);
    mesh.set_size(query.ranks.size());
    return plan;
  }
  static v1::StepTimes TimesOf(double step) {
    v1::StepTimes times;
    times.set_step(step);
    times.set_compute(step);
    return times;
  }
};

class MachinePlanningTest : public MachineTest {
 protected:
  MachinePlanningTest()
      : MachineTest([this](Machine::Options& options) { options.planning = &planning_; }) {
    cluster_.AddAggregator("agg-0");
  }
  // Adds workers and submits a run with one group, which consists of all of them.
  std::string Begin(int workers, uint32_t steps = 1000) {
    cluster_.AddWorkers(workers);
    return cluster_.Submit(MakeSpec(1, workers, 5, steps));
  }
  // Adds a worker with resources, which it reports when it joins.
  void AddWorkerWith(const std::string& host, uint32_t cores, uint64_t memory_bytes,
                     const std::string& device) {
    FakeWorker& worker =
        cluster_.AddWorker(absl::StrCat("w", cluster_.workers().size()), host, device);
    worker.cores = cores;
    worker.memory_bytes = memory_bytes;
    cluster_.Reconnect(worker);
  }
  std::string MeshOf(const std::string& run, uint32_t group = 0) {
    const v1::GroupStatus status = cluster_.Group(run, group);
    return status.mesh().empty() ? "" : status.mesh().begin()->first;
  }
  void Measure(const std::string& run, double step, uint32_t group = 0) {
    cluster_.Measure(cluster_.Lead(run, group), step);
  }
  // Every group contributes to a round.
  void Commit(const std::string& run, uint32_t groups = 1) {
    for (uint32_t group = 0; group < groups; ++group) Train(run, group);
  }
  v1::LayerTimesRecord StoredTimes(const std::string& device) {
    v1::LayerTimesRecord record;
    const auto found = cluster_.store().find(LayerTimesKey(device, "0123456789abcdef"));
    if (found != cluster_.store().end()) record.ParseFromString(found->second);
    return record;
  }

  FakePlanning planning_;
};

// Each would take a prediction on the loop, and a write to the store.
TEST_F(MachinePlanningTest, FrequentMeasurementsAreIgnored) {
  const std::string run = Begin(2);
  Measure(run, 0.1);
  const size_t queries = planning_.queries.size();
  for (int i = 0; i < 10; ++i) Measure(run, 0.2);
  EXPECT_EQ(planning_.queries.size(), queries);
  EXPECT_EQ(cluster_.Group(run, 0).measured().step(), 0.1);
  cluster_.Run(absl::Seconds(1));
  Measure(run, 0.2);
  EXPECT_EQ(cluster_.Group(run, 0).measured().step(), 0.2);
}

TEST_F(MachinePlanningTest, MeasurementsAreShownAndStored) {
  const std::string run = Begin(2, 20);
  EXPECT_FALSE(cluster_.Group(run, 0).has_predicted()) << "no measurements yet";
  EXPECT_FALSE(cluster_.Group(run, 0).has_measured());
  Measure(run, 0.1);
  const v1::GroupStatus group = cluster_.Group(run, 0);
  EXPECT_EQ(group.measured().step(), 0.1);
  EXPECT_EQ(group.predicted().step(), 0.05) << "from its own measurements";
  EXPECT_TRUE(group.prediction_from_own_measurement());
  EXPECT_DOUBLE_EQ(group.prediction_error(), -0.5);
  EXPECT_THAT(group.prediction_error_cause(),
              HasSubstr("link: collectives and updates took 100 ms"));
  const v1::LayerTimesRecord record = StoredTimes("processor, 1 thread");
  EXPECT_EQ(record.device(), "processor, 1 thread");
  EXPECT_EQ(record.times().time(0).layer(), "fc1");
}

TEST_F(MachinePlanningTest, TimeOfThePlanIsStoredBeforeItsPrediction) {
  const std::string run = Begin(2);
  cluster_.hold_searches = true;
  Measure(run, 0.1);
  v1::GroupRecord record;
  ASSERT_TRUE(record.ParseFromString(cluster_.store().at(GroupKey(run, 0))));
  ASSERT_EQ(record.measured_plan_size(), 1);
  EXPECT_EQ(record.measured_plan(0).step_seconds(), 0.1);
}

using MachineWithoutPlanningTest = MachineTest;

TEST_F(MachineWithoutPlanningTest, MeasurementsChangeNoPlan) {
  const std::string run = SubmitTo(1, 2, MakeSpec(1, 2, 5, 1000));
  cluster_.Measure(cluster_.Lead(run, 0), 0.1);
  Train(run);
  EXPECT_EQ(cluster_.RunStatus(run).version(), 1U);
  EXPECT_EQ(cluster_.Group(run, 0).generation(), 1U);
}

TEST_F(MachinePlanningTest, LaterRunUsesMeasurements) {
  const std::string first = Begin(2, 20);
  EXPECT_EQ(MeshOf(first), "data");
  Measure(first, 0.05);
  cluster_.StopRun(first);
  cluster_.RestartCoordinator();
  const std::string second = cluster_.Submit(MakeSpec(1, 2, 5, 20));
  EXPECT_EQ(MeshOf(second), "model") << "the faster plan by the measured times";
  EXPECT_EQ(cluster_.Group(second, 0).predicted().step(), 0.03);
  planning_.seconds["model"] = 0.07;
  Measure(second, 0.04);
  EXPECT_EQ(cluster_.Group(second, 0).predicted().step(), 0.03)
      << "the prediction made before the first measurement of this run";
  EXPECT_FALSE(cluster_.Group(second, 0).prediction_from_own_measurement());
}

// They share its cores equally, so one search serves all.
TEST_F(MachinePlanningTest, GroupsOnOneHostShareASearch) {
  constexpr uint32_t kGroups = 64;
  for (uint32_t i = 0; i < kGroups; ++i) {
    AddWorkerWith("host", kGroups, uint64_t{kGroups} << 30, "processor, 1 thread");
  }
  const std::string run = cluster_.Submit(MakeSpec(kGroups, 1, 5, 20));
  EXPECT_EQ(cluster_.RunStatus(run).groups_alive(), kGroups);
  EXPECT_EQ(planning_.searches, 1);
  for (const PlanQuery& query : planning_.queries) EXPECT_EQ(query.ranks.at(0).cores, 1);
}

TEST_F(MachinePlanningTest, KeepPlanUsesRules) {
  cluster_.AddWorkers(2);
  v1::RunSpec spec = MakeSpec(1, 2, 5, 20);
  spec.mutable_cluster()->set_keep_plan(true);
  for (int time = 0; time < 2; ++time) {
    const std::string run = cluster_.Submit(spec);
    EXPECT_EQ(MeshOf(run), "data");
    EXPECT_EQ(cluster_.Group(run, 0).has_predicted(), time > 0);
    Measure(run, 0.05);
    cluster_.StopRun(run);
  }
}

TEST_F(MachinePlanningTest, RestartKeepsPredictionAndMeasurement) {
  const std::string run = Begin(2, 20);
  Measure(run, 0.06);
  planning_.seconds["data"] = 0.5;
  cluster_.RestartCoordinator();
  const v1::GroupStatus group = cluster_.Group(run, 0);
  EXPECT_EQ(group.generation(), 1u);
  EXPECT_EQ(group.predicted().step(), 0.05);
  EXPECT_EQ(group.measured().step(), 0.06) << "rank 0 has sent it again";
  EXPECT_TRUE(group.prediction_from_own_measurement());
}

TEST_F(MachinePlanningTest, RanksOfAHostAreAdjacent) {
  for (const char* host : {"a", "b", "a", "b"}) AddWorkerWith(host, 8, 0, "processor, 1 thread");
  cluster_.Submit(MakeSpec(1, 4, 5, 20));
  ASSERT_FALSE(planning_.queries.empty());
  const PlanQuery& query = planning_.queries.back();
  std::string hosts;
  for (const RankResources& rank : query.ranks) hosts += rank.host;
  EXPECT_EQ(hosts, "aabb");
  EXPECT_EQ(query.ranks[0].cores, 4) << "two workers share 8 cores";
  EXPECT_EQ(query.ranks[0].device, "processor, 1 thread");
  EXPECT_EQ(cluster_.workers()[2].place().rank(), 1u);
}

// Workers of a host share its memory; with GPUs, each worker reports its own limit.
TEST_F(MachinePlanningTest, MemoryOfGpusIsNotShared) {
  for (const std::string device : {"cpu:1", "cuda:NVIDIA H200"}) {
    for (int i = 0; i < 2; ++i) AddWorkerWith("host", 0, 1000, device);
    const std::string run = cluster_.Submit(MakeSpec(1, 2, 5, 20));
    ASSERT_EQ(cluster_.RunStatus(run).state(), v1::RUN_STATE_RUNNING) << device;
    ASSERT_FALSE(planning_.queries.empty());
    const PlanQuery& query = planning_.queries.back();
    ASSERT_EQ(query.ranks.size(), 2u);
    EXPECT_EQ(query.ranks[0].device, device);
    EXPECT_EQ(query.ranks[0].memory_bytes, device == "cpu:1" ? 500 : 1000);
  }
}

TEST_F(MachinePlanningTest, LinkIsSentAgainAfterRestart) {
  cluster_.AddWorkers(2);
  cluster_.behaviour.on_prepared = [&](v1::Prepared& prepared) {
    if (prepared.place().rank() != 0) return;
    *prepared.mutable_plan() = cluster_.workers()[0].assignment->plan();
    prepared.mutable_plan()->mutable_link()->set_beta(7e-9);
  };
  const std::string run = cluster_.Submit(MakeSpec(1, 2, 5, 20));
  EXPECT_FALSE(planning_.queries.front().link.has_value());
  cluster_.RestartCoordinator();
  planning_.queries.clear();
  Measure(run, 0.06);
  ASSERT_TRUE(planning_.queries.back().link.has_value());
  EXPECT_EQ(planning_.queries.back().link->beta(), 7e-9);
}

TEST_F(MachinePlanningTest, BetterPlanAtNextCommit) {
  const std::string run = Begin(2);
  Measure(run, 0.05);
  EXPECT_EQ(cluster_.Group(run, 0).generation(), 1u) << "a plan never changes inside a round";
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

// A group that changes to a plan that is slower than predicted returns once and then keeps its
// plan, also after a restart of the coordinator.
TEST_F(MachinePlanningTest, SlowerPlanIsAbandonedOnce) {
  const std::string run = Begin(2);
  Measure(run, 0.05);
  Commit(run);
  ASSERT_EQ(MeshOf(run), "model");
  Measure(run, 0.08);
  Commit(run);
  EXPECT_EQ(MeshOf(run), "data") << "its 50 ms are measured";
  EXPECT_EQ(cluster_.Group(run, 0).reason(), "replanned: 50.0 ms per step instead of 80.0 ms");
  for (int round = 0; round < 3; ++round) {
    if (round == 1) cluster_.RestartCoordinator();
    Measure(run, 0.05);
    Commit(run);
  }
  EXPECT_EQ(cluster_.RunStatus(run).version(), 5u);
  EXPECT_EQ(MeshOf(run), "data") << "the other plan is predicted to be faster, but was measured";
  EXPECT_EQ(cluster_.Counter("groups_replanned"), 2u);
}

// When its plan changes, a group with fewer ranks than requested does not wait for more again.
TEST_F(MachinePlanningTest, ShrunkenGroupIsReplannedWithoutWait) {
  cluster_.AddWorkers(3);
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

// A replanned group keeps its members, although other idle workers are older.
TEST_F(MachinePlanningTest, ReplanKeepsMembers) {
  cluster_.AddWorkers(4);
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
  const std::string first = Begin(2, 20);
  Measure(first, 0.05);
  cluster_.StopRun(first);
  cluster_.AddWorkers(4);
  planning_.searches = 0;
  const std::string run = cluster_.Submit(MakeSpec(3, 2, 5, 20));
  EXPECT_EQ(planning_.searches, 1);
  for (uint32_t group = 0; group < 3; ++group) EXPECT_EQ(MeshOf(run, group), "model");
  cluster_.StopRun(run);
  cluster_.AddWorker("w6", "elsewhere");
  cluster_.AddWorker("w7", "elsewhere");
  // With cores, the groups have different resources: one shares its host with fewer workers.
  for (FakeWorker& worker : cluster_.workers()) {
    worker.cores = 8;
    cluster_.Reconnect(worker);
  }
  planning_.searches = 0;
  cluster_.Submit(MakeSpec(4, 2, 5, 20));
  EXPECT_GT(planning_.searches, 1) << "groups with different resources";
}

// A search takes long in large groups: meanwhile other runs continue, and its workers are reserved.
TEST_F(MachinePlanningTest, GroupFormsWhenThePlanIsFound) {
  const std::string first = Begin(2);
  Measure(first, 0.05);
  cluster_.AddWorkers(2);
  cluster_.hold_searches = true;
  const std::string second = cluster_.Submit(MakeSpec(1, 2, 5, 20));
  const std::string third = cluster_.Submit(MakeSpec(1, 2, 5, 20));
  EXPECT_EQ(cluster_.Group(second, 0).state(), v1::GROUP_STATE_WAITING);
  EXPECT_EQ(cluster_.Group(third, 0).state(), v1::GROUP_STATE_WAITING);
  EXPECT_EQ(ReasonOf(second), "searching a plan for the measured workers");
  Commit(first);
  EXPECT_EQ(cluster_.RunStatus(first).version(), 1u);
  cluster_.AnswerSearches();
  EXPECT_EQ(MeshOf(second), "model");
  EXPECT_EQ(cluster_.Group(third, 0).state(), v1::GROUP_STATE_WAITING);
}

TEST_F(MachinePlanningTest, SearchThatTakesTooLongIsNamed) {
  Measure(Begin(2), 0.05);
  cluster_.AddWorkers(2);
  cluster_.hold_searches = true;
  const std::string second = cluster_.Submit(MakeSpec(1, 2, 5, 20));
  cluster_.Run(absl::Minutes(5) - absl::Seconds(2));
  EXPECT_EQ(ReasonOf(second), "searching a plan for the measured workers");
  cluster_.Run(absl::Seconds(4));
  EXPECT_THAT(ReasonOf(second), HasSubstr("no plan was found for the measured workers for 5m"));
}

// The worker that is left is fewer than requested, so only the search shows that group 0 will form.
TEST_F(MachinePlanningTest, LastCheckpointWaitsForThePlan) {
  v1::RunSpec spec = MakeSpec(2, 2, 5, 20);
  spec.mutable_checkpoint()->set_directory("/checkpoints");
  spec.mutable_cluster()->set_rejoin_wait_ms(0);
  cluster_.AddWorkers(4);
  cluster_.behaviour.train = true;
  const std::string run = cluster_.Submit(spec);
  ASSERT_TRUE(cluster_.RunUntil(
      [&] { return cluster_.RunStatus(run).state() == v1::RUN_STATE_FINISHING; }));
  cluster_.Run(absl::Seconds(10));
  cluster_.hold_searches = true;
  cluster_.Kill(cluster_.Rank(run, 0, 1));
  cluster_.Run(absl::Seconds(20));
  ASSERT_EQ(cluster_.Group(run, 0).state(), v1::GROUP_STATE_WAITING);
  EXPECT_EQ(cluster_.RunStatus(run).state(), v1::RUN_STATE_FINISHING);
  cluster_.AnswerSearches();
  ASSERT_EQ(cluster_.Group(run, 0).members_size(), 1);
  v1::Checkpointed report;
  *report.mutable_place() = cluster_.Lead(run, 0).place();
  report.set_step(20);
  cluster_.Send(cluster_.Lead(run, 0), report);
  EXPECT_EQ(cluster_.RunStatus(run).state(), v1::RUN_STATE_DONE);
  EXPECT_FALSE(cluster_.RunStatus(run).checkpoint().last_missing());
}

// A search whose answer is awaited is kept, however many there are.
TEST_F(MachinePlanningTest, ManyRunsSearchAtTheSameTime) {
  cluster_.hold_searches = true;
  cluster_.AddWorkers(70);
  std::vector<std::string> runs;
  for (int i = 0; i < 70; ++i) runs.push_back(cluster_.Submit(MakeSpec(1, 1, 5, 20)));
  cluster_.AnswerSearches();
  for (const std::string& run : runs) EXPECT_EQ(StateOf(run), v1::GROUP_STATE_TRAINING) << run;
}

// Groups on one host measure different links.
TEST_F(MachinePlanningTest, PredictionUsesOwnLink) {
  cluster_.AddWorkers(4);
  cluster_.behaviour.on_prepared = [&](v1::Prepared& prepared) {
    if (prepared.place().rank() != 0) return;
    *prepared.mutable_plan() =
        cluster_.Lead(prepared.place().run(), prepared.place().group()).assignment->plan();
    prepared.mutable_plan()->mutable_link()->set_beta(1e-9 * (1 + prepared.place().group()));
  };
  const std::string run = cluster_.Submit(MakeSpec(2, 2, 5, 20));
  for (uint32_t group = 0; group < 2; ++group) {
    planning_.queries.clear();
    Measure(run, 0.06, group);
    ASSERT_FALSE(planning_.queries.empty());
    for (const PlanQuery& query : planning_.queries) {
      EXPECT_EQ(query.link->beta(), 1e-9 * (1 + group));
    }
  }
}

// Reasons for which a group keeps its plan.
struct Kept {
  const char* label;
  void (*change)(v1::RunSpec&);
  double predicted;
};
class MachineKeepsPlanTest : public MachinePlanningTest,
                             public ::testing::WithParamInterface<Kept> {};

TEST_P(MachineKeepsPlanTest, Stays) {
  cluster_.AddWorkers(2);
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
    ::testing::Values(Kept{"RequestedByUser",
                           [](v1::RunSpec& s) { s.mutable_cluster()->set_keep_plan(true); }, 0.03},
                      Kept{"FewStepsLeft", [](v1::RunSpec& s) { s.mutable_stop()->set_steps(250); },
                           0.03},
                      Kept{"UnknownEnd",
                           [](v1::RunSpec& s) {
                             s.clear_stop();
                             s.mutable_stop()->set_test_accuracy(0.99F);
                           },
                           0.03},
                      Kept{"SmallGain", [](v1::RunSpec&) {}, 0.046},
                      Kept{"StagesOfTheUser",
                           [](v1::RunSpec& s) {
                             v1::MeshAxis& axis = *s.mutable_cluster()->add_mesh();
                             axis.set_name("stage");
                             axis.set_size(2);
                           },
                           0.03},
                      Kept{"NeverAveraging", [](v1::RunSpec& s) { s.clear_averaging(); }, 0.03}),
    [](const auto& info) { return info.param.label; });

TEST_F(MachinePlanningTest, NoReplanWithoutAMember) {
  const std::string run = Begin(2);
  Measure(run, 0.05);
  FakeWorker& other = cluster_.Rank(run, 0, 1);
  cluster_.Cut(other);
  Commit(run);
  EXPECT_EQ(cluster_.Group(run, 0).generation(), 1u);
  cluster_.Connect(other);
  Commit(run);
  EXPECT_EQ(cluster_.Group(run, 0).generation(), 2u);
  EXPECT_EQ(cluster_.Group(run, 0).members_size(), 2);
}

TEST_F(MachinePlanningTest, OneReplanPerCall) {
  cluster_.AddWorkers(4);
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

// The stream stays open after an invalid measurement: the member would send the same message first
// on every new stream, and no other message would be received.
TEST_F(MachinePlanningTest, InvalidMeasurementIsDropped) {
  const std::string run = Begin(2, 20);
  FakeWorker& lead = cluster_.Lead(run, 0);
  Measure(run, -1);
  EXPECT_EQ(cluster_.Counter("refused_malformed"), 1u);
  EXPECT_FALSE(cluster_.Group(run, 0).has_measured());
  EXPECT_EQ(StoredTimes(lead.device).device(), "");
  EXPECT_TRUE(cluster_.IsOpen(lead.connection));
  Commit(run);
  EXPECT_EQ(cluster_.RunStatus(run).version(), 1u);
  EXPECT_EQ(cluster_.Group(run, 0).generation(), 1u);
  cluster_.Reconnect(lead);
  EXPECT_EQ(cluster_.Counter("refused_malformed"), 2u) << "sent again";
  Commit(run);
  EXPECT_EQ(cluster_.RunStatus(run).version(), 2u);
}

TEST_F(MachinePlanningTest, TimesThatHaveNotPassedAreIgnored) {
  const std::string run = Begin(2, 20);
  FakeWorker& lead = cluster_.Lead(run, 0);
  v1::Measured measured;
  *measured.mutable_place() = lead.place();
  measured.mutable_times()->set_step(1);
  v1::LayerTime& time = *measured.mutable_layers()->add_time();
  time.set_layer("fc1");
  time.set_samples(16);
  time.set_forward(1e9);
  cluster_.Run(absl::Seconds(10));
  cluster_.Send(lead, measured);
  EXPECT_EQ(StoredTimes(lead.device).times().time_size(), 0);
  EXPECT_EQ(cluster_.Counter("refused_malformed"), 1U);
  EXPECT_TRUE(HasEvent(v1::EVENT_KIND_MESSAGE_REFUSED,
                       "1e+09 seconds are claimed, but it began only 11 seconds ago"));
  EXPECT_TRUE(lead.alive);
}

// The run may have been scaled down while it was predicted.
TEST_F(MachinePlanningTest, PredictionOfAGroupThatDoesNotExistIsIgnored) {
  const std::string run = Begin(1);
  cluster_.Do(StepPredicted{.run = run, .group = 1, .times = v1::StepTimes()});
  EXPECT_FALSE(cluster_.Group(run, 0).has_predicted());
}

TEST_F(MachinePlanningTest, OnlyLayersOfTheRunAreStored) {
  const std::string run = Begin(2, 20);
  FakeWorker& lead = cluster_.Lead(run, 0);
  v1::Measured measured;
  *measured.mutable_place() = lead.place();
  measured.mutable_times()->set_step(1);
  measured.set_copy_seconds(3e-9);
  for (const char* layer : {"fc1", "elsewhere", "fc2"}) {
    v1::LayerTime& time = *measured.mutable_layers()->add_time();
    time.set_layer(layer);
    time.set_samples(16);
  }
  cluster_.Send(lead, measured);
  const v1::LayerTimesRecord record = StoredTimes(lead.device);
  ASSERT_EQ(record.times().time_size(), 2);
  EXPECT_EQ(record.times().time(0).layer(), "fc1");
  EXPECT_EQ(record.times().time(1).layer(), "fc2");
  EXPECT_EQ(record.copy_seconds(), 3e-9);
}

}  // namespace
}  // namespace cadre::testing
