// Names of runs in the coordinator's state machine: joining a run, and which one a name stands for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "tests/base/expect.h"
#include "tests/coordinator/machine/fake_cluster.h"

namespace cadre::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

using MachineNamesTest = MachineTest;

TEST_F(MachineNamesTest, ARunOfTheSameNameIsJoined) {
  const std::string run = cluster_.Submit(OpaqueSpec(2), /*join_existing=*/true);
  EXPECT_EQ(cluster_.Submit(OpaqueSpec(2), /*join_existing=*/true), run);
  EXPECT_NE(cluster_.Submit(OpaqueSpec(2)), run);
  v1::RunSpec other = OpaqueSpec(2);
  other.mutable_model()->mutable_opaque()->mutable_parameter(0)->set_shape(0, 4);
  cluster_.Submit(other, /*join_existing=*/true);
  EXPECT_THAT(std::string(cluster_.last_status.message()),
              HasSubstr("parameter 0 is 'weight' [3] in the run, but 'weight' [4]"));
  other = OpaqueSpec(3);
  cluster_.Submit(other, /*join_existing=*/true);
  EXPECT_THAT(std::string(cluster_.last_status.message()), HasSubstr("cluster.groups: 2 -> 3"));
  EXPECT_EQ(cluster_.Counter("runs_submitted"), 2u);
}

TEST_F(MachineNamesTest, RunsOfOtherNamesDoNotMatter) {
  const std::string run = cluster_.Submit(OpaqueSpec(1));
  v1::RunSpec other = OpaqueSpec(1);
  other.set_name("other");
  cluster_.Submit(other);
  cluster_.StopRun("test");
  EXPECT_THAT(cluster_.last_status, IsOk());
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_STOPPED);
}

// Both requests are handled before the runs are settled.
TEST_F(MachineNamesTest, RunMayBeDeletedInTheTurnInWhichItEnds) {
  AddMembers(1, 2);
  const std::string run = cluster_.Submit(MakeSpec(1, 3, 5, 20));
  Machine& machine = cluster_.machine();
  machine.Handle(StopRun{.request = 90, .run = run}, cluster_.now());
  machine.Handle(DeleteRun{.request = 91, .run = run}, cluster_.now());
  machine.Settle(cluster_.now());
  const absl::Time later = cluster_.now() + absl::Hours(1);
  machine.Handle(Tick{}, later);
  machine.Settle(later);
  EXPECT_EQ(machine.Status(later).runs_size(), 0);
}

// Parameters are compared between opaque models only.
TEST_F(MachineNamesTest, OpaqueAndNativeModelsDiffer) {
  v1::RunSpec native = OpaqueSpec(1);
  native.clear_model();
  native.mutable_model()->mutable_input()->set_channels(3);
  for (const auto& [first, second] : {std::pair(OpaqueSpec(1), native), {native, OpaqueSpec(1)}}) {
    const std::string run = cluster_.Submit(first, /*join_existing=*/true);
    cluster_.Submit(second, /*join_existing=*/true);
    EXPECT_THAT(std::string(cluster_.last_status.message()), HasSubstr("another spec: "));
    EXPECT_THAT(std::string(cluster_.last_status.message()), Not(HasSubstr("in the run, but")))
        << "models of different kinds";
    EXPECT_THAT(std::string(cluster_.last_status.message()), HasSubstr("model."));
    cluster_.StopRun(run);
  }
}

// A run whose data are not known yet has its first evaluation after the first interval.
TEST_F(MachineNamesTest, FirstEvaluationIsThatOfTheFirstInterval) {
  v1::RunSpec spec = OpaqueSpec(1);
  spec.mutable_evaluation()->set_every_steps(15);
  const std::string run = cluster_.Submit(spec);
  EXPECT_EQ(cluster_.StoredRun(run).next_evaluation(), 15u);
}

TEST_F(MachineNamesTest, ARunOfTheSameNameThatHasReachedItsEndIsJoinedOnRequest) {
  cluster_.AddAggregator("agg-0");
  v1::RunSpec spec = OpaqueSpec(1);
  spec.mutable_model()->mutable_opaque()->set_test_samples(kTestSamples);
  spec.mutable_checkpoint()->set_from("/model.safetensors");
  const std::string run = cluster_.Submit(spec, /*join_existing=*/true, /*join_ended=*/true);
  EXPECT_FALSE(cluster_.last_run_ended) << "it is a new one";
  cluster_.AddRank("a", run, 1, 0);
  cluster_.behaviour.train = true;
  ASSERT_TRUE(cluster_.RunUntilEnded(run));
  ASSERT_EQ(RunStateOf(run), v1::RUN_STATE_DONE);
  EXPECT_EQ(cluster_.Submit(spec, true, /*join_ended=*/true), run);
  EXPECT_TRUE(cluster_.last_run_ended);
  v1::RunSpec other = spec;
  other.mutable_cluster()->set_groups(2);
  EXPECT_EQ(cluster_.Submit(other, true, /*join_ended=*/true), "");
  EXPECT_THAT(std::string(cluster_.last_status.message()),
              HasSubstr("has the same name and another spec: modified: cluster.groups: 1 -> 2"));
  EXPECT_FALSE(cluster_.last_run_ended) << "it was not joined";
  const std::string second = cluster_.Submit(spec, /*join_existing=*/true);
  EXPECT_NE(second, run) << "ended runs are not joined unless it is requested";
  EXPECT_EQ(cluster_.Submit(spec, true, true), second) << "the run that has not ended";
  EXPECT_FALSE(cluster_.last_run_ended);
}

TEST_F(MachineNamesTest, AStoppedRunOfTheSameNameIsNotJoined) {
  cluster_.AddAggregator("agg-0");
  const std::string run = cluster_.Submit(OpaqueSpec(1));
  cluster_.StopRun(run);
  EXPECT_EQ(cluster_.Submit(OpaqueSpec(1), true, /*join_ended=*/true), "");
  EXPECT_THAT(cluster_.last_status,
              IsError(absl::StatusCode::kFailedPrecondition,
                      "run run-1-test of the same name was stopped before its end: enough"));
  EXPECT_EQ(cluster_.Submit(OpaqueSpec(1), true), "run-2-test");
}

TEST_F(MachineNamesTest, ANameStandsForTheNewestRunThatHasNotEnded) {
  cluster_.AddAggregator("agg-0");
  const std::string first = cluster_.Submit(OpaqueSpec(1));
  const std::string second = cluster_.Submit(OpaqueSpec(2));
  v1::StatusRequest request;
  request.set_run("test");
  const auto run_of_status = [&] {
    return cluster_.machine().Status(cluster_.now(), request)->runs(0).run();
  };
  EXPECT_EQ(run_of_status(), second);
  request.set_page_token("group 1 0");
  EXPECT_EQ(cluster_.machine().Status(cluster_.now(), request)->groups(0).run(), first)
      << "a later page is of the run of the first one";
  request.clear_page_token();
  cluster_.StopRun(second);
  EXPECT_EQ(run_of_status(), first);
  cluster_.StopRun("test");
  EXPECT_EQ(RunStateOf(first), v1::RUN_STATE_STOPPED);
  EXPECT_EQ(run_of_status(), second);
  EXPECT_EQ(cluster_.machine().IdOf("test"), second);
  EXPECT_EQ(cluster_.machine().IdOf("another"), "");
  EXPECT_EQ(cluster_.machine().IdOf(""), "");
  EXPECT_EQ(cluster_.machine().IdOf("run-1"), "") << "has the form of an id";
  v1::LocateRequest locate;
  locate.set_run("test");
  EXPECT_THAT(cluster_.machine().Locate(locate),
              IsError(absl::StatusCode::kFailedPrecondition, "run run-2-test has ended without"));
  v1::EventsRequest events;
  events.set_run("test");
  const v1::EventsReply of_name = cluster_.machine().Events(events);
  for (const v1::ClusterEvent& event : of_name.events()) EXPECT_EQ(event.run(), second);
  EXPECT_GT(of_name.events_size(), 0);
}

TEST_F(MachineNamesTest, ANameOfSeveralRunsIsNotEnoughToStopOrDelete) {
  cluster_.AddAggregator("agg-0");
  const std::string first = cluster_.Submit(OpaqueSpec(1));
  const std::string second = cluster_.Submit(OpaqueSpec(2));
  const auto ambiguous =
      IsError(absl::StatusCode::kFailedPrecondition,
              "2 runs are named 'test': run-1-test, run-2-test; give the id of one");
  cluster_.StopRun("test");
  EXPECT_THAT(cluster_.last_status, ambiguous);
  EXPECT_EQ(RunStateOf(first), v1::RUN_STATE_QUEUED);
  EXPECT_EQ(RunStateOf(second), v1::RUN_STATE_QUEUED);
  cluster_.StopRun(first);
  cluster_.DeleteRun("test");
  EXPECT_THAT(cluster_.last_status, ambiguous);
  cluster_.Scale("test", 3);
  EXPECT_THAT(cluster_.last_status, IsOk()) << "can be undone";
  cluster_.StopRun("test");
  EXPECT_EQ(RunStateOf(second), v1::RUN_STATE_STOPPED) << "the only one that has not ended";
  cluster_.DeleteRun(first);
  cluster_.DeleteRun("test");
  EXPECT_THAT(cluster_.last_status, IsOk());
  EXPECT_EQ(cluster_.Status().runs_size(), 0);
  cluster_.DeleteRun("test");
  EXPECT_THAT(cluster_.last_status, IsError(absl::StatusCode::kNotFound, "no such run: test"));
}

}  // namespace
}  // namespace cadre::testing
