// Messages that carry out what was decided about a round: they have everything that the decision
// has. Each test compares a whole message.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/base/expect.h"
#include "tests/coordinator/machine/restore_shard_test.h"

namespace cadre::testing {
namespace {

using ::testing::IsEmpty;

class MachineOrdersTest : public RestoreShardTest {
 protected:
  // A run in which orders have everything that they may have.
  static v1::RunSpec RichSpec() {
    v1::RunSpec spec = MakeSpec(2, 1, 6, 60);
    *spec.mutable_averaging() = Parse<v1::Averaging>(R"(
        every_steps: 6 fragments { count: 2 } outer { nesterov {} }
        up { codec: CODEC_INT8 } down { codec: CODEC_BF16 } keep_versions { every: 1 count: 2 })");
    return spec;
  }
  // The newest message of a kind that the aggregator has received.
  template <typename Body>
  Body Newest(const FakeAggregator& aggregator, const Body& (v1::CoordinatorMessage::*body)() const,
              bool (v1::CoordinatorMessage::*has)() const) {
    for (auto it = aggregator.received.rbegin(); it != aggregator.received.rend(); ++it) {
      if (((*it).*has)()) return ((*it).*body)();
    }
    ADD_FAILURE() << "no such message";
    return Body();
  }
  v1::Apply NewestApply(int aggregator) {
    return Newest(agg(aggregator), &v1::CoordinatorMessage::apply,
                  &v1::CoordinatorMessage::has_apply);
  }
  v1::OpenRun NewestOpen(int aggregator) {
    return Newest(agg(aggregator), &v1::CoordinatorMessage::open_run,
                  &v1::CoordinatorMessage::has_open_run);
  }
  std::string BeginRich() {
    AddMembers(2, 2);
    return cluster_.Submit(RichSpec());
  }
  // The part of the order that is the same as in the commit of its round.
  v1::Apply OrderOf(const v1::CommitRecord& commit, uint32_t shard) {
    v1::Apply order;
    order.set_run(commit.run());
    order.set_shard(shard);
    order.set_round(commit.round());
    *order.mutable_participants() = commit.participants();
    order.set_step(commit.step());
    *order.mutable_division() = commit.division();
    *order.mutable_outer() = commit.outer();
    *order.mutable_up() = commit.up();
    *order.mutable_down() = commit.down();
    order.set_fragment(commit.fragment());
    *order.mutable_included() = commit.included();
    *order.mutable_keep() = commit.keep();
    order.set_attempt(commit.attempt());
    order.set_trim(commit.trim());
    return order;
  }
};

TEST_F(MachineOrdersTest, ApplyHasWhatTheCommitHas) {
  const std::string run = BeginRich();
  for (int round = 0; round < 3; ++round) TrainBoth(run);
  const v1::CommitRecord commit = *cluster_.Commit(run, 3);
  ASSERT_TRUE(commit.has_outer() && commit.has_up() && commit.has_down());
  ASSERT_GT(commit.fragment(), 0U);
  ASSERT_GT(commit.keep_size(), 0);
  ASSERT_EQ(commit.included_size(), 2);
  for (const uint32_t shard : {0U, 1U}) {
    v1::Apply expected = OrderOf(commit, shard);
    expected.set_samples(cluster_.RunStatus(run).samples());
    EXPECT_EQ(NewestApply(shard).DebugString(), expected.DebugString());
  }
  const v1::Publish publish =
      Newest(agg(0), &v1::CoordinatorMessage::publish, &v1::CoordinatorMessage::has_publish);
  EXPECT_EQ(publish.run(), run);
  EXPECT_EQ(publish.round(), 3U);
}

TEST_F(MachineOrdersTest, ApplyOfARollbackHasTheSamplesOfItsVersion) {
  const std::string run = BeginRich();
  TrainBoth(run);
  const uint64_t samples = cluster_.RunStatus(run).samples();
  for (int round = 0; round < 2; ++round) TrainBoth(run);
  cluster_.RollBackRun(run, 1);
  const v1::CommitRecord commit = *cluster_.Commit(run, 4);
  v1::Apply expected = OrderOf(commit, 0);
  expected.clear_outer();
  expected.clear_up();
  expected.clear_down();
  expected.set_restores(1);
  expected.set_samples(samples);
  EXPECT_EQ(NewestApply(0).DebugString(), expected.DebugString());
}

TEST_F(MachineOrdersTest, OpenRunHasTheTermsOfTheRun) {
  const std::string run = BeginRich();
  TrainBoth(run);
  cluster_.Reconnect(agg(1));
  v1::OpenRun expected;
  expected.set_run(run);
  expected.set_lineage(cluster_.StoredRun(run).lineage());
  *expected.mutable_spec() = RichSpec();
  expected.set_shard(1);
  expected.set_shards(2);
  expected.set_version(1);
  for (const uint32_t group : {0U, 1U}) {
    (*expected.mutable_generations())[group] = cluster_.Group(run, group).generation();
  }
  v1::OpenRun open = NewestOpen(1);
  EXPECT_EQ(open.keys_size(), 2);
  EXPECT_EQ(open.keys().at(1), cluster_.Lead(run, 1).assignment->key());
  open.clear_keys();
  EXPECT_EQ(open.DebugString(), expected.DebugString());
  // The next generation of a group that is not formed is higher than all others.
  cluster_.Kill(cluster_.Lead(run, 1));
  cluster_.Run(absl::Seconds(15));
  cluster_.Reconnect(agg(1));
  open = NewestOpen(1);
  EXPECT_EQ(open.keys_size(), 1);
  EXPECT_GT(open.generations().at(1), cluster_.Group(run, 0).generation());
  EXPECT_EQ(open.generations().at(0), cluster_.Group(run, 0).generation());
}

TEST_F(MachineOrdersTest, FenceHasTheGenerationAndItsKey) {
  const std::string run = BeginRich();
  agg(0).received.clear();
  cluster_.behaviour.prepare = false;
  cluster_.Fail(cluster_.Lead(run, 1));
  cluster_.Run(absl::Minutes(1));
  const auto fence = [&] {
    return Newest(agg(0), &v1::CoordinatorMessage::fence, &v1::CoordinatorMessage::has_fence);
  };
  ASSERT_EQ(StateOf(run, 1), v1::GROUP_STATE_PREPARING);
  EXPECT_EQ(fence().run(), run);
  EXPECT_EQ(fence().group(), 1U);
  EXPECT_EQ(fence().generation(), cluster_.Group(run, 1).generation());
  EXPECT_EQ(fence().key(), cluster_.Lead(run, 1).assignment->key());
  const uint32_t generation = fence().generation();
  FakeWorker& lead = cluster_.Lead(run, 1);
  cluster_.Kill(lead);
  EXPECT_EQ(fence().generation(), generation + 1) << "the next one";
  EXPECT_EQ(fence().key(), "");
}

// The values of a group that has the version: they count as those of one participant.
TEST_F(MachineOrdersTest, SeedRestoresTheNewestVersion) {
  const std::string run = Begin(2);
  const v1::CommitRecord commit = *cluster_.Commit(run, 2);
  cluster_.behaviour.restage = false;
  cluster_.Wipe(agg(0));
  v1::Apply expected;
  expected.set_run(run);
  expected.set_shard(0);
  expected.set_round(2);
  expected.set_step(10);
  expected.set_samples(cluster_.RunStatus(run).samples());
  if (cluster_.StoredRun(run).has_division())
    *expected.mutable_division() = cluster_.StoredRun(run).division();
  *expected.mutable_included() = commit.included();
  *expected.mutable_keep() = commit.keep();
  expected.set_digest(*DigestOf(commit, 0));
  expected.set_seed(true);
  v1::Participant& seed = *expected.add_participants();
  seed.set_group(0);
  seed.set_generation(cluster_.Group(run, 0).generation());
  seed.set_ranks(2);
  seed.set_samples(1);
  EXPECT_EQ(NewestApply(0).DebugString(), expected.DebugString());
  EXPECT_EQ(NewestOpen(0).hollow(), 1U);
  for (const uint32_t rank : {0U, 1U}) {
    const v1::Restage& restage = cluster_.Rank(run, 0, rank).received.back().restage();
    EXPECT_EQ(restage.shard(), 0U);
    EXPECT_EQ(restage.round(), 2U);
    EXPECT_TRUE(restage.seed());
    EXPECT_EQ(restage.place().rank(), rank);
    EXPECT_EQ(restage.place().generation(), seed.generation());
  }
}

TEST_F(MachineOrdersTest, StartFromAVersion) {
  const std::string run = BeginRich();
  for (int round = 0; round < 2; ++round) TrainBoth(run);
  cluster_.Fail(cluster_.Lead(run, 1));
  ASSERT_TRUE(cluster_.RunUntil([&] { return StateOf(run, 1) == v1::GROUP_STATE_TRAINING; }));
  const FakeWorker& lead = cluster_.Lead(run, 1);
  v1::Start expected;
  *expected.mutable_place() = lead.place();
  expected.set_version(2);
  expected.set_digest(cluster_.StoredRun(run).digest());
  expected.set_catch_up(true);
  expected.set_total_steps(60);
  expected.set_train_samples(kTrainSamples);
  expected.mutable_division()->set_groups(2);
  *expected.mutable_included() = cluster_.Commit(run, 2)->included(1);
  v1::Start start = *lead.start;
  EXPECT_GT(start.next_step(), start.step());
  expected.set_next_step(start.next_step());
  expected.set_fragment(start.fragment());
  expected.set_step(cluster_.StoredRun(run).step());
  EXPECT_GT(start.fragment(), 0U);
  EXPECT_EQ(start.DebugString(), expected.DebugString());
}

TEST_F(MachineOrdersTest, DecisionAboutAVersion) {
  const std::string run = BeginRich();
  TrainBoth(run);
  v1::Decision decision = LastDecision(run, 1);
  v1::Decision expected;
  *expected.mutable_place() = cluster_.Lead(run, 1).place();
  expected.set_round(1);
  expected.set_adopt(true);
  expected.set_version(1);
  expected.set_step(cluster_.StoredRun(run).step());
  expected.set_digest(cluster_.StoredRun(run).digest());
  expected.set_included(true);
  expected.mutable_division()->set_groups(2);
  expected.set_participants(2);
  EXPECT_GT(decision.next_step(), decision.step());
  EXPECT_GT(decision.fragment(), 0U);
  expected.set_next_step(decision.next_step());
  expected.set_fragment(decision.fragment());
  EXPECT_EQ(decision.DebugString(), expected.DebugString());
}

TEST_F(MachineOrdersTest, AggregatorWithoutAShardReceivesNoOrders) {
  const std::string run = BeginRich();
  FakeAggregator& other = cluster_.AddAggregator("agg-2");
  TrainBoth(run);
  for (const v1::CoordinatorMessage& message : other.received) {
    EXPECT_FALSE(message.has_apply() || message.has_open_run() || message.has_fence());
  }
  EXPECT_THAT(other.shards, IsEmpty());
}

}  // namespace
}  // namespace cadre::testing
