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
    Communicator group(*transports[static_cast<size_t>(rank)], members);
    body(group);
  });
}

TEST(FlatGather, EveryChunkOfEveryDealing) {
  constexpr int64_t kSize = 97;
  for (const Dealing dealing : {Dealing{1, 0}, {1, 4}, {2, 0}, {3, 0}, {3, 1}, {4, 10}, {5, 40}}) {
    RunRanks(dealing.ranks, [&](Communicator& group) {
      const std::vector<FlatRange> ranges = Deal(dealing, kSize, group.index());
      // Position p holds p.
      std::vector<std::vector<float>> memory;
      for (const FlatRange& range : ranges) {
        memory.emplace_back();
        for (int64_t p = range.begin; p < range.end; ++p) {
          memory.back().push_back(static_cast<float>(p));
        }
      }
      std::vector<const float*> values;
      for (const auto& piece : memory) values.push_back(piece.data());
      auto gather = FlatGather::Make(kSize, ranges, group);
      ASSERT_TRUE(gather.ok()) << gather.status();
      for (const int64_t chunk : {int64_t{1}, int64_t{13}, kSize}) {
        for (int64_t begin = 0; begin < kSize; begin += chunk) {
          const FlatRange part = {begin, std::min(kSize, begin + chunk)};
          std::vector<float> whole(group.index() == 0 ? static_cast<size_t>(part.size()) : 0);
          ASSERT_TRUE(gather->Gather(part, values, whole).ok());
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
  const std::vector<std::vector<std::vector<FlatRange>>> wrong = {
      {{{0, 4}}, {{5, 10}}}, {{{0, 6}}, {{5, 10}}},         {{{0, 5}}, {{5, 9}}},
      {{{0, 5}}, {{5, 11}}}, {{{0, 5}, {0, 5}}, {{5, 10}}}, {{}, {}}};
  for (const auto& by_rank : wrong) {
    RunRanks(2, [&](Communicator& group) {
      const auto gather = FlatGather::Make(10, by_rank[static_cast<size_t>(group.index())], group);
      EXPECT_EQ(gather.status().code(), absl::StatusCode::kInternal);
    });
  }
}

TEST(FlatGather, RanksMayOwnNothing) {
  RunRanks(3, [&](Communicator& group) {
    const std::vector<FlatRange> all = {{0, 4}, {4, 4}, {4, 8}};
    const std::vector<float> first = {0, 1, 2, 3}, second = {4, 5, 6, 7};
    const std::vector<const float*> values = {first.data(), nullptr, second.data()};
    const bool owner = group.index() == 2;
    auto gather = FlatGather::Make(8, owner ? all : std::vector<FlatRange>(), group);
    ASSERT_TRUE(gather.ok()) << gather.status();
    std::vector<float> whole(group.index() == 0 ? 8 : 0);
    ASSERT_TRUE(gather->Gather({0, 8}, owner ? values : std::vector<const float*>(), whole).ok());
    for (size_t i = 0; i < whole.size(); ++i) EXPECT_EQ(whole[i], static_cast<float>(i));
  });
}

}  // namespace
}  // namespace cadre
