// Coordinators of which one leads, with clients and members that know all of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "tests/base/expect.h"
#include "tests/coordinator/service/service_fixture.h"

namespace cadre {
namespace {

// Longer than a connection takes on a busy host.
constexpr absl::Duration kDial = absl::Seconds(5);

class StandbyTest : public ServiceTest {
 protected:
  void SetUp() override {
    ServiceTest::SetUp();
    standby_ = std::make_unique<Coordinator>(folder_ / "standby.db", "127.0.0.1:0", lease_);
    standby_->service().StandBy("the one at a:1 leads");
    both_ = absl::StrCat(standby_->address(), ",", coordinator_->address());
  }

  std::unique_ptr<Coordinator> standby_;
  std::string both_;
};

TEST_F(StandbyTest, RefusesCallsWithItsReason) {
  const CoordinatorClient client(
      {.coordinator = standby_->address(), .dial_timeout = absl::Milliseconds(300)});
  EXPECT_THAT(client.List(), IsError(absl::StatusCode::kUnavailable, "the one at a:1 leads"));
  EXPECT_THAT(client.Submit(Spec()), IsError(absl::StatusCode::kUnavailable, "a:1 leads"));
  EXPECT_THAT(client.Watch("", absl::Now() + kLimit, [](const auto&) { return true; }),
              IsError(absl::StatusCode::kUnavailable, "a:1 leads"));
  EXPECT_THAT(client.Backup(absl::Now() + kLimit, [](const auto&) { return absl::OkStatus(); }),
              IsError(absl::StatusCode::kUnavailable, "a:1 leads"));
  EXPECT_THAT(standby_->service().Read([](const Machine&, absl::Time) {}, kLimit),
              IsError(absl::StatusCode::kUnavailable, "a:1 leads"));
}

TEST_F(StandbyTest, ClientsAndMembersFindTheLeader) {
  const CoordinatorClient client({.coordinator = both_});
  EXPECT_THAT(client.Submit(Spec()), IsOk());
  FakeMember member(both_, "alpha");
  EXPECT_EQ(client.Status()->workers_size(), 1);
}

TEST_F(StandbyTest, MembersFollowTheLead) {
  FakeMember member(both_, "alpha");
  const CoordinatorClient client({.coordinator = both_});
  coordinator_->service().StandBy("another one leads");
  standby_->Lead();
  ASSERT_TRUE(member.AwaitConnections(2));
  EXPECT_TRUE(Await([&] {
    const auto status = client.Status();
    return status.ok() && status->workers_size() == 1;
  }));
  standby_->service().StandBy("another one leads");
  coordinator_->Lead();
  EXPECT_TRUE(member.AwaitConnections(3));
}

// The loop may wait for its store when the lead is lost.
TEST_F(StandbyTest, StreamsEndBeforeTheLoop) {
  FakeMember member(coordinator_->address(), "alpha");
  absl::Notification blocked;
  absl::Notification ends;
  std::thread query([&] {
    coordinator_->service()
        .Read(
            [&](const Machine&, absl::Time) {
              blocked.Notify();
              ends.WaitForNotification();
            },
            kLimit)
        .IgnoreError();
  });
  blocked.WaitForNotification();
  std::thread stand_by([&] { coordinator_->service().StandBy("another one leads"); });
  EXPECT_TRUE(member.AwaitDisconnection());
  ends.Notify();
  stand_by.join();
  query.join();
}

TEST_F(StandbyTest, WaitingCallsEndWithTheLead) {
  FakeMember member(coordinator_->address(), "alpha");
  absl::Notification watching;
  absl::Status watched;
  std::thread watch([&] {
    watched = CoordinatorClient({.coordinator = coordinator_->address(), .dial_timeout = kDial})
                  .Watch("", absl::Now() + kLimit, [&](const v1::WatchUpdate&) {
                    if (!watching.HasBeenNotified()) watching.Notify();
                    return true;
                  });
    // The call has failed before an update.
    if (!watching.HasBeenNotified()) watching.Notify();
  });
  EXPECT_THAT(client_->Submit(Spec()), IsOk());
  watching.WaitForNotification();
  coordinator_->service().StandBy("another one leads");
  watch.join();
  ASSERT_THAT(watched, IsError(absl::StatusCode::kUnavailable, "another one leads"));
  EXPECT_TRUE(member.AwaitDisconnection());
}

}  // namespace
}  // namespace cadre
