// What members owe a run and do not do: it is named after 30 seconds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/coordinator/machine/restore_shard_test.h"

namespace cadre::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class MachineObligationsTest : public MachineTest {
 protected:
  size_t CountLate(const std::string& run) { return cluster_.machine().Gauges(run).late; }
  v1::AggregatorStatus AggregatorOf(int i) { return cluster_.Status().aggregators(i); }
  FakeAggregator& agg(int i) { return cluster_.aggregators()[i]; }
  // The first event about something that is late, with this text.
  v1::ClusterEvent FirstDelayed(const std::string& text = "") {
    const v1::EventsReply events = cluster_.Events();
    for (const v1::ClusterEvent& event : events.events()) {
      const bool has_text = event.text().find(text) != std::string::npos;
      if (event.kind() == v1::EVENT_KIND_ORDER_DELAYED && has_text) return event;
    }
    ADD_FAILURE() << "nothing was late";
    return v1::ClusterEvent();
  }
};

TEST_F(MachineObligationsTest, OrderThatTheAggregatorDoesNotReportIsNamed) {
  const std::string run = Begin(1, MakeSpec(1, 1, 5, 100));
  cluster_.behaviour.apply = false;
  Train(run);
  cluster_.Run(absl::Seconds(25));
  EXPECT_EQ(ReasonOf(run), "");
  EXPECT_EQ(CountLate(run), 0U);
  cluster_.Run(absl::Seconds(10));
  EXPECT_THAT(ReasonOf(run), AllOf(HasSubstr("aggregator agg-0 has not applied round 1 to shard 0 "
                                             "for 3"),
                                   HasSubstr("it does not report this order")));
  EXPECT_EQ(CountLate(run), 2U);
  EXPECT_TRUE(HasEvent(v1::EVENT_KIND_ORDER_DELAYED, "aggregator agg-1 has not applied round 1"));
  ASSERT_EQ(AggregatorOf(1).delayed_orders_size(), 1);
  EXPECT_EQ(AggregatorOf(1).delayed_orders(0).run(), run);
  EXPECT_EQ(AggregatorOf(1).delayed_orders(0).order(), "apply");
  EXPECT_EQ(AggregatorOf(1).delayed_orders(0).reason(), "it does not report this order");
  EXPECT_EQ(FirstDelayed().run(), run);
  EXPECT_EQ(FirstDelayed().member(), "agg-0");
  EXPECT_FALSE(FirstDelayed().has_group());
  EXPECT_GE(AggregatorOf(1).delayed_orders(0).seconds(), 30);
  // The order is repeated, and carried out.
  cluster_.behaviour.apply = true;
  cluster_.Reconnect(agg(0));
  cluster_.Reconnect(agg(1));
  cluster_.Run(absl::Seconds(5));
  EXPECT_EQ(cluster_.RunStatus(run).version(), 1U);
  EXPECT_EQ(ReasonOf(run), "");
  EXPECT_EQ(CountLate(run), 0U);
  EXPECT_EQ(AggregatorOf(1).delayed_orders_size(), 0);
}

TEST_F(MachineObligationsTest, ErrorOfTheAggregatorIsNamed) {
  const std::string run = Begin(1, MakeSpec(1, 1, 5, 100));
  cluster_.behaviour.apply = false;
  Train(run);
  v1::Heartbeat heartbeat;
  v1::DelayedOrder other;
  other.set_run("run-9-other");
  other.set_order("apply");
  other.set_reason("an order of another run");
  *heartbeat.add_delayed_orders() = other;
  v1::DelayedOrder& delayed = *heartbeat.add_delayed_orders();
  delayed.set_run(run);
  delayed.set_order("apply");
  delayed.set_reason("cannot write version-1.new: No space left on device");
  for (int i = 0; i < 140; ++i) {
    delayed.set_seconds(0.25F * static_cast<float>(i));
    cluster_.Send(agg(0), heartbeat);
    cluster_.Run(absl::Seconds(0.25));
  }
  cluster_.Send(agg(0), heartbeat);
  EXPECT_THAT(FirstDelayed("aggregator agg-0 has not applied round 1 to shard 0 for 3").text(),
              HasSubstr("version-1.new: No space left on device"));
  EXPECT_THAT(ReasonOf(run), AllOf(HasSubstr("aggregator agg-0"),
                                   HasSubstr("version-1.new: No space left on device")));
  EXPECT_EQ(AggregatorOf(0).delayed_orders_size(), 2) << "its own report";
}

TEST_F(MachineObligationsTest, AggregatorThatIsAwayOwesNothing) {
  const std::string run = Begin(1, MakeSpec(1, 1, 5, 100));
  cluster_.Kill(agg(1));
  Train(run);
  cluster_.Run(absl::Minutes(2));
  EXPECT_THAT(ReasonOf(run), HasSubstr("waiting for aggregator agg-1, away for 2m"));
  EXPECT_EQ(CountLate(run), 0U);
}

TEST_F(MachineObligationsTest, ShardThatIsNotOpenedIsNamed) {
  cluster_.behaviour.open = false;
  const std::string run = SubmitTo(1, 1, MakeSpec(1, 1, 5, 100));
  cluster_.Run(absl::Seconds(32));
  EXPECT_THAT(ReasonOf(run), HasSubstr("aggregator agg-0 has not opened shard 0 for 3"));
  EXPECT_EQ(AggregatorOf(0).delayed_orders(0).order(), "open_run");
}

TEST_F(MachineObligationsTest, GroupThatDoesNotLoadIsNamed) {
  const std::string run = Begin(1, MakeSpec(1, 1, 5, 100));
  cluster_.behaviour.adopt = false;
  Train(run);
  EXPECT_EQ(cluster_.RunStatus(run).version(), 1U);
  cluster_.Run(absl::Seconds(34));
  EXPECT_EQ(CountLate(run), 0U) << "it makes progress";
  cluster_.Lead(run, 0).activity = v1::ACTIVITY_EXCHANGING;
  cluster_.Lead(run, 0).hung = true;
  cluster_.Run(absl::Seconds(36));
  EXPECT_THAT(ReasonOf(run), HasSubstr("has made no progress and not loaded version 1 for 3"));
  EXPECT_EQ(CountLate(run), 1U);
  EXPECT_EQ(FirstDelayed().run(), run);
  EXPECT_TRUE(FirstDelayed().has_group());
  EXPECT_EQ(FirstDelayed().member(), "w0");
}

TEST_F(MachineObligationsTest, WorkerWithTheNameOfAnAggregatorIsNone) {
  cluster_.AddAggregator("same");
  cluster_.AddWorker("same");
  const std::string run = cluster_.Submit(MakeSpec(1, 1, 5, 100));
  cluster_.behaviour.adopt = false;
  Train(run);
  cluster_.Lead(run, 0).activity = v1::ACTIVITY_EXCHANGING;
  cluster_.Lead(run, 0).hung = true;
  cluster_.Run(absl::Seconds(36));
  EXPECT_EQ(CountLate(run), 1U);
  EXPECT_EQ(AggregatorOf(0).delayed_orders_size(), 0);
}

TEST_F(MachineObligationsTest, GroupOfARunWithoutShardsIsNamed) {
  cluster_.behaviour.evaluate = false;
  cluster_.AddWorkers(1);
  const std::string run = cluster_.Submit(MakeSpec(1, 1, 0, 5));
  Train(run);
  ASSERT_EQ(RunStateOf(run), v1::RUN_STATE_FINISHING);
  cluster_.Lead(run, 0).activity = v1::ACTIVITY_EVALUATING;
  cluster_.Lead(run, 0).hung = true;
  cluster_.Run(absl::Seconds(40));
  EXPECT_THAT(ReasonOf(run), HasSubstr("no progress and not evaluated its part"));
}

// A group makes progress at least as often as after ten of its steps.
TEST_F(MachineObligationsTest, GroupWithLongStepsHasMoreTime) {
  const std::string run = Begin(1, MakeSpec(1, 1, 5, 100));
  cluster_.behaviour.adopt = false;
  Train(run);
  FakeWorker& lead = cluster_.Lead(run, 0);
  v1::Progress progress;
  *progress.mutable_place() = lead.place();
  progress.set_step(5);
  progress.set_step_seconds(6);
  cluster_.Send(lead, progress);
  lead.activity = v1::ACTIVITY_EXCHANGING;
  cluster_.Run(absl::Seconds(5));
  lead.hung = true;
  cluster_.Run(absl::Seconds(55));
  EXPECT_EQ(CountLate(run), 0U);
  cluster_.Run(absl::Seconds(10));
  EXPECT_EQ(CountLate(run), 1U);
}

TEST_F(MachineObligationsTest, GroupThatDoesNotEvaluateIsNamed) {
  cluster_.behaviour.evaluate = false;
  const std::string run = Begin(1, MakeSpec(1, 1, 5, 5));
  Train(run);
  ASSERT_EQ(RunStateOf(run), v1::RUN_STATE_FINISHING);
  cluster_.Lead(run, 0).activity = v1::ACTIVITY_EVALUATING;
  cluster_.Lead(run, 0).hung = true;
  cluster_.Run(absl::Seconds(40));
  EXPECT_THAT(ReasonOf(run), HasSubstr("no progress and not evaluated its part of version 1 for "));
  EXPECT_EQ(CountLate(run), 1U);
}

// Two shards of 20 GB each.
class LargeShardObligationsTest : public MachineTest {
 protected:
  LargeShardObligationsTest()
      : MachineTest([](Machine::Options& options) {
          options.parameter_count = [](const v1::RunSpec&) { return uint64_t{10'000'000'000}; };
        }) {}
};

TEST_F(LargeShardObligationsTest, OrderMayTakeAsLongAsASlowDisk) {
  const std::string run = Begin(1, MakeSpec(1, 1, 5, 100));
  cluster_.behaviour.apply = false;
  Train(run);
  cluster_.Run(absl::Seconds(1225));
  EXPECT_EQ(ReasonOf(run), "") << "at 50 MB/s, it takes 400 s to read the version before, the only "
                                  "contribution, and to write the version";
  cluster_.Run(absl::Seconds(10));
  EXPECT_THAT(ReasonOf(run), HasSubstr("has not applied round 1 to shard 0 for "));
}

TEST_F(LargeShardObligationsTest, ShardMayBeReadOnceToOpenIt) {
  cluster_.behaviour.open = false;
  const std::string run = SubmitTo(2, 1, MakeSpec(1, 1, 5, 100));
  cluster_.Run(absl::Seconds(425));
  EXPECT_EQ(cluster_.machine().Gauges(run).late, 0U);
  cluster_.Run(absl::Seconds(10));
  EXPECT_EQ(cluster_.machine().Gauges(run).late, 2U);
}

// Orders and requests that restore a lost shard.
class LostShardObligationsTest : public RestoreShardTest {
 protected:
  bool IsNamed(const std::string& text) {
    cluster_.Run(absl::Seconds(35));
    return HasEvent(v1::EVENT_KIND_ORDER_DELAYED, text);
  }
  // The order as the status of the shard's aggregator shows it.
  std::string DelayedOrder() {
    const v1::AggregatorStatus aggregator = cluster_.Status().aggregators(0);
    return aggregator.delayed_orders_size() == 0 ? "" : aggregator.delayed_orders(0).order();
  }
};

TEST_F(LostShardObligationsTest, ShardThatIsNotOpenedForItsValuesIsNamed) {
  const std::string run = Begin();
  cluster_.behaviour.open = false;
  cluster_.Wipe(agg(0));
  // It is without values at another version than the one that is to be restored.
  v1::RunOpened hollow;
  hollow.set_run(run);
  hollow.set_shards(2);
  hollow.set_hollow(true);
  cluster_.Send(agg(0), hollow);
  EXPECT_TRUE(IsNamed("aggregator agg-0 has not opened lost shard 0 for 3"));
  EXPECT_EQ(DelayedOrder(), "open_run");
}

TEST_F(LostShardObligationsTest, GroupThatDoesNotStageItsValuesIsNamed) {
  const std::string run = Begin();
  cluster_.behaviour.restage = false;
  cluster_.Wipe(agg(0));
  for (FakeWorker& worker : cluster_.workers()) {
    worker.activity = v1::ACTIVITY_EXCHANGING;
    worker.hung = true;
  }
  EXPECT_TRUE(IsNamed("not staged its values for lost shard 0"));
  EXPECT_EQ(cluster_.machine().Gauges(run).late, 1U) << "one group has the values";
}

TEST_F(LostShardObligationsTest, VersionThatIsNotRestoredIsNamed) {
  const std::string run = Begin();
  cluster_.behaviour.slow_pulls = {0, 1};
  TrainBoth(run);
  ASSERT_EQ(VersionOf(run), 2U);
  cluster_.behaviour.apply = false;
  cluster_.Wipe(agg(0));
  EXPECT_TRUE(IsNamed("aggregator agg-0 has not restored version 2 of shard 0 for 3"));
  EXPECT_EQ(DelayedOrder(), "apply");
}

class CopyObligationsTest : public LostShardObligationsTest {
 protected:
  // Two shards with copies on each other's aggregator, at version 1.
  std::string BeginWithCopies() {
    v1::RunSpec spec = MakeSpec(2, 2, 5, 100);
    spec.mutable_averaging()->set_copies(2);
    const std::string run = SubmitTo(2, 4, spec);
    TrainBoth(run);
    EXPECT_EQ(VersionOf(run), 1U) << ReasonOf(run);
    return run;
  }
};

TEST_F(CopyObligationsTest, CopyThatIsNotMadeIsNamed) {
  const std::string run = BeginWithCopies();
  cluster_.behaviour.slow_copies = {"agg-0"};
  TrainBoth(run);
  EXPECT_TRUE(IsNamed("aggregator agg-0 has not copied version 2 of shard 1 for 3"));
  EXPECT_EQ(DelayedOrder(), "copy_shard");
}

TEST_F(CopyObligationsTest, LostShardThatDoesNotFetchItsCopyIsNamed) {
  BeginWithCopies();
  cluster_.behaviour.slow_copies = {"agg-0"};
  cluster_.Wipe(agg(0));
  EXPECT_TRUE(IsNamed("aggregator agg-0 has not restored version 1 of shard 0 for 3"));
  EXPECT_EQ(DelayedOrder(), "copy_shard");
}

}  // namespace
}  // namespace cadre::testing
