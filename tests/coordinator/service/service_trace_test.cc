// Traces over gRPC.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>

#include "absl/time/clock.h"
#include "tests/coordinator/service/service_fixture.h"

namespace cadre {
namespace {

// Tests traces of a run that one worker trains.
class TraceServiceTest : public ServiceTest {
 protected:
  void SetUp() override {
    ServiceTest::SetUp();
    member_ = std::make_unique<FakeMember>(coordinator_->address(), "alpha");
    run_ = client_->Submit(Spec()).value();
    Prepare(*member_);
  }

  // Calls Trace in another thread; the result is in `traced_` once `caller_` has ended.
  void Call(absl::Duration limit = kLimit) {
    caller_ =
        std::thread([this, limit] { traced_ = client_->Trace(run_, 0, 2, absl::Now() + limit); });
  }
  v1::MemberMessage AnswerTo(const v1::TraceSteps& trace, int events) {
    v1::MemberMessage message;
    v1::Traced& traced = *message.mutable_traced();
    *traced.mutable_place() = trace.place();
    traced.set_request(trace.request());
    for (int i = 0; i < events; ++i) {
      v1::TraceEvent& event = *traced.add_events();
      event.set_name("reduce-scatter bucket 12 of a name of the largest permitted length ...");
      event.set_category("collective");
      event.set_track(1);
      event.set_begin_us(1'700'000'000'000'000 + i);
      event.set_duration_us(100'000'000);
      event.set_bytes(uint64_t{1} << 40);
      event.set_step(static_cast<uint32_t>(i));
    }
    return message;
  }

  std::unique_ptr<FakeMember> member_;
  std::string run_;
  std::thread caller_;
  absl::StatusOr<v1::TraceReply> traced_ = absl::UnknownError("not answered");
};

TEST_F(TraceServiceTest, TraceRoundTrip) {
  Call();
  const v1::CoordinatorMessage request = member_->Next();
  ASSERT_TRUE(request.has_trace_steps()) << request.ShortDebugString();
  EXPECT_EQ(request.trace_steps().steps(), 2u);
  // The largest answer of a rank, with events of the largest size, fits into one message.
  const int max_events = request.trace_steps().max_events();
  ASSERT_TRUE(member_->client().Send(AnswerTo(request.trace_steps(), max_events)).ok());
  caller_.join();
  ASSERT_TRUE(traced_.ok()) << traced_.status();
  ASSERT_EQ(traced_->ranks_size(), 1);
  EXPECT_EQ(traced_->ranks(0).worker(), "alpha");
  EXPECT_EQ(traced_->ranks(0).events_size(), max_events);
  EXPECT_EQ(traced_->ranks(0).dropped(), 0u);
}

TEST_F(TraceServiceTest, CancelledTraceFreesGroup) {
  Call(absl::Seconds(1));
  ASSERT_TRUE(member_->Next().has_trace_steps());
  caller_.join();
  EXPECT_EQ(traced_.status().code(), absl::StatusCode::kDeadlineExceeded) << traced_.status();
  std::thread worker([&] {
    for (v1::CoordinatorMessage request = member_->Next(); request.has_trace_steps();
         request = member_->Next()) {
      EXPECT_TRUE(member_->client().Send(AnswerTo(request.trace_steps(), 1)).ok());
    }
  });
  // The coordinator receives the cancellation some time after the caller has disconnected.
  const absl::Time limit = absl::Now() + kLimit;
  do {
    traced_ = client_->Trace(run_, 0, 2, limit);
  } while (absl::IsResourceExhausted(traced_.status()) && absl::Now() < limit);
  EXPECT_TRUE(traced_.ok()) << traced_.status();
  // The worker's thread ends when it receives Release.
  EXPECT_TRUE(client_->Stop(run_, "enough").ok());
  worker.join();
}

TEST_F(TraceServiceTest, EndOfRunAbortsTrace) {
  Call();
  ASSERT_TRUE(member_->Next().has_trace_steps());
  ASSERT_TRUE(client_->Stop(run_, "enough").ok());
  caller_.join();
  EXPECT_EQ(traced_.status().code(), absl::StatusCode::kAborted) << traced_.status();
}

TEST_F(TraceServiceTest, DrainEndsTrace) {
  Call();
  ASSERT_TRUE(member_->Next().has_trace_steps());
  coordinator_->Stop();
  caller_.join();
  EXPECT_EQ(traced_.status().code(), absl::StatusCode::kUnavailable) << traced_.status();
}

}  // namespace
}  // namespace cadre
