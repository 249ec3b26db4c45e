// Tests daemons and channels over the loopback interface.
#include "base/rpc/daemon.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <thread>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "base/file.h"
#include "base/rpc/grpc_channel.h"
#include "proto/cadre/v1/control.grpc.pb.h"
#include "tests/base/expect.h"
#include "tests/base/rpc/health_check.h"
#include "tests/base/rpc/slow_relay.h"
#include "tests/base/temporary_folder.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr absl::Duration kPatience = absl::Seconds(20);

// A service whose Stop has two special cases. For run "peer" it fails, with the address of the
// caller as the message; for run "wait" it blocks until `let_go_` is notified.
class FakeRuns final : public v1::Runs::Service {
 public:
  grpc::Status Stop(grpc::ServerContext* context, const v1::StopRequest* request,
                    v1::StopReply*) override {
    if (request->run() == "peer") return {grpc::StatusCode::ABORTED, context->peer()};
    if (request->run() == "wait") {
      arrived_.Notify();
      const absl::Time deadline = absl::Now() + kPatience;
      while (!context->IsCancelled() && absl::Now() < deadline) {
        if (let_go_.WaitForNotificationWithTimeout(absl::Milliseconds(5))) break;
      }
    }
    return grpc::Status::OK;
  }

  absl::Notification arrived_;
  absl::Notification let_go_;
};

grpc::Status Stop(grpc::Channel& channel, const std::string& run, const std::string& reason = "") {
  const std::shared_ptr<grpc::Channel> borrowed(std::shared_ptr<void>(), &channel);
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
  v1::StopRequest request;
  request.set_run(run);
  request.set_reason(reason);
  v1::StopReply reply;
  return v1::Runs::NewStub(borrowed)->Stop(&context, request, &reply);
}

std::unique_ptr<Daemon> StartOrDie(grpc::Service* service) {
  auto daemon = Daemon::Start({}, {service});
  EXPECT_TRUE(daemon.ok()) << daemon.status();
  return *std::move(daemon);
}

TEST(DaemonTest, ServesOnFreePort) {
  FakeRuns service;
  const auto daemon = StartOrDie(&service);
  EXPECT_GT(daemon->port(), 0);
  EXPECT_EQ(daemon->address(), absl::StrCat("127.0.0.1:", daemon->port()));
  const auto channel = MakeChannel(daemon->address(), Plane::kControl);
  EXPECT_TRUE(Stop(*channel, "x").ok());
}

TEST(DaemonTest, HealthIsServing) {
  FakeRuns service;
  const auto daemon = StartOrDie(&service);
  const auto health = IsServing(daemon->address());
  ASSERT_THAT(health, IsOk());
  EXPECT_TRUE(*health);
}

TEST(DaemonTest, HealthOfANamedService) {
  FakeRuns service;
  const auto daemon = StartOrDie(&service);
  EXPECT_THAT(IsServing(daemon->address(), "readiness"), IsError(absl::StatusCode::kNotFound, ""));
  for (const bool serving : {false, true, false}) {
    daemon->SetServing("readiness", serving);
    EXPECT_EQ(IsServing(daemon->address(), "readiness").value(), serving);
    EXPECT_TRUE(IsServing(daemon->address()).value());
  }
}

TEST(DaemonTest, ServesSeveralServices) {
  FakeRuns runs;
  v1::Status::Service status;
  const auto daemon = Daemon::Start({}, {&runs, &status});
  ASSERT_TRUE(daemon.ok());
  const auto channel = MakeChannel((*daemon)->address(), Plane::kControl);
  EXPECT_TRUE(Stop(*channel, "x").ok());
  grpc::ClientContext context;
  v1::StatusReply reply;
  // The service is registered but does not implement the call.
  EXPECT_EQ(v1::Status::NewStub(channel)->Get(&context, {}, &reply).error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
}

TEST(DaemonTest, PortInUse) {
  FakeRuns service, other;
  const auto daemon = StartOrDie(&service);
  const auto second = Daemon::Start({.listen = daemon->address()}, {&other});
  EXPECT_THAT(second, IsError(absl::StatusCode::kAlreadyExists, daemon->address()));
}

TEST(DaemonTest, FreesPort) {
  FakeRuns service;
  auto daemon = StartOrDie(&service);
  const std::string address = daemon->address();
  daemon.reset();
  EXPECT_TRUE(Daemon::Start({.listen = address}, {&service}).ok());
}

TEST(DaemonTest, ListenAddresses) {
  for (const char* loopback :
       {"localhost:1", "127.0.0.1:7002", "127.0.0.2:0", "127.1.2.3:0", "[::1]:1"}) {
    EXPECT_EQ(CheckListenAddress(loopback, false), absl::OkStatus()) << loopback;
  }
  for (const char* other : {"127.0.0.1.example.com:7002", "127.example.com:1", "0.0.0.0:1",
                            "[::]:0", "192.0.2.1:0", "128.0.0.1:0", "LOCALHOST:0"}) {
    EXPECT_THAT(CheckListenAddress(other, false).message(),
                AllOf(HasSubstr(other), HasSubstr("--insecure")));
    EXPECT_EQ(CheckListenAddress(other, true), absl::OkStatus()) << other;
  }
  for (const char* malformed : {"", "localhost", ":0", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:-1",
                                "127.0.0.1:65536", "127.0.0.1:1:"}) {
    EXPECT_THAT(CheckListenAddress(malformed, true),
                IsError(absl::StatusCode::kInvalidArgument, absl::StrCat("'", malformed, "'")));
  }
}

TEST(DaemonTest, StartChecksListenAddress) {
  FakeRuns service;
  // The host is an unusual spelling of localhost, so the test opens no port to other hosts.
  EXPECT_EQ(Daemon::Start({.listen = "LOCALHOST:0"}, {&service}).status().code(),
            absl::StatusCode::kInvalidArgument);
  const auto daemon = Daemon::Start({.listen = "LOCALHOST:0", .insecure = true}, {&service});
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  EXPECT_THAT((*daemon)->address(), StartsWith("LOCALHOST:"));
  EXPECT_TRUE(IsServing(absl::StrCat("127.0.0.1:", (*daemon)->port())).ok());
}

class PortFileTest : public ::testing::Test {
 protected:
  const TemporaryFolder folder_;
  FakeRuns service_;
};

TEST_F(PortFileTest, ContainsPort) {
  const std::string path = folder_ / "port";
  const auto daemon = Daemon::Start({.port_file = path}, {&service_});
  ASSERT_TRUE(daemon.ok());
  EXPECT_EQ(*ReadFile(path), absl::StrCat((*daemon)->port(), "\n"));
}

TEST_F(PortFileTest, NotWrittenWithoutStart) {
  FakeRuns other;
  const auto daemon = StartOrDie(&other);
  const std::string path = folder_ / "port";
  EXPECT_FALSE(Daemon::Start({.listen = daemon->address(), .port_file = path}, {&service_}).ok());
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(PortFileTest, FailsIfUnwritable) {
  const auto daemon = Daemon::Start({.port_file = folder_ / "missing/port"}, {&service_});
  EXPECT_THAT(daemon, IsError(absl::StatusCode::kNotFound, folder_ / "missing/port"));
}

TEST(DrainTest, CallsInFlightEndWithinGrace) {
  FakeRuns service;
  const auto daemon = StartOrDie(&service);
  const auto channel = MakeChannel(daemon->address(), Plane::kControl);
  grpc::Status status(grpc::StatusCode::UNKNOWN, "not called");
  std::thread caller([&] { status = Stop(*channel, "wait"); });
  EXPECT_TRUE(service.arrived_.WaitForNotificationWithTimeout(kPatience));
  absl::Notification drained;
  std::thread drainer([&] {
    daemon->Drain(kPatience);
    drained.Notify();
  });
  // The call may end whether or not the drain has begun.
  service.let_go_.Notify();
  caller.join();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_TRUE(drained.WaitForNotificationWithTimeout(kPatience));
  drainer.join();
  EXPECT_FALSE(IsServing(daemon->address()).ok());
}

TEST(DrainTest, CancelsCallsAfterGrace) {
  FakeRuns service;
  const auto daemon = StartOrDie(&service);
  const auto channel = MakeChannel(daemon->address(), Plane::kControl);
  grpc::Status status;
  std::thread caller([&] { status = Stop(*channel, "wait"); });
  EXPECT_TRUE(service.arrived_.WaitForNotificationWithTimeout(kPatience));
  const absl::Time start = absl::Now();
  daemon->Drain(absl::Milliseconds(50));
  caller.join();
  EXPECT_FALSE(status.ok());
  // The call was cancelled; the service itself would have ended it later.
  EXPECT_LT(absl::Now() - start, kPatience / 2);
}

TEST(DrainTest, IsIdempotent) {
  FakeRuns service;
  const auto daemon = StartOrDie(&service);
  daemon->Drain(absl::ZeroDuration());
  daemon->Drain(absl::ZeroDuration());
}

TEST(ChannelTest, PlanesUseSeparateConnections) {
  FakeRuns service;
  const auto daemon = StartOrDie(&service);
  const auto control = MakeChannel(daemon->address(), Plane::kControl);
  const auto bulk = MakeChannel(daemon->address(), Plane::kBulk);
  const std::string control_peer = Stop(*control, "peer").error_message();
  const std::string bulk_peer = Stop(*bulk, "peer").error_message();
  EXPECT_THAT(control_peer, HasSubstr("127.0.0.1"));
  EXPECT_NE(control_peer, bulk_peer);
  EXPECT_EQ(Stop(*control, "peer").error_message(), control_peer);
}

TEST(ChannelTest, MessageLimit) {
  FakeRuns service;
  const auto daemon = StartOrDie(&service);
  const auto channel = MakeChannel(daemon->address(), Plane::kBulk);
  // The default of gRPC is 4 MiB; a chunk with its header is larger.
  EXPECT_TRUE(Stop(*channel, "x", std::string((4 << 20) + 1000, 'x')).ok());
  const grpc::Status beyond = Stop(*channel, "x", std::string(kMaxMessageBytes, 'x'));
  EXPECT_EQ(beyond.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << beyond.error_message();
  static_assert(kChunkElements * sizeof(float) < kMaxMessageBytes);
}

TEST(ChannelTest, MissingServerIsUnavailable) {
  FakeRuns service;
  auto daemon = StartOrDie(&service);
  const std::string address = daemon->address();
  daemon.reset();
  const auto channel = MakeChannel(address, Plane::kControl);
  EXPECT_EQ(Stop(*channel, "x").error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST(ChannelTest, ReconnectsAfterRestart) {
  FakeRuns service;
  auto daemon = StartOrDie(&service);
  const std::string address = daemon->address();
  const auto channel = MakeChannel(address, Plane::kControl);
  ASSERT_TRUE(Stop(*channel, "x").ok());
  daemon.reset();
  EXPECT_FALSE(Stop(*channel, "x").ok());
  const auto again = Daemon::Start({.listen = address}, {&service});
  ASSERT_TRUE(again.ok()) << again.status();
  ASSERT_TRUE(channel->WaitForConnected(absl::ToChronoTime(absl::Now() + kPatience)));
  EXPECT_TRUE(Stop(*channel, "x").ok());
}

TEST(ChannelTest, ConnectsOverSlowLink) {
  FakeRuns service;
  const auto daemon = StartOrDie(&service);
  // Much longer than the first delays between attempts.
  const SlowRelay relay(daemon->port(), {.delay = absl::Milliseconds(700)});
  const auto channel = MakeChannel(relay.address(), Plane::kControl);
  const grpc::Status status = Stop(*channel, "x");
  EXPECT_TRUE(status.ok()) << status.error_message();
}

// Runs in a separate process, because signals concern the whole process and must be blocked before
// any thread starts.
void WaitAndExit(int signal_number) {
  BlockTerminationSignals();
  std::thread sender([signal_number] {
    if (signal_number == 0) {
      RequestTermination();
    } else {
      kill(getpid(), signal_number);
    }
  });
  const int got = WaitForTermination();
  sender.join();
  exit(got == (signal_number == 0 ? SIGTERM : signal_number) ? 0 : 1);
}

TEST(TerminationDeathTest, WaitsForSignalsAndRequests) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(WaitAndExit(SIGTERM), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(WaitAndExit(SIGINT), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(WaitAndExit(0), ::testing::ExitedWithCode(0), "");
}

TEST(TerminationDeathTest, SurvivesBrokenPipe) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        BlockTerminationSignals();
        int ends[2];
        if (pipe(ends) != 0) exit(2);
        close(ends[0]);
        const bool refused = write(ends[1], "x", 1) < 0 && errno == EPIPE;
        exit(refused ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace cadre
