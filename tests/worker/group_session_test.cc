#include "worker/group_session.h"

#include <gtest/gtest.h>

#include <vector>

namespace cadre {
namespace {

v1::TraceSteps Request(uint64_t number) {
  v1::TraceSteps trace;
  trace.set_request(number);
  trace.set_steps(3);
  return trace;
}

v1::Traced AnswerTo(const v1::TraceSteps& trace) {
  v1::Traced traced;
  traced.set_request(trace.request());
  return traced;
}

class GroupSessionTraceTest : public ::testing::Test {
 protected:
  std::vector<uint64_t> said_;
  GroupSession session_{v1::Assignment(), {.traced = [this](const v1::Traced& traced) {
                          said_.push_back(traced.request());
                        }}};
};

TEST_F(GroupSessionTraceTest, ARequestIsHandedOutOnce) {
  EXPECT_FALSE(session_.TakeTraceRequest().has_value());
  session_.Deliver(Request(7));
  const auto taken = session_.TakeTraceRequest();
  ASSERT_TRUE(taken.has_value());
  EXPECT_EQ(taken->request(), 7U);
  EXPECT_EQ(taken->steps(), 3U);
  EXPECT_FALSE(session_.TakeTraceRequest().has_value());
  session_.Traced(AnswerTo(*taken));
  EXPECT_EQ(said_, std::vector<uint64_t>({7}));
}

TEST_F(GroupSessionTraceTest, WhatIsSaidAgainWhileItIsTracedIsNotTracedTwice) {
  session_.Deliver(Request(7));
  const auto taken = session_.TakeTraceRequest();
  session_.Deliver(Request(7));
  EXPECT_FALSE(session_.TakeTraceRequest().has_value());
  session_.Traced(AnswerTo(*taken));
  // The answer was lost with the stream, so that it is asked for again.
  session_.Deliver(Request(7));
  EXPECT_TRUE(session_.TakeTraceRequest().has_value());
}

TEST_F(GroupSessionTraceTest, TheNewestRequestCounts) {
  session_.Deliver(Request(7));
  session_.Deliver(Request(8));
  EXPECT_EQ(session_.TakeTraceRequest()->request(), 8U);
  // Whoever asked for 8 has left; 9 is taken up when 8 is done.
  session_.Deliver(Request(9));
  session_.Traced(AnswerTo(Request(8)));
  EXPECT_EQ(session_.TakeTraceRequest()->request(), 9U);
}

}  // namespace
}  // namespace cadre
