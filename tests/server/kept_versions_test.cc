// Versions that remain besides the newest two, and versions that are copies of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/client/refusal.h"
#include "tests/base/expect.h"
#include "tests/server/coded_rounds_fixture.h"
#include "tests/server/ledger_fixture.h"
#include "tests/server/shard_host_fixture.h"

namespace cadre::testing {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

v1::Apply Keeping(v1::Apply order, const std::vector<uint32_t>& versions) {
  order.mutable_keep()->Add(versions.begin(), versions.end());
  return order;
}

v1::Apply CopyOf(const SmallRun& run, uint32_t version, uint32_t round) {
  v1::Apply order = MakeApply(run, round, {});
  order.set_restores(version);
  return order;
}

std::vector<uint32_t> NumbersOf(const v1::RunOpened& opened) {
  std::vector<uint32_t> versions;
  for (const v1::KeptVersion& kept : opened.kept()) versions.push_back(kept.version());
  return versions;
}

TEST_F(LedgerTest, OrderOfTheNewestVersionNamesOlderOnes) {
  CommitRoundOne();
  for (uint32_t round = 2; round <= 4; ++round) {
    StageAll({.round = round}, 0, 15);
    Plan(Keeping(MakeApply(run_, round, {{}}), {0, 77}));
    ledger_.VersionDurable(run_.run, round, {1000 + round});
    if (round > 2) {
      EXPECT_THAT(ledger_.ForgetObsolete(run_.run), ElementsAre(round - 2));
    }
  }
  EXPECT_TRUE(std::holds_alternative<PullGrant>(ledger_.Pull(PullOf(run_, 0, 0, 15))));
  EXPECT_TRUE(std::holds_alternative<NoSuchVersion>(ledger_.Pull(PullOf(run_, 1, 0, 15))));
  EXPECT_EQ(ledger_.StoredElements(run_.run), 3 * 15);
  StageAll({.round = 5}, 0, 15);
  Plan(MakeApply(run_, 5, {{}}));
  ledger_.VersionDurable(run_.run, 5, {1005});
  EXPECT_THAT(ledger_.ForgetObsolete(run_.run), ElementsAre(0u, 3u));
}

TEST_F(LedgerTest, CopyIsARoundWithoutContributions) {
  CommitRoundOne();
  StageAll({.round = 2}, 0, 15);
  EXPECT_THAT(WhyNot(CopyOf(run_, 7, 2)), HasSubstr("version is not stored here"));
  EXPECT_THAT(WhyNot(CopyOf(run_, 0, 3)), HasSubstr("cannot follow version 1"));
  v1::Apply both = MakeApply(run_, 2, {{}});
  both.set_restores(0);
  EXPECT_THAT(WhyNot(both), HasSubstr("has participants"));
  EXPECT_EQ(Plan(CopyOf(run_, 0, 2)).restored.digest, 1000u);
  // The round is closed for all that the groups have trained since.
  EXPECT_EQ(RefusalIn(ledger_.Stage(Header(run_, {.round = 2, .group = 1}, 0, 15, kChunk))),
            v1::REFUSAL_CLOSED_ROUND);
  EXPECT_EQ(ledger_.VersionDurable(run_.run, 2, {1000}).size(), 1u);
  EXPECT_EQ(Get<AlreadyApplied>(ledger_.BeginApply(CopyOf(run_, 0, 2))).stats.digest, 1000u);
  // Another coordinator has not rolled the run back.
  EXPECT_THAT(WhyNot(MakeApply(run_, 2, {{}})), HasSubstr("was made of a copy of version 0"));
  EXPECT_THAT(WhyNot(CopyOf(run_, 1, 2)), HasSubstr("the order names a copy of version 1"));
}

TEST_F(ShardHostTest, KeptVersionSurvivesRestarts) {
  const uint64_t initial = Open().digest();
  for (uint32_t round = 1; round <= 4; ++round) {
    ASSERT_TRUE(Stage({.round = round}, Values(round, 15)).ok());
    Apply(Keeping(WithMomentum(MakeApply(run_, round, {{}})), {0, 1}));
    if (round == 3) Restart();
  }
  EXPECT_THAT(Files(RunPath("")), Contains("outer-1"));
  EXPECT_THAT(Files(RunPath("")), Not(Contains("version-2")));
  Restart();
  const v1::RunOpened opened = Open();
  EXPECT_THAT(NumbersOf(opened), ElementsAre(0u, 1u, 3u));
  EXPECT_EQ(opened.kept(0).digest(), initial);
  EXPECT_EQ(PullAll(1).size(), 15u);
}

TEST_F(ShardHostTest, CopyHasTheValuesAndStatesOfItsVersion) {
  Open();
  std::vector<v1::Applied> applied(1);
  for (uint32_t round = 1; round <= 3; ++round) {
    ASSERT_TRUE(Stage({.round = round}, Values(round, 15)).ok());
    applied.push_back(Apply(Keeping(WithMomentum(MakeApply(run_, round, {{}})), {1})));
  }
  ASSERT_TRUE(Stage({.round = 4}, Values(4, 15)).ok());
  const v1::Apply order = CopyOf(run_, 1, 4);
  EXPECT_EQ(Apply(order).digest(), applied[1].digest());
  EXPECT_TRUE(SameBits(PullAll(4), PullAll(3)) == false);
  Restart();
  EXPECT_EQ(Apply(order).digest(), applied[1].digest()) << "the order is repeated";
  EXPECT_EQ(Open().version(), 4u);
  // The next round is the one that followed version 1, with the momentum of that time.
  EXPECT_EQ(RefusalOf(Stage({.round = 4}, Values(2, 15))), v1::REFUSAL_CLOSED_ROUND);
  ASSERT_TRUE(Stage({.round = 5}, Values(2, 15)).ok());
  EXPECT_EQ(Apply(WithMomentum(MakeApply(run_, 5, {{}}))).digest(), applied[2].digest());
}

TEST_F(ShardHostTest, DamagedVersionIsNotCopied) {
  Open();
  for (uint32_t round = 1; round <= 3; ++round) {
    ASSERT_TRUE(Stage({.round = round}, Values(round, 15)).ok());
    Apply(Keeping(MakeApply(run_, round, {{}}), {1}));
  }
  std::string bytes = ReadAll(RunPath("version-1"));
  bytes.back() ^= 1;
  WriteAll(RunPath("version-1"), bytes);
  EXPECT_THAT(host_->Apply(CopyOf(run_, 1, 4)),
              IsError(absl::StatusCode::kUnavailable, "version-1"));
  EXPECT_THAT(Files(RunPath("")), Not(Contains("version-4")));
  Restart();
  const v1::RunOpened opened = Open();
  EXPECT_EQ(opened.version(), 3u);
  EXPECT_THAT(NumbersOf(opened), ElementsAre(2u));
}

TEST_F(CodedRoundsTest, CopyIsReplayed) {
  const auto round = [&](uint32_t number, uint64_t salt) {
    EXPECT_TRUE(Stage({.round = number}, FrameOf(Values(salt, size()))).ok());
    const auto applied = host_->Apply(Keeping(Order(number, {{}}), {1}));
    EXPECT_TRUE(applied.ok()) << applied.status();
    return applied.value_or(v1::Applied()).digest();
  };
  const uint64_t first = round(1, 1);
  const uint64_t second = round(2, 2);
  round(3, 3);
  const auto copied = host_->Apply(CopyOf(run_, 1, 4));
  ASSERT_TRUE(copied.ok()) << copied.status();
  EXPECT_EQ(copied->digest(), first);
  EXPECT_FALSE(Pull(4, {0, size()}, 0).ok()) << "it has no frame";
  // Momentum and residual are those of version 1 as well.
  EXPECT_EQ(round(5, 2), second);
  const auto replayed = Replay();
  ASSERT_TRUE(replayed.ok()) << replayed.status();
  EXPECT_EQ(replayed->version, 5u);
  EXPECT_EQ(replayed->digest, second);
}

}  // namespace
}  // namespace cadre::testing
