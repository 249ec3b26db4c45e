// Which workers form a group, and which are kept for one.
#include "coordinator/run/formation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/base/expect.h"
#include "tests/coordinator/run/fake_run.h"

namespace cadre {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class FormationTest : public ::testing::Test {
 protected:
  static constexpr auto kCpu = v1::Cluster::CPU;
  static constexpr auto kCuda = v1::Cluster::CUDA;
  static inline const absl::Time kStart = absl::FromUnixSeconds(1000);

  FormationTest() {
    options_.plan = [this](const v1::RunSpec&, int ranks) -> absl::StatusOr<v1::Plan> {
      if (const absl::Status legal = legal_(ranks); !legal.ok()) return legal;
      v1::Plan plan;
      plan.add_mesh()->set_size(ranks);
      return plan;
    };
    Slot slot("run-1", 0, kStart);
    run_.slots.Add(slot);
  }
  // The plans of a run are kept, so it becomes another one.
  void SetLegal(std::function<absl::Status(int)> legal) {
    legal_ = std::move(legal);
    record().set_lineage(record().lineage() + "x");
  }
  v1::RunRecord& record() { return run_.stored.record(); }
  v1::RunSpec& spec() { return *record().mutable_spec(); }
  // Workers w1, w2, ... that are connected and have no rank.
  Member& AddWorker(v1::Cluster::Device kind = kCpu) {
    v1::MemberRecord worker;
    worker.set_member_id(absl::StrCat("w", ++workers_));
    worker.set_role(v1::ROLE_WORKER);
    worker.set_host("host");
    worker.set_device_kind(kind);
    Member& member = members().Add(worker, kStart);
    members().Attach(member, workers_, kStart);
    return member;
  }
  Member& AddRank(uint32_t rank, uint32_t ranks, const std::string& run = "run-1",
                  const std::string& program = "program") {
    Member& member = AddWorker();
    v1::MemberRecord changed = member.record;
    v1::Reservation& reservation = *changed.mutable_reservation();
    reservation.set_run(run);
    reservation.set_program(program);
    reservation.set_ranks(ranks);
    reservation.set_rank(rank);
    members().Update(member, changed);
    return member;
  }
  void Place(Member& member, const std::string& run) {
    v1::RankSlot place;
    place.set_run(run);
    members().Place(member, place);
  }
  Membership& members() { return cluster_.members(); }
  WorkerIds Idle() { return {members().idle().begin(), members().idle().end()}; }
  size_t Available(v1::Cluster::Device kind) {
    return CountAvailable(run_, members(), cluster_.queue(), kind);
  }
  size_t Servable(absl::Time now = kStart + absl::Hours(1)) {
    return CountServable(run_, members(), cluster_.queue(), now);
  }
  // A generation of the slot has ended at this time.
  void EndGeneration(absl::Time now) {
    Slot& slot = run_.slots[0];
    slot.Form(1, {"w9"}, v1::Plan(), kStart);
    slot.Start(0, 0, 5, false, kStart);
    slot.Clear("lost", now);
  }
  absl::StatusOr<Formation> Form(WorkerIds& idle, absl::Time now = kStart) {
    return FormWorkers(run_, planner_, members(), now, run_.slots[0], idle);
  }

  std::function<absl::Status(int)> legal_ = [](int) { return absl::OkStatus(); };
  CoordinatorOptions options_;
  Cluster cluster_{options_};
  GroupPlanner planner_{options_, cluster_};
  testing::FakeRun run_{Parse<v1::RunRecord>(R"(
                            run: "run-1" state: RUN_STATE_QUEUED
                            spec { name: "test" averaging { every_steps: 5 }
                                   cluster { ranks_per_group: 2 } })"),
                        cluster_};
  uint64_t workers_ = 0;
};

TEST_F(FormationTest, WorkersOfOneKindOfDevice) {
  AddWorker(kCuda);
  AddWorker();
  AddWorker(kCuda);
  AddRank(0, 1);
  const auto by_device = [&] { return WorkersByDevice(run_, members(), Idle()); };
  EXPECT_THAT(by_device(), ElementsAre(ElementsAre("w1", "w3"), ElementsAre("w2")));
  spec().mutable_cluster()->set_device(kCpu);
  EXPECT_THAT(by_device(), ElementsAre(ElementsAre("w2")));
  spec().mutable_model()->mutable_opaque();
  EXPECT_THAT(by_device(), IsEmpty()) << "only programs train an opaque model";
}

TEST_F(FormationTest, ProgramsWhoseRanksAreAllIdle) {
  AddRank(1, 2);
  EXPECT_THAT(IdlePrograms(run_, members(), Idle()), IsEmpty());
  AddRank(0, 2);
  AddWorker();
  AddRank(0, 1, "test", "single");
  AddRank(0, 1, "run-2", "other");
  AddRank(0, 3, "run-1", "large");
  AddRank(1, 3, "run-1", "large");
  AddRank(2, 3, "run-1", "large");
  Member& ended = AddRank(0, 1, "run-1", "ended");
  v1::MemberRecord changed = ended.record;
  changed.set_program_ended("it was incomplete");
  members().Update(ended, changed);
  EXPECT_THAT(IdlePrograms(run_, members(), Idle()),
              ElementsAre(ElementsAre("w2", "w1"), ElementsAre("w4")));
  spec().mutable_model()->mutable_opaque();
  EXPECT_EQ(IdlePrograms(run_, members(), Idle()).size(), 3U) << "of any number of ranks";
}

TEST_F(FormationTest, WorkersOfOwnGroupsAndOfBlockedRunsAreNotAvailable) {
  for (int i = 0; i < 5; ++i) AddWorker();
  AddWorker(kCuda);
  Place(*members().Find("w1"), "run-1");
  Place(*members().Find("w2"), "run-2");
  Place(*members().Find("w3"), "run-3");
  EXPECT_EQ(Available(kCpu), 4U);
  EXPECT_EQ(Available(kCuda), 1U);
  cluster_.queue().Set(2, {.id = "run-2", .lacks = 1});
  EXPECT_EQ(Available(kCpu), 3U);
  spec().mutable_cluster()->set_device(kCuda);
  EXPECT_EQ(Available(kCpu), 0U);
  EXPECT_EQ(Available(kCuda), 1U);
  // Workers of groups of the run need not support its precision: programs choose it themselves.
  spec().mutable_cluster()->clear_device();
  spec().set_precision(v1::RunSpec::BF16);
  EXPECT_EQ(Available(kCpu), 0U);
}

TEST_F(FormationTest, FirstGroupHasAllItsRanks) {
  spec().mutable_cluster()->set_ranks_per_group(4);
  run_.slots.Add(Slot("run-1", 1, kStart));
  for (int i = 0; i < 7; ++i) AddWorker();
  EXPECT_EQ(Servable(), 1U);
  record().set_state(v1::RUN_STATE_RUNNING);
  EXPECT_EQ(Servable(), 7U) << "groups may shrink to one rank";
  record().set_state(v1::RUN_STATE_QUEUED);
  run_.slots[0].Form(1, {"w1"}, v1::Plan(), kStart);
  run_.slots.Update(run_.slots[0]);
  EXPECT_EQ(Servable(), 7U) << "one group is formed";
  spec().mutable_cluster()->set_min_ranks_per_group(3);
  EXPECT_EQ(Servable(), 2U);
  for (int i = 0; i < 3; ++i) AddWorker(kCuda);
  EXPECT_EQ(Servable(), 3U) << "of each kind of device";
  spec().mutable_model()->mutable_opaque();
  EXPECT_EQ(Servable(), 0U);
}

// Workers of a group that has just ended may return within a minute.
TEST_F(FormationTest, SlotOfAGroupThatHasJustEndedReservesWorkers) {
  EXPECT_EQ(ReservesUntil(run_.slots[0]), absl::InfinitePast());
  EXPECT_EQ(Servable(kStart), 0U);
  EndGeneration(kStart);
  EXPECT_EQ(ReservesUntil(run_.slots[0]), kStart + absl::Minutes(1));
  EXPECT_EQ(Servable(kStart + absl::Seconds(59)), 1U);
  EXPECT_EQ(Servable(kStart + absl::Minutes(1)), 0U);
}

TEST_F(FormationTest, WorkersOfOneKindAreReserved) {
  AddWorker(kCuda);
  for (int i = 0; i < 3; ++i) AddWorker();
  WorkerIds idle = Idle();
  ReserveWorkers(run_, members(), idle);
  EXPECT_THAT(idle, ElementsAre("w1", "w4")) << "two workers of the more frequent kind";
  AddWorker(kCuda);
  AddWorker(kCuda);
  idle = Idle();
  ReserveWorkers(run_, members(), idle);
  EXPECT_THAT(idle, ElementsAre("w2", "w3", "w4", "w6")) << "of equally many, the first kind";
  idle = {"w2"};
  ReserveWorkers(run_, members(), idle);
  EXPECT_THAT(idle, IsEmpty());
}

TEST_F(FormationTest, SmallerGroupsAreFormedAfterAWait) {
  const absl::Duration wait = absl::Seconds(5);
  const auto at = [&] { return ShrinksAt(run_, run_.slots[0]); };
  EXPECT_EQ(at(), absl::InfiniteFuture()) << "the run has not started";
  record().set_state(v1::RUN_STATE_RUNNING);
  record().set_started_ms(absl::ToUnixMillis(kStart) + 1000);
  EXPECT_EQ(at(), kStart + absl::Seconds(1) + wait) << "with the other groups";
  record().set_started_ms(absl::ToUnixMillis(kStart) - 1000);
  EXPECT_EQ(at(), kStart + wait);
  record().set_started_ms(absl::ToUnixMillis(kStart) + 60'000);
  EndGeneration(kStart + absl::Seconds(2));
  EXPECT_EQ(at(), kStart + absl::Seconds(2) + wait);
  record().set_state(v1::RUN_STATE_QUEUED);
  EXPECT_EQ(at(), kStart + absl::Seconds(2) + wait) << "an adopted run";
}

TEST_F(FormationTest, ProgramIsAGroup) {
  AddRank(0, 2);
  AddRank(1, 2);
  AddWorker();
  WorkerIds idle = Idle();
  const auto formed = FormProgram(run_, members(), idle);
  ASSERT_TRUE(formed.has_value());
  EXPECT_THAT(formed->members, ElementsAre("w1", "w2"));
  EXPECT_THAT(idle, ElementsAre("w3"));
  EXPECT_TRUE(formed->plan.own_loop());
  ASSERT_EQ(formed->plan.mesh_size(), 1);
  EXPECT_EQ(formed->plan.mesh(0).name(), "data");
  EXPECT_EQ(formed->plan.mesh(0).size(), 2U);
  EXPECT_FALSE(FormProgram(run_, members(), idle).has_value());
}

TEST_F(FormationTest, ProgramsAreNeededForSomeRunsOnly) {
  AddRank(0, 1);
  const auto forms = [&] {
    WorkerIds idle = Idle();
    return FormProgram(run_, members(), idle).has_value();
  };
  EXPECT_TRUE(forms());
  record().set_state(v1::RUN_STATE_FINISHING);
  EXPECT_FALSE(forms()) << "it cannot evaluate";
  spec().mutable_model()->mutable_opaque()->set_test_samples(1);
  EXPECT_TRUE(forms());
  spec().mutable_averaging()->set_every_steps(0);
  EXPECT_FALSE(forms()) << "a run without averages has native groups only";
}

TEST_F(FormationTest, WorkersThatHadTheSlotArePreferred) {
  for (int i = 0; i < 3; ++i) AddWorker();
  run_.slots[0].preferred_members = {"w2", "w3"};
  WorkerIds idle = Idle();
  const auto formed = Form(idle);
  ASSERT_THAT(formed, IsOk());
  EXPECT_THAT(formed->members, ElementsAre("w2", "w3"));
  EXPECT_THAT(idle, ElementsAre("w1"));
  EXPECT_EQ(formed->plan.mesh(0).size(), 2U);
}

TEST_F(FormationTest, LargestLegalGroupIsFormed) {
  spec().mutable_cluster()->set_ranks_per_group(4);
  for (int i = 0; i < 3; ++i) AddWorker();
  for (int i = 0; i < 4; ++i) AddWorker(kCuda);
  WorkerIds idle = Idle();
  EXPECT_THAT(Form(idle)->members, ElementsAre("w4", "w5", "w6", "w7"));
  SetLegal([](int ranks) {
    return ranks == 2 ? absl::OkStatus() : absl::InvalidArgumentError("no plan");
  });
  idle = Idle();
  EXPECT_THAT(Form(idle), IsError(absl::StatusCode::kUnavailable, "too few workers are idle"))
      << "the run has not started";
  record().set_state(v1::RUN_STATE_RUNNING);
  const absl::Time shrinks = ShrinksAt(run_, run_.slots[0]);
  EXPECT_FALSE(Form(idle, shrinks - absl::Milliseconds(1)).ok());
  EXPECT_EQ(idle.size(), 7U);
  EXPECT_THAT(Form(idle, shrinks)->members, ElementsAre("w1", "w2"));
  EXPECT_EQ(idle.size(), 5U);
  SetLegal([](int ranks) {
    return ranks == 1 ? absl::OkStatus() : absl::InvalidArgumentError("no plan");
  });
  spec().mutable_cluster()->set_min_ranks_per_group(2);
  EXPECT_FALSE(Form(idle, shrinks).ok());
  spec().mutable_cluster()->set_min_ranks_per_group(1);
  EXPECT_THAT(Form(idle, shrinks)->members, ElementsAre("w3"));
}

TEST_F(FormationTest, GroupWithAMemberThatIsAwayIsNotConnected) {
  for (int i = 0; i < 2; ++i) AddWorker();
  run_.slots[0].Form(1, {"w1", "w2"}, v1::Plan(), kStart);
  EXPECT_TRUE(AllConnected(run_.slots[0], members()));
  members().Detach(2);
  EXPECT_FALSE(AllConnected(run_.slots[0], members())) << "without a stream";
  members().Remove("w2");
  EXPECT_FALSE(AllConnected(run_.slots[0], members())) << "no longer registered";
}

TEST_F(FormationTest, TooLittleMemoryIsNamed) {
  for (int i = 0; i < 2; ++i) AddWorker();
  SetLegal([](int) { return absl::ResourceExhaustedError("layer 'fc1' needs more memory"); });
  WorkerIds idle = Idle();
  EXPECT_THAT(Form(idle), IsError(absl::StatusCode::kResourceExhausted, "fc1"));
  SetLegal([](int) { return absl::UnavailableError("searching a plan"); });
  EXPECT_THAT(Form(idle), IsError(absl::StatusCode::kUnavailable, "searching"));
  idle.clear();
  EXPECT_THAT(Form(idle), IsError(absl::StatusCode::kUnavailable, "too few"));
}

}  // namespace
}  // namespace cadre
