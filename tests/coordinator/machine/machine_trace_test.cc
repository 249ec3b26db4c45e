// Traces of a group's next steps: requests, answers, and the events in between.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/base/expect.h"
#include "tests/coordinator/machine/fake_cluster.h"

namespace cadre::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class MachineTraceTest : public MachineTest {
 protected:
  // Starts one group of two workers that trains but does not reach a boundary.
  void SetUp() override {
    cluster_.AddWorker("alpha");
    cluster_.AddWorker("beta");
    run_ = cluster_.Submit(MakeSpec(1, 2, 0, 20));
    ASSERT_EQ(StateOf(run_), v1::GROUP_STATE_TRAINING);
  }

  FakeWorker& Rank(uint32_t rank) { return cluster_.Rank(run_, 0, rank); }
  // The trace requests that a worker has received, oldest first.
  static std::vector<v1::TraceSteps> Requests(const FakeWorker& worker) {
    std::vector<v1::TraceSteps> requests;
    for (const v1::CoordinatorMessage& message : worker.received) {
      if (message.has_trace_steps()) requests.push_back(message.trace_steps());
    }
    return requests;
  }
  // Makes the rank answer its newest request.
  void Answer(uint32_t rank) {
    ASSERT_FALSE(Requests(Rank(rank)).empty());
    cluster_.Send(Rank(rank), TracedBy(Requests(Rank(rank)).back()));
  }
  bool Answered(RequestId request) { return cluster_.traces.contains(request); }
  absl::Status StatusOf(RequestId request) {
    if (!Answered(request)) return absl::UnknownError("not answered");
    return cluster_.traces[request].status;
  }
  // Expects that a trace of the group fails, for a reason that contains this text.
  void ExpectFailure(const std::string& run, uint32_t group, absl::StatusCode code,
                     const std::string& reason) {
    const absl::Status status = StatusOf(cluster_.TraceGroup(run, group));
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(reason));
  }

  std::string run_;
};

TEST_F(MachineTraceTest, TracesEveryRank) {
  const int before = cluster_.transactions();
  const RequestId request = cluster_.TraceGroup(run_, 0, 5);
  for (const uint32_t rank : {0u, 1u}) {
    const std::vector<v1::TraceSteps> requests = Requests(Rank(rank));
    ASSERT_EQ(requests.size(), 1u);
    EXPECT_TRUE(SamePlace(requests[0].place(), Rank(rank).place()));
    EXPECT_EQ(requests[0].steps(), 5u);
    EXPECT_EQ(requests[0].max_events(), kMaxTraceEvents);
    EXPECT_NE(requests[0].request(), 0u);
  }
  Answer(1);
  EXPECT_FALSE(Answered(request)) << "rank 0 has not answered";
  Answer(0);
  ASSERT_TRUE(StatusOf(request).ok()) << StatusOf(request);
  const v1::TraceReply& reply = cluster_.traces[request].trace;
  ASSERT_EQ(reply.ranks_size(), 2);
  for (const uint32_t rank : {0u, 1u}) {
    const v1::RankTrace& trace = reply.ranks(rank);
    EXPECT_EQ(trace.rank(), rank);
    EXPECT_EQ(trace.worker(), Rank(rank).name);
    EXPECT_EQ(trace.host(), "host");
    EXPECT_EQ(trace.events_size(), 5);
    EXPECT_EQ(trace.dropped(), 0u);
  }
  EXPECT_EQ(cluster_.transactions(), before) << "traces are not stored";
}

TEST_F(MachineTraceTest, StepsHaveDefaultAndLimit) {
  cluster_.CancelTrace(cluster_.TraceGroup(run_, 0, 0));
  EXPECT_EQ(Requests(Rank(0)).back().steps(), 3u);
  const RequestId largest = cluster_.TraceGroup(run_, 0, 100);
  EXPECT_FALSE(Answered(largest));
  cluster_.CancelTrace(largest);
  EXPECT_EQ(StatusOf(cluster_.TraceGroup(run_, 0, 101)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Requests(Rank(0)).size(), 2u);
}

TEST_F(MachineTraceTest, UnknownRunOrGroupIsNotFound) {
  for (const std::string& run : {std::string("run-9"), std::string(), run_ + "x"}) {
    ExpectFailure(run, 0, absl::StatusCode::kNotFound, "no such run");
  }
  ExpectFailure(run_, 1, absl::StatusCode::kNotFound, "group 1");
  ExpectFailure(run_, ~0u, absl::StatusCode::kNotFound, "has no group");
  const std::string other = cluster_.Submit(MakeSpec(3, 1, 5, 20));
  ExpectFailure(other, 3, absl::StatusCode::kNotFound, "has no group 3; it has groups 0 to 2");
}

TEST_F(MachineTraceTest, IdleGroupCannotBeTraced) {
  const std::string other = cluster_.Submit(MakeSpec(1, 1, 0, 20));
  ExpectFailure(other, 0, absl::StatusCode::kFailedPrecondition, "is waiting for workers");
  cluster_.behaviour.prepare = false;
  cluster_.AddWorker("gamma");
  ASSERT_EQ(StateOf(other), v1::GROUP_STATE_PREPARING);
  ExpectFailure(other, 0, absl::StatusCode::kFailedPrecondition, "is preparing");
  cluster_.StopRun(other);
  ExpectFailure(other, 0, absl::StatusCode::kFailedPrecondition, "has ended");
  // After the last step, the group waits for the evaluation.
  cluster_.behaviour.train = true;
  cluster_.behaviour.evaluate = false;
  ASSERT_TRUE(cluster_.RunUntil([&] { return StateOf(run_) == v1::GROUP_STATE_IDLE; }));
  ExpectFailure(run_, 0, absl::StatusCode::kFailedPrecondition, "last step");
}

TEST_F(MachineTraceTest, OneTracePerGroup) {
  cluster_.AddWorker("gamma");
  const std::string other = cluster_.Submit(MakeSpec(1, 1, 0, 20));
  const RequestId first = cluster_.TraceGroup(run_, 0);
  ExpectFailure(run_, 0, absl::StatusCode::kResourceExhausted, "another trace");
  cluster_.behaviour.trace = true;
  EXPECT_TRUE(StatusOf(cluster_.TraceGroup(other, 0)).ok()) << "groups are independent";
  EXPECT_FALSE(Answered(first));
  Answer(0);
  Answer(1);
  EXPECT_TRUE(StatusOf(first).ok());
  EXPECT_TRUE(StatusOf(cluster_.TraceGroup(run_, 0)).ok());
}

TEST_F(MachineTraceTest, OnlyRequestedGroupIsTraced) {
  FakeCluster cluster;
  cluster.behaviour.train = false;
  cluster.AddAggregator("agg");
  cluster.AddWorkers(2);
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
  cluster_.Send(Rank(0), TracedBy(old));
  Answer(1);
  EXPECT_FALSE(Answered(second)) << "rank 0 has only answered the first request";
  cluster_.CancelTrace(second + 1000);
  Answer(0);
  EXPECT_TRUE(StatusOf(second).ok());
  EXPECT_FALSE(Answered(first));
  cluster_.CancelTrace(second);
  EXPECT_EQ(RunStateOf(run_), v1::RUN_STATE_RUNNING);
}

TEST_F(MachineTraceTest, DuplicateAnswerIsIgnored) {
  const RequestId request = cluster_.TraceGroup(run_, 0);
  v1::Traced again = TracedBy(Requests(Rank(0)).back());
  Answer(0);
  again.clear_events();
  cluster_.Send(Rank(0), again);
  EXPECT_FALSE(Answered(request));
  Answer(1);
  ASSERT_TRUE(StatusOf(request).ok());
  EXPECT_EQ(cluster_.traces[request].trace.ranks(0).events_size(), 3) << "the first answer counts";
  cluster_.Send(Rank(0), again);
  again.set_request(77);
  cluster_.Send(Rank(0), again);
  EXPECT_EQ(cluster_.traces.size(), 1u);
  EXPECT_TRUE(cluster_.IsOpen(Rank(0).connection)) << "late and unrequested answers are harmless";
}

TEST_F(MachineTraceTest, AnswerForOtherRankIsStale) {
  const RequestId request = cluster_.TraceGroup(run_, 0);
  v1::Traced answer = TracedBy(Requests(Rank(0)).back());
  answer.mutable_place()->set_rank(1);
  cluster_.Send(Rank(0), answer);
  EXPECT_EQ(cluster_.Counter("refused_stale_generation"), 1u);
  EXPECT_FALSE(Answered(request));
}

TEST_F(MachineTraceTest, LostRankAbortsTrace) {
  const RequestId request = cluster_.TraceGroup(run_, 0);
  Answer(0);
  cluster_.Kill(Rank(1));
  cluster_.Run(absl::Seconds(15));
  EXPECT_THAT(StatusOf(request), IsError(absl::StatusCode::kAborted, "ended while it was traced"));
}

TEST_F(MachineTraceTest, ReformedGroupCanBeTraced) {
  const RequestId first = cluster_.TraceGroup(run_, 0);
  const v1::TraceSteps old = Requests(Rank(1)).back();
  cluster_.Fail(Rank(0));
  EXPECT_EQ(StatusOf(first).code(), absl::StatusCode::kAborted);
  ASSERT_TRUE(cluster_.RunUntil([&] { return StateOf(run_) == v1::GROUP_STATE_TRAINING; }));
  const RequestId second = cluster_.TraceGroup(run_, 0);
  cluster_.Send(Rank(old.place().rank()), TracedBy(old));
  EXPECT_FALSE(Answered(second)) << "the answer belongs to the previous generation";
  Answer(0);
  Answer(1);
  EXPECT_TRUE(StatusOf(second).ok());
}

TEST_F(MachineTraceTest, EndOfRunAbortsTrace) {
  const RequestId stopped = cluster_.TraceGroup(run_, 0);
  cluster_.StopRun(run_);
  EXPECT_THAT(StatusOf(stopped), IsError(absl::StatusCode::kAborted, "enough"));
  // A trace that no rank answers does not delay training.
  const std::string next = cluster_.Submit(MakeSpec(1, 2, 0, 20));
  const RequestId unanswered = cluster_.TraceGroup(next, 0);
  cluster_.behaviour.train = true;
  ASSERT_TRUE(cluster_.RunUntilEnded(next));
  EXPECT_EQ(RunStateOf(next), v1::RUN_STATE_DONE);
  EXPECT_EQ(StatusOf(unanswered).code(), absl::StatusCode::kAborted);
}

TEST_F(MachineTraceTest, RequestIsRepeatedAfterReconnect) {
  cluster_.Cut(Rank(1));
  const RequestId request = cluster_.TraceGroup(run_, 0);
  EXPECT_THAT(Requests(Rank(1)), IsEmpty()) << "the rank is disconnected";
  Answer(0);
  cluster_.Reconnect(Rank(0));
  cluster_.Connect(Rank(1));
  cluster_.Reconnect(Rank(1));
  EXPECT_EQ(Requests(Rank(0)).size(), 1u) << "rank 0 has answered";
  ASSERT_EQ(Requests(Rank(1)).size(), 2u);
  EXPECT_EQ(Requests(Rank(1))[0].request(), Requests(Rank(1))[1].request());
  Answer(1);
  EXPECT_TRUE(StatusOf(request).ok());
}

TEST_F(MachineTraceTest, RestartChangesTraceNumbers) {
  cluster_.TraceGroup(run_, 0);
  const v1::TraceSteps before = Requests(Rank(0)).back();
  cluster_.RestartCoordinator();
  ASSERT_EQ(StateOf(run_), v1::GROUP_STATE_TRAINING);
  const RequestId request = cluster_.TraceGroup(run_, 0);
  EXPECT_NE(Requests(Rank(0)).back().request(), before.request());
  cluster_.Send(Rank(0), TracedBy(before));
  Answer(1);
  EXPECT_FALSE(Answered(request));
  Answer(0);
  EXPECT_TRUE(StatusOf(request).ok());
}

TEST(GroupTraceTest, RanksShareTheReply) {
  GroupTrace few({.ranks = 2, .max_bytes = 64 << 20});
  EXPECT_EQ(few.max_events(), kMaxTraceEvents);
  GroupTrace many({.ranks = 64, .max_bytes = 6 << 20});
  EXPECT_LT(many.max_events(), 1000u);
  EXPECT_GT(many.max_events(), 100u);
  GroupTrace tiny({.ranks = 1 << 20, .max_bytes = 1000});
  EXPECT_EQ(tiny.max_events(), 1u) << "every rank may send one event";
}

// 160 bytes for each event.
TEST(GroupTraceTest, EventsOfARankFitIntoItsShare) {
  EXPECT_EQ(GroupTrace({.ranks = 10, .max_bytes = 160'000}).max_events(), 100U);
  EXPECT_EQ(GroupTrace({.ranks = 10, .max_bytes = 159'999}).max_events(), 99U);
}

// A tag and a length of up to five bytes for each event.
TEST(GroupTraceTest, FramesOfEventsCount) {
  v1::Traced traced;
  traced.add_events()->set_name("event");
  const size_t bytes = traced.events(0).ByteSizeLong();
  for (const auto& [max_bytes, events] : {std::pair(bytes + 6, 1), {bytes + 5, 0}}) {
    GroupTrace trace({.ranks = 1, .max_bytes = max_bytes});
    trace.Take(traced, "", "");
    EXPECT_EQ(trace.Reply().ranks(0).events_size(), events);
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

TEST(GroupTraceTest, EventsFillTheirShare) {
  v1::Traced traced;
  traced.add_events()->set_name("event");
  traced.add_events()->set_name("event");
  // The bytes of one event.
  size_t fits = 1;
  const auto count = [&](size_t max_bytes) {
    GroupTrace trace({.ranks = 1, .max_bytes = max_bytes});
    trace.Take(traced, "", "");
    return trace.Reply().ranks(0).events_size();
  };
  while (count(fits) == 0) ++fits;
  EXPECT_EQ(count(2 * fits - 1), 1);
  EXPECT_EQ(count(2 * fits), 2);
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
    EXPECT_EQ(rank.dropped() + rank.events_size(), 5u + 1000u);
    EXPECT_EQ(rank.events(0).begin_us(), 1'000'000) << "the earliest events are kept";
  }
}

}  // namespace
}  // namespace cadre::testing
