// One coordinator process with its store, service and server, and members that use the real
// membership client.
#pragma once

#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "base/protocol.h"
#include "base/rpc/daemon.h"
#include "coordinator/client/coordinator_client.h"
#include "coordinator/client/membership_client.h"
#include "coordinator/service/service.h"
#include "coordinator/store/sqlite_store.h"
#include "tests/base/temporary_folder.h"

namespace cadre {

inline constexpr absl::Duration kLimit = absl::Seconds(20);

// Store, service and server of one coordinator process.
class Coordinator {
 public:
  Coordinator(const std::string& path, const std::string& listen,
              absl::Duration lease = absl::Seconds(10)) {
    auto store = SqliteStore::Open({.path = path});
    EXPECT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
    Loop::Options options;
    options.machine.plan = [](const v1::RunSpec&, int) -> absl::StatusOr<v1::Plan> {
      return v1::Plan();
    };
    options.machine.validate = [this](const v1::RunSpec& spec) {
      if (spec.name() == "slow") validation_ends_.WaitForNotification();
      return spec.batch_per_group() > 0
                 ? absl::OkStatus()
                 : absl::InvalidArgumentError("batch_per_group: must be at least 1");
    };
    options.machine.protocol = kProtocol;
    options.machine.lease = lease;
    options.machine.heartbeat = lease / 4;
    service_ = std::make_unique<CoordinatorService>(std::move(options));
    backup_path_ = path + ".backup";
    Lead();
    auto daemon = Daemon::Start({.listen = listen}, service_->services());
    EXPECT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *std::move(daemon);
  }
  ~Coordinator() { Stop(); }

  void Stop() {
    service_->Drain();
    daemon_->Drain(absl::Seconds(2));
  }
  // Requires: the service stands by.
  void Lead() { EXPECT_TRUE(service_->Start(store_.get(), backup_path_).ok()); }
  const std::string& address() const { return daemon_->address(); }
  CoordinatorService& service() { return *service_; }
  // Until then, the validation of a run named "slow" blocks.
  void EndValidation() { validation_ends_.Notify(); }

 private:
  absl::Notification validation_ends_;
  std::unique_ptr<SqliteStore> store_;
  std::string backup_path_;
  std::unique_ptr<CoordinatorService> service_;
  std::unique_ptr<Daemon> daemon_;
};

// A member that records the messages it receives.
class FakeMember {
 public:
  explicit FakeMember(const std::string& address, const std::string& name,
                      v1::Role role = v1::ROLE_WORKER) {
    MembershipClient::Options options;
    options.coordinator = address;
    options.dial_timeout = absl::Seconds(10);
    options.hello = [name, role] {
      v1::Hello hello;
      hello.set_role(role);
      hello.set_name(name);
      hello.set_incarnation(absl::StrCat(name, "-process"));
      hello.set_address("127.0.0.1:1");
      return hello;
    };
    options.on_message = [this](const v1::CoordinatorMessage& message) {
      absl::MutexLock lock(&mutex_);
      received_.push_back(message);
      return true;
    };
    options.on_connection = [this](bool connected) {
      absl::MutexLock lock(&mutex_);
      ++(connected ? connections_ : disconnections_);
    };
    options.heartbeat = [] {
      v1::Heartbeat heartbeat;
      (*heartbeat.mutable_counters())["refused_wrong_crc"] = 2;
      return heartbeat;
    };
    auto client = MembershipClient::Start(std::move(options));
    EXPECT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
  }

  MembershipClient& client() { return *client_; }
  // The next message; an empty one after kLimit.
  v1::CoordinatorMessage Next() {
    absl::MutexLock lock(&mutex_);
    auto some = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !received_.empty(); };
    if (!mutex_.AwaitWithTimeout(absl::Condition(&some), kLimit)) return {};
    v1::CoordinatorMessage message = received_.front();
    received_.pop_front();
    return message;
  }
  bool AwaitConnections(int n) {
    absl::MutexLock lock(&mutex_);
    auto enough = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return connections_ >= n; };
    return mutex_.AwaitWithTimeout(absl::Condition(&enough), kLimit);
  }
  // Whether its stream has ended.
  bool AwaitDisconnection() {
    absl::MutexLock lock(&mutex_);
    auto ended = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return disconnections_ > 0; };
    return mutex_.AwaitWithTimeout(absl::Condition(&ended), kLimit);
  }

 private:
  absl::Mutex mutex_;
  std::deque<v1::CoordinatorMessage> received_ ABSL_GUARDED_BY(mutex_);
  int connections_ ABSL_GUARDED_BY(mutex_) = 0;
  int disconnections_ ABSL_GUARDED_BY(mutex_) = 0;
  std::unique_ptr<MembershipClient> client_;
};

class ServiceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    coordinator_ = std::make_unique<Coordinator>(path_, "127.0.0.1:0", lease_);
    client_ = std::make_unique<CoordinatorClient>(
        CoordinatorClient::Options{.coordinator = coordinator_->address()});
  }
  // Starts a new process on the same store and port.
  void RestartCoordinator() {
    const std::string address = coordinator_->address();
    coordinator_.reset();
    coordinator_ = std::make_unique<Coordinator>(path_, address, lease_);
  }

  static v1::RunSpec Spec() {
    v1::RunSpec spec;
    spec.set_name("t");
    spec.set_batch_per_group(4);
    spec.mutable_stop()->set_steps(10);
    return spec;
  }
  // Answers the assignment, which must be the member's next message; returns Start, the one after.
  static v1::Start Prepare(FakeMember& member) {
    const v1::CoordinatorMessage assigned = member.Next();
    EXPECT_TRUE(assigned.has_assignment()) << assigned.ShortDebugString();
    v1::MemberMessage message;
    *message.mutable_prepared()->mutable_place() = assigned.assignment().place();
    message.mutable_prepared()->set_train_samples(40);
    message.mutable_prepared()->set_test_samples(10);
    EXPECT_TRUE(member.client().Send(message).ok());
    const v1::CoordinatorMessage started = member.Next();
    EXPECT_TRUE(started.has_start()) << started.ShortDebugString();
    return started.start();
  }
  uint64_t Counter(const std::string& name) {
    const auto status = client_->Status();
    EXPECT_TRUE(status.ok()) << status.status();
    auto it = status->counters().find(name);
    return it == status->counters().end() ? 0 : it->second;
  }
  // Sends the message on a new Join stream, and expects that it is refused by name.
  void ExpectOversized(const v1::MemberMessage& message) {
    grpc::ChannelArguments args;
    args.SetMaxSendMessageSize(-1);
    auto stub = v1::Membership::NewStub(grpc::CreateCustomChannel(
        coordinator_->address(), grpc::InsecureChannelCredentials(), args));
    grpc::ClientContext context;
    auto stream = stub->Join(&context);
    ASSERT_TRUE(stream->Write(message));
    v1::CoordinatorMessage answer;
    ASSERT_TRUE(stream->Read(&answer));
    EXPECT_EQ(answer.refused().refusal(), v1::REFUSAL_OVERSIZED);
    EXPECT_FALSE(stream->Read(&answer));
    stream->Finish();
    EXPECT_EQ(Counter("refused_oversized"), 1u);
  }

  // Whether the condition, which may have effects, holds within kLimit.
  bool Await(const std::function<bool()>& condition) {
    const absl::Time limit = absl::Now() + kLimit;
    while (!condition()) {
      if (absl::Now() >= limit) return false;
      absl::SleepFor(absl::Milliseconds(10));
    }
    return true;
  }

  absl::Duration lease_ = absl::Seconds(10);
  const TemporaryFolder folder_;
  std::string path_ = folder_ / "coordinator.db";
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<CoordinatorClient> client_;
};

}  // namespace cadre
