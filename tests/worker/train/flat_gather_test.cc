#include "worker/train/flat_gather.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/worker/train/checkpoint_testing.h"

namespace cadre {
namespace {

// Values for the intervals, stored in `memory`: position p has value p.
std::vector<Owned> Own(const std::vector<Interval>& intervals, std::vector<float>& memory) {
  for (const Interval& interval : intervals) {
    for (int64_t p = interval.begin; p < interval.end; ++p) memory.push_back(p);
  }
  std::vector<Owned> owned;
  int64_t at = 0;
  for (const Interval& interval : intervals) {
    owned.push_back({interval, std::span(memory).subspan(at, interval.size())});
    at += interval.size();
  }
  return owned;
}

TEST(FlatGather, GathersEveryChunkOfEveryPartition) {
  constexpr int64_t kSize = 97;
  for (const Partition partition :
       {Partition{1, 0}, {1, 4}, {2, 0}, {3, 0}, {3, 1}, {4, 10}, {5, 40}}) {
    OnGroup(partition.ranks, [&](Communicator& group) {
      const std::vector<Interval> ranges = IntervalsOf(partition, kSize, group.index());
      std::vector<float> memory;
      const std::vector<Owned> owned = Own(ranges, memory);
      auto gather = FlatGather::Make(kSize, owned, group);
      ASSERT_TRUE(gather.ok()) << gather.status();
      for (const int64_t chunk : {int64_t{1}, int64_t{13}, kSize}) {
        for (int64_t begin = 0; begin < kSize; begin += chunk) {
          const Interval part = {begin, std::min(kSize, begin + chunk)};
          std::vector<float> whole(group.index() == 0 ? part.size() : 0);
          ASSERT_TRUE(gather->Gather(part, owned, whole).ok());
          for (size_t i = 0; i < whole.size(); ++i) {
            ASSERT_EQ(whole[i], begin + i);
          }
        }
      }
    });
  }
}

TEST(FlatGather, RejectsPositionsNotOwnedOnce) {
  // For size 10: a gap, an overlap, too few positions, too many positions.
  const std::vector<std::vector<std::vector<Interval>>> wrong = {
      {{{0, 4}}, {{5, 10}}}, {{{0, 6}}, {{5, 10}}},         {{{0, 5}}, {{5, 9}}},
      {{{0, 5}}, {{5, 11}}}, {{{0, 5}, {0, 5}}, {{5, 10}}}, {{}, {}}};
  for (const auto& by_rank : wrong) {
    OnGroup(2, [&](Communicator& group) {
      std::vector<float> memory;
      const auto gather = FlatGather::Make(10, Own(by_rank[group.index()], memory), group);
      EXPECT_EQ(gather.status().code(), absl::StatusCode::kInternal);
    });
  }
}

TEST(FlatGather, RankMayOwnNothing) {
  OnGroup(3, [&](Communicator& group) {
    std::vector<Interval> intervals;
    if (group.index() == 2) intervals = {{0, 4}, {4, 4}, {4, 8}};
    std::vector<float> memory;
    const std::vector<Owned> owned = Own(intervals, memory);
    auto gather = FlatGather::Make(8, owned, group);
    ASSERT_TRUE(gather.ok()) << gather.status();
    std::vector<float> whole(group.index() == 0 ? 8 : 0);
    ASSERT_TRUE(gather->Gather({0, 8}, owned, whole).ok());
    for (size_t i = 0; i < whole.size(); ++i) EXPECT_EQ(whole[i], i);
  });
}

}  // namespace
}  // namespace cadre
