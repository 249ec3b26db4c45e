#include "model/data_position.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <vector>

namespace cadre {
namespace {

v1::SampleDivision Division(uint32_t groups, uint32_t step, uint64_t position) {
  v1::SampleDivision division;
  division.set_groups(groups);
  division.set_step(step);
  division.set_position(position);
  return division;
}

TEST(DataPositionTest, InitialDivisionFollowsTheCheckpoint) {
  v1::RunSpec spec;
  spec.set_batch_per_group(4);
  spec.mutable_cluster()->set_groups(3);
  EXPECT_EQ(InitialDivision(spec).groups(), 3U);
  EXPECT_EQ(InitialDivision(spec).position(), 0U);
  spec.mutable_checkpoint()->set_from_step(10);
  EXPECT_EQ(InitialDivision(spec).step(), 10U);
  EXPECT_EQ(InitialDivision(spec).position(), 120U) << "without a position, steps are counted";
  spec.mutable_checkpoint()->set_from_position(77);
  EXPECT_EQ(InitialDivision(spec).position(), 77U);
}

TEST(DataPositionTest, StepAtIsTheFirstStepOfAPosition) {
  const v1::SampleDivision division = Division(3, 10, 100);
  EXPECT_EQ(StepAt(division, 100, 4), 10U);
  EXPECT_EQ(StepAt(division, 101, 4), 11U);
  EXPECT_EQ(StepAt(division, 112, 4), 11U);
  EXPECT_EQ(StepAt(division, 113, 4), 12U);
  EXPECT_EQ(StepAt(division, 5, 4), 10U) << "the position is of an earlier division";
  EXPECT_EQ(StepAt(Division(1, 0, 0), std::numeric_limits<uint64_t>::max(), 1),
            std::numeric_limits<uint32_t>::max());
}

TEST(DataPositionTest, EarlierStepsHaveTheFirstPosition) {
  EXPECT_EQ(PositionAt(Division(3, 10, 100), 7, 4), 100);
  EXPECT_EQ(BatchPosition(Division(3, 10, 100), 7, 2, 4), 108);
}

TEST(DataPositionTest, TotalStepsFollowTheDivision) {
  v1::RunSpec spec;
  spec.set_batch_per_group(10);
  spec.mutable_stop()->set_epochs(2);
  EXPECT_EQ(TotalSteps(spec, Division(1, 0, 0), 200), 40U);
  EXPECT_EQ(TotalSteps(spec, Division(4, 20, 200), 200), 25U);
  EXPECT_EQ(TotalSteps(spec, Division(4, 20, 400), 200), 20U) << "all epochs are done";
  EXPECT_EQ(TotalSteps(spec, Division(1, 0, 0), 0), 0U) << "the number of samples is unknown";
  spec.mutable_stop()->set_steps(22);
  EXPECT_EQ(TotalSteps(spec, Division(4, 20, 200), 200), 22U);
}

// Groups train full periods, and their number changes at random versions: every position up to the
// last step is used exactly once, and the run ends with the epoch.
TEST(DataPositionTest, AnySequenceOfScalingsUsesEverySampleOnce) {
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    std::mt19937 random(seed);
    const auto draw = [&](uint32_t low, uint32_t high) {
      return low + random() % (high - low + 1);
    };
    v1::RunSpec spec;
    const int64_t batch = draw(1, 9);
    const uint32_t period = draw(1, 7);
    const uint64_t samples = draw(20, 300);
    spec.set_batch_per_group(batch);
    spec.mutable_cluster()->set_groups(draw(1, 6));
    spec.mutable_stop()->set_epochs(draw(1, 4));
    const uint64_t end = spec.stop().epochs() * samples;
    v1::SampleDivision division = InitialDivision(spec);
    std::vector<int> used(end + 6 * batch + batch, 0);
    uint32_t step = 0;
    while (step < TotalSteps(spec, division, samples)) {
      const uint32_t boundary = std::min(step + period, TotalSteps(spec, division, samples));
      for (; step < boundary; ++step) {
        for (uint32_t group = 0; group < division.groups(); ++group) {
          const int64_t first = BatchPosition(division, step, group, batch);
          for (int64_t i = first; i < first + batch; ++i) ++used.at(i);
        }
      }
      division = DivideFrom(division, step, draw(1, 6), batch);
      ASSERT_EQ(StepAt(division, division.position(), batch), step);
    }
    for (uint64_t i = 0; i < end; ++i) ASSERT_EQ(used[i], 1) << "seed " << seed << ", sample " << i;
    // The last step may use samples of the next epoch, each once.
    for (uint64_t i = end; i < used.size(); ++i)
      ASSERT_EQ(used[i], i < division.position() ? 1 : 0);
  }
}

}  // namespace
}  // namespace cadre
