// Every sample occurs once per epoch, for any division among groups.
#include "worker/data/batch_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>

namespace cadre {
namespace {

std::vector<int64_t> Sequence(Sampler& sampler, int64_t first, int64_t count) {
  std::vector<int64_t> samples;
  for (int64_t i = first; i < first + count; ++i) samples.push_back(sampler.SampleAt(i).index);
  return samples;
}

TEST(SamplerTest, EachEpochIsAPermutation) {
  for (const int64_t size : {1, 2, 7, 60, 1000}) {
    Sampler sampler(3, size);
    std::vector<int64_t> all(size);
    std::iota(all.begin(), all.end(), 0);
    for (int64_t epoch = 0; epoch < 4; ++epoch) {
      std::vector<int64_t> seen = Sequence(sampler, epoch * size, size);
      EXPECT_EQ(sampler.SampleAt(epoch * size + size - 1).epoch, epoch);
      std::sort(seen.begin(), seen.end());
      EXPECT_EQ(seen, all) << size << " " << epoch;
    }
  }
}

TEST(SamplerTest, EpochsAndSeedsDiffer) {
  Sampler one(1, 1000);
  Sampler two(2, 1000);
  EXPECT_NE(Sequence(one, 0, 1000), Sequence(one, 1000, 1000));
  EXPECT_NE(Sequence(one, 0, 1000), Sequence(two, 0, 1000));
  // Samplers with equal seeds agree.
  Sampler again(1, 1000);
  EXPECT_EQ(Sequence(one, 500, 1000), Sequence(again, 500, 1000));
}

// The cache of permutations must not affect the result.
TEST(SamplerTest, SampleDependsOnPositionOnly) {
  Sampler in_order(5, 11);
  const std::vector<int64_t> expected = Sequence(in_order, 0, 110);
  Sampler jumping(5, 11);
  for (int64_t i = 0; i < 110; ++i) {
    const int64_t position = i * 37 % 110;
    const SampleRef sample = jumping.SampleAt(position);
    ASSERT_EQ(sample.index, expected[position]);
    ASSERT_EQ(sample.epoch, position / 11);
  }
}

// 3 steps of 2 x 4 samples, then 4 steps of 3 x 5, then 2 steps of 1 x 8.
TEST(SamplerTest, ResumeWithOtherBatchesContinuesTheSequence) {
  Sampler sampler(7, 20);
  struct Part {
    uint32_t steps, groups, batch;
  };
  v1::SampleDivision division;
  std::map<int64_t, int64_t> times;
  int64_t expected = 0;
  for (const Part& part : {Part{3, 2, 4}, Part{4, 3, 5}, Part{2, 1, 8}}) {
    division.set_groups(part.groups);
    const uint32_t end = division.step() + part.steps;
    for (uint32_t step = division.step(); step < end; ++step) {
      for (uint32_t group = 0; group < part.groups; ++group) {
        const int64_t first = BatchPosition(division, step, group, part.batch);
        EXPECT_EQ(first, expected);
        expected += part.batch;
        for (const int64_t sample : Sequence(sampler, first, part.batch)) ++times[sample];
      }
    }
    division = DivideFrom(division, end, part.groups, part.batch);
  }
  EXPECT_EQ(expected, 100);
  ASSERT_EQ(times.size(), 20U);
  for (const auto& [sample, count] : times) EXPECT_EQ(count, 5) << sample;
}

TEST(SamplerTest, BatchMayBeLargerThanDataSet) {
  constexpr int64_t kSize = 6;
  constexpr int64_t kBatch = 20;
  Sampler sampler(1, kSize);
  std::map<int64_t, int64_t> times;
  for (int64_t step = 0; step < 3; ++step) {
    for (const int64_t sample : Sequence(sampler, step * kBatch, kBatch)) ++times[sample];
  }
  ASSERT_EQ(std::ssize(times), kSize);
  for (const auto& [sample, count] : times) EXPECT_EQ(count, 3 * kBatch / kSize) << sample;
}

}  // namespace
}  // namespace cadre
