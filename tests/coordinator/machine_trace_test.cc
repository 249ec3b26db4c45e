// Traces of a group's next steps: who is asked, who answers, and everything that may come between.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/coordinator/fake_cluster.h"

namespace cadre::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class MachineTraceTest : public ::testing::Test {
 protected:
  // One group of two that trains and comes to no boundary.
  void SetUp() override {
    cluster_.behaviour.train = false;
    cluster_.AddWorker("alpha");
    cluster_.AddWorker("beta");
    run_ = cluster_.Submit(MakeSpec(1, 2, 0, 20));
    ASSERT_EQ(cluster_.Group(run_, 0).state(), v1::GROUP_STATE_TRAINING);
  }

  FakeWorker& Rank(uint32_t rank) {
    for (FakeWorker& worker : cluster_.workers()) {
      if (worker.assignment.has_value() && worker.place().rank() == rank) return worker;
    }
    ADD_FAILURE() << "no rank " << rank;
    return cluster_.workers().front();
  }
  // What a worker was asked to trace, oldest first.
  static std::vector<v1::TraceSteps> Requests(const FakeWorker& worker) {
    std::vector<v1::TraceSteps> asked;
    for (const v1::CoordinatorMessage& message : worker.received) {
      if (message.has_trace_steps()) asked.push_back(message.trace_steps());
    }
    return asked;
  }
  // A rank answers what it was asked last.
  void Answer(uint32_t rank) {
    FakeWorker& worker = Rank(rank);
    ASSERT_FALSE(Requests(worker).empty());
    cluster_.SendFrom(worker.connection, TracedBy(Requests(worker).back()));
  }
  bool Answered(RequestId request) { return cluster_.traces.contains(request); }
  absl::Status StatusOf(RequestId request) {
    if (!Answered(request)) return absl::UnknownError("not answered");
    return cluster_.traces[request].status;
  }

  FakeCluster cluster_;
  std::string run_;
};

TEST_F(MachineTraceTest, TracesEveryRank) {
  const RequestId request = cluster_.TraceGroup(run_, 0, 5);
  for (const uint32_t rank : {0u, 1u}) {
    const std::vector<v1::TraceSteps> asked = Requests(Rank(rank));
    ASSERT_EQ(asked.size(), 1u);
    EXPECT_EQ(asked[0].place().SerializeAsString(), Rank(rank).place().SerializeAsString());
    EXPECT_EQ(asked[0].steps(), 5u);
    EXPECT_EQ(asked[0].max_events(), kMaxTraceEvents);
    EXPECT_NE(asked[0].request(), 0u);
  }
  Answer(1);
  EXPECT_FALSE(Answered(request)) << "one is missing";
  Answer(0);
  ASSERT_TRUE(StatusOf(request).ok()) << StatusOf(request);
  const v1::TraceReply& reply = cluster_.traces[request].reply;
  ASSERT_EQ(reply.ranks_size(), 2);
  for (const uint32_t rank : {0u, 1u}) {
    const v1::RankTrace& trace = reply.ranks(static_cast<int>(rank));
    EXPECT_EQ(trace.rank(), rank);
    EXPECT_EQ(trace.worker(), Rank(rank).name);
    EXPECT_EQ(trace.host(), "host");
    EXPECT_EQ(trace.events_size(), 5);
    EXPECT_EQ(trace.dropped(), 0u);
  }
}

TEST_F(MachineTraceTest, NothingOfItIsStored) {
  const int before = cluster_.transactions();
  cluster_.trace_at_once = true;
  const RequestId request = cluster_.TraceGroup(run_, 0);
  EXPECT_TRUE(StatusOf(request).ok());
  EXPECT_EQ(cluster_.transactions(), before);
}

TEST_F(MachineTraceTest, DefaultSteps) {
  cluster_.TraceGroup(run_, 0, 0);
  EXPECT_EQ(Requests(Rank(0)).at(0).steps(), 3u);
}

TEST_F(MachineTraceTest, AHundredStepsAtMost) {
  const RequestId most = cluster_.TraceGroup(run_, 0, 100);
  EXPECT_FALSE(Answered(most));
  const RequestId more = cluster_.TraceGroup(run_, 0, 101);
  EXPECT_EQ(StatusOf(more).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Requests(Rank(0)).size(), 1u);
}

TEST_F(MachineTraceTest, WhatIsNotThereIsNotFound) {
  for (const std::string& run : {std::string("run-9"), std::string(), run_ + "x"}) {
    EXPECT_EQ(StatusOf(cluster_.TraceGroup(run, 0)).code(), absl::StatusCode::kNotFound) << run;
  }
  const absl::Status group = StatusOf(cluster_.TraceGroup(run_, 1));
  EXPECT_EQ(group.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(group.message()), HasSubstr("group 1"));
  EXPECT_EQ(StatusOf(cluster_.TraceGroup(run_, ~0u)).code(), absl::StatusCode::kNotFound);
}

TEST_F(MachineTraceTest, IdleGroupCannotBeTraced) {
  // It waits for workers.
  const std::string waiting = cluster_.Submit(MakeSpec(1, 1, 0, 20));
  absl::Status status = StatusOf(cluster_.TraceGroup(waiting, 0));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("is waiting for workers"));
  // It prepares.
  cluster_.behaviour.prepare = false;
  cluster_.AddWorker("gamma");
  ASSERT_EQ(cluster_.Group(waiting, 0).state(), v1::GROUP_STATE_PREPARING);
  status = StatusOf(cluster_.TraceGroup(waiting, 0));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("is preparing"));
  // It has ended.
  cluster_.StopRun(waiting);
  status = StatusOf(cluster_.TraceGroup(waiting, 0));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("has ended"));
}

TEST_F(MachineTraceTest, FinishedGroupCannotBeTraced) {
  cluster_.behaviour.train = true;
  cluster_.behaviour.evaluate = false;
  ASSERT_TRUE(
      cluster_.RunUntil([&] { return cluster_.Group(run_, 0).state() == v1::GROUP_STATE_IDLE; }));
  const absl::Status status = StatusOf(cluster_.TraceGroup(run_, 0));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("last step"));
}

TEST_F(MachineTraceTest, OneTraceOfAGroupAtATime) {
  const RequestId first = cluster_.TraceGroup(run_, 0);
  const RequestId second = cluster_.TraceGroup(run_, 0);
  EXPECT_EQ(StatusOf(second).code(), absl::StatusCode::kResourceExhausted);
  Answer(0);
  Answer(1);
  EXPECT_TRUE(StatusOf(first).ok());
  cluster_.trace_at_once = true;
  EXPECT_TRUE(StatusOf(cluster_.TraceGroup(run_, 0)).ok());
}

TEST_F(MachineTraceTest, OfTwoRunsEachHasItsOwn) {
  cluster_.AddWorker("gamma");
  const std::string other = cluster_.Submit(MakeSpec(1, 1, 0, 20));
  const RequestId first = cluster_.TraceGroup(run_, 0);
  cluster_.trace_at_once = true;
  EXPECT_TRUE(StatusOf(cluster_.TraceGroup(other, 0)).ok());
  EXPECT_FALSE(Answered(first));
}

TEST_F(MachineTraceTest, TracesOneGroup) {
  FakeCluster cluster;
  cluster.behaviour.train = false;
  cluster.AddAggregator("agg");
  cluster.AddWorker("alpha");
  cluster.AddWorker("beta");
  const std::string run = cluster.Submit(MakeSpec(2, 1, 5, 20));
  cluster.TraceGroup(run, 1);
  EXPECT_THAT(Requests(cluster.Lead(run, 0)), IsEmpty());
  EXPECT_EQ(Requests(cluster.Lead(run, 1)).size(), 1u);
}

TEST_F(MachineTraceTest, CancelledTraceIsNotAnswered) {
  const RequestId first = cluster_.TraceGroup(run_, 0);
  const v1::TraceSteps old = Requests(Rank(0)).back();
  cluster_.CancelTrace(first);
  const RequestId second = cluster_.TraceGroup(run_, 0);
  EXPECT_FALSE(Answered(second)) << StatusOf(second);
  // The answer to the first is no answer to the second.
  cluster_.SendFrom(Rank(0).connection, TracedBy(old));
  Answer(1);
  EXPECT_FALSE(Answered(second));
  Answer(0);
  EXPECT_TRUE(StatusOf(second).ok());
  EXPECT_FALSE(Answered(first));
}

TEST_F(MachineTraceTest, UnknownCancelIsIgnored) {
  const RequestId first = cluster_.TraceGroup(run_, 0);
  cluster_.CancelTrace(first + 1000);
  Answer(0);
  Answer(1);
  EXPECT_TRUE(StatusOf(first).ok());
  cluster_.CancelTrace(first);
  EXPECT_EQ(cluster_.RunStatus(run_).state(), v1::RUN_STATE_RUNNING);
}

TEST_F(MachineTraceTest, DuplicateAnswerIsIgnored) {
  const RequestId request = cluster_.TraceGroup(run_, 0);
  v1::MemberMessage again = TracedBy(Requests(Rank(0)).back());
  Answer(0);
  again.mutable_traced()->clear_events();
  cluster_.SendFrom(Rank(0).connection, again);
  EXPECT_FALSE(Answered(request));
  Answer(1);
  ASSERT_TRUE(StatusOf(request).ok());
  EXPECT_EQ(cluster_.traces[request].reply.ranks(0).events_size(), 3) << "the first one counts";
  // And one when it is all over.
  cluster_.SendFrom(Rank(0).connection, again);
  EXPECT_EQ(cluster_.RunStatus(run_).state(), v1::RUN_STATE_RUNNING);
}

TEST_F(MachineTraceTest, UnexpectedAnswerIsIgnored) {
  v1::TraceSteps made_up;
  *made_up.mutable_place() = Rank(0).place();
  made_up.set_request(77);
  cluster_.SendFrom(Rank(0).connection, TracedBy(made_up));
  EXPECT_TRUE(cluster_.traces.empty());
  EXPECT_TRUE(cluster_.IsOpen(Rank(0).connection));
}

TEST_F(MachineTraceTest, AnswerOfOtherRankIsStale) {
  const RequestId request = cluster_.TraceGroup(run_, 0);
  v1::MemberMessage stale = TracedBy(Requests(Rank(0)).back());
  stale.mutable_traced()->mutable_place()->set_generation(77);
  cluster_.SendFrom(Rank(0).connection, stale);
  v1::MemberMessage others = TracedBy(Requests(Rank(0)).back());
  others.mutable_traced()->mutable_place()->set_rank(1);
  cluster_.SendFrom(Rank(0).connection, others);
  EXPECT_EQ(cluster_.Counter("refused_stale_generation"), 2u);
  EXPECT_FALSE(Answered(request));
}

TEST_F(MachineTraceTest, ALostRankAbortsIt) {
  const RequestId request = cluster_.TraceGroup(run_, 0);
  Answer(0);
  cluster_.Kill(Rank(1));
  cluster_.Run(absl::Seconds(15));
  EXPECT_EQ(StatusOf(request).code(), absl::StatusCode::kAborted) << StatusOf(request);
  EXPECT_THAT(std::string(StatusOf(request).message()), HasSubstr("ended while it was traced"));
}

TEST_F(MachineTraceTest, ReformedGroupCanBeTraced) {
  const RequestId first = cluster_.TraceGroup(run_, 0);
  const v1::TraceSteps old = Requests(Rank(1)).back();
  v1::MemberMessage failed;
  *failed.mutable_group_failed()->mutable_place() = Rank(0).place();
  cluster_.SendFrom(Rank(0).connection, failed);
  EXPECT_EQ(StatusOf(first).code(), absl::StatusCode::kAborted);
  ASSERT_TRUE(cluster_.RunUntil(
      [&] { return cluster_.Group(run_, 0).state() == v1::GROUP_STATE_TRAINING; }));
  const RequestId second = cluster_.TraceGroup(run_, 0);
  cluster_.SendFrom(Rank(old.place().rank()).connection, TracedBy(old));
  EXPECT_FALSE(Answered(second)) << "that was of the generation before";
  Answer(0);
  Answer(1);
  EXPECT_TRUE(StatusOf(second).ok());
}

TEST_F(MachineTraceTest, TheEndOfTheRunAbortsIt) {
  const RequestId request = cluster_.TraceGroup(run_, 0);
  cluster_.StopRun(run_);
  EXPECT_EQ(StatusOf(request).code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(StatusOf(request).message()), HasSubstr("enough"));
}

TEST_F(MachineTraceTest, ReconnectedRankIsAskedAgain) {
  const RequestId request = cluster_.TraceGroup(run_, 0);
  Answer(0);
  for (const uint32_t rank : {0u, 1u}) {
    FakeWorker& worker = Rank(rank);
    cluster_.Cut(worker);
    cluster_.Connect(worker);
  }
  EXPECT_EQ(Requests(Rank(0)).size(), 1u);
  ASSERT_EQ(Requests(Rank(1)).size(), 2u);
  EXPECT_EQ(Requests(Rank(1))[0].request(), Requests(Rank(1))[1].request());
  Answer(1);
  EXPECT_TRUE(StatusOf(request).ok());
}

TEST_F(MachineTraceTest, DisconnectedRankIsAskedLater) {
  FakeWorker& worker = Rank(1);
  cluster_.Cut(worker);
  const RequestId request = cluster_.TraceGroup(run_, 0);
  EXPECT_THAT(Requests(worker), IsEmpty());
  cluster_.Connect(worker);
  Answer(0);
  Answer(1);
  EXPECT_TRUE(StatusOf(request).ok());
}

TEST_F(MachineTraceTest, RestartChangesTraceNumbers) {
  cluster_.TraceGroup(run_, 0);
  const v1::TraceSteps before = Requests(Rank(0)).back();
  cluster_.RestartCoordinator();
  ASSERT_EQ(cluster_.Group(run_, 0).state(), v1::GROUP_STATE_TRAINING);
  const RequestId request = cluster_.TraceGroup(run_, 0);
  EXPECT_NE(Requests(Rank(0)).back().request(), before.request());
  cluster_.SendFrom(Rank(0).connection, TracedBy(before));
  Answer(1);
  EXPECT_FALSE(Answered(request));
  Answer(0);
  EXPECT_TRUE(StatusOf(request).ok());
}

TEST_F(MachineTraceTest, ItDoesNotHoldUpTraining) {
  const RequestId request = cluster_.TraceGroup(run_, 0);
  cluster_.behaviour.train = true;
  ASSERT_TRUE(cluster_.RunUntilEnded(run_));
  EXPECT_EQ(cluster_.RunStatus(run_).state(), v1::RUN_STATE_DONE);
  EXPECT_EQ(StatusOf(request).code(), absl::StatusCode::kAborted) << "nobody ever answered";
}

TEST(GroupTraceTest, RanksShareTheReply) {
  GroupTrace few({.ranks = 2, .max_bytes = 64 << 20});
  EXPECT_EQ(few.max_events(), kMaxTraceEvents);
  GroupTrace many({.ranks = 64, .max_bytes = 6 << 20});
  EXPECT_LT(many.max_events(), 1000u);
  EXPECT_GT(many.max_events(), 100u);
  GroupTrace most({.ranks = 1 << 20, .max_bytes = 1000});
  EXPECT_EQ(most.max_events(), 1u) << "never none";
}

TEST(GroupTraceTest, ExcessEventsAreCounted) {
  const size_t max_bytes = 2000;
  GroupTrace trace({.ranks = 2, .max_bytes = max_bytes});
  v1::Traced traced;
  traced.set_dropped(5);
  for (int i = 0; i < 1000; ++i) {
    v1::TraceEvent& event = *traced.add_events();
    event.set_name("a name of some length");
    event.set_begin_us(1'000'000 + i);
  }
  for (const uint32_t rank : {0u, 1u}) {
    traced.mutable_place()->set_rank(rank);
    trace.Take(traced, "", "");
  }
  ASSERT_TRUE(trace.complete());
  const v1::TraceReply reply = trace.Reply();
  EXPECT_LE(reply.ByteSizeLong(), max_bytes);
  EXPECT_GT(reply.ByteSizeLong(), max_bytes / 2);
  for (const v1::RankTrace& rank : reply.ranks()) {
    EXPECT_GT(rank.events_size(), 0);
    EXPECT_EQ(rank.dropped(), 5u + 1000u - static_cast<uint64_t>(rank.events_size()));
    EXPECT_EQ(rank.events(0).begin_us(), 1'000'000) << "the earliest are kept";
  }
}

TEST(GroupTraceTest, LargeEventIsLeftOut) {
  GroupTrace trace({.ranks = 1, .max_bytes = 1000});
  v1::Traced traced;
  traced.add_events()->set_name(std::string(5000, 'x'));
  trace.Take(traced, "", "");
  EXPECT_EQ(trace.Reply().ranks(0).events_size(), 0);
  EXPECT_EQ(trace.Reply().ranks(0).dropped(), 1u);
}

}  // namespace
}  // namespace cadre::testing
