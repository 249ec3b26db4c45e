// The fixture of tests of shards that move to another aggregator.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/coordinator/machine/restore_shard_test.h"

namespace cadre::testing {

class MovesTest : public RestoreShardTest {
 protected:
  // Two shards and two groups of two workers; version 1 is committed. agg-2 stores nothing.
  void Begin(uint32_t copies = 1) {
    v1::RunSpec spec = MakeSpec(2, 2, 5, 1000);
    spec.mutable_averaging()->mutable_outer()->mutable_nesterov();
    spec.mutable_averaging()->set_copies(copies);
    run_ = SubmitTo(2, 4, spec);
    TrainBoth(run_);
    ASSERT_EQ(VersionOf(run_), 1u) << ReasonOf(run_);
    cluster_.AddAggregator("agg-2");
  }
  void Drain(const std::string& name) {
    cluster_.Cordon(name, /*undo=*/false, /*drain=*/true);
    ASSERT_TRUE(cluster_.last_status.ok()) << cluster_.last_status;
  }
  v1::AggregatorStatus StatusOf(const std::string& name) {
    const v1::StatusReply status = cluster_.Status();
    for (const v1::AggregatorStatus& aggregator : status.aggregators()) {
      if (aggregator.member().name() == name) return aggregator;
    }
    ADD_FAILURE() << "no aggregator " << name;
    return {};
  }
  // The only shard that moves from agg-0.
  v1::ShardMove Move() {
    const v1::AggregatorStatus status = StatusOf("agg-0");
    EXPECT_EQ(status.moves_size(), 1);
    return status.moves_size() == 1 ? status.moves(0) : v1::ShardMove();
  }
  std::vector<std::string> Shards() {
    const v1::RunRecord run = cluster_.StoredRun(run_);
    return {run.shards().begin(), run.shards().end()};
  }
  bool Stores(int i) { return agg(i).shards.contains(run_); }
  // Both groups train on, in the generations in which they have begun.
  void ExpectNoneEnded() {
    EXPECT_EQ(RunStateOf(run_), v1::RUN_STATE_RUNNING) << ReasonOf(run_);
    EXPECT_EQ(cluster_.Counter("groups_formed"), 2u);
    EXPECT_FALSE(HasEvent(v1::EVENT_KIND_GROUP_ENDED, ""));
    EXPECT_EQ(cluster_.Counter("refused_wrong_digest"), 0u);
  }
  void ExpectMoved() {
    EXPECT_THAT(Shards(), ::testing::ElementsAre("agg-2", "agg-1"));
    EXPECT_TRUE(Stores(2));
    EXPECT_FALSE(Stores(0));
    EXPECT_THAT(cluster_.StoredRun(run_).leaving(), ::testing::IsEmpty());
    EXPECT_FALSE(cluster_.StoredRun(run_).has_move());
    EXPECT_THAT(StatusOf("agg-0").moves(), ::testing::IsEmpty());
    EXPECT_THAT(StatusOf("agg-0").shards(), ::testing::IsEmpty());
    EXPECT_TRUE(StatusOf("agg-0").draining());
    EXPECT_EQ(cluster_.Counter("shards_moved"), 1u);
    EXPECT_EQ(cluster_.Counter("shards_lost"), 0u);
  }

  std::string run_;
};

}  // namespace cadre::testing
