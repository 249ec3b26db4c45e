#include "coordinator/machine/durable_machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/store/keys.h"
#include "tests/base/expect.h"
#include "tests/coordinator/store/memory_store.h"

namespace cadre {
namespace {

constexpr absl::Duration kLease = absl::Seconds(10);

template <typename Body>
std::vector<Body> AllOf(const std::vector<Action>& actions) {
  std::vector<Body> bodies;
  for (const Action& action : actions) {
    if (const auto* body = std::get_if<Body>(&action)) bodies.push_back(*body);
  }
  return bodies;
}

class DurableMachineTest : public ::testing::Test {
 protected:
  DurableMachineTest() { Restart(); }

  void Restart(uint64_t above = 0) {
    DurableMachine::Options options;
    options.machine.lease = kLease;
    options.machine.plan = [](const v1::RunSpec&, int) -> absl::StatusOr<v1::Plan> {
      return v1::Plan();
    };
    options.commit = [this](const std::vector<Store::Op>& ops) {
      ++transactions_;
      return store_.Commit(ops);
    };
    options.find_limit = [this] {
      ++probes_;
      return limit_;
    };
    machine_.emplace(std::move(options), now_);
    EXPECT_THAT(machine_->Restore(store_, now_, above), IsOk());
    transactions_ = 0;
    machine_->BeginWait(now_);
  }
  // Events that arrive while the loop waits.
  DurableMachine::Turn Do(const std::vector<Event>& events) {
    auto turn = machine_->Handle(events, now_);
    EXPECT_THAT(turn, IsOk());
    machine_->BeginWait(now_);
    return *std::move(turn);
  }
  // Joins one worker, by the stream of this number.
  void Join(ConnectionId connection) {
    JoinAs(v1::ROLE_WORKER, absl::StrCat("w", connection), connection, /*epoch=*/0);
  }
  // Sends the Hello of a member that knows the epoch.
  DurableMachine::Turn JoinAs(v1::Role role, const std::string& name, ConnectionId connection,
                              uint64_t epoch) {
    MessageReceived received{.connection = connection};
    v1::Hello& hello = *received.message.mutable_hello();
    hello.set_role(role);
    hello.set_name(name);
    hello.set_incarnation(name);
    hello.set_address(name + ":1");
    hello.set_highest_epoch(epoch);
    return Do({StreamOpened{connection}, received});
  }
  uint64_t Epoch() {
    v1::MetaRecord meta;
    EXPECT_TRUE(meta.ParseFromString(store_.Get(kMetaKey).value().value()));
    return meta.epoch();
  }
  static Event Heartbeat(ConnectionId connection) {
    MessageReceived received{.connection = connection};
    received.message.mutable_heartbeat();
    return received;
  }
  uint64_t LeasesLost() const {
    const auto& counters = machine_->machine().counters();
    const auto found = counters.find("leases_lost");
    return found == counters.end() ? 0 : found->second;
  }
  // Waits as long as the machine may, repeatedly, without an event.
  void WaitUntil(absl::Time time) {
    while (now_ < time) {
      now_ = std::min(std::max(machine_->BeginWait(now_), now_ + absl::Milliseconds(1)), time);
      Do({});
    }
  }

  testing::MemoryStore store_;
  int transactions_ = 0;
  int probes_ = 0;
  std::string limit_;
  absl::Time now_ = absl::FromUnixSeconds(1000);
  std::optional<DurableMachine> machine_;
};

TEST_F(DurableMachineTest, EventsOfATurnShareATransaction) {
  const DurableMachine::Turn turn = Do({SubmitRun{.request = 1}, SubmitRun{.request = 2}});
  EXPECT_EQ(transactions_, 1);
  const std::vector<Replied> replies = AllOf<Replied>(turn.actions);
  ASSERT_EQ(replies.size(), 2u);
  for (const Replied& replied : replies) {
    EXPECT_TRUE(store_.Get(RunKey(replied.run))->has_value()) << replied.run;
  }
  EXPECT_TRUE(AllOf<Store::Op>(turn.actions).empty());
}

TEST_F(DurableMachineTest, NothingIsReturnedThatIsNotDurable) {
  store_.Fail(absl::ResourceExhaustedError("the disk is full"));
  EXPECT_THAT(machine_->Handle({SubmitRun{.request = 1}}, now_),
              IsError(absl::StatusCode::kResourceExhausted, "the disk is full"));
}

TEST_F(DurableMachineTest, RestoresAllRecordsAndTheNewestCommits) {
  const auto replies = AllOf<Replied>(Do({SubmitRun{.request = 1}}).actions);
  ASSERT_EQ(replies.size(), 1u);
  Restart();
  EXPECT_EQ(machine_->machine().Status(now_).runs_size(), 1);
  EXPECT_EQ(machine_->machine().Status(now_).coordinator().starts(), 2u);
}

// A store that notes which records are read one by one.
class NotingStore final : public Store {
 public:
  explicit NotingStore(std::map<std::string, std::string> records) : store_(std::move(records)) {}

  absl::StatusOr<std::optional<std::string>> Get(absl::string_view key) override {
    read.insert(std::string(key));
    return store_.Get(key);
  }
  absl::StatusOr<std::map<std::string, std::string>> Scan(absl::string_view prefix) override {
    return store_.Scan(prefix);
  }
  absl::Status Commit(const std::vector<Op>& ops) override { return store_.Commit(ops); }
  absl::StatusOr<uint64_t> BeginEpoch(uint64_t above, absl::Time now) override {
    began_above = above;
    return Store::BeginEpoch(above, now);
  }

  std::set<std::string> read;
  uint64_t began_above = 0;

 private:
  testing::MemoryStore store_;
};

TEST_F(DurableMachineTest, OnlyCommitsThatAreNeededAreRead) {
  v1::RunRecord old = Parse<v1::RunRecord>(R"(
      run: "run-1-old" version: 20 kept: 3 kept: 19 state: RUN_STATE_STOPPED spec {})");
  v1::RunRecord fresh = Parse<v1::RunRecord>(R"(
      run: "run-2-fresh" state: RUN_STATE_STOPPED spec {})");
  v1::GroupRecord group;
  group.set_run("run-1-old");
  NotingStore store({{RunKey(old.run()), old.SerializeAsString()},
                     {RunKey(fresh.run()), fresh.SerializeAsString()},
                     {GroupKey(old.run(), 0), group.SerializeAsString()}});
  DurableMachine::Options options;
  options.commit = [&](const std::vector<Store::Op>& ops) { return store.Commit(ops); };
  DurableMachine machine(std::move(options), now_);
  ASSERT_THAT(machine.Restore(store, now_, 0), IsOk());
  std::set<std::string> needed = {kMetaKey, CommitKey(fresh.run(), 0), CommitKey(fresh.run(), 1),
                                  CommitKey(old.run(), 3)};
  // The screen remembers the changes of eight rounds; round 21 may be closing.
  for (uint32_t round = 12; round <= 21; ++round) needed.insert(CommitKey(old.run(), round));
  EXPECT_EQ(store.read, needed);
}

// Whatever the clock says.
TEST_F(DurableMachineTest, EpochIsAboveThatOfTheStoreAndOfMembers) {
  v1::MetaRecord meta;
  meta.set_epoch(1'000'000'000'000);
  for (const uint64_t member : {uint64_t{0}, meta.epoch() + 1}) {
    NotingStore store({{kMetaKey, meta.SerializeAsString()}});
    DurableMachine::Options options;
    options.commit = [&](const std::vector<Store::Op>& ops) { return store.Commit(ops); };
    DurableMachine machine(std::move(options), now_);
    ASSERT_THAT(machine.Restore(store, now_, member), IsOk());
    EXPECT_EQ(store.began_above, std::max(member, meta.epoch()));
  }
}

TEST_F(DurableMachineTest, RestoredRunHasItsNewestCommit) {
  const v1::RunRecord run = Parse<v1::RunRecord>(R"(
      run: "run-1-test" version: 2 kept: 1 kept: 2 state: RUN_STATE_PARKED
      spec { averaging { every_steps: 5 } cluster { groups: 1 } } shards: "agg-0")");
  v1::CommitRecord commit;
  commit.set_run(run.run());
  commit.set_round(2);
  commit.set_committed(true);
  ASSERT_THAT(
      store_.Commit({{.key = RunKey(run.run()), .value = run.SerializeAsString()},
                     {.key = CommitKey(run.run(), 2), .value = commit.SerializeAsString()}}),
      IsOk());
  Restart();
  const v1::RunStatus status = machine_->machine().Status(now_).runs(0);
  ASSERT_EQ(status.kept_versions_size(), 1) << "the commit of version 1 is not stored";
  EXPECT_EQ(status.kept_versions(0).version(), 2U);
}

TEST_F(DurableMachineTest, MalformedNumbersOfTheStoreAreNamed) {
  ASSERT_THAT(store_.Commit({{.key = kMetaKey, .value = "\xff"}}), IsOk());
  DurableMachine machine({}, now_);
  EXPECT_THAT(machine.Restore(store_, now_, 0), IsError(kDataLoss, kMetaKey));
}

// The store was lost, and the clock is behind that of the coordinator before.
TEST_F(DurableMachineTest, BeginsAgainAboveTheEpochOfAMember) {
  Join(1);
  const uint64_t epoch = Epoch() + 600'000;
  const DurableMachine::Turn turn = JoinAs(v1::ROLE_AGGREGATOR, "a0", 2, epoch);
  const auto begin = AllOf<BeginAgain>(turn.actions);
  ASSERT_EQ(begin.size(), 1u);
  EXPECT_EQ(begin[0].above, epoch);
  ASSERT_EQ(AllOf<Disconnect>(turn.actions).size(), 1u);
  EXPECT_TRUE(AllOf<Send>(turn.actions).empty()) << "the member does not receive a lower epoch";
  Restart(epoch);
  EXPECT_GT(Epoch(), epoch);
  const auto sent = AllOf<Send>(JoinAs(v1::ROLE_AGGREGATOR, "a0", 3, epoch).actions);
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_TRUE(sent[0].message.has_welcome());
  EXPECT_EQ(sent[0].message.epoch(), Epoch());
}

// It was paused, for example, and another one with a copy of its store has taken over.
TEST_F(DurableMachineTest, ReplacedCoordinatorDoesNotTakeOverAgain) {
  for (const v1::Role role : {v1::ROLE_WORKER, v1::ROLE_AGGREGATOR}) {
    JoinAs(role, "m", 1, 0);
    Do({StreamClosed{1}});
    WaitUntil(now_ + 2 * kLease);
    const DurableMachine::Turn turn = JoinAs(role, "m", 2, Epoch() + 1);
    EXPECT_TRUE(AllOf<BeginAgain>(turn.actions).empty());
    const auto ended = AllOf<Disconnect>(turn.actions);
    ASSERT_EQ(ended.size(), 1u);
    EXPECT_THAT(ended[0].status.message(), ::testing::HasSubstr("has replaced this one"));
    EXPECT_EQ(machine_->machine().Status(now_).coordinator().exhausted(),
              ended[0].status.message());
    Restart();
  }
}

TEST_F(DurableMachineTest, EpochThatWouldUseUpTheNumbersIsRefused) {
  const auto sent =
      AllOf<Send>(JoinAs(v1::ROLE_WORKER, "w", 1, std::numeric_limits<uint64_t>::max()).actions);
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_THAT(sent[0].message.refused().reason(), ::testing::HasSubstr("highest_epoch"));
}

TEST_F(DurableMachineTest, LeaseEndsAfterTheWait) {
  Join(1);
  WaitUntil(now_ + kLease - absl::Seconds(1));
  EXPECT_EQ(LeasesLost(), 0u);
  WaitUntil(now_ + absl::Seconds(1));
  EXPECT_EQ(LeasesLost(), 1u);
}

// After a restart at another address, members may need longer than a lease to find it.
TEST_F(DurableMachineTest, LeasesBeginWithTheFirstContact) {
  Join(1);
  Join(2);
  Restart();
  WaitUntil(now_ + 3 * kLease);
  EXPECT_EQ(LeasesLost(), 0u);
  Join(1);
  for (int i = 0; i < 3; ++i) {
    WaitUntil(now_ + kLease / 4);
    Do({Heartbeat(1)});
  }
  EXPECT_EQ(LeasesLost(), 0u) << "the other one may still return";
  WaitUntil(now_ + kLease / 2);
  EXPECT_EQ(LeasesLost(), 1u);
}

// The message of a member has waited since before the end of its lease.
TEST_F(DurableMachineTest, TickFollowsTheMessagesOfATurn) {
  Join(1);
  machine_->BeginWait(now_);
  now_ += kLease;
  EXPECT_EQ(Do({Heartbeat(1)}).stall, absl::Seconds(10) - absl::Seconds(1) + kReceiveTime)
      << "it looks for limits every second, which the process has not done";
  EXPECT_EQ(LeasesLost(), 0u);
}

// The process is stopped while it waits; afterwards it begins with the end of the wait, because the
// messages are still on the network.
TEST_F(DurableMachineTest, StallDuringTheWaitExtendsLeases) {
  Join(1);
  now_ += absl::Seconds(30);
  EXPECT_GT(Do({}).stall, absl::Seconds(29));
  EXPECT_EQ(LeasesLost(), 0u);
  now_ += kReceiveTime / 2;
  Do({Heartbeat(1)});
  WaitUntil(now_ + kLease - absl::Seconds(1));
  EXPECT_EQ(LeasesLost(), 0u);
}

TEST_F(DurableMachineTest, StallOfATurnExtendsLeases) {
  Join(1);
  ASSERT_THAT(machine_->Handle({}, now_), IsOk());
  now_ += absl::Seconds(20);
  machine_->BeginWait(now_);
  EXPECT_EQ(Do({}).stall, absl::Seconds(20) + kReceiveTime);
  EXPECT_EQ(LeasesLost(), 0u);
}

TEST_F(DurableMachineTest, WaitIsNoStall) {
  const absl::Time begin = now_;
  while (now_ < begin + absl::Minutes(1)) {
    now_ = std::max(now_, machine_->BeginWait(now_, now_ + absl::Milliseconds(700)));
    EXPECT_EQ(Do({}).stall, absl::ZeroDuration());
  }
}

// The simulation, for example, has no process whose limits matter.
TEST_F(DurableMachineTest, LimitsNeedNotBeLookedFor) {
  DurableMachine::Options options;
  options.commit = [this](const std::vector<Store::Op>& ops) { return store_.Commit(ops); };
  size_t handled = 0;
  size_t settled = 0;
  options.on_handled = [&](const Event* event, const std::vector<Action>& added) {
    if (event == nullptr) return void(++settled);
    if (std::holds_alternative<Tick>(*event)) return;
    EXPECT_TRUE(std::holds_alternative<SubmitRun>(*event));
    EXPECT_FALSE(added.empty());
    ++handled;
  };
  DurableMachine machine(std::move(options), now_);
  ASSERT_THAT(machine.Restore(store_, now_, 0), IsOk());
  EXPECT_EQ(machine.BeginWait(now_, now_ + absl::Hours(1)),
            std::min(machine.machine().NextDeadline(), now_ + absl::Hours(1)));
  const auto turn = machine.Handle({SubmitRun{.request = 1}, SubmitRun{.request = 2}}, now_);
  ASSERT_THAT(turn, IsOk());
  EXPECT_EQ(turn->limit, "");
  EXPECT_EQ(handled, 2U);
  EXPECT_EQ(settled, 1U) << "after all events of the turn";
}

// Connections that come and go at the limit are one event.
TEST_F(DurableMachineTest, LimitIsReportedOnce) {
  Do({});
  limit_ = "all 46 open files are in use";
  now_ += absl::Seconds(1);
  EXPECT_EQ(Do({}).limit, limit_);
  EXPECT_EQ(machine_->machine().Status(now_).coordinator().exhausted(), limit_);
  const int probes = probes_;
  now_ += absl::Milliseconds(100);
  EXPECT_EQ(Do({}).limit, "");
  EXPECT_EQ(probes_, probes) << "it is looked for once a second";
  now_ += absl::Seconds(1);
  EXPECT_EQ(Do({}).limit, "") << "it is known";
  EXPECT_EQ(probes_, probes + 1);
  limit_ = "";
  WaitUntil(now_ + absl::Seconds(30));
  EXPECT_NE(machine_->machine().Status(now_).coordinator().exhausted(), "");
  WaitUntil(now_ + absl::Minutes(1));
  EXPECT_EQ(machine_->machine().Status(now_).coordinator().exhausted(), "");
}

TEST_F(DurableMachineTest, LimitEndsAfterAMinuteWithRoom) {
  limit_ = "all 46 open files are in use";
  now_ += absl::Minutes(2);
  Do({});
  const absl::Time found = now_;
  limit_ = "";
  now_ = found + absl::Seconds(59);
  Do({});
  EXPECT_NE(machine_->machine().Status(now_).coordinator().exhausted(), "");
  now_ = found + absl::Minutes(1);
  Do({});
  EXPECT_EQ(machine_->machine().Status(now_).coordinator().exhausted(), "");
}

}  // namespace
}  // namespace cadre
