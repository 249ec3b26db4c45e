// When a member ends its stream by itself, and what it does with messages of replaced coordinators.
#include "coordinator/client/membership_client.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "tests/server/fake_coordinator.h"

namespace cadre {
namespace {

class MembershipClientTest : public ::testing::Test {
 protected:
  MembershipClientTest() {
    options_.coordinator = coordinator_.address();
    options_.hello = [] { return v1::Hello(); };
    options_.on_message = [](const v1::CoordinatorMessage&) { return true; };
    options_.on_connection = [this](bool connected) {
      absl::MutexLock lock(&mutex_);
      ++(connected ? joined_ : lost_);
    };
  }

  std::unique_ptr<MembershipClient> Start() {
    auto client = MembershipClient::Start(options_);
    EXPECT_TRUE(client.ok()) << client.status();
    return *std::move(client);
  }
  bool AwaitJoined(int times) {
    absl::MutexLock lock(&mutex_);
    auto joined = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return joined_ >= times; };
    return mutex_.AwaitWithTimeout(absl::Condition(&joined), absl::Seconds(20));
  }
  static v1::CoordinatorMessage OfEpoch(uint64_t epoch) {
    v1::CoordinatorMessage message;
    message.set_epoch(epoch);
    message.mutable_release();
    return message;
  }

  testing::FakeCoordinator coordinator_;
  MembershipClient::Options options_;
  absl::Mutex mutex_;
  int joined_ ABSL_GUARDED_BY(mutex_) = 0;
  int lost_ ABSL_GUARDED_BY(mutex_) = 0;
};

TEST_F(MembershipClientTest, FullQueueEndsTheStream) {
  absl::Notification blocked, proceed;
  // Blocks the writing thread.
  options_.heartbeat = [&] {
    if (!blocked.HasBeenNotified()) blocked.Notify();
    proceed.WaitForNotification();
    return v1::Heartbeat();
  };
  options_.max_queued = 3;
  const auto client = Start();
  blocked.WaitForNotification();
  v1::MemberMessage message;
  message.mutable_progress();
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(client->Send(message).ok()) << i;
  EXPECT_TRUE(absl::IsUnavailable(client->Send(message)));
  proceed.Notify();
  EXPECT_TRUE(AwaitJoined(2)) << "the client joins again, so that its owner can repeat messages";
}

TEST_F(MembershipClientTest, MessageThatIsNotAcceptedEndsTheStream) {
  int received = 0;
  options_.on_message = [&](const v1::CoordinatorMessage&) { return ++received > 1; };
  const auto client = Start();
  coordinator_.Send(OfEpoch(0));
  EXPECT_TRUE(AwaitJoined(2));
}

TEST_F(MembershipClientTest, LowerEpochIsRefused) {
  std::vector<uint64_t> received;
  options_.on_message = [&](const v1::CoordinatorMessage& message) {
    received.push_back(message.epoch());
    return true;
  };
  auto client = Start();
  coordinator_.SetEpoch(7);
  coordinator_.SendUntilEnd({OfEpoch(7), OfEpoch(6), OfEpoch(7)});
  ASSERT_TRUE(AwaitJoined(2));
  EXPECT_EQ(
      coordinator_.Receive(v1::MemberMessage::kHeartbeat).heartbeat().counters().at("stale_epochs"),
      1U);
  client.reset();
  EXPECT_EQ(received, std::vector<uint64_t>({7}));
}

// Such as a coordinator that was upgraded, or a certificate that was replaced by that of another
// member: the process must end instead of trying forever.
class FinalRefusalTest : public MembershipClientTest,
                         public ::testing::WithParamInterface<v1::Refusal> {};

INSTANTIATE_TEST_SUITE_P(All, FinalRefusalTest,
                         ::testing::Values(v1::REFUSAL_PROTOCOL, v1::REFUSAL_WRONG_IDENTITY));

TEST_P(FinalRefusalTest, EndsTheMemberAfterAWelcome) {
  absl::Notification refused;
  absl::Status reason;
  options_.on_message = [](const v1::CoordinatorMessage& message) { return message.has_refused(); };
  options_.on_refused = [&](const absl::Status& status) {
    reason = status;
    refused.Notify();
  };
  const auto client = Start();
  coordinator_.RefuseJoins(GetParam(), "too old");
  coordinator_.Send(OfEpoch(0));
  ASSERT_TRUE(refused.WaitForNotificationWithTimeout(absl::Seconds(20)));
  EXPECT_EQ(reason.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_NE(reason.message().find("too old"), std::string::npos) << reason;
  EXPECT_FALSE(client->connected());
}

TEST_F(MembershipClientTest, EpochOfEarlierProcessIsRespected) {
  options_.epoch = 7;
  options_.dial_timeout = absl::Milliseconds(200);
  coordinator_.SetEpoch(6);
  EXPECT_TRUE(absl::IsUnavailable(MembershipClient::Start(options_).status()));
  coordinator_.SetEpoch(7);
  EXPECT_TRUE(MembershipClient::Start(options_).ok());
}

TEST_F(MembershipClientTest, EpochIsRecordedUntilItIsDurable) {
  std::vector<uint64_t> recorded;
  options_.record_epoch = [&](uint64_t epoch) {
    recorded.push_back(epoch);
    return recorded.size() > 2;
  };
  absl::Notification done;
  int received = 0;
  options_.on_message = [&](const v1::CoordinatorMessage&) {
    if (++received == 4) done.Notify();
    return true;
  };
  coordinator_.SetEpoch(7);
  auto client = Start();
  for (const uint64_t epoch : {7, 7, 7, 8}) coordinator_.Send(OfEpoch(epoch));
  done.WaitForNotification();
  client.reset();
  EXPECT_EQ(recorded, std::vector<uint64_t>({7, 7, 7, 8}));
}

}  // namespace
}  // namespace cadre
