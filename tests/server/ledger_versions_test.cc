// How the ledger makes versions: orders to apply, pulls, lost shards, restarts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/ledger_run.h"
#include "tests/base/expect.h"
#include "tests/server/ledger_fixture.h"

namespace cadre::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(LedgerTest, UnknownRunIsClosed) { EXPECT_TRUE(ledger_.IsClosed("unknown")); }

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
  EXPECT_FALSE(ledger_.States()[0].closed());
  EXPECT_THAT(ledger_.CloseRun(run_.run), ElementsAre(grant.key));
  EXPECT_TRUE(ledger_.States()[0].closed());
  EXPECT_EQ(RefusalIn(ledger_.Stage(Header(run_, {}, 0, 15, kChunk))), v1::REFUSAL_CLOSED_ROUND);
  EXPECT_EQ(RefusalIn(ledger_.BeginApply(MakeApply(run_, 1, {{}}))), v1::REFUSAL_CLOSED_ROUND);
  EXPECT_TRUE(std::holds_alternative<PullGrant>(ledger_.Pull(PullOf(run_, 0, 0, 15))));
  EXPECT_THAT(ledger_.CloseRun(run_.run), IsEmpty());
  EXPECT_THAT(ledger_.CloseRun("run-9"), IsEmpty());
}

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
  EXPECT_EQ(RefusalIn(ledger_.BeginApply(MakeApply(run_, 4, {{}}))), v1::REFUSAL_CLOSED_ROUND)
      << "the version of that round exists, although this shard has lost it";
  EXPECT_EQ(RefusalIn(ledger_.BeginApply(MakeApply(run_, 6, {{}}))), v1::REFUSAL_WRONG_BASE);
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
  v1::RunReport report;
  ledger_.Report(run_.run, report);
  EXPECT_TRUE(report.newest().seed());

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

// A group whose contribution or seed was dropped because its round has ended adopts the version;
// one whose stream was replaced or whose generation has ended cannot.
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

// What an order needs beside the contributions.
TEST(LedgerOrderTest, OrdersThatRequireTheVersionBefore) {
  const auto requires_before = [](const std::string& text) {
    return RequiresBefore(Parse<v1::Apply>(text));
  };
  EXPECT_FALSE(requires_before("participants { group: 1 }")) << "a mean";
  EXPECT_TRUE(requires_before("participants { group: 1 } participants { group: 2 scale: 0.5 }"));
  EXPECT_TRUE(requires_before("restores: 0"));
  EXPECT_TRUE(requires_before("outer {}"));
  EXPECT_TRUE(requires_before("down {}"));
  EXPECT_TRUE(requires_before("up {}"));
  EXPECT_TRUE(requires_before("fragment: 1"));
  EXPECT_FALSE(requires_before("up {} fragment: 1 seed: true")) << "a seed is a whole version";
  EXPECT_TRUE(requires_before("outer {} seed: true"));
}

}  // namespace
}  // namespace cadre::testing
