// The fixture of tests with two groups and two shards whose aggregators or store are lost.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/coordinator/machine/fake_cluster.h"

namespace cadre::testing {

class RestoreShardTest : public MachineTest {
 protected:
  // Two shards and two groups of two workers; version 1 is committed.
  std::string Begin(uint32_t rounds = 1) {
    AddMembers(2, 4);
    const std::string run = cluster_.Submit(MakeSpec(2, 2, 5, 100));
    for (uint32_t round = 1; round <= rounds; ++round) TrainBoth(run);
    EXPECT_EQ(VersionOf(run), rounds);
    return run;
  }
  void TrainBoth(const std::string& run) {
    Train(run, 0);
    Train(run, 1);
  }
  uint32_t VersionOf(const std::string& run) { return cluster_.RunStatus(run).version(); }
  FakeAggregator& agg(int i) { return cluster_.aggregators()[i]; }
  // The aggregator returns with the disk that it had lost.
  void RestoreDisk(FakeAggregator& aggregator, decltype(FakeAggregator::shards) disk) {
    cluster_.Kill(aggregator);
    aggregator.shards = std::move(disk);
    aggregator.wiped = false;
    cluster_.Restart(aggregator);
  }
  void ExpectRestored(const std::string& run) {
    EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_RUNNING) << ReasonOf(run);
    EXPECT_EQ(ReasonOf(run), "");
    EXPECT_EQ(cluster_.Counter("shards_restored"), 1u);
    EXPECT_EQ(cluster_.Counter("refused_wrong_digest"), 0u);
  }
  void ExpectParked(const std::string& run) {
    EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_PARKED);
    EXPECT_THAT(ReasonOf(run),
                ::testing::AllOf(::testing::HasSubstr("aggregator agg-0"),
                                 ::testing::HasSubstr(absl::StrCat("cadre resume ", run))));
    for (const FakeWorker& worker : cluster_.workers()) {
      EXPECT_FALSE(worker.assignment.has_value()) << "workers of a parked run are free";
    }
  }
};

}  // namespace cadre::testing
