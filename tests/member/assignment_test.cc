#include "member/assignment.h"

#include <gtest/gtest.h>

#include <string>
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

// A message of the coordinator for rank 0 of `generation`.
template <typename Body>
v1::CoordinatorMessage MessageFor(uint32_t generation, Body* (v1::CoordinatorMessage::*body)()) {
  v1::CoordinatorMessage message;
  *(message.*body)()->mutable_place() = Place(generation);
  return message;
}

v1::CoordinatorMessage AssignmentOf(uint32_t generation) {
  return MessageFor(generation, &v1::CoordinatorMessage::mutable_assignment);
}

v1::CoordinatorMessage StartOf(uint32_t generation) {
  v1::CoordinatorMessage message = MessageFor(generation, &v1::CoordinatorMessage::mutable_start);
  message.mutable_start()->set_next_step(10);
  return message;
}

v1::CoordinatorMessage DecisionOf(uint32_t generation, uint32_t round, uint32_t next_step) {
  v1::CoordinatorMessage message =
      MessageFor(generation, &v1::CoordinatorMessage::mutable_decision);
  message.mutable_decision()->set_round(round);
  message.mutable_decision()->set_next_step(next_step);
  return message;
}

v1::CoordinatorMessage ReleaseOf(uint32_t generation) {
  return MessageFor(generation, &v1::CoordinatorMessage::mutable_release);
}

v1::CoordinatorMessage TraceStepsOf(uint32_t generation) {
  v1::CoordinatorMessage message =
      MessageFor(generation, &v1::CoordinatorMessage::mutable_trace_steps);
  message.mutable_trace_steps()->set_request(7);
  return message;
}

v1::GroupFailed Failed(const v1::RankSlot& place, v1::FailureCause cause,
                       const std::string& reason) {
  v1::GroupFailed failed;
  *failed.mutable_place() = place;
  failed.set_cause(cause);
  failed.set_reason(reason);
  return failed;
}

// A report of the training loop in `generation`.
template <typename Body>
Body ReportOf(uint32_t generation) {
  Body body;
  *body.mutable_place() = Place(generation);
  return body;
}

v1::Contributed ContributedTo(uint32_t generation, uint32_t round) {
  v1::Contributed contributed = ReportOf<v1::Contributed>(generation);
  contributed.set_round(round);
  return contributed;
}

template <typename T>
bool IsOne(const Machine::Actions& actions) {
  return actions.size() == 1 && std::holds_alternative<T>(actions[0]);
}

const v1::MemberMessage& MessageOf(const Machine::Action& action) {
  return std::get<Machine::Send>(action).message;
}

// A state machine whose worker trains in `generation`, without unanswered messages.
Machine Training(uint32_t generation) {
  Machine machine;
  machine.Receive(AssignmentOf(generation));
  machine.Report(ReportOf<v1::Prepared>(generation));
  machine.Receive(StartOf(generation));
  return machine;
}

// The evaluation may end the run, which must know of its last checkpoint then.
TEST(AssignmentMachine, RepeatsACheckpointBeforeTheEvaluation) {
  Machine machine = Training(5);
  machine.Report(ReportOf<v1::Checkpointed>(5));
  machine.Report(ReportOf<v1::Evaluated>(5));
  const Machine::Actions again = machine.Connected();
  ASSERT_EQ(again.size(), 2U);
  EXPECT_TRUE(MessageOf(again[0]).has_checkpointed());
  EXPECT_TRUE(MessageOf(again[1]).has_evaluated());
}

TEST(AssignmentMachine, StartsOnceAfterPrepared) {
  Machine machine;
  EXPECT_FALSE(machine.rank_slot());
  EXPECT_TRUE(IsOne<Machine::Begin>(machine.Receive(AssignmentOf(5))));
  ASSERT_TRUE(machine.rank_slot());
  EXPECT_EQ(machine.rank_slot()->generation(), 5U);
  EXPECT_TRUE(machine.Receive(StartOf(5)).empty()) << "not prepared yet";
  EXPECT_TRUE(IsOne<Machine::Send>(machine.Report(ReportOf<v1::Prepared>(5))));
  EXPECT_TRUE(IsOne<Machine::Deliver>(machine.Receive(StartOf(5))));
  EXPECT_TRUE(machine.Receive(StartOf(5)).empty()) << "already started";
}

TEST(AssignmentMachine, IgnoresRepeatedAndOlderAssignments) {
  Machine machine = Training(5);
  EXPECT_TRUE(machine.Receive(AssignmentOf(5)).empty());
  EXPECT_TRUE(machine.Receive(AssignmentOf(4)).empty());
  machine.Receive(ReleaseOf(5));
  EXPECT_TRUE(machine.Receive(AssignmentOf(5)).empty()) << "the generation has ended";
}

// A coordinator with a copy of the store has assigned higher generations, and has ended.
TEST(AssignmentMachine, LaterCoordinatorAssignsLowerGenerations) {
  const auto assignment = [](uint32_t generation, uint64_t epoch) {
    v1::CoordinatorMessage message = AssignmentOf(generation);
    message.set_epoch(epoch);
    return message;
  };
  Machine machine;
  machine.Receive(assignment(500, 7));
  machine.Receive(ReleaseOf(500));
  EXPECT_TRUE(machine.Receive(assignment(6, 7)).empty()) << "late";
  EXPECT_TRUE(machine.Receive(assignment(500, 7)).empty()) << "repeated";
  const Machine::Actions ended = machine.Receive(assignment(500, 8));
  ASSERT_TRUE(IsOne<Machine::Send>(ended)) << "the coordinator waits for it";
  EXPECT_EQ(MessageOf(ended[0]).group_failed().place().generation(), 500U);
  EXPECT_TRUE(IsOne<Machine::Begin>(machine.Receive(assignment(6, 8))));
  EXPECT_TRUE(machine.Receive(assignment(5, 8)).empty()) << "late";
}

TEST(AssignmentMachine, NewerAssignmentReplacesTheCurrentOne) {
  Machine machine = Training(5);
  const Machine::Actions actions = machine.Receive(AssignmentOf(6));
  ASSERT_EQ(actions.size(), 2U);
  EXPECT_TRUE(std::holds_alternative<Machine::Cancel>(actions[0]));
  EXPECT_TRUE(std::holds_alternative<Machine::Begin>(actions[1]));
}

TEST(AssignmentMachine, NudgesTheTrainingGroup) {
  Machine machine = Training(5);
  EXPECT_TRUE(IsOne<Machine::Deliver>(
      machine.Receive(MessageFor(5, &v1::CoordinatorMessage::mutable_nudge))));
  EXPECT_TRUE(machine.Receive(MessageFor(4, &v1::CoordinatorMessage::mutable_nudge)).empty());
}

TEST(AssignmentMachine, DropsMessagesOfOtherGenerations) {
  Machine machine = Training(5);
  EXPECT_TRUE(machine.Report(ContributedTo(4, 1)).empty());
  EXPECT_TRUE(machine.Receive(DecisionOf(4, 1, 10)).empty());
  EXPECT_TRUE(machine.Receive(ReleaseOf(4)).empty());
  EXPECT_TRUE(machine.Fail(Failed(Place(4), v1::FAILURE_CAUSE_PEER, "late")).empty());
  EXPECT_TRUE(machine.rank_slot());
}

TEST(AssignmentMachine, DecisionAnswersContributionOfItsRound) {
  Machine machine = Training(5);
  EXPECT_TRUE(machine.Receive(DecisionOf(5, 1, 10)).empty()) << "nothing was contributed";
  machine.Report(ContributedTo(5, 1));
  EXPECT_TRUE(machine.Receive(DecisionOf(5, 2, 10)).empty()) << "another round";
  EXPECT_TRUE(IsOne<Machine::Deliver>(machine.Receive(DecisionOf(5, 1, 10))));
  EXPECT_TRUE(machine.Receive(DecisionOf(5, 1, 10)).empty()) << "already answered";
}

TEST(AssignmentMachine, EvaluatingGroupAcceptsFurtherDecisions) {
  Machine machine;
  machine.Receive(AssignmentOf(5));
  machine.Report(ReportOf<v1::Prepared>(5));
  v1::CoordinatorMessage start = StartOf(5);
  start.mutable_start()->set_next_step(0);
  EXPECT_TRUE(IsOne<Machine::Deliver>(machine.Receive(start)));
  EXPECT_TRUE(IsOne<Machine::Deliver>(machine.Receive(DecisionOf(5, 1, 0))));
}

TEST(AssignmentMachine, FinishedRunAcceptsFurtherDecisions) {
  Machine machine = Training(5);
  machine.Report(ContributedTo(5, 1));
  EXPECT_TRUE(IsOne<Machine::Deliver>(machine.Receive(DecisionOf(5, 1, 0))));
  EXPECT_TRUE(IsOne<Machine::Deliver>(machine.Receive(DecisionOf(5, 1, 0))));
}

// A coordinator with an older store learns that the group is at its end: without averages, no
// aggregator has the version.
TEST(AssignmentMachine, LastContributionOfARunWithoutAveragesIsRepeated) {
  for (const bool averages : {false, true}) {
    Machine machine = Training(5);
    machine.Report(ContributedTo(5, 1));
    v1::CoordinatorMessage decision = DecisionOf(5, 1, 0);
    decision.mutable_decision()->set_adopt(averages);
    machine.Receive(decision);
    const Machine::Actions again = machine.Connected();
    ASSERT_EQ(again.size(), averages ? 0U : 1U);
    if (!averages) {
      EXPECT_TRUE(MessageOf(again[0]).has_contributed());
    }
    machine.Receive(ReleaseOf(5));
    EXPECT_TRUE(machine.Connected().empty());
  }
}

TEST(AssignmentMachine, ReconnectRepeatsUnansweredMessages) {
  Machine machine;
  EXPECT_TRUE(machine.Connected().empty());
  machine.Receive(AssignmentOf(5));
  machine.Report(ReportOf<v1::Prepared>(5));
  ASSERT_TRUE(IsOne<Machine::Send>(machine.Connected()));
  machine.Receive(StartOf(5));
  EXPECT_TRUE(machine.Connected().empty());

  machine.Report(ContributedTo(5, 1));
  machine.Report(ReportOf<v1::Adopted>(5));
  machine.Report(ReportOf<v1::Evaluated>(5));
  EXPECT_TRUE(IsOne<Machine::Send>(machine.Report(ReportOf<v1::Measured>(5))));
  const Machine::Actions again = machine.Connected();
  ASSERT_EQ(again.size(), 4U);
  EXPECT_TRUE(MessageOf(again[0]).has_measured());
  EXPECT_TRUE(MessageOf(again[1]).has_adopted());
  EXPECT_TRUE(MessageOf(again[2]).has_evaluated());
  EXPECT_TRUE(MessageOf(again[3]).has_contributed());
  machine.Receive(ReleaseOf(5));
  EXPECT_TRUE(machine.Connected().empty());
}

TEST(AssignmentMachine, ProgressAndTraceAreSentOnce) {
  Machine machine = Training(5);
  EXPECT_TRUE(machine.Report(ReportOf<v1::Traced>(4)).empty()) << "another generation";
  EXPECT_TRUE(IsOne<Machine::Send>(machine.Report(ReportOf<v1::Traced>(5))));
  EXPECT_TRUE(IsOne<Machine::Send>(machine.Report(ReportOf<v1::Progress>(5))));
  EXPECT_TRUE(machine.Connected().empty());
}

TEST(AssignmentMachine, FailureIsReportedUntilReleased) {
  Machine machine = Training(5);
  const Machine::Actions actions =
      machine.Fail(Failed(Place(5), v1::FAILURE_CAUSE_DATA, "no data"));
  ASSERT_TRUE(IsOne<Machine::Send>(actions));
  const v1::GroupFailed& failed = MessageOf(actions[0]).group_failed();
  EXPECT_EQ(failed.cause(), v1::FAILURE_CAUSE_DATA);
  EXPECT_EQ(failed.reason(), "no data");
  EXPECT_FALSE(machine.rank_slot());
  EXPECT_TRUE(IsOne<Machine::Send>(machine.Connected()));
  machine.Receive(ReleaseOf(5));
  EXPECT_TRUE(machine.Connected().empty());
}

TEST(AssignmentMachine, UnknownMemberLosesItsSlot) {
  Machine machine = Training(5);
  v1::CoordinatorMessage message;
  message.mutable_refused()->set_refusal(v1::REFUSAL_OVERSIZED);
  EXPECT_TRUE(machine.Receive(message).empty()) << "concerns a message, not the slot";
  EXPECT_TRUE(machine.rank_slot());
  message.mutable_refused()->set_refusal(v1::REFUSAL_UNKNOWN_MEMBER);
  EXPECT_TRUE(IsOne<Machine::Cancel>(machine.Receive(message)));
  EXPECT_FALSE(machine.rank_slot());
}

TEST(AssignmentMachine, LateReleaseDoesNotAnswerNewerFailure) {
  Machine machine = Training(5);
  machine.Fail(Failed(Place(5), v1::FAILURE_CAUSE_PEER, "first"));
  machine.Receive(AssignmentOf(6));
  machine.Fail(Failed(Place(6), v1::FAILURE_CAUSE_DATA, "second"));
  machine.Receive(ReleaseOf(5));
  const Machine::Actions again = machine.Connected();
  ASSERT_TRUE(IsOne<Machine::Send>(again));
  EXPECT_EQ(MessageOf(again[0]).group_failed().reason(), "second");
}

TEST(AssignmentMachine, GenerationsAreCountedPerLineage) {
  Machine machine = Training(5);
  machine.Receive(ReleaseOf(5));
  v1::CoordinatorMessage fresh = AssignmentOf(1);
  fresh.mutable_assignment()->set_lineage("another lineage");
  EXPECT_TRUE(IsOne<Machine::Begin>(machine.Receive(fresh)));
}

TEST(AssignmentMachine, IgnoresShardAddressesOfOtherRuns) {
  Machine machine = Training(5);
  v1::CoordinatorMessage message;
  message.mutable_shard_addresses()->set_run("run-2");
  EXPECT_TRUE(machine.Receive(message).empty());
  message.mutable_shard_addresses()->set_run("run-1");
  EXPECT_TRUE(IsOne<Machine::Deliver>(machine.Receive(message)));
}

TEST(AssignmentMachine, OnlyStartedRankStagesAgain) {
  v1::CoordinatorMessage message = MessageFor(5, &v1::CoordinatorMessage::mutable_restage);
  message.mutable_restage()->set_shard(2);
  message.mutable_restage()->set_round(3);
  message.mutable_restage()->set_seed(true);
  Machine idle;
  const Machine::Actions refused = idle.Receive(message);
  ASSERT_TRUE(IsOne<Machine::Send>(refused));
  const v1::Restaged& answer = MessageOf(refused[0]).restaged();
  EXPECT_EQ(answer.place().generation(), 5U);
  EXPECT_EQ(answer.shard(), 2U);
  EXPECT_EQ(answer.round(), 3U);
  EXPECT_TRUE(answer.seed());
  EXPECT_NE(answer.error(), "");

  Machine machine;
  machine.Receive(AssignmentOf(5));
  EXPECT_TRUE(IsOne<Machine::Send>(machine.Receive(message))) << "it has not started";
  machine = Training(5);
  const Machine::Actions actions = machine.Receive(message);
  ASSERT_TRUE(IsOne<Machine::Deliver>(actions));
  EXPECT_EQ(std::get<Machine::Deliver>(actions[0]).message.restage().shard(), 2U);
  EXPECT_TRUE(IsOne<Machine::Send>(machine.Report(ReportOf<v1::Restaged>(5))));
  EXPECT_TRUE(machine.Connected().empty()) << "the coordinator repeats its request";
  EXPECT_TRUE(machine.Report(ReportOf<v1::Restaged>(4)).empty());
}

TEST(AssignmentMachine, TraceRequestNeedsCurrentTraining) {
  Machine machine;
  EXPECT_TRUE(machine.Receive(TraceStepsOf(5)).empty());
  machine.Receive(AssignmentOf(5));
  machine.Report(ReportOf<v1::Prepared>(5));
  EXPECT_TRUE(machine.Receive(TraceStepsOf(5)).empty()) << "training has not started";
  machine.Receive(StartOf(5));
  EXPECT_TRUE(machine.Receive(TraceStepsOf(4)).empty()) << "another generation";
  const Machine::Actions actions = machine.Receive(TraceStepsOf(5));
  ASSERT_TRUE(IsOne<Machine::Deliver>(actions));
  EXPECT_EQ(std::get<Machine::Deliver>(actions[0]).message.trace_steps().request(), 7U);
}

}  // namespace
}  // namespace cadre
