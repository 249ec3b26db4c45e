#include "server/aggregator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "base/digest.h"
#include "server/block_file.h"
#include "server/client/rounds_client.h"
#include "tests/base/expect.h"
#include "tests/base/file_size_limit.h"
#include "tests/base/rpc/health_check.h"
#include "tests/server/fake_coordinator.h"
#include "tests/server/testing.h"

namespace cadre::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class AggregatorTest : public ::testing::Test {
 protected:
  AggregatorOptions Options() const {
    AggregatorOptions options;
    options.coordinator = coordinator_->address();
    options.data_dir = folder_.path();
    options.name = "shard-keeper";
    options.version = "1.2.3";
    options.orders.retry_wait = absl::Milliseconds(20);
    options.orders.create_patience = create_patience_;
    options.archive = archive_;
    return options;
  }

  v1::Hello Start() {
    aggregator_.reset();
    auto aggregator = Aggregator::Start(Options());
    EXPECT_TRUE(aggregator.ok()) << aggregator.status();
    aggregator_ = *std::move(aggregator);
    v1::Hello hello = coordinator_->Receive(v1::MemberMessage::kHello).hello();
    EXPECT_TRUE(coordinator_->WaitForJoin());
    return hello;
  }

  v1::RunOpened Open() {
    v1::CoordinatorMessage message;
    *message.mutable_open_run() = run_.Open();
    coordinator_->Send(message);
    return coordinator_->Receive(v1::MemberMessage::kRunOpened).run_opened();
  }

  absl::Status Stage(const Place& place, const std::vector<float>& values) {
    RoundsClient client([this] { return aggregator_->address(); });
    Traffic traffic;
    return client.Stage(Header(run_, place, 0, values.size(), 4), values, &traffic);
  }

  void SendApply(const v1::Apply& apply) {
    v1::CoordinatorMessage message;
    *message.mutable_apply() = apply;
    coordinator_->Send(message);
  }

  v1::Applied Apply(const v1::Apply& apply) {
    SendApply(apply);
    return coordinator_->Receive(v1::MemberMessage::kApplied).applied();
  }

  absl::Duration create_patience_ = absl::Seconds(15);
  bool archive_ = false;
  TemporaryFolder folder_;
  SmallRun run_;
  std::unique_ptr<FakeCoordinator> coordinator_ = std::make_unique<FakeCoordinator>();
  std::unique_ptr<Aggregator> aggregator_;
};

TEST_F(AggregatorTest, HelloHasIdentityAndShards) {
  const v1::Hello first = Start();
  EXPECT_EQ(first.role(), v1::ROLE_AGGREGATOR);
  EXPECT_EQ(first.name(), "shard-keeper");
  EXPECT_EQ(first.address(), aggregator_->address());
  EXPECT_EQ(first.version(), "1.2.3");
  EXPECT_FALSE(first.incarnation().empty());
  EXPECT_EQ(first.shards_size(), 0);
  const v1::RunOpened opened = Open();
  EXPECT_EQ(opened.run(), run_.run);
  EXPECT_NE(opened.digest(), 0u);

  const v1::Hello second = Start();
  EXPECT_NE(second.incarnation(), first.incarnation());
  ASSERT_EQ(second.shards_size(), 1);
  EXPECT_EQ(second.shards(0).run(), run_.run);
  EXPECT_EQ(second.shards(0).lineage(), run_.lineage);
  EXPECT_EQ(second.shards(0).digest(), opened.digest());
}

TEST_F(AggregatorTest, ReportsAShardThatCannotBeCreated) {
  Start();
  v1::CoordinatorMessage order;
  *order.mutable_open_run() = run_.Open();
  const FileSizeLimit full(127);
  coordinator_->Send(order);
  v1::Heartbeat heartbeat;
  while (heartbeat.delayed_orders().empty()) {
    heartbeat = coordinator_->Receive(v1::MemberMessage::kHeartbeat).heartbeat();
  }
  EXPECT_EQ(heartbeat.delayed_orders(0).run(), run_.run);
  EXPECT_EQ(heartbeat.delayed_orders(0).order(), "open_run");
  EXPECT_THAT(heartbeat.delayed_orders(0).reason(), HasSubstr("File too large"));
}

TEST_F(AggregatorTest, ReportsAVersionThatCannotBeArchived) {
  archive_ = true;
  Start();
  Open();
  // A contribution cannot be renamed to it.
  std::filesystem::create_directories(std::filesystem::path(folder_.path()) / run_.run /
                                      "archived-stage-1-0-1-0");
  ASSERT_TRUE(Stage({}, Values(1, 15)).ok());
  EXPECT_EQ(Apply(MakeApply(run_, 1, {{}})).error(), "");
  v1::Heartbeat heartbeat;
  while (heartbeat.warnings().empty()) {
    heartbeat = coordinator_->Receive(v1::MemberMessage::kHeartbeat).heartbeat();
  }
  EXPECT_EQ(heartbeat.warnings(0).run(), run_.run);
  EXPECT_THAT(
      heartbeat.warnings(0).text(),
      AllOf(HasSubstr("the run can only be replayed to version 0: "), HasSubstr("Is a directory")));
  Metrics metrics;
  aggregator_->Collect(metrics);
  EXPECT_THAT(metrics.Text(), HasSubstr("\ncadre_archives_incomplete 1\n"));
}

TEST_F(AggregatorTest, GivesUpAShardThatCannotBeCreated) {
  create_patience_ = absl::Milliseconds(100);
  Start();
  const FileSizeLimit full(127);
  EXPECT_THAT(Open().error(), HasSubstr("File too large"));
}

TEST_F(AggregatorTest, ExecutesRound) {
  Start();
  EXPECT_EQ(Open().version(), 0u);
  const std::vector<float> values = Values(1, 15);
  ASSERT_TRUE(Stage({}, values).ok());
  const v1::Applied applied = Apply(MakeApply(run_, 1, {{}}));
  EXPECT_EQ(applied.error(), "");
  EXPECT_EQ(applied.round(), 1u);
  EXPECT_EQ(applied.digest(), Digest(values, 0));
  // A repeated order has the same answer, also after a restart.
  EXPECT_EQ(Apply(MakeApply(run_, 1, {{}})).digest(), applied.digest());
  Start();
  EXPECT_EQ(Open().version(), 1u);
  EXPECT_EQ(Apply(MakeApply(run_, 1, {{}})).digest(), applied.digest());

  v1::CoordinatorMessage close;
  close.mutable_close_run()->set_run(run_.run);
  coordinator_->Send(close);
  // Orders are executed in order of arrival, so the run is closed before this one.
  EXPECT_THAT(Apply(MakeApply(run_, 2, {{}})).error(), HasSubstr("closed_round"));
  EXPECT_FALSE(Stage({.round = 2}, values).ok());
  RoundsClient client([this] { return aggregator_->address(); });
  std::vector<float> out(15);
  Traffic traffic;
  ASSERT_TRUE(client.Pull(PullOf(run_, 1, 0, 15), out, &traffic).ok());
  EXPECT_TRUE(SameBits(out, values));
}

TEST_F(AggregatorTest, RetriesOrderOnFullDisk) {
  Start();
  const uint64_t digest = [&] {
    {
      const FileSizeLimit full(60);
      v1::CoordinatorMessage message;
      *message.mutable_open_run() = run_.Open();
      coordinator_->Send(message);
      while (aggregator_->counters().Get("disk_full") < 2) absl::SleepFor(absl::Milliseconds(1));
    }
    return coordinator_->Receive(v1::MemberMessage::kRunOpened).run_opened().digest();
  }();
  EXPECT_NE(digest, 0u);
  const std::vector<float> values = Values(1, 15);
  ASSERT_TRUE(Stage({}, values).ok());
  const uint64_t failures = aggregator_->counters().Get("disk_full");
  {
    const FileSizeLimit full(60);
    SendApply(MakeApply(run_, 1, {{}}));
    while (aggregator_->counters().Get("disk_full") < failures + 2) {
      absl::SleepFor(absl::Milliseconds(1));
    }
  }
  const v1::Applied applied = coordinator_->Receive(v1::MemberMessage::kApplied).applied();
  EXPECT_EQ(applied.error(), "");
  EXPECT_EQ(applied.digest(), Digest(values, 0));
}

TEST_F(AggregatorTest, IncompleteApplyIsRetried) {
  Start();
  Open();
  SendApply(MakeApply(run_, 1, {{}}));
  // Each attempt is answered.
  for (int attempt = 0; attempt < 2; ++attempt) {
    const v1::Applied applied = coordinator_->Receive(v1::MemberMessage::kApplied).applied();
    EXPECT_THAT(applied.missing(), ::testing::ElementsAre(0U));
    EXPECT_EQ(applied.error(), "");
  }
  const std::vector<float> values = Values(1, 15);
  ASSERT_TRUE(Stage({}, values).ok());
  v1::Applied applied;
  do {
    applied = coordinator_->Receive(v1::MemberMessage::kApplied).applied();
  } while (!applied.missing().empty());
  EXPECT_EQ(applied.digest(), Digest(values, 0));
}

TEST_F(AggregatorTest, ReportsRun) {
  Start();
  const uint64_t digest = Open().digest();
  v1::CoordinatorMessage message;
  message.mutable_report_run()->set_run(run_.run);
  coordinator_->Send(message);
  const v1::RunReport report = coordinator_->Receive(v1::MemberMessage::kRunReport).run_report();
  EXPECT_EQ(report.open().lineage(), run_.lineage);
  EXPECT_EQ(report.state().digest(), digest);
}

TEST_F(AggregatorTest, DamagedBlockIsFoundBeforeItJoins) {
  Start();
  const uint64_t digest = Open().digest();
  ASSERT_TRUE(Stage({}, Values(1, 15)).ok());
  ASSERT_EQ(Apply(MakeApply(run_, 1, {{}})).error(), "");
  aggregator_.reset();
  const std::string version = absl::StrCat(folder_.path(), "/", run_.run, "/version-1");
  std::string bytes = ReadAll(version);
  bytes[bytes.size() - 3] ^= 1;
  WriteAll(version, bytes);

  const v1::Hello hello = Start();
  ASSERT_EQ(hello.shards_size(), 1);
  EXPECT_EQ(hello.shards(0).version(), 0u);
  const v1::RunOpened opened = Open();
  EXPECT_EQ(opened.version(), 0u);
  EXPECT_EQ(opened.digest(), digest);
  EXPECT_EQ(aggregator_->Ready(), absl::OkStatus());
  EXPECT_EQ(IsServing(aggregator_->address(), "readiness").value_or(false), true);
}

// A file of a newer format, of which the start does not read the head.
TEST_F(AggregatorTest, EndsWhenFilesCannotBeVerified) {
  Start();
  Open();
  aggregator_.reset();
  const std::string frame = absl::StrCat(folder_.path(), "/", run_.run, "/frame-1");
  std::string meta(40, '\0');
  meta[4] = 3;
  ASSERT_TRUE(BlockFile::Create(PosixFileSystem(), frame, {.meta = meta, .block_bytes = 4}).ok());
  AggregatorOptions options = Options();
  absl::Notification ended;
  options.ended = [&] {
    if (!ended.HasBeenNotified()) ended.Notify();
  };
  auto aggregator = Aggregator::Start(options);
  ASSERT_TRUE(aggregator.ok()) << aggregator.status();
  ended.WaitForNotification();
  EXPECT_THAT((*aggregator)->end(), IsError(absl::StatusCode::kFailedPrecondition, frame));
  EXPECT_THAT((*aggregator)->Ready(), IsError(absl::StatusCode::kFailedPrecondition, frame));
  EXPECT_EQ(IsServing((*aggregator)->address()).value_or(false), true) << "the process";
  EXPECT_EQ(IsServing((*aggregator)->address(), "readiness").value_or(true), false);
  aggregator->reset();
  EXPECT_TRUE(std::filesystem::exists(frame));
}

TEST_F(AggregatorTest, EndsWhenItsFolderIsRemoved) {
  absl::Notification ended;
  AggregatorOptions options = Options();
  options.ended = [&] {
    if (!ended.HasBeenNotified()) ended.Notify();
  };
  auto aggregator = Aggregator::Start(options);
  ASSERT_TRUE(aggregator.ok()) << aggregator.status();
  Open();
  EXPECT_EQ((*aggregator)->end(), absl::OkStatus());
  std::filesystem::remove_all(folder_.path());
  EXPECT_TRUE(ended.WaitForNotificationWithTimeout(absl::Seconds(10)));
  EXPECT_THAT(std::string((*aggregator)->end().message()), HasSubstr(folder_.path()));
}

TEST_F(AggregatorTest, HeartbeatsCountRefusals) {
  Start();
  Open();
  EXPECT_FALSE(Stage({.round = 0}, Values(1, 15)).ok());
  while (true) {
    const v1::MemberMessage message = coordinator_->Receive(v1::MemberMessage::kHeartbeat);
    ASSERT_TRUE(message.has_heartbeat());
    const auto& counters = message.heartbeat().counters();
    EXPECT_GT(counters.at("disk_free_bytes"), 0u);
    if (counters.contains("refused_closed_round")) {
      EXPECT_EQ(counters.at("refused_closed_round"), 1u);
      return;
    }
  }
}

TEST_F(AggregatorTest, InvalidOrdersAreIgnored) {
  Start();
  v1::CoordinatorMessage message;
  message.mutable_release();
  coordinator_->Send(message);
  message.mutable_open_run()->set_run("../escape");
  coordinator_->Send(message);
  message.mutable_close_run()->set_run("run-9");
  coordinator_->Send(message);
  EXPECT_EQ(Open().version(), 0u);
}

TEST_F(AggregatorTest, StartReportsRefusal) {
  coordinator_->RefuseJoins(v1::REFUSAL_PROTOCOL, "another protocol");
  const absl::Status status = Aggregator::Start(Options()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(coordinator_->address()), HasSubstr("another protocol")));
}

TEST_F(AggregatorTest, FolderBelongsToOneName) {
  Start();
  Open();
  aggregator_.reset();
  const std::string run = folder_.path() + "/" + run_.run;
  const auto everything = [&] {
    return std::make_tuple(Files(folder_.path()), Files(run), ReadAll(run + "/run"),
                           ReadAll(run + "/version-0"), ReadAll(folder_.path() + "/.identity"));
  };
  const auto before = everything();
  AggregatorOptions other = Options();
  other.name = "usurper";
  const absl::Status status = Aggregator::Start(other).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(folder_.path() + " belongs to aggregator 'shard-keeper'"),
                    HasSubstr("--name=shard-keeper"), HasSubstr("another --data-dir")));
  EXPECT_EQ(everything(), before);
  EXPECT_EQ(Start().shards_size(), 1);
}

TEST_F(AggregatorTest, FolderWithoutIdentityIsAdopted) {
  Start();
  Open();
  aggregator_.reset();
  const std::string identity = folder_.path() + "/.identity";
  WriteAll(identity, "damaged");
  const absl::Status status = Aggregator::Start(Options()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(identity), HasSubstr("remove it")));
  std::filesystem::remove(identity);
  EXPECT_EQ(Start().shards_size(), 1);
  EXPECT_THAT(ReadAll(identity), HasSubstr("shard-keeper"));
}

TEST_F(AggregatorTest, LowerEpochIsRefusedAfterRestart) {
  // The epoch of Welcome, and that of an order.
  for (const uint64_t epoch : {7, 9}) {
    coordinator_->SetEpoch(7);
    Start();
    v1::CoordinatorMessage open;
    *open.mutable_open_run() = run_.Open();
    open.set_epoch(epoch);
    coordinator_->Send(open);
    coordinator_->Receive(v1::MemberMessage::kRunOpened);
    aggregator_.reset();

    AggregatorOptions options = Options();
    options.dial_timeout = absl::Milliseconds(300);
    absl::Notification ended;
    options.ended = [&] { ended.Notify(); };
    coordinator_->SetEpoch(epoch - 1);
    auto refused = Aggregator::Start(options);
    ASSERT_TRUE(refused.ok()) << refused.status();
    ended.WaitForNotification();
    EXPECT_TRUE(absl::IsUnavailable((*refused)->end())) << (*refused)->end();
    EXPECT_TRUE(absl::IsUnavailable((*refused)->Ready()));
    refused->reset();
    coordinator_->SetEpoch(epoch);
    Start();
    // In a stream that is welcome.
    open.set_epoch(epoch - 1);
    coordinator_->Send(open);
    while (true) {
      const auto heartbeat = coordinator_->Receive(v1::MemberMessage::kHeartbeat).heartbeat();
      ASSERT_TRUE(heartbeat.counters().contains("stale_epochs"));
      if (heartbeat.counters().at("stale_epochs") == 1) break;
    }
  }
}

TEST_F(AggregatorTest, DrainSendsGoodbye) {
  Start();
  aggregator_->Drain(absl::Seconds(1));
  EXPECT_TRUE(coordinator_->Receive(v1::MemberMessage::kGoodbye).has_goodbye());
}

}  // namespace
}  // namespace cadre::testing
