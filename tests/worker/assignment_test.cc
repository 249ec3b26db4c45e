#include "worker/assignment.h"

#include <gtest/gtest.h>

#include <variant>

namespace cadre {
namespace {

using Machine = AssignmentMachine;

v1::RankSlot Place(uint32_t generation, uint32_t rank = 0) {
  v1::RankSlot place;
  place.set_run("run-1");
  place.set_group(1);
  place.set_generation(generation);
  place.set_rank(rank);
  return place;
}

v1::CoordinatorMessage AssignmentOf(uint32_t generation) {
  v1::CoordinatorMessage message;
  *message.mutable_assignment()->mutable_place() = Place(generation);
  return message;
}

v1::CoordinatorMessage StartOf(uint32_t generation) {
  v1::CoordinatorMessage message;
  *message.mutable_start()->mutable_place() = Place(generation);
  message.mutable_start()->set_next_step(10);
  return message;
}

v1::CoordinatorMessage DecisionOf(uint32_t generation, uint32_t round, uint32_t next_step) {
  v1::CoordinatorMessage message;
  *message.mutable_decision()->mutable_place() = Place(generation);
  message.mutable_decision()->set_round(round);
  message.mutable_decision()->set_next_step(next_step);
  return message;
}

v1::CoordinatorMessage ReleaseOf(uint32_t generation) {
  v1::CoordinatorMessage message;
  *message.mutable_release()->mutable_place() = Place(generation);
  message.mutable_release()->set_reason("fenced");
  return message;
}

v1::Prepared PreparedAt(uint32_t generation) {
  v1::Prepared prepared;
  *prepared.mutable_place() = Place(generation);
  return prepared;
}

v1::Contributed ContributedTo(uint32_t generation, uint32_t round) {
  v1::Contributed contributed;
  *contributed.mutable_place() = Place(generation);
  contributed.set_round(round);
  return contributed;
}

template <typename T>
bool IsOne(const Machine::Actions& actions) {
  return actions.size() == 1 && std::holds_alternative<T>(actions[0]);
}

// Training in `generation`, nothing unanswered.
Machine Training(uint32_t generation) {
  Machine machine;
  machine.Receive(AssignmentOf(generation));
  machine.Tell(PreparedAt(generation));
  machine.Receive(StartOf(generation));
  return machine;
}

TEST(AssignmentMachine, TakesAPlaceAndStartsOnce) {
  Machine machine;
  EXPECT_FALSE(machine.place());
  EXPECT_TRUE(IsOne<Machine::Begin>(machine.Receive(AssignmentOf(5))));
  ASSERT_TRUE(machine.place());
  EXPECT_EQ(machine.place()->generation(), 5U);
  EXPECT_TRUE(machine.Receive(StartOf(5)).empty()) << "not prepared yet";
  EXPECT_TRUE(IsOne<Machine::Send>(machine.Tell(PreparedAt(5))));
  EXPECT_TRUE(IsOne<Machine::Go>(machine.Receive(StartOf(5))));
  EXPECT_TRUE(machine.Receive(StartOf(5)).empty()) << "started already";
}

TEST(AssignmentMachine, IgnoresTheSameAndOlderAssignments) {
  Machine machine = Training(5);
  EXPECT_TRUE(machine.Receive(AssignmentOf(5)).empty());
  EXPECT_TRUE(machine.Receive(AssignmentOf(4)).empty());
  machine.Receive(ReleaseOf(5));
  EXPECT_TRUE(machine.Receive(AssignmentOf(5)).empty()) << "a generation never comes back";
}

TEST(AssignmentMachine, NewerAssignmentEndsTheOneUnderWay) {
  Machine machine = Training(5);
  const Machine::Actions actions = machine.Receive(AssignmentOf(6));
  ASSERT_EQ(actions.size(), 2U);
  EXPECT_TRUE(std::holds_alternative<Machine::Cancel>(actions[0]));
  EXPECT_TRUE(std::holds_alternative<Machine::Begin>(actions[1]));
}

TEST(AssignmentMachine, WordsOfAnotherGenerationAreDropped) {
  Machine machine = Training(5);
  EXPECT_TRUE(machine.Tell(ContributedTo(4, 1)).empty());
  EXPECT_TRUE(machine.Receive(DecisionOf(4, 1, 10)).empty());
  EXPECT_TRUE(machine.Receive(ReleaseOf(4)).empty());
  EXPECT_TRUE(machine.Fail(Place(4), false, "late").empty());
  EXPECT_TRUE(machine.place());
}

TEST(AssignmentMachine, DecisionAnswersTheContributionItNames) {
  Machine machine = Training(5);
  EXPECT_TRUE(machine.Receive(DecisionOf(5, 1, 10)).empty()) << "nothing was contributed";
  machine.Tell(ContributedTo(5, 1));
  EXPECT_TRUE(machine.Receive(DecisionOf(5, 2, 10)).empty()) << "another round";
  EXPECT_TRUE(IsOne<Machine::Decide>(machine.Receive(DecisionOf(5, 1, 10))));
  EXPECT_TRUE(machine.Receive(DecisionOf(5, 1, 10)).empty()) << "answered already";
}

TEST(AssignmentMachine, AGroupMadeOnlyToEvaluateTakesMoreParts) {
  Machine machine;
  machine.Receive(AssignmentOf(5));
  v1::Prepared prepared;
  *prepared.mutable_place() = Place(5);
  machine.Tell(prepared);
  v1::CoordinatorMessage start = StartOf(5);
  start.mutable_start()->set_next_step(0);
  EXPECT_TRUE(IsOne<Machine::Go>(machine.Receive(start)));
  EXPECT_TRUE(IsOne<Machine::Decide>(machine.Receive(DecisionOf(5, 1, 0))));
}

TEST(AssignmentMachine, AfterTheEndMoreEvaluationPartsMayCome) {
  Machine machine = Training(5);
  machine.Tell(ContributedTo(5, 1));
  EXPECT_TRUE(IsOne<Machine::Decide>(machine.Receive(DecisionOf(5, 1, 0))));
  EXPECT_TRUE(IsOne<Machine::Decide>(machine.Receive(DecisionOf(5, 1, 0))));
}

TEST(AssignmentMachine, SaysAgainWhatIsUnanswered) {
  Machine machine;
  EXPECT_TRUE(machine.Connected().empty());
  machine.Receive(AssignmentOf(5));
  machine.Tell(PreparedAt(5));
  ASSERT_TRUE(IsOne<Machine::Send>(machine.Connected()));
  machine.Receive(StartOf(5));
  EXPECT_TRUE(machine.Connected().empty());

  machine.Tell(ContributedTo(5, 1));
  v1::Adopted adopted;
  *adopted.mutable_place() = Place(5);
  machine.Tell(adopted);
  v1::Measured measured;
  *measured.mutable_place() = Place(5);
  EXPECT_TRUE(IsOne<Machine::Send>(machine.Tell(measured)));
  const Machine::Actions again = machine.Connected();
  ASSERT_EQ(again.size(), 3U);
  EXPECT_TRUE(std::get<Machine::Send>(again[0]).message.has_measured());
  EXPECT_TRUE(std::get<Machine::Send>(again[1]).message.has_adopted());
  EXPECT_TRUE(std::get<Machine::Send>(again[2]).message.has_contributed());
  measured.mutable_place()->set_generation(4);
  EXPECT_TRUE(machine.Tell(measured).empty()) << "of a generation that is over";
}

TEST(AssignmentMachine, FailureGivesThePlaceUpAndIsSaidUntilReleased) {
  Machine machine = Training(5);
  const Machine::Actions actions = machine.Fail(Place(5), true, "no data");
  ASSERT_TRUE(IsOne<Machine::Send>(actions));
  const v1::GroupFailed& failed = std::get<Machine::Send>(actions[0]).message.group_failed();
  EXPECT_TRUE(failed.permanent());
  EXPECT_EQ(failed.reason(), "no data");
  EXPECT_FALSE(machine.place());
  EXPECT_TRUE(IsOne<Machine::Send>(machine.Connected()));
  machine.Receive(ReleaseOf(5));
  EXPECT_TRUE(machine.Connected().empty());
}

TEST(AssignmentMachine, ACoordinatorThatForgotUsEndsThePlace) {
  Machine machine = Training(5);
  v1::CoordinatorMessage message;
  message.mutable_refused()->set_refusal(v1::REFUSAL_OVERSIZED);
  EXPECT_TRUE(machine.Receive(message).empty()) << "concerns a message, not the place";
  EXPECT_TRUE(machine.place());
  message.mutable_refused()->set_refusal(v1::REFUSAL_UNKNOWN_MEMBER);
  EXPECT_TRUE(IsOne<Machine::Cancel>(machine.Receive(message)));
  EXPECT_FALSE(machine.place());
}

TEST(AssignmentMachine, ALateReleaseDoesNotAnswerANewerFailure) {
  Machine machine = Training(5);
  machine.Fail(Place(5), false, "first");
  machine.Receive(AssignmentOf(6));
  machine.Fail(Place(6), true, "second");
  machine.Receive(ReleaseOf(5));
  const Machine::Actions again = machine.Connected();
  ASSERT_TRUE(IsOne<Machine::Send>(again));
  EXPECT_EQ(std::get<Machine::Send>(again[0]).message.group_failed().reason(), "second");
}

TEST(AssignmentMachine, ANewStoreMayCountGenerationsFromOneAgain) {
  Machine machine = Training(5);
  machine.Receive(ReleaseOf(5));
  v1::CoordinatorMessage fresh = AssignmentOf(1);
  fresh.mutable_assignment()->set_lineage("another history");
  EXPECT_TRUE(IsOne<Machine::Begin>(machine.Receive(fresh)));
}

TEST(AssignmentMachine, ShardAddressesConcernTheOwnRun) {
  Machine machine = Training(5);
  v1::CoordinatorMessage message;
  message.mutable_shard_addresses()->set_run("run-2");
  EXPECT_TRUE(machine.Receive(message).empty());
  message.mutable_shard_addresses()->set_run("run-1");
  EXPECT_TRUE(IsOne<Machine::MoveShards>(machine.Receive(message)));
}

v1::CoordinatorMessage TraceStepsOf(uint32_t generation) {
  v1::CoordinatorMessage message;
  *message.mutable_trace_steps()->mutable_place() = Place(generation);
  message.mutable_trace_steps()->set_request(7);
  return message;
}

TEST(AssignmentMachine, ATraceConcernsTheTrainingUnderWay) {
  Machine machine;
  EXPECT_TRUE(machine.Receive(TraceStepsOf(5)).empty());
  machine.Receive(AssignmentOf(5));
  machine.Tell(PreparedAt(5));
  EXPECT_TRUE(machine.Receive(TraceStepsOf(5)).empty()) << "it does not train yet";
  machine.Receive(StartOf(5));
  EXPECT_TRUE(machine.Receive(TraceStepsOf(4)).empty()) << "another generation";
  const Machine::Actions actions = machine.Receive(TraceStepsOf(5));
  ASSERT_TRUE(IsOne<Machine::TraceNext>(actions));
  EXPECT_EQ(std::get<Machine::TraceNext>(actions[0]).trace.request(), 7U);
}

TEST(AssignmentMachine, ATraceIsSaidOnce) {
  Machine machine = Training(5);
  v1::Traced traced;
  *traced.mutable_place() = Place(4);
  EXPECT_TRUE(machine.Tell(traced).empty()) << "another generation";
  *traced.mutable_place() = Place(5);
  EXPECT_TRUE(IsOne<Machine::Send>(machine.Tell(traced)));
  EXPECT_TRUE(machine.Connected().empty()) << "whoever still wants it asks again";
}

}  // namespace
}  // namespace cadre
