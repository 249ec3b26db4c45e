#include "worker/train/flat_gather.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/worker/train/checkpoint_testing.h"

namespace cadre {
namespace {

void RunRanks(int ranks, const std::function<void(Communicator&)>& body) {
  const Transports transports = MakeTransports(Wire::kThreads, ranks);
  std::vector<int> members(static_cast<size_t>(ranks));
  std::iota(members.begin(), members.end(), 0);
  OnRanks(ranks, [&](int rank) {
    Communicator group(*transports[rank], members);
    body(group);
  });
}

// Position p holds p. The values lie in `memory`.
std::vector<Owned> Own(const std::vector<Interval>& intervals, std::vector<float>& memory) {
  for (const Interval& interval : intervals) {
    for (int64_t p = interval.begin; p < interval.end; ++p) memory.push_back(static_cast<float>(p));
  }
  std::vector<Owned> owned;
  int64_t at = 0;
  for (const Interval& interval : intervals) {
    owned.push_back({interval, std::span(memory).subspan(at, interval.size())});
    at += interval.size();
  }
  return owned;
}

TEST(FlatGather, EveryChunkOfEveryDealing) {
  constexpr int64_t kSize = 97;
  for (const Dealing dealing : {Dealing{1, 0}, {1, 4}, {2, 0}, {3, 0}, {3, 1}, {4, 10}, {5, 40}}) {
    RunRanks(dealing.ranks, [&](Communicator& group) {
      const std::vector<Interval> ranges = Deal(dealing, kSize, group.index());
      std::vector<float> memory;
      const std::vector<Owned> owned = Own(ranges, memory);
      auto gather = FlatGather::Make(kSize, owned, group);
      ASSERT_TRUE(gather.ok()) << gather.status();
      for (const int64_t chunk : {int64_t{1}, int64_t{13}, kSize}) {
        for (int64_t begin = 0; begin < kSize; begin += chunk) {
          const Interval part = {begin, std::min(kSize, begin + chunk)};
          std::vector<float> whole(group.index() == 0 ? static_cast<size_t>(part.size()) : 0);
          ASSERT_TRUE(gather->Gather(part, owned, whole).ok());
          for (size_t i = 0; i < whole.size(); ++i) {
            ASSERT_EQ(whole[i], static_cast<float>(begin) + static_cast<float>(i));
          }
        }
      }
    });
  }
}

TEST(FlatGather, EachPositionMustBeOwnedOnce) {
  // Size 10 for each: a hole, an overlap, too little, too much.
  const std::vector<std::vector<std::vector<Interval>>> wrong = {
      {{{0, 4}}, {{5, 10}}}, {{{0, 6}}, {{5, 10}}},         {{{0, 5}}, {{5, 9}}},
      {{{0, 5}}, {{5, 11}}}, {{{0, 5}, {0, 5}}, {{5, 10}}}, {{}, {}}};
  for (const auto& by_rank : wrong) {
    RunRanks(2, [&](Communicator& group) {
      std::vector<float> memory;
      const auto gather = FlatGather::Make(10, Own(by_rank[group.index()], memory), group);
      EXPECT_EQ(gather.status().code(), absl::StatusCode::kInternal);
    });
  }
}

TEST(FlatGather, RanksMayOwnNothing) {
  RunRanks(3, [&](Communicator& group) {
    std::vector<Interval> intervals;
    if (group.index() == 2) intervals = {{0, 4}, {4, 4}, {4, 8}};
    std::vector<float> memory;
    const std::vector<Owned> owned = Own(intervals, memory);
    auto gather = FlatGather::Make(8, owned, group);
    ASSERT_TRUE(gather.ok()) << gather.status();
    std::vector<float> whole(group.index() == 0 ? 8 : 0);
    ASSERT_TRUE(gather->Gather({0, 8}, owned, whole).ok());
    for (size_t i = 0; i < whole.size(); ++i) EXPECT_EQ(whole[i], static_cast<float>(i));
  });
}

}  // namespace
}  // namespace cadre
