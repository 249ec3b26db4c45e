// Orders for several runs at the same time: a disk that hangs in one run stops no other run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/synchronization/notification.h"
#include "base/digest.h"
#include "server/client/refusal.h"
#include "server/order_execution.h"
#include "tests/base/expect.h"
#include "tests/base/memory_file_system.h"
#include "tests/server/shard_host_fixture.h"

namespace cadre::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

// A disk on which one file gets its name only when the test permits it.
class HangingDisk : public MemoryFileSystem {
 public:
  explicit HangingDisk(std::string file) : file_(std::move(file)) {}
  ~HangingDisk() override { Continue(); }

  absl::Status Rename(const std::string& from, const std::string& to) override {
    if (absl::EndsWith(to, file_)) {
      hangs_.Notify();
      continued_.WaitForNotification();
    }
    return MemoryFileSystem::Rename(from, to);
  }
  absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path, Access access) override {
    if (absl::EndsWith(path, opened_)) {
      hangs_.Notify();
      continued_.WaitForNotification();
    }
    return MemoryFileSystem::Open(path, access);
  }
  absl::StatusOr<std::unique_ptr<File>> Create(const std::string& path) override {
    if (absl::EndsWith(path, opened_)) {
      hangs_.Notify();
      continued_.WaitForNotification();
    }
    return MemoryFileSystem::Create(path);
  }
  // From now on a file with this name is not opened.
  void HangAtOpen(std::string file) { opened_ = std::move(file); }
  void AwaitHang() const { hangs_.WaitForNotification(); }
  void Continue() {
    if (!continued_.HasBeenNotified()) continued_.Notify();
  }

 private:
  const std::string file_;
  std::string opened_ = "no file";
  absl::Notification hangs_;
  absl::Notification continued_;
};

class ParallelOrdersTest : public ::testing::Test {
 protected:
  ParallelOrdersTest() {
    auto host = ShardHost::Open({.data_dir = "/data",
                                 .name = "agg-0",
                                 .counters = &counters_,
                                 .files = &disk_,
                                 .threads = 1});
    EXPECT_TRUE(host.ok()) << host.status();
    host_ = *std::move(host);
  }

  void Order(const v1::CoordinatorMessage& order) {
    OnArrival(*host_, order);
    result_ = ExecuteOrder(*host_, order);
    EXPECT_EQ(result_.repeat, absl::OkStatus());
  }
  void Open(const SmallRun& run) {
    v1::CoordinatorMessage order;
    *order.mutable_open_run() = run.Open();
    Order(order);
    host_->Fence(FenceOf(run.run, 0, run.generation));
  }
  absl::Status Stage(const SmallRun& run, const Place& place) {
    const std::vector<float> values = Values(1, 15);
    auto staging = host_->Stage(Header(run, place, 0, 15, 15));
    if (!staging.ok()) return staging.status();
    const auto put = host_->Put(*staging, MakeChunk(0, values));
    return put.ok() ? host_->Finish(*staging) : put.status();
  }
  // The first version of run-1 hangs.
  void Hang() {
    Open(first_);
    ASSERT_EQ(Stage(first_, {}), absl::OkStatus());
    order_ = std::thread([this] { applied_ = host_->Apply(MakeApply(first_, 1, {{}})); });
    disk_.AwaitHang();
  }
  void Continue() {
    disk_.Continue();
    order_.join();
    ASSERT_TRUE(applied_.ok()) << applied_.status();
    EXPECT_EQ(applied_->error(), "");
  }

  HangingDisk disk_{"run-1/version-1"};
  Counters counters_;
  std::unique_ptr<ShardHost> host_;
  const SmallRun first_;
  const SmallRun second_{.run = "run-2", .lineage = "lineage-b"};
  OrderResult result_;
  std::thread order_;
  absl::StatusOr<v1::Applied> applied_;
};

// What heartbeats and arriving messages need of the host.
TEST_F(ParallelOrdersTest, HeartbeatsAndFencesDoNotWaitForFilesThatAreOpened) {
  Open(first_);
  Open(second_);
  const auto does_not_wait = [&] {
    EXPECT_EQ(host_->CheckFiles(), absl::OkStatus());
    EXPECT_EQ(host_->States().size(), 2U);
    host_->Fence(FenceOf(first_.run, 0, first_.generation + 1));
    EXPECT_EQ(Stage(second_, {}), absl::OkStatus());
  };
  disk_.HangAtOpen("run-1/version-0");
  std::thread pull([&] { EXPECT_TRUE(host_->Pull(PullOf(first_, 0, 0, 15)).ok()); });
  disk_.AwaitHang();
  does_not_wait();
  disk_.Continue();
  pull.join();
}

TEST_F(ParallelOrdersTest, HeartbeatsAndFencesDoNotWaitForFilesThatAreCreated) {
  Open(first_);
  Open(second_);
  disk_.HangAtOpen("run-1/stage-1-0-1-0");
  absl::Status staged;
  std::thread stage([&] { staged = Stage(first_, {}); });
  disk_.AwaitHang();
  // The contribution is fenced before it has a file, which is removed nevertheless.
  host_->Fence(FenceOf(first_.run, 0, first_.generation + 1));
  EXPECT_EQ(host_->States().size(), 2U);
  EXPECT_EQ(Stage(second_, {}), absl::OkStatus());
  v1::Publish publish;
  publish.set_run(first_.run);
  std::thread order([&] { host_->Publish(publish); });
  disk_.Continue();
  stage.join();
  order.join();
  EXPECT_EQ(RefusalOf(staged), v1::REFUSAL_STALE_GENERATION) << staged;
  EXPECT_FALSE(disk_.Exists("/data/run-1/stage-1-0-1-0"));
}

TEST_F(ParallelOrdersTest, RunWhoseDiskHangsStopsNoOtherRun) {
  ASSERT_NO_FATAL_FAILURE(Hang());
  Open(second_);
  EXPECT_EQ(result_.answer->run_opened().version(), 0U);
  ASSERT_EQ(Stage(second_, {}), absl::OkStatus());
  v1::CoordinatorMessage apply;
  *apply.mutable_apply() = MakeApply(second_, 1, {{}});
  Order(apply);
  EXPECT_EQ(result_.answer->applied().digest(), Digest(Values(1, 15), 0));
  v1::CoordinatorMessage close;
  close.mutable_close_run()->set_run(second_.run);
  Order(close);
  EXPECT_TRUE(host_->ReportRun(second_.run).closed());
  v1::CoordinatorMessage remove;
  remove.mutable_delete_run()->set_run(second_.run);
  remove.mutable_delete_run()->set_lineage(second_.lineage);
  Order(remove);
  EXPECT_THAT(host_->States(), SizeIs(1)) << "the files of run-2 are removed";
  EXPECT_GT(host_->ReservedBytes(), 0);
  EXPECT_EQ(host_->ReportRun(first_.run).state().version(), 0U);
  Continue();
}

TEST_F(ParallelOrdersTest, KeysAndFencesDoNotWaitForTheDisk) {
  ASSERT_NO_FATAL_FAILURE(Hang());
  v1::CoordinatorMessage fence;
  *fence.mutable_fence() = FenceOf(first_.run, 1, 5);
  OnArrival(*host_, fence);
  EXPECT_EQ(host_->HighestGeneration(), 5U);
  EXPECT_EQ(RefusalOf(Stage(first_, {.group = 1, .generation = 4})), v1::REFUSAL_STALE_GENERATION);
  // A large change arrives as OpenRun.
  v1::CoordinatorMessage open;
  *open.mutable_open_run() = first_.Open();
  (*open.mutable_open_run()->mutable_generations())[1] = 9;
  OnArrival(*host_, open);
  EXPECT_EQ(host_->HighestGeneration(), 9U);
  open.mutable_open_run()->set_lineage("lineage-c");
  (*open.mutable_open_run()->mutable_generations())[1] = 12;
  OnArrival(*host_, open);
  EXPECT_EQ(host_->HighestGeneration(), 9U) << "it is another run";
  Continue();
}

// A rank that does not know yet that the shard has moved would lose what it stages.
TEST_F(ParallelOrdersTest, NothingIsStagedBeforeTheFilesAreRemoved) {
  Open(first_);
  auto staging = host_->Stage(Header(first_, {}, 0, 15, 15));
  ASSERT_TRUE(staging.ok()) << staging.status();
  ASSERT_TRUE(host_->Put(*staging, MakeChunk(0, Values(1, 15))).value_or(false));
  v1::CoordinatorMessage remove;
  remove.mutable_delete_run()->set_run(first_.run);
  remove.mutable_delete_run()->set_lineage("another lineage");
  OnArrival(*host_, remove);
  EXPECT_THAT(Stage(first_, {.group = 1}), IsOk());
  remove.mutable_delete_run()->set_lineage(first_.lineage);
  OnArrival(*host_, remove);
  EXPECT_THAT(host_->Finish(*staging), IsError(absl::StatusCode::kUnavailable, "has left"));
  EXPECT_THAT(Stage(first_, {.group = 1}), IsError(absl::StatusCode::kUnavailable, "has left"));
  // An order of another coordinator, which does not remove them.
  Open(first_);
  auto again = host_->Stage(Header(first_, {}, 0, 15, 15));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_THAT(host_->Finish(*again), IsOk());
}

TEST_F(ParallelOrdersTest, FileOfAFencedContributionIsRemovedByTheNextOrder) {
  Open(first_);
  auto staging = host_->Stage(Header(first_, {}, 0, 15, 4));
  ASSERT_TRUE(staging.ok()) << staging.status();
  const std::string file = "/data/run-1/stage-1-0-1-0";
  ASSERT_TRUE(disk_.Exists(file));
  v1::CoordinatorMessage fence;
  *fence.mutable_fence() = FenceOf(first_.run, 0, 2);
  OnArrival(*host_, fence);
  EXPECT_TRUE(disk_.Exists(file)) << "keys do not wait for the disk";
  Open(first_);
  EXPECT_FALSE(disk_.Exists(file));
}

// While the object exists, this process can open `more` further files. The limit is one of numbers
// of descriptors, which may have gaps, so all others are taken.
class OpenFilesLimit {
 public:
  explicit OpenFilesLimit(size_t more) {
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
    rlimit limited = before_;
    limited.rlim_cur = std::min<rlim_t>(before_.rlim_cur, 1024);
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &limited), 0);
    for (int taken = eventfd(0, 0); taken >= 0; taken = eventfd(0, 0)) taken_.push_back(taken);
    for (; more > 0 && !taken_.empty(); --more) Return();
  }
  OpenFilesLimit(const OpenFilesLimit&) = delete;
  OpenFilesLimit& operator=(const OpenFilesLimit&) = delete;
  ~OpenFilesLimit() {
    while (!taken_.empty()) Return();
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before_), 0);
  }

 private:
  void Return() {
    close(taken_.back());
    taken_.pop_back();
  }

  rlimit before_ = {};
  std::vector<int> taken_;
};

TEST_F(ShardHostTest, RoundOfMoreContributionsThanOpenFilesIsApplied) {
  constexpr uint32_t kGroups = 40;
  run_.groups = kGroups;
  Open();
  std::vector<Part> parts;
  for (uint32_t group = 0; group < kGroups; ++group) {
    host_->Fence(FenceOf(run_.run, group, run_.generation));
    ASSERT_EQ(Stage({.group = group}, Values(group, 15)), absl::OkStatus());
    parts.push_back({.group = group});
  }
  const v1::Apply order = MakeApply(run_, 1, parts);
  {
    const OpenFilesLimit limit(0);
    const absl::Status refused = host_->Apply(order).status();
    EXPECT_THAT(refused, IsError(absl::StatusCode::kResourceExhausted, "Too many open files"));
    EXPECT_THAT(refused.message(), HasSubstr("RLIMIT_NOFILE"));
  }
  uint64_t digest = 0;
  {
    const OpenFilesLimit limit(12 + UsableCores());
    digest = Apply(order).digest();
  }
  EXPECT_NE(digest, 0U);
  // The bits are those of a process that has all files open.
  TemporaryFolder other;
  ASSERT_NO_FATAL_FAILURE(StartOn(other.path()));
  Open();
  for (uint32_t group = 0; group < kGroups; ++group) {
    host_->Fence(FenceOf(run_.run, group, run_.generation));
    ASSERT_EQ(Stage({.group = group}, Values(group, 15)), absl::OkStatus());
  }
  EXPECT_EQ(Apply(order).digest(), digest);
}

}  // namespace
}  // namespace cadre::testing
