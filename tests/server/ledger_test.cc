// How the ledger opens runs and accepts contributions.
#include "server/ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/validate.h"
#include "server/client/refusal.h"
#include "server/client/shard_span.h"
#include "tests/server/ledger_fixture.h"

namespace cadre::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// The headers of a generation stay in memory until its round is applied.
TEST_F(LedgerTest, RangesOfAGenerationAreLimited) {
  constexpr int kRanges = 1 << 16;
  run_ = {.in = 1 << 12, .out = 1 << 12, .ranks = 80, .run = "run-2"};
  EXPECT_TRUE(Open(run_).make_version_zero);
  ledger_.VersionDurable(run_.run, 0, {1000});
  v1::Refusal refusal = v1::REFUSAL_UNSPECIFIED;
  uint32_t rank = 0;
  for (; refusal == v1::REFUSAL_UNSPECIFIED && rank < 80; ++rank) {
    v1::ContributionHeader header = Header(run_, {.rank = rank}, 0, 1, kChunk);
    header.clear_ranges();
    for (int i = 0; i < kRanges; ++i) {
      v1::Range& range = *header.add_ranges();
      range.set_begin((uint64_t{rank} * kRanges + i) * 2);
      range.set_end(range.begin() + 1);
    }
    refusal = RefusalIn(ledger_.Stage(header));
  }
  EXPECT_EQ(refusal, v1::REFUSAL_OVERSIZED);
  EXPECT_EQ(rank, 65u) << "64 ranks have 2^22 ranges";
}

TEST_F(LedgerTest, StageApplyAndCommit) {
  const StageGrant grant = Grant(Header(run_, {}, 0, 15, kChunk));
  EXPECT_TRUE(grant.fresh);
  EXPECT_EQ(grant.next_chunk, 0u);
  EXPECT_EQ(grant.chunks, 4u);
  EXPECT_EQ(grant.elements, 15);
  Chunks(grant, 4);
  EXPECT_TRUE(ledger_.ContributionDurable(grant.key, grant.attempt));

  const ApplyPlan plan = Plan(MakeApply(run_, 1, {{}}));
  EXPECT_EQ(plan.span, (Interval{0, 15}));
  ASSERT_EQ(plan.groups.size(), 1u);
  EXPECT_EQ(plan.groups[0].weight, 1.0F);
  EXPECT_THAT(ledger_.VersionDurable(run_.run, 1, {77}), ElementsAre(grant.key));
  ASSERT_EQ(ledger_.States().size(), 1u);
  EXPECT_EQ(ledger_.States()[0].version(), 1u);
  EXPECT_EQ(ledger_.States()[0].digest(), 77u);
}

TEST_F(LedgerTest, OpenRunIsIdempotent) {
  CommitRoundOne();
  EXPECT_FALSE(Open(run_).make_version_zero);
  EXPECT_EQ(ledger_.States()[0].version(), 1u);
}

TEST_F(LedgerTest, OtherTermsAfterFirstRound) {
  CommitRoundOne();
  SmallRun other = run_;
  other.shards = 2;
  EXPECT_EQ(RefusalIn(ledger_.OpenRun(Terms(other))), v1::REFUSAL_MALFORMED);
  EXPECT_EQ(ledger_.States()[0].version(), 1u);
}

TEST_F(LedgerTest, ReassignmentBeforeFirstRound) {
  SmallRun other = run_;
  other.shards = 2;
  other.shard = 1;
  const Opened opened = Open(other);
  EXPECT_TRUE(opened.make_version_zero);
  EXPECT_EQ(opened.span, (Interval{7, 15}));
}

TEST_F(LedgerTest, OtherLineageReplacesRun) {
  CommitRoundOne();
  SmallRun other = run_;
  other.lineage = "lineage-b";
  const Opened opened = Open(other);
  EXPECT_EQ(opened.replaces_lineage, "lineage-a");
  EXPECT_TRUE(opened.make_version_zero);
  EXPECT_EQ(RefusalIn(ledger_.Stage(Header(run_, {}, 0, 15, kChunk))), v1::REFUSAL_UNKNOWN_RUN);
  ledger_.VersionDurable(run_.run, 0, {5});
  EXPECT_EQ(RefusalIn(ledger_.Stage(Header(run_, {}, 0, 15, kChunk))), v1::REFUSAL_WRONG_LINEAGE);
}

TEST_F(LedgerTest, InvalidTermsAreRefused) {
  SmallRun other;
  other.run = "run-2";
  other.shard = 1;
  EXPECT_EQ(RefusalIn(ledger_.OpenRun(Terms(other))), v1::REFUSAL_MALFORMED);
  RunTerms empty = Terms(run_);
  empty.run = "run-3";
  empty.tensor_begin = {0};
  EXPECT_EQ(RefusalIn(ledger_.OpenRun(empty)), v1::REFUSAL_MALFORMED);
  RunTerms divided = Terms(run_);
  divided.run = "run-4";
  divided.shards = ~0u;
  EXPECT_EQ(RefusalIn(ledger_.OpenRun(divided)), v1::REFUSAL_MALFORMED) << "too many shards";
}

TEST_F(LedgerTest, ServesNothingBeforeVersionZero) {
  SmallRun other;
  other.run = "run-2";
  ledger_.OpenRun(Terms(other));
  EXPECT_EQ(RefusalIn(ledger_.Stage(Header(other, {}, 0, 15, kChunk))), v1::REFUSAL_UNKNOWN_RUN);
  EXPECT_EQ(RefusalIn(ledger_.Pull(PullOf(other, 0, 0, 15))), v1::REFUSAL_UNKNOWN_RUN);
  EXPECT_EQ(ledger_.States().size(), 1u);
}

// --- Headers

struct BadHeader {
  const char* what;
  v1::Refusal refusal;
  void (*spoil)(v1::ContributionHeader&);
};

class LedgerBadHeaderTest : public LedgerTest, public ::testing::WithParamInterface<BadHeader> {};

TEST_P(LedgerBadHeaderTest, IsRefusedByName) {
  v1::ContributionHeader header = Header(run_, {}, 0, 15, kChunk);
  GetParam().spoil(header);
  EXPECT_EQ(RefusalIn(ledger_.Stage(header)), GetParam().refusal);
  // The refused header has changed nothing.
  EXPECT_TRUE(Grant(Header(run_, {}, 0, 15, kChunk)).fresh);
}

INSTANTIATE_TEST_SUITE_P(
    All, LedgerBadHeaderTest,
    ::testing::Values(
        BadHeader{"Run", v1::REFUSAL_UNKNOWN_RUN, [](auto& h) { h.set_run("run-9"); }},
        BadHeader{"Lineage", v1::REFUSAL_WRONG_LINEAGE, [](auto& h) { h.set_lineage("other"); }},
        BadHeader{"Group", v1::REFUSAL_MALFORMED, [](auto& h) { h.set_group(kMaxGroups); }},
        BadHeader{"Rank", v1::REFUSAL_MALFORMED, [](auto& h) { h.set_rank(2); }},
        BadHeader{"Codec", v1::REFUSAL_MALFORMED, [](auto& h) { h.clear_codec(); }},
        BadHeader{"Tensor", v1::REFUSAL_MALFORMED,
                  [](auto& h) { h.mutable_ranges(0)->set_tensor(2); }},
        BadHeader{"PastEnd", v1::REFUSAL_MALFORMED,
                  [](auto& h) { h.mutable_ranges(1)->set_end(4); }},
        BadHeader{"FarPastEnd", v1::REFUSAL_MALFORMED,
                  [](auto& h) { h.mutable_ranges(1)->set_end(uint64_t{1} << 63); }},
        BadHeader{"LargestNumbers", v1::REFUSAL_MALFORMED,
                  [](auto& h) {
                    h.mutable_ranges(1)->set_begin(~uint64_t{0});
                    h.mutable_ranges(1)->set_end(~uint64_t{0});
                  }},
        BadHeader{"Inverted", v1::REFUSAL_MALFORMED,
                  [](auto& h) { h.mutable_ranges(0)->set_begin(13); }},
        BadHeader{"Overlap", v1::REFUSAL_MALFORMED,
                  [](auto& h) {
                    h.add_ranges()->set_begin(3);
                    h.mutable_ranges(2)->set_end(4);
                  }},
        BadHeader{"NoChunkSize", v1::REFUSAL_MALFORMED, [](auto& h) { h.set_chunk_elements(0); }},
        BadHeader{"HugeChunks", v1::REFUSAL_OVERSIZED,
                  [](auto& h) { h.set_chunk_elements((1 << 20) + 1); }},
        BadHeader{"TooManyRanges", v1::REFUSAL_OVERSIZED,
                  [](auto& h) {
                    for (int i = 0; i < (1 << 16); ++i) h.add_ranges();
                  }},
        BadHeader{"RoundZero", v1::REFUSAL_CLOSED_ROUND,
                  [](auto& h) {
                    h.set_round(0);
                    h.set_base_version(0);
                  }},
        // The shard has lost version 1, and will have it again.
        BadHeader{"Ahead", v1::REFUSAL_UNSPECIFIED,
                  [](auto& h) {
                    h.set_round(2);
                    h.set_base_version(1);
                  }},
        BadHeader{"AheadOfItsBase", v1::REFUSAL_WRONG_BASE, [](auto& h) { h.set_round(2); }},
        BadHeader{"OtherBase", v1::REFUSAL_WRONG_BASE, [](auto& h) { h.set_base_version(1); }}),
    [](const auto& info) { return info.param.what; });

TEST_F(LedgerTest, RangesOutsideShard) {
  SmallRun half = run_;
  half.run = "run-2";
  half.shards = 2;
  half.shard = 1;
  ledger_.OpenRun(Terms(half));
  ledger_.VersionDurable(half.run, 0, {1});
  EXPECT_EQ(RefusalIn(ledger_.Stage(Header(half, {}, 6, 15, kChunk))), v1::REFUSAL_MALFORMED);
  EXPECT_EQ(RefusalIn(ledger_.Pull(PullOf(half, 0, 6, 15))), v1::REFUSAL_MALFORMED);
  EXPECT_EQ(Grant(Header(half, {}, 7, 15, kChunk)).elements, 8);
}

// --- Chunks

TEST_F(LedgerTest, ChunkOrderAndSize) {
  const StageGrant grant = Grant(Header(run_, {}, 0, 15, kChunk));
  const auto refusal = [&](uint32_t index, int64_t bytes, bool crc_fits) {
    return RefusalOfChunk(grant, index, bytes, crc_fits);
  };
  EXPECT_EQ(refusal(1, 16, true), v1::REFUSAL_MALFORMED);
  EXPECT_EQ(refusal(0, 12, true), v1::REFUSAL_MALFORMED);
  EXPECT_EQ(refusal(0, 20, true), v1::REFUSAL_OVERSIZED);
  EXPECT_EQ(refusal(0, 16, false), v1::REFUSAL_WRONG_CRC);
  EXPECT_EQ(refusal(0, 16, true), v1::REFUSAL_UNSPECIFIED);
  Chunks(grant, 3);
  // The last chunk is shorter.
  EXPECT_EQ(refusal(3, 16, true), v1::REFUSAL_MALFORMED);
  EXPECT_EQ(refusal(3, 12, true), v1::REFUSAL_UNSPECIFIED);
  EXPECT_FALSE(ledger_.ContributionDurable(grant.key, grant.attempt));
}

TEST_F(LedgerTest, NewestStreamResumes) {
  const v1::ContributionHeader header = Header(run_, {}, 0, 15, kChunk);
  const StageGrant first = Grant(header);
  Chunks(first, 2);
  const StageGrant second = Grant(header);
  EXPECT_FALSE(second.fresh);
  EXPECT_EQ(second.next_chunk, 2u);
  EXPECT_EQ(RefusalOfChunk(first, 2), v1::REFUSAL_OUT_OF_ORDER);
  EXPECT_FALSE(ledger_.ChunkStored(first.key, first.attempt));
  Chunks(second, 4);
  EXPECT_FALSE(ledger_.ContributionDurable(first.key, first.attempt));
  EXPECT_TRUE(ledger_.ContributionDurable(second.key, second.attempt));
}

TEST_F(LedgerTest, StagingAgainIsHarmless) {
  StageAll({}, 0, 15);
  const StageGrant again = Grant(Header(run_, {}, 0, 15, kChunk));
  EXPECT_FALSE(again.fresh);
  EXPECT_EQ(again.next_chunk, again.chunks);
  EXPECT_EQ(Plan(MakeApply(run_, 1, {{}})).groups.size(), 1u);
}

TEST_F(LedgerTest, OnlyPartialContributionMayChange) {
  const StageGrant partial = Grant(Header(run_, {}, 0, 15, kChunk));
  Chunks(partial, 2);
  const StageGrant other = Grant(Header(run_, {.samples = 50}, 0, 15, kChunk));
  EXPECT_TRUE(other.fresh);
  EXPECT_EQ(other.next_chunk, 0u);
  Chunks(other, 4);
  EXPECT_TRUE(ledger_.ContributionDurable(other.key, other.attempt));
  EXPECT_EQ(RefusalIn(ledger_.Stage(Header(run_, {}, 0, 15, kChunk))), v1::REFUSAL_MALFORMED);
}

// --- Generations

TEST_F(LedgerTest, StaleGenerationIsRefused) {
  RunTerms terms = Terms(run_);
  terms.generations[0] = {5, SecretKey()};
  ledger_.OpenRun(terms);
  EXPECT_EQ(RefusalIn(ledger_.Stage(Header(run_, {.generation = 4}, 0, 15, kChunk))),
            v1::REFUSAL_STALE_GENERATION);
  Grant(Header(run_, {.generation = 5}, 0, 15, kChunk));
  Grant(Header(run_, {.group = 1, .generation = 1}, 0, 15, kChunk));
  // A delayed older OpenRun does not accept older generations again.
  ledger_.OpenRun(Terms(run_));
  EXPECT_EQ(RefusalIn(ledger_.Stage(Header(run_, {.generation = 4}, 0, 15, kChunk))),
            v1::REFUSAL_STALE_GENERATION);
}

// The sender of a header does not determine which generation lives: otherwise a forged header would
// end the honest one.
TEST_F(LedgerTest, HeaderDoesNotFence) {
  const StageGrant honest = Grant(Header(run_, {}, 0, 15, kChunk));
  Chunks(honest, 1);
  for (const Place& forged : {Place{.generation = 2}, Place{.generation = 0xffffffff},
                              Place{.group = 9}, Place{.group = 9, .generation = 0}}) {
    const auto decision = ledger_.Stage(Header(run_, forged, 0, 15, kChunk));
    EXPECT_THAT(Get<Refused>(decision).reason, HasSubstr("is not known here yet"));
    EXPECT_EQ(RefusalIn(decision), v1::REFUSAL_UNSPECIFIED)
        << "not permanent: the coordinator's message may be on its way";
  }
  EXPECT_EQ(Grant(Header(run_, {}, 0, 15, kChunk)).next_chunk, 1u);
}

TEST_F(LedgerTest, KeyIsThatOfTheNewestGeneration) {
  SecretKey key;
  key.fill(7);
  const auto is_known = [&](uint32_t generation) {
    const Decision<SecretKey> decision = ledger_.KeyOf(run_.run, 0, generation);
    const auto* found = std::get_if<SecretKey>(&decision);
    return found != nullptr && *found == key;
  };
  EXPECT_EQ(RefusalIn(ledger_.KeyOf("run-9", 0, 1)), v1::REFUSAL_UNKNOWN_RUN);
  // The group waits for a generation of at least this number.
  ledger_.Fence(run_.run, 0, {5, std::nullopt});
  EXPECT_EQ(RefusalIn(ledger_.KeyOf(run_.run, 0, 1)), v1::REFUSAL_STALE_GENERATION);
  EXPECT_FALSE(is_known(5));
  EXPECT_FALSE(is_known(6));
  ledger_.Fence(run_.run, 0, {5, key});
  EXPECT_TRUE(is_known(5));
  EXPECT_FALSE(is_known(6));
  // A repeated or older message changes nothing.
  ledger_.Fence(run_.run, 0, {5, std::nullopt});
  ledger_.Fence(run_.run, 0, {4, SecretKey()});
  ledger_.OpenRun(Terms(run_));
  EXPECT_TRUE(is_known(5));
  ledger_.Fence(run_.run, 0, {6, key});
  EXPECT_FALSE(is_known(5));
  EXPECT_TRUE(is_known(6));
}

TEST_F(LedgerTest, FenceRefusesOlderGenerations) {
  ledger_.Fence(run_.run, 0, {4, SecretKey()});
  const StageGrant old = Grant(Header(run_, {.generation = 4}, 0, 15, kChunk));
  Chunks(old, 1);
  EXPECT_THAT(ledger_.Fence(run_.run, 0, {5, std::nullopt}), ElementsAre(old.key));
  EXPECT_EQ(RefusalOfChunk(old, 1), v1::REFUSAL_STALE_GENERATION);
  EXPECT_EQ(RefusalIn(ledger_.Stage(Header(run_, {.generation = 4}, 0, 15, kChunk))),
            v1::REFUSAL_STALE_GENERATION);
  EXPECT_THAT(ledger_.Fence(run_.run, 0, {3, SecretKey()}), IsEmpty())
      << "generations only increase";
  EXPECT_EQ(RefusalIn(ledger_.Stage(Header(run_, {.generation = 4}, 0, 15, kChunk))),
            v1::REFUSAL_STALE_GENERATION);
  Grant(Header(run_, {.group = 1, .generation = 1}, 0, 15, kChunk));
  EXPECT_THAT(ledger_.Fence("run-9", 0, {5, SecretKey()}), IsEmpty());
}

TEST_F(LedgerTest, GroupsMayBeAdded) {
  EXPECT_THAT(ledger_.Fence(run_.run, 9, {5, SecretKey()}), IsEmpty());
  EXPECT_EQ(RefusalIn(ledger_.Stage(Header(run_, {.group = 9, .generation = 4}, 0, 15, kChunk))),
            v1::REFUSAL_STALE_GENERATION);
  Grant(Header(run_, {.group = 9, .generation = 5}, 0, 15, kChunk));
}

TEST_F(LedgerTest, FailedSyncLosesTheContribution) {
  const StageGrant grant = Grant(Header(run_, {}, 0, 15, kChunk));
  Chunks(grant, grant.chunks);
  EXPECT_THAT(ledger_.SyncFailed(grant.key), ElementsAre(grant.key));
  EXPECT_FALSE(ledger_.ContributionDurable(grant.key, grant.attempt));
  const StageGrant again = Grant(Header(run_, {}, 0, 15, kChunk));
  EXPECT_TRUE(again.fresh);
  Chunks(again, again.chunks);
  EXPECT_TRUE(ledger_.ContributionDurable(again.key, again.attempt));
  EXPECT_THAT(ledger_.SyncFailed(again.key), IsEmpty()) << "it is durable already";
}

TEST_F(LedgerTest, FailedSyncLosesTheChunksOfAResumedStream) {
  const StageGrant first = Grant(Header(run_, {}, 0, 15, kChunk));
  Chunks(first, first.chunks);
  const StageGrant resumed = Grant(Header(run_, {}, 0, 15, kChunk));
  EXPECT_FALSE(resumed.fresh);
  EXPECT_THAT(ledger_.SyncFailed(first.key), ElementsAre(first.key));
  EXPECT_FALSE(ledger_.ContributionDurable(resumed.key, resumed.attempt));
  EXPECT_TRUE(Grant(Header(run_, {}, 0, 15, kChunk)).fresh);
}

TEST_F(LedgerTest, FencedContributionMayBeApplied) {
  const StageGrant old = StageAll({.generation = 1}, 0, 15);
  EXPECT_THAT(ledger_.Fence(run_.run, 0, {2, SecretKey()}), IsEmpty());
  const StageGrant renewed = Grant(Header(run_, {.generation = 2}, 0, 15, kChunk));
  const ApplyPlan plan = Plan(MakeApply(run_, 1, {{.generation = 1}}));
  ASSERT_EQ(plan.groups.size(), 1u);
  EXPECT_EQ(plan.groups[0].segments[0].key, old.key);
  EXPECT_THAT(ledger_.VersionDurable(run_.run, 1, {1}), ElementsAre(old.key, renewed.key));
}

// --- Rounds

TEST_F(LedgerTest, OnlyParticipantsAreApplied) {
  const StageGrant in = StageAll({.group = 0}, 0, 15);
  const StageGrant out = StageAll({.group = 1}, 0, 15);
  const ApplyPlan plan = Plan(MakeApply(run_, 1, {{.group = 0}}));
  ASSERT_EQ(plan.groups.size(), 1u);
  for (const SourceSegment& segment : plan.groups[0].segments) EXPECT_EQ(segment.key, in.key);
  EXPECT_THAT(ledger_.VersionDurable(run_.run, 1, {1}), ElementsAre(in.key, out.key));
}

TEST_F(LedgerTest, RanksTogetherStageAtMostTheShard) {
  Grant(Header(run_, {.rank = 0}, 0, 8, kChunk));
  EXPECT_EQ(RefusalIn(ledger_.Stage(Header(run_, {.rank = 1}, 7, 15, kChunk))),
            v1::REFUSAL_MALFORMED);
  Grant(Header(run_, {.rank = 1}, 8, 15, kChunk));
  Grant(Header(run_, {.group = 1, .rank = 1}, 0, 15, kChunk));
}

TEST_F(LedgerTest, LateContributionIsRefused) {
  StageAll({.group = 0}, 0, 15);
  const StageGrant slow = Grant(Header(run_, {.group = 1}, 0, 15, kChunk));
  Plan(MakeApply(run_, 1, {{.group = 0}}));
  EXPECT_EQ(RefusalOfChunk(slow, 0), v1::REFUSAL_CLOSED_ROUND);
  EXPECT_EQ(RefusalIn(ledger_.Stage(Header(run_, {.group = 1}, 0, 15, kChunk))),
            v1::REFUSAL_CLOSED_ROUND);
  ledger_.VersionDurable(run_.run, 1, {1});
  EXPECT_EQ(RefusalIn(ledger_.Stage(Header(run_, {.group = 1}, 0, 15, kChunk))),
            v1::REFUSAL_CLOSED_ROUND);
  EXPECT_FALSE(ledger_.ContributionDurable(slow.key, slow.attempt));
}

// The order names the generation before, whose contribution is complete.
TEST_F(LedgerTest, NextGenerationOfAParticipantIsTooLate) {
  StageAll({.generation = 1}, 0, 15);
  ledger_.Fence(run_.run, 0, {2, SecretKey()});
  Plan(MakeApply(run_, 1, {{.generation = 1}}));
  const auto decision = ledger_.Stage(Header(run_, {.generation = 2}, 0, 15, kChunk));
  EXPECT_EQ(RefusalIn(decision), v1::REFUSAL_CLOSED_ROUND);
  EXPECT_THAT(std::get<Refused>(decision).reason, HasSubstr("its participants are decided"));
}

TEST_F(LedgerTest, DifferentRankCounts) {
  StageAll({.group = 0, .rank = 0}, 0, 15);
  StageAll({.group = 1, .rank = 1}, 6, 15);
  StageAll({.group = 1, .rank = 0}, 0, 6);
  const ApplyPlan plan = Plan(MakeApply(
      run_, 1,
      {{.group = 0, .ranks = 1, .samples = 100}, {.group = 1, .ranks = 2, .samples = 300}}));
  ASSERT_EQ(plan.groups.size(), 2u);
  EXPECT_EQ(plan.groups[0].weight, 0.25F);
  EXPECT_EQ(plan.groups[1].weight, 0.75F);
  int64_t at = 0;
  for (const SourceSegment& segment : plan.groups[1].segments) {
    EXPECT_EQ(segment.span.begin, at);
    at = segment.span.end;
  }
  EXPECT_EQ(at, 15);
}

TEST_F(LedgerTest, SegmentOffsets) {
  // Ranges need not be in order of positions: here the bias precedes the weight.
  v1::ContributionHeader header = Header(run_, {}, 0, 15, kChunk);
  header.mutable_ranges()->SwapElements(0, 1);
  const StageGrant grant = Grant(header);
  Chunks(grant, 4);
  ledger_.ContributionDurable(grant.key, grant.attempt);
  const ApplyPlan plan = Plan(MakeApply(run_, 1, {{}}));
  ASSERT_EQ(plan.groups[0].segments.size(), 2u);
  EXPECT_EQ(plan.groups[0].segments[0].span, (Interval{0, 12}));
  EXPECT_EQ(plan.groups[0].segments[0].offset, 3);
  EXPECT_EQ(plan.groups[0].segments[1].span, (Interval{12, 15}));
  EXPECT_EQ(plan.groups[0].segments[1].offset, 0);
}

// --- After a restart

TEST(ShardSpanTest, SpansCoverTheModelEvenly) {
  for (const int64_t parameters : {0LL, 1LL, 7LL, 15LL, 1LL << 61}) {
    for (const int64_t shards : {1, 2, 3, 7, 1000}) {
      int64_t at = 0;
      for (int64_t shard = 0; shard < shards; ++shard) {
        const Interval span = ShardSpan(parameters, shard, shards);
        ASSERT_EQ(span.begin, at);
        ASSERT_LE(span.size(), parameters / shards + 1);
        at = span.end;
      }
      EXPECT_EQ(at, parameters);
    }
  }
}

TEST(RefusalTest, ShardsThatAreNotReadyAreTriedAgain) {
  EXPECT_EQ(RefusalStatus(v1::REFUSAL_UNSPECIFIED, "why"), absl::UnavailableError("busy: why"));
  EXPECT_TRUE(absl::IsUnavailable(RefusalStatus(v1::REFUSAL_UNKNOWN_RUN, "why")));
}

TEST(RefusalTest, NameIsParsedBack) {
  for (int number = 1; number <= v1::Refusal_MAX; ++number) {
    const auto refusal = static_cast<v1::Refusal>(number);
    const absl::Status status = RefusalStatus(refusal, "why");
    EXPECT_FALSE(status.ok());
    EXPECT_NE(status.code(), absl::StatusCode::kInternal) << status;
    EXPECT_EQ(RefusalOf(status), refusal);
  }
  EXPECT_EQ(RefusalStatus(v1::REFUSAL_WRONG_CRC, "chunk 3").message(), "wrong_crc: chunk 3");
  EXPECT_EQ(RefusalOf(absl::OkStatus()), v1::REFUSAL_UNSPECIFIED);
  EXPECT_EQ(RefusalOf(absl::NotFoundError("no: such thing")), v1::REFUSAL_UNSPECIFIED);
}

}  // namespace
}  // namespace cadre::testing
