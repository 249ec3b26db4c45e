// Tests the schedule alone, without threads, devices or data: which operations follow which events.
#include "worker/train/bucket_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace cadre {
namespace {

using Kind = BucketOp::Kind;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Lt;

// Three layers have parameters: 0, 2 and 3. Bucket 0 contains layers 3 and 2; bucket 1 contains
// layer 0 and has two chunks. Backward computes the layers in the order 3, 2, 0.
class BucketScheduleTest : public testing::Test {
 protected:
  BucketScheduleTest() {
    table_.buckets.resize(2);
    table_.buckets[0].first_layer = 2;
    table_.buckets[1].chunks = 2;
    table_.of_layer = {{1}, {}, {0}, {0}};
  }
  BucketSchedule Make(const BucketSchedule::Policy& policy) const { return {table_, policy}; }

  // A step of one pass up to its loss.
  static void Begin(BucketSchedule& schedule, bool gather) {
    schedule.BeginStep(gather);
    schedule.BeginLastForward();
    schedule.BeginLastBackward();
    schedule.AfterLoss();
    EXPECT_THAT(schedule.AfterForwards(), ElementsAre(BucketOp{Kind::kLoss}));
    EXPECT_THAT(schedule.Done({Kind::kLoss}), IsEmpty());
  }
  static BucketOps Backward(BucketSchedule& schedule) {
    BucketOps ops;
    for (const int layer : {3, 2, 0}) {
      for (const BucketOp& op : schedule.AfterBackward(layer)) ops.push_back(op);
    }
    for (const BucketOp& op : schedule.EndPass()) ops.push_back(op);
    return ops;
  }

  BucketTable table_;
};

constexpr BucketOp kReduce0{Kind::kReduce, 0, 0};
constexpr BucketOp kReduce10{Kind::kReduce, 1, 0};
constexpr BucketOp kReduce11{Kind::kReduce, 1, 1};

TEST_F(BucketScheduleTest, ReducesWhenBackwardHasPassedAllLayersOfABucket) {
  BucketSchedule schedule = Make({});
  Begin(schedule, /*gather=*/true);
  EXPECT_THAT(schedule.AfterBackward(3), IsEmpty());
  EXPECT_THAT(schedule.AfterBackward(2), ElementsAre(kReduce0));
  EXPECT_THAT(schedule.AfterBackward(0), ElementsAre(kReduce10, kReduce11));
  EXPECT_THAT(schedule.EndPass(), IsEmpty());
}

TEST_F(BucketScheduleTest, WithoutOverlapReducesAfterBackward) {
  BucketSchedule schedule = Make({.overlap = false});
  Begin(schedule, /*gather=*/true);
  for (const int layer : {3, 2, 0}) EXPECT_THAT(schedule.AfterBackward(layer), IsEmpty());
  EXPECT_THAT(schedule.EndPass(), ElementsAre(kReduce0, kReduce10, kReduce11));
}

// On a stream all ranks enqueue them at the same place among the messages of pipelines.
TEST_F(BucketScheduleTest, NormsFollowThePassOnAStream) {
  BucketSchedule schedule = Make({.norms = true, .lazy_gathers = true});
  Begin(schedule, /*gather=*/true);
  for (const int layer : {3, 2, 0}) {
    for (const BucketOp& op : schedule.AfterBackward(layer)) {
      EXPECT_THAT(schedule.Done(op), IsEmpty());
    }
  }
  EXPECT_THAT(schedule.EndPass(), ElementsAre(BucketOp{Kind::kNorms}));
  EXPECT_EQ(schedule.Done({Kind::kNorms}).size(), 3U);
}

// If backward does not reach a bucket's layers on this rank, the end of the pass reduces the
// bucket.
TEST_F(BucketScheduleTest, EndOfPassReducesTheRest) {
  BucketSchedule schedule = Make({});
  Begin(schedule, /*gather=*/true);
  EXPECT_THAT(schedule.AfterBackward(0), ElementsAre(kReduce10, kReduce11));
  EXPECT_THAT(schedule.EndPass(), ElementsAre(kReduce0));
}

// Other ranks execute these operations at the same places of the common order.
TEST_F(BucketScheduleTest, BucketOfOtherRanksFollowsLoss) {
  table_.buckets[0].held = false;
  table_.of_layer = {{1}, {}, {}, {}};
  BucketSchedule schedule = Make({.norms = true});
  schedule.BeginStep(/*gather=*/true);
  schedule.BeginLastForward();
  schedule.BeginLastBackward();
  schedule.AfterLoss();
  EXPECT_THAT(schedule.AfterForwards(), ElementsAre(BucketOp{Kind::kLoss}, kReduce0));
  EXPECT_THAT(schedule.AfterBackward(0), ElementsAre(kReduce10, kReduce11));
  EXPECT_THAT(schedule.EndPass(), IsEmpty());
  EXPECT_THAT(schedule.Done(kReduce0), IsEmpty());
  EXPECT_THAT(schedule.Done(kReduce10), IsEmpty());
  EXPECT_THAT(schedule.Done(kReduce11), ElementsAre(BucketOp{Kind::kNorms}));
}

TEST_F(BucketScheduleTest, UpdatesAndGathersEachChunkAfterItsReduction) {
  BucketSchedule schedule = Make({});
  Begin(schedule, /*gather=*/true);
  Backward(schedule);
  EXPECT_THAT(schedule.Done(kReduce11),
              ElementsAre(BucketOp{Kind::kUpdate, 1, 1}, BucketOp{Kind::kGather, 1, 1}));
  EXPECT_THAT(schedule.Done({Kind::kUpdate, 1, 1}), IsEmpty());
  EXPECT_THAT(schedule.Done({Kind::kGather, 1, 1}), IsEmpty());
}

TEST_F(BucketScheduleTest, WithoutGatherOnlyUpdates) {
  BucketSchedule schedule = Make({});
  Begin(schedule, /*gather=*/false);
  Backward(schedule);
  EXPECT_THAT(schedule.Expected(), IsEmpty());
  EXPECT_THAT(schedule.Done(kReduce0), ElementsAre(BucketOp{Kind::kUpdate, 0, 0}));
  EXPECT_THAT(schedule.Gather(),
              ElementsAre(BucketOp{Kind::kGather, 1, 0}, BucketOp{Kind::kGather, 1, 1},
                          BucketOp{Kind::kGather, 0, 0}));
}

// After the norms, chunks come in the order in which forward needs them, each with its gather.
TEST_F(BucketScheduleTest, NormsWaitForAllReductionsAndUpdatesForNorms) {
  for (const bool gather : {false, true}) {
    BucketSchedule schedule = Make({.norms = true});
    Begin(schedule, gather);
    Backward(schedule);
    EXPECT_THAT(schedule.Done(kReduce10), IsEmpty());
    EXPECT_THAT(schedule.Done(kReduce0), IsEmpty());
    EXPECT_THAT(schedule.Done(kReduce11), ElementsAre(BucketOp{Kind::kNorms}));
    const Kind kind = gather ? Kind::kUpdateAndGather : Kind::kUpdate;
    EXPECT_THAT(schedule.Done({Kind::kNorms}),
                ElementsAre(BucketOp{kind, 1, 0}, BucketOp{kind, 1, 1}, BucketOp{kind, 0, 0}));
  }
}

TEST_F(BucketScheduleTest, ExpectsWhatForwardWaitsFor) {
  BucketSchedule schedule = Make({.norms = true});
  Begin(schedule, /*gather=*/true);
  EXPECT_THAT(schedule.Expected(),
              ElementsAre(BucketOp{Kind::kGather, 1, 0}, BucketOp{Kind::kGather, 1, 1},
                          BucketOp{Kind::kGather, 0, 0}, BucketOp{Kind::kNorms}));
}

// Reductions continue, because other ranks take part in them; the next step is not affected.
TEST_F(BucketScheduleTest, StopEndsUpdatesOfThisStepOnly) {
  for (const bool norms : {false, true}) {
    BucketSchedule schedule = Make({.norms = norms});
    Begin(schedule, /*gather=*/true);
    schedule.Stop();
    EXPECT_THAT(Backward(schedule), ElementsAre(kReduce0, kReduce10, kReduce11));
    for (const BucketOp& op : {kReduce0, kReduce10, kReduce11}) {
      EXPECT_THAT(schedule.Done(op), IsEmpty());
    }
    Begin(schedule, /*gather=*/true);
    Backward(schedule);
    for (const BucketOp& op : {kReduce0, kReduce10}) schedule.Done(op);
    EXPECT_EQ(schedule.Done(kReduce11).empty(), false);
  }
}

TEST_F(BucketScheduleTest, StopAfterNormsEndsUpdates) {
  BucketSchedule schedule = Make({.norms = true});
  Begin(schedule, /*gather=*/true);
  Backward(schedule);
  schedule.Stop();
  EXPECT_THAT(schedule.Done({Kind::kNorms}), IsEmpty());
}

TEST_F(BucketScheduleTest, OnlyTheLastPassExchanges) {
  BucketSchedule schedule = Make({});
  schedule.BeginStep(/*gather=*/true);
  EXPECT_TRUE(schedule.first_pass());
  schedule.AfterLoss();
  EXPECT_FALSE(schedule.first_pass());
  EXPECT_THAT(Backward(schedule), IsEmpty());
  schedule.BeginLastForward();
  schedule.BeginLastBackward();
  schedule.AfterLoss();
  EXPECT_THAT(schedule.AfterForwards(), ElementsAre(BucketOp{Kind::kLoss}));
  EXPECT_THAT(Backward(schedule), ElementsAre(kReduce0, kReduce10, kReduce11));
}

// In a pipeline the last forward precedes several backward passes.
TEST_F(BucketScheduleTest, TheLossIsSummedAfterTheLastForward) {
  BucketSchedule schedule = Make({});
  schedule.BeginStep(/*gather=*/true);
  schedule.AfterLoss();
  schedule.BeginLastForward();
  schedule.AfterLoss();
  EXPECT_THAT(schedule.AfterForwards(), ElementsAre(BucketOp{Kind::kLoss}));
  EXPECT_THAT(Backward(schedule), IsEmpty());
  schedule.BeginLastBackward();
  EXPECT_THAT(Backward(schedule), ElementsAre(kReduce0, kReduce10, kReduce11));
}

TEST_F(BucketScheduleTest, LazyGathersWaitForTheNextForward) {
  BucketSchedule schedule = Make({.lazy_gathers = true});
  Begin(schedule, /*gather=*/true);
  EXPECT_THAT(Backward(schedule), ElementsAre(kReduce0, kReduce10, kReduce11));
  EXPECT_THAT(schedule.Done(kReduce0), ElementsAre(BucketOp{Kind::kUpdate, 0, 0}));
  EXPECT_THAT(schedule.BeginForward(),
              ElementsAre(BucketOp{Kind::kGather, 1, 0}, BucketOp{Kind::kGather, 1, 1},
                          BucketOp{Kind::kGather, 0, 0}));
  EXPECT_THAT(schedule.BeginForward(), IsEmpty());
  EXPECT_THAT(schedule.Gather(), IsEmpty());
  EXPECT_EQ(schedule.BeginForward().size(), 3U);
}

TEST_F(BucketScheduleTest, LazyGathersWithoutOverlapEndThePass) {
  BucketSchedule schedule = Make({.overlap = false, .lazy_gathers = true});
  Begin(schedule, /*gather=*/true);
  EXPECT_EQ(Backward(schedule).size(), 6U);
  EXPECT_THAT(schedule.BeginForward(), IsEmpty());
  EXPECT_EQ(schedule.Gather().size(), 3U);
}

TEST_F(BucketScheduleTest, PriorityFollowsTheLayerThatWaits) {
  const BucketSchedule schedule = Make({});
  const auto priority = [&](Kind kind, int bucket) { return schedule.Priority({kind, bucket, 0}); };
  EXPECT_THAT(schedule.Priority({Kind::kLoss}), Lt(priority(Kind::kGather, 1)));
  EXPECT_EQ(schedule.Priority({Kind::kNorms}), schedule.Priority({Kind::kLoss}));
  EXPECT_THAT(priority(Kind::kGather, 1), Lt(priority(Kind::kReduce, 1)));
  EXPECT_THAT(priority(Kind::kReduce, 1), Lt(priority(Kind::kGather, 0)));
  EXPECT_EQ(priority(Kind::kUpdateAndGather, 0), priority(Kind::kGather, 0));
}

// StepRecorder finds its recordings by state, so equal steps must start from equal states.
TEST_F(BucketScheduleTest, EqualStepsStartFromEqualStates) {
  BucketSchedule schedule = Make({.norms = true, .lazy_gathers = true});
  std::vector<BucketSchedule::State> states;
  for (int step = 0; step < 3; ++step) {
    schedule.BeginStep(/*gather=*/true);
    schedule.BeginLastForward();
    schedule.BeginLastBackward();
    states.push_back(schedule.state());
    schedule.BeginForward();
    schedule.AfterLoss();
    schedule.AfterForwards();
    for (const BucketOp& op : Backward(schedule)) schedule.Done(op);
  }
  EXPECT_FALSE(states[0] == states[1]);  // The first forward has nothing to gather.
  EXPECT_EQ(states[1], states[2]);
  schedule.set_state(states[0]);
  EXPECT_THAT(schedule.BeginForward(), IsEmpty());
}

}  // namespace
}  // namespace cadre
