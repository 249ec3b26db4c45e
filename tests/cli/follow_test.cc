// Tests following runs with a fake coordinator.
#include "cli/follow.h"

#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "base/rpc/daemon.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/cadre/v1/control.grpc.pb.h"

namespace cadre {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::Duration kSoon = absl::Seconds(20);

// Sends an update for each of `steps`, then ends the stream or, with `hold`, keeps it open.
class Status final : public v1::Status::Service {
 public:
  grpc::Status Watch(grpc::ServerContext* context, const v1::WatchRequest* request,
                     grpc::ServerWriter<v1::WatchUpdate>* writer) override {
    if (request->run() == "run-404") {
      return grpc::Status(grpc::StatusCode::NOT_FOUND, "no run run-404");
    }
    for (const uint32_t step : steps) {
      v1::WatchUpdate update;
      update.mutable_run()->set_run("run-1");
      update.mutable_run()->set_step(step);
      update.mutable_run()->set_state(step >= 100 ? v1::RUN_STATE_DONE : v1::RUN_STATE_RUNNING);
      writer->Write(update);
    }
    while (hold && !context->IsCancelled()) absl::SleepFor(absl::Milliseconds(5));
    return grpc::Status::OK;
  }

  std::vector<uint32_t> steps;
  bool hold = false;
};

class FollowTest : public testing::Test {
 protected:
  void Serve(const std::string& listen = "127.0.0.1:0") {
    auto daemon = Daemon::Start({.listen = listen}, {&status_});
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *std::move(daemon);
    address_ = daemon_->address();
  }

  CoordinatorClient Client(absl::Duration dial = absl::Milliseconds(300)) {
    CoordinatorClient::Options options;
    options.coordinator = address_;
    options.dial_timeout = dial;
    return CoordinatorClient(options);
  }

  FollowOptions Options() {
    FollowOptions options;
    options.run = "run-1";
    options.deadline = absl::Now() + kSoon;
    options.on_update = [this](const v1::WatchUpdate& update) {
      seen_.push_back(update.run().step());
      return true;
    };
    return options;
  }

  Status status_;
  std::unique_ptr<Daemon> daemon_;
  std::string address_;
  std::vector<uint32_t> seen_;
};

TEST_F(FollowTest, EndsWithTheRun) {
  status_.steps = {1, 2, 100};
  Serve();
  EXPECT_EQ(Follow(Client(), Options()), absl::OkStatus());
  EXPECT_THAT(seen_, ElementsAre(1, 2, 100));
}

TEST_F(FollowTest, StopsOnRequest) {
  status_.steps = {1, 2, 3};
  status_.hold = true;
  Serve();
  FollowOptions options = Options();
  options.on_update = [this](const v1::WatchUpdate& update) {
    seen_.push_back(update.run().step());
    return update.run().step() < 2;
  };
  EXPECT_EQ(Follow(Client(), options), absl::OkStatus());
  EXPECT_THAT(seen_, ElementsAre(1, 2));
}

TEST_F(FollowTest, UnknownRunFailsImmediately) {
  Serve();
  FollowOptions options = Options();
  options.run = "run-404";
  EXPECT_TRUE(absl::IsNotFound(Follow(Client(), options)));
}

TEST_F(FollowTest, UnreachableCoordinatorFailsImmediately) {
  Serve();
  daemon_.reset();
  const absl::Status status = Follow(Client(), Options());
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(address_));
}

TEST_F(FollowTest, DeadlineEndsASilentWatch) {
  status_.steps = {1};
  status_.hold = true;
  Serve();
  FollowOptions options = Options();
  options.deadline = absl::Now() + absl::Milliseconds(300);
  EXPECT_TRUE(absl::IsDeadlineExceeded(Follow(Client(), options)));
  EXPECT_THAT(seen_, ElementsAre(1));
}

TEST_F(FollowTest, SurvivesARestartOfTheCoordinator) {
  status_.steps = {1, 2};
  Serve();
  FollowOptions options = Options();
  int away = 0;
  options.on_away = [&](const absl::Status&) {
    ++away;
    // The coordinator restarts with more updates while the follower tries to reach it.
    status_.steps = {3, 100};
    Serve(address_);
  };
  // The coordinator is shut down after the second update.
  std::thread killer;
  options.on_update = [&](const v1::WatchUpdate& update) {
    seen_.push_back(update.run().step());
    if (update.run().step() == 2 && !killer.joinable()) {
      killer = std::thread([this] { daemon_.reset(); });
      killer.join();
    }
    return true;
  };
  EXPECT_EQ(Follow(Client(), options), absl::OkStatus());
  EXPECT_THAT(seen_, ElementsAre(1, 2, 3, 100));
  EXPECT_EQ(away, 1);
}

TEST_F(FollowTest, GivesUpAfterPatience) {
  status_.steps = {1};
  Serve();
  FollowOptions options = Options();
  options.patience = absl::Milliseconds(500);
  options.on_update = [&](const v1::WatchUpdate&) {
    std::thread([this] { daemon_.reset(); }).join();
    return true;
  };
  EXPECT_TRUE(absl::IsUnavailable(Follow(Client(), options)));
}

TEST_F(FollowTest, ThreadKeepsTheNewestUpdate) {
  status_.steps = {1, 2, 100};
  Serve();
  const CoordinatorClient client = Client();
  Follower follower(client, "run-1");
  const absl::Time deadline = absl::Now() + kSoon;
  while (!follower.Outcome().has_value() && absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(5));
  }
  ASSERT_EQ(follower.Outcome(), absl::OkStatus());
  const auto newest = follower.Take();
  ASSERT_TRUE(newest.has_value());
  EXPECT_EQ(newest->run().step(), 100u);
  EXPECT_FALSE(follower.Take().has_value());
}

TEST_F(FollowTest, ThreadSurvivesARestart) {
  status_.steps = {1};
  Serve();
  const CoordinatorClient client = Client();
  daemon_.reset();
  Follower follower(client, "run-1");
  absl::SleepFor(absl::Milliseconds(600));  // longer than one attempt to connect
  EXPECT_FALSE(follower.Outcome().has_value());
  status_.steps = {100};
  Serve(address_);
  const absl::Time deadline = absl::Now() + kSoon;
  while (!follower.Outcome().has_value() && absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(5));
  }
  EXPECT_EQ(follower.Outcome(), absl::OkStatus());
}

TEST_F(FollowTest, ThreadStopsWithoutUpdates) {
  status_.steps = {1};
  status_.hold = true;
  Serve();
  const CoordinatorClient client = Client();
  const absl::Time before = absl::Now();
  { Follower follower(client, "run-1"); }
  EXPECT_LT(absl::Now() - before, absl::Seconds(5));
}

TEST(HasEndedTest, EndStates) {
  EXPECT_TRUE(HasEnded(v1::RUN_STATE_DONE));
  EXPECT_TRUE(HasEnded(v1::RUN_STATE_FAILED));
  EXPECT_TRUE(HasEnded(v1::RUN_STATE_STOPPED));
  EXPECT_FALSE(HasEnded(v1::RUN_STATE_QUEUED));
  EXPECT_FALSE(HasEnded(v1::RUN_STATE_FINISHING));
  EXPECT_FALSE(HasEnded(v1::RUN_STATE_PARKED)) << "it can be resumed";
  v1::RunStatus run;
  run.set_state(v1::RUN_STATE_PARKED);
  EXPECT_FALSE(HasEnded(run));
  run.set_diverged(true);
  EXPECT_TRUE(HasEnded(run)) << "it goes on only if an operator decides how";
  EXPECT_FALSE(HasSucceeded(run));
}

}  // namespace
}  // namespace cadre
