// A ledger with a small run, at version 0.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <variant>
#include <vector>

#include "server/ledger.h"
#include "tests/server/testing.h"

namespace cadre::testing {

inline constexpr uint32_t kChunk = 4;

inline RunTerms Terms(const SmallRun& run) {
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
    EXPECT_THAT(ledger_.VersionDurable(run_.run, 0, {1000}), ::testing::IsEmpty());
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

}  // namespace cadre::testing
