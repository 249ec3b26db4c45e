// What a group's plan is searched from, and which answers are kept.
#include "coordinator/run/group_planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/store/keys.h"
#include "tests/base/expect.h"
#include "tests/coordinator/machine/apply_op.h"

namespace cadre {
namespace {

using ::testing::IsEmpty;

// Predicts the same step time for every plan.
class ConstantPlanning final : public Planning {
 public:
  mutable std::vector<PlanQuery> predicted;
  absl::StatusOr<v1::StepTimes> prediction = Parse<v1::StepTimes>("step: 2");

  absl::StatusOr<std::vector<GroupPlan>> PlansFor(const PlanQuery&) const override {
    return absl::UnimplementedError("searches are answered by the test");
  }
  absl::StatusOr<v1::StepTimes> Predict(const PlanQuery& query, const v1::Plan&) const override {
    predicted.push_back(query);
    return prediction;
  }
  std::string KeyOf(const v1::Model&) const override { return "model"; }
  std::vector<std::string> LayersOf(const v1::Model&) const override { return {"fc1"}; }
};

class GroupPlannerTest : public ::testing::Test {
 protected:
  static inline const absl::Time kNow = absl::FromUnixSeconds(1000);

  GroupPlannerTest() {
    options_.planning = &planning_;
    options_.plan = [this](const v1::RunSpec&, int ranks) -> absl::StatusOr<v1::Plan> {
      ++planned_;
      if (!legal_.ok()) return legal_;
      return PlanOf("data", ranks);
    };
    cluster_.Begin(kNow);
    cluster_.Restore({}, 1);
    run_.set_run("run-1");
    run_.mutable_spec()->set_name("test");
    Take();
  }
  static v1::Plan PlanOf(const std::string& axis, uint32_t size) {
    v1::Plan plan;
    v1::MeshAxis& mesh = *plan.add_mesh();
    mesh.set_name(axis);
    mesh.set_size(size);
    return plan;
  }
  // A worker with 8 cores and 800 bytes of memory on its host; its id is its name.
  Member& AddWorker(const std::string& name, const std::string& host,
                    v1::Cluster::Device kind = v1::Cluster::CPU) {
    v1::MemberRecord record;
    record.set_member_id(name);
    record.set_role(v1::ROLE_WORKER);
    record.set_host(host);
    record.set_device("device of " + host);
    record.set_device_kind(kind);
    Member& member = cluster_.members().Add(record, kNow);
    member.cores = 8;
    member.memory_bytes = 800;
    cluster_.members().Attach(member, ++connections_, kNow);
    return member;
  }
  void Place(const std::string& name) {
    cluster_.members().Place(*cluster_.members().Find(name), v1::RankSlot());
  }
  // The searches that were requested since the last call.
  std::vector<SearchPlans> Take() {
    std::vector<SearchPlans> searches;
    for (const Action& action : cluster_.Take()) {
      if (const auto* op = std::get_if<Store::Op>(&action)) testing::ApplyTo(store_, *op);
      if (const auto* search = std::get_if<SearchPlans>(&action)) searches.push_back(*search);
      if (const auto* predict = std::get_if<PredictStep>(&action)) predictions_.push_back(*predict);
    }
    return searches;
  }
  // Answers the predictions that were requested for the group.
  void AnswerPredictions(Slot& slot) {
    Take();
    for (const PredictStep& predict : std::exchange(predictions_, {})) {
      planner_.OnPredicted(std::get<StepPredicted>(cadre::Answer(planning_, predict)), slot);
    }
  }
  absl::StatusOr<v1::Plan> PlanGroup(const std::vector<std::string>& members) {
    return planner_.PlanGroup(run_, Slot("run-1", 0, kNow), members);
  }
  // The query of the search that these members cause.
  PlanQuery QueryFor(const std::vector<std::string>& members) {
    GroupPlanner fresh(options_, cluster_);
    fresh.PlanGroup(run_, Slot("run-1", 0, kNow), members).IgnoreError();
    const std::vector<SearchPlans> searches = Take();
    EXPECT_EQ(searches.size(), 1U);
    return searches.empty() ? PlanQuery() : searches[0].query;
  }
  void Answer(const SearchPlans& search, const absl::StatusOr<std::vector<GroupPlan>>& plans) {
    planner_.OnPlansFound({.run = search.run, .key = search.key, .plans = plans});
  }
  // A started group of these members, with a link.
  Slot SlotOf(const std::vector<std::string>& members, double beta = 1e-9) {
    Slot slot("run-1", 0, kNow);
    v1::Plan plan = PlanOf("data", members.size());
    plan.mutable_link()->set_beta(beta);
    slot.Form(1, members, plan, kNow);
    slot.Start(0, 0, 5, false, kNow);
    return slot;
  }
  static v1::Measured Measurement(double step, const std::string& layer = "fc1") {
    v1::Measured measured;
    measured.mutable_times()->set_step(step);
    v1::LayerTime& time = *measured.mutable_layers()->add_time();
    time.set_layer(layer);
    time.set_samples(16);
    time.set_forward(1);
    return measured;
  }

  absl::Status legal_;
  // How often the rules were asked for a plan.
  int planned_ = 0;
  ConstantPlanning planning_;
  CoordinatorOptions options_;
  Cluster cluster_{options_};
  GroupPlanner planner_{options_, cluster_};
  v1::RunRecord run_;
  std::map<std::string, std::string> store_;
  std::vector<PredictStep> predictions_;
  ConnectionId connections_ = 0;
};

TEST_F(GroupPlannerTest, WorkersOfAHostShareItsResources) {
  AddWorker("w1", "a");
  AddWorker("w2", "a");
  AddWorker("w3", "b");
  AddWorker("w4", "a");
  PlanQuery query = QueryFor({"w1", "w2", "w3"});
  ASSERT_EQ(query.ranks.size(), 3U);
  EXPECT_EQ(query.ranks[0].host, "a");
  EXPECT_EQ(query.ranks[0].device, "device of a");
  EXPECT_EQ(query.ranks[0].cores, 4) << "the third one is idle";
  EXPECT_EQ(query.ranks[0].memory_bytes, 400);
  EXPECT_EQ(query.ranks[2].cores, 8);
  EXPECT_EQ(query.ranks[2].memory_bytes, 800);
  EXPECT_EQ(query.spec.cluster().device(), v1::Cluster::CPU);
  Place("w4");
  EXPECT_EQ(QueryFor({"w1", "w2", "w3"}).ranks[0].cores, 8.0 / 3) << "in another group";
  Place("w1");
  Place("w2");
  EXPECT_EQ(QueryFor({"w1", "w2", "w3"}).ranks[0].cores, 8.0 / 3) << "those of the group itself";
  EXPECT_EQ(QueryFor({"w3", "w9"}).ranks.size(), 1U) << "w9 was removed";
}

// GPUs have links of their own.
TEST_F(GroupPlannerTest, LinksOfGpusAreNotThoseOfTheirHosts) {
  AddWorker("w1", "a");
  AddWorker("w2", "b");
  AddWorker("g1", "a", v1::Cluster::CUDA);
  AddWorker("g2", "b", v1::Cluster::CUDA);
  const auto link_of = [&](const std::vector<std::string>& members) {
    planner_.PlanGroup(run_, Slot("run-1", 0, kNow), members).IgnoreError();
    return Take().at(0).query.link;
  };
  planner_.RecordLink(SlotOf({"g1", "g2"}, 3e-9));
  EXPECT_FALSE(link_of({"w1", "w2"}).has_value());
  ASSERT_TRUE(link_of({"g1", "g2"}).has_value());
}

TEST_F(GroupPlannerTest, MemoryIsRoundedByASixtyFourthAtMost) {
  Member& worker = AddWorker("w1", "a");
  for (const auto& [bytes, rounded] : std::map<int64_t, int64_t>{
           {1, 1}, {127, 127}, {129, 128}, {258, 256}, {259, 256}, {512 + 3, 512}}) {
    worker.memory_bytes = bytes;
    EXPECT_EQ(QueryFor({"w1"}).ranks[0].memory_bytes, rounded);
  }
}

TEST_F(GroupPlannerTest, GroupWithoutALinkUsesThatOfItsHosts) {
  AddWorker("w1", "a");
  AddWorker("w2", "b");
  planner_.RecordLink(SlotOf({"w1", "w2"}, 3e-9));
  Slot slot = SlotOf({"w1", "w2"}, 0);
  slot.measured = Parse<v1::StepTimes>("step: 10");
  planner_.ConsiderPlan(run_, slot);
  EXPECT_EQ(Take().at(0).query.link->beta(), 3e-9);
}

TEST_F(GroupPlannerTest, PlansOfTheRulesFor256RunsAreKept) {
  AddWorker("w1", "a");
  run_.mutable_spec()->mutable_cluster()->set_keep_plan(true);
  const auto plan_run = [&](int run) {
    run_.set_lineage(absl::StrCat("run-", run));
    planned_ = 0;
    EXPECT_THAT(PlanGroup({"w1"}), IsOk());
    return planned_;
  };
  for (int run = 0; run < 255; ++run) EXPECT_EQ(plan_run(run), 1);
  EXPECT_EQ(plan_run(0), 0);
  for (int run = 255; run < 257; ++run) plan_run(run);
  EXPECT_EQ(plan_run(0), 1) << "all are forgotten";
}

// Otherwise each group of a run that starts would have another share, and a search of its own.
TEST_F(GroupPlannerTest, GroupsThatAreAboutToFormShareTheHost) {
  for (const char* name : {"w1", "w2", "w3", "w4", "w5"}) AddWorker(name, "a");
  cluster_.queue().Set(1, {.id = "run-1", .device = v1::Cluster::CPU, .ranks = 1, .slots = 4});
  EXPECT_EQ(QueryFor({"w1"}).ranks[0].cores, 2) << "four of the five idle workers";
  cluster_.queue().Set(1, {.id = "run-1", .device = v1::Cluster::CPU, .ranks = 1, .slots = 9});
  EXPECT_EQ(QueryFor({"w1"}).ranks[0].cores, 8.0 / 5) << "no more than are idle";
  Place("w1");
  EXPECT_EQ(QueryFor({"w1"}).ranks[0].cores, 8) << "a group that is formed already";
}

TEST_F(GroupPlannerTest, MemoryOfGpusIsNotShared) {
  AddWorker("w1", "a", v1::Cluster::CUDA);
  AddWorker("w2", "a", v1::Cluster::CUDA);
  const PlanQuery query = QueryFor({"w1", "w2"});
  EXPECT_EQ(query.ranks[0].memory_bytes, 800);
  EXPECT_EQ(query.ranks[0].cores, 4);
  EXPECT_EQ(query.spec.cluster().device(), v1::Cluster::CUDA);
}

TEST_F(GroupPlannerTest, LinksOfHostsAndWithinThem) {
  for (const auto& [name, host] :
       std::map<std::string, std::string>{{"w1", "a"}, {"w2", "a"}, {"w3", "b"}, {"w4", "b"}}) {
    AddWorker(name, host);
  }
  const auto link_of = [&](const std::vector<std::string>& members, bool inside) {
    planner_.PlanGroup(run_, Slot("run-1", 0, kNow), members).IgnoreError();
    const PlanQuery query = Take().at(0).query;
    const auto& link = inside ? query.inside : query.link;
    return link.has_value() ? link->beta() : 0;
  };
  planner_.RecordLink(SlotOf({"w1", "w2", "w3", "w4"}, 3e-9));
  planner_.RecordLink(SlotOf({"w1", "w2"}, 1e-9));
  EXPECT_EQ(link_of({"w1", "w2", "w3", "w4"}, false), 3e-9);
  planner_.RecordLink(SlotOf({"w1", "w2", "w3", "w4"}, 4e-9));
  EXPECT_EQ(link_of({"w1", "w2", "w3", "w4"}, true), 1e-9);
  planner_.RecordLink(SlotOf({"w1", "w2"}, 2e-9));
  EXPECT_EQ(link_of({"w1", "w2"}, false), 2e-9);
  planner_.RecordLink(SlotOf({"w1", "w2"}, 5e-9));
  EXPECT_EQ(link_of({"w1", "w2"}, true), 0) << "all ranks are on one host";
  planner_.RecordLink(SlotOf({"w1", "w3"}, 6e-9));
  EXPECT_EQ(link_of({"w1", "w3"}, true), 0) << "one rank on each host";
}

TEST_F(GroupPlannerTest, LinksThatAreNotRecorded) {
  AddWorker("w1", "a");
  AddWorker("w2", "b");
  const auto link = [&] {
    planner_.PlanGroup(run_, Slot("run-1", 0, kNow), {"w1", "w2"}).IgnoreError();
    const auto searches = Take();
    return !searches.empty() && searches[0].query.link.has_value();
  };
  planner_.RecordLink(SlotOf({"w1", "w2"}, 0));
  EXPECT_FALSE(link()) << "not measured";
  planner_.RecordLink(SlotOf({"w1"}, 1e-9));
  planner_.RecordLink(SlotOf({"w1", "w9"}, 1e-9));
  EXPECT_THAT(Take(), IsEmpty());
  planner_.PlanGroup(run_, Slot("run-1", 0, kNow), {"w1"}).IgnoreError();
  EXPECT_FALSE(Take().at(0).query.link.has_value()) << "one rank has no link";
  planner_.RecordLink(SlotOf({"w1", "w2"}, 1e-9));
  EXPECT_TRUE(link());
}

TEST_F(GroupPlannerTest, LayerTimesOfEveryDevice) {
  Member& first = AddWorker("w1", "a");
  Member& second = AddWorker("w2", "b");
  Slot slot = SlotOf({"w1", "w2"});
  const auto times = [&](const std::vector<std::string>& members) {
    planner_.PlanGroup(run_, Slot("run-1", 0, kNow), members).IgnoreError();
    const auto searches = Take();
    return searches.empty() ? size_t{99} : searches[0].query.times.size();
  };
  EXPECT_EQ(times({"w1", "w2"}), 0U);
  planner_.OnMeasured(run_, slot, first, Measurement(1));
  EXPECT_EQ(times({"w1"}), 1U);
  planner_.OnMeasured(run_, slot, first, Measurement(1, "unknown layer"));
  EXPECT_EQ(times({"w1", "w2"}), 99U) << "the device of w2 is not measured: the same search";
  planner_.OnMeasured(run_, slot, second, Measurement(1));
  EXPECT_EQ(times({"w1", "w2"}), 2U);
  EXPECT_TRUE(store_.contains(LayerTimesKey("device of a", "model")));
  v1::LayerTimesRecord record;
  ASSERT_TRUE(record.ParseFromString(store_.at(LayerTimesKey("device of a", "model"))));
  GroupPlanner restored(options_, cluster_);
  restored.Load(LayerTimesKey("device of a", "model"), record);
  restored.PlanGroup(run_, Slot("run-1", 0, kNow), {"w1"}).IgnoreError();
  EXPECT_EQ(Take().at(0).query.times.size(), 1U);
}

TEST_F(GroupPlannerTest, EqualResourcesShareASearch) {
  AddWorker("w1", "a");
  AddWorker("w2", "b");
  EXPECT_THAT(PlanGroup({"w1"}), IsError(absl::StatusCode::kUnavailable, "searching a plan"));
  const std::vector<SearchPlans> searches = Take();
  ASSERT_EQ(searches.size(), 1U);
  EXPECT_EQ(searches[0].run, "run-1");
  EXPECT_TRUE(planner_.IsSearching("run-1"));
  EXPECT_FALSE(planner_.IsSearching("run-"));
  EXPECT_THAT(PlanGroup({"w2"}), IsError(absl::StatusCode::kUnavailable, "searching a plan"));
  EXPECT_THAT(Take(), IsEmpty()) << "the host has other names only";
  Answer(searches[0], std::vector<GroupPlan>{{.plan = PlanOf("model", 1)}});
  EXPECT_FALSE(planner_.IsSearching("run-1"));
  EXPECT_EQ(PlanGroup({"w2"})->mesh(0).name(), "model");
  cluster_.members().Find("w2")->cores = 4;
  EXPECT_FALSE(PlanGroup({"w2"}).ok());
  EXPECT_EQ(Take().size(), 1U);
  cluster_.members().Find("w2")->memory_bytes = 4;
  EXPECT_FALSE(PlanGroup({"w2"}).ok());
  EXPECT_EQ(Take().size(), 1U);
  EXPECT_FALSE(PlanGroup({"w1", "w2"}).ok());
  EXPECT_EQ(Take().size(), 1U);
}

TEST_F(GroupPlannerTest, ErrorOfASearchIsThatOfTheGroup) {
  AddWorker("w1", "a");
  PlanGroup({"w1"}).IgnoreError();
  Answer(Take().at(0), absl::ResourceExhaustedError("layer 'fc1' is too large"));
  EXPECT_THAT(PlanGroup({"w1"}), IsError(absl::StatusCode::kResourceExhausted, "fc1"));
  EXPECT_FALSE(planner_.IsSearching("run-1"));
}

TEST_F(GroupPlannerTest, Newest256AnswersAreKept) {
  Member& member = AddWorker("w1", "a");
  const auto plan_with = [&](uint32_t cores) {
    member.cores = cores;
    return PlanGroup({"w1"});
  };
  for (uint32_t cores = 1; cores <= 256; ++cores) {
    plan_with(cores).IgnoreError();
    Answer(Take().at(0), std::vector<GroupPlan>{{.plan = PlanOf("model", cores)}});
  }
  EXPECT_THAT(plan_with(1), IsOk());
  plan_with(257).IgnoreError();
  const SearchPlans search = Take().at(0);
  EXPECT_THAT(plan_with(1), IsOk()) << "a search without an answer replaces none";
  Answer(search, std::vector<GroupPlan>{{.plan = PlanOf("model", 257)}});
  EXPECT_EQ(plan_with(1).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(plan_with(2), IsOk());
  EXPECT_THAT(plan_with(257), IsOk());
  Answer({.run = "run-1", .key = "of an earlier process"}, std::vector<GroupPlan>());
  EXPECT_THAT(plan_with(2), IsOk()) << "an answer that was not requested replaces none";
}

TEST_F(GroupPlannerTest, RulesDecideWithoutASearch) {
  AddWorker("w1", "a");
  run_.mutable_spec()->mutable_cluster()->set_keep_plan(true);
  EXPECT_EQ(PlanGroup({"w1"})->mesh(0).name(), "data");
  run_.mutable_spec()->mutable_cluster()->set_keep_plan(false);
  options_.planning = nullptr;
  EXPECT_EQ(PlanGroup({"w1"})->mesh(0).name(), "data");
  options_.planning = &planning_;
  legal_ = absl::InvalidArgumentError("one rank cannot train it");
  run_.set_lineage("another");
  EXPECT_THAT(PlanGroup({"w1"}), IsError(kInvalidArgument, "one rank"))
      << "whatever a search finds";
  EXPECT_THAT(Take(), IsEmpty());
}

TEST_F(GroupPlannerTest, PredictionOfTheStartIsKept) {
  Member& member = AddWorker("w1", "a");
  Slot slot = SlotOf({"w1"});
  EXPECT_FALSE(planner_.PredictGroup(run_, slot)) << "nothing is measured";
  Slot before = SlotOf({"w1"});
  planner_.OnMeasured(run_, before, member, Measurement(6));
  AnswerPredictions(before);
  EXPECT_EQ(before.record().predicted().step(), 2);
  EXPECT_TRUE(before.record().prediction_from_own_measurement());
  EXPECT_EQ(before.plans().bias, 3) << "six seconds instead of two";
  EXPECT_EQ(planning_.predicted.back().link->beta(), 1e-9) << "the group's own link";
  EXPECT_TRUE(planner_.PredictGroup(run_, slot));
  planning_.prediction = absl::FailedPreconditionError("no link");
  AnswerPredictions(slot);
  EXPECT_FALSE(slot.record().has_predicted());
  planner_.PredictGroup(run_, slot);
  planning_.prediction = Parse<v1::StepTimes>("step: 2");
  AnswerPredictions(slot);
  EXPECT_EQ(slot.record().predicted().step(), 2);
  EXPECT_FALSE(slot.record().prediction_from_own_measurement());
  Slot late = SlotOf({"w1"});
  planner_.PredictGroup(run_, late);
  late.measured = Parse<v1::StepTimes>("step: 6");
  AnswerPredictions(late);
  EXPECT_EQ(late.record().predicted().step(), 2) << "the group has measured its steps meanwhile";
  planner_.OnMeasured(run_, slot, member, Measurement(6));
  EXPECT_EQ(slot.record().measured_plan(0).step_seconds(), 6);
  EXPECT_EQ(slot.plans().bias, 1) << "it is not predicted yet";
  planning_.prediction = Parse<v1::StepTimes>("step: 3");
  AnswerPredictions(slot);
  EXPECT_EQ(slot.record().predicted().step(), 2);
  EXPECT_FALSE(slot.record().prediction_from_own_measurement());
  EXPECT_EQ(slot.plans().bias, 2) << "six seconds instead of three";
}

TEST_F(GroupPlannerTest, PredictionOfAnotherGenerationIsDropped) {
  Member& member = AddWorker("w1", "a");
  Slot slot = SlotOf({"w1"});
  planner_.OnMeasured(run_, slot, member, Measurement(6));
  slot.Clear("the test ends it", kNow);
  slot.Form(2, {"w1"}, PlanOf("data", 1), kNow);
  AnswerPredictions(slot);
  EXPECT_FALSE(slot.record().has_predicted());
  EXPECT_EQ(slot.plans().bias, 1);
}

TEST_F(GroupPlannerTest, NothingIsPredictedWithoutMeasuring) {
  Member& member = AddWorker("w1", "a");
  options_.planning = nullptr;
  Slot slot = SlotOf({"w1"});
  EXPECT_FALSE(planner_.PredictGroup(run_, slot));
  planner_.OnMeasured(run_, slot, member, Measurement(6));
  EXPECT_FALSE(slot.record().has_predicted());
  EXPECT_EQ(slot.record().measured_plan_size(), 0);
}

TEST_F(GroupPlannerTest, BetterPlanIsLookedForOncePerMeasurement) {
  AddWorker("w1", "a");
  Slot slot = SlotOf({"w1"});
  slot.measured = Parse<v1::StepTimes>("step: 10");
  planner_.ConsiderPlan(run_, slot);
  EXPECT_FALSE(slot.considered) << "the plans are being searched";
  const std::vector<SearchPlans> searches = Take();
  ASSERT_EQ(searches.size(), 1U);
  GroupPlan faster{.plan = PlanOf("model", 2)};
  faster.predicted = Parse<v1::StepTimes>("step: 4");
  Answer(searches[0], std::vector<GroupPlan>{faster});
  planner_.ConsiderPlan(run_, slot);
  EXPECT_TRUE(slot.considered);
  ASSERT_TRUE(slot.better.has_value());
  EXPECT_EQ(slot.better->now_seconds, 10);
  EXPECT_EQ(slot.better->then_seconds, 4);
  slot.better.reset();
  planner_.ConsiderPlan(run_, slot);
  EXPECT_FALSE(slot.better.has_value());
}

TEST_F(GroupPlannerTest, PredictionOfTheMeasuredPlanIsAwaited) {
  Member& member = AddWorker("w1", "a");
  Slot slot = SlotOf({"w1"});
  slot.measured = Parse<v1::StepTimes>("step: 10");
  planner_.OnMeasured(run_, slot, member, Measurement(10));
  planner_.ConsiderPlan(run_, slot);
  GroupPlan faster{.plan = PlanOf("model", 2)};
  faster.predicted = Parse<v1::StepTimes>("step: 4");
  Answer(Take().at(0), std::vector<GroupPlan>{faster});
  planner_.ConsiderPlan(run_, slot);
  EXPECT_FALSE(slot.considered);
  planning_.prediction = Parse<v1::StepTimes>("step: 5");
  AnswerPredictions(slot);
  planner_.ConsiderPlan(run_, slot);
  ASSERT_TRUE(slot.better.has_value());
  EXPECT_EQ(slot.better->then_seconds, 8) << "the planner is wrong by a factor of 2";
}

// Equal machines measure somewhat different times.
TEST_F(GroupPlannerTest, SimilarMeasurementsShareASearch) {
  Member& first = AddWorker("w1", "a");
  AddWorker("w2", "b");
  const auto searched = [&](double time, double link) {
    Slot slot = SlotOf({"w1", "w2"}, link);
    v1::Measured measured = Measurement(10);
    measured.mutable_layers()->mutable_time(0)->set_forward(time);
    planner_.OnMeasured(run_, slot, first, measured);
    planner_.OnMeasured(run_, slot, *cluster_.members().Find("w2"), measured);
    planner_.ConsiderPlan(run_, slot);
    return Take().size() == 1;
  };
  EXPECT_TRUE(searched(1, 1e-9));
  EXPECT_FALSE(searched(1, 1e-9));
  EXPECT_FALSE(searched(1.09, 1.24e-9));
  EXPECT_FALSE(searched(0.92, 0.82e-9));
  EXPECT_TRUE(searched(1.2, 1e-9)) << "by more than a tenth of the time";
  EXPECT_TRUE(searched(1, 1.26e-9)) << "by more than a quarter of the link";
  EXPECT_TRUE(searched(1, 0.79e-9));
}

TEST_F(GroupPlannerTest, SearchForWhichAGroupWaitsBecomesUrgent) {
  AddWorker("w1", "a");
  AddWorker("w2", "b");
  Slot slot = SlotOf({"w1", "w2"});
  planner_.RecordLink(slot);
  slot.measured = Parse<v1::StepTimes>("step: 10");
  planner_.ConsiderPlan(run_, slot);
  const SearchPlans first = Take().at(0);
  EXPECT_FALSE(first.urgent);
  EXPECT_FALSE(planner_.IsSearching("run-1")) << "no group waits for it";
  EXPECT_FALSE(PlanGroup({"w1", "w2"}).ok());
  const std::vector<SearchPlans> again = Take();
  ASSERT_EQ(again.size(), 1U);
  EXPECT_EQ(again[0].key, first.key);
  EXPECT_TRUE(again[0].urgent);
  EXPECT_TRUE(planner_.IsSearching("run-1"));
  EXPECT_FALSE(PlanGroup({"w1", "w2"}).ok());
  EXPECT_THAT(Take(), IsEmpty());
  Answer(first, std::vector<GroupPlan>{{.plan = PlanOf("model", 2)}});
  Answer(again[0], std::vector<GroupPlan>{{.plan = PlanOf("data", 2)}});
  EXPECT_EQ(PlanGroup({"w1", "w2"})->mesh(0).name(), "model") << "the first answer";
  EXPECT_FALSE(planner_.IsSearching("run-1"));
}

// They may never be answered, and none of them is urgent.
TEST_F(GroupPlannerTest, FewSearchesForBetterPlansAreBegunAtATime) {
  Member& member = AddWorker("w1", "a");
  Slot slot = SlotOf({"w1"});
  slot.measured = Parse<v1::StepTimes>("step: 10");
  const auto searched = [&](uint32_t cores) {
    member.cores = cores;
    planner_.ConsiderPlan(run_, slot);
    return Take();
  };
  SearchPlans last;
  for (uint32_t cores = 1; cores <= 64; ++cores) last = searched(cores).at(0);
  EXPECT_THAT(searched(65), IsEmpty());
  EXPECT_FALSE(slot.considered) << "at the next commit";
  EXPECT_FALSE(PlanGroup({"w1"}).ok());
  EXPECT_EQ(Take().size(), 1U) << "a group waits";
  Answer(last, std::vector<GroupPlan>{{.plan = PlanOf("model", 1)}});
  EXPECT_EQ(searched(66).size(), 1U);
}

// The state machine begins again while a search is carried out.
TEST_F(GroupPlannerTest, AnswerOfAnEarlierEpochIsNotTaken) {
  AddWorker("w1", "a");
  PlanGroup({"w1"}).IgnoreError();
  const SearchPlans before = Take().at(0);
  cluster_.Restore({}, 2);
  GroupPlanner next(options_, cluster_);
  next.PlanGroup(run_, Slot("run-1", 0, kNow), {"w1"}).IgnoreError();
  EXPECT_NE(Take().at(0).key, before.key);
  next.OnPlansFound({.run = "run-1", .key = before.key, .plans = std::vector<GroupPlan>(1)});
  EXPECT_FALSE(next.PlanGroup(run_, Slot("run-1", 0, kNow), {"w1"}).ok());
}

TEST_F(GroupPlannerTest, MemoryOfEqualMachinesDiffersByPages) {
  AddWorker("w1", "a").memory_bytes = 64'000'000'000;
  AddWorker("w2", "b").memory_bytes = 64'000'004'096;
  const int64_t memory = QueryFor({"w1"}).ranks[0].memory_bytes;
  EXPECT_EQ(QueryFor({"w2"}).ranks[0].memory_bytes, memory);
  EXPECT_LE(memory, 64'000'000'000);
  EXPECT_GE(memory, 63'000'000'000);
}

TEST_F(GroupPlannerTest, PredictionOfAnOlderMeasurementIsDropped) {
  Member& member = AddWorker("w1", "a");
  Slot slot = SlotOf({"w1"});
  slot.measured = Parse<v1::StepTimes>("step: 6");
  planner_.OnMeasured(run_, slot, member, Measurement(6));
  slot.measured = Parse<v1::StepTimes>("step: 8");
  slot.RecordPlan(8, std::nullopt);
  AnswerPredictions(slot);
  EXPECT_EQ(slot.record().measured_plan(0).step_seconds(), 8);
  EXPECT_TRUE(slot.predicting) << "the newer one is awaited";
}

TEST_F(GroupPlannerTest, FailedSearchIsNotRepeated) {
  AddWorker("w1", "a");
  Slot slot = SlotOf({"w1"});
  slot.measured = Parse<v1::StepTimes>("step: 10");
  planner_.ConsiderPlan(run_, slot);
  Answer(Take().at(0), absl::InvalidArgumentError("no plan"));
  planner_.ConsiderPlan(run_, slot);
  EXPECT_TRUE(slot.considered);
  EXPECT_FALSE(slot.better.has_value());
}

}  // namespace
}  // namespace cadre
