#include "coordinator/service/loop.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "base/rpc/grpc_status.h"
#include "coordinator/store/keys.h"
#include "tests/base/expect.h"
#include "tests/coordinator/store/memory_store.h"

namespace cadre {
namespace {

using testing::MemoryStore;

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
  void OnHandled(ConnectionId) override {}
  void OnBegunAgain() override { ++begun_again_; }
  absl::Time OnSettled(const Machine&, absl::Time) override { return absl::InfiniteFuture(); }

  int sent() const { return sent_; }
  int begun_again() const { return begun_again_; }
  int replies() const { return replies_; }
  bool durable() const { return durable_; }

 private:
  MemoryStore* const store_;
  std::atomic<int> sent_ = 0;
  std::atomic<int> begun_again_ = 0;
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

TEST(LoopTest, LimitsAreReported) {
  MemoryStore store;
  Recorder recorder(&store);
  Loop::Options options = MakeOptions();
  options.find_limit = [] { return "all 46 open files are in use"; };
  auto loop = Loop::Start(std::move(options), &store, &recorder);
  ASSERT_TRUE(loop.ok());
  absl::Notification answered;
  std::string exhausted;
  int events = 0;
  const auto read = [&](const Machine& machine, absl::Time now) {
    exhausted = machine.Status(now).coordinator().exhausted();
    const v1::EventsReply reply = machine.Events({});
    for (const v1::ClusterEvent& event : reply.events()) {
      events += event.kind() == v1::EVENT_KIND_COORDINATOR_LIMIT && event.text() == exhausted;
    }
    answered.Notify();
  };
  ASSERT_TRUE((*loop)->RunQuery(read).ok());
  ASSERT_TRUE(answered.WaitForNotificationWithTimeout(absl::Seconds(10)));
  EXPECT_EQ(exhausted, "all 46 open files are in use");
  EXPECT_EQ(events, 1);
}

TEST(LoopTest, BeginsAgainAboveTheEpochOfAMember) {
  MemoryStore store;
  Recorder recorder(&store);
  auto loop = Loop::Start(MakeOptions(), &store, &recorder);
  ASSERT_TRUE(loop.ok());
  const uint64_t epoch = absl::ToUnixMillis(absl::Now() + absl::Minutes(10));
  MessageReceived received{.connection = 1};
  v1::Hello& hello = *received.message.mutable_hello();
  hello.set_role(v1::ROLE_AGGREGATOR);
  hello.set_name("a0");
  hello.set_incarnation("1");
  hello.set_address("a0:1");
  hello.set_highest_epoch(epoch);
  ASSERT_TRUE((*loop)->Post(StreamOpened{1}));
  ASSERT_TRUE((*loop)->Post(received));
  received.connection = 2;
  ASSERT_TRUE((*loop)->Post(StreamOpened{2}));
  ASSERT_TRUE((*loop)->Post(received));
  ASSERT_TRUE((*loop)->Post(SubmitRun{.request = 1}));
  (*loop)->Stop();
  EXPECT_GE(recorder.begun_again(), 1);
  v1::MetaRecord meta;
  ASSERT_TRUE(meta.ParseFromString(store.Get(kMetaKey).value().value()));
  EXPECT_GT(meta.epoch(), epoch);
  EXPECT_EQ(meta.run(), 1u) << "later events are handled";
}

// Each of them would end the streams of all others.
TEST(LoopTest, ManyClaimsOfEpochsBeginAgainOnce) {
  MemoryStore store;
  Recorder recorder(&store);
  auto loop = Loop::Start(MakeOptions(), &store, &recorder);
  ASSERT_TRUE(loop.ok());
  const absl::Time begin = absl::Now();
  const uint64_t epoch = absl::ToUnixMillis(begin + absl::Minutes(10));
  for (uint64_t i = 1; i <= 50; ++i) {
    MessageReceived received{.connection = i};
    v1::Hello& hello = *received.message.mutable_hello();
    hello.set_role(v1::ROLE_WORKER);
    hello.set_name(absl::StrCat("w", i));
    hello.set_incarnation("1");
    hello.set_address("w:1");
    hello.set_highest_epoch(epoch + 1000 * i);
    ASSERT_TRUE((*loop)->Post(StreamOpened{i}));
    ASSERT_TRUE((*loop)->Post(received));
    // One turn each.
    absl::Notification handled;
    ASSERT_TRUE((*loop)->RunQuery([&](const auto&, absl::Time) { handled.Notify(); }).ok());
    ASSERT_TRUE(handled.WaitForNotificationWithTimeout(absl::Seconds(10)));
  }
  (*loop)->Stop();
  EXPECT_GE(recorder.begun_again(), 1);
  // A busy host may take longer than the limit.
  EXPECT_LE(recorder.begun_again(), 1 + (absl::Now() - begin) / BeginLimit::kMinWait);
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
  ASSERT_TRUE((*loop)
                  ->RunQuery([&](const Machine& machine, absl::Time now) {
                    runs = machine.Status(now).runs_size();
                    answered.Notify();
                  })
                  .ok());
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
    ASSERT_TRUE((*loop)
                    ->RunQuery([&](const Machine& machine, absl::Time now) {
                      const v1::StatusReply status = machine.Status(now);
                      auto it = status.counters().find("leases_lost");
                      lost = it == status.counters().end() ? 0 : it->second;
                      answered.Notify();
                    })
                    .ok());
    answered.WaitForNotification();
    absl::SleepFor(absl::Milliseconds(5));
  }
  EXPECT_EQ(lost, 1u);
  EXPECT_GE(recorder.sent(), 1);
}

// A query of the test takes 5 ms, a half of what an iteration has for queries.
TEST(LoopTest, QueriesDelayEventsForALimitedTime) {
  MemoryStore store;
  Recorder recorder(&store);
  std::atomic<int> queries = 0;
  std::atomic<int> before_answer = 0;
  auto loop = Loop::Start(MakeOptions(), &store, &recorder);
  ASSERT_TRUE(loop.ok());
  absl::Notification begin;
  ASSERT_TRUE(
      (*loop)->RunQuery([&](const Machine&, absl::Time) { begin.WaitForNotification(); }).ok());
  for (int i = 0; i < 200; ++i) {
    ASSERT_TRUE((*loop)
                    ->RunQuery([&](const Machine&, absl::Time) {
                      const absl::Time until = absl::Now() + absl::Milliseconds(5);
                      while (absl::Now() < until) {
                      }
                      if (recorder.replies() == 0) ++before_answer;
                      ++queries;
                    })
                    .ok());
  }
  ASSERT_TRUE((*loop)->Post(SubmitRun{.request = 1}));
  begin.Notify();
  while (queries < 200) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(recorder.replies(), 1);
  EXPECT_LE(before_answer, 4);
}

TEST(LoopTest, ExcessQueriesAreRefusedWithADelay) {
  MemoryStore store;
  Recorder recorder(&store);
  auto loop = Loop::Start(MakeOptions(), &store, &recorder);
  ASSERT_TRUE(loop.ok());
  absl::Notification running, end;
  ASSERT_TRUE((*loop)
                  ->RunQuery([&](const Machine&, absl::Time) {
                    running.Notify();
                    end.WaitForNotification();
                  })
                  .ok());
  running.WaitForNotification();
  std::atomic<int> queries = 0;
  const Loop::Query query = [&](const Machine&, absl::Time) { ++queries; };
  int accepted = 0;
  absl::Status status;
  while ((status = (*loop)->RunQuery(query)).ok()) ++accepted;
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(RetryAfter(status), absl::Milliseconds(250));
  EXPECT_LE(accepted, 1000);
  // Events have room.
  EXPECT_TRUE((*loop)->Post(SubmitRun{.request = 1}));
  end.Notify();
  while (queries < accepted) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_TRUE((*loop)->RunQuery(query).ok());
}

}  // namespace
}  // namespace cadre
