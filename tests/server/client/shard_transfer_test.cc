#include "server/client/shard_transfer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "server/client/refusal.h"

namespace cadre {
namespace {

using Transfer = ShardTransfer;
using ::testing::HasSubstr;

constexpr absl::Duration kSecond = absl::Seconds(1);
constexpr absl::Duration kMaxBusy = absl::Seconds(60);

// A transfer of 10 elements in chunks of 4, which is silent after 10 seconds, and busy for at most
// a minute.
class ShardTransferTest : public ::testing::Test {
 protected:
  Transfer Make(Transfer::Direction direction) const {
    return {direction, 10, 4, {.seed = 7, .silence = 10 * kSecond, .max_busy = kMaxBusy}, now_};
  }
  // An open attempt.
  Transfer Stage(uint32_t next_chunk) {
    Transfer transfer = Make(Transfer::Direction::kStage);
    EXPECT_EQ(Name(transfer, Transfer::Ready{}), "open");
    transfer.Handle(Transfer::Opened{next_chunk}, now_);
    return transfer;
  }
  Transfer Pull() {
    Transfer transfer = Make(Transfer::Direction::kPull);
    EXPECT_EQ(Name(transfer, Transfer::Ready{}), "open");
    EXPECT_EQ(Name(transfer, Transfer::Opened{}), "receive");
    return transfer;
  }

  // The action for an event, as text.
  std::string Name(Transfer& transfer, const Transfer::Event& event) {
    const Transfer::Action action = transfer.Handle(event, now_, away_);
    if (const auto* send = std::get_if<Transfer::Send>(&action))
      return absl::StrCat("send ", send->index, ": ", send->begin, "-", send->end);
    if (const auto* wait = std::get_if<Transfer::Wait>(&action)) {
      wait_ = wait->time;
      return "wait";
    }
    if (const auto* end = std::get_if<Transfer::End>(&action)) {
      status_ = end->status;
      return absl::StrCat("end ", absl::StatusCodeToString(status_.code()));
    }
    if (std::holds_alternative<Transfer::Open>(action)) return "open";
    return std::holds_alternative<Transfer::Confirm>(action) ? "confirm" : "receive";
  }
  std::string Fail(Transfer& transfer, absl::StatusCode code, absl::string_view why = "why") {
    return Name(transfer, Transfer::Ended{absl::Status(code, why)});
  }

  absl::Time now_ = absl::UnixEpoch();
  bool away_ = false;
  absl::Duration wait_;
  absl::Status status_;
};

TEST_F(ShardTransferTest, StagesChunksInOrder) {
  Transfer transfer = Make(Transfer::Direction::kStage);
  EXPECT_EQ(Name(transfer, Transfer::Ready{}), "open");
  EXPECT_EQ(Name(transfer, Transfer::Opened{0}), "send 0: 0-4");
  EXPECT_EQ(Name(transfer, Transfer::Sent{}), "send 1: 4-8");
  EXPECT_EQ(Name(transfer, Transfer::Sent{}), "send 2: 8-10");
  EXPECT_EQ(Name(transfer, Transfer::Sent{}), "confirm");
  EXPECT_EQ(Name(transfer, Transfer::Ended{.staged = 10}), "end OK");
}

TEST_F(ShardTransferTest, StagingResumesAtTheChunkThatTheShardNames) {
  Transfer transfer = Stage(0);
  EXPECT_EQ(Fail(transfer, absl::StatusCode::kUnavailable), "wait");
  EXPECT_EQ(Name(transfer, Transfer::Ready{}), "open");
  EXPECT_EQ(Name(transfer, Transfer::Opened{2}), "send 2: 8-10");
  EXPECT_EQ(Fail(transfer, absl::StatusCode::kUnavailable), "wait");
  EXPECT_EQ(Name(transfer, Transfer::Ready{}), "open");
  EXPECT_EQ(Name(transfer, Transfer::Opened{3}), "confirm") << "only the confirmation was lost";
  EXPECT_EQ(Name(transfer, Transfer::Ended{.staged = 10}), "end OK");
}

TEST_F(ShardTransferTest, StagingNeedsAConfirmationOfAllElements) {
  Transfer transfer = Stage(3);
  EXPECT_EQ(Name(transfer, Transfer::Ended{}), "wait");
  EXPECT_EQ(Name(transfer, Transfer::Ended{.staged = 9}), "wait");
  EXPECT_EQ(Name(transfer, Transfer::Ended{.staged = 11}), "end INTERNAL");
}

TEST_F(ShardTransferTest, EmptyContributionsAreConfirmed) {
  Transfer transfer(Transfer::Direction::kStage, 0, 4, {}, now_);
  EXPECT_EQ(Name(transfer, Transfer::Opened{0}), "confirm");
  EXPECT_EQ(Name(transfer, Transfer::Ended{}), "wait");
  EXPECT_EQ(Name(transfer, Transfer::Ended{.staged = 0}), "end OK");
}

TEST_F(ShardTransferTest, PullContinuesWithTheMissingElements) {
  Transfer transfer = Pull();
  EXPECT_EQ(Name(transfer, Transfer::Received{4}), "receive");
  EXPECT_EQ(Fail(transfer, absl::StatusCode::kUnavailable), "wait");
  EXPECT_EQ(transfer.done(), 4u);
  EXPECT_EQ(Name(transfer, Transfer::Ready{}), "open");
  EXPECT_EQ(Name(transfer, Transfer::Opened{}), "receive");
  EXPECT_EQ(Name(transfer, Transfer::Received{6}), "receive");
  EXPECT_EQ(Name(transfer, Transfer::Ended{}), "end OK");
}

TEST_F(ShardTransferTest, PullThatEndsEarlyIsRepeatedAFewTimes) {
  Transfer transfer = Pull();
  EXPECT_EQ(Name(transfer, Transfer::Received{4}), "receive");
  EXPECT_EQ(Name(transfer, Transfer::Ended{}), "wait");
  EXPECT_EQ(Name(transfer, Transfer::Ended{}), "wait");
  EXPECT_EQ(Name(transfer, Transfer::Ended{}), "end INTERNAL");
  EXPECT_THAT(status_.message(), HasSubstr("4 of 10 elements"));
}

TEST_F(ShardTransferTest, TransientFailuresAreRetriedWithoutACount) {
  Transfer transfer = Pull();
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(Fail(transfer, absl::StatusCode::kUnavailable), "wait");
    EXPECT_EQ(Fail(transfer, absl::StatusCode::kResourceExhausted), "wait");
    EXPECT_EQ(Fail(transfer, absl::StatusCode::kCancelled), "wait");
    EXPECT_EQ(Fail(transfer, absl::StatusCode::kUnknown), "wait");
  }
}

TEST_F(ShardTransferTest, DamageIsRetriedAFewTimes) {
  Transfer transfer = Pull();
  EXPECT_EQ(Fail(transfer, absl::StatusCode::kDataLoss), "wait");
  EXPECT_EQ(Fail(transfer, absl::StatusCode::kUnavailable), "wait");
  EXPECT_EQ(Fail(transfer, absl::StatusCode::kDataLoss), "wait");
  EXPECT_EQ(Fail(transfer, absl::StatusCode::kDataLoss), "end DATA_LOSS");
}

TEST_F(ShardTransferTest, RefusalsAreFinal) {
  for (const v1::Refusal refusal :
       {v1::REFUSAL_STALE_GENERATION, v1::REFUSAL_CLOSED_ROUND, v1::REFUSAL_WRONG_BASE,
        v1::REFUSAL_WRONG_LINEAGE, v1::REFUSAL_PROTOCOL, v1::REFUSAL_MALFORMED}) {
    Transfer transfer = Stage(0);
    const absl::Status refused = RefusalStatus(refusal, "why");
    Name(transfer, Transfer::Ended{refused});
    EXPECT_EQ(status_, refused);
  }
}

TEST_F(ShardTransferTest, WaitsGrowAndDependOnTheSeed) {
  Transfer transfer = Pull();
  Transfer other(Transfer::Direction::kPull, 10, 4, {.seed = 8}, now_);
  for (const int longest : {50, 100, 200, 400, 400}) {
    Fail(transfer, absl::StatusCode::kUnavailable);
    const absl::Duration wait = wait_;
    EXPECT_GE(wait, absl::Milliseconds(longest) / 2);
    EXPECT_LE(wait, absl::Milliseconds(longest));
    Fail(other, absl::StatusCode::kUnavailable);
    EXPECT_NE(wait_, wait);
  }
}

TEST_F(ShardTransferTest, SilenceEndsTransferWithTheLastFailure) {
  Transfer transfer = Pull();
  Fail(transfer, absl::StatusCode::kUnavailable, "no route");
  now_ += 10 * kSecond - absl::Milliseconds(1);
  EXPECT_EQ(Name(transfer, Transfer::Ready{}), "open");
  Fail(transfer, absl::StatusCode::kUnavailable, "no route");
  EXPECT_EQ(wait_, absl::Milliseconds(1)) << "a wait ends with the silence";
  now_ += wait_;
  EXPECT_EQ(Name(transfer, Transfer::Ready{}), "end DEADLINE_EXCEEDED");
  EXPECT_THAT(status_.message(), HasSubstr("last: no route"));
}

// The driver breaks it off, which it reports as a failure.
TEST_F(ShardTransferTest, SilentAttemptEndsTransfer) {
  Transfer transfer = Stage(0);
  EXPECT_EQ(transfer.silent_at(), now_ + 10 * kSecond);
  now_ = transfer.silent_at();
  EXPECT_EQ(Fail(transfer, absl::StatusCode::kCancelled), "end DEADLINE_EXCEEDED");
}

TEST_F(ShardTransferTest, SilenceDoesNotCountWhileTheAggregatorIsAway) {
  Transfer transfer = Pull();
  now_ += 9 * kSecond;
  away_ = true;
  const absl::Time end = now_ + absl::Minutes(10);
  while (now_ < end) {
    ASSERT_EQ(Fail(transfer, absl::StatusCode::kUnavailable, "no route"), "wait");
    now_ += wait_;
    ASSERT_EQ(Name(transfer, Transfer::Ready{}), "open");
  }
  // It has returned, but does not answer.
  away_ = false;
  EXPECT_EQ(Fail(transfer, absl::StatusCode::kUnavailable, "no route"), "wait");
  EXPECT_EQ(transfer.silent_at(), now_ + 10 * kSecond);
  now_ += 10 * kSecond;
  EXPECT_EQ(Name(transfer, Transfer::Ready{}), "end DEADLINE_EXCEEDED");
}

TEST_F(ShardTransferTest, SilentAttemptIsRepeatedWhileTheAggregatorIsAway) {
  Transfer transfer = Stage(0);
  now_ = transfer.silent_at();
  away_ = true;
  EXPECT_EQ(Fail(transfer, absl::StatusCode::kCancelled), "wait");
  EXPECT_EQ(transfer.silent_at(), now_ + 10 * kSecond);
}

// The aggregator has returned before the driver has noticed that it was silent.
TEST_F(ShardTransferTest, ReturnBeginsTheSilence) {
  Transfer transfer = Stage(0);
  away_ = true;
  Name(transfer, Transfer::Sent{});
  now_ += 20 * kSecond;
  away_ = false;
  EXPECT_EQ(Fail(transfer, absl::StatusCode::kCancelled), "wait");
  EXPECT_EQ(transfer.silent_at(), now_ + 10 * kSecond);
}

TEST_F(ShardTransferTest, TransferGoesOnAlthoughTheAggregatorIsAway) {
  Transfer transfer = Pull();
  away_ = true;
  for (const uint64_t elements : {4, 4, 2}) {
    now_ += 11 * kSecond;
    EXPECT_EQ(Name(transfer, Transfer::Received{elements}), "receive");
  }
  EXPECT_EQ(Name(transfer, Transfer::Ended{}), "end OK");
}

TEST_F(ShardTransferTest, ProgressMovesTheEnd) {
  Transfer pull = Pull();
  Transfer stage = Stage(0);
  now_ += 9 * kSecond;
  EXPECT_EQ(Name(pull, Transfer::Received{4}), "receive");
  EXPECT_EQ(Name(stage, Transfer::Sent{}), "send 1: 4-8");
  EXPECT_EQ(pull.silent_at(), now_ + 10 * kSecond);
  EXPECT_EQ(stage.silent_at(), now_ + 10 * kSecond);
  now_ += kSecond;
  EXPECT_EQ(Name(pull, Transfer::Received{0}), "receive");
  EXPECT_EQ(pull.silent_at(), now_ + 9 * kSecond) << "an empty chunk is not progress";
}

TEST_F(ShardTransferTest, ProgressAfterTheSilenceIsTooLate) {
  Transfer pull = Pull();
  Transfer stage = Stage(0);
  now_ += 10 * kSecond;
  EXPECT_EQ(Name(pull, Transfer::Received{4}), "end DEADLINE_EXCEEDED");
  EXPECT_EQ(Name(stage, Transfer::Sent{}), "end DEADLINE_EXCEEDED");
}

TEST_F(ShardTransferTest, CompletedTransferIsNotTooLate) {
  Transfer transfer = Stage(3);
  now_ += 10 * kSecond;
  EXPECT_EQ(Name(transfer, Transfer::Ended{.staged = 10}), "end OK");
}

TEST_F(ShardTransferTest, RepeatedChunksAreNoProgress) {
  Transfer transfer = Stage(0);
  Name(transfer, Transfer::Sent{});
  Name(transfer, Transfer::Sent{});
  const absl::Time silent_at = transfer.silent_at();
  now_ += kSecond;
  Fail(transfer, absl::StatusCode::kResourceExhausted, "the disk is full");
  EXPECT_EQ(Name(transfer, Transfer::Opened{0}), "send 0: 0-4");
  Name(transfer, Transfer::Sent{});
  EXPECT_EQ(Name(transfer, Transfer::Sent{}), "send 2: 8-10");
  EXPECT_EQ(transfer.silent_at(), silent_at);
  EXPECT_EQ(Name(transfer, Transfer::Sent{}), "confirm");
  EXPECT_GT(transfer.silent_at(), silent_at);
}

// It stored chunks that it no longer has.
TEST_F(ShardTransferTest, ChunksForAReplacedShardAreProgress) {
  Transfer transfer = Stage(2);
  Name(transfer, Transfer::Sent{});
  Fail(transfer, absl::StatusCode::kUnavailable);
  now_ += kSecond;
  EXPECT_EQ(Name(transfer, Transfer::Opened{0}), "send 0: 0-4");
  Name(transfer, Transfer::Sent{});
  EXPECT_EQ(transfer.silent_at(), now_ + 10 * kSecond);
}

TEST_F(ShardTransferTest, BusyShardIsNotSilent) {
  Transfer transfer = Pull();
  now_ += 9 * kSecond;
  EXPECT_EQ(Fail(transfer, absl::StatusCode::kUnavailable, "busy: being restored"), "wait");
  EXPECT_EQ(transfer.silent_at(), now_ + 10 * kSecond);
  now_ = transfer.silent_at();
  EXPECT_EQ(Fail(transfer, absl::StatusCode::kUnavailable, "busy: being restored"),
            "end DEADLINE_EXCEEDED");
}

TEST_F(ShardTransferTest, ShardThatOnlyServesOthersIsAwaitedForALimitedTime) {
  Transfer transfer = Pull();
  Name(transfer, Transfer::Received{4});
  const absl::Time progress = now_;
  for (; now_ < progress + kMaxBusy; now_ += kSecond) {
    EXPECT_EQ(Fail(transfer, absl::StatusCode::kResourceExhausted, "busy: too many streams"),
              "wait");
    EXPECT_LE(now_ + wait_, progress + kMaxBusy);
  }
  EXPECT_EQ(Fail(transfer, absl::StatusCode::kResourceExhausted, "busy: too many streams"),
            "end DEADLINE_EXCEEDED");
  EXPECT_THAT(status_.message(), HasSubstr("has only served others for 1m"));
  EXPECT_THAT(status_.message(), HasSubstr("too many streams"));
}

TEST_F(ShardTransferTest, WaitForABusyShardIsCountedFromTheLastProgress) {
  Transfer transfer = Pull();
  now_ += 9 * kSecond;
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(Fail(transfer, absl::StatusCode::kResourceExhausted, "busy: too many streams"),
              "wait");
    now_ += 9 * kSecond;
  }
  EXPECT_EQ(Name(transfer, Transfer::Opened{}), "receive");
  EXPECT_EQ(Name(transfer, Transfer::Received{4}), "receive");
  for (const absl::Time progress = now_; now_ < progress + kMaxBusy; now_ += 9 * kSecond) {
    EXPECT_EQ(Fail(transfer, absl::StatusCode::kResourceExhausted, "busy: too many streams"),
              "wait");
  }
}

// The coordinator ends this wait.
TEST_F(ShardTransferTest, ShardThatIsBeingRestoredIsAwaited) {
  Transfer transfer = Pull();
  for (const absl::Time begin = now_; now_ < begin + 10 * kMaxBusy; now_ += 9 * kSecond) {
    EXPECT_EQ(Fail(transfer, absl::StatusCode::kUnavailable, "busy: being restored"), "wait");
  }
}

TEST_F(ShardTransferTest, WaitsAreReported) {
  Transfer transfer = Pull();
  EXPECT_EQ(Fail(transfer, absl::StatusCode::kResourceExhausted, "busy: too many streams"), "wait");
  EXPECT_EQ(transfer.TakeWaitReport(now_), std::nullopt);
  now_ += Transfer::kReportWaits;
  EXPECT_EQ(transfer.TakeWaitReport(now_), "no progress for 30s; last: busy: too many streams");
  EXPECT_EQ(transfer.TakeWaitReport(now_ + kSecond), std::nullopt) << "it was reported";
  now_ += Transfer::kReportWaits;
  EXPECT_EQ(transfer.TakeWaitReport(now_), "no progress for 1m; last: busy: too many streams");
}

}  // namespace
}  // namespace cadre
