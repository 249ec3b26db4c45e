#include "coordinator/run/round.h"

#include <gtest/gtest.h>

#include <optional>

namespace cadre {
namespace {

const absl::Time kRoundStart = absl::FromUnixSeconds(100);
constexpr absl::Duration kGrace = absl::Seconds(10);

v1::Contributed From(uint32_t group, uint32_t round, uint64_t samples, uint32_t step,
                     std::optional<float> loss) {
  v1::Contributed contributed;
  contributed.mutable_place()->set_group(group);
  contributed.mutable_place()->set_generation(group + 10);
  contributed.set_round(round);
  contributed.set_base_version(round - 1);
  contributed.set_samples(samples);
  contributed.set_step(step);
  if (loss) contributed.set_loss(*loss);
  return contributed;
}

TEST(RoundTest, ClosesWithAllGroups) {
  Round round({.quorum = 0, .min_grace = kGrace});
  round.Open(1);
  EXPECT_FALSE(round.MayClose(0, {}, kRoundStart)) << "there are no contributions";
  EXPECT_TRUE(round.Add(From(0, 1, 10, 5, 1), 2, kRoundStart));
  EXPECT_FALSE(round.Add(From(0, 1, 10, 5, 1), 2, kRoundStart)) << "group 0 contributes twice";
  EXPECT_FALSE(round.MayClose(2, {}, kRoundStart + absl::Hours(9)))
      << "group 1 is live and has not contributed";
  EXPECT_EQ(round.ClosesAt(2, {}), absl::InfiniteFuture());
  EXPECT_TRUE(round.MayClose(1, {}, kRoundStart)) << "group 1 is not live";
  EXPECT_TRUE(round.Add(From(1, 1, 10, 5, 1), 2, kRoundStart));
  EXPECT_TRUE(round.MayClose(2, {}, kRoundStart));
}

// A round that is made again without some of its participants.
TEST(RoundTest, SumsAreThoseOfTheClaimsAlone) {
  v1::CommitRecord commit;
  *commit.add_claims() = From(0, 1, 10, 5, 1);
  commit.mutable_claims(0)->mutable_metrics()->set_tokens(100);
  SumUp(commit);
  EXPECT_EQ(commit.metrics().tokens(), 100U);
  *commit.mutable_claims(0) = From(1, 1, 20, 4, std::nullopt);
  SumUp(commit);
  EXPECT_EQ(commit.step(), 4U);
  EXPECT_EQ(commit.samples(), 20U);
  EXPECT_FALSE(commit.has_loss());
  EXPECT_FALSE(commit.has_metrics());
}

TEST(RoundTest, QuorumWaitsForGrace) {
  Round round({.quorum = 2, .min_grace = kGrace});
  round.Open(1);
  round.Add(From(0, 1, 10, 5, 1), 1, kRoundStart);
  EXPECT_EQ(round.ClosesAt(3, {}), absl::InfiniteFuture());
  round.Add(From(2, 1, 10, 5, 1), 1, kRoundStart + absl::Seconds(3));
  EXPECT_EQ(round.ClosesAt(3, {}), kRoundStart + absl::Seconds(13));
  EXPECT_FALSE(round.MayClose(3, {}, kRoundStart + absl::Seconds(12)));
  EXPECT_TRUE(round.MayClose(3, {}, kRoundStart + absl::Seconds(13)));
  round.End(2);
  EXPECT_EQ(round.ClosesAt(2, {}), absl::InfiniteFuture()) << "there is no quorum without group 2";
}

TEST(RoundTest, QuorumIsThatOfTheFirstArrivals) {
  Round round({.quorum = 1, .min_grace = kGrace});
  round.Open(1);
  round.Add(From(1, 1, 10, 5, 1), 1, kRoundStart);
  round.Add(From(0, 1, 10, 5, 1), 1, kRoundStart + absl::Seconds(3));
  EXPECT_EQ(round.ClosesAt(3, {}), kRoundStart + kGrace);
}

// One group cannot choose the rate of an outer optimizer.
TEST(RoundTest, RateIsTheMedianAtTheLargestStep) {
  Round round({.quorum = 0, .min_grace = kGrace});
  round.Open(1);
  const float rates[] = {7, 0.25F, 0.5F, 1e9F};
  for (uint32_t group = 0; group < 4; ++group) {
    v1::Contributed contributed = From(group, 1, 10, group > 0 ? 5 : 4, 1);
    contributed.set_rate(rates[group]);
    round.Add(contributed, 1, kRoundStart);
  }
  const v1::CommitRecord commit = round.Close("run-1", kRoundStart);
  EXPECT_EQ(commit.step(), 5U);
  EXPECT_EQ(commit.outer().rate(), 0.5F);
  EXPECT_EQ(commit.rate(), 0.5F);
}

TEST(RoundTest, MinGroups) {
  Round round({.quorum = 1, .min_groups = 2, .min_grace = kGrace});
  round.Open(1);
  round.Add(From(0, 1, 10, 5, 1), 1, kRoundStart);
  EXPECT_EQ(round.ClosesAt(1, {}), absl::InfiniteFuture()) << "it would be alone";
  round.Add(From(2, 1, 10, 5, 1), 1, kRoundStart);
  EXPECT_TRUE(round.MayClose(2, {}, kRoundStart));
}

TEST(RoundTest, GroupWithoutStreamIsAwaitedShortly) {
  Round round({.min_grace = kGrace});
  round.Open(1);
  const absl::Time until = kRoundStart + absl::Seconds(2);
  const Round::Away away = {{1, until}};
  EXPECT_EQ(round.ClosesAt(2, away), absl::InfiniteFuture()) << "there are no contributions";
  round.Add(From(0, 1, 10, 5, 1), 1, kRoundStart);
  EXPECT_EQ(round.ClosesAt(2, away), until);
  EXPECT_EQ(round.ClosesAt(3, away), absl::InfiniteFuture()) << "group 2 is awaited";
  round.Add(From(2, 1, 10, 5, 1), 1, kRoundStart);
  round.Add(From(1, 1, 10, 5, 1), 1, kRoundStart);
  EXPECT_EQ(round.ClosesAt(3, away), absl::InfinitePast()) << "it contributed before it went away";
}

TEST(RoundTest, ContributionOfAGroupThatLeavesRemains) {
  Round round({.min_groups = 2, .min_grace = kGrace});
  round.Open(1);
  v1::Contributed leaves = From(1, 1, 4, 2, 1);
  leaves.set_leaves(true);
  round.Add(leaves, 2, kRoundStart);
  EXPECT_FALSE(round.HasLeft(1)) << "its generation goes on";
  round.End(1);
  EXPECT_TRUE(round.Has(1));
  EXPECT_TRUE(round.HasLeft(1));
  EXPECT_FALSE(round.Add(From(1, 1, 10, 5, 1), 1, kRoundStart)) << "a later generation";
  EXPECT_EQ(round.left(), 1U);
  // One of two live groups has contributed.
  round.Add(From(0, 1, 10, 5, 1), 1, kRoundStart);
  EXPECT_EQ(round.ClosesAt(2, {}), absl::InfiniteFuture());
  round.Add(From(2, 1, 10, 5, 1), 1, kRoundStart);
  EXPECT_TRUE(round.MayClose(2, {}, kRoundStart));
  const v1::CommitRecord commit = round.Close("run-1", kRoundStart);
  ASSERT_EQ(commit.participants_size(), 3);
  EXPECT_EQ(commit.participants(1).ranks(), 2U);
  EXPECT_EQ(commit.samples(), 24U);
  EXPECT_EQ(round.RemoveLeft(), 1U);
  EXPECT_EQ(round.arrived(), 2U);
}

TEST(RoundTest, CommitIsInGroupOrder) {
  Round round({.quorum = 0, .min_grace = kGrace});
  round.Open(4);
  round.Add(From(2, 4, 300, 50, 1.0F), 3, kRoundStart);
  round.Add(From(0, 4, 100, 60, 3.0F), 2, kRoundStart);
  const v1::CommitRecord commit = round.Close("run-1", kRoundStart);
  EXPECT_EQ(commit.run(), "run-1");
  EXPECT_EQ(commit.round(), 4u);
  ASSERT_EQ(commit.participants_size(), 2);
  EXPECT_EQ(commit.participants(0).group(), 0u);
  EXPECT_EQ(commit.participants(0).ranks(), 2u);
  EXPECT_EQ(commit.participants(0).generation(), 10u);
  EXPECT_EQ(commit.participants(1).group(), 2u);
  EXPECT_EQ(commit.participants(1).samples(), 300u);
  EXPECT_EQ(commit.samples(), 400u);
  EXPECT_EQ(commit.step(), 60u);
  EXPECT_FLOAT_EQ(commit.loss(), 1.5F);
  EXPECT_FALSE(commit.committed());
}

TEST(RoundTest, GroupsWithoutALossDoNotCountInTheMean) {
  Round round({.quorum = 0, .min_grace = kGrace});
  round.Open(1);
  round.Add(From(0, 1, 300, 5, std::nullopt), 1, kRoundStart);
  round.Add(From(1, 1, 100, 5, 1.5F), 1, kRoundStart);
  v1::CommitRecord commit = round.Close("run-1", kRoundStart);
  EXPECT_FLOAT_EQ(commit.loss(), 1.5F);
  round.FillTimes(kRoundStart, commit);
  EXPECT_FALSE(commit.times(0).has_loss());
  EXPECT_EQ(commit.times(1).loss(), 1.5F);
  EXPECT_EQ(commit.times(1).generation(), 11U);
  round.Open(2);
  round.Add(From(0, 2, 300, 10, std::nullopt), 1, kRoundStart);
  EXPECT_FALSE(round.Close("run-1", kRoundStart).has_loss());
}

TEST(RoundTest, LossOfOneSample) {
  Round round({.quorum = 0, .min_grace = kGrace});
  round.Open(1);
  round.Add(From(0, 1, 1, 5, 1.5F), 1, kRoundStart);
  EXPECT_EQ(round.Close("run-1", kRoundStart).loss(), 1.5F);
}

TEST(RoundTest, ALossOfZeroIsALoss) {
  Round round({.quorum = 0, .min_grace = kGrace});
  round.Open(1);
  round.Add(From(0, 1, 100, 5, 0), 1, kRoundStart);
  round.Add(From(1, 1, 100, 5, 1.5F), 1, kRoundStart);
  const v1::CommitRecord commit = round.Close("run-1", kRoundStart);
  EXPECT_TRUE(commit.has_loss());
  EXPECT_FLOAT_EQ(commit.loss(), 0.75F);
}

TEST(RoundTest, MetricsAreMeansBySamples) {
  Round round({.quorum = 0, .min_grace = kGrace});
  round.Open(1);
  v1::Contributed first = From(0, 1, 300, 5, 1);
  first.mutable_metrics()->set_tokens(3000);
  (*first.mutable_metrics()->mutable_mean())["gradient_norm"] = 1;
  v1::Contributed second = From(1, 1, 100, 5, 1);
  second.mutable_metrics()->set_tokens(1000);
  (*second.mutable_metrics()->mutable_mean())["gradient_norm"] = 5;
  round.Add(first, 1, kRoundStart);
  round.Add(second, 1, kRoundStart);
  const v1::CommitRecord commit = round.Close("run-1", kRoundStart);
  EXPECT_EQ(commit.metrics().tokens(), 4000U);
  EXPECT_EQ(commit.metrics().mean().at("gradient_norm"), 2);
  round.Open(2);
  round.Add(From(0, 2, 300, 5, 1), 1, kRoundStart);
  EXPECT_FALSE(round.Close("run-1", kRoundStart).has_metrics()) << "none were reported";
}

TEST(RoundTest, GraceFollowsArrivals) {
  Round round({.quorum = 1, .min_grace = kGrace});
  EXPECT_EQ(round.Grace(), kGrace);
  for (uint32_t r = 1; r <= 20; ++r) {
    round.Open(r);
    round.Add(From(0, r, 1, r, 0), 1, kRoundStart);
    round.Add(From(1, r, 1, r, 0), 1, kRoundStart + absl::Seconds(8));
    round.Close("run-1", kRoundStart + absl::Seconds(8));
  }
  EXPECT_GT(round.Grace(), absl::Seconds(30));
  EXPECT_LE(round.Grace(), absl::Seconds(32));
  const absl::Duration grace = round.Grace();
  round.Open(21);
  round.Add(From(0, 21, 1, 21, 0), 1, kRoundStart);
  round.Close("run-1", kRoundStart);
  EXPECT_EQ(round.Grace(), grace) << "one contribution is not late";
}

TEST(RoundTest, LateArrivalsWidenGrace) {
  Round round({.quorum = 1, .min_grace = kGrace});
  round.NoteLate(kRoundStart);
  EXPECT_EQ(round.Grace(), kGrace) << "no round has closed yet";
  round.Open(1);
  round.Add(From(0, 1, 1, 1, 0), 1, kRoundStart);
  round.Close("run-1", kRoundStart + kGrace);
  round.Open(2);
  round.NoteLate(kRoundStart + absl::Seconds(20));
  EXPECT_EQ(round.Grace(), absl::Seconds(20));
  round.NoteLate(kRoundStart + absl::Hours(5));
  EXPECT_EQ(round.Grace(), kGrace + absl::Minutes(2));
}

}  // namespace
}  // namespace cadre
