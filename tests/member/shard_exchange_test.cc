// Tests of a rank's exchange with two shards, each with a real gRPC server, and of restoring a
// shard from what the ranks hold.
#include "member/shard_exchange.h"
#include "member/thread_runtime.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/digest.h"
#include "base/rpc/daemon.h"
#include "model/outer_optimizer.h"
#include "proto/cadre/v1/rounds.grpc.pb.h"
#include "server/client/shard_span.h"
#include "server/run_terms.h"
#include "tests/base/expect.h"
#include "tests/server/rounds_server.h"
#include "tests/server/testing.h"

namespace cadre::testing {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kSilence = absl::Seconds(2);

// One of the run's shards.
class Shard {
 public:
  Shard(SmallRun run, uint32_t id) : run_(std::move(run)), server_(folder_.path()) {
    run_.shard = id;
  }

  v1::RunOpened Open(uint32_t version, std::optional<uint32_t> hollow) {
    v1::OpenRun open = run_.Open();
    // The orders determine whether its rounds have an outer update.
    open.mutable_spec()->mutable_averaging()->mutable_outer()->mutable_nesterov();
    open.set_version(version);
    if (hollow) open.set_hollow(*hollow);
    const auto opened = server_.host().OpenRun(open);
    EXPECT_TRUE(opened.ok()) << opened.status();
    return opened.ok() ? *opened : v1::RunOpened();
  }
  // Applies the contribution of the group's `ranks`.
  v1::Applied Apply(uint32_t round, uint32_t ranks, bool seed = false, bool outer = false) {
    v1::Apply apply = MakeApply(run_, round, {{.ranks = ranks, .samples = seed ? 1U : 100U}});
    apply.set_seed(seed);
    if (outer) {
      *apply.mutable_outer()->mutable_optimizer() =
          *OuterOptimizerOf(Parse<v1::Averaging>("outer { nesterov { learning_rate: 0.5 } }"));
    }
    const auto applied = server_.host().Apply(apply);
    EXPECT_TRUE(applied.ok()) << applied.status();
    return applied.ok() ? *applied : v1::Applied();
  }
  RoundsServer& server() { return server_; }

 private:
  SmallRun run_;
  const TemporaryFolder folder_;
  RoundsServer server_;
};

// The coordinator of one rank.
class Control final : public GroupControl {
 public:
  void SetAddress(uint32_t shard, const std::string& address) {
    absl::MutexLock lock(&mutex_);
    addresses_[shard] = address;
    away_.erase(shard);
  }
  void SetAway(uint32_t shard) {
    absl::MutexLock lock(&mutex_);
    away_.insert(shard);
  }
  void Request(uint32_t shard, uint32_t round, bool seed) {
    v1::Restage restage;
    restage.set_shard(shard);
    restage.set_round(round);
    restage.set_seed(seed);
    handler_(restage);
  }
  // Requests the same again as soon as it has received the next answer.
  void RequestAgain(uint32_t shard, uint32_t round, bool seed) {
    again_ = [=, this] { Request(shard, round, seed); };
    Request(shard, round, seed);
  }
  v1::Restaged Answer() {
    absl::MutexLock lock(&mutex_);
    const auto any = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !answers_.empty(); };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&any), absl::Seconds(10)));
    if (answers_.empty()) return {};
    v1::Restaged answer = answers_.front();
    answers_.erase(answers_.begin());
    return answer;
  }
  size_t answers() const {
    absl::MutexLock lock(&mutex_);
    return answers_.size();
  }
  bool has_handler() const { return handler_ != nullptr; }

  absl::StatusOr<v1::Start> PreparedAndStart(const v1::Prepared&) override { return v1::Start(); }
  void Send(const TrainingReport& report) override {
    {
      absl::MutexLock lock(&mutex_);
      answers_.push_back(std::get<v1::Restaged>(report));
    }
    if (const auto again = std::exchange(again_, nullptr)) again();
  }
  absl::StatusOr<std::optional<v1::Decision>> AwaitDecision(absl::Duration) override {
    return absl::CancelledError("released");
  }
  bool nudged(uint32_t) const override { return false; }
  std::optional<v1::TraceSteps> TakeTraceRequest() override { return std::nullopt; }
  bool connected() const override { return true; }
  ShardLocation LocationOf(uint32_t shard) const override {
    absl::MutexLock lock(&mutex_);
    const auto found = addresses_.find(shard);
    if (found == addresses_.end()) return {};
    return {found->second, absl::StrCat("agg-", shard)};
  }
  bool ShardIsAway(uint32_t shard) const override {
    absl::MutexLock lock(&mutex_);
    return away_.contains(shard);
  }
  void HandleRestage(std::function<void(const v1::Restage&)> handler) override {
    handler_ = std::move(handler);
  }

 private:
  mutable absl::Mutex mutex_;
  std::map<uint32_t, std::string> addresses_ ABSL_GUARDED_BY(mutex_);
  std::set<uint32_t> away_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::Restaged> answers_ ABSL_GUARDED_BY(mutex_);
  std::function<void(const v1::Restage&)> handler_;
  std::function<void()> again_;
};

// A rank with the values at `positions` of its replica.
struct Rank {
  Rank(const SmallRun& run, const ParameterIndex& index, uint32_t number, Interval positions)
      : values(Values(100 + number, positions.size())), owned{{positions, values}} {
    v1::Assignment assignment;
    assignment.mutable_place()->set_run(run.run);
    assignment.mutable_place()->set_generation(1);
    assignment.mutable_place()->set_rank(number);
    assignment.set_lineage(run.lineage);
    for (uint32_t shard = 0; shard < run.shards; ++shard) {
      assignment.add_shards()->set_name(absl::StrCat("agg-", shard));
    }
    exchange.emplace(ThreadRuntime::Insecure(), assignment, index, owned, control, cancellation,
                     progress, ShardExchange::Options{.silence = kSilence});
  }

  absl::Status Stage(uint32_t round) {
    Traffic traffic;
    exchange->BeginStage(round, /*samples=*/100);
    return exchange->Finish(&traffic);
  }
  absl::Status Pull(uint32_t version) {
    Traffic traffic;
    exchange->BeginPull(version);
    return exchange->Finish(&traffic);
  }

  std::vector<float> values;
  const std::vector<Owned> owned;
  Control control;
  Cancellation cancellation;
  TrainerProgress progress;
  std::optional<ShardExchange> exchange;
};

// A group of two ranks: the first has all of shard 0, both have parts of shard 1.
class ShardExchangeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    run_.shards = 2;
    index_.emplace(*ParameterIndex::FromModel(run_.Open().spec().model()));
    for (uint32_t rank = 0; rank < 2; ++rank) {
      ranks_.push_back(std::make_unique<Rank>(
          run_, *index_, rank, rank == 0 ? Interval{0, 10} : Interval{10, run_.parameters()}));
    }
    for (uint32_t id = 0; id < 2; ++id) Replace(id).Open(0, std::nullopt);
  }

  // The shard has an empty folder and another address.
  Shard& Replace(uint32_t id) {
    shards_[id].reset();
    shards_[id] = std::make_unique<Shard>(run_, id);
    for (auto& rank : ranks_) rank->control.SetAddress(id, shards_[id]->server().address());
    return *shards_[id];
  }

  void StageAll(uint32_t round) {
    for (auto& rank : ranks_) ASSERT_EQ(rank->Stage(round), absl::OkStatus());
  }
  void PullAll(uint32_t version) {
    for (auto& rank : ranks_) ASSERT_EQ(rank->Pull(version), absl::OkStatus());
    for (auto& rank : ranks_) rank->exchange->Adopt();
  }
  // Every rank answers without an error.
  void RestageAll(uint32_t shard, uint32_t round, bool seed) {
    for (auto& rank : ranks_) rank->control.Request(shard, round, seed);
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      const v1::Restaged answer = ranks_[rank]->control.Answer();
      EXPECT_EQ(answer.error(), "");
      EXPECT_EQ(answer.place().rank(), rank);
      EXPECT_EQ(answer.shard(), shard);
      EXPECT_EQ(answer.round(), round);
      EXPECT_EQ(answer.seed(), seed);
    }
  }

  SmallRun run_;
  std::optional<ParameterIndex> index_;
  std::array<std::unique_ptr<Shard>, 2> shards_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

// The shard of its own aggregator is away for longer than a silence; the other has the
// contribution.
TEST_F(ShardExchangeTest, ExchangeWaitsForAnAggregatorThatIsAway) {
  Rank& rank = *ranks_[1];
  shards_[1].reset();
  rank.control.SetAway(1);
  Traffic traffic;
  const absl::Time begin = absl::Now();
  rank.exchange->BeginStage(1, /*samples=*/100);
  absl::SleepFor(2 * kSilence);
  EXPECT_FALSE(rank.exchange->finished());
  const uint64_t progress = rank.progress.count();
  Replace(1).Open(0, std::nullopt);
  EXPECT_EQ(rank.exchange->Finish(&traffic), absl::OkStatus());
  EXPECT_GT(progress, 0u) << "the coordinator must not take the wait for a stall";
  EXPECT_GE(absl::Now() - begin, 2 * kSilence);
}

TEST_F(ShardExchangeTest, SilentAggregatorIsNamed) {
  shards_[1].reset();
  EXPECT_THAT(ranks_[1]->Stage(1),
              IsError(absl::StatusCode::kDeadlineExceeded, "(shard 1 on aggregator agg-1)"));
}

TEST_F(ShardExchangeTest, PullChangesNothingBeforeAdopt) {
  StageAll(1);
  for (auto& shard : shards_) EXPECT_EQ(shard->Apply(1, 2).error(), "");
  Rank& rank = *ranks_[0];
  const std::vector<float> contribution = rank.values;
  const std::vector<float> other(rank.values.size(), 7.0F);
  std::copy(other.begin(), other.end(), rank.values.begin());
  ASSERT_EQ(rank.Pull(1), absl::OkStatus());
  EXPECT_TRUE(SameBits(rank.values, other));
  rank.exchange->Adopt();
  EXPECT_TRUE(SameBits(rank.values, contribution)) << "a mean of one group";
}

// The values of a rank are in two shards, those of a shard on two ranks; nothing is coded, so there
// are no units.
TEST_F(ShardExchangeTest, RanksPullTheirPartsOfAState) {
  StageAll(1);
  for (auto& shard : shards_) shard->Apply(1, 2, /*seed=*/false, /*outer=*/true);
  // The momentum was zero: it is the change.
  const auto initial = MakeInitialVersion(run_.Open().spec(), RootedFiles::Unrestricted());
  ASSERT_TRUE(initial.ok()) << initial.status();
  for (const auto& rank : ranks_) {
    const Interval positions = rank->owned.front().positions;
    std::vector<float> expected(positions.size());
    ASSERT_EQ(initial->values(positions.begin, expected), absl::OkStatus());
    for (int64_t i = 0; i < positions.size(); ++i) expected[i] = rank->values[i] - expected[i];
    std::vector<float> state(positions.size(), 7.0F);
    Traffic traffic;
    ASSERT_EQ(rank->exchange->PullState(1, 0, state, &traffic), absl::OkStatus());
    EXPECT_TRUE(SameBits(state, expected)) << positions.begin;
    EXPECT_EQ(traffic.payload_received, state.size() * sizeof(float));
    // Version 0 has none.
    ASSERT_EQ(rank->exchange->PullState(0, 0, state, &traffic), absl::OkStatus());
    EXPECT_TRUE(SameBits(state, std::vector<float>(positions.size())));
    EXPECT_THAT(rank->exchange->PullState(1, 1, state, &traffic),
                IsError(absl::StatusCode::kInvalidArgument, "state 1 is requested"));
  }
}

// The shard loses its files while ranks pull the version that it has committed.
TEST_F(ShardExchangeTest, ContributionsRestoreShardDuringPull) {
  StageAll(1);
  const uint64_t committed = shards_[1]->Apply(1, 2).digest();
  EXPECT_EQ(shards_[0]->Apply(1, 2).error(), "");
  Replace(1).Open(1, 0);
  const std::vector<float> contribution = ranks_[0]->values;
  absl::Status pulled;
  std::thread pull([&] { pulled = ranks_[0]->Pull(1); });
  // The pull is refused, and tried again, until the shard is restored.
  EXPECT_TRUE(shards_[1]->server().WaitFor("refused_busy", 2));
  EXPECT_EQ(shards_[1]->Apply(1, 2).missing_size(), 1);
  RestageAll(1, 1, /*seed=*/false);
  EXPECT_EQ(shards_[1]->Apply(1, 2).digest(), committed);
  pull.join();
  EXPECT_EQ(pulled, absl::OkStatus());
  EXPECT_EQ(ranks_[1]->Pull(1), absl::OkStatus());
  for (auto& rank : ranks_) rank->exchange->Adopt();
  EXPECT_TRUE(SameBits(ranks_[0]->values, contribution));
}

// The shard loses its files while the group trains.
TEST_F(ShardExchangeTest, AdoptedVersionRestoresShard) {
  StageAll(1);
  const uint64_t committed = shards_[1]->Apply(1, 2).digest();
  EXPECT_EQ(shards_[0]->Apply(1, 2).error(), "");
  PullAll(1);
  for (auto& rank : ranks_) rank->values.assign(rank->values.size(), 7.0F);
  Replace(1).Open(1, 0);
  RestageAll(1, 1, /*seed=*/true);
  EXPECT_EQ(shards_[1]->Apply(1, 2, /*seed=*/true).digest(), committed);
  StageAll(2);
  for (auto& shard : shards_) EXPECT_EQ(shard->Apply(2, 2).error(), "");
}

// The round that the group has contributed to can be closed without the version before.
TEST_F(ShardExchangeTest, ContributionsRestoreClosingRound) {
  StageAll(1);
  Replace(1).Open(0, 0);
  RestageAll(1, 1, /*seed=*/false);
  for (auto& shard : shards_) EXPECT_EQ(shard->Apply(1, 2).error(), "");
  PullAll(1);
}

TEST_F(ShardExchangeTest, ValuesThatAreNotHeldAreRefused) {
  Control& control = ranks_[0]->control;
  const auto error = [&](uint32_t shard, uint32_t round, bool seed) {
    control.Request(shard, round, seed);
    return control.Answer().error();
  };
  EXPECT_THAT(error(0, 1, false), HasSubstr("does not hold"));
  StageAll(1);
  EXPECT_THAT(error(0, 1, true), HasSubstr("does not hold"));
  EXPECT_THAT(error(0, 2, false), HasSubstr("does not hold"));
  EXPECT_THAT(error(2, 1, false), HasSubstr("no such shard"));
  for (auto& shard : shards_) shard->Apply(1, 2);
  PullAll(1);
  EXPECT_THAT(error(0, 1, false), HasSubstr("does not hold"));
  EXPECT_THAT(error(0, 1, true), HasSubstr("closed_round")) << "the shard has the version";
  // The second rank has no part of this shard.
  ranks_[1]->control.Request(0, 9, true);
  EXPECT_EQ(ranks_[1]->control.Answer().error(), "");
}

TEST_F(ShardExchangeTest, RepeatedRequestIsAnsweredOnce) {
  StageAll(1);
  Rank& rank = *ranks_[0];
  rank.control.SetAddress(1, "");
  for (int i = 0; i < 3; ++i) rank.control.Request(1, 1, false);
  EXPECT_EQ(rank.control.answers(), 0U);
  Replace(1).Open(0, 0);
  EXPECT_EQ(rank.control.Answer().error(), "");
  EXPECT_EQ(rank.control.answers(), 0U);
}

// The thread that has answered may still run when the next request arrives.
TEST_F(ShardExchangeTest, RequestAfterTheAnswerIsAnswered) {
  Control& control = ranks_[0]->control;
  control.RequestAgain(0, 1, false);
  for (int i = 0; i < 2; ++i) EXPECT_THAT(control.Answer().error(), HasSubstr("does not hold"));
}

// Empty texts mean success.
TEST_F(ShardExchangeTest, ErrorWithoutMessageIsAnError) {
  StageAll(1);
  v1::Rounds::Service unimplemented;
  const auto daemon = Daemon::Start({}, {&unimplemented});
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  Control& control = ranks_[0]->control;
  control.SetAddress(1, (*daemon)->address());
  control.Request(1, 1, false);
  EXPECT_EQ(control.Answer().error(), "UNIMPLEMENTED: ");
}

TEST_F(ShardExchangeTest, EndsWhileStagingAgain) {
  StageAll(1);
  Rank& rank = *ranks_[0];
  rank.control.SetAddress(1, "");
  rank.control.Request(1, 1, false);
  rank.exchange.reset();
  EXPECT_FALSE(rank.control.has_handler());
  EXPECT_THAT(rank.control.Answer().error(), HasSubstr("cancelled"));
}

}  // namespace
}  // namespace cadre::testing
