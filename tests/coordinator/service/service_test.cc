// Tests the coordinator's services over gRPC, with members that use the real membership client.
#include "coordinator/service/service.h"

#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "base/protocol.h"
#include "base/rpc/grpc_channel.h"
#include "coordinator/client/coordinator_client.h"
#include "coordinator/client/membership_client.h"
#include "coordinator/store/keys.h"
#include "coordinator/store/sqlite_store.h"
#include "tests/base/expect.h"
#include "tests/coordinator/service/service_fixture.h"

namespace cadre {
namespace {

// Keeps the loop busy until End.
class BusyLoop {
 public:
  explicit BusyLoop(CoordinatorService& service)
      : thread_([this, &service] {
          const auto block = [this](const Machine&, absl::Time) {
            begun_.Notify();
            ended_.WaitForNotification();
          };
          EXPECT_TRUE(service.Read(block, kLimit).ok());
        }) {
    begun_.WaitForNotification();
  }
  ~BusyLoop() { End(); }

  void End() {
    if (!thread_.joinable()) return;
    ended_.Notify();
    thread_.join();
  }

 private:
  absl::Notification begun_;
  absl::Notification ended_;
  std::thread thread_;
};

class ShortLeaseTest : public ServiceTest {
 protected:
  ShortLeaseTest() { lease_ = absl::Milliseconds(400); }
};

TEST_F(ServiceTest, WorkerJoinsAndLeaves) {
  auto member = std::make_unique<FakeMember>(coordinator_->address(), "alpha");
  EXPECT_TRUE(member->client().connected());
  EXPECT_EQ(member->client().member_id(), "w1");
  const auto status = client_->Status();
  ASSERT_TRUE(status.ok()) << status.status();
  ASSERT_EQ(status->workers_size(), 1);
  EXPECT_EQ(status->workers(0).name(), "alpha");
  EXPECT_TRUE(status->workers(0).connected());
  EXPECT_EQ(status->coordinator().protocol(), kProtocol);
  member->client().Stop("test");
  EXPECT_TRUE(Await([&] { return client_->Status()->workers_size() == 0; }));
  EXPECT_EQ(Counter("leases_lost"), 0u);
}

TEST_F(ShortLeaseTest, HeartbeatsKeepLease) {
  FakeMember member(coordinator_->address(), "alpha");
  absl::SleepFor(4 * lease_);
  EXPECT_EQ(member.client().member_id(), "w1");
  EXPECT_TRUE(member.client().connected());
  EXPECT_EQ(Counter("leases_lost"), 0u);
  EXPECT_EQ(Counter("refused_wrong_crc"), 2u);
}

TEST_F(ServiceTest, OversizedMessageIsRefused) {
  v1::MemberMessage message;
  v1::Hello& hello = *message.mutable_hello();
  hello.set_protocol(kProtocol);
  hello.set_role(v1::ROLE_WORKER);
  hello.set_name(std::string(kMaxMessageBytes, 'x'));
  ExpectOversized(message);
}

TEST_F(ServiceTest, HostileMessageIsRefusedBeforeItIsParsed) {
  v1::MemberMessage message;
  for (int i = 0; i < 1 << 20; ++i) message.mutable_hello()->add_shards();
  ExpectOversized(message);
}

// While the loop is busy, the messages of one member do not fill the queue that all members share.
TEST_F(ServiceTest, OneMemberCannotFillTheQueue) {
  constexpr int kMessages = 400;
  auto stub = v1::Membership::NewStub(
      grpc::CreateChannel(coordinator_->address(), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  auto stream = stub->Join(&context);
  v1::MemberMessage message;
  v1::Hello& hello = *message.mutable_hello();
  hello.set_protocol(kProtocol);
  hello.set_role(v1::ROLE_WORKER);
  hello.set_name("alpha");
  hello.set_incarnation("alpha-process");
  hello.set_address("127.0.0.1:1");
  ASSERT_TRUE(stream->Write(message));
  v1::CoordinatorMessage answer;
  ASSERT_TRUE(stream->Read(&answer));
  BusyLoop busy(coordinator_->service());
  std::atomic<int> written = 0;
  std::thread member([&] {
    auto& counters = *message.mutable_heartbeat()->mutable_counters();
    for (int i = 0; i < 64; ++i) counters[absl::StrCat(i, std::string(2000, 'x'))] = 1;
    while (written < kMessages && stream->Write(message)) ++written;
  });
  absl::SleepFor(absl::Seconds(1));
  EXPECT_LT(written, kMessages / 2);
  busy.End();
  member.join();
  EXPECT_EQ(written, kMessages) << "the member continues once its messages are handled";
  context.TryCancel();
}

// One peer has at most 192 of the 256 queries that wait.
TEST_F(ServiceTest, OnePeerLeavesAQuarterOfTheQueries) {
  struct Call {
    grpc::ClientContext context;
    v1::ListRequest request;
    v1::ListReply reply;
  };
  constexpr int kCalls = 300;
  // A connection has at most 128 streams.
  grpc::ChannelArguments separate;
  separate.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  std::vector<std::unique_ptr<v1::Runs::Stub>> stubs;
  for (int i = 0; i < 3; ++i) {
    stubs.push_back(v1::Runs::NewStub(grpc::CreateCustomChannel(
        coordinator_->address(), grpc::InsecureChannelCredentials(), separate)));
  }
  std::atomic<int> ended = 0;
  std::atomic<int> refused = 0;
  std::deque<Call> calls(kCalls);
  BusyLoop busy(coordinator_->service());
  for (int i = 0; i < kCalls; ++i) {
    stubs[i % 3]->async()->List(&calls[i].context, &calls[i].request, &calls[i].reply,
                                [&](const grpc::Status& status) {
                                  if (!status.ok()) ++refused;
                                  ++ended;
                                });
  }
  EXPECT_TRUE(Await([&] { return refused == kCalls - 192; })) << refused;
  busy.End();
  EXPECT_TRUE(Await([&] { return ended == kCalls; }));
  EXPECT_EQ(refused, kCalls - 192);
}

// The result of a join with a Hello that has only a name.
absl::Status JoinWithName(const std::string& name, const std::string& address,
                          absl::Duration dial_timeout) {
  MembershipClient::Options options;
  options.coordinator = address;
  options.dial_timeout = dial_timeout;
  options.hello = [name] {
    v1::Hello hello;
    hello.set_name(name);
    return hello;
  };
  options.on_message = [](const v1::CoordinatorMessage&) { return true; };
  return MembershipClient::Start(std::move(options)).status();
}

TEST_F(ServiceTest, BackupIsAStore) {
  const auto run = client_->Submit(Spec());
  ASSERT_TRUE(run.ok()) << run.status();
  const std::string copy = folder_ / "copy.db";
  for (int time = 0; time < 2; ++time) {
    std::string bytes;
    EXPECT_EQ(client_->Backup(absl::Now() + kLimit,
                              [&](const v1::BackupChunk& chunk) {
                                bytes += chunk.data();
                                return absl::OkStatus();
                              }),
              absl::OkStatus());
    std::ofstream(copy, std::ios::binary) << bytes;
  }
  EXPECT_FALSE(std::filesystem::exists(path_ + ".backup"));
  const auto store = SqliteStore::Open({.path = copy});
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_TRUE((*store)->Get(RunKey(*run))->has_value());
  v1::MetaRecord meta;
  ASSERT_TRUE(meta.ParseFromString(**(*store)->Get(kMetaKey)));
  EXPECT_TRUE(meta.backup());
}

TEST_F(ServiceTest, BackupThatWasCancelledIsNotWritten) {
  const auto backup = [&](absl::Duration limit) {
    return client_->Backup(absl::Now() + limit,
                           [](const v1::BackupChunk&) { return absl::OkStatus(); });
  };
  BusyLoop busy(coordinator_->service());
  EXPECT_TRUE(absl::IsDeadlineExceeded(backup(absl::Milliseconds(200))));
  // Another one is refused until the coordinator knows of the end of the first.
  EXPECT_TRUE(Await([&] { return absl::IsDeadlineExceeded(backup(absl::Milliseconds(200))); }));
  busy.End();
  const auto nothing = [](const Machine&, absl::Time) {};
  ASSERT_TRUE(Await([&] {
    EXPECT_EQ(coordinator_->service().Read(nothing, kLimit), absl::OkStatus());
    return !std::filesystem::exists(path_ + ".backup");
  }));
  EXPECT_TRUE(Await([&] { return backup(kLimit).ok(); }));
  EXPECT_FALSE(std::filesystem::exists(path_ + ".backup"));
}

TEST_F(ServiceTest, BackupEndsWithAnErrorOfTheReader) {
  EXPECT_THAT(client_->Backup(absl::Now() + kLimit,
                              [](const v1::BackupChunk&) { return absl::DataLossError("full"); }),
              IsError(absl::StatusCode::kDataLoss, "full"));
  // The next one is possible when the coordinator has noticed.
  EXPECT_TRUE(Await([&] {
    return client_
        ->Backup(absl::Now() + kLimit, [](const v1::BackupChunk&) { return absl::OkStatus(); })
        .ok();
  }));
}

TEST_F(ServiceTest, RefusedJoinHasReason) {
  EXPECT_THAT(JoinWithName("", coordinator_->address(), kLimit),
              IsError(absl::StatusCode::kPermissionDenied, "Hello lacks the field role"));
  EXPECT_THAT(JoinWithName("\x1b[2J", coordinator_->address(), kLimit),
              IsError(absl::StatusCode::kPermissionDenied, "hello.name '\\x1b[2J' is not"));
  EXPECT_EQ(Counter("refused_malformed"), 2U);
}

TEST_F(ServiceTest, NoCoordinatorIsUnavailable) {
  const std::string address = coordinator_->address();
  coordinator_->Stop();
  EXPECT_THAT(JoinWithName("", address, absl::Milliseconds(500)),
              IsError(absl::StatusCode::kUnavailable, address));
  CoordinatorClient client({.coordinator = address, .dial_timeout = absl::Milliseconds(300)});
  EXPECT_EQ(client.Status().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(client.Submit(Spec()).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(ServiceTest, SubmitListStop) {
  const auto run = client_->Submit(Spec());
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(*run, "run-1-t");
  const auto list = client_->List();
  ASSERT_TRUE(list.ok());
  ASSERT_EQ(list->runs_size(), 1);
  EXPECT_EQ(list->runs(0).state(), v1::RUN_STATE_QUEUED);
  v1::RunStatus newest;
  const auto watch = [&](absl::Duration limit) {
    return client_->Watch(*run, absl::Now() + limit, [&](const v1::WatchUpdate& update) {
      newest = update.run();
      return true;
    });
  };
  EXPECT_EQ(watch(absl::Milliseconds(100)).code(), absl::StatusCode::kDeadlineExceeded);
  absl::Status watched = absl::UnknownError("not answered");
  std::thread watcher([&] { watched = watch(kLimit); });
  EXPECT_TRUE(client_->Stop(*run, "for the test").ok());
  watcher.join();
  EXPECT_TRUE(watched.ok()) << watched;
  EXPECT_EQ(newest.state(), v1::RUN_STATE_STOPPED);
  EXPECT_EQ(newest.reason(), "for the test");
  newest.Clear();
  EXPECT_TRUE(watch(kLimit).ok());
  EXPECT_EQ(newest.state(), v1::RUN_STATE_STOPPED) << "the run has ended already";
}

// The validation of a large spec does not delay other calls.
TEST_F(ServiceTest, ValidatesOnCallingThread) {
  v1::RunSpec slow = Spec();
  slow.set_name("slow");
  std::thread submit([&] { EXPECT_TRUE(client_->Submit(slow).ok()); });
  // The call is answered whether or not it precedes the submission.
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(client_->Submit(Spec()).ok());
  EXPECT_EQ(client_->List()->runs_size(), 100);
  coordinator_->EndValidation();
  submit.join();
  EXPECT_EQ(client_->List()->runs_size(), 101);
}

TEST_F(ServiceTest, CallErrors) {
  v1::RunSpec bad = Spec();
  bad.set_batch_per_group(0);
  const auto refused = client_->Submit(bad);
  EXPECT_THAT(refused, IsError(absl::StatusCode::kInvalidArgument, "batch_per_group"));
  v1::RunSpec like_an_id = Spec();
  like_an_id.set_name("run-7");
  EXPECT_THAT(client_->Submit(like_an_id),
              IsError(absl::StatusCode::kInvalidArgument, "name: is 'run-7', which has the form"));
  EXPECT_THAT(client_->Stop("run-9", std::string(1025, 'x')),
              IsError(absl::StatusCode::kInvalidArgument, "reason: has more than the 1024"));
  EXPECT_EQ(client_->Stop("run-9", "").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(client_->Status("run-9").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(client_->Watch("run-9", absl::Now() + kLimit, [](const auto&) { return true; }).code(),
            absl::StatusCode::kNotFound);
  auto stub = v1::Runs::NewStub(MakeChannel(coordinator_->address(), Plane::kControl));
  grpc::ClientContext context;
  v1::SubmitRequest request;
  request.set_protocol(kProtocol + 2);
  v1::SubmitReply reply;
  EXPECT_EQ(stub->Submit(&context, request, &reply).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
}

TEST_F(ServiceTest, CordonReachesTheStatus) {
  const FakeMember member(coordinator_->address(), "alpha");
  const auto reply = client_->Cordon("alpha", CoordinatorClient::CordonMode::kCordon);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->members_size(), 1);
  EXPECT_TRUE(client_->Status()->workers(0).cordoned());
  EXPECT_TRUE(client_->Cordon("alpha", CoordinatorClient::CordonMode::kUndo).ok());
  EXPECT_FALSE(client_->Status()->workers(0).cordoned());
  EXPECT_EQ(client_->Cordon("nobody", CoordinatorClient::CordonMode::kCordon).status().code(),
            absl::StatusCode::kNotFound);
}

TEST_F(ServiceTest, ScaleReachesTheStatus) {
  v1::RunSpec spec = Spec();
  spec.mutable_averaging()->set_every_steps(4);
  const auto run = client_->Submit(spec);
  ASSERT_TRUE(run.ok()) << run.status();
  const auto scale = [&](const std::string& name, uint32_t groups) {
    v1::ScaleRequest request;
    request.set_run(name);
    request.set_groups(groups);
    return client_->Call(&v1::Runs::Stub::Scale, request).status();
  };
  EXPECT_EQ(scale(*run, 3), absl::OkStatus());
  EXPECT_EQ(client_->Status(*run)->runs(0).scaling_to(), 3U);
  EXPECT_EQ(scale(*run, 0).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(scale("run-9", 3).code(), absl::StatusCode::kNotFound);
}

TEST_F(ServiceTest, WatchSendsChanges) {
  const std::string run = client_->Submit(Spec()).value();
  std::vector<v1::RunState> seen;
  const absl::Status status =
      client_->Watch(run, absl::Now() + kLimit, [&](const v1::WatchUpdate& update) {
        EXPECT_GT(update.time_ms(), 0);
        seen.push_back(update.run().state());
        if (seen.size() == 1) {
          EXPECT_TRUE(client_->Stop(run, "enough").ok());
        }
        return true;
      });
  EXPECT_TRUE(status.ok()) << status;
  ASSERT_EQ(seen.size(), 2u) << "the first state and the change";
  EXPECT_EQ(seen[0], v1::RUN_STATE_QUEUED);
  EXPECT_EQ(seen[1], v1::RUN_STATE_STOPPED);
}

TEST_F(ServiceTest, WatchOfANameStaysWithItsRun) {
  const std::string run = client_->Submit(Spec()).value();
  std::set<std::string> seen;
  const absl::Status status =
      client_->Watch(Spec().name(), absl::Now() + kLimit, [&](const v1::WatchUpdate& update) {
        if (seen.insert(update.run().run()).second) {
          EXPECT_TRUE(client_->Submit(Spec()).ok()) << "now the name stands for another run";
          EXPECT_TRUE(client_->Stop(run, "enough").ok());
        }
        return true;
      });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(seen, std::set<std::string>{run});
  EXPECT_EQ(client_->Join(Spec(), /*join_ended=*/true)->run(), "run-2-t");
}

TEST_F(ServiceTest, WatchAllRuns) {
  std::set<std::string> seen;
  ASSERT_TRUE(client_->Submit(Spec()).ok());
  const absl::Status status =
      client_->Watch("", absl::Now() + kLimit, [&](const v1::WatchUpdate& update) {
        seen.insert(update.run().run());
        if (seen.size() == 1) {
          EXPECT_TRUE(client_->Submit(Spec()).ok());
        }
        return seen.size() < 2;
      });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(seen.size(), 2u);
}

TEST_F(ServiceTest, MessagesBothWays) {
  FakeMember member(coordinator_->address(), "alpha");
  const std::string run = client_->Submit(Spec()).value();
  EXPECT_EQ(Prepare(member).next_step(), 10u);
  v1::MemberMessage message;
  message.mutable_contributed()->mutable_place()->set_run(run);
  message.mutable_contributed()->mutable_place()->set_generation(77);
  ASSERT_TRUE(member.client().Send(message).ok());
  const v1::CoordinatorMessage third = member.Next();
  ASSERT_TRUE(third.has_release()) << third.ShortDebugString();
  EXPECT_EQ(third.release().place().generation(), 77u);
  EXPECT_EQ(Counter("refused_stale_generation"), 1u);
  EXPECT_EQ(client_->Status(run)->groups(0).state(), v1::GROUP_STATE_TRAINING);
}

TEST_F(ServiceTest, StateSurvivesRestart) {
  FakeMember member(coordinator_->address(), "alpha");
  FakeMember aggregator(coordinator_->address(), "agg", v1::ROLE_AGGREGATOR);
  v1::RunSpec spec = Spec();
  spec.mutable_cluster()->set_ranks_per_group(2);
  const std::string run = client_->Submit(spec).value();
  RestartCoordinator();
  EXPECT_TRUE(member.AwaitConnections(2));
  EXPECT_TRUE(aggregator.AwaitConnections(2));
  EXPECT_EQ(member.client().member_id(), "w1");
  EXPECT_EQ(aggregator.client().member_id(), "a2");
  const auto status = client_->Status();
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_EQ(status->coordinator().starts(), 2u);
  ASSERT_EQ(status->runs_size(), 1);
  EXPECT_EQ(status->runs(0).run(), run);
}

// The probe /readyz reads in this way.
TEST_F(ServiceTest, ReadEndsIfTheLoopHangs) {
  const auto nothing = [](const Machine&, absl::Time) {};
  absl::Notification hangs, goes_on;
  std::thread blocked([&] {
    const auto hang = [&](const Machine&, absl::Time) {
      hangs.Notify();
      goes_on.WaitForNotification();
    };
    EXPECT_TRUE(coordinator_->service().Read(hang, kLimit).ok());
  });
  hangs.WaitForNotification();
  EXPECT_TRUE(
      absl::IsDeadlineExceeded(coordinator_->service().Read(nothing, absl::Milliseconds(100))));
  goes_on.Notify();
  blocked.join();
  EXPECT_TRUE(coordinator_->service().Read(nothing, kLimit).ok());
}

TEST_F(ServiceTest, DrainEndsWaitingCalls) {
  FakeMember member(coordinator_->address(), "alpha");
  v1::RunSpec spec = Spec();
  spec.mutable_cluster()->set_ranks_per_group(2);
  const std::string run = client_->Submit(spec).value();
  absl::Status watched;
  absl::Notification watching;
  std::thread watcher([&] {
    watched = client_->Watch(run, absl::Now() + kLimit, [&](const v1::WatchUpdate&) {
      if (!watching.HasBeenNotified()) watching.Notify();
      return true;
    });
  });
  ASSERT_TRUE(watching.WaitForNotificationWithTimeout(kLimit));
  const absl::Time before = absl::Now();
  coordinator_->Stop();
  EXPECT_LT(absl::Now() - before, absl::Seconds(2)) << "no call had to be cancelled";
  watcher.join();
  EXPECT_EQ(watched.code(), absl::StatusCode::kUnavailable) << watched;
  EXPECT_TRUE(Await([&] { return !member.client().connected(); }));
}

TEST_F(ShortLeaseTest, ExpiredMemberJoinsAsNew) {
  FakeMember member(coordinator_->address(), "alpha");
  const std::string address = coordinator_->address();
  // The next coordinator starts with an empty store, so it does not know the member.
  coordinator_.reset();
  path_ = folder_ / "another.db";
  coordinator_ = std::make_unique<Coordinator>(path_, address, lease_);
  EXPECT_EQ(member.Next().refused().refusal(), v1::REFUSAL_UNKNOWN_MEMBER);
  EXPECT_TRUE(member.AwaitConnections(2));
  EXPECT_EQ(Counter("refused_unknown_member"), 1u);
  EXPECT_EQ(client_->Status()->workers_size(), 1);
}

}  // namespace
}  // namespace cadre
