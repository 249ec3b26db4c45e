#include "server/ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/validate.h"
#include "server/client/refusal.h"
#include "server/client/shard_span.h"
#include "tests/server/testing.h"

namespace cadre::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint32_t kChunk = 4;

RunTerms Terms(const SmallRun& run) {
  RunTerms terms;
  terms.run = run.run;
  terms.lineage = run.lineage;
  terms.shard = run.shard;
  terms.shards = run.shards;
  terms.ranks = run.ranks;
  terms.tensor_begin = {0, int64_t{run.in} * run.out, run.parameters()};
  for (uint32_t group = 0; group < run.groups; ++group) terms.generations[group] = {1, SecretKey()};
  return terms;
}

// Returns the refusal in any kind of decision.
template <typename D>
v1::Refusal RefusalIn(const D& decision) {
  const auto* refused = std::get_if<Refused>(&decision);
  return refused == nullptr ? v1::REFUSAL_UNSPECIFIED : refused->refusal;
}

class LedgerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    EXPECT_TRUE(Open(run_).make_version_zero);
    EXPECT_THAT(ledger_.VersionDurable(run_.run, 0, {1000}), IsEmpty());
  }

  // The value of a decision; fails the test if it is another result.
  template <typename Value, typename D>
  static Value Get(const D& decision) {
    const auto* value = std::get_if<Value>(&decision);
    EXPECT_NE(value, nullptr);
    return value == nullptr ? Value() : *value;
  }
  Opened Open(const SmallRun& run) { return Get<Opened>(ledger_.OpenRun(Terms(run))); }
  StageGrant Grant(const v1::ContributionHeader& header) {
    return Get<StageGrant>(ledger_.Stage(header));
  }

  // Stages a whole contribution.
  StageGrant StageAll(const Place& place, int64_t begin, int64_t end) {
    const StageGrant grant = Grant(Header(run_, place, begin, end, kChunk));
    Chunks(grant, grant.chunks);
    EXPECT_TRUE(ledger_.ContributionDurable(grant.key, grant.attempt));
    return grant;
  }

  // Stores the chunks before `until`.
  void Chunks(const StageGrant& grant, uint32_t until) {
    for (uint32_t i = grant.next_chunk; i < until; ++i) {
      const int64_t elements = std::min<int64_t>(kChunk, grant.elements - i * kChunk);
      EXPECT_FALSE(ledger_.CheckChunk(grant.key, grant.attempt, i, elements * 4, true));
      EXPECT_EQ(ledger_.ChunkStored(grant.key, grant.attempt), i + 1 == grant.chunks);
    }
  }

  v1::Refusal RefusalOfChunk(const StageGrant& grant, uint32_t index, int64_t bytes = 16,
                             bool crc_fits = true) const {
    const auto refused = ledger_.CheckChunk(grant.key, grant.attempt, index, bytes, crc_fits);
    return refused ? refused->refusal : v1::REFUSAL_UNSPECIFIED;
  }

  ApplyPlan Plan(const v1::Apply& apply) { return Get<ApplyPlan>(ledger_.BeginApply(apply)); }

  std::string WhyNot(const v1::Apply& apply) {
    const ApplyDecision decision = ledger_.BeginApply(apply);
    if (const auto* incomplete = std::get_if<Incomplete>(&decision)) return incomplete->reason;
    const auto* refused = std::get_if<Refused>(&decision);
    return refused == nullptr ? "" : refused->reason;
  }

  // The groups whose contributions are not complete.
  std::vector<uint32_t> Missing(const v1::Apply& apply) {
    return Get<Incomplete>(ledger_.BeginApply(apply)).groups;
  }

  // The run's newest version is `version`, and the shard has lost it.
  Opened OpenHollow(uint32_t at, uint32_t version) {
    RunTerms terms = Terms(run_);
    terms.version = version;
    terms.hollow = at;
    return Get<Opened>(ledger_.OpenRun(terms));
  }

  // Commits version 1 with one participant.
  void CommitRoundOne() {
    StageAll({}, 0, 15);
    Plan(MakeApply(run_, 1, {{}}));
    ledger_.VersionDurable(run_.run, 1, {1001});
  }

  SmallRun run_;
  Ledger ledger_;
};

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

TEST_F(LedgerTest, ApplyNeedsExactCover) {
  EXPECT_THAT(WhyNot(MakeApply(run_, 1, {{}})), HasSubstr("not staged position 0"));
  StageAll({.rank = 0}, 0, 8);
  EXPECT_THAT(WhyNot(MakeApply(run_, 1, {{.ranks = 2}})), HasSubstr("not staged position 8"));
  // The participant's other rank may still stage its slice; other groups may not.
  EXPECT_EQ(RefusalIn(ledger_.Stage(Header(run_, {.group = 1}, 0, 15, kChunk))),
            v1::REFUSAL_CLOSED_ROUND);
  const StageGrant rest = Grant(Header(run_, {.rank = 1}, 8, 15, kChunk));
  Chunks(rest, 1);
  EXPECT_THAT(WhyNot(MakeApply(run_, 1, {{.ranks = 2}})), HasSubstr("rank 1 has staged 1 of 2"));
  Chunks({rest.key, rest.attempt, false, 1, rest.chunks, rest.elements}, 2);
  // All chunks are written, but the contribution is not durable yet.
  EXPECT_THAT(Missing(MakeApply(run_, 1, {{.ranks = 2}})), ElementsAre(0u));
  ledger_.ContributionDurable(rest.key, rest.attempt);
  EXPECT_EQ(Plan(MakeApply(run_, 1, {{.ranks = 2}})).groups[0].segments.size(), 3u);
}

TEST_F(LedgerTest, ApplyRefusesOverlap) {
  StageAll({.rank = 0}, 0, 9);
  StageAll({.rank = 1}, 8, 14);
  EXPECT_THAT(WhyNot(MakeApply(run_, 1, {{.ranks = 2}})),
              HasSubstr("two ranks of group 0 have staged position 8"));
  EXPECT_THAT(WhyNot(MakeApply(run_, 1, {{.ranks = 1}})),
              HasSubstr("the number of ranks of the group is 1"));
}

TEST_F(LedgerTest, RankWithoutSliceStagesNothing) {
  StageAll({.rank = 1}, 0, 15);
  EXPECT_EQ(Plan(MakeApply(run_, 1, {{.ranks = 2}})).groups.size(), 1u);
}

TEST_F(LedgerTest, EmptyContributionIsComplete) {
  const StageGrant grant = Grant(Header(run_, {}, 3, 3, kChunk));
  EXPECT_EQ(grant.chunks, 0u);
  EXPECT_TRUE(ledger_.ContributionDurable(grant.key, grant.attempt));
}

TEST_F(LedgerTest, InvalidApplyIsRefused) {
  StageAll({}, 0, 15);
  StageAll({.group = 1}, 0, 15);
  EXPECT_EQ(RefusalIn(ledger_.BeginApply(MakeApply(run_, 2, {{}}))), v1::REFUSAL_WRONG_BASE);
  EXPECT_THAT(WhyNot(MakeApply(run_, 1, {})), HasSubstr("no samples"));
  EXPECT_THAT(WhyNot(MakeApply(run_, 1, {{.samples = 0}})), HasSubstr("no samples"));
  EXPECT_THAT(WhyNot(MakeApply(run_, 1, {{.group = 1}, {.group = 0}})), HasSubstr("group order"));
  EXPECT_THAT(WhyNot(MakeApply(run_, 1, {{.group = 0}, {.group = 0}})), HasSubstr("each once"));
  SmallRun other = run_;
  other.shard = 1;
  EXPECT_THAT(WhyNot(MakeApply(other, 1, {{}})), HasSubstr("shard 1"));
  other.run = "run-9";
  EXPECT_EQ(RefusalIn(ledger_.BeginApply(MakeApply(other, 1, {{}}))), v1::REFUSAL_UNKNOWN_RUN);
  // The refused orders have not closed the round.
  Grant(Header(run_, {.group = 1}, 0, 15, kChunk));
}

TEST_F(LedgerTest, ApplyIsIdempotent) {
  StageAll({}, 0, 15);
  const v1::Apply apply = MakeApply(run_, 1, {{}});
  Plan(apply);
  EXPECT_TRUE(std::holds_alternative<ApplyUnderWay>(ledger_.BeginApply(apply)));
  ledger_.VersionDurable(run_.run, 1, {4711});
  EXPECT_EQ(Get<AlreadyApplied>(ledger_.BeginApply(apply)).stats.digest, 4711u);
}

TEST_F(LedgerTest, ExistingVersionHasOneListOfParticipants) {
  ledger_.Fence(run_.run, 1, {3, SecretKey()});
  StageAll({.group = 1, .generation = 3}, 0, 15);
  const v1::Apply apply = MakeApply(run_, 1, {{.group = 1, .generation = 3}});
  Plan(apply);
  ledger_.VersionDurable(run_.run, 1, {4711});
  const std::string made_of = "group 1 generation 3 (ranks: 1, samples: 100)";
  const std::vector<std::pair<Part, std::string>> others = {
      {{.group = 0, .generation = 3}, "group 0 generation 3 (ranks: 1, samples: 100)"},
      {{.group = 1, .generation = 4}, "group 1 generation 4 (ranks: 1, samples: 100)"},
      {{.group = 1, .generation = 3, .ranks = 2}, "group 1 generation 3 (ranks: 2, samples: 100)"},
      {{.group = 1, .generation = 3, .samples = 9}, "group 1 generation 3 (ranks: 1, samples: 9)"}};
  for (const auto& [other, named] : others) {
    const v1::Apply changed = MakeApply(run_, 1, {other});
    EXPECT_EQ(RefusalIn(ledger_.BeginApply(changed)), v1::REFUSAL_CLOSED_ROUND);
    EXPECT_THAT(WhyNot(changed), AllOf(HasSubstr(made_of), HasSubstr(named)));
  }
  EXPECT_EQ(Get<AlreadyApplied>(ledger_.BeginApply(apply)).stats.digest, 4711u);
  // The previous version keeps its list.
  StageAll({.round = 2}, 0, 15);
  Plan(MakeApply(run_, 2, {{}}));
  ledger_.VersionDurable(run_.run, 2, {4712});
  EXPECT_THAT(WhyNot(MakeApply(run_, 1, {{}})), HasSubstr(made_of));
}

TEST_F(LedgerTest, RestoredVersionWithoutOrderFitsAnyParticipants) {
  Ledger restored;
  restored.Restore(Terms(run_), false, {{1, {77}, {}}}, {});
  const ApplyDecision decision = restored.BeginApply(MakeApply(run_, 1, {{.group = 1}}));
  EXPECT_EQ(Get<AlreadyApplied>(decision).stats.digest, 77u);
}

TEST_F(LedgerTest, FailedApplyMayBeRetried) {
  const StageGrant grant = StageAll({}, 0, 15);
  const v1::Apply apply = MakeApply(run_, 1, {{}});
  Plan(apply);
  ledger_.ApplyFailed(run_.run, 1);
  EXPECT_EQ(Plan(apply).groups.size(), 1u);
  ledger_.ApplyFailed(run_.run, 1);
  // A damaged contribution may be staged again from the beginning.
  ledger_.ContributionLost(grant.key);
  EXPECT_THAT(Missing(apply), ElementsAre(0u));
  EXPECT_TRUE(Grant(Header(run_, {}, 0, 15, kChunk)).fresh);
}

// A coordinator whose store has become older closes the round with other participants.
TEST_F(LedgerTest, OpenRunForgetsAnIncompleteApply) {
  EXPECT_THAT(WhyNot(MakeApply(run_, 1, {{}})), HasSubstr("not staged"));
  EXPECT_EQ(RefusalIn(ledger_.Stage(Header(run_, {.group = 1}, 0, 15, kChunk))),
            v1::REFUSAL_CLOSED_ROUND);
  Open(run_);
  StageAll({.group = 1}, 0, 15);
  Plan(MakeApply(run_, 1, {{.group = 1}}));
}

TEST_F(LedgerTest, IncompleteApplyNamesItsGroups) {
  run_.groups = 3;
  run_.run = "run-2";
  Open(run_);
  ledger_.VersionDurable(run_.run, 0, {1});
  StageAll({.group = 1}, 0, 15);
  const v1::Apply apply = MakeApply(run_, 1, {{.group = 0}, {.group = 1}, {.group = 2}});
  EXPECT_THAT(Missing(apply), ElementsAre(0u, 2u));
  StageAll({.group = 2}, 0, 15);
  EXPECT_THAT(Missing(apply), ElementsAre(0u));
  StageAll({.group = 0}, 0, 15);
  EXPECT_EQ(Plan(apply).groups.size(), 3u);
}

TEST_F(LedgerTest, UnrequestedVersionIsIgnored) {
  EXPECT_THAT(ledger_.VersionDurable(run_.run, 1, {9}), IsEmpty());
  EXPECT_THAT(ledger_.VersionDurable("run-9", 0, {9}), IsEmpty());
  EXPECT_EQ(ledger_.States()[0].version(), 0u);
}

// --- Pulls and closed runs

TEST_F(LedgerTest, PullServesTwoVersions) {
  CommitRoundOne();
  StageAll({.round = 2}, 0, 15);
  Plan(MakeApply(run_, 2, {{}}));
  // A version is served only when it is durable.
  EXPECT_THAT(Get<Refused>(ledger_.Pull(PullOf(run_, 2, 0, 15))).reason,
              HasSubstr("is being restored"));
  ledger_.VersionDurable(run_.run, 2, {1002});
  for (const uint32_t version : {1u, 2u}) {
    const auto grant = Get<PullGrant>(ledger_.Pull(PullOf(run_, version, 2, 14)));
    EXPECT_EQ(grant.version, version);
    EXPECT_EQ(grant.elements, 12);
    EXPECT_THAT(grant.spans, ElementsAre(Interval{2, 12}, Interval{12, 14}));
  }
  EXPECT_EQ(Get<NoSuchVersion>(ledger_.Pull(PullOf(run_, 0, 0, 15))).current, 2u);
  // The shard may have lost a newer version.
  EXPECT_THAT(Get<Refused>(ledger_.Pull(PullOf(run_, 3, 0, 15))).reason,
              HasSubstr("is being restored"));
}

TEST_F(LedgerTest, PullRefusesByName) {
  v1::PullRequest request = PullOf(run_, 0, 0, 15);
  request.set_lineage("other");
  EXPECT_EQ(RefusalIn(ledger_.Pull(request)), v1::REFUSAL_WRONG_LINEAGE);
  request = PullOf(run_, 0, 0, 15);
  request.set_run("run-9");
  EXPECT_EQ(RefusalIn(ledger_.Pull(request)), v1::REFUSAL_UNKNOWN_RUN);
  for (const uint64_t end : {uint64_t{100}, uint64_t{1} << 63, ~uint64_t{0}}) {
    request = PullOf(run_, 0, 0, 15);
    request.mutable_ranges(0)->set_end(end);
    const PullDecision decision = ledger_.Pull(request);
    ASSERT_EQ(RefusalIn(decision), v1::REFUSAL_MALFORMED);
    EXPECT_THAT(std::get<Refused>(decision).reason,
                HasSubstr(absl::StrCat(end, ") of tensor 0 exceeds the tensor's 12 elements")));
  }
}

TEST_F(LedgerTest, ClosedRunOnlyServesPulls) {
  const StageGrant grant = StageAll({}, 0, 15);
  EXPECT_THAT(ledger_.CloseRun(run_.run), ElementsAre(grant.key));
  EXPECT_EQ(RefusalIn(ledger_.Stage(Header(run_, {}, 0, 15, kChunk))), v1::REFUSAL_CLOSED_ROUND);
  EXPECT_EQ(RefusalIn(ledger_.BeginApply(MakeApply(run_, 1, {{}}))), v1::REFUSAL_CLOSED_ROUND);
  EXPECT_TRUE(std::holds_alternative<PullGrant>(ledger_.Pull(PullOf(run_, 0, 0, 15))));
  EXPECT_THAT(ledger_.CloseRun(run_.run), IsEmpty());
  EXPECT_THAT(ledger_.CloseRun("run-9"), IsEmpty());
}

// --- Shards that have lost their files

TEST_F(LedgerTest, NoVersionZeroForARunWithVersions) {
  run_.run = "run-2";
  RunTerms terms = Terms(run_);
  terms.version = 4;
  const Opened opened = Get<Opened>(ledger_.OpenRun(terms));
  EXPECT_FALSE(opened.make_version_zero);
  EXPECT_FALSE(opened.hollow);
  EXPECT_EQ(RefusalIn(ledger_.Stage(Header(run_, {}, 0, 15, kChunk))), v1::REFUSAL_UNKNOWN_RUN);
  EXPECT_EQ(RefusalIn(ledger_.Pull(PullOf(run_, 4, 0, 15))), v1::REFUSAL_UNKNOWN_RUN);
}

TEST_F(LedgerTest, HollowShardIsRestoredFromContributions) {
  CommitRoundOne();
  const StageGrant old = StageAll({.round = 2}, 0, 15);
  const Opened opened = OpenHollow(4, 4);
  EXPECT_THAT(opened.discarded, ElementsAre(0u, 1u));
  EXPECT_THAT(opened.dropped, ElementsAre(old.key));
  EXPECT_EQ(opened.hollow, 4u);
  EXPECT_THAT(ledger_.States(), IsEmpty());

  const auto try_later = [&](const auto& decision) {
    const auto* refused = std::get_if<Refused>(&decision);
    return refused != nullptr && refused->refusal == v1::REFUSAL_UNSPECIFIED;
  };
  EXPECT_TRUE(try_later(ledger_.Pull(PullOf(run_, 4, 0, 15))));
  EXPECT_TRUE(try_later(ledger_.Stage(Header(run_, {.round = 6}, 0, 15, kChunk))));
  EXPECT_EQ(RefusalIn(ledger_.Stage(Header(run_, {.round = 4}, 0, 15, kChunk))),
            v1::REFUSAL_CLOSED_ROUND);
  const v1::Apply apply = MakeApply(run_, 5, {{.group = 0}, {.group = 1}});
  EXPECT_THAT(Missing(apply), ElementsAre(0u, 1u));
  const StageGrant first = StageAll({.round = 5}, 0, 15);
  // Neither a repeated order nor one that does not name the version discards it.
  EXPECT_THAT(OpenHollow(4, 4).dropped, IsEmpty());
  RunTerms terms = Terms(run_);
  terms.version = 4;
  EXPECT_EQ(Get<Opened>(ledger_.OpenRun(terms)).hollow, 4u);
  EXPECT_THAT(Missing(apply), ElementsAre(1u));
  StageAll({.round = 5, .group = 1}, 0, 15);
  EXPECT_EQ(Plan(apply).groups.size(), 2u);
  EXPECT_EQ(ledger_.VersionDurable(run_.run, 5, {55}).size(), 2u);

  EXPECT_FALSE(Get<Opened>(ledger_.OpenRun(terms)).hollow);
  EXPECT_TRUE(std::holds_alternative<PullGrant>(ledger_.Pull(PullOf(run_, 5, 0, 15))));
  Grant(Header(run_, {.round = 6}, 0, 15, kChunk));
}

TEST_F(LedgerTest, SeedIsTheVersion) {
  OpenHollow(4, 5);
  v1::Apply apply = MakeApply(run_, 5, {{.group = 1, .generation = 7, .samples = 1}});
  apply.set_seed(true);
  ledger_.Fence(run_.run, 1, {7, SecretKey()});
  // A contribution of the same rank is not a seed.
  StageAll({.round = 5, .group = 1, .generation = 7}, 0, 15);
  EXPECT_THAT(Missing(apply), ElementsAre(1u));
  v1::ContributionHeader header =
      Header(run_, {.round = 5, .group = 1, .generation = 7, .samples = 1}, 0, 15, kChunk);
  header.set_seed(true);
  const StageGrant grant = Grant(header);
  Chunks(grant, grant.chunks);
  EXPECT_TRUE(ledger_.ContributionDurable(grant.key, grant.attempt));
  const ApplyPlan plan = Plan(apply);
  EXPECT_EQ(plan.groups[0].weight, 1.0F);
  EXPECT_EQ(plan.groups[0].segments[0].key, grant.key);
  EXPECT_EQ(ledger_.VersionDurable(run_.run, 5, {55}).size(), 2u);
  // The commit of the version had other participants.
  const ApplyDecision repeated = ledger_.BeginApply(MakeApply(run_, 5, {{.group = 0}}));
  EXPECT_EQ(Get<AlreadyApplied>(repeated).stats.digest, 55u);
  EXPECT_TRUE(ledger_.NewestOrder(run_.run).seed());

  v1::Apply two = MakeApply(run_, 6, {{.group = 0}, {.group = 1}});
  two.set_seed(true);
  EXPECT_THAT(WhyNot(two), HasSubstr("2 seeds instead of one"));
}

TEST_F(LedgerTest, AnotherSeedReplacesTheFirst) {
  OpenHollow(4, 5);
  const auto seed_of = [&](uint32_t group) {
    v1::Apply apply = MakeApply(run_, 5, {{.group = group}});
    apply.set_seed(true);
    return apply;
  };
  EXPECT_THAT(Missing(seed_of(0)), ElementsAre(0u));
  EXPECT_THAT(Missing(seed_of(1)), ElementsAre(1u));
  v1::ContributionHeader header = Header(run_, {.round = 5, .group = 1}, 0, 15, kChunk);
  header.set_seed(true);
  const StageGrant grant = Grant(header);
  Chunks(grant, grant.chunks);
  ledger_.ContributionDurable(grant.key, grant.attempt);
  EXPECT_EQ(Plan(seed_of(1)).groups.size(), 1u);
}

// The order and the ranks are told on different streams: a seed may arrive while the shard still
// has the order for the seed of another group.
TEST_F(LedgerTest, SeedMayArriveBeforeItsOrder) {
  OpenHollow(4, 5);
  v1::Apply apply = MakeApply(run_, 5, {{.group = 0}});
  apply.set_seed(true);
  EXPECT_THAT(Missing(apply), ElementsAre(0u));
  v1::ContributionHeader header = Header(run_, {.round = 5, .group = 1}, 0, 15, kChunk);
  EXPECT_EQ(RefusalIn(ledger_.Stage(header)), v1::REFUSAL_CLOSED_ROUND) << "not a seed";
  header.set_seed(true);
  const StageGrant grant = Grant(header);
  Chunks(grant, grant.chunks);
  EXPECT_TRUE(ledger_.ContributionDurable(grant.key, grant.attempt));
  apply.mutable_participants(0)->set_group(1);
  EXPECT_EQ(Plan(apply).groups.size(), 1u);
}

// A group whose contribution or seed was dropped because its round has ended adopts the version; one
// whose stream was replaced or whose generation has ended cannot.
TEST_F(LedgerTest, DroppedContributionsHaveTheirReason) {
  const StageGrant late = Grant(Header(run_, {.group = 1}, 0, 15, kChunk));
  Chunks(late, late.chunks);
  StageAll({}, 0, 15);
  Plan(MakeApply(run_, 1, {{}}));
  EXPECT_EQ(ledger_.WhyDropped(late.key).refusal, v1::REFUSAL_CLOSED_ROUND)
      << "the participants are decided";
  ledger_.VersionDurable(run_.run, 1, {77});
  EXPECT_FALSE(ledger_.ContributionDurable(late.key, late.attempt));
  EXPECT_EQ(ledger_.WhyDropped(late.key).refusal, v1::REFUSAL_CLOSED_ROUND);
  v1::ContributionHeader header = Header(run_, {.round = 2, .group = 1}, 0, 15, kChunk);
  const StageGrant replaced = Grant(header);
  Grant(header);
  EXPECT_FALSE(ledger_.ContributionDurable(replaced.key, replaced.attempt));
  EXPECT_EQ(ledger_.WhyDropped(replaced.key).refusal, v1::REFUSAL_OUT_OF_ORDER);
  ledger_.Fence(run_.run, 1, {5, std::nullopt});
  EXPECT_EQ(ledger_.WhyDropped(replaced.key).refusal, v1::REFUSAL_STALE_GENERATION);
}

// The coordinator may choose another way to restore the shard.
TEST_F(LedgerTest, HollowAtAnotherVersionBeginsAnew) {
  OpenHollow(4, 5);
  const StageGrant grant = StageAll({.round = 5}, 0, 15);
  EXPECT_THAT(OpenHollow(5, 5).dropped, ElementsAre(grant.key));
  Grant(Header(run_, {.round = 6}, 0, 15, kChunk));
}

// --- After a restart

TEST(LedgerRestoreTest, HollowShardStaysHollow) {
  const SmallRun run;
  Ledger ledger;
  RunTerms terms = Terms(run);
  terms.hollow = 4;
  const v1::ContributionHeader header = Header(run, {.round = 5}, 0, 15, kChunk);
  EXPECT_THAT(ledger.Restore(terms, false, {}, {{header, 4}}), IsEmpty());
  EXPECT_TRUE(std::holds_alternative<ApplyPlan>(ledger.BeginApply(MakeApply(run, 5, {{}}))));
  Ledger complete;
  complete.Restore(terms, false, {{5, {55}, {}}}, {});
  EXPECT_TRUE(std::holds_alternative<PullGrant>(complete.Pull(PullOf(run, 5, 0, 15))));
}

TEST(LedgerRestoreTest, RestoreKeepsOpenRound) {
  const SmallRun run;
  Ledger ledger;
  const v1::ContributionHeader done = Header(run, {.round = 3, .group = 0}, 0, 15, kChunk);
  const v1::ContributionHeader half = Header(run, {.round = 3, .group = 1}, 0, 15, kChunk);
  const v1::ContributionHeader past = Header(run, {.round = 2, .group = 0}, 0, 15, kChunk);
  const auto useless =
      ledger.Restore(Terms(run), false, {{1, 11}, {2, 22}}, {{done, 4}, {half, 2}, {past, 4}});
  ASSERT_EQ(useless.size(), 1u);
  EXPECT_EQ(useless[0].round, 2u);
  EXPECT_EQ(ledger.States()[0].version(), 2u);
  EXPECT_EQ(ledger.States()[0].digest(), 22u);
  EXPECT_TRUE(std::holds_alternative<PullGrant>(ledger.Pull(PullOf(run, 1, 0, 15))));

  const auto opened = ledger.OpenRun(Terms(run));
  EXPECT_FALSE(std::get<Opened>(opened).make_version_zero);
  EXPECT_EQ(std::get<StageGrant>(ledger.Stage(done)).next_chunk, 4u);
  EXPECT_EQ(std::get<StageGrant>(ledger.Stage(half)).next_chunk, 2u);
  const ApplyDecision decision = ledger.BeginApply(MakeApply(run, 3, {{.group = 0}}));
  EXPECT_TRUE(std::holds_alternative<ApplyPlan>(decision));
}

TEST(LedgerRestoreTest, ClosedRunStaysClosed) {
  const SmallRun run;
  Ledger ledger;
  EXPECT_EQ(ledger.Restore(Terms(run), true, {{4, 44}}, {}).size(), 0u);
  EXPECT_EQ(RefusalIn(ledger.Stage(Header(run, {.round = 5}, 0, 15, kChunk))),
            v1::REFUSAL_CLOSED_ROUND);
  EXPECT_TRUE(std::holds_alternative<PullGrant>(ledger.Pull(PullOf(run, 4, 0, 15))));
}

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
