#include "coordinator/loop.h"

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "coordinator/keys.h"
#include "tests/base/expect.h"
#include "tests/coordinator/apply_op.h"

namespace cadre {
namespace {

// A store in memory whose transactions can fail.
class MemoryStore final : public Store {
 public:
  absl::StatusOr<std::optional<std::string>> Get(absl::string_view key) override {
    absl::MutexLock lock(&mutex_);
    auto it = records_.find(std::string(key));
    if (it == records_.end()) return std::optional<std::string>();
    return std::optional<std::string>(it->second);
  }
  absl::StatusOr<std::map<std::string, std::string>> Scan(absl::string_view prefix) override {
    absl::MutexLock lock(&mutex_);
    std::map<std::string, std::string> found;
    for (const auto& [key, value] : records_) {
      if (absl::StartsWith(key, prefix)) found[key] = value;
    }
    return found;
  }
  absl::Status Commit(const std::vector<Op>& ops) override {
    absl::MutexLock lock(&mutex_);
    if (!failure_.ok()) return failure_;
    for (const Op& op : ops) testing::ApplyTo(records_, op);
    return absl::OkStatus();
  }
  void Fail(absl::Status failure) {
    absl::MutexLock lock(&mutex_);
    failure_ = std::move(failure);
  }

 private:
  absl::Mutex mutex_;
  std::map<std::string, std::string> records_ ABSL_GUARDED_BY(mutex_);
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
};

class Recorder final : public Loop::Callbacks {
 public:
  explicit Recorder(MemoryStore* store) : store_(store) {}
  void OnSend(ConnectionId, const v1::CoordinatorMessage&) override { ++sent_; }
  void OnDisconnect(ConnectionId, const absl::Status&) override {}
  void OnReplied(const Replied& replied) override {
    const auto record = store_->Get(RunKey(replied.run));
    durable_ = durable_ && record.ok() && record->has_value();
    ++replies_;
  }
  absl::Time OnSettled(const Machine&, absl::Time) override { return absl::InfiniteFuture(); }

  int sent() const { return sent_; }
  int replies() const { return replies_; }
  bool durable() const { return durable_; }

 private:
  MemoryStore* const store_;
  std::atomic<int> sent_ = 0;
  std::atomic<int> replies_ = 0;
  std::atomic<bool> durable_ = true;
};

Loop::Options MakeOptions() {
  Loop::Options options;
  options.machine.plan = [](const v1::RunSpec&, int) -> absl::StatusOr<v1::Plan> {
    return v1::Plan();
  };
  return options;
}

TEST(LoopTest, RepliesOnlyWhenDurable) {
  MemoryStore store;
  Recorder recorder(&store);
  auto loop = Loop::Start(MakeOptions(), &store, &recorder);
  ASSERT_TRUE(loop.ok());
  for (RequestId i = 1; i <= 50; ++i) ASSERT_TRUE((*loop)->Post(SubmitRun{.request = i}));
  (*loop)->Stop();
  EXPECT_EQ(recorder.replies(), 50) << "events posted before Stop are handled";
  EXPECT_TRUE(recorder.durable());
  EXPECT_FALSE((*loop)->Post(Tick{}));
}

TEST(LoopTest, StoreFailureStopsLoop) {
  MemoryStore store;
  Recorder recorder(&store);
  absl::Notification failed;
  absl::Status reason;
  Loop::Options options = MakeOptions();
  options.on_failure = [&](const absl::Status& status) {
    reason = status;
    failed.Notify();
  };
  auto loop = Loop::Start(std::move(options), &store, &recorder);
  ASSERT_TRUE(loop.ok());
  store.Fail(absl::ResourceExhaustedError("the disk is full"));
  ASSERT_TRUE((*loop)->Post(SubmitRun{.request = 1}));
  ASSERT_TRUE(failed.WaitForNotificationWithTimeout(absl::Seconds(10)));
  EXPECT_EQ(reason.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(recorder.replies(), 0);
  EXPECT_FALSE((*loop)->Post(Tick{})) << "the loop has stopped permanently";
}

TEST(LoopTest, StoreFailureAtStart) {
  MemoryStore store;
  Recorder recorder(&store);
  store.Fail(absl::ResourceExhaustedError("the disk is full"));
  EXPECT_EQ(Loop::Start(MakeOptions(), &store, &recorder).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(LoopTest, RestoresFromStore) {
  MemoryStore store;
  Recorder recorder(&store);
  {
    auto loop = Loop::Start(MakeOptions(), &store, &recorder);
    ASSERT_TRUE(loop.ok());
    ASSERT_TRUE((*loop)->Post(SubmitRun{.request = 1}));
  }
  auto loop = Loop::Start(MakeOptions(), &store, &recorder);
  ASSERT_TRUE(loop.ok());
  absl::Notification answered;
  int runs = 0;
  ASSERT_TRUE((*loop)->RunQuery([&](const Machine& machine, absl::Time now) {
    runs = machine.Status(now).runs_size();
    answered.Notify();
  }));
  ASSERT_TRUE(answered.WaitForNotificationWithTimeout(absl::Seconds(10)));
  EXPECT_EQ(runs, 1);
}

TEST(LoopTest, LeaseEndsWithoutEvents) {
  MemoryStore store;
  Recorder recorder(&store);
  Loop::Options options = MakeOptions();
  options.machine.lease = absl::Milliseconds(100);
  options.machine.heartbeat = absl::Milliseconds(25);
  auto loop = Loop::Start(std::move(options), &store, &recorder);
  ASSERT_TRUE(loop.ok());
  ASSERT_TRUE((*loop)->Post(StreamOpened{1}));
  MessageReceived hello{.connection = 1};
  *hello.message.mutable_hello() =
      Parse<v1::Hello>("role: ROLE_WORKER name: 'w' incarnation: 'p' address: 'w:1'");
  ASSERT_TRUE((*loop)->Post(hello));
  const absl::Time limit = absl::Now() + absl::Seconds(20);
  uint64_t lost = 0;
  while (lost == 0 && absl::Now() < limit) {
    absl::Notification answered;
    ASSERT_TRUE((*loop)->RunQuery([&](const Machine& machine, absl::Time now) {
      const v1::StatusReply status = machine.Status(now);
      auto it = status.counters().find("leases_lost");
      lost = it == status.counters().end() ? 0 : it->second;
      answered.Notify();
    }));
    answered.WaitForNotification();
    absl::SleepFor(absl::Milliseconds(5));
  }
  EXPECT_EQ(lost, 1u);
  EXPECT_GE(recorder.sent(), 1);
}

}  // namespace
}  // namespace cadre
