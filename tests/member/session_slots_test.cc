#include "member/session_slots.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace cadre {
namespace {

using ::testing::ElementsAre;

struct FakeSession {
  void Cancel(const std::string& reason) { events.push_back("cancelled: " + reason); }
  void Deliver(const v1::CoordinatorMessage&) { events.push_back("delivered"); }

  std::vector<std::string> events;
};

class SessionSlotsTest : public ::testing::Test {
 protected:
  void CarryOut(const AssignmentMachine::Actions& actions) {
    slots_.CarryOut(
        actions, [this](const v1::Assignment&) { return made_ = std::make_shared<FakeSession>(); },
        [this](const v1::MemberMessage&) { ++sent_; });
  }

  SessionSlots<FakeSession> slots_;
  std::shared_ptr<FakeSession> made_;
  int sent_ = 0;
};

TEST_F(SessionSlotsTest, MessagesReachTheSessionThatWaits) {
  CarryOut({AssignmentMachine::Begin{}});
  const auto first = slots_.TakeNext();
  EXPECT_EQ(first, made_);
  CarryOut({AssignmentMachine::Deliver{}, AssignmentMachine::Cancel{"released"},
            AssignmentMachine::Send{}, AssignmentMachine::Begin{}, AssignmentMachine::Deliver{}});
  EXPECT_THAT(first->events, ElementsAre("delivered", "cancelled: released"));
  EXPECT_THAT(made_->events, ElementsAre("delivered"));
  EXPECT_EQ(sent_, 1);
  EXPECT_EQ(slots_.current(), first) << "until the runner leaves it";
  slots_.Leave();
  EXPECT_EQ(slots_.TakeNext(), made_);
}

TEST_F(SessionSlotsTest, SessionThatWaitsIsReplacedOrDropped) {
  CarryOut({AssignmentMachine::Begin{}});
  const std::weak_ptr<FakeSession> first = made_;
  CarryOut({AssignmentMachine::Begin{}});
  EXPECT_TRUE(first.expired());
  CarryOut({AssignmentMachine::Cancel{"released"}});
  EXPECT_FALSE(slots_.waits());
  CarryOut({AssignmentMachine::Deliver{}});
  EXPECT_EQ(slots_.current(), nullptr);
}

}  // namespace
}  // namespace cadre
